"""What disks, stray deletions and garbage do to an index: a clear message, a cure, and nothing lost."""

import errno
import json
import os
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import chromadb
import pytest
from llama_index.core import Document, MockEmbedding
from llama_index.embeddings.ollama import OllamaEmbedding
from servers import ollama_shim

from llama_index_contextual import sqlite_store
from llama_index_contextual.errors import EmbeddingError, FingerprintError, StorageError
from llama_index_contextual.index import ContextualIndex, refresh, state
from llama_index_contextual.index import vectors as vectors_room
from llama_index_contextual.index import writer as writer_room
from llama_index_contextual.keyword import Analyzer

ROOT = Path(__file__).resolve().parents[2]


class CountingEmbedding(MockEmbedding):
    """Distinct vectors from a text's length and letters; counts the texts it was given."""

    count: int = 0

    def _get_text_embeddings(self, texts):
        self.count += len(texts)
        return [[float(len(text)), *(float(text.count(letter)) for letter in "aeiou"), 1.0] for text in texts]

    def _get_query_embedding(self, query):
        return [1.0] * 7


@pytest.fixture
def counting():
    return CountingEmbedding(7, model_name="counting")


@pytest.fixture
def used(folder, counting):
    """A closed index over the folder and one document given by hand."""
    with ContextualIndex.open(folder, embed_model=counting) as index:
        index.refresh()
        index.refresh([Document(text="Zebras sleep standing.", id_="by-hand")])
        index.as_retriever().retrieve("zebras")  # which makes and keeps the keyword index
    assert (folder / ".contextual/bm25").is_dir()
    counting.count = 0
    return folder / ".contextual"


def chunks_after_refresh(folder, counting):
    with ContextualIndex.open(folder, embed_model=counting) as index:
        index.refresh()
        verification = index.verify()
        assert verification.ok, str(verification)
        assert not verification.pending.any
        assert (
            "Zebras" in index.as_retriever(1).retrieve("zebras")[0].node.text
            or "by-hand" not in index.manifest().documents
        )
        return verification.chunks


def remove_vector_segment(storage):
    for part in (storage / "chroma").iterdir():
        if part.is_dir():
            for file in part.iterdir():
                file.unlink()
            part.rmdir()


def tear_vector_segment(storage):
    """What a kill leaves behind that hits Chroma while it writes its vector files."""
    for part in (storage / "chroma").iterdir():
        if part.is_dir():
            for file in part.iterdir():
                file.write_bytes(file.read_bytes()[: max(1, file.stat().st_size // 3)])


DAMAGE = {
    "a torn manifest": lambda storage: (storage / "manifest.json").write_bytes(b'{"version": 1, "docu'),
    "a deleted manifest": lambda storage: (storage / "manifest.json").unlink(),
    "a deleted stamp": lambda storage: (storage / "generation").unlink(),
    "a vector cache full of garbage": lambda storage: (storage / "cache.sqlite3").write_bytes(b"garbage" * 1000),
    "a vector cache damaged inside": lambda storage: (storage / "cache.sqlite3").write_bytes(
        (storage / "cache.sqlite3").read_bytes()[:4096] + b"\xff" * 8192
    ),
    "a deleted vector cache": lambda storage: (storage / "cache.sqlite3").unlink(),
    "a torn keyword index": lambda storage: [
        file.write_bytes(b"torn") for file in (storage / "bm25").rglob("*") if file.is_file()
    ],
    "everything that is a cache": lambda storage: [
        file.unlink() for file in storage.iterdir() if file.is_file() and file.name != "manifest.json"
    ],
}


@pytest.mark.filterwarnings("ignore:.*is damaged")
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_derived_is_made_again_without_embedding(used, folder, counting, damage):
    damage(used)
    assert chunks_after_refresh(folder, counting) == 5
    assert counting.count == 0


def test_a_keyword_index_of_an_older_analyzer_is_made_again(used, folder, counting, monkeypatch):
    assert chunks_after_refresh(folder, counting) == 5
    older = used / "bm25"
    kept = {file: file.read_bytes() for file in older.rglob("*") if file.is_file()}
    monkeypatch.setattr("llama_index_contextual.keyword.analyzer._VERSION", 99)
    with ContextualIndex.open(folder, embed_model=counting, create=False) as index:
        assert index.as_retriever(1, min_score=0).retrieve("zebras")[0].node.ref_doc_id == "by-hand"
    assert {file: file.read_bytes() for file in older.rglob("*") if file.is_file()} == kept, "reading never writes"
    assert chunks_after_refresh(folder, counting) == 5
    assert counting.count == 0
    fingerprint = Analyzer().fingerprint
    assert any(fingerprint.encode() in file.read_bytes() for file in older.rglob("*") if file.is_file())


def graph(folder, embedding):
    """Ask Chroma itself."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LLAMA_INDEX_CONTEXTUAL_STORE__EXACT_LIMIT", "0")
        with ContextualIndex.open(folder, embed_model=embedding, create=False) as index:
            index.as_retriever(1).retrievers[0].retrieve("Cookie carrots")


@pytest.mark.long
@pytest.mark.parametrize("damage", [remove_vector_segment, tear_vector_segment])
def test_damaged_vector_files_are_named_to_a_reader_and_filled_from_the_cache_by_the_next_refresh(
    folder, counting, damage
):
    many = [Document(text=f"Fact {number}: {'x' * (number % 50)}", id_=f"d{number}") for number in range(1100)]
    with ContextualIndex.open(folder, embed_model=counting) as index:
        index.refresh()
        index.refresh(many)  # more than the 1,000 after which Chroma writes its vector files
    assert [part for part in (folder / ".contextual/chroma").iterdir() if part.is_dir()], "nothing to damage"
    counting.count = 0
    damage(folder / ".contextual")
    with ContextualIndex.open(folder, embed_model=counting, create=False) as reader:
        assert "Cookie" in reader.as_retriever(1).retrieve("Cookie carrots")[0].node.text, "the matrix is whole"
        for look in (reader.verify, reader.status, lambda: graph(folder, counting)):
            with pytest.raises(
                StorageError, match=r"Chroma (cannot read|has lost) .*Cure: llama-index-contextual index"
            ):
                look()
        assert len(reader.refresh().unchanged) == 4
        assert "Cookie" in reader.as_retriever(1).retrieve("Cookie carrots")[0].node.text
        verification = reader.verify()
    assert (verification.chunks, verification.problems) == (1104, [])
    assert counting.count == 0


def test_a_chroma_database_full_of_garbage_is_set_aside_and_files_are_indexed_again(used, folder, counting, caplog):
    (used / "chroma/chroma.sqlite3").write_bytes(b"garbage" * 1000)
    assert chunks_after_refresh(folder, counting) == 4
    assert counting.count == 0
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "chroma.sqlite3 is damaged" in said
    assert "files are indexed again, with cached vectors. These documents were given by hand" in said
    assert said.endswith("have to be given again: by-hand.")
    assert list(used.glob("chroma.damaged-*"))


SOUND = [
    "error returned from database: (code: 5) database is locked",
    "error returned from database: (code: 14) unable to open database file",
    "Permission denied (os error 13)",
    "Too many open files (os error 24)",
    "something that nobody has thought of",
]


@pytest.mark.parametrize("said", SOUND)
def test_a_sound_index_is_not_set_aside_whatever_keeps_chroma_from_opening_it(
    used, folder, counting, monkeypatch, said
):
    def refuse(*_, **__):
        raise RuntimeError(said)

    with monkeypatch.context() as broken, ContextualIndex.open(folder, embed_model=counting) as index:
        broken.setattr(chromadb, "PersistentClient", refuse)
        for act in (index.refresh, index.status):
            with pytest.raises(StorageError, match=r"Chroma cannot open .*unharmed\. Cure: "):
                act()
    assert not list(used.glob("chroma.damaged-*"))
    assert chunks_after_refresh(folder, counting) == 5
    assert counting.count == 0


@pytest.mark.parametrize("said", SOUND[:4])
def test_vectors_are_not_made_anew_where_reading_them_fails_for_another_reason(
    used, folder, counting, monkeypatch, said
):
    def refuse(*_, **__):
        raise RuntimeError(said)

    collection = json.loads((used / "manifest.json").read_text())["collection"]
    with monkeypatch.context() as broken, ContextualIndex.open(folder, embed_model=counting) as index:
        broken.setattr(chromadb.Collection, "query", refuse)
        with pytest.raises(StorageError, match=r"Chroma cannot read .*unharmed\. Cure: "):
            index.status()
        assert index.manifest().collection == collection, "not rebuilt into another one"
    assert chunks_after_refresh(folder, counting) == 5


@pytest.mark.long
def test_a_path_that_the_locale_cannot_spell_does_not_cost_the_index(tmp_path, counting):
    folder = tmp_path / "carpeta ñ"
    folder.mkdir()
    (folder / "page.md").write_text("# Page\n")
    with ContextualIndex.open(folder, embed_model=counting) as index:
        index.refresh()
    script = (
        "import sys; from llama_index.core import MockEmbedding\n"
        "from llama_index_contextual.index import ContextualIndex\n"
        "ContextualIndex.open(sys.argv[1], embed_model=MockEmbedding(7), reindex='ignore').status()"
    )
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(  # noqa: S603  our own script
        [sys.executable, "-c", script, str(folder)], env=plain, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "StorageError: Chroma cannot open" in done.stderr
    assert "Cure: PYTHONUTF8=1" in done.stderr
    assert not list((folder / ".contextual").glob("chroma.damaged-*"))
    with ContextualIndex.open(folder, embed_model=counting) as index:
        assert index.refresh().skipped == 1
        assert index.verify().ok


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail_manifest(monkeypatch):
    def full(_descriptor):
        raise FULL

    monkeypatch.setattr(state.os, "fsync", full)


def fail_vectors(monkeypatch):
    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(sqlite_store, "_transaction", full)


@pytest.mark.parametrize("fail", [fail_manifest, fail_vectors])
def test_a_full_disk_is_named_and_harms_nothing(used, folder, counting, monkeypatch, fail):
    (folder / "new.md").write_text("# New\n\nSomething new.\n")
    with monkeypatch.context() as broken:
        fail(broken)
        with ContextualIndex.open(folder, embed_model=counting) as index:
            with pytest.raises(StorageError, match=r"full|No space left"):
                index.refresh()
            broken.undo()
            assert "Cookie" in index.as_retriever(1).retrieve("Cookie")[0].node.text
    assert chunks_after_refresh(folder, counting) == 6


def test_a_full_disk_under_chroma_is_named(used, folder, counting, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("error returned from database: (code: 13) database or disk is full")

    (folder / "new.md").write_text("# New\n\nSomething new.\n")
    with monkeypatch.context() as broken, ContextualIndex.open(folder, embed_model=counting) as index:
        with index._storage.reader.reading() as view:
            broken.setattr(type(view.store.collection), "upsert", full)
        with pytest.raises(StorageError, match=r"disk is full.*unharmed.*Cure"):
            index.refresh()
    assert chunks_after_refresh(folder, counting) == 6
    assert counting.count == 1, "the vector was computed before the disk was full, and is not computed again"


def test_a_storage_folder_that_cannot_be_made_is_named(folder, tmp_path, counting):
    (tmp_path / "file").write_text("")
    message = r"cannot be kept in .*Cure: .*storage="
    opened = ContextualIndex.open(folder, storage=tmp_path / "file" / "store", embed_model=counting)
    with opened as index, pytest.raises(StorageError, match=message):
        index.refresh()


def test_a_newer_storage_is_refused(used, folder, counting):
    stored = json.loads((used / "manifest.json").read_text())
    (used / "manifest.json").write_text(json.dumps({**stored, "version": 99}))
    with pytest.raises(StorageError, match="upgrade"):
        ContextualIndex.open(folder, embed_model=counting)


def test_the_command_that_takes_another_model_names_folder_model_and_storage(tmp_path, folder):
    """Without the model it would embed everything again with the old one."""
    storage = tmp_path / "my index"
    other = CountingEmbedding(7, model_name="other")
    with ContextualIndex.open(folder, storage=storage, embed_model=other) as index:
        index.refresh()
    with pytest.raises(FingerprintError) as caught:
        ContextualIndex.open(folder, storage=storage, embed_model="local")
    command = ["index", str(folder), "--storage", str(storage), "--embed-model", "local", "--reindex", "all"]
    assert shlex.split(str(caught.value).rpartition("all', or ")[2])[1:] == command


def test_another_model_replaces_everything_at_the_end_only(used, folder, monkeypatch):
    other = CountingEmbedding(7, model_name="other")
    with ContextualIndex.open(folder, embed_model=other, reindex="all") as index, monkeypatch.context() as broken:

        def fail(*_):
            raise KeyboardInterrupt

        broken.setattr(refresh.Refresh, "_delete", fail)
        with pytest.raises(KeyboardInterrupt):
            index.refresh()
    with ContextualIndex.open(folder, embed_model=CountingEmbedding(7, model_name="counting")) as old:
        assert old.verify().ok, "the old index is whole until the new one is"
    embedded = other.count
    with ContextualIndex.open(folder, embed_model=other, reindex="all") as index:
        report = index.refresh()
        assert index.verify().ok
        assert report.chunks == 5, "what was given by hand came along"
        assert "Zebras" in index.as_retriever(1).retrieve("zebras")[0].node.text
    assert embedded + report.embedded <= other.count == 5, "the second run goes on where the first was stopped"
    with ContextualIndex.open(folder, embed_model=other) as index:
        assert "Zebras" in index.as_retriever(1).retrieve("zebras")[0].node.text


@pytest.mark.long
def test_vectors_of_texts_long_gone_are_forgotten_and_recent_ones_are_kept(folder, counting, monkeypatch):
    monkeypatch.setattr(writer_room, "_SPARE_VECTORS", 10)
    with ContextualIndex.open(folder, embed_model=counting) as index:
        for number in range(20):
            (folder / "faq.md").write_text(f"# FAQ\n\nAnswer {number}.\n")
            index.refresh()
        asked = counting.count
        (folder / "faq.md").write_text("# FAQ\n\nAnswer 18.\n")
        assert (index.refresh().reused, counting.count) == (1, asked), "an undone edit"
    with sqlite3.connect(folder / ".contextual/cache.sqlite3") as database:
        assert database.execute("SELECT count(*) FROM vectors").fetchone()[0] <= 2 * 4 + 10


def test_a_model_that_gives_no_vectors_is_named(folder):
    class Broken(MockEmbedding):
        def _get_text_embeddings(self, texts):
            return [[0.0] * 3 for _ in texts[1:]]

    with pytest.raises(Exception, match=r"gave 1 vector for"):
        vectors_room.embed_texts(Broken(3), ["a", "b"])


def test_a_model_that_ollama_lacks_is_named_with_the_command_that_brings_it():
    with (
        ollama_shim() as url,
        pytest.raises(EmbeddingError, match=r"1 text .*Cure: ollama pull absent"),
    ):
        vectors_room.embed_texts(OllamaEmbedding("absent", base_url=url), ["a"])
