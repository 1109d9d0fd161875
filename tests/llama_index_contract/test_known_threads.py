"""Faults of hybrid pipelines that LlamaIndex's own threads report.

Each test is called with ``False`` for the stock classes and with ``True`` for ours. Its name has
the number of the thread in run-llama/llama_index.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import chromadb
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.extractors import TitleExtractor
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters, SimpleVectorStore
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.chroma import ChromaVectorStore
from notes import EMBEDDING, ids, index, names, notes
from side_by_side import comparison, refusal

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    ContextualVectorRetriever,
    HeadingAwareMarkdownNodeParser,
)

NET = MetadataFilters(filters=[MetadataFilter(key="team", value="net")])
NESTED = MetadataFilters(
    filters=[
        NET,
        MetadataFilters(
            filters=[MetadataFilter(key="n", value=0), MetadataFilter(key="n", value=1)],
            condition="or",
        ),
    ]
)
LONG = "# Gateway\n\n" + "timeout " * 300 + "\n\n## Retries\n\n" + "again " * 300
PAGE = "# Gateway\n\nThe default is 60.\n\n# Scheduler\n\nThe default is 900.\n"


def chroma() -> ChromaVectorStore:
    client = chromadb.PersistentClient(
        tempfile.mkdtemp(), settings=chromadb.Settings(anonymized_telemetry=False)
    )
    return ChromaVectorStore(chroma_collection=client.create_collection("notes"))


class SlowStore(SimpleVectorStore):
    def query(self, *given: Any, **kwargs: Any):
        time.sleep(0.3)
        return super().query(*given, **kwargs)


def steps(ours: bool, llm: Any = None):
    if ours:
        contexts = (
            ContextualNodePostprocessor("llm", llm=llm, cache=False)
            if llm
            else ContextualNodePostprocessor()
        )
        return [HeadingAwareMarkdownNodeParser(min_section_size=50), contexts]
    return [SentenceSplitter(), *([TitleExtractor(llm=llm)] if llm else [])]


class Failing(MockLLM):
    def complete(self, *_given: Any, **_kwargs: Any):
        raise OSError("the model is away")

    chat = complete

    async def acomplete(self, *given: Any, **kwargs: Any):
        return self.complete(*given, **kwargs)

    achat = acomplete


def nested(ours: bool):
    cls = (
        (lambda: ContextualVectorRetriever(index(), filters=NESTED))
        if ours
        else lambda: index().as_retriever(filters=NESTED)
    )
    return refusal(lambda: names(cls().retrieve("carrots")))


compared = comparison(stock_class=False, our_class=True)


@compared(ours=["freeze", "budget"], stock=["freeze", "freeze"], differs="fusion-weights")
def test_21444_weights_count_in_reciprocal_rank(ours: bool):
    """Return the first hit if one of two retrievers has all the weight; their first hits differ."""
    retrievers = [
        ContextualBM25Retriever([notes()[number] for number in numbers])
        for numbers in ((0, 4), (3, 5))
    ]
    cls = ContextualFusionRetriever if ours else QueryFusionRetriever
    given = {
        "llm": MockLLM(),
        "num_queries": 1,
        "mode": "reciprocal_rerank",
        "similarity_top_k": 6,
        "use_async": False,
    }
    fusions = [cls(retrievers, retriever_weights=weights, **given) for weights in ([9, 1], [1, 9])]
    return [ids(fusion.retrieve("carrots and the budget"))[0] for fusion in fusions]


@compared(
    ours=["dog"],
    stock=["budget", "cat", "dog", "freeze", "gateway", "meeting"],
    differs="bm25-filters",
)
def test_22897_nodes_that_a_filter_leaves_out_stay_out(ours: bool):
    cls = ContextualBM25Retriever if ours else BM25Retriever
    return names(cls(nodes=notes(), similarity_top_k=6, filters=NET).retrieve("carrots"))


@compared(ours="['cat']", stock="ValueError", differs="bm25-chroma")
def test_20601_bm25_over_an_index_on_chroma(ours: bool):
    """Search an index on Chroma, which keeps no document store, with the keyword retriever."""
    storage = StorageContext.from_defaults(vector_store=chroma())
    plain = [node.model_copy(update={"metadata": {}}) for node in notes()]
    on_chroma = VectorStoreIndex(plain, storage_context=storage, embed_model=EMBEDDING)
    cls = ContextualBM25Retriever if ours else BM25Retriever
    return refusal(
        lambda: ids(cls.from_defaults(index=on_chroma, similarity_top_k=1).retrieve("sofa"))
    )


@compared(ours="goes on", stock="stands", differs="vector-async")
def test_21159_a_question_does_not_stop_the_event_loop(ours: bool):
    """Return what the event loop does while a store is queried."""
    storage = StorageContext.from_defaults(vector_store=SlowStore())
    slow = VectorStoreIndex(notes(), storage_context=storage, embed_model=EMBEDDING)
    retriever = ContextualVectorRetriever(slow) if ours else slow.as_retriever()

    async def ask() -> str:
        question = asyncio.create_task(retriever.aretrieve("carrots"))
        for _ in range(5):
            await asyncio.sleep(0.01)
        said = "stands" if question.done() else "goes on"
        await question
        return said

    return asyncio.run(ask())


@compared(ours=1, stock=2, differs="lasting-ids")
def test_13162_a_second_run_stores_nothing_twice(ours: bool):
    """Return how many vectors of a chunk remain after two runs without a document store."""
    store = chroma()
    for _ in range(2):
        line = IngestionPipeline(transformations=[*steps(ours), EMBEDDING], vector_store=store)
        line.run(documents=[Document(id_="page", text=PAGE)])
    return store.client.count()


@compared(ours=1, stock=0, differs="extractor-upsert")
def test_22639_a_model_that_fails_in_an_upsert_loses_no_document(ours: bool):
    """Return how many vectors a document has after an upsert during which the model failed."""
    store, docstore = SimpleVectorStore(), SimpleDocumentStore()
    given = {
        "docstore": docstore,
        "vector_store": store,
        "docstore_strategy": DocstoreStrategy.UPSERTS,
    }
    for model, text in ((None, PAGE), (Failing(), f"{PAGE}\nOne line more.\n")):
        line = IngestionPipeline(transformations=[*steps(ours, model), EMBEDDING], **given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refusal(
                lambda line=line, text=text: line.run(documents=[Document(id_="page", text=text)])
            )
    return len(store.data.embedding_dict)


@compared(
    ours=(True, ["Gateway", "Gateway > Retries"], True),
    stock=(False, ["/", "/Gateway/"], True),
    differs="size",
)
def test_21213_headers_and_size_both(ours: bool):
    """Return the most words of a chunk, the header paths, and whether the offsets are right."""
    document = Document(text=LONG)
    nodes = (HeadingAwareMarkdownNodeParser(chunk_size=100) if ours else MarkdownNodeParser())(
        [document]
    )
    sizes = max(len(node.text.split()) for node in nodes)
    exact = all(LONG[node.start_char_idx : node.end_char_idx] == node.text for node in nodes)
    return sizes <= 100, sorted({node.metadata["header_path"] for node in nodes}), exact


@compared(ours="['dog']", stock="ValueError", differs="filters-nested")
def test_20424_filters_within_filters(kind):
    return nested(kind)


def test_the_page_of_known_issues_names_each_of_these_threads():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "known-issues.md").read_text("utf-8")
    threads = [name.split("_")[1] for name in globals() if re.match(r"test_\d+_", name)]
    assert len(threads) == 8
    assert [thread for thread in threads if thread not in page] == []
