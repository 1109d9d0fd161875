"""What the ranking reads of chunks: written when they are indexed, and read by row."""

from __future__ import annotations

import json

import numpy as np
import pytest
from llama_index.core.schema import TextNode

from llama_index_contextual.retrievers import node_index
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.chunk_info import describe_chunk
from llama_index_contextual.retrievers.chunk_info_index import ChunkInfoArrays, ChunkInfoIndex
from llama_index_contextual.utils.errors import StorageError


def info(name):
    metadata = {"path": f"{name}.md", "header_path": f"Notes\u203a{name}", "date": "2026-04-09"}
    return describe_chunk(metadata, f"## {name}\n\nAll about {name} \u2026 \u65e5\u672c")


def test_info_is_read_as_it_was_written_in_every_part(tmp_path):
    index = ChunkInfoIndex().with_infos([3, 1, 2**40], [info("a"), info("b"), info("c")])
    index = index.with_infos([7], [info("d")]).changed([1])
    expected = {3: info("a"), 2**40: info("c"), 7: info("d")}
    assert index.read([7, 3, 2**40, 1, 99]) == expected
    assert index.read([3]) == {3: info("a")}
    index.save(tmp_path / "infos.arrays", "a stamp")
    loaded, stamp = ChunkInfoIndex().load(tmp_path / "infos.arrays")
    assert (loaded.read([*expected]), stamp) == (expected, "a stamp")


def test_a_known_row_gets_the_new_info():
    index = ChunkInfoIndex().with_infos([1, 2], [info("a"), info("b")])
    assert index.with_infos([2], [info("c")]).read([1, 2]) == {1: info("a"), 2: info("c")}
    assert index.with_infos([], []) is index


def test_rows_without_info_are_refused():
    with pytest.raises(ValueError, match="2 rows have 1 infos"):
        ChunkInfoIndex().with_infos([1, 2], [info("a")])


@pytest.mark.parametrize("text", [b"[]", b"{}", b"nonsense", b"[" * 100_000, b"null"])
def test_other_json_is_a_storage_error(text):
    data = np.frombuffer(text, np.uint8)
    index = ChunkInfoIndex().changed(
        (), ChunkInfoArrays(np.array([5]), np.array([0, len(text)]), data)
    )
    with pytest.raises(StorageError, match="Build the index again"):
        index.read([5])


def test_nodes_are_described_when_they_are_added_and_never_at_a_query(monkeypatch, tmp_path):
    node = TextNode(id_="a", text="# Boat\n\nA red boat.", metadata={"path": "boat.md"})
    retriever = ContextualBM25Retriever([node, TextNode(id_="b", text="a car")])
    retriever.persist(tmp_path)
    monkeypatch.setattr(node_index, "describe_chunk", None)
    for kept in (retriever, ContextualBM25Retriever.from_persist_dir(tmp_path)):
        described = kept.ask(lambda state: state.describe((), ["a", "unknown"])[2])
        assert described == [describe_chunk(node.metadata, node.text), None]
        assert kept.delete(["a"]) == 1
        assert kept.ask(lambda state: state.describe((), ["a"])[2]) == [None]


def test_an_index_with_other_info_is_refused(monkeypatch, tmp_path):
    ContextualBM25Retriever([TextNode(text="a")]).persist(tmp_path)
    monkeypatch.setattr(node_index, "CHUNK_INFO_VERSION", 0)
    with pytest.raises(StorageError, match="of another version"):
        ContextualBM25Retriever.from_persist_dir(tmp_path)


def test_the_encoding_is_json():
    [text] = [ChunkInfoArrays.build(np.array([1]), [info("a")]).text_of(0)]
    assert json.loads(text) == info("a").to_json()
