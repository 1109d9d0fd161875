"""What goes wrong in hybrid pipelines by LlamaIndex's own threads: the table of the README, stock beside ours.

``run`` is called with ``False`` for the stock classes, and with ``True`` for ours. The threads are named by their
number in run-llama/llama_index.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import chromadb
import pytest
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
from side_by_side import Case, compare, refusal

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


def by_weight(ours: bool):
    """The first hit where all the weight is on either arm, of which each has another first."""
    arms = [
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
    fusions = [cls(arms, retriever_weights=weights, **given) for weights in ([9, 1], [1, 9])]
    return [ids(fusion.retrieve("carrots and the budget"))[0] for fusion in fusions]


def filtered(ours: bool):
    cls = ContextualBM25Retriever if ours else BM25Retriever
    return names(cls(nodes=notes(), similarity_top_k=6, filters=NET).retrieve("carrots"))


def over_chroma(ours: bool):
    """The keyword arm of an index on Chroma, which keeps no document store."""
    storage = StorageContext.from_defaults(vector_store=chroma())
    plain = [node.model_copy(update={"metadata": {}}) for node in notes()]
    on_chroma = VectorStoreIndex(plain, storage_context=storage, embed_model=EMBEDDING)
    cls = ContextualBM25Retriever if ours else BM25Retriever
    return refusal(
        lambda: ids(cls.from_defaults(index=on_chroma, similarity_top_k=1).retrieve("sofa"))
    )


class SlowStore(SimpleVectorStore):
    def query(self, *given: Any, **kwargs: Any):
        time.sleep(0.3)
        return super().query(*given, **kwargs)


def loop_runs_meanwhile(ours: bool):
    """What the event loop does while a store is asked."""
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


def steps(ours: bool, llm: Any = None):
    if ours:
        contexts = (
            ContextualNodePostprocessor("llm", llm=llm, cache=False)
            if llm
            else ContextualNodePostprocessor()
        )
        return [HeadingAwareMarkdownNodeParser(min_section_size=50), contexts]
    return [SentenceSplitter(), *([TitleExtractor(llm=llm)] if llm else [])]


def second_run(ours: bool):
    """How many vectors of one chunk two runs leave where nobody keeps a document store."""
    store = chroma()
    for _ in range(2):
        line = IngestionPipeline(transformations=[*steps(ours), EMBEDDING], vector_store=store)
        line.run(documents=[Document(id_="page", text=PAGE)])
    return store.client.count()


class Failing(MockLLM):
    def complete(self, *_given: Any, **_kwargs: Any):
        raise OSError("the model is away")

    chat = complete

    async def acomplete(self, *given: Any, **kwargs: Any):
        return self.complete(*given, **kwargs)

    achat = acomplete


def failed_upsert(ours: bool):
    """How many vectors a document has after an upsert during which the model failed."""
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


def headers_and_size(ours: bool):
    """The most words of a chunk, the chunks' header paths, and whether their offsets are right."""
    document = Document(text=LONG)
    nodes = (HeadingAwareMarkdownNodeParser(chunk_size=100) if ours else MarkdownNodeParser())(
        [document]
    )
    sizes = max(len(node.text.split()) for node in nodes)
    exact = all(LONG[node.start_char_idx : node.end_char_idx] == node.text for node in nodes)
    return sizes <= 100, sorted({node.metadata["header_path"] for node in nodes}), exact


def nested(ours: bool):
    cls = (
        (lambda: ContextualVectorRetriever(index(), filters=NESTED))
        if ours
        else lambda: index().as_retriever(filters=NESTED)
    )
    return refusal(lambda: names(cls().retrieve("carrots")))


CASES = [
    Case(
        "21444: weights count in reciprocal rank",
        by_weight,
        ["freeze", "budget"],
        ["freeze", "freeze"],
        "fusion-weights",
    ),
    Case(
        "22897: nodes that a filter leaves out stay out",
        filtered,
        ["dog"],
        ["budget", "cat", "dog", "freeze", "gateway", "meeting"],
        "bm25-filters",
    ),
    Case(
        "20601: BM25 over an index on Chroma", over_chroma, "['cat']", "ValueError", "bm25-chroma"
    ),
    Case(
        "21159: a question does not stop the event loop",
        loop_runs_meanwhile,
        "goes on",
        "stands",
        "vector-async",
    ),
    Case("13162: a second run stores nothing twice", second_run, 1, 2, "lasting-ids"),
    Case(
        "22639: a model that fails in an upsert loses no document",
        failed_upsert,
        1,
        0,
        "extractor-upsert",
    ),
    Case(
        "21213: headers and size, both",
        headers_and_size,
        (True, ["Gateway", "Gateway > Retries"], True),
        (False, ["/", "/Gateway/"], True),
        "size",
    ),
    Case("20424: filters within filters", nested, "['dog']", "ValueError", "filters-nested"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_known_threads(case):
    compare(case, False, True)  # noqa: FBT003


def test_the_readme_names_each_of_these_threads():
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    assert [
        case.name.split(":")[0] for case in CASES if f"#{case.name.split(':')[0]}" not in readme
    ] == []
