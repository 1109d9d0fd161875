"""The keyword index on disk: complete, atomic, and rejected if it is damaged or outdated."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from llama_index.core.schema import IndexNode, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.retrievers import arrays
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.query import note_filters, parse_query
from llama_index_contextual.utils.errors import FingerprintError, StorageError

QUERIES = ("carrots", "budget of the house", "get user name", "max results")


def pairs(hits):
    return [(hit.node.node_id, hit.score, hit.node.hash) for hit in hits]


def answers(retriever):
    return [pairs(retriever.retrieve(query)) for query in QUERIES]


def test_it_is_loaded_with_every_setting(nodes, tmp_path):
    only = MetadataFilters(filters=[MetadataFilter(key="n", value=3, operator="<=")])
    before = ContextualBM25Retriever(nodes, similarity_top_k=3, filters=only)
    before.persist(tmp_path)
    after = ContextualBM25Retriever.from_persist_dir(tmp_path)
    assert after.get_persist_args() == before.get_persist_args()
    assert answers(after) == answers(before)


@pytest.mark.parametrize(
    "filters",
    [
        note_filters(path=["notes/", "work/"], tag="home", where=["n=3", "due="]),
        note_filters(since="2026-04-09"),
        parse_query('path:notes/ "blue heron"').filters,
        None,
    ],
)
def test_filters_of_this_package_come_back(nodes, tmp_path, filters):
    ContextualBM25Retriever(nodes, filters=filters).persist(tmp_path)
    assert ContextualBM25Retriever.from_persist_dir(tmp_path).filters == filters


def test_the_stock_class_forgets_its_settings_for_terms(nodes, tmp_path):
    BM25Retriever(
        nodes=nodes,
        skip_stemming=True,
        token_pattern=r"\S+",  # noqa: S106
        similarity_top_k=1,  # noqa: RUF100, S106
    ).persist(str(tmp_path))
    after = BM25Retriever.from_persist_dir(str(tmp_path))
    assert (after.skip_stemming, after.token_pattern) != (True, r"\S+")


def test_edits_before_and_after_loading_take_effect(nodes, tmp_path):
    before = ContextualBM25Retriever(nodes[:3])
    before.add(nodes[3:])
    before.delete(["cat"])
    before.persist(tmp_path)
    after = ContextualBM25Retriever.from_persist_dir(tmp_path)
    for retriever in (before, after):
        retriever.add([TextNode(id_="new", text="carrots for the house")])
        retriever.delete(["budget"])
    assert answers(after) == answers(before) == answers(rebuilt(after))


def rebuilt(retriever):
    return ContextualBM25Retriever(list(retriever.nodes(retriever.matching_ids()).values()))


def test_deleted_nodes_do_not_stay_on_disk(nodes, tmp_path):
    retriever = ContextualBM25Retriever(nodes)
    retriever.persist(tmp_path)
    assert b"carrots" in (tmp_path / "bm25.arrays").read_bytes()
    retriever.delete(["dog", "cat", "code", "meeting"])
    retriever.persist(tmp_path)
    assert b"carrots" not in (tmp_path / "bm25.arrays").read_bytes()
    assert ContextualBM25Retriever.from_persist_dir(tmp_path).matching_ids() == ["config", "budget"]


def test_the_files_of_another_process_are_not_mixed_with_ours(nodes, tmp_path):
    ours = ContextualBM25Retriever(nodes[:2])
    ours.persist(tmp_path)
    theirs = ContextualBM25Retriever.from_persist_dir(tmp_path)
    theirs.add([TextNode(id_="theirs", text="carrots")])
    theirs.persist(tmp_path)
    ours.add([TextNode(id_="ours", text="carrots")])
    ours.persist(tmp_path)
    assert answers(ContextualBM25Retriever.from_persist_dir(tmp_path)) == answers(ours)


def test_an_index_node_persists_without_its_object(tmp_path):
    pointer = IndexNode(index_id="i", id_="pointer", text="carrots", obj=object())
    ContextualBM25Retriever([pointer]).persist(tmp_path)
    assert ContextualBM25Retriever.from_persist_dir(tmp_path).matching_ids() == ["pointer"]


def test_an_empty_index_persists(tmp_path):
    ContextualBM25Retriever([]).persist(tmp_path)
    assert len(ContextualBM25Retriever.from_persist_dir(tmp_path)) == 0


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped"])
def test_damage_is_detected(nodes, tmp_path, damage):
    ContextualBM25Retriever(nodes).persist(tmp_path)
    path = tmp_path / "bm25.arrays"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle] ^= 0xFF
    changed = {"empty": b"", "cut": bytes(content[:middle]), "flipped": bytes(content)}
    path.unlink() if damage == "missing" else path.write_bytes(changed[damage])
    with pytest.raises(
        StorageError, match=r"bm25.arrays is missing, damaged, .* Build the index again"
    ):
        ContextualBM25Retriever.from_persist_dir(tmp_path)


def test_a_crash_while_persisting_leaves_the_old_state(nodes, tmp_path, monkeypatch):
    retriever = ContextualBM25Retriever(nodes)
    retriever.persist(tmp_path)
    expected = answers(retriever)
    retriever.add([TextNode(id_="new", text="carrots")])
    monkeypatch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        retriever.persist(tmp_path)
    monkeypatch.undo()
    assert answers(ContextualBM25Retriever.from_persist_dir(tmp_path)) == expected


def test_several_retrievers_can_persist_to_one_folder_at_once(tmp_path):
    def persist_often(_):
        for _ in range(10):
            ContextualBM25Retriever([TextNode(id_="n", text="carrots")]).persist(tmp_path)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(persist_often, range(4)))
    assert len(ContextualBM25Retriever.from_persist_dir(tmp_path)) == 1


def test_a_folder_that_cannot_be_written_is_named(nodes, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StorageError, match=r"taken cannot be written .* Free space"):
        ContextualBM25Retriever(nodes).persist(tmp_path / "taken")


def test_an_index_with_terms_of_another_version_is_rejected(nodes, tmp_path, monkeypatch):
    ContextualBM25Retriever(nodes).persist(tmp_path)
    monkeypatch.setattr("llama_index_contextual.retrievers.node_index.TERMS_VERSION", 99)
    with pytest.raises(FingerprintError):
        ContextualBM25Retriever.from_persist_dir(tmp_path)


def test_a_pipe_in_place_of_the_file_is_reported_as_damage_without_waiting(nodes, tmp_path):
    os.mkfifo(tmp_path / "bm25.arrays")
    with pytest.raises(StorageError, match="missing, damaged"):
        ContextualBM25Retriever.from_persist_dir(tmp_path)


def test_arrays_that_were_changed_with_their_checksums_are_rejected(nodes, tmp_path):
    ContextualBM25Retriever(nodes).persist(tmp_path)
    path = tmp_path / "bm25.arrays"
    content, columns = arrays.read_arrays(path)
    changes = {
        "terms.positions": lambda values: values + len(values),
        "terms.places": lambda values: values - 1,
        "terms.terms": lambda values: values[::-1],
        "terms.lengths": lambda values: values[:-1],
        "terms.starts": lambda values: values * 2,
        "terms.ids": lambda values: values * 0,
        "infos.label_bounds": lambda values: values + 1,
        "infos.infos_as_json": lambda values: values[:-1],
        "infos.ids": lambda values: values + 1,
    }
    for name, change in changes.items():
        arrays.write_arrays(path, content, {**columns, name: change(columns[name])})
        with pytest.raises(StorageError, match="missing, damaged"):
            ContextualBM25Retriever.from_persist_dir(tmp_path)
    for name in columns:
        missing = {other: values for other, values in columns.items() if other != name}
        arrays.write_arrays(path, content, missing)
        with pytest.raises(StorageError, match="missing, damaged"):
            ContextualBM25Retriever.from_persist_dir(tmp_path)


def wrapped(values):
    """Return offsets whose differences only seem to ascend because they overflow."""
    return np.concatenate([values[:1], [2**62, -(2**62) - 1], values[3:]])


@pytest.mark.parametrize(
    ("names", "change"),
    [
        (["terms.starts", "infos.label_bounds"], lambda values: values.astype(np.float64)),
        (["terms.starts", "infos.info_bounds"], wrapped),
        ([], lambda values: values[:, None]),
    ],
    ids=["fractions", "overflow", "two dimensions"],
)
def test_an_array_of_another_shape_or_type_is_rejected_before_a_query(
    nodes, tmp_path, names, change
):
    ContextualBM25Retriever(nodes).persist(tmp_path)
    path = tmp_path / "bm25.arrays"
    content, columns = arrays.read_arrays(path)
    for name in names or columns:
        arrays.write_arrays(path, content, {**columns, name: change(columns[name])})
        with pytest.raises(StorageError, match="missing, damaged"):
            ContextualBM25Retriever.from_persist_dir(tmp_path)


def test_an_array_with_a_damaged_type_is_not_read_as_another_type(tmp_path):
    path = tmp_path / "some.arrays"
    arrays.write_arrays(path, None, {"values": np.arange(100_000.0)})
    data = path.read_bytes()
    path.write_bytes(data.replace(b"<f8", b"<f4"))
    with pytest.raises(StorageError, match="missing, damaged"):
        arrays.read_arrays(path)
    path.write_bytes(data)
    assert arrays.read_arrays(path)[1]["values"].tolist() == [*range(100_000)]


def test_a_file_that_is_truncated_anywhere_is_rejected(nodes, tmp_path):
    ContextualBM25Retriever(nodes[:2]).persist(tmp_path)
    path = tmp_path / "bm25.arrays"
    data = path.read_bytes()
    for size in range(0, len(data), 97):
        path.write_bytes(data[:size])
        with pytest.raises(StorageError, match="missing, damaged"):
            ContextualBM25Retriever.from_persist_dir(tmp_path)
