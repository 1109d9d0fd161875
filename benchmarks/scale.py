"""How an index of a folder grows: building, memory, disk, questions, the refresh of one document, opening.

    python benchmarks/scale.py --sizes 1000 3000 10000 30000 100000 --minutes 20

Each size is indexed as a user does it, by `ContextualIndex.refresh` over a folder of real pages (Kubernetes
documentation); beyond what exists they are repeated with a third of the longer words exchanged for others of the
corpus. Vectors are the sum of a seeded direction for each word (384 numbers): alike texts have alike vectors, and
nothing is spent on a model; `--real` takes those of the local embedding, to compare with. Building and asking are two
processes of their own for each size. A size is not begun when it would not fit into the minutes any more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import RememberingEmbedding, machine, markdown_table
from datasets import kubernetes_docs
from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.app import ContextualIndex, LocalEmbedding
from llama_index_contextual.app.index.settings import default_parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORD = re.compile(r"[a-z]{5,}")
CHUNKS_A_PAGE = 17.5  # of these pages with the defaults, to begin with; the table counts what came out
QUESTIONS, WARM = 300, 20
DIMENSIONS = 384
DIRECTIONS = np.random.default_rng(0).standard_normal((16_384, DIMENSIONS), dtype=np.float32)


class OfWords(BaseEmbedding):
    """A text's vector is the sum of a seeded direction for each of its words."""

    def _get_text_embedding(self, text: str) -> list[float]:
        words = [zlib.crc32(word.encode()) % len(DIRECTIONS) for word in set(WORD.findall(text.lower()))]
        vector = DIRECTIONS[words or [0]].sum(0)
        return (vector / np.linalg.norm(vector)).tolist()  # type: ignore[no-any-return]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def open_at(folder: Path, *, real: bool) -> ContextualIndex:
    """Open the index of a folder."""
    embedding = RememberingEmbedding() if real else OfWords(model_name="of-words", embed_batch_size=256)
    return ContextualIndex.open(
        folder,
        embed_model=embedding,
        node_parser=default_parser(LocalEmbedding()),
    )


def pages(count: int) -> Iterator[tuple[str, str]]:
    """Paths and texts of real pages; beyond what exists, with words exchanged for others of the corpus."""
    found = [(document.metadata["path"], document.text) for document in kubernetes_docs().documents[""]]
    random.Random(0).shuffle(found)  # noqa: S311  no secret; the pages with answers come first, and are long
    for number, text in enumerate(repeated([text for _, text in found], count)):
        turn, path = number // len(found), found[number % len(found)][0]
        yield (f"{turn}/{path}" if turn else path), text


def repeated(texts: list[str], count: int) -> Iterator[str]:
    """So many texts; beyond what exists, with words exchanged for others of them."""
    words = [word for text in texts[:200] for word in WORD.findall(text)]
    for number in range(count):
        text = texts[number % len(texts)]
        if number >= len(texts):
            draw = random.Random(number)  # noqa: S311  no secret
            text = WORD.sub(lambda found: draw.choice(words) if draw.random() < 1 / 3 else found.group(), text)  # noqa: B023
        yield text


def write_pages(folder: Path, count: int) -> None:
    """Write pages; not in the process that indexes them, whose memory is measured."""
    for path, text in pages(count):
        target = folder / path
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, "utf-8")


def build(folder: Path, *, real: bool) -> dict[str, float]:
    """Index the pages of a folder; return what that took."""
    began, worked = time.perf_counter(), time.process_time()
    with open_at(folder, real=real) as index:
        report = index.refresh()
        took, cpu = time.perf_counter() - began, time.process_time() - worked
        parts = ("index.sqlite3*", "paid.sqlite3*", "cache")
        sizes = {name: bytes_below(index.storage, name) / 1e6 for name in parts}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"chunks": report.chunks, "build": took, "build_cpu": cpu, "build_peak": peak, **sizes}


def ask(folder: Path, *, real: bool) -> dict[str, float]:
    """Open an index, ask questions, then change one page; return what that took."""
    questions = [question.text for question in kubernetes_docs().questions]
    random.Random(0).shuffle(questions)  # noqa: S311  no secret
    before = resident()
    began = time.perf_counter()
    with open_at(folder, real=real) as index:
        retriever = index.as_retriever()
        retriever.retrieve(questions[0])
        opened = time.perf_counter() - began
        times = []
        for question in questions[: WARM + QUESTIONS]:
            started = time.perf_counter()
            retriever.retrieve(question)
            times.append((time.perf_counter() - started) * 1000)
        cuts = statistics.quantiles(times[WARM:], n=100)
        asked = resident()
        page = min(folder.rglob("*.md"))
        refreshes = []
        for turn in range(3):
            text = page.read_text("utf-8")
            page.write_text(f"{text}\n\nOne more line, number {turn}.\n", "utf-8")
            started = time.perf_counter()
            index.refresh()
            refreshes.append(time.perf_counter() - started)
        started = time.perf_counter()
        index.refresh()
        idle = time.perf_counter() - started
    return {
        "open": opened, "p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "rss": asked, "before": before,
        "refresh": statistics.median(refreshes), "nothing": idle,
    }  # fmt: skip


def bytes_below(folder: Path, name: str = "*") -> int:
    """Size of all files of a folder, or of those things in it that have a name."""
    tops = list(folder.glob(name))
    files = (file for top in tops for file in (top, *top.rglob("*")) if file.is_file())
    return sum(file.stat().st_size for file in files)


def resident() -> float:
    """MiB that this process holds."""
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text("ascii"))
    return int(found.group(1)) / 1024 if found else math.nan


def apart(step: str, folder: str, *options: str) -> dict[str, float]:
    """Do one step in a process of its own."""
    command = [sys.executable, __file__, "--step", step, "--folder", folder, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


COLUMNS = {
    "build": ("build, s", ",.0f"), "build_cpu": ("of it CPU, s", ",.0f"), "build_peak": ("peak of memory, MiB", ",.0f"),
    "index.sqlite3*": ("index.sqlite3, MB", ",.0f"), "paid.sqlite3*": ("paid.sqlite3, MB", ",.0f"),
    "cache": ("cache, MB", ",.0f"),
    "open": ("open and first answer, s", ".2f"), "p50": ("question p50, ms", ".1f"),
    "p95": ("p95, ms", ".1f"), "p99": ("p99, ms", ".1f"), "rss": ("memory of a reader, MiB", ",.0f"),
    "refresh": ("refresh of one page, s", ".2f"), "nothing": ("refresh of nothing, s", ".2f"),
}  # fmt: skip


def table(results: list[dict[str, float]], columns: dict[str, tuple[str, str]]) -> str:
    """A row a figure, a column a size, and the exponent of growth between the two largest and from the second on."""
    header = ["chunks", *(f"{one['chunks']:,.0f}" for one in results), "grows with chunks to the power of"]
    rows = []
    for key, (name, form) in columns.items():
        grown = results[1:] if len(results) > 2 else results
        sizes, values = [math.log(one["chunks"]) for one in grown], [math.log(max(one[key], 1e-9)) for one in grown]
        slope = f"{statistics.linear_regression(sizes, values).slope:.2f}" if len(grown) > 1 else ""
        rows.append([name, *(format(one[key], form) for one in results), slope])
    return markdown_table(header, rows)


def main() -> None:
    """Measure each size and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 3000, 10_000, 30_000, 100_000], help="chunks")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--real", action="store_true", help="vectors of the local embedding")
    parser.add_argument("--step", choices=["build", "ask"], help="what a process of its own does")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    options = {"real": given.real}
    if given.step:
        steps: dict[str, Callable[[], dict[str, float]]] = {
            "build": lambda: build(given.folder, **options),
            "ask": lambda: ask(given.folder, **options),
        }
        print(json.dumps(steps[given.step]()))
        return
    real = ["--real"] if given.real else []
    began, results = time.monotonic(), list[dict[str, float]]()
    for size in given.sizes:
        spent, last = time.monotonic() - began, results[-1] if results else {}
        if last and spent + last["all"] * size / last["chunks"] > given.minutes * 60:
            print(f"{size:,} chunks would not fit into {given.minutes:g} minutes")
            break
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            write_pages(Path(folder), max(1, round(size / CHUNKS_A_PAGE)))
            one = apart("build", folder, *real)
            one |= apart("ask", folder, *real)
            results.append({**one, "all": time.monotonic() - started})
            print(json.dumps(results[-1]), flush=True)
    print(f"\n{machine()}; load {os.getloadavg()[1]:.1f}\n\n{table(results, COLUMNS)}")


if __name__ == "__main__":
    main()
