"""Keys of the environment are only sent to servers that the user names.

A folder or an index cannot name such a server.
"""

from __future__ import annotations

import json
import socketserver
import threading
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest
from state_table import change_state
from storage import storage_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.utils.errors import ContextualError

pytestmark = pytest.mark.filterwarnings(
    "always::llama_index_contextual.utils.errors.ContextualWarning"
)
KEYS = {
    name: f"secret-of-{name.lower()}"
    for name in (
        "OPENAI_API_KEY",
        "QDRANT_API_KEY",
        "ANTHROPIC_API_KEY",
        "OLLAMA_API_KEY",
        "HF_TOKEN",
        "CHROMA_API_KEY",
    )
}
# Every kind of server that a setting can name, with the keys that the user intends for it.
# {} is the server.
KINDS = {
    "ollama": ("embed_model", "ollama:x@{}", "OLLAMA_API_KEY"),
    "a model on Ollama": ("context_options.llm", "ollama:x@{}", "OLLAMA_API_KEY"),
    "a model like OpenAI's": ("context_options.llm", "openai:x@{}/v1", ""),
}
CHOICES = {"embed_model": "embed_model"}


@contextmanager
def listening():
    """Yield a server that records what it receives and answers 404."""
    heard = []

    class Listener(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.settimeout(1)
            heard.append(self.request.recv(65_536))
            self.request.sendall(
                b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
            )

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, allow_reuse_address = True, True

    with Server(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_address[1]}", heard=heard)
        server.shutdown()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    made = tmp_path / "notes"
    made.mkdir()
    (made / "page.md").write_text("# Page\n\nThe gateway waits 60 seconds.\n", "utf-8")
    return made


def keys_in(heard):
    sent = b"".join(heard).decode("latin-1")
    return {name for name, key in KEYS.items() if key in sent}


def said(kind, server):
    """Return the settings that name a server of a kind, by key."""
    key, value, _ = KINDS[kind]
    return {
        key: value.format(server.url),
        **({"context": "llm"} if key == "context_options.llm" else {}),
    }


def ask(folder, run, *options):
    """Run the commands that send texts: index and search."""
    run("index", folder, *options)
    run("search", "gateway", "--folder", folder, *options)


def as_toml(settings, table=""):
    return "".join(f"{table}{key} = {json.dumps(value)}\n" for key, value in settings.items())


def in_the_file(folder, settings, run):
    (folder / "contextual.toml").write_text(as_toml(settings), "utf-8")


def in_the_project(folder, settings, run):
    (folder / "pyproject.toml").write_text(
        "[tool.llama-index-contextual]\n" + as_toml(settings), "utf-8"
    )


def in_a_parent(folder, settings, run):
    (folder.parent / "contextual.toml").write_text(as_toml(settings), "utf-8")


def in_the_index(folder, settings, run):
    run("index", folder)
    choices = {CHOICES[key]: value for key, value in settings.items() if key in CHOICES}
    if "context_options.llm" in settings:
        choices |= {"context": "llm", "context_options.llm": settings["context_options.llm"]}
    change_state(storage_of(folder), choices=choices, settings={})


ROUTES = {
    route.__name__: route for route in (in_the_file, in_the_project, in_a_parent, in_the_index)
}


def rounds():
    """Yield all kinds in groups in which each setting occurs at most once."""
    left = list(KINDS)
    while left:
        taken = {KINDS[kind][0]: kind for kind in reversed(left)}
        yield list(taken.values())
        left = [kind for kind in left if kind not in taken.values()]


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_no_key_or_text_is_sent_to_a_server_that_a_folder_names(folder, run, route):
    with listening() as server:
        for kinds in rounds():
            settings = {key: value for kind in kinds for key, value in said(kind, server).items()}
            route(folder, settings, run)
            ask(folder, run)
            assert server.heard == [], kinds
        for command in ("status", "config"):
            run(command, folder)
        run("context", "what about the gateway?", "--folder", folder, "--refresh", "wait")
        run("preview", folder / "page.md")
        if route is in_the_file:
            run("evaluate", folder, "--questions", questions(folder), "--context", "headings")
        for reindex in ("auto", "ignore", "all"):
            with suppress(ContextualError), ContextualIndex.open(folder, reindex=reindex) as index:
                index.refresh(confirm=True)
                index.as_retriever().retrieve("gateway")
        assert server.heard == []


def questions(folder):
    file = folder.parent / "questions.jsonl"
    file.write_text(
        json.dumps({"question": "How long does it wait?", "path": "page.md", "text": "60 seconds"}),
        "utf-8",
    )
    return file


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_the_user_names_receives_only_its_own_key(folder, run, kind, users_own):
    with listening() as server:
        (folder / "contextual.toml").write_text(as_toml(said(kind, server)), "utf-8")
        users_own(folder)
        ask(folder, run)
        assert server.heard
        assert keys_in(server.heard) == set(KINDS[kind][2].split())
