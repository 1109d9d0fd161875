"""While a batch is embedded and written, the next one is prepared: no sooner, in order, with the same results."""

import threading
import time
from concurrent.futures import Future

import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.app.index import ContextualIndex, refresh
from llama_index_contextual.context import ChunkContext, ContextGenerator
from llama_index_contextual.errors import EmbeddingError

PAGES = 12


class Watched(ContextGenerator):
    """Names the document, and counts."""

    name, version, free = "watched", "1", True

    def __init__(self):
        self.made = []
        self.third = threading.Event()

    def generate(self, nodes, document):
        self.made.append(document.path)
        if len(self.made) >= 3:
            self.third.set()
        return [ChunkContext(f"From {document.path}.", self.name, version=self.version) for _ in nodes]


class Hooked(BaseEmbedding):
    """Calls something before it embeds a batch."""

    before: object = None

    def _get_text_embedding(self, text):
        return [1.0, float(len(text))]

    def _get_text_embeddings(self, texts):
        self.before(texts)
        return super()._get_text_embeddings(texts)

    def _get_query_embedding(self, query):
        return [1.0, float(len(query))]

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """A folder whose pages are prepared one by one and written in twos."""
    monkeypatch.setattr(refresh, "BATCH_CHUNKS", 2)
    for number in range(PAGES):
        (tmp_path / f"page{number:02}.md").write_text(f"# Page {number}\n\nTea of day {number}.\n", "utf-8")
    return tmp_path


def opened(folder, before, contexts):
    return ContextualIndex.open(folder, embed_model=Hooked(model_name="hooked", before=before), context=contexts)


def test_the_next_batch_gets_its_contexts_while_one_is_embedded(pages):
    contexts, met = Watched(), []
    with opened(pages, lambda _: met.append(contexts.third.wait(20)), contexts) as index:
        assert index.refresh().chunks == PAGES
    assert met
    assert all(met), "the first batch was embedded before the third page had its context"


@pytest.mark.long
def test_no_more_than_one_batch_is_prepared_ahead(pages):
    contexts, ahead = Watched(), []

    def before(texts):
        for _ in range(50):  # as long as it goes on, and then a while
            count = len(contexts.made)
            time.sleep(0.02)
            if len(contexts.made) == count and count >= PAGES:
                break
        ahead.append(len(contexts.made) - sum(embedded) - len(texts))
        embedded.append(len(texts))

    embedded = []
    with opened(pages, before, contexts) as index:
        index.refresh()
    assert max(ahead) == 2


def test_what_was_written_before_the_embedding_failed_stays_and_the_next_refresh_goes_on(pages):
    calls = []

    def before(texts):
        calls.append(texts)
        if len(calls) > 2:
            raise OSError("gone")

    contexts = Watched()
    with opened(pages, before, contexts) as index:
        with pytest.raises(EmbeddingError, match="gone"):
            index.refresh()
        status = index.status()
        assert (status.chunks, status.complete) == (4, False)
        calls.clear()
        index.settings.embedding.before = lambda _: None
        report = index.refresh()
        assert (report.chunks, report.embedded) == (PAGES, PAGES - 4)
        assert index.status(check=True).ok


def test_ctrl_c_while_an_embedding_hangs_ends_the_refresh_and_nothing_is_written_later(pages, monkeypatch):
    monkeypatch.setattr(refresh, "_ENDING", 0.1)
    began, answer, threads = threading.Event(), threading.Event(), []

    def before(_):
        threads.append(threading.current_thread())
        if len(threads) == 2:
            began.set()
            answer.wait(20)

    class Interrupted(Watched):
        def generate(self, nodes, document):
            if len(self.made) == 5:  # of the third batch
                assert began.wait(20)
                raise KeyboardInterrupt
            return super().generate(nodes, document)

    with opened(pages, before, Interrupted()) as index:
        with pytest.raises(KeyboardInterrupt):
            index.refresh()
        assert not answer.is_set()
        assert index.status().chunks == 2
        answer.set()  # the server answers at last, to nobody
        threads[1].join(20)
        status = index.status()
        assert (status.chunks, status.complete) == (2, False)
    with opened(pages, lambda _: None, Watched()) as index:
        report = index.refresh()
        assert (report.chunks, report.embedded) == (PAGES, PAGES - 4)  # what the late answer brought is kept
        assert index.status(check=True).ok


def one_after_the_other(action, *arguments):
    done = Future()
    done.set_result(action(*arguments))
    return done


@pytest.mark.parametrize("together", [True, False])
def test_report_and_index_are_the_same_as_one_after_the_other(pages, monkeypatch, together):
    """Files that cannot be read and texts that cannot be embedded are reported in the order of the files."""
    if not together:
        monkeypatch.setattr(refresh, "in_thread", one_after_the_other)
    for number in (1, 5, 9):
        (pages / f"page{number:02}.md").write_bytes(b"\x00\x01\x02")

    class Picky(Hooked):
        def _get_text_embedding(self, text):
            return [0.0, 0.0] if any(f"Page {number}\n" in text for number in (0, 6)) else [1.0, float(len(text))]

    with ContextualIndex.open(
        pages, embed_model=Picky(model_name="picky", before=lambda _: None), context=Watched()
    ) as index:
        report = index.refresh()
        assert [problem.path for problem in report.failed] == [f"page{n:02}.md" for n in (0, 1, 5, 6, 9)]
        assert (report.chunks, report.embedded, len(report.added)) == (PAGES - 5, PAGES - 3, PAGES - 5)
        assert len(index.nodes()) == PAGES - 5
