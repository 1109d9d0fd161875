"""Full disks, stray deletions and garbage in an index.

Each is named in a clear message with a hint, and nothing is lost.
"""

import shlex
import shutil
from pathlib import Path

import pytest
from llama_index.core import Document, MockEmbedding
from storage import storage_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index import embedder, refresh
from llama_index_contextual.utils.errors import ContextualWarning, FingerprintError, StorageError

ROOT = Path(__file__).resolve().parents[3]


class CountingEmbedding(MockEmbedding):
    """An embedding with distinct vectors from a text's length and letters; it counts texts."""

    count: int = 0

    def _get_text_embeddings(self, texts):
        self.count += len(texts)
        return [
            [float(len(text)), *(float(text.count(letter)) for letter in "aeiou"), 1.0]
            for text in texts
        ]

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
    assert (storage_of(folder) / "cache").is_dir()
    counting.count = 0
    return storage_of(folder)


def chunks_after_refresh(folder, counting):
    with ContextualIndex.open(folder, embed_model=counting) as index:
        index.refresh()
        verification = index.status(check=True)
        assert verification.ok, str(verification)
        assert not verification.pending.work
        assert (
            "Zebras" in index.as_retriever(1).retrieve("zebras")[0].node.text
            or "by-hand" not in index.documents()
        )
        return verification.chunks


def garbage(folder):
    for file in folder.rglob("*"):
        if file.is_file():
            file.write_bytes(b"torn")


DAMAGE = {
    "no cache": lambda storage: shutil.rmtree(storage / "cache"),
    "a torn cache": lambda storage: garbage(storage / "cache"),
    "no words": lambda storage: [path.unlink() for path in (storage / "cache").glob("bm25*")],
    "no vectors": lambda storage: [path.unlink() for path in (storage / "cache").glob("vectors*")],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_derived_is_made_again_without_embedding(used, folder, counting, damage):
    damage(used)
    assert chunks_after_refresh(folder, counting) == 5
    assert counting.count == 0


def test_a_keyword_index_with_other_terms_is_made_again(used, folder, counting, monkeypatch):
    assert chunks_after_refresh(folder, counting) == 5
    older = used / "cache"
    kept = {file: file.read_bytes() for file in older.rglob("*") if file.is_file()}
    monkeypatch.setattr("llama_index_contextual.app.index.caches.TERMS_VERSION", 99_999)
    with ContextualIndex.open(folder, embed_model=counting, create=False) as index:
        assert index.as_retriever(1, min_score=0).retrieve("zebras")[0].node.ref_doc_id == "by-hand"
    assert {file: file.read_bytes() for file in older.rglob("*") if file.is_file()} == kept, (
        "reading never writes"
    )
    assert chunks_after_refresh(folder, counting) == 5
    assert counting.count == 0
    assert any(b"99999" in file.read_bytes() for file in older.rglob("*") if file.is_file())


def test_a_copy_of_the_database_that_was_put_back_answers_in_the_process_that_had_read_a_later_one(
    opened, folder
):
    (folder / "new.md").write_text("# New\n\nWalruses whistle at night.\n")
    with opened() as index:
        index.refresh()
    database = storage_of(folder) / "index.sqlite3"
    copy = database.read_bytes()
    index = opened()
    (folder / "new.md").unlink()
    index.refresh(confirm=True)
    assert "Walruses" not in index.as_retriever(1).retrieve("Who whistles at night?")[0].node.text
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    aside = database.with_name("aside")
    aside.write_bytes(copy)
    aside.replace(database)
    assert "Walruses" in index.as_retriever(1).retrieve("Who whistles at night?")[0].node.text


def test_a_copy_of_the_database_that_was_put_back_and_written_again_uses_no_number_of_a_node_twice(
    opened, folder
):
    def rows(index):
        return set(index._reader.ask(lambda view: view.snapshot.rows()).tolist())

    with opened() as index:
        index.refresh()
        before = rows(index)
    database = storage_of(folder) / "index.sqlite3"
    copy = database.read_bytes()
    (folder / "new.md").write_text("# New\n\nWalruses whistle at night.\n")
    with opened() as index:
        index.refresh()
        lost = rows(index)
    database.write_bytes(copy)
    (folder / "new.md").write_text("# New\n\nOtters juggle small stones.\n")
    with opened() as index:
        index.refresh()
        assert lost & rows(index) == before
        assert "Otters" in index.as_retriever(1).retrieve("Who juggles stones?")[0].node.text
        assert index.status(check=True).ok


def test_a_storage_folder_that_cannot_be_made_is_named(folder, tmp_path, counting):
    (tmp_path / "file").write_text("")
    message = r"cannot be written .*Make .*storage folder"
    opened = ContextualIndex.open(folder, storage=tmp_path / "file" / "store", embed_model=counting)
    with opened as index, pytest.raises(StorageError, match=message):
        index.refresh()


def test_the_command_that_takes_another_model_names_folder_model_and_storage(tmp_path, folder):
    """Without the model it would embed everything again with the old one."""
    storage = tmp_path / "my index"
    other = CountingEmbedding(7, model_name="other")
    with ContextualIndex.open(folder, storage=storage, embed_model=other) as index:
        index.refresh()
    with pytest.raises(FingerprintError) as caught:
        ContextualIndex.open(folder, storage=storage, embed_model="local")
    command = ["index", str(folder), "--storage", str(storage), "--embed-model", "local", "--yes"]
    assert shlex.split(str(caught.value).rpartition(" in Python, or ")[2])[1:] == command


def test_another_model_replaces_everything_at_the_end_only(used, folder, monkeypatch):
    other = CountingEmbedding(7, model_name="other")
    with (
        ContextualIndex.open(folder, embed_model=other, reindex=True) as index,
        monkeypatch.context() as broken,
    ):

        def fail(*_, **__):
            raise KeyboardInterrupt

        broken.setattr(refresh.Refresh, "_finish", fail)
        with pytest.raises(KeyboardInterrupt):
            index.refresh()
    with ContextualIndex.open(
        folder, embed_model=CountingEmbedding(7, model_name="counting")
    ) as old:
        assert old.status(check=True).ok, "the old index is whole until the new one is"
    embedded = other.count
    with ContextualIndex.open(folder, embed_model=other, reindex=True) as index:
        report = index.refresh()
        assert index.status(check=True).ok
        assert [problem.path for problem in report.failed] == ["by-hand"], (
            "it has to be passed again"
        )
        assert report.chunks == 4
        index.refresh([Document(text="Zebras sleep standing.", id_="by-hand")])
    assert embedded + report.embedded <= other.count == 6, (
        "the second run goes on where the first was stopped; a text shows how long vectors are"
    )
    with ContextualIndex.open(folder, embed_model=other) as index:
        assert "Zebras" in index.as_retriever(1).retrieve("zebras")[0].node.text


def test_a_reader_sees_one_moment_while_another_model_takes_over(used, folder):
    with ContextualIndex.open(
        folder, embed_model=CountingEmbedding(7, model_name="counting")
    ) as old:
        with old._reader.snapshot() as view:
            before = view.snapshot.rows().tolist()
            with ContextualIndex.open(
                folder, embed_model=CountingEmbedding(7, model_name="other"), reindex=True
            ) as new:
                assert new.refresh().chunks == 4
            assert view.snapshot.rows().tolist() == before
            assert {row.row for row in view.snapshot.node_rows(before)} == set(before)
        with pytest.warns(
            ContextualWarning, match="was made with the embedding MockEmbedding:other"
        ):
            assert (
                old.as_retriever(1).retrieve("carrots")[0].node.ref_doc_id == "memory/2026-01-28.md"
            ), "words find it"


def test_what_was_paid_for_is_never_deleted(folder, counting):
    with ContextualIndex.open(folder, embed_model=counting) as index:
        for number in range(20):
            (folder / "faq.md").write_text(f"# FAQ\n\nAnswer {number}.\n")
            index.refresh()
        asked = counting.count
        (folder / "faq.md").write_text("# FAQ\n\nAnswer 2.\n")
        assert (index.refresh().changed, counting.count) == (["faq.md"], asked), "an undone edit"


def test_a_model_that_gives_no_vectors_is_named(folder):
    class Broken(MockEmbedding):
        def _get_text_embeddings(self, texts):
            return [[0.0] * 3 for _ in texts[1:]]

    with pytest.raises(Exception, match=r"gave 1 vector for"):
        embedder.embed_texts(Broken(3), ["a", "b"])
