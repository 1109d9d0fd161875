"""Descriptions of chunks for the ranking: computed once, stored in columns."""

from __future__ import annotations

from datetime import date
from functools import partial

import numpy as np
import pytest
from growth import assert_linear
from llama_index.core.schema import TextNode

from llama_index_contextual.retrievers import node_index
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.bm25_index import term_number
from llama_index_contextual.retrievers.chunk_info import (
    ChunkInfo,
    ChunkInfoIndex,
    InfoCollector,
    describe_chunk,
)
from llama_index_contextual.retrievers.terms import query_groups
from llama_index_contextual.utils.errors import StorageError

NOTE = {
    "path": "notes/2026-04-09.md",
    "header_path": "Plans > Retries of the worker",
    "context": "Document: notes/2026-04-09.md > Plans",
    "start_line": 3,
    "end_line": 5,
}


def test_a_note():
    chunk = describe_chunk(NOTE, "# Plans\n\nThree retries.")
    assert chunk.info.citation == "notes/2026-04-09.md#L3-L5"
    assert chunk.day == date(2026, 4, 9)
    assert chunk.names == {"plans": 0.76, "retries of the worker": 0.5}
    assert chunk.heading_terms == {"retri", "worker"}
    assert chunk.context_terms["plan"] == 1
    assert not chunk.is_code


def test_a_source_file():
    chunk = describe_chunk({"path": "src/retry_queue.py"}, "class RetryQueue:\n    # Comment\n")
    [defined] = chunk.info.definitions
    assert defined == ("RetryQueue", "retryqueue", {"retri", "queue"})
    assert chunk.info.file_terms == {"retri", "queue"}
    assert chunk.names == {}
    assert chunk.is_code


def test_an_implementation_for_a_type_defines_only_the_type():
    chunk = describe_chunk({"path": "a.rs"}, "impl Display for Plan {\nstruct Plan;")
    assert [defined.name for defined in chunk.info.definitions] == ["Plan"]


@pytest.mark.parametrize("metadata", [NOTE, {"path": "src/retry_queue.py"}, {}])
def test_json_preserves_all_fields(metadata):
    info = describe_chunk(metadata, "# Title\n\ndef run():\n    pass").info
    assert ChunkInfo.from_json(info.to_json()) == info


def test_texts_with_the_same_words_have_the_same_hash():
    text = "The gateway waits thirty seconds before it closes a connection."
    same = text.upper().replace(" ", "\n ")
    other = text.replace("thirty", "sixty")
    first, second, third = (
        describe_chunk({}, content).text_hash for content in (text, same, other)
    )
    assert first == second != third


def test_a_short_text_has_no_hash_because_its_heading_says_what_it_means():
    assert describe_chunk({}, "Yes, it is.").text_hash is None


def test_headings_in_a_text_are_names():
    text = (
        "#seed\n###### upstream: [[Paths|Path]]\n\n### Why so?\n\n```\n# no\n```\n\n"
        "Underlined\n---\nText."
    )
    assert describe_chunk({"path": "a.md"}, text).names.keys() == {
        "upstream path",
        "why so",
        "underlined",
    }


@pytest.mark.parametrize("piece", ["#", "-", " #\n", "=\n"])
def test_unusual_texts_take_linear_time(piece):
    assert_linear(
        partial(describe_chunk, {"path": "a.md"}),
        lambda length: piece * (length // len(piece)),
        longest=100_000,
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("class Gate:\n    def open_door(self):\n        door = 1", ("Gate", "open_door")),
        (
            "export default async function sendMail(to) {\nconst retries = 3;",
            ("sendMail", "retries"),
        ),
        ("func (c *Command) Execute() error {", ("Execute",)),
        ("pub(crate) struct Queue<T> {\nimpl Queue {", ("Queue", "Queue")),
        ("public static <T> List<T> copyOf(List<T> other) {", ("copyOf",)),
        ("    protected void onLoad(int size)", ("onLoad",)),
        ("res.send = function send(body) {", ("send",)),
        (
            "void Gate::open(int key) {\n  async close(key) {\n  suspend fun <T> load(x: T) {",
            ("open", "close", "load"),
        ),
        (
            "defmodule Plug.Conn do\n  def self.parse(x)\nfunction M.run(a)",
            ("Conn", "parse", "run"),
        ),
        (
            "data class Point(val x: Int)\nobject Main\nparse :: Text -> Int",
            ("Point", "Main", "parse"),
        ),
        ("an object that waits\nit('waits', () => {\n} else if (x) {\nreturn new Gate() {", ()),
        ("x = call(public, private)\nif (ready) {", ()),
    ],
)
def test_the_names_that_a_chunk_defines(text, names):
    info = describe_chunk({"path": "a.java"}, text).info
    assert tuple(defined.name for defined in info.definitions) == names


@pytest.mark.parametrize(
    "piece",
    [
        "public ",
        "(",
        "pub(",
        "static " * 40 + "\n" * 10_000,
        "f(",
        "f(\n",
        "f((a)\n",
        "f()\n:\n",
        "impl<",
        "'''",
    ],
)
def test_definitions_in_a_long_line_take_linear_time(piece):
    assert_linear(
        partial(describe_chunk, {"path": "a.c"}),
        lambda length: (piece * (length // len(piece) + 1))[:length],
        longest=100_000,
    )


# By row


def chunk_of(name):
    metadata = {
        "path": f"{name}.md",
        "header_path": f"Notes\u203a{name}",
        "date": "2026-04-09",
        "context": "wind wind",
    }
    return describe_chunk(
        metadata, f"## {name}\n\nAll about {name} \u2026 \u65e5\u672c, in nine words"
    )


def collected(*names):
    chunks = InfoCollector()
    for name in names:
        chunks.add(f"id {name}", chunk_of(name))
    return chunks


def assert_known(index, rows, names):
    """Compare the rows of an index with the descriptions of chunks. None means an unknown row."""
    chunks = index.read(rows)
    assert chunks.is_known.tolist() == [name is not None for name in names]
    for row, name in enumerate(names):
        of_row = chunks.label_rows == row
        if name is None:
            assert not of_row.any()
            assert not chunks.days[row]
            continue
        expected = chunk_of(name)
        assert chunks.info(row) == expected.info
        assert date.fromordinal(chunks.days[row]) == expected.day
        assert chunks.hashes[row] == expected.text_hash
        assert chunks.is_code[row] == expected.is_code
        is_wind = of_row & (chunks.labels == term_number("wind"))
        assert chunks.context_labels[is_wind].tolist() == [2]
        is_heading = chunks.heading_labels[of_row] == 1
        heading_terms = {*map(term_number, expected.heading_terms)}
        assert {*chunks.labels[of_row][is_heading].tolist()} == heading_terms
        assert chunks.name_values(name)[row] == expected.names[name]
        assert index.node_ids([rows[row]]) == [f"id {name}"]


def test_descriptions_are_read_unchanged_from_every_part(tmp_path):
    index = ChunkInfoIndex().with_chunks([3, 1, 2**40], collected("a", "b", "c"))
    index = index.with_chunks([7], collected("d")).changed([1])
    assert_known(index, [7, 3, 2**40, 1, 99], ["d", "a", "c", None, None])
    assert_known(index, [3], ["a"])
    index.save(tmp_path / "infos.arrays", "a stamp")
    loaded, stamp = ChunkInfoIndex().load(tmp_path / "infos.arrays")
    assert stamp == "a stamp"
    assert_known(loaded, [7, 3, 2**40], ["d", "a", "c"])


def test_a_known_row_is_replaced():
    index = ChunkInfoIndex().with_chunks([1, 2], collected("a", "b"))
    index.read([2]).info(0)
    assert_known(index.with_chunks([2], collected("c")), [1, 2], ["a", "c"])
    assert index.with_chunks([], InfoCollector()) is index


def test_rows_without_a_chunk_are_rejected():
    with pytest.raises(ValueError, match="2 rows have 1 chunks"):
        ChunkInfoIndex().with_chunks([1, 2], collected("a"))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("days", lambda column: column[1:]),
        ("labels", lambda column: column[1:]),
        ("labels", lambda column: column.astype(np.int64)),
        ("label_bounds", lambda column: column[::-1]),
        ("info_bounds", lambda column: column + 1),
        ("id_bounds", lambda column: column[:-1]),
        ("id_bounds", lambda column: np.append(0, column)),
    ],
)
def test_inconsistent_arrays_are_rejected(name, damage):
    columns = ChunkInfoIndex().with_chunks([1, 2], collected("a", "b")).to_arrays()
    columns[name] = damage(columns[name])
    with pytest.raises(ValueError, match="are inconsistent"):
        ChunkInfoIndex().from_arrays(columns)


@pytest.mark.parametrize("text", [b"[]", b"{}", b"nonsense", b"[" * 100_000, b"null"])
def test_other_json_is_a_storage_error(text):
    with pytest.raises(StorageError, match="Build the index again"):
        ChunkInfo.from_json(text)


def test_nodes_are_described_when_they_are_added_and_never_at_a_query(monkeypatch, tmp_path):
    node = TextNode(id_="a", text="# Boat\n\nA red boat.", metadata={"path": "boat.md"})
    retriever = ContextualBM25Retriever([node, TextNode(id_="b", text="a car")])
    retriever.persist(tmp_path)
    monkeypatch.setattr(node_index, "describe_chunk", None)
    for kept in (retriever, ContextualBM25Retriever.from_persist_dir(tmp_path)):
        chunks = kept.reader.ask(lambda state: state.describe((), ["a", "unknown"])[2])
        assert chunks.is_known.tolist() == [True, False]
        assert chunks.info(0) == describe_chunk(node.metadata, node.text).info
        assert kept.delete(["a"]) == 1
        assert not kept.reader.ask(lambda state: state.describe((), ["a"])[2]).is_known.any()


def test_headings_and_contexts_have_the_terms_of_the_language_of_the_chunk():
    text = "## Preise\n\nDie Preise der Zimmer gelten für eine Nacht und sind fest."
    node = TextNode(text=text, metadata={"header_path": "Hotel > Preise", "context": "Preise"})
    state = ContextualBM25Retriever([node]).reader.state
    groups = query_groups("Was sind die Preise der Zimmer für eine Nacht?")
    assert ("de:preis",) in groups
    chunks = state.describe(groups, [node.node_id])[2]
    is_german = chunks.labels == term_number("de:preis")
    assert chunks.heading_labels[is_german].tolist() == [1]
    assert chunks.context_labels[is_german].tolist() == [1]
    assert chunks.heading_labels.sum() == 2  # with "preis"


def test_an_index_with_descriptions_of_another_version_is_rejected(monkeypatch, tmp_path):
    ContextualBM25Retriever([TextNode(text="a")]).persist(tmp_path)
    monkeypatch.setattr(node_index, "CHUNK_INFO_VERSION", 0)
    with pytest.raises(StorageError, match="written by another version"):
        ContextualBM25Retriever.from_persist_dir(tmp_path)


@pytest.mark.parametrize(("words", "is_hashed"), [(7, False), (8, True)])
def test_only_a_text_of_eight_words_has_a_hash(words, is_hashed):
    description = describe_chunk({}, "word " * words)
    assert (description.text_hash is not None) == is_hashed


@pytest.mark.parametrize(("header_path", "terms"), [("Tea", set()), ("Tea > Milk", {"milk"})])
def test_the_only_heading_above_a_chunk_has_no_terms(header_path, terms):
    assert describe_chunk({"header_path": header_path}, "x").heading_terms == terms
