"""Two threads of one process that use an index at once, and writes that fail halfway."""

import os
import pickle
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from llama_index.core import MockEmbedding
from llama_index.core.schema import TextNode

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index import BackgroundRefresh
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.utils import tokens
from llama_index_contextual.utils.errors import ContextualError

ZEBRA = "# New\n\nA zebra crossed the road.\n"


class Down(MockEmbedding):
    """A model whose server is down, and which takes a moment to fail."""

    def _get_text_embeddings(self, texts):
        time.sleep(0.02)
        raise OSError("the model is away")


def slow_embedding():
    """Return an embedding, the event of its call, and the event that lets it answer."""
    asked, go = threading.Event(), threading.Event()

    class Slow(MockEmbedding):
        def _get_text_embeddings(self, texts):
            asked.set()
            assert go.wait(30)
            return super()._get_text_embeddings(texts)

    return Slow(embed_dim=8), asked, go


def found_by_keywords(index, query):
    retriever = next(
        retriever
        for retriever in index.as_retriever().retrievers
        if isinstance(retriever, ContextualBM25Retriever)
    )
    return [hit.node.metadata["path"] for hit in retriever.retrieve(query)]


def test_a_first_refresh_that_fails_is_taken_back_whatever_others_ask_meanwhile(folder):
    def asked_until(done, ask):
        while not done.is_set():
            with suppress(ContextualError):  # anything else is a defect
                ask()

    for _ in range(6):
        done = threading.Event()
        with (
            ContextualIndex.open(folder, embed_model=Down(embed_dim=8)) as index,
            ThreadPoolExecutor(3) as pool,
        ):
            asking = [
                pool.submit(asked_until, done, ask)
                for ask in (index.documents, lambda: index.freshness(1))
            ]
            try:
                with pytest.raises(ContextualError, match="the model is away"):
                    index.refresh()
                time.sleep(0.02)
            finally:
                done.set()
            for future in asking:
                future.result(30)
            assert not index.exists


def test_a_refresh_that_is_waited_for_sees_what_changed_before_the_question(opened, folder):
    """A refresh that runs when the question comes may have read the folder before the change."""
    slow, read, go = slow_embedding()
    index = opened(embed_model=slow)
    with BackgroundRefresh(index, "wait") as keeper:
        assert read.wait(30)
        (folder / "new.md").write_text(ZEBRA, "utf-8")
        threading.Timer(0.1, go.set).start()
        assert not keeper.look()
    assert found_by_keywords(index, "zebra") == ["new.md"]


def test_threads_that_count_first_together_leave_the_environment_as_it_was():
    tokens.tiktoken_cl100k.cache_clear()
    together, before = threading.Barrier(4), dict(os.environ)

    def counted(_):
        together.wait()
        return len(tokens.tiktoken_cl100k().encode("carrots"))

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(counted, range(4)))) == 1
    assert dict(os.environ) == before


@pytest.mark.long
def test_a_keyword_retriever_is_copied_while_it_is_asked():
    nodes = [TextNode(text=f"word{number} carrots", id_=str(number)) for number in range(300)]
    retriever, done = ContextualBM25Retriever.from_defaults(nodes=nodes), threading.Event()

    def ask():
        number = 0
        while not done.is_set():
            number += 1
            retriever.term_scores(f"word{number % 300} carrots word{number * 7 % 300}", ["1", "2"])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            asking = [pool.submit(ask) for _ in range(2)]
            try:
                for _ in range(75):
                    assert len(pickle.loads(pickle.dumps(retriever)).retrieve("carrots")) > 0  # noqa: S301
            finally:
                done.set()
            for future in asking:
                future.result(30)
    finally:
        sys.setswitchinterval(interval)
