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
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

import bm25s
from common import machine, markdown_table
from datasets import kubernetes_docs
from hybrids import TOP_K, chunks, fill, fill_index, ours, stock, store_in
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.retrieval import stored_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_index.core.retrievers import BaseRetriever

ROWS = ("p50", "p95", "CPU time")


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
    """Times of ours, of ours by reciprocal ranks, of stock, and of stock whose arms propose 100 each."""
    store = store_in(folder)
    keyword = BM25Retriever(nodes=stored_nodes(store), similarity_top_k=TOP_K)
    gc.collect()  # neither system keeps the nodes; a heap full of them would make every garbage collection slow
    three = [ours(folder), ours(folder, mode="reciprocal_rerank"), stock(store, keyword)]
    times = list(query_times(three, queries))
    twin = BM25Retriever(existing_bm25=keyword.bm25, similarity_top_k=100)
    twin.corpus = keyword.corpus  # an index that was not read from a file has none
    return [*times, *query_times([stock(store, twin, 100)], queries[:200])]


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
            apart(_fill_with, folder, size)
            mine, ranks, theirs, pool = apart(measure, folder, queries)
        for name, other in (("stock", theirs), ("stock, 100 an arm", pool), ("ours by reciprocal ranks", ranks)):
            cells = [f"{one:.1f} / {two:.1f} ms = {one / two:.2f}" for one, two in zip(mine, other, strict=True)]
            rows.append([f"{size:,}", f"ours / {name}", *cells])
        print(f"{machine()}, bm25s {bm25s.__version__}\n\n{markdown_table(['chunks', '', *ROWS], rows)}\n", flush=True)


def _fill_with(folder: str, size: int) -> None:
    fill(folder, chunks(size))
    fill_index(folder)


if __name__ == "__main__":
    main()
