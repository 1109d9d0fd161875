"""Model servers whose answers never end, are huge or never come, and every client that calls
them.
"""

from __future__ import annotations

import gzip
import json
import socketserver
import threading
import time
import tracemalloc
import warnings
from contextlib import contextmanager, suppress
from functools import cache
from types import SimpleNamespace

import pytest
from fake_model import Reply, always
from llama_index.core.llms import ChatMessage
from llama_index.core.schema import TextNode

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.serve.answering import answer, answering_model
from llama_index_contextual.app.settings.models import NamedModel, resolve_embedding
from llama_index_contextual.context.documents import group_by_document
from llama_index_contextual.context.generators.llm import LLMContextGenerator
from llama_index_contextual.utils.errors import (
    AnswerError,
    ContextualWarning,
    EmbeddingError,
    FingerprintError,
    SettingError,
)

SILENCE = 0.5  # the timeout in these tests


@contextmanager
def serving(answer):
    """Serve requests, and let ``answer`` write to the connection."""
    asked = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.settimeout(20)
            data = b""
            while b"\r\n\r\n" not in data:
                piece = self.request.recv(65_536)
                if not piece:
                    return
                data += piece
            head, _, body = data.partition(b"\r\n\r\n")
            sizes = [
                line for line in head.splitlines() if line.lower().startswith(b"content-length")
            ]
            while sizes and len(body) < int(sizes[0].split(b":")[1]):
                body += self.request.recv(65_536)
            asked.append(head.split()[1].decode())
            with suppress(OSError):  # the client has hung up
                answer(self.request, head)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, allow_reuse_address, block_on_close = True, True, False

        def handle_error(self, *_):
            """Keep the output of the tests clean."""

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_address[1]}", asked=asked)
        server.shutdown()


def head(**more):
    lines = ["HTTP/1.1 200 OK", "Content-Type: application/json", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def send_json(connection, data):
    body = json.dumps(data).encode()
    connection.sendall(head(Content_Length=len(body)) + body)


def silent(connection, _):
    connection.settimeout(15)
    connection.recv(1)


def dripping(connection, _):
    connection.sendall(head())
    for _ in range(200):
        connection.sendall(b" ")
        threading.Event().wait(0.1)


def dripping_headers(connection, _):
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for number in range(1000):
        connection.sendall(f"X-{number}: a\r\n".encode())
        threading.Event().wait(0.1)


def never_beginning(connection, _):
    for _ in range(1000):
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        threading.Event().wait(0.1)


@cache
def bomb():
    return gzip.compress(b" " * 200_000_000, 1)


def packed(connection, _):
    connection.sendall(head(Content_Encoding="gzip", Content_Length=len(bomb())) + bomb())


def endless(connection, _):
    connection.sendall(head())
    for _ in range(1000):
        connection.sendall(b" " * 1_000_000)


def packed_otherwise(connection, _):
    connection.sendall(head(Content_Encoding="br", Content_Length=4) + b"abcd")


def nested(connection, _):
    connection.sendall(head() + b"[" * 200_000)


def broken_off(connection, _):
    connection.sendall(head(Content_Length=1000) + b'{"data": [')


def busy_for_ever(connection, _):
    connection.sendall(
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1000000000\r\nContent-Length: "
        b"2\r\nConnection: close\r\n\r\n{}"
    )


def name_of(fault):
    return fault.__name__


SLOW = [dripping, dripping_headers, never_beginning, packed, endless, broken_off, busy_for_ever]
FAULTS = [
    silent,
    packed_otherwise,
    nested,
    *(pytest.param(fault, marks=pytest.mark.long) for fault in SLOW),
]
EMBEDDINGS = {
    "ollama": "ollama:x@{}",
    "openai": "openai:x@{}/v1",
}
MODELS = {"ollama": "ollama:x@{}", "openai": "openai:x@{}/v1"}


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Return the seconds between attempts, without waiting for them."""
    seconds = []
    monkeypatch.setattr("tenacity.nap.time.sleep", seconds.append)
    return seconds


@contextmanager
def bounded():
    """Check that the calls within take little memory and time."""
    tracemalloc.start()
    started = time.monotonic()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 250_000_000
    finally:
        tracemalloc.stop()
    assert time.monotonic() - started < 60, "minutes on a busy machine would still be an end"


def refused(index):
    """Return why an index, or its only document, could not be indexed."""
    try:
        report = index.refresh()
    except EmbeddingError as error:
        return str(error)
    return " ".join(map(str, report.failed))


@pytest.mark.parametrize("fault", FAULTS, ids=name_of)
@pytest.mark.parametrize("kind", EMBEDDINGS)
def test_a_faulty_embedding_server_causes_a_message(kind, fault, tmp_path, waits):
    (tmp_path / "a.md").write_text("# A\n\nSome words.\n", "utf-8")
    with serving(fault) as server:
        embedding = resolve_embedding(EMBEDDINGS[kind].format(server.url), timeout=SILENCE)
        with ContextualIndex.open(tmp_path, embed_model=embedding) as index, bounded():
            assert "Check the model" in refused(index)
        assert 1 <= len(server.asked) <= 8
    assert all(seconds <= 60 for seconds in waits)


def after_a_good_probe(fault):
    """Return a fault that applies to everything except the check whether the server runs."""

    def answer(connection, request):
        if request.split()[1].endswith((b"/models", b"/api/tags")):
            send_json(connection, {"models": [{"name": "x"}], "data": []})
        else:
            fault(connection, request)

    return answer


@pytest.mark.parametrize("fault", FAULTS, ids=name_of)
@pytest.mark.parametrize("kind", MODELS)
def test_contexts_fall_back(kind, fault, monkeypatch):
    monkeypatch.setattr("llama_index_contextual.context.calls.ATTEMPTS", 1)
    nodes = [TextNode(text="Some words.", metadata={"path": "a.md"})]
    with serving(after_a_good_probe(fault)) as server:
        model = NamedModel(MODELS[kind].format(server.url), 100, SILENCE)
        generator = LLMContextGenerator(model, cache=False)
        with bounded(), pytest.warns(ContextualWarning):
            generator.generate_all(group_by_document(nodes))
        assert sum(generator.usage.failed.values()) == 1
        assert generator.usage.calls == 1
        generator.close()


def unanswered(model):
    """Return why there is no answer."""
    try:
        said = "".join(map(str, answer("which?", ["one"], model)))
    except AnswerError as error:
        return str(error)
    return said.strip() or "an empty answer"


@pytest.mark.parametrize("fault", FAULTS, ids=name_of)
@pytest.mark.parametrize("kind", MODELS)
def test_a_faulty_model_server_causes_a_message(kind, fault):
    with serving(after_a_good_probe(fault)) as server:
        model = answering_model(MODELS[kind].format(server.url), SILENCE)
        with bounded():
            assert "Choose a model: " in unanswered(model)


def vectors(make_vectors):
    """Return a handler that sends vectors for a text in the format of each kind of server."""

    def answer(connection, request):
        path, rows = request.split()[1].decode(), make_vectors()
        if path.endswith("/api/embed"):
            send_json(connection, {"embeddings": rows})
            return
        entries = [{"index": index, "embedding": row} for index, row in enumerate(rows)]
        data = [{"data": entries}] if "contextualized" in path else entries
        send_json(
            connection,
            {"data": data, "model": "x", "usage": {"prompt_tokens": 1, "total_tokens": 1}},
        )

    return answer


BAD = {
    "not a number": lambda: [[float("nan"), 1.0]],
    "infinite": lambda: [[float("inf"), 1.0]],
    "zero": lambda: [[0.0, 0.0]],
    "none": list,
    "too many": lambda: [[1.0, 0.0], [0.0, 1.0]],
    "empty": lambda: [[]],
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("kind", ["ollama", "openai"])
def test_invalid_vectors_are_refused(kind, bad, tmp_path):
    (tmp_path / "a.md").write_text("# A\n\nSome words.\n", "utf-8")
    with serving(vectors(BAD[bad])) as server:
        embedding = resolve_embedding(EMBEDDINGS[kind].format(server.url), timeout=SILENCE)
        with ContextualIndex.open(tmp_path, embed_model=embedding) as index:
            assert refused(index)


@pytest.mark.parametrize("kind", ["ollama", "openai"])
def test_vectors_of_different_lengths_are_refused(kind, tmp_path):
    lengths = iter(range(2, 1000))
    (tmp_path / "a.md").write_text("# A\n\nSome words.\n", "utf-8")
    with serving(vectors(lambda: [[1.0] * next(lengths)])) as server:
        embedding = resolve_embedding(EMBEDDINGS[kind].format(server.url), timeout=SILENCE)
        with ContextualIndex.open(tmp_path, embed_model=embedding) as index:
            index.refresh()
            with pytest.raises(FingerprintError, match="dimensions"):
                index.as_retriever().retrieve("words")


@pytest.mark.parametrize("proxy", ["http://[::1", "http://127.0.0.1:port", "socks9://127.0.0.1"])
@pytest.mark.parametrize("spec", ["ollama:x@http://a.example", "openai:x@http://a.example/v1"])
def test_an_invalid_proxy_in_the_environment_is_named(spec, proxy, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(SettingError, match=r"Cannot connect to a model server .*HTTP_PROXY"):
        NamedModel(spec, 100)()
    with pytest.raises(SettingError, match=r"Cannot connect to a model server .*HTTP_PROXY"):
        resolve_embedding(spec, timeout=SILENCE).get_text_embedding("words")


def test_a_model_by_name_answers(fake_model):
    fake_model.reply = always(Reply("Good morning."))
    llm = NamedModel(fake_model.llm, 100)()
    assert llm.chat([ChatMessage("Hello.")]).message.content == "Good morning."
    assert (
        "".join(part.delta or "" for part in llm.stream_chat([ChatMessage("Hello.")]))
        == "Good morning."
    )


REACHED = {
    "embedding": ('embed_model = "{}"', "ollama:x@{}"),
    "contexts": ('context = "llm"\n[context_options]\nllm = "{}"', "openai:x@{}/v1"),
}


@pytest.mark.long
@pytest.mark.parametrize("what", REACHED)
def test_the_timeout_reaches_every_client_and_many_documents_wait_once(what, tmp_path, users_own):
    """A silent server ends each part within the timeout, however many documents there are."""
    for number in range(6):
        (tmp_path / f"{number}.md").write_text(
            f"# Note {number}\n\nSome words about {number}.\n", "utf-8"
        )
    setting, spec = REACHED[what]
    with serving(after_a_good_probe(silent)) as server:
        settings = setting.format(spec.format(server.url))
        (tmp_path / "contextual.toml").write_text(f"timeout = {SILENCE}\n{settings}\n", "utf-8")
        users_own(tmp_path)
        started = time.monotonic()
        with ContextualIndex.open(tmp_path) as index, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with suppress(EmbeddingError):
                index.refresh()
        assert server.asked
        assert len(server.asked) <= 1 + 6, "a probe, and once for each document at most"
    assert time.monotonic() - started < 30, "60 s is the default"
