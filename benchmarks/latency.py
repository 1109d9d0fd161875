"""How fast, how large, how incremental: our hybrid retrieval against LlamaIndex's own, in the same run.

    python benchmarks/latency.py --sizes 1000 10000 30000 100000

Real pages are chunked; beyond what exists they are repeated with changed words. Vectors are synthetic (unit length,
384 dimensions), so that times are those of retrieval beyond the query's embedding. Ours is ``index.as_retriever()`` of
an index of the same chunks; stock searches a persistent collection of Chroma. Queries alternate between the systems in
one process; memory is measured in a process of its own for each. With ``--start`` the command line's ``search`` is
started instead, beside a process that only imports what a stock script for the same search imports. Times depend on the
machine and on what else runs there: only the ratios are claims.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bm25s
from common import machine, markdown_table
from datasets import kubernetes_docs
from hybrids import TOP_K, chunks, fill, fill_index, ours, stock, store_in
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual import ContextualBM25Retriever
from llama_index_contextual.retrieval import stored_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_index.core.retrievers import BaseRetriever

DOCUMENT = 8  # chunks of the document that is added and deleted


@dataclass
class Result:
    """Times in milliseconds, sizes in MiB."""

    chunks: int
    build: float
    stock_build: float
    load: float
    stock_load: float
    add: float
    delete: float
    p50: float
    p95: float
    stock_p50: float
    stock_p95: float
    stock_pool_p50: float
    stock_pool_p95: float
    cpu: float
    stock_cpu: float
    stock_pool_cpu: float
    ranks_p50: float
    ranks_cpu: float
    disk: float
    rss: float = 0.0
    stock_rss: float = 0.0


def timed(action: Callable[[], Any], repeat: int = 1) -> tuple[float, Any]:
    """The fastest of several runs in milliseconds, and what the last one gave."""
    best, value = float("inf"), None
    for _ in range(repeat):
        gc.collect()
        start = time.perf_counter()
        value = action()
        best = min(best, (time.perf_counter() - start) * 1000)
    return best, value


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


def measure(folder: str, size: int, queries: list[str]) -> Result:
    """Everything but memory, in this process."""
    store = store_in(folder)
    nodes = stored_nodes(store)
    repeat = 3 if size <= 10_000 else 1
    build, keyword = timed(lambda: ContextualBM25Retriever(nodes), repeat)
    stock_build, stock_keyword = timed(lambda: BM25Retriever(nodes=nodes, similarity_top_k=TOP_K), repeat)
    kept, stock_kept = f"{folder}/ours", f"{folder}/stock"
    keyword.persist(kept)
    stock_keyword.persist(stock_kept)
    disk = sum(path.stat().st_size for path in Path(kept).iterdir()) / 2**20
    load, keyword = timed(lambda: ContextualBM25Retriever.from_persist_dir(kept), repeat)
    stock_load, stock_keyword = timed(lambda: BM25Retriever.from_persist_dir(stock_kept), repeat)
    document = [node.model_copy(update={"id_": f"new-{number}"}) for number, node in enumerate(nodes[:DOCUMENT])]
    adds, deletes = [], []
    for _ in range(20):
        adds.append(timed(lambda: keyword.add(document))[0])
        deletes.append(timed(lambda: keyword.delete([node.node_id for node in document]))[0])
    nodes.clear()  # neither system keeps them; a heap full of them would make every garbage collection slow
    gc.collect()
    by_ranks = ours(folder, mode="reciprocal_rerank")
    mine, theirs, ranks = query_times([ours(folder), stock(store, stock_keyword), by_ranks], queries)
    (pool,) = query_times([stock(store, _twin(stock_keyword), 100)], queries[:200])
    return Result(
        size,
        build,
        stock_build,
        load,
        stock_load,
        statistics.mean(adds),
        statistics.mean(deletes),
        *mine[:2],
        *theirs[:2],
        *pool[:2],
        mine[2],
        theirs[2],
        pool[2],
        ranks[0],
        ranks[2],
        disk,
    )


def _twin(keyword: BM25Retriever) -> BM25Retriever:
    return BM25Retriever(existing_bm25=keyword.bm25, similarity_top_k=100)


def resident(folder: str, queries: list[str], *, stock_system: bool) -> float:
    """MiB that a process keeps which opened an index and answered queries."""
    if stock_system:
        retriever: Any = stock(store_in(folder), BM25Retriever.from_persist_dir(f"{folder}/stock"))
    else:
        retriever = ours(folder)
    for query in queries:
        retriever.retrieve(query)
    gc.collect()
    status = Path("/proc/self/status").read_text("ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024  # type: ignore[union-attr]


def started(folder: Path, question: str, times: int = 7) -> str:
    """Start a search on the command line, and a process that imports what a stock one needs, in turns."""
    stock_imports = "import llama_index.core, llama_index.vector_stores.chroma, llama_index.retrievers.bm25"
    commands = {
        "`llama-index-contextual search`": ["-m", "llama_index_contextual", "search", question, "-f", str(folder)],
        "stock's imports alone": ["-c", stock_imports],
    }
    wall: dict[str, list[float]] = {name: [] for name in commands}
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(times + 1):
        for name, command in commands.items():
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, capture_output=True)  # noqa: S603  our own
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if turn:  # the first fills the disk's cache
                wall[name].append(time.perf_counter() - start)
                cpu[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    rows = [[name, f"{min(wall[name]):.2f} s", f"{min(cpu[name]):.2f} s"] for name in commands]
    ratios = [min(one) / min(two) for one, two in (tuple(wall.values()), tuple(cpu.values()))]  # type: ignore[misc]
    return markdown_table(
        ["process", "least time", "least CPU time"], [*rows, ["ratio", *(f"{r:.2f}" for r in ratios)]]
    )


def apart(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments, named)


def table(results: list[Result]) -> str:
    """Ours, the stock hybrid's and the ratio."""
    header = ["chunks", *(f"{r.chunks:,}" for r in results)]

    def row(name: str, cell: Callable[[Result], str]) -> list[str]:
        return [name, *(cell(result) for result in results)]

    def ratio(mine: float, theirs: float, unit: str = "ms") -> str:
        return f"{mine:,.1f} / {theirs:,.1f} {unit} = {mine / theirs:.2f}"

    rows = [
        row("query p50, ours / stock", lambda r: ratio(r.p50, r.stock_p50)),
        row("query p95, ours / stock", lambda r: ratio(r.p95, r.stock_p95)),
        row("query p50, ours / stock with our pool of 100", lambda r: ratio(r.p50, r.stock_pool_p50)),
        row("query p95, ours / stock with our pool of 100", lambda r: ratio(r.p95, r.stock_pool_p95)),
        row("CPU time a query, ours / stock", lambda r: ratio(r.cpu, r.stock_cpu)),
        row("CPU time a query, ours / stock with our pool of 100", lambda r: ratio(r.cpu, r.stock_pool_cpu)),
        row("query p50, ours / ours by reciprocal ranks", lambda r: ratio(r.p50, r.ranks_p50)),
        row("CPU time a query, ours / ours by reciprocal ranks", lambda r: ratio(r.cpu, r.ranks_cpu)),
        row("BM25 build, ours / stock", lambda r: ratio(r.build, r.stock_build)),
        row("BM25 load, ours / stock", lambda r: ratio(r.load, r.stock_load)),
        row(
            f"add a document of {DOCUMENT} chunks, ours / ours build",
            lambda r: f"{r.add:,.1f} ms = {r.add / r.build:.2%}",
        ),
        row("delete it, ours / ours build", lambda r: f"{r.delete:,.1f} ms = {r.delete / r.build:.2%}"),
        row("resident memory, ours / stock", lambda r: ratio(r.rss, r.stock_rss, "MiB")),
        row("BM25 on disk, ours", lambda r: f"{r.disk:,.1f} MiB"),
    ]
    return markdown_table(header, rows)


def main() -> None:
    """Measure each size and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 30_000, 100_000])
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--start", type=Path, help="a folder that is indexed: measure the start of the command line")
    options = parser.parse_args()
    if options.start:
        print(f"{machine()}\n\n{started(options.start, 'How do I restart the scheduler?')}")
        return
    queries = [question.text for question in kubernetes_docs(1).questions]
    results = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            fill_time, _ = timed(lambda: apart(_fill_with, folder, size))  # noqa: B023  called at once
            result = apart(measure, folder, size, queries)
            result.rss = apart(resident, folder, queries[:100], stock_system=False)
            result.stock_rss = apart(resident, folder, queries[:100], stock_system=True)
        results.append(result)
        print(
            f"{size} chunks: Chroma filled in {fill_time / 1000:.0f} s; {asdict(result)}", file=sys.stderr, flush=True
        )
        print(f"{machine()}, bm25s {bm25s.__version__}\n\n{table(results)}\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1), "utf-8")


def _fill_with(folder: str, size: int) -> None:
    fill(folder, chunks(size))
    fill_index(folder)


if __name__ == "__main__":
    main()
