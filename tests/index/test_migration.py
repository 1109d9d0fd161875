"""An index that somebody has gets contexts, in a new collection; and looking into an index."""

import io
import json
import sqlite3
from contextlib import closing

import chromadb
import pytest
from llama_index.core import SimpleDirectoryReader, StorageContext, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import MetadataMode
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.errors import SettingError


@pytest.fixture
def collection(tmp_path):
    client = chromadb.PersistentClient(str(tmp_path / "old"), settings=chromadb.Settings(anonymized_telemetry=False))
    return client.create_collection("theirs", embedding_function=None)


def test_a_vector_store_index_gets_contexts_and_stays_as_it_was(folder, collection, embedding):
    store = ChromaVectorStore(chroma_collection=collection)
    theirs = VectorStoreIndex.from_documents(
        SimpleDirectoryReader(str(folder), recursive=True).load_data(),
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=embedding,
        transformations=[SentenceSplitter(chunk_size=64, chunk_overlap=0)],
    )
    before = collection.get(include=["metadatas", "documents"])
    index, report = ContextualIndex.contextualize(theirs, folder, embed_model=embedding)
    with index:
        assert (report.chunks, report.repaired) == (len(before["ids"]), [])
        assert report.context_sources == {"headings": report.chunks}
        hit = index.as_retriever(1).retrieve("Which vegetable does Cookie like?")[0].node
        assert hit.node_id in before["ids"]
        assert hit.metadata["path"] == "memory/2026-01-28.md"
        assert (hit.metadata["header_path"], hit.metadata["start_line"]) == ("Morning", 1)
        embedded = hit.get_content(metadata_mode=MetadataMode.EMBED)
        assert embedded.startswith("context: Document: memory/2026-01-28.md > Morning") or "> Morning" in embedded
        assert index.verify().ok
    assert collection.get(include=["metadatas", "documents"]) == before


def test_what_it_was_migrated_with_need_not_be_said_again(folder, collection, embedding):
    collection.add(ids=["a"], embeddings=[[1.0, 0.0]], documents=["Zebras sleep."], metadatas=[{"path": "zoo.md"}])
    migrated, _ = ContextualIndex.contextualize(collection, folder, embed_model=embedding, context="pattern")
    migrated.close()
    with ContextualIndex.open(folder, embed_model=embedding) as index:
        assert index.status().contexts == {"pattern": 1}
        assert index.status().differences == []


def test_a_bare_collection_gets_contexts_from_its_metadata(folder, collection, embedding):
    collection.add(
        ids=["a", "b", "c"],
        embeddings=[[1.0, 0.0]] * 3,
        documents=["Zebras sleep standing.", "", "Lions lie down."],
        metadatas=[{"path": "zoo.md", "header_path": "Zoo > Zebras"}, {"path": "zoo.md"}, {"path": "zoo.md"}],
    )
    index, report = ContextualIndex.contextualize(collection, folder, embed_model=embedding)
    with index:
        assert (report.chunks, report.embedded, report.added) == (2, 2, ["a", "c"])
        assert str(report.repaired[0]) == "b: 1 chunk without text left out"
        assert [one.path for one in report.repaired] == ["b", "a", "c"]
        assert "Zoo > Zebras" in index.as_retriever(1).retrieve("zebras")[0].node.metadata["context"]
        assert index.verify().problems == []


def test_documents_that_cannot_be_written_are_reported(folder, collection, embedding, caplog):
    collection.add(
        ids=["a\x00", "a\ufffd", "b"],
        embeddings=[[1.0, 0.0]] * 3,
        documents=["Zebras sleep standing.", "Zebras run.", "Lions lie down."],
        metadatas=[{"path": "zoo.md"}, {"path": "zoo.md"}, {"path": "den.md"}],
    )
    index, report = ContextualIndex.contextualize(collection, folder, embed_model=embedding)
    with index:
        assert (report.chunks, report.added) == (1, ["b"])
        assert "two of its chunks" in report.failed[0].reason
        assert "two of its chunks" in caplog.text


def test_what_cannot_be_migrated_is_named(folder, collection, opened, embedding):
    with pytest.raises(SettingError, match="str is no index on Chroma"):
        ContextualIndex.contextualize("docs", folder, embed_model=embedding)
    opened().refresh()
    with pytest.raises(SettingError, match="there is an index in"):
        ContextualIndex.contextualize(collection, folder, embed_model=embedding)


def test_status_says_what_there_is_and_what_is_behind(opened, folder):
    index = opened()
    index.refresh()
    (folder / "faq.md").write_text("# FAQ\n\nOther.\n")
    (folder / "new.md").write_text("# New\n")
    (folder / "guide.md").unlink()
    found = index.status()
    assert (found.documents, found.contexts, found.complete) == (4, {"headings": 4}, True)
    assert (found.pending.added, found.pending.changed, found.pending.deleted) == (1, 1, 1)
    assert found.settings["embedding.model"].startswith("LocalEmbedding:")
    assert "to refresh  1 added, 1 changed, 1 deleted" in str(found)
    json.dumps(found.to_dict())


def test_verify_names_what_does_not_agree_and_a_refresh_mends_it(opened, folder):
    index = opened()
    index.refresh()
    assert str(index.verify()).startswith("ok: 4 documents, 4 chunks agree")
    with closing(sqlite3.connect(index.storage / "index.sqlite3")) as database, database:
        database.execute("DELETE FROM nodes WHERE node_id IN (SELECT node_id FROM nodes WHERE text LIKE '%cold%')")
    found = index.verify()
    assert not found.ok
    assert "faq.md: it should have 1 chunk, and 0 are there." in found.problems
    assert any("keyword engine" in problem for problem in found.problems)
    assert "with reindex='all'" in str(found)
    with opened(reindex="all") as again:
        assert (again.refresh().embedded, again.verify().ok) == (0, True)


def test_verify_names_the_files_that_differ(opened, folder, run):
    with opened() as index:
        index.refresh()
    (folder / "faq.md").write_text("# FAQ\n\nWhy is it slow? Because zebras sleep.\n")
    (folder / "guide.md").unlink()
    (folder / "memory/2026-01-28.md").rename(folder / "memory/2026-01-29.md")
    (folder / "new.md").write_text("# New\n")
    (folder / "bad.md").write_bytes(b"\0\0\0")
    (folder / ".gitignore").write_text("2026-04-09.md\n")
    index = opened()
    found = index.verify()
    differ = [
        "bad.md: not indexed yet.",
        "faq.md: edited since it was indexed.",
        "guide.md: deleted since it was indexed.",
        "memory/2026-01-29.md: moved from memory/2026-01-28.md since that was indexed.",
        "memory/2026-04-09.md: left out by the settings now.",
        "new.md: not indexed yet.",
    ]
    assert (found.problems, found.files, found.ok) == ([], differ, False)
    done = run("verify", folder)
    assert (done.returncode, done.stdout.splitlines()[:6]) == (3, differ)
    assert json.loads(run("verify", folder, "--json").stdout)["files"] == differ
    assert [problem.path for problem in index.refresh().failed] == ["bad.md"]
    done = run("verify", folder)
    assert (done.returncode, done.stdout[:3]) == (0, "ok:"), "a file that cannot be indexed is no disagreement"


def test_verify_names_an_indexed_file_that_cannot_be_read_now(opened, folder):
    index = opened()
    index.refresh()
    (folder / "faq.md").unlink()
    (folder / "faq.md").symlink_to("/")
    [said] = index.verify().files
    assert said.startswith("faq.md: a symbolic link out of the folder.")
    assert said.endswith("What is indexed of it may be old.")


def test_export_writes_every_chunk_as_a_line(opened, tmp_path):
    index = opened()
    index.refresh()
    text = io.StringIO()
    assert index.export(text) == 4 == index.export(tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == text.getvalue()
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    assert [line["document"] for line in lines] == [
        "faq.md",
        "guide.md",
        "memory/2026-01-28.md",
        "memory/2026-04-09.md",
    ]
    assert lines[0]["metadata"]["start_line"] == 1
    assert "faq.md" in lines[0]["context"]
