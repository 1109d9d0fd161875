"""An index that is made anew while somebody reads it: each question sees one moment of it, the old or the new."""

import pytest
from llama_index.core import Document

from llama_index_contextual.app.index import contextual
from llama_index_contextual.app.index.view import View
from llama_index_contextual.app.settings.local import LocalEmbedding
from llama_index_contextual.errors import ContextualWarning, FingerprintError, StorageError

QUESTION = "Which vegetable does Cookie like?"


def ids_of(hits):
    return [hit.node.node_id for hit in hits]


def made_anew(writer):
    """Return what has the database made anew in a file of its own, as where it was damaged."""

    def work():
        writer._storage.salvage()
        writer.refresh()

    return work


@pytest.fixture
def in_flight(monkeypatch):
    """Callable: has something done once, in the middle of the next search for vectors."""

    def arrange(happens):
        waiting, nearest = [happens], View.dense_queries

        def interrupted(self, *arguments):
            if waiting:
                waiting.pop()()
            return nearest(self, *arguments)

        monkeypatch.setattr(View, "dense_queries", interrupted)
        return waiting

    return arrange


def test_a_query_in_flight_while_the_index_is_made_anew_is_answered(opened, in_flight):
    writer, reader = opened(), opened()
    writer.refresh()
    retriever = reader.as_retriever(3)
    expected = ids_of(retriever.retrieve(QUESTION))
    before = reader.settings.state().identity
    waiting = in_flight(made_anew(writer))
    for _ in range(2):  # in flight, and after it
        assert ids_of(retriever.retrieve(QUESTION)) == expected != []
    assert not waiting
    assert reader.settings.state().identity != before


async def test_the_same_on_an_event_loop(opened, in_flight):
    writer, reader = opened(), opened()
    writer.refresh()
    retriever = reader.as_retriever(3)
    expected = ids_of(await retriever.aretrieve(QUESTION))
    in_flight(made_anew(writer))
    assert ids_of(await retriever.aretrieve(QUESTION)) == expected != []


def test_looking_at_an_index_that_is_made_anew_meanwhile(opened, monkeypatch, tmp_path):
    writer, reader = opened(), opened()
    writer.refresh()
    for name, look in (
        ("status", lambda: reader.status().chunks),
        ("verify", lambda: reader.verify().chunks),
        ("exported", lambda: reader.export(tmp_path / "chunks.jsonl")),
    ):
        chunks, once, real = look(), [made_anew(writer)], getattr(contextual.inspection, name)

        def meanwhile(*arguments, once=once, real=real):
            if once:
                once.pop()()
            return real(*arguments)

        monkeypatch.setattr(contextual.inspection, name, meanwhile)
        assert look() == chunks > 0


def test_a_reader_never_compares_its_vectors_with_another_model_s(opened, in_flight):
    with opened() as first:
        first.refresh()
    successor = LocalEmbedding(threads=1, model_name="successor")
    reader, writer = opened(), opened(embed_model=successor, reindex="all")
    retriever = reader.as_retriever(3)
    expected = ids_of(retriever.retrieve(QUESTION))
    in_flight(writer.refresh)
    assert ids_of(retriever.retrieve(QUESTION)) == expected, "in flight, it sees what there was when it began"
    told = r"made with the embedding LocalEmbedding:successor\S+ not with LocalEmbedding:all-MiniLM.*open it again"
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


def test_a_successor_has_what_was_given_by_hand_and_a_damaged_database_gives_it_back(opened):
    index = opened()
    index.refresh()
    index.refresh([Document(text="Zebras sleep standing.", id_="by-hand")])
    successor = opened(embed_model=LocalEmbedding(threads=1, model_name="successor"), reindex="all")
    assert successor.refresh().chunks == 5
    for _ in range(2):
        assert successor.documents()["by-hand"].nodes == 1
        assert "Zebras" in successor.as_retriever(1).retrieve("zebras")[0].node.text
        assert (successor.verify().ok, successor.verify().chunks) == (True, 5)
        successor._storage.salvage()
        assert successor.refresh().embedded == 0
