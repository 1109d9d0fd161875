"""Concurrent retrievers: time, failures, the event loop, and many callers."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from results import ids, pairs

from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever


class Waiting(BaseRetriever):
    """A retriever that answers when the test lets it."""

    def __init__(self, name, event):
        super().__init__()
        self.name, self.event, self.threads = name, event, set()

    def _retrieve(self, query_bundle):
        self.threads.add(threading.current_thread())
        assert self.event.wait(30)
        return [NodeWithScore(node=TextNode(id_=self.name), score=1.0)]


@pytest.fixture
def late():
    """Return a retriever that never answers while the test runs."""
    event = threading.Event()
    yield Waiting("late", event)
    event.set()


@pytest.fixture
def prompt():
    event = threading.Event()
    event.set()
    return Waiting("prompt", event)


def test_retrievers_run_at_the_same_time():
    # Each waits for the other, so one after the other would never end.
    first, second = threading.Event(), threading.Event()

    class Signals(Waiting):
        def __init__(self, name, mine, other):
            super().__init__(name, other)
            self.mine = mine

        def _retrieve(self, query_bundle):
            self.mine.set()
            return super()._retrieve(query_bundle)

    retrievers = [Signals("a", first, second), Signals("b", second, first)]
    assert set(ids(ContextualFusionRetriever(retrievers).retrieve("q"))) == {"a", "b"}
    first.clear(), second.clear()
    assert set(ids(asyncio.run(ContextualFusionRetriever(retrievers).aretrieve("q")))) == {"a", "b"}


async def test_a_blocking_retriever_does_not_block_the_loop(late):
    task = asyncio.create_task(ContextualFusionRetriever([late]).aretrieve("q"))
    for _ in range(20):
        await asyncio.sleep(0.005)  # never returns if the retriever runs on the loop
    assert not task.done()
    late.event.set()
    assert ids(await task) == ["late"]
    assert threading.main_thread() not in late.threads


async def test_our_retrievers_and_stock_ones_do_not_block_the_loop(index, embedding, monkeypatch):
    collection = index.vector_store.client
    seen = set()
    real = type(collection).query

    def query(self, *args, **kwargs):
        seen.add(threading.current_thread() is threading.main_thread())
        return real(self, *args, **kwargs)

    monkeypatch.setattr(type(collection), "query", query)
    await ContextualVectorRetriever(index, embed_model=embedding).aretrieve("dog")
    await ContextualFusionRetriever([index.as_retriever()]).aretrieve("dog")
    assert seen == {False}
    await index.as_retriever().aretrieve("dog")  # the stock class alone: Chroma on the loop
    assert seen == {False, True}


def test_fifty_threads_get_the_same_results_while_a_writer_writes(index, embedding):
    keyword = ContextualBM25Retriever.from_defaults(index=index)
    retriever = ContextualFusionRetriever(
        [ContextualVectorRetriever(index, embed_model=embedding), keyword]
    )
    expected = pairs(retriever.retrieve("budget of the house"))
    stop = threading.Event()

    def write():
        while not stop.is_set():
            keyword.add([TextNode(id_="noise", text="zebra")])
            keyword.delete(["noise"])
            time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with ThreadPoolExecutor(50) as threads:
            answers = list(threads.map(retriever.retrieve, ["budget of the house"] * 200))
    finally:
        stop.set()
        writer.join()
    # The writer changes document counts, so scores of the keyword retriever vary, but never the
    # hits or their order.
    assert {tuple(ids(answer)) for answer in answers} == {tuple(name for name, _ in expected)}


def test_it_answers_inside_a_running_loop(index, embedding):
    # The stock class runs a nested loop there, which fails without nest_asyncio.
    keyword = ContextualBM25Retriever.from_defaults(index=index)
    retriever = ContextualFusionRetriever(
        [ContextualVectorRetriever(index, embed_model=embedding), keyword]
    )

    async def caller():
        return retriever.retrieve("dog")

    assert pairs(asyncio.run(caller())) == pairs(retriever.retrieve("dog"))


def test_the_query_that_was_passed_is_unchanged(index, embedding):
    from llama_index.core.schema import QueryBundle

    bundle = QueryBundle("dog")
    ContextualFusionRetriever([index.as_retriever()]).retrieve(bundle)
    assert bundle.embedding is None
    index.as_retriever().retrieve(bundle)
    assert bundle.embedding is not None  # the stock class does


def test_a_question_does_not_count_the_nodes(monkeypatch):
    retriever = ContextualBM25Retriever([TextNode(id_="tea", text="The tea is green.")])
    monkeypatch.setattr(
        ContextualBM25Retriever, "__len__", lambda self: pytest.fail("a store by address was asked")
    )
    retriever = ContextualFusionRetriever([retriever])
    assert ids(retriever.retrieve("green tea")) == ["tea"]
    assert "green" in str(retriever.explain("green tea"))
