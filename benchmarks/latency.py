"""Compare the speed of this package's hybrid retrieval with LlamaIndex's own, in the same run.

    python benchmarks/latency.py --sizes 1000 10000 100000

Pages, chunks and vectors are those of ``scale.py``. "Ours" is ``index.as_retriever()``, "by ranks"
the same by reciprocal ranks; stock searches a persistent collection of Chroma with the same chunks
and vectors. Queries come with their vectors and alternate between the systems. Each query is asked
twice in a row: "first" is the first time, "repeated" the second. Times depend on the machine and on
what else runs there, so compare the ratios. "True ten" is the share of the ten nearest chunks, by
comparing all of them, that the vector retriever has among its ten.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import chromadb
import numpy as np
from common import command_line, in_fresh_process, machine, markdown_table, stock_hybrid
from datasets import kubernetes_docs
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import MetadataMode, QueryBundle
from llama_index.core.utils import iter_batch
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.chroma import ChromaVectorStore
from scale import EMBEDDING, open_at, write_pages

from llama_index_contextual.retrievers.any_store import stored_nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.retrievers import BaseRetriever

TOP_K: Final = 10
WARM_UP: Final = 20  # queries before the first that counts; they are not among the others
TIMES: Final = ("first", "repeated")


class Speed(NamedTuple):
    """How long a retriever takes for a query, in milliseconds.

    CPU time is that of all threads, Chroma's included. It stays comparable where other programs
    compete for the cores.
    """

    median: float
    percentile_95: float
    cpu: float


def store_in(folder: Path) -> ChromaVectorStore:
    """Return the collection of an index."""
    client = chromadb.PersistentClient(
        str(folder / ".chroma"), chromadb.Settings(anonymized_telemetry=False)
    )
    return ChromaVectorStore(chroma_collection=client.get_or_create_collection("chunks"))


def fill(folder: Path, size: int) -> int:
    """Make an index of pages, copy its vectors into Chroma, and return how many."""
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


def query_speeds(
    retrievers: Sequence[BaseRetriever], queries: Sequence[QueryBundle]
) -> list[dict[str, Speed]]:
    """Return for each retriever its speed for first and for repeated queries.

    Queries alternate between the retrievers, so that a busy machine is busy for all, and the
    retrievers take turns at going first, because what follows a heavy query waits for the
    scheduler.
    """
    for retriever in retrievers:
        for query in queries[:WARM_UP]:
            retriever.retrieve(query)
    samples = [{name: list[tuple[float, float]]() for name in TIMES} for _ in retrievers]
    for turn, query in enumerate(queries[WARM_UP:]):
        for place in range(len(retrievers)):
            number = (place + turn) % len(retrievers)
            for name in TIMES:
                samples[number][name].append(timed(retrievers[number], query))
    return [{name: speed_of(sample[name]) for name in TIMES} for sample in samples]


def timed(retriever: BaseRetriever, query: QueryBundle) -> tuple[float, float]:
    """Return the time and the CPU time of one query, in milliseconds."""
    start = time.perf_counter()
    cpu_start = time.process_time()
    retriever.retrieve(query)
    cpu = time.process_time() - cpu_start
    return (time.perf_counter() - start) * 1000, cpu * 1000


def speed_of(sample: Sequence[tuple[float, float]]) -> Speed:
    """Return the speed that some times and CPU times make."""
    times = [milliseconds for milliseconds, _ in sample]
    cpu = statistics.fmean(milliseconds for _, milliseconds in sample)
    return Speed(statistics.median(times), statistics.quantiles(times, n=20)[-1], cpu)


def true_ten(
    store: ChromaVectorStore, retrievers: Sequence[BaseRetriever], queries: Sequence[QueryBundle]
) -> list[float]:
    """Return the share of the ten nearest chunks that each retriever finds, in per cent.

    What is as near as the tenth counts as one of them.
    """
    stored = store._collection.get(include=["embeddings"])  # noqa: SLF001
    row_of = {node_id: row for row, node_id in enumerate(stored["ids"])}
    matrix = np.array(stored["embeddings"], np.float32)
    shares = []
    for retriever in retrievers:
        shares_of_queries = []
        for query in queries:
            cosines = matrix @ np.array(query.embedding, np.float32)
            tenth = np.sort(cosines)[-TOP_K] - 1e-5
            rows = [row_of[hit.node.node_id] for hit in retriever.retrieve(query)[:TOP_K]]
            shares_of_queries.append(np.sum(cosines[rows] >= tenth) / TOP_K)
        shares.append(100 * float(np.mean(shares_of_queries)))
    return shares


def measure(folder: Path, questions: Sequence[str]) -> tuple[list[dict[str, Speed]], list[float]]:
    """Return speeds (learned, by ranks, stock) and the true ten of both kinds of vectors."""
    queries = [
        QueryBundle(text, embedding=EMBEDDING.get_query_embedding(text)) for text in questions
    ]
    store = store_in(folder)
    index = VectorStoreIndex.from_vector_store(store, embed_model=EMBEDDING)
    stock = [
        index.as_retriever(similarity_top_k=TOP_K),
        BM25Retriever(nodes=stored_nodes(store), similarity_top_k=TOP_K),
    ]
    # neither system keeps the nodes; a heap full of them would make every garbage collection slow
    gc.collect()
    ours = [
        open_at(folder).as_retriever(TOP_K, mode=mode) for mode in ("learned", "reciprocal_rerank")
    ]
    speeds = query_speeds([*ours, stock_hybrid(stock, TOP_K)], queries)
    return speeds, true_ten(store, [ours[0].retrievers[0], stock[0]], queries)


def main() -> None:
    """Measure each size and print a table."""
    queries = [question.text for question in kubernetes_docs(1).questions]
    header = ["chunks", "queries", "", "p50", "p95", "CPU time", "true ten, %"]
    rows: list[list[object]] = []
    for size in command_line(__doc__, sizes=[1000, 10_000, 100_000]).sizes:
        with tempfile.TemporaryDirectory() as folder:
            chunks = in_fresh_process(fill, Path(folder), size)
            (ours, by_ranks, stock), shares = in_fresh_process(measure, Path(folder), queries)
        nearest = " / ".join(f"{share:.1f}" for share in shares)
        for name in TIMES:
            for label, other in (("stock", stock), ("by ranks", by_ranks)):
                cells = ratios(ours[name], other[name])
                rows.append([f"{chunks:,}", name, f"ours / {label}", *cells, nearest])
        print(f"{machine()}\n\n{markdown_table(header, rows)}\n", flush=True)


def ratios(ours: Speed, other: Speed) -> list[str]:
    """Return two speeds and their ratios as cells of a table."""
    pairs = zip(ours, other, strict=True)
    return [f"{left:.1f} / {right:.1f} ms = {left / right:.2f}" for left, right in pairs]


if __name__ == "__main__":
    main()
