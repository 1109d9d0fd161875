"""How an index of a folder grows.

Building, memory, disk, questions, the refresh of one document, opening.

    python benchmarks/scale.py --sizes 1000 10000 100000 python benchmarks/scale.py --folder FOLDER
    # a folder as it is, by the local embedding

Each size is indexed as a user does it, by `ContextualIndex.refresh` over a folder of real pages
(Kubernetes documentation); beyond what exists they are repeated with a third of the longer words
exchanged for others of the corpus. Vectors are the sum of a seeded direction for each word (384
numbers): alike texts have alike vectors, and nothing is spent on a model. Building and asking are
two processes of their own for each size.

Where ``LLAMA_INDEX_CONTEXTUAL_CORPUS`` names a folder with Markdown in its ``corpus/``, pages are
those, and vectors the local embedding's, here and in ``latency.py``.
"""

from __future__ import annotations

import json
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
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import RememberingEmbedding, command_line, machine, markdown_table
from datasets import kubernetes_docs, pages_of
from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.app import ContextualIndex, LocalEmbedding
from llama_index_contextual.app.index.chunking import default_parser

if TYPE_CHECKING:
    from collections.abc import Iterator

WORD = re.compile(r"[a-z]{5,}")
CORPUS = os.environ.get("LLAMA_INDEX_CONTEXTUAL_CORPUS", "")
CHARACTERS = 540  # a chunk with the defaults has about so many; the table counts what came out
QUESTIONS, WARM = 300, 20
DIRECTIONS = np.random.default_rng(0).standard_normal((16_384, 384), dtype=np.float32)
COLUMNS = {
    "build": ("build, s", ",.0f"), "build_cpu": ("of it CPU, s", ",.0f"),
    "build_peak": ("its memory, MiB", ",.0f"),
    "index.sqlite3": ("index.sqlite3, bytes a chunk", ",.0f"),
    "cache": ("cache, bytes a chunk", ",.0f"),
    "open": ("open and first answer, s", ".2f"), "open_cpu": ("of it CPU, s", ".2f"),
    "p50": ("question p50, ms", ".1f"), "p95": ("p95, ms", ".1f"),
    "rss": ("memory of a reader, MiB", ",.0f"),
    "refresh": ("refresh of one page, s", ".2f"), "nothing": ("refresh of nothing, s", ".2f"),
}  # fmt: skip


class OfWords(BaseEmbedding):
    """A text's vector is the sum of a seeded direction for each of its words."""

    def _get_text_embedding(self, text: str) -> list[float]:
        words = [
            zlib.crc32(word.encode()) % len(DIRECTIONS) for word in set(WORD.findall(text.lower()))
        ]
        vector = DIRECTIONS[words or [0]].sum(0)
        return (vector / np.linalg.norm(vector)).tolist()  # type: ignore[no-any-return]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


EMBEDDING = (
    RememberingEmbedding() if CORPUS else OfWords(model_name="of-words", embed_batch_size=256)
)


def open_at(folder: Path) -> ContextualIndex:
    """Return the index of a folder of pages of :func:`write_pages`."""
    return ContextualIndex.open(
        folder, embed_model=EMBEDDING, node_parser=default_parser(LocalEmbedding())
    )


def pages() -> Iterator[tuple[str, str]]:
    """Paths and texts of real pages.

    Beyond what exists, with words exchanged for others of the corpus, without end.
    """
    found = [
        (document.metadata["path"], document.text)
        for document in pages_of(CORPUS or "kubernetes-docs")
    ]
    random.Random(0).shuffle(found)  # noqa: S311  no secret; the pages with answers come first, and are long
    words = [word for _, text in found[:200] for word in WORD.findall(text)]
    for number in count():
        turn, (path, text) = number // len(found), found[number % len(found)]
        if turn:
            draw = random.Random(number)  # noqa: S311  no secret
            text = WORD.sub(
                lambda one: draw.choice(words) if draw.random() < 1 / 3 else one.group(),  # noqa: B023
                text,  # noqa: B023, RUF100
            )
        yield (f"{turn}/{path}" if turn else path), text


def write_pages(folder: Path, size: int) -> None:
    """Write pages of about so many chunks into a folder."""
    left = size * CHARACTERS
    for path, text in pages():
        (folder / path).parent.mkdir(exist_ok=True, parents=True)
        (folder / path).write_text(text, "utf-8")
        left -= len(text)
        if left <= 0:
            return


def build(opened: ContextualIndex) -> dict[str, float]:
    """Index a folder; what that took."""
    began, worked = time.perf_counter(), time.process_time()
    with opened as index:
        chunks = index.refresh().chunks
        took, cpu = time.perf_counter() - began, time.process_time() - worked
    sizes = {name: size / chunks for name, size in index.settings.layout.sizes().items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"chunks": chunks, "build": took, "build_cpu": cpu, "build_peak": peak, **sizes}


def ask(folder: Path) -> dict[str, float]:
    """Open an index, ask questions, then change one page; what that took."""
    questions = [question.text for question in kubernetes_docs().questions]
    random.Random(0).shuffle(questions)  # noqa: S311  no secret
    began, worked = time.perf_counter(), time.process_time()
    with open_at(folder) as index:
        retriever = index.as_retriever()
        retriever.retrieve(questions[0])
        opened, cpu = time.perf_counter() - began, time.process_time() - worked
        times, refreshes = list[float](), list[float]()
        for question in questions[: WARM + QUESTIONS]:
            started = time.perf_counter()
            retriever.retrieve(question)
            times.append((time.perf_counter() - started) * 1000)
        [status] = re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text("ascii"))
        page = min(folder.rglob("*.md"))
        for turn in range(4):
            if turn < 3:
                page.write_text(
                    f"{page.read_text('utf-8')}\n\nOne more line, number {turn}.\n", "utf-8"
                )
            started = time.perf_counter()
            index.refresh()
            refreshes.append(time.perf_counter() - started)
    cuts = statistics.quantiles(times[WARM:], n=20)
    figures = {
        "open": opened,
        "open_cpu": cpu,
        "p50": cuts[9],
        "p95": cuts[94],
        "p99": cuts[98],
        "rss": int(status) / 1024,
    }
    return {**figures, "refresh": statistics.median(refreshes[:3]), "nothing": refreshes[3]}


def main() -> None:
    """Measure each size and print a table."""
    options = command_line(__doc__, sizes=[1000, 10_000, 100_000], folder=Path, step=str)
    if options.folder and not options.step:
        with tempfile.TemporaryDirectory() as storage:
            print(json.dumps(build(ContextualIndex.open(options.folder, storage=storage))))
        return
    if options.step:
        print(
            json.dumps(
                ask(options.folder) if options.step == "ask" else build(open_at(options.folder))
            )
        )
        return
    results = list[dict[str, float]]()
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            write_pages(Path(folder), size)
            figures: dict[str, float] = {}
            for step in ("build", "ask"):
                command = [sys.executable, __file__, "--step", step, "--folder", folder]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
                figures |= json.loads(done.stdout.splitlines()[-1])
            results.append(figures)
            print(json.dumps(figures), flush=True)
    rows = [
        [name, *(format(one[key], form) for one in results)]
        for key, (name, form) in COLUMNS.items()
    ]
    header = ["chunks", *(f"{one['chunks']:,.0f}" for one in results)]
    print(f"\n{machine()}; load {os.getloadavg()[1]:.1f}\n\n{markdown_table(header, rows)}")


if __name__ == "__main__":
    main()
