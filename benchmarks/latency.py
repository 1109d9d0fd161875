"""How fast: our hybrid retrieval against LlamaIndex's own, in the same run.

    python benchmarks/latency.py --sizes 1000 10000 100000

Real pages are chunked; beyond what exists they are repeated with changed words. Vectors are synthetic (unit length,
384 dimensions), so that times are those of retrieval beyond the query's embedding. Ours is ``index.as_retriever()`` of
an index of the same chunks; stock searches a persistent collection of Chroma. Queries alternate between the systems in
one process. Times depend on the machine and on what else runs there: only the ratios are claims.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bm25s
import chromadb
import numpy as np
from common import machine, markdown_table
from datasets import kubernetes_docs
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import TextNode
from llama_index.core.utils import iter_batch
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual import (
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    HeadingAwareMarkdownNodeParser,
)
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index import RefreshReport
from llama_index_contextual.app.index.writer import writing
from llama_index_contextual.app.store.rows import Chunk, DocumentRow
from llama_index_contextual.retrieval import stored_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_index.core.retrievers import BaseRetriever

ROWS = ("p50", "p95", "CPU time")
DIMENSIONS = 384
TOP_K = 10
WORD = re.compile(r"[a-z]{5,}")


class Synthetic(BaseEmbedding):
    """A unit vector for each query, the same one every time."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return unit_vectors(1, seed=sum(query.encode()))[0].tolist()  # type: ignore[no-any-return]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_query_embedding(text)


def unit_vectors(count: int, seed: int) -> Any:
    """Random directions, one a row."""
    vectors = np.random.default_rng(seed).normal(size=(count, DIMENSIONS)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def chunks(count: int) -> list[TextNode]:
    """Chunks of real pages with heading context; beyond what exists, repeated with a third of the words changed."""
    parser = HeadingAwareMarkdownNodeParser(chunk_size=256, chunk_overlap=0)
    nodes = ContextualNodePostprocessor(context="headings")(
        parser.get_nodes_from_documents(kubernetes_docs(min(1568, max(40, count // 4))).documents[""])
    )
    turns = ((nodes[number % len(nodes)], number // len(nodes)) for number in range(count))
    return [_changed(node, turn) for node, turn in turns if isinstance(node, TextNode)]


def _changed(node: TextNode, turn: int) -> TextNode:
    if not turn:
        return node
    rng = random.Random(f"{node.node_id}{turn}")  # noqa: S311  no secret
    text = WORD.sub(lambda match: f"{match.group()}{turn}" if rng.random() < 1 / 3 else match.group(), node.text)
    return node.model_copy(update={"id_": f"{node.node_id}-{turn}", "text": text})


def store_in(folder: str) -> ChromaVectorStore:
    """The collection in a folder."""
    client = chromadb.PersistentClient(folder, chromadb.Settings(anonymized_telemetry=False))
    return ChromaVectorStore(chroma_collection=client.get_or_create_collection("chunks"))


def fill(folder: str, size: int) -> None:
    """Put chunks into Chroma with synthetic vectors, and make an index of them with vectors of the same kind."""
    nodes, store = chunks(size), store_in(folder)
    for start in range(0, len(nodes), 2000):
        part = nodes[start : start + 2000]
        vectors = unit_vectors(len(part), seed=start)
        store.add([n.model_copy(update={"embedding": v.tolist()}) for n, v in zip(part, vectors, strict=True)])

    pages = Path(folder, "pages")
    pages.mkdir()
    documents: dict[str, list[Chunk]] = {}
    for node in stored_nodes(store):
        documents.setdefault(str(node.ref_doc_id), []).append(Chunk.of(node))
    settings = {"embed_model": Synthetic(), "context": "off"}
    with ContextualIndex.open(pages, **settings) as index, writing(index._reader) as writer:  # noqa: SLF001
        made_with = index.settings.made_with
        rows = [(DocumentRow(key, "document", key, "", made_with(key), len(c)), c) for key, c in documents.items()]
        for part in iter_batch(rows, 200):
            writer.write(part, RefreshReport(), lambda _: None)
        writer.finish()


def ours(folder: str, mode: str = "learned") -> ContextualFusionRetriever:
    """The retriever of that index, as a user gets it."""
    index = ContextualIndex.open(Path(folder, "pages"), embed_model=Synthetic())
    return index.as_retriever(TOP_K, mode=mode)


def stock(store: ChromaVectorStore, keyword: BM25Retriever) -> QueryFusionRetriever:
    """LlamaIndex's; each arm proposes as many as are returned."""
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex([], storage_context=context, embed_model=Synthetic())
    return QueryFusionRetriever(
        [index.as_retriever(similarity_top_k=TOP_K), keyword],
        llm=MockLLM(),
        num_queries=1,
        use_async=False,
        mode="reciprocal_rerank",  # type: ignore[arg-type]
        similarity_top_k=TOP_K,
    )


def query_times(retrievers: list[BaseRetriever], queries: list[str]) -> Iterator[tuple[float, float, float]]:
    """p50, p95 and mean CPU time of each; queries alternate between them, so that a busy machine is busy for all.

    CPU time (of all threads, Chroma's too) is what remains comparable where other programs compete for the cores.
    """
    for retriever in retrievers:
        for query in queries[:20]:
            retriever.retrieve(query)
    times: list[list[float]] = [[] for _ in retrievers]
    worked = [0.0] * len(retrievers)
    for turn, query in enumerate(queries):
        # Taking turns at going first: who comes after a heavy one waits for the scheduler.
        for number in sorted(range(len(retrievers)), key=lambda one: (one + turn) % len(retrievers)):
            retriever = retrievers[number]
            start, used = time.perf_counter(), time.process_time()
            retriever.retrieve(query)
            times[number].append((time.perf_counter() - start) * 1000)
            worked[number] += (time.process_time() - used) * 1000
    for found, work in zip(times, worked, strict=True):
        yield statistics.median(found), statistics.quantiles(found, n=20)[-1], work / len(queries)


def measure(folder: str, queries: list[str]) -> list[tuple[float, float, float]]:
    """Times of ours, of ours by reciprocal ranks, and of stock."""
    store = store_in(folder)
    keyword = BM25Retriever(nodes=stored_nodes(store), similarity_top_k=TOP_K)
    gc.collect()  # neither system keeps the nodes; a heap full of them would make every garbage collection slow
    three = [ours(folder), ours(folder, mode="reciprocal_rerank"), stock(store, keyword)]
    return list(query_times(three, queries))


def apart(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments, named)


def main() -> None:
    """Measure each size and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    queries, rows = [question.text for question in kubernetes_docs(1).questions], list[list[object]]()
    for size in parser.parse_args().sizes:
        with tempfile.TemporaryDirectory() as folder:
            apart(fill, folder, size)
            mine, ranks, theirs = apart(measure, folder, queries)
        for name, other in (("stock", theirs), ("ours by reciprocal ranks", ranks)):
            cells = [f"{one:.1f} / {two:.1f} ms = {one / two:.2f}" for one, two in zip(mine, other, strict=True)]
            rows.append([f"{size:,}", f"ours / {name}", *cells])
        print(f"{machine()}, bm25s {bm25s.__version__}\n\n{markdown_table(['chunks', '', *ROWS], rows)}\n", flush=True)


if __name__ == "__main__":
    main()
