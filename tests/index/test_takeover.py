"""A collection that is replaced while somebody reads it: the question is asked again of the new one, once."""

import pytest
from filelock import FileLock, Timeout
from llama_index.core import Document

from llama_index_contextual.errors import ContextualWarning, FingerprintError, StorageError
from llama_index_contextual.index import contextual, storage
from llama_index_contextual.index.chroma import ChromaStore
from llama_index_contextual.local_embedding import LocalEmbedding
from llama_index_contextual.retrievers.chroma import ChromaDense

QUESTION = "Which vegetable does Cookie like?"


def ids_of(hits):
    return [hit.node.node_id for hit in hits]


@pytest.fixture
def in_flight(monkeypatch):
    """Callable: has something done once, in the middle of the next search for vectors, which Chroma answers."""
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_STORE__EXACT_LIMIT", "1")

    def arrange(happens):
        waiting, nearest = [happens], ChromaDense.dense_query

        def interrupted(self, *arguments):
            if waiting:
                waiting.pop()()
            return nearest(self, *arguments)

        monkeypatch.setattr(ChromaDense, "dense_query", interrupted)
        return waiting

    return arrange


def test_a_query_in_flight_while_the_store_is_rebuilt_is_asked_again(opened, in_flight):
    writer, reader = opened(), opened()
    writer.refresh()
    retriever = reader.as_retriever(3)
    expected = ids_of(retriever.retrieve(QUESTION))
    waiting = in_flight(writer._storage.repair)
    before = writer.manifest().collection
    assert ids_of(retriever.retrieve(QUESTION)) == expected != []
    assert not waiting
    assert reader.manifest().collection != before


async def test_the_same_on_an_event_loop(opened, in_flight):
    writer, reader = opened(), opened()
    writer.refresh()
    retriever = reader.as_retriever(3)
    expected = ids_of(await retriever.aretrieve(QUESTION))
    in_flight(writer._storage.repair)
    assert ids_of(await retriever.aretrieve(QUESTION)) == expected != []


def test_looking_at_an_index_that_is_rebuilt_meanwhile(opened, monkeypatch, tmp_path):
    writer, reader = opened(), opened()
    writer.refresh()
    for name, look in (
        ("status", lambda: reader.status().chunks),
        ("verify", lambda: reader.verify().chunks),
        ("exported", lambda: reader.export(tmp_path / "chunks.jsonl")),
    ):
        chunks, once, real = look(), [1], getattr(contextual.inspection, name)

        def meanwhile(*arguments, once=once, real=real):
            if once:
                once.pop()
                writer._storage.repair()
            return real(*arguments)

        monkeypatch.setattr(contextual.inspection, name, meanwhile)
        assert look() == chunks > 0


def test_a_reader_never_compares_its_vectors_with_another_model_s(opened, in_flight):
    with opened() as first:
        first.refresh()
    successor = LocalEmbedding(threads=1, model_name="successor")
    reader, writer = opened(), opened(embed_model=successor, reindex="all")
    retriever = reader.as_retriever(3)
    assert retriever.retrieve(QUESTION)
    in_flight(writer.refresh)
    told = r"made with the embedding LocalEmbedding:successor\S+ not with LocalEmbedding:all-MiniLM.*open it again"
    for _ in range(2):  # in flight at the takeover, and after it
        with pytest.warns(ContextualWarning, match=told):
            hits = retriever.retrieve("Cookie carrots")
        assert "carrots" in hits[0].node.text, "words are words, whatever the model"
    with pytest.raises(FingerprintError, match=told):
        retriever.retrievers[0].retrieve(QUESTION)
    assert "carrots" in writer.as_retriever(1).retrieve(QUESTION)[0].node.text


def test_an_error_of_another_kind_is_met_at_once_and_once(opened, in_flight):
    writer, reader = opened(), opened()
    writer.refresh()
    retriever, calls = reader.as_retriever(3), []

    def fail():
        calls.append(1)
        raise StorageError("the disk is on fire")

    in_flight(fail)
    with pytest.raises(StorageError, match="on fire"):
        retriever.retrievers[0].retrieve(QUESTION)
    assert calls == [1]


def test_no_reader_can_open_chroma_s_files_while_a_takeover_or_a_rebuild_writes_them(opened, monkeypatch):
    index = opened()
    index.refresh()
    index.refresh([Document(text="Zebras sleep standing.", id_="by-hand")])
    open_for_readers, upsert = [], ChromaStore.upsert

    def watched(store, rows):
        if rows:
            lock = FileLock(index.settings.layout.chroma_lock, thread_local=False)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                open_for_readers.append(False)
            else:
                lock.release()
                open_for_readers.append(True)
        upsert(store, rows)

    monkeypatch.setattr(ChromaStore, "upsert", watched)
    successor = opened(embed_model=LocalEmbedding(threads=1, model_name="successor"), reindex="all")
    assert successor.refresh().chunks == 5
    assert successor.manifest().documents["by-hand"].nodes == 1
    taken_over = len(open_for_readers)
    successor._storage.repair()
    assert len(open_for_readers) > taken_over >= 2
    assert not any(open_for_readers)
    assert successor.verify().chunks == 5


def test_a_rebuild_that_fails_says_what_to_see_to(opened, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    index = opened()
    index.refresh()
    monkeypatch.setattr(storage, "rebuild", full)
    with pytest.raises(StorageError, match=r"neither be read nor made anew \(no space left\).*Cure.*nothing is lost"):
        index._storage.repair()


def test_a_server_s_data_is_not_rebuilt_by_a_reader_of_it(opened, chroma_server):
    index = opened(vector_store=f"chroma:{chroma_server}")
    with pytest.raises(StorageError, match=r"server cannot read its vectors.*Cure: restore or rebuild the server's"):
        index._storage.repair()
