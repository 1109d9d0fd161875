"""What an index takes on disk: Chroma's file is made compact, nothing is lost by it, and older rows are read."""

import shutil
import sqlite3
from contextlib import closing
from functools import partialmethod

import chromadb
import pytest
from llama_index.core import MockEmbedding
from llama_index.core.schema import MetadataMode
from llama_index.core.vector_stores import VectorStoreQuery
from llama_index.core.vector_stores.utils import node_to_metadata_dict
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index_contextual.index.chroma_files import compact_copy
from llama_index_contextual.index.store import EMBED_HASH, ENTRY, KIND, embed_hash

from llama_index_contextual.index import batches, chroma, chroma_files, keywords
from llama_index_contextual.index import reader as reading
from llama_index_contextual.keyword import KeywordIndex

QUESTION = "Which vegetable does Cookie love?"


@pytest.fixture
def compact(monkeypatch):
    """Every file counts as large."""
    monkeypatch.setattr(chroma_files, "_LEAST_BYTES", 0)


@pytest.fixture
def before(monkeypatch):
    """Rows are stored as they were at first: each value of the metadata by itself, and every field of the node."""

    def as_before(node, entry, kind):
        flat = node_to_metadata_dict(node, remove_text=True, flat_metadata=True)
        flat |= {ENTRY: entry, KIND: kind, EMBED_HASH: embed_hash(node)}
        return {key: "" if value is None else value for key, value in flat.items()}

    with monkeypatch.context() as patched:
        patched.setattr(batches, "store_metadata", as_before)
        yield patched


def pages(folder, count):
    for number in range(count):
        text = "".join(f"\n## Part {part}\n\n{f'Tea {number}.{part} is green. ' * 16}\n" for part in range(5))
        (folder / f"page{number}.md").write_text(f"# Page {number}\n{text}", "utf-8")


def pragma(index, name):
    with closing(sqlite3.connect(index.settings.layout.chroma / "chroma.sqlite3")) as database:
        return database.execute(f"PRAGMA {name}").fetchone()[0]


def hits_of(index):
    return [(hit.node.node_id, hit.score) for hit in index.as_retriever(4).retrieve(QUESTION)]


def test_chroma_is_not_opened_again_at_the_end_of_a_refresh(folder, opened, compact, monkeypatch):
    openings, at = [], chroma.ChromaDatabase.at
    monkeypatch.setattr(chroma.ChromaDatabase, "at", lambda *folder: openings.append(folder) or at(*folder))
    monkeypatch.setattr(reading, "compact_copy", lambda folder: openings.append("compact") or compact_copy(folder))
    with opened(embed_model="none") as index:
        index.refresh()
    assert openings.index("compact") == len(openings) - 1, "vectors would be in memory twice"


def test_the_keyword_index_is_derived_in_parts_to_the_same_hits(folder, opened, monkeypatch):
    pages(folder, 10)
    index = opened(embed_model="none")
    index.refresh()
    shutil.rmtree(index.settings.layout.bm25)
    found, add = [], KeywordIndex.add

    def added(self, sizes, nodes):
        sizes.append(len(nodes))
        add(self, nodes)

    for most in (1000, 7):
        monkeypatch.setattr(keywords, "_AT_ONCE", most)
        sizes = []
        with monkeypatch.context() as patched, opened(embed_model="none") as reader:
            patched.setattr(KeywordIndex, "add", partialmethod(added, sizes))
            found.append(hits_of(reader))
            assert max(sizes) <= most
            assert sum(sizes) == index.status().chunks
    assert found[0] == found[1] != []


@pytest.mark.long
def test_a_refresh_gives_back_what_chroma_does_not_use(folder, opened, before, monkeypatch, tmp_path):
    pages(folder, 220)
    before.setattr(chroma_files, "_LEAST_BYTES", 1e9)
    former = opened(embed_model="none", storage=tmp_path / "former")
    former.refresh()
    before.undo()
    monkeypatch.setattr(chroma_files, "_LEAST_BYTES", 0)
    index = opened(embed_model="none")
    report = index.refresh()
    assert report.chunks >= 1000
    assert pragma(index, "freelist_count") == 0
    assert pragma(index, "page_size") == 8192
    assert not list(index.settings.layout.chroma.glob("*.compact"))
    assert index.verify().problems == []
    size, was = ((one.settings.layout.chroma / "chroma.sqlite3").stat().st_size for one in (index, former))
    assert size < 0.65 * was


def test_a_small_file_and_one_without_much_to_give_back_stay_as_they_are(opened, monkeypatch):
    index = opened(embed_model="none")
    index.refresh()
    assert pragma(index, "page_size") == 4096
    monkeypatch.setattr(chroma_files, "_LEAST_BYTES", 0)
    assert chroma_files.compact_copy(index.settings.layout.chroma).unlink() is None
    index.refresh(confirm=True)
    file = index.settings.layout.chroma / "chroma.sqlite3"
    assert pragma(index, "page_size") == 4096, "nothing was written"
    (index.folder / "new.md").write_text("# New\n\nSomething new.\n", "utf-8")
    index.refresh()
    made = file.stat().st_ino
    assert pragma(index, "page_size") == 8192
    (index.folder / "newer.md").write_text("# Newer\n\nSomething newer.\n", "utf-8")
    index.refresh()
    assert file.stat().st_ino == made


def test_another_reader_sees_it_and_another_writer_loses_nothing(folder, opened, compact):
    first, second = opened(), opened()
    first.refresh()
    expected = hits_of(second)
    (folder / "new.md").write_text("# New\n\nZebras sleep.\n", "utf-8")
    first.refresh()
    assert hits_of(second)[: len(expected)] == hits_of(first)[: len(expected)]
    (folder / "newest.md").write_text("# Newest\n\nOtters swim.\n", "utf-8")
    second.refresh()
    for index in (first, second, opened()):
        assert index.verify().problems == []
        assert {"new.md", "newest.md"} <= {node.metadata["path"] for node in index.nodes()}


def test_the_keyword_index_that_was_kept_fits_the_compact_file(folder, opened, compact, monkeypatch):
    opened().refresh()
    index = opened()
    monkeypatch.setattr(type(index._storage.reader.keywords), "_follow", lambda *_: pytest.fail("it was derived"))
    assert hits_of(index)


def test_where_no_copy_can_be_made_the_file_stays(opened, compact):
    index = opened()
    blocked = index.settings.layout.chroma / "chroma.sqlite3.compact"
    blocked.mkdir(parents=True)
    (blocked / "x").touch()
    assert index.refresh().chunks == len(index.nodes())
    assert pragma(index, "page_size") == 4096
    assert index.verify().problems == []


def test_a_successor_leaves_no_room_behind(folder, opened, compact):
    pages(folder, 40)
    index = opened(embed_model="none")
    index.refresh()
    size = pragma(index, "page_count")
    index = opened(embed_model=MockEmbedding(8), reindex="all")
    index.refresh()
    assert pragma(index, "page_count") < 1.5 * size
    assert index.verify().problems == []


def stock(index):
    client = chromadb.PersistentClient(str(index.settings.layout.chroma))
    return ChromaVectorStore(chroma_collection=client.get_collection(index.manifest().collection))


def test_llamaindex_reads_nodes_as_they_were_made(opened, compact, embedding):
    index = opened()
    index.refresh()
    expected = {node.node_id: node for node in index.nodes()}
    vector = embedding.get_query_embedding(QUESTION)
    index.close()
    found = stock(index).query(VectorStoreQuery(query_embedding=vector, similarity_top_k=100)).nodes
    assert len(found) == len(expected)
    for node in found:
        assert node.dict() == expected[node.node_id].dict()
        for mode in (MetadataMode.EMBED, MetadataMode.LLM, MetadataMode.NONE):
            assert node.get_content(mode) == expected[node.node_id].get_content(mode)
        assert node.metadata["context"]


def test_rows_of_before_are_read_and_written_anew_only_with_their_document(folder, opened, before, fake_model):
    llm = {"context": "llm", "llm": fake_model.llm, "patience": {"probe_timeout": 5}}
    pages(folder, 1)
    index = opened(**llm)
    index.refresh()
    found, asked = hits_of(index), len(fake_model.requests)
    nodes = {node.node_id: node.dict() for node in index.nodes()}
    before.undo()
    index = opened(embed_model=None)
    assert hits_of(index) == found
    assert {node.node_id: node.dict() for node in index.nodes()} == nodes
    report = index.refresh()
    assert (report.embedded, report.relocated, report.outdated) == (0, 0, [])
    page = folder / "page0.md"
    page.write_text(
        page.read_text("utf-8").replace("## Part 0", f"## New\n\n{'Otters swim. ' * 40}\n\n## Part 0"), "utf-8"
    )
    report = index.refresh()
    assert report.changed == ["page0.md"]
    assert report.relocated == 4, "the parts whose lines are others now"
    assert len(fake_model.requests) == asked + 1, "contexts that were paid for stay, whichever way they are stored"
    assert index.verify().problems == []
