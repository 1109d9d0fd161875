"""A store that a server keeps: its writers share no lock, so two of them may write one document at the same instant."""

import os
import time

import chromadb
import pytest
from llama_index.core import Document

from llama_index_contextual.index import chroma, reader, refresh
from llama_index_contextual.retrievers import chroma as retrieving

pytestmark = pytest.mark.server

LONG = "\n\n".join(
    f"Paragraph {number} of the first version, which is a long one. {'word ' * 60}" for number in range(9)
)


@pytest.fixture
def client(tmp_path):
    """Any client makes an index share its store; a local one does it without a server."""
    return chromadb.PersistentClient(str(tmp_path / "server"), chromadb.Settings(anonymized_telemetry=False))


@pytest.fixture
def at_once(monkeypatch):
    """Callable: has another refresh happen when the next one has read what is stored and has not written yet."""

    def arrange(other):
        waiting, write = [other], refresh.Refresh._write

        def meanwhile(self, batch):
            if waiting and batch:
                waiting.pop()()
            write(self, batch)

        monkeypatch.setattr(refresh.Refresh, "_write", meanwhile)

    return arrange


@pytest.mark.parametrize("last", ["first", "second"])
@pytest.mark.parametrize("texts", [("Carrots.", "Parsnips."), (LONG, "Parsnips.")], ids=["as many", "more"])
def test_a_document_that_two_wrote_at_once_is_mended_by_the_next_refresh_of_it(opened, client, at_once, texts, last):
    first, second = (Document(text=text, id_="both") for text in texts)
    one, other = opened(vector_store=client), opened(vector_store=client)
    one.refresh([Document(text="Somebody else's.", id_="alone")])
    at_once(lambda: other.refresh([second]))
    one.refresh([first])
    verification = one.verify()
    assert not verification.ok, "both versions' chunks are there"
    report = one.refresh([first if last == "first" else second])
    assert report.changed == ["both"]
    assert one.verify().ok, str(one.verify())
    everything = other.as_retriever(50, min_score=0)
    texts_now = [hit.node.text for hit in everything.retrieve("Which version has which vegetables?")]
    assert "Somebody else's." in texts_now
    assert ("Parsnips." in texts_now) == (last == "second")
    assert one.refresh([first if last == "first" else second]).skipped == 1


def test_a_file_that_two_wrote_at_once_is_mended_by_the_next_refresh_of_the_folder(opened, client, at_once, folder):
    one, other = opened(vector_store=client), opened(vector_store=client)
    one.refresh()
    (folder / "faq.md").write_text("# FAQ\n\nIt is slow because of the disk.\n", "utf-8")

    def edited_again():
        (folder / "faq.md").write_text("# FAQ\n\nIt is slow because of the network.\n", "utf-8")
        other.refresh()
        (folder / "faq.md").write_text("# FAQ\n\nIt is slow because of the disk.\n", "utf-8")

    at_once(edited_again)
    one.refresh()
    assert not one.verify().ok
    report = one.refresh()
    assert (report.changed, report.embedded, report.skipped) == (["faq.md"], 0, 3)
    assert one.verify().ok


def test_what_another_writes_now_is_not_swept_away(opened, client, folder):
    index = opened(vector_store=client)
    index.refresh()
    fresh, left = (folder / ".contextual" / f".manifest.json.{name}" for name in ("another1", "killed01"))
    fresh.touch()
    left.touch()
    os.utime(left, (time.time() - 7200,) * 2)
    index.refresh()
    assert (fresh.exists(), left.exists()) == (True, False)


def test_a_page_of_nodes_that_another_deletes_meanwhile_is_left_out(opened, client, monkeypatch):
    monkeypatch.setattr(retrieving, "PAGE", 2)
    index = opened(vector_store=client)
    index.refresh()
    [name] = [one.name for one in client.list_collections()]
    store = chroma.ChromaDatabase(client).collection(name)
    pages = store.vectors()
    first = next(pages)
    client.get_collection(name).delete(ids=client.get_collection(name).get(include=[])["ids"][2:])
    assert [page.shape for _, page in (first, *pages)] == [(2, first[1].shape[1])]


def test_a_question_looks_once_whether_a_server_has_something_newer(opened, client, monkeypatch):
    index, looks, stamp = opened(vector_store=client), [], chroma.ChromaStore.stamp
    index.refresh([Document(text="Carrots are here.", id_="one")])
    retriever = index.as_retriever(min_score=0)
    retriever.retrieve("Where are carrots?")
    monkeypatch.setattr(chroma.ChromaStore, "stamp", lambda self: looks.append(1) or stamp(self))
    monkeypatch.setattr(reader, "_LOOK_SECONDS", 60)
    retriever.retrieve("Where are carrots?")
    assert not looks, "the question before has just looked"
    index.refresh([Document(text="Parsnips are new.", id_="two")])
    found = [hit.node.text for hit in retriever.retrieve("Where are parsnips?")]
    assert "Parsnips are new." in found, "what this machine wrote is seen at once"
    looks.clear()
    monkeypatch.setattr(reader, "_LOOK_SECONDS", 0)
    retriever.retrieve("Where are carrots?")
    assert looks == [1], "a question looks once"
