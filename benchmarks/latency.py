"""How fast: our hybrid retrieval against LlamaIndex's own, in the same run.

    python benchmarks/latency.py --sizes 1000 10000 100000

Pages, chunks and vectors are those of ``scale.py``. Ours is ``index.as_retriever()``; stock searches a persistent
collection of Chroma with the same chunks and vectors. Queries have their vectors, and alternate between the systems.
Times depend on the machine and on what else runs there: only the ratios are claims. "True ten" is the share of the ten
nearest chunks, by comparing all of them, that the vector arm finds in ten.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chromadb
import numpy as np
from common import command_line, machine, markdown_table, stock_hybrid
from datasets import kubernetes_docs
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import MetadataMode, QueryBundle
from llama_index.core.utils import iter_batch
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.chroma import ChromaVectorStore
from scale import EMBEDDING, open_at, write_pages

from llama_index_contextual.retrievers.any_store import stored_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_index.core.retrievers import BaseRetriever

TOP_K = 10


def store_in(folder: Path) -> ChromaVectorStore:
    """The collection of an index."""
    client = chromadb.PersistentClient(
        str(folder / ".chroma"), chromadb.Settings(anonymized_telemetry=False)
    )
    return ChromaVectorStore(chroma_collection=client.get_or_create_collection("chunks"))


def fill(folder: Path, size: int) -> int:
    """Make an index of some pages, and put its chunks into Chroma with the same vectors; their number."""
    write_pages(folder, size)
    with open_at(folder) as index:
        index.refresh()
        nodes = index.nodes()
    store = store_in(folder)
    for part in iter_batch(nodes, 2000):
        vectors = EMBEDDING.get_text_embedding_batch(
            [node.get_content(MetadataMode.EMBED) for node in part]
        )
        for node, vector in zip(part, vectors, strict=True):
            node.embedding = vector
        store.add(part)
    return len(nodes)


def query_times(
    retrievers: list[BaseRetriever], queries: list[QueryBundle]
) -> Iterator[tuple[float, float, float]]:
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
        for number in sorted(
            range(len(retrievers)), key=lambda one: (one + turn) % len(retrievers)
        ):
            retriever = retrievers[number]
            start, used = time.perf_counter(), time.process_time()
            retriever.retrieve(query)
            times[number].append((time.perf_counter() - start) * 1000)
            worked[number] += (time.process_time() - used) * 1000
    for found, work in zip(times, worked, strict=True):
        yield statistics.median(found), statistics.quantiles(found, n=20)[-1], work / len(queries)


def true_ten(
    store: ChromaVectorStore, arms: list[BaseRetriever], queries: list[QueryBundle]
) -> Iterator[float]:
    """The share of the ten nearest that each arm finds, in per cent; what is as near as the tenth counts as one."""
    held = store._collection.get(include=["embeddings"])  # noqa: SLF001
    places, matrix = (
        {key: row for row, key in enumerate(held["ids"])},
        np.array(held["embeddings"], np.float32),
    )
    near = [matrix @ np.array(query.embedding, np.float32) for query in queries]
    for arm in arms:
        found = [
            [places[hit.node.node_id] for hit in arm.retrieve(query)[:TOP_K]] for query in queries
        ]
        pairs = zip(near, found, strict=True)
        yield 100 * float(
            np.mean(
                [np.sum(one[rows] >= np.sort(one)[-TOP_K] - 1e-5) / TOP_K for one, rows in pairs]
            )
        )


def measure(
    folder: Path, questions: list[str]
) -> tuple[list[tuple[float, float, float]], list[float]]:
    """Times of ours, of ours by reciprocal ranks, and of stock; and the true ten of our vectors and of stock's."""
    queries = [
        QueryBundle(text, embedding=EMBEDDING.get_query_embedding(text)) for text in questions
    ]
    store = store_in(folder)
    index = VectorStoreIndex.from_vector_store(store, embed_model=EMBEDDING)
    arms = [
        index.as_retriever(similarity_top_k=TOP_K),
        BM25Retriever(nodes=stored_nodes(store), similarity_top_k=TOP_K),
    ]
    gc.collect()  # neither system keeps the nodes; a heap full of them would make every garbage collection slow
    ours = [
        open_at(folder).as_retriever(TOP_K, mode=mode) for mode in ("learned", "reciprocal_rerank")
    ]
    times = list(query_times([*ours, stock_hybrid(arms, TOP_K)], queries))
    return times, list(true_ten(store, [ours[0].retrievers[0], arms[0]], queries))


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main() -> None:
    """Measure each size and print a table."""
    queries, rows = (
        [question.text for question in kubernetes_docs(1).questions],
        list[list[object]](),
    )
    for size in command_line(__doc__, sizes=[1000, 10_000, 100_000]).sizes:
        with tempfile.TemporaryDirectory() as folder:
            chunks = apart(fill, Path(folder), size)
            (mine, ranks, theirs), shares = apart(measure, Path(folder), queries)
        for name, other in (("stock", theirs), ("ours by reciprocal ranks", ranks)):
            cells = [
                f"{one:.1f} / {two:.1f} ms = {one / two:.2f}"
                for one, two in zip(mine, other, strict=True)
            ]
            nearest = " / ".join(f"{share:.1f}" for share in shares) if name == "stock" else ""
            rows.append([f"{chunks:,}", f"ours / {name}", *cells, nearest])
        header = ["chunks", "", "p50", "p95", "CPU time", "true ten, %"]
        print(f"{machine()}\n\n{markdown_table(header, rows)}\n", flush=True)


if __name__ == "__main__":
    main()
