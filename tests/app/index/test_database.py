"""Documents and chunks in the database: which rows a write keeps, and what is read of them."""

import numpy as np
import pytest
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.app.index import database as module
from llama_index_contextual.app.index.database import Database
from llama_index_contextual.app.index.rows import DocumentRow, row_of
from llama_index_contextual.utils.errors import DamagedError, DocumentError, StorageError


@pytest.fixture
def database(tmp_path):
    database = Database(tmp_path / "index.sqlite3")
    yield database
    database.close()


def write(database, key, *texts, ids=None, dimensions=0, **metadata):
    """Write a document with a chunk for each text, whose id is the text unless ids are given."""
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=key)}
    nodes = [
        row_of(TextNode(text=text, id_=node_id, metadata=metadata, relationships=source), text)
        for text, node_id in zip(texts, ids or texts, strict=True)
    ]
    vectors = {node.embed_hash: np.full(dimensions, 0.5, np.float32) for node in nodes}
    with database.writing() as transaction:
        row = DocumentRow(key, made_with="settings", nodes=len(nodes))
        transaction.replace_document(row, nodes, vectors if dimensions else {})


def rows_by_id(database, *ids):
    with database.reading() as snapshot:
        return snapshot.rows_of(ids)


def test_a_chunk_that_stays_keeps_its_row_and_a_changed_one_gets_a_higher_row(database):
    write(database, "a.md", "one", "two", "gone", ids=["1", "2", "3"])
    before = rows_by_id(database, "1", "2", "3")
    write(database, "a.md", "one", "changed", "new", ids=["1", "2", "4"])
    after = rows_by_id(database, "1", "2", "3", "4")
    assert after.keys() == {"1", "2", "4"}
    assert after["1"] == before["1"]
    assert min(after["2"], after["4"]) > max(before.values())
    with database.reading() as snapshot:
        assert [row.text for row in snapshot.node_rows(snapshot.rows())] == [
            "one",
            "changed",
            "new",
        ]


def test_a_chunk_whose_metadata_changed_gets_a_new_row(database):
    write(database, "a.md", "one", page=1)
    before = rows_by_id(database, "one")
    write(database, "a.md", "one", page=2)
    assert rows_by_id(database, "one") != before


def test_vectors_go_with_their_chunks(database):
    write(database, "a.md", "one", "two", dimensions=3)
    write(database, "b.md", "three", dimensions=3)
    write(database, "a.md", "one", dimensions=3)
    database.is_checked = False
    database.check()
    with database.reading() as snapshot:
        assert snapshot.state.dimensions == 3
        assert [len(vector) for vector in snapshot.vectors(snapshot.rows())] == [3, 3]
        assert len(snapshot.vectors_by_hash(["a.md"])) == 1
    with database.writing() as transaction:
        assert transaction.delete_documents(["b.md", "unknown.md"]) == 1
        assert transaction.fetch("SELECT count(*) FROM vectors") == [(1,)]


def test_vectors_of_another_length_are_damage(database):
    write(database, "a.md", "one", dimensions=3)
    with database.writing() as transaction:
        transaction.set_state(dimensions=4)
    with database.reading() as snapshot, pytest.raises(DamagedError, match="vector of chunk"):
        snapshot.vectors(snapshot.rows())


@pytest.mark.parametrize(
    ("key", "ids"), [("b.md", ["1"]), ("a.md", ["2", "2"])], ids=["another document", "a twin"]
)
def test_an_id_belongs_to_one_chunk(database, key, ids):
    write(database, "a.md", "one", ids=["1"])
    with pytest.raises(DocumentError, match="of one of its chunks is not unique"):
        write(database, key, *(f"text {number}" for number in range(len(ids))), ids=ids)
    with database.reading() as snapshot:
        assert list(snapshot.documents()) == ["a.md"]


def test_the_number_of_a_change_grows_beyond_all_rows(database):
    changes = []
    for number in range(3):
        write(database, f"{number}.md", f"text {number}")
        with database.reading() as snapshot:
            changes.append(snapshot.state.change)
            assert max(snapshot.rows()) <= changes[-1]
    assert changes == sorted(set(changes))


def test_chunks_are_found_by_their_document(database):
    write(database, "b.md", "b1", "b2")
    write(database, "a.md", "a1", "a2")
    rows = rows_by_id(database, "a1", "a2", "b1", "b2")
    with database.reading() as snapshot:
        assert snapshot.rows_of_document("a.md") == [rows["a1"], rows["a2"]]
        assert snapshot.rows_beside(rows["b2"]) == [rows["b1"], rows["b2"]]
        assert list(snapshot.first_rows().items()) == [(rows["b1"], "b.md"), (rows["a1"], "a.md")]
        assert snapshot.rows().tolist() == sorted(rows.values())


def test_an_id_with_characters_that_databases_reject_is_unknown(database):
    write(database, "a.md", "one")
    assert rows_by_id(database, "one", "o\ud800ne").keys() == {"one"}


def test_texts_come_in_the_order_of_documents_with_title_and_front_matter(database, monkeypatch):
    monkeypatch.setattr(module, "_PAGE", 2)
    for key in ("c.md", "a.md", "b.md", "d.md"):
        write(database, key, f"{key} 1", f"{key} 2", title=f"T of {key}", front_matter="tags: x")
    write(database, "e.md", "e.md 1", title=5)
    with database.reading() as snapshot:
        read = [texts[:3] for texts in snapshot.texts()]
    assert read == [
        *(
            (f"{key} {number}", f"title: T of {key}", "tags: x")
            for key in ("a.md", "b.md", "c.md", "d.md")
            for number in (1, 2)
        ),
        ("e.md 1", "", ""),
    ]


def test_values_of_metadata_are_read_by_row(database):
    write(database, "a.md", "one", author="Ana")
    write(database, "b.md", "two")
    with database.reading() as snapshot:
        rows = snapshot.rows()
        assert snapshot.values("author", rows) == ["Ana", None]
        assert snapshot.values("ref_doc_id", rows) == ["a.md", "b.md"]


def test_more_rows_than_fit_a_page_are_read_in_order(database, monkeypatch):
    monkeypatch.setattr(module, "_PAGE", 2)
    texts = [f"text {number}" for number in range(5)]
    write(database, "a.md", *texts)
    with database.reading() as snapshot:
        assert snapshot.column("text", snapshot.rows()) == texts
        with pytest.raises(DamagedError, match="chunks are lost"):
            snapshot.column("text", [*snapshot.rows(), 1])


def test_lost_chunks_are_damage(database):
    write(database, "a.md", "one", "two")
    with database.writing() as transaction:
        transaction.refuse_lost_chunks()
        transaction.fetch("DELETE FROM chunks WHERE node_id = 'two'")
        with pytest.raises(DamagedError, match="it has 1 chunks instead of 2"):
            transaction.refuse_lost_chunks()


@pytest.mark.parametrize(
    "column", ["node_id", "ref_doc_id", "text", "metadata", "embed_hash", "context_source"]
)
def test_a_column_that_was_changed_is_damage(database, column):
    write(database, "a.md", "one")
    with database.writing() as transaction:
        transaction.fetch(f"UPDATE chunks SET {column} = 'changed'")  # noqa: S608
    with database.reading() as snapshot, pytest.raises(DamagedError, match="its checksum"):
        list(snapshot.node_rows(snapshot.rows()))


def test_documents_are_read_again_after_each_change(database):
    assert database.documents() == {}
    write(database, "a.md", "one")
    documents = database.documents()
    assert list(documents) == ["a.md"]
    assert database.documents() is documents
    write(database, "b.md", "two")
    assert list(database.documents()) == ["a.md", "b.md"]


def test_a_snapshot_that_has_ended_is_not_read(database):
    write(database, "a.md", "one")
    with database.reading() as snapshot:
        rows = snapshot.rows()
    with pytest.raises(StorageError, match=r"has ended\. Start it again"):
        snapshot.column("text", rows)


def test_contexts_are_counted_by_source(database):
    write(database, "a.md", "one", "two", context_source="headings")
    write(database, "b.md", "three")
    with database.reading() as snapshot:
        assert snapshot.context_sources() == {"": 1, "headings": 2}
