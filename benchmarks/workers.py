"""What it gives to index with workers on Ray, on one machine.

    python benchmarks/workers.py [--pages 60] [--rounds 2] [--only e5]

The same pages are indexed by one process, and by one that reads and writes while others parse and embed. The start of
Ray and of its workers is counted, and shown beside it. The rounds take turns, so that what else the machine does falls
on all. The stores have to be the same: ids, texts, contexts, and the hashes of what is embedded.

The local model uses all cores by itself. ``e5`` embeds one text after the other in a process. ``service`` is a stand-in
that sleeps: 0.5 s for 64 texts.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from common import machine, markdown_table
from overlap import SlowService, index_pages

from llama_index_contextual.app.distributed import ray_workers
from llama_index_contextual.app.embeddings import resolve_embedding

CREWS: dict[str, int | None] = {"this process": None, "Ray, 1 embeds": 1, "Ray, 2 embed": 2, "Ray, 4 embed": 4}
KINDS = {"local": ("local", 2), "e5": ("e5", 2), "service": ("service", 4)}  # and how many processes are worth a try
STARTS: list[float] = []


def timed(start: Any) -> Any:
    """Note how long Ray and its workers take to start."""

    def call(*arguments: Any) -> None:
        began = time.perf_counter()
        start(*arguments)
        STARTS.append(time.perf_counter() - began)

    return call


ray_workers._connect = timed(ray_workers._connect)  # noqa: SLF001
ray_workers._Pools.start = timed(ray_workers._Pools.start)  # type: ignore[method-assign]  # noqa: SLF001


def index_once(model: str, count: int, embed: int | None) -> tuple[float, int, str]:
    """Index the pages with so many processes that embed; None is this process."""
    STARTS.clear()
    service = SlowService(model_name="slow", embed_batch_size=64)
    embedding = service if model == "service" else resolve_embedding(model)
    workers = None if embed is None else ray_workers.RayWorkers(parse=1, embed=embed, embed_options={"num_cpus": 0})
    return index_pages(count, embedding, workers=workers)


def main() -> None:
    """Measure each kind and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="kinds whose name holds this")
    given = parser.parse_args()
    rows = []
    for kind, (model, most) in KINDS.items():
        if given.only not in kind:
            continue
        crews = {name: embed for name, embed in CREWS.items() if (embed or 0) <= most}
        best: dict[str, tuple[float, float]] = {}
        hashes, chunks = set(), 0
        for _ in range(given.rounds):
            for name, embed in crews.items():
                took, chunks, found = index_once(model, given.pages, embed)
                best[name] = min(best.get(name, (float("inf"), 0.0)), (took, sum(STARTS)))
                hashes.add(found)
        assert len(hashes) == 1, "they differ in what they store"
        alone = best["this process"][0]
        for name, (took, start) in best.items():
            ratios = f"{alone / took:.2f} x", f"{alone / (took - start):.2f} x"
            rows.append([kind, name, chunks, took, start, *ratios])
            print(rows[-1], flush=True)
    header = ["embedding", "workers", "chunks", "seconds", "of them to start", "faster", "without the start"]
    print(f"\n{machine()}\n\n{markdown_table(header, rows)}")


if __name__ == "__main__":
    main()
