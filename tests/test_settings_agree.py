"""One configuration that everything obeys: however settings are said, they make the same index and find the same."""

import asyncio
import json
import os
import shutil
from contextlib import contextmanager
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_clients import mcp, text_of
from state_table import state_in

from llama_index_contextual.app import mcp_server
from llama_index_contextual.app.cli.common import EXIT_INCOMPLETE
from llama_index_contextual.app.config import SETTINGS
from llama_index_contextual.app.folder.walk import SOURCE_INCLUDE, FileRules, default_include
from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.app.index.asked import chosen_postprocessors
from llama_index_contextual.app.index.pipeline import default_parser
from llama_index_contextual.app.settings.embeddings import resolve_embedding

QUESTION = "Which port does the gateway open?"
PATTERNS = ("*.txt", "*.py", "notes/")
INDEXED = (0, EXIT_INCOMPLETE)  # a file that is larger than max_bytes is reported
PREFIX = "LLAMA_INDEX_CONTEXTUAL_"
DRAWN = {
    "files.include": st.lists(st.sampled_from(PATTERNS), unique=True).map(lambda more: ["*.md", *more]),
    "files.exclude": st.lists(st.sampled_from(("drafts/", "2026-*.md", "[ab]*.md")), min_size=1, unique=True),
    "files.gitignore": st.booleans(),
    "files.hidden": st.booleans(),
    "files.follow_symlinks": st.booleans(),
    "files.max_bytes": st.sampled_from((700, 10_000_000)),
    "chunks.chunk_size": st.integers(20, 120),
    "chunks.chunk_overlap": st.integers(0, 10),
    "chunks.min_chunk_size": st.integers(0, 15),
    "chunks.max_chunk_size": st.integers(400, 600),
    "chunks.markdown_suffixes": st.lists(st.sampled_from((".md", ".txt", "*")), min_size=1, unique=True),
    "chunks.tokenizer": st.sampled_from(("cl100k", "minilm")),
    "context": st.sampled_from(("off", "headings", "headers", "pattern")),
    "show_context_to_llm": st.booleans(),
    "embed_model": st.sampled_from(("local", "none")),
    "retrieval.per_file": st.integers(1, 2),
    "retrieval.mode": st.sampled_from(("learned", "reciprocal_rerank", "relative_score", "dist_based_score")),
    "retrieval.keyword_weight": st.sampled_from((0.2, 0.6, 0.9)),
    "retrieval.min_score": st.sampled_from([0.0, 0.05, 0.5]),
    "retrieval.recency": st.booleans(),
    "retrieval.half_life_days": st.floats(5, 60, allow_nan=False).map(lambda days: round(days, 1)),
}
ALWAYS = {"retrieval.top_k": st.integers(1, 6)}  # its default is 5 on the command line and 10 in Python
NOT_DRAWN = {"retrieval.rerank"}  # needs a model
CHOICES = st.fixed_dictionaries(ALWAYS, optional=DRAWN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which each rule about files and chunks makes a difference."""
    folder = tmp_path_factory.mktemp("agree") / "docs"
    port = "The gateway opens port {}. It can be changed in the file of settings. Nothing else depends on it.\n"
    pages = {
        "api.md": "# API\n\n## Gateway\n\n" + port.format(80) + "\n## Errors\n\n" + "The gateway answers. " * 30,
        "guide.txt": "Guide\n\n" + port.format(81),
        "server.py": 'def open_port():\n    """Open the port of the gateway."""\n    return 82\n',
        "notes/2026-01-28.md": "# Morning\n\n" + port.format(83),
        "notes/2026-11-20.md": "# Evening\n\n" + port.format(84),
        "drafts/idea.md": "# Idea\n\n" + port.format(85),
        ".hidden/secret.md": "# Secret\n\n" + port.format(86),
        "zebra.md": "# Zebra\n\n" + port.format(88),  # which no rule leaves out
        "ignored.md": "# Ignored\n\n" + port.format(87),
        ".gitignore": "ignored.md\n",
    }
    for name, text in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    (folder / "link.md").symlink_to(folder / "guide.txt")
    return folder


@pytest.fixture
def ways(folder, tmp_path, run):
    """Callable: indexes the folder with some settings, said in a way of that name; returns the storage and the hits."""
    assert run("config", tmp_path, "--init").returncode == 0
    commented = (tmp_path / "contextual.toml").read_text("utf-8")

    def file(said, storage):
        config = storage.with_suffix(".toml")
        config.write_text(uncommented(commented, said), "utf-8")
        done = run("index", folder, "--storage", storage, "--config", config)
        assert done.returncode in INDEXED, done
        found = run("search", QUESTION, "--storage", storage, "--config", config, "--json")
        return [(hit["id"], hit["score"]) for hit in json.loads(found.stdout)]

    def options(said, storage):
        """Say what has an option by it, and the rest by variables."""
        index, search, rest = [], [], {}
        for key, value in said.items():
            option = SETTINGS[key].option
            if not option:
                rest[key] = value
            elif option == "--recency":
                search += [option] if value else ["--no-recency"]
            else:
                values = value if isinstance(value, list) else [value]
                (search if key.startswith("retrieval.") else index).extend(
                    part for one in values for part in (option, one)
                )
        with variables(rest):
            done = run("index", folder, "--storage", storage, *index)
            assert done.returncode in INDEXED, done
            model = index[(at := index.index("--embed-model")) : at + 2] if "--embed-model" in index else []
            found = run("search", QUESTION, "--storage", storage, "--json", *model, *search)
        return [(hit["id"], hit["score"]) for hit in json.loads(found.stdout)]

    def environment(said, storage):
        with variables(said), ContextualIndex.open(folder, storage=storage) as index:
            index.refresh()
            return hits_of(index.as_retriever())

    def python(said, storage):
        model = said.get("embed_model", "local")
        chunks = {key.removeprefix("chunks."): value for key, value in said.items() if key.startswith("chunks.")}
        parser = default_parser(resolve_embedding(model), chunks)
        context = {"headers": "headings"}.get(said.get("context"), said.get("context"))
        rules = {key.removeprefix("files."): value for key, value in said.items() if key.startswith("files.")}
        rules = {key: tuple(value) if isinstance(value, list) else value for key, value in rules.items()}
        files = FileRules(**{"include": default_include() + (SOURCE_INCLUDE if context == "pattern" else ()), **rules})
        show = said.get("show_context_to_llm")
        given = {"embed_model": model, "context": context, "files": files, "show_context_to_llm": show}
        with ContextualIndex.open(folder, storage=storage, node_parser=parser, **given) as index:
            index.refresh()
            recency = said.get("retrieval.recency", False) and said.get("retrieval.half_life_days", True)
            per_file = said.get("retrieval.per_file")
            limit = index.settings.configuration.retrieval.model_copy(update={"per_file": per_file})
            weight = said.get("retrieval.keyword_weight") if model != "none" else None  # else there is one arm
            limits = {
                "node_postprocessors": chosen_postprocessors(limit, recency, pool=100) if per_file else None,
                "min_score": said.get("retrieval.min_score"),
                "mode": said.get("retrieval.mode") if model != "none" else None,
                "retriever_weights": weight and [1 - weight, weight],
            }
            limits = {key: value for key, value in limits.items() if value is not None}
            return hits_of(index.as_retriever(said["retrieval.top_k"], recency=recency, **limits))

    return {"file": file, "options": options, "environment": environment, "python": python}


def uncommented(text, said):
    """Return the file of ``config --init`` as somebody edits it: the lines of some keys, with values of theirs."""
    lines, table = [], ""
    left = dict(said)
    for line in text.splitlines():
        table = line.strip("[]") if line.startswith("[") else table
        key = f"{table}.{line.removeprefix('# ').partition(' =')[0]}".strip(".")
        if line.startswith("# ") and " = " in line and key in left:
            line = f"{key.rpartition('.')[2]} = {json.dumps(left.pop(key))}"  # noqa: PLW2901
        lines.append(line)
    assert not left, "config --init shows every key"
    return "\n".join(lines)


@contextmanager
def variables(said):
    shown = {key: ",".join(value) if isinstance(value, list) else str(value) for key, value in said.items()}
    with mock.patch.dict(os.environ, {PREFIX + key.replace(".", "__").upper(): value for key, value in shown.items()}):
        yield


def hits_of(retriever):
    return [(hit.node.node_id, hit.score) for hit in retriever.retrieve(QUESTION)]


def read(storage):
    """Return what a reader sees who says no setting, and what the index is made with."""

    async def asked(index):
        async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
            return await text_of(client, "memory_search", query=QUESTION)

    state = state_in(storage)
    with ContextualIndex.open(None, storage=storage) as index:
        seen = {
            "fingerprint": index.settings.fingerprint,
            "nodes": sorted(node.node_id for node in index.nodes()),
            "hits": [(id_, pytest.approx(score)) for id_, score in hits_of(index.as_retriever(5))],
            "mcp": asyncio.run(asked(index)),
            "differences": index.settings.differences(index.settings.state()),
        }
    assert seen["differences"] == []
    assert state_in(storage) == state
    return seen


def test_every_setting_that_shapes_an_index_or_a_search_is_drawn():
    sections = ("files.", "chunks.", "retrieval.")
    keys = {key for key in SETTINGS if key.startswith(sections)} | {"context", "show_context_to_llm", "embed_model"}
    assert {*DRAWN, *ALWAYS} == keys - NOT_DRAWN


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(said=CHOICES)
@pytest.mark.long
def test_a_file_options_variables_and_python_make_the_same_index(ways, tmp_path, said):
    seen, hits = {}, {}
    for way, index_by in ways.items():
        storage = tmp_path / way
        shutil.rmtree(storage, ignore_errors=True)
        hits[way] = [(id_, pytest.approx(score, abs=1e-4)) for id_, score in index_by(said, storage)]
        seen[way] = read(storage)
    for way in ways:
        assert seen[way] == seen["file"], way
        assert hits[way] == hits["file"], way
