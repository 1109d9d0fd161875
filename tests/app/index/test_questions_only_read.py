"""Questions are read-only: nothing is written, no document embedded, no context model called."""

import asyncio
import contextlib
import hashlib
import sqlite3
import time

import pytest
from fake_model import Reply
from llama_index.core import Document
from storage import storage_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.folder import sources
from llama_index_contextual.app.index import BackgroundRefresh
from llama_index_contextual.app.index.database import Snapshot
from llama_index_contextual.app.settings.local import LocalEmbedding
from llama_index_contextual.memory.context import MemoryContext
from llama_index_contextual.retrievers.query import note_filters
from llama_index_contextual.utils.errors import ContextualWarning, SettingError, StorageError

QUESTIONS = {
    "a query": lambda index: index.as_retriever().retrieve("Which vegetable does Cookie like?"),
    "an explanation": lambda index: index.as_retriever().explain("Cookie"),
    "its status": lambda index: index.status(),
    "verify": lambda index: index.status(check=True),
    "all nodes": lambda index: index.nodes(),
    "how fresh it is": lambda index: index.freshness(),
    "an estimate": lambda index: index.estimate(),
    "memory": lambda index: MemoryContext(index).get("Which vegetable does Cookie like?"),
    "memory's search": lambda index: MemoryContext(index).search("Cookie"),
}


def contents(storage):
    """Hash every file of a storage folder.

    While SQLite has its file open, there are also an empty log and the index of the log.
    """
    files = [file for file in sorted(storage.rglob("*")) if file.is_file() and file.stat().st_size]
    return {
        file.relative_to(storage).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if not file.name.endswith("-shm")
    }


def edit(folder):
    (folder / "faq.md").write_text("# FAQ\n\nWhy is it slow? Because zebras sleep.\n")
    (folder / "new.md").write_text("# New\n\nSomething new.\n")
    (folder / "guide.md").unlink()


class Deaf(LocalEmbedding):
    """Embeds queries only."""

    def get_text_embedding_batch(self, texts, **_):
        raise AssertionError(f"{len(texts)} documents were embedded")


@pytest.fixture
def behind(opened, folder, fake_model):
    """A storage whose folder has changed, with contexts of a model that must not be called."""
    llm = {"context": "llm", "llm": fake_model.llm}
    with opened(**llm) as index:
        index.refresh()
    edit(folder)
    fake_model.requests.clear()
    return storage_of(folder)


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
@pytest.mark.long
def test_a_question_writes_nothing_and_asks_no_model(behind, folder, fake_model, ask):
    before = contents(behind)
    with ContextualIndex.open(folder, embed_model=Deaf(threads=1)) as index:
        ask(index)
    assert contents(behind) == before
    assert fake_model.requests == []


@pytest.mark.parametrize("lost", ["index.sqlite3", "cache"])
def test_a_question_to_a_damaged_index_writes_nothing_either(opened, folder, lost):
    with opened() as index:
        index.refresh()
    storage = storage_of(folder)
    target = storage / lost
    for file in sorted(target.rglob("*"), reverse=True) if target.is_dir() else [target]:
        file.rmdir() if file.is_dir() else file.unlink()
    before = contents(storage)
    with opened() as index:
        if lost != "index.sqlite3":
            assert "carrots" in index.as_retriever(1).retrieve("Cookie")[0].node.text
        else:
            for ask in (
                lambda: index.as_retriever().retrieve("Cookie"),
                index.status,
                lambda: index.status(check=True),
                index.nodes,
            ):
                with pytest.raises(
                    StorageError, match=r"there is no index in .*Run: llama-index-contextual index"
                ):
                    ask()
        assert contents(storage) == before
        report = index.refresh()
        assert (report.embedded, report.chunks) == (0, 4), "what was paid for is kept"
        assert "carrots" in index.as_retriever(1).retrieve("Cookie")[0].node.text


def test_documents_given_by_hand_have_to_be_passed_again_and_that_is_said(opened, folder, caplog):
    zebras = [Document(text="Zebras sleep standing.", id_="by-hand", metadata={"author": "Jo"})]
    with opened() as index:
        index.refresh()
        index.refresh(zebras)
        assert index.refresh().failed == []
    with opened(context="off") as index:
        report = index.refresh()
        assert [str(problem) for problem in report.failed] == [
            "by-hand: it has to be made again, and is not a file. Pass the document again."
        ]
        assert index.refresh(zebras).outdated == ["by-hand"]
        assert index.refresh().failed == []
    with contextlib.closing(sqlite3.connect(storage_of(folder) / "index.sqlite3")) as database:
        database.execute("UPDATE chunks SET text = 'Zebras fly.' WHERE text LIKE 'Zebras%'")
        database.commit()
    with opened() as index:
        assert index.refresh().chunks == 4
        assert index.refresh(zebras).embedded == 0, "what was paid for is kept"
        assert index.status(check=True).ok
    assert "Pass documents again that were passed as objects" in caplog.text


def test_freshness_counts_what_changed_and_reads_no_file_that_looks_the_same(opened, folder):
    index = opened()
    index.refresh()
    assert str(index.freshness()) == ""
    assert index.freshness(0).changed == 0, (
        "without time to compare files nobody claims that they changed"
    )
    edit(folder)
    assert str(index.freshness(10)) == "3 files changed since; run index"
    late = index.freshness(0)
    assert not late.certain
    assert late.changed <= 3
    index.refresh()
    assert not index.freshness(10)


def test_a_file_that_was_only_touched_is_read_once(opened, folder, monkeypatch):
    index = opened()
    index.refresh()
    monkeypatch.setattr(sources, "_SETTLED", -(10**12))  # as if all this were minutes ago
    index.refresh()
    monkeypatch.setattr(sources, "read_file", None)  # reading fails from here on
    assert index.refresh().skipped == 4
    (folder / "faq.md").touch()
    with pytest.raises(TypeError):
        index.refresh()
    monkeypatch.undo()
    monkeypatch.setattr(sources, "_SETTLED", -(10**12))
    assert index.refresh().skipped == 4
    monkeypatch.setattr(sources, "read_file", None)
    assert index.refresh().skipped == 4


class Slow(LocalEmbedding):
    """A model that takes a second for any text."""

    def get_text_embedding_batch(self, texts, **options):
        time.sleep(1.0)
        return super().get_text_embedding_batch(texts, **options)


def test_a_refresh_in_the_background_keeps_no_answer_waiting(opened, folder):
    index = opened(embed_model=Slow(threads=1))
    index.refresh()
    edit(folder)
    with BackgroundRefresh(index, patience=0.3) as keeper:
        note = keeper.look()
        assert note.refreshing
        assert "being indexed" in str(note)
        assert "carrots" in index.as_retriever(1).retrieve("Cookie")[0].node.text
        keeper.close()
        assert not keeper.look()
        assert "zebras" in index.as_retriever(1).retrieve("zebras")[0].node.text


def test_a_refresh_that_takes_long_is_waited_for_once_and_not_by_every_answer(opened, folder):
    index = opened(embed_model=Slow(threads=1))
    edit(folder)
    with BackgroundRefresh(index, patience=0.6) as keeper:
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            assert keeper.look().refreshing
            seconds.append(time.perf_counter() - start)
    assert seconds[1] < seconds[0] / 3


def test_a_refresh_that_is_never_made_is_asked_for(opened, folder):
    index = opened()
    index.refresh()
    edit(folder)
    before = contents(storage_of(folder))
    with BackgroundRefresh(index, "never", patience=10) as keeper:
        assert str(keeper.look()) == "3 files changed since; run index"
    assert contents(storage_of(folder)) == before


async def test_a_refresh_that_is_waited_for_is_seen(opened, folder):
    index = opened()
    index.refresh()
    edit(folder)
    with BackgroundRefresh(index, "wait") as keeper:
        assert not await asyncio.to_thread(keeper.look)
    assert "zebras" in index.as_retriever(1).retrieve("zebras")[0].node.text


def test_a_refresh_in_the_background_that_fails_is_told(opened, folder):
    index = opened()
    index.refresh()
    edit(folder)
    index.settings.parser.__dict__["chunk_size"] = "no number"
    with BackgroundRefresh(index, "wait") as keeper:
        assert "could not be brought up to date" in str(keeper.look())


def test_a_refresh_in_the_background_asks_no_model_again(opened, folder, fake_model):
    fake_model.reply = lambda *_: Reply(status=400)
    index = opened(context="llm", llm=fake_model.llm)
    with pytest.warns(ContextualWarning):
        index.refresh()
    fake_model.reply = lambda *_: Reply()
    fake_model.requests.clear()
    with BackgroundRefresh(index, "wait") as keeper:
        assert not keeper.look().error
        assert fake_model.requests == []
    reopened = opened(context="llm", llm=fake_model.llm)  # has not seen it fail
    with BackgroundRefresh(reopened, "wait") as keeper:
        assert not keeper.look().error
        assert fake_model.requests == []
    reopened.refresh()
    assert fake_model.requests != []


def test_a_problem_is_logged_until_it_is_gone(opened, folder, caplog):
    def logged():
        caplog.clear()
        keeper.look()
        return {record.getMessage() for record in caplog.records}

    (folder / "bad.md").write_bytes(b"# Bad\n\0\0\0")
    with BackgroundRefresh(opened(), "wait") as keeper:
        [told] = logged()
        assert told.startswith("bad.md: it is binary")
        (folder / "bad.md").write_text("# Good\n")
        assert logged() == set()


def test_a_mode_that_is_not_known_is_refused(opened):
    with pytest.raises(SettingError, match=r"must be one of .*'sometimes'"):
        BackgroundRefresh(opened(), "sometimes")


def test_after_a_change_a_filter_reads_what_it_needs_of_the_new_chunks_alone(
    opened, folder, monkeypatch
):
    read, values = [], Snapshot.values

    def noted(snapshot, key, rows):
        read.append((key, len(rows)))
        return values(snapshot, key, rows)

    monkeypatch.setattr(Snapshot, "values", noted)
    filters = note_filters(since="2026-01-01")
    with opened() as index:
        index.refresh()
        chunks = index.status().chunks
        assert len(index.as_retriever(filters=filters).retrieve("Cookie")) == 2
        (folder / "memory" / "2026-05-01.md").write_text(
            "# Noon\n\nCookie sleeps.\n", encoding="utf-8"
        )
        index.refresh()
        hits = index.as_retriever(filters=filters).retrieve("Cookie")
        assert {hit.metadata["path"][7:] for hit in hits} == {
            "2026-01-28.md",
            "2026-04-09.md",
            "2026-05-01.md",
        }
        assert [size for key, size in read if key == "date_ts"] == [chunks, 1]
        (folder / "memory" / "2026-01-28.md").unlink()
        index.refresh()
        assert len(index.as_retriever(filters=filters).retrieve("Cookie")) == 2
        assert [size for key, size in read if key == "date_ts"] == [chunks, 1]
