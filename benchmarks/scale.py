"""Measure how an index of a folder grows: building, memory, disk, questions, refreshing, opening.

    python benchmarks/scale.py --sizes 1000 10000 100000
    python benchmarks/scale.py --documents 10000  # so many pages, and not so many chunks
    python benchmarks/scale.py --folder FOLDER    # a folder as it is, with the local embedding

Each size is indexed as a user does it, by ``ContextualIndex.refresh`` over a folder of real pages
(the Kubernetes documentation). Beyond what exists, pages are repeated with a third of the longer
words exchanged for others of the corpus. Vectors are the sum of a seeded direction for each word
(384 numbers): similar texts have similar vectors, and no time is spent on a model. Building and
asking each have a process of their own.

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
import tempfile
import time
import zlib
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from common import (
    RememberingEmbedding,
    command_line,
    in_fresh_process,
    machine,
    markdown_table,
)
from datasets import kubernetes_docs, pages_of
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from llama_index_contextual.app import ContextualIndex, LocalEmbedding
from llama_index_contextual.app.index.chunking import default_parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from llama_index_contextual.app.settings.local import FloatArray

WORD = re.compile(r"[a-z]{5,}")
CORPUS = os.environ.get("LLAMA_INDEX_CONTEXTUAL_CORPUS", "")
CHARACTERS: Final = 540  # of a chunk with the defaults, about; the table has the real counts
WARM_UP: Final = 20
QUESTIONS: Final = 300
CHANGES: Final = 3
DIRECTIONS = np.random.default_rng(0).standard_normal((16_384, 384), dtype=np.float32)
COLUMNS: Final = {
    "documents": ("documents", ",.0f"),
    "build_cpu": ("building, CPU s", ",.0f"),
    "build_cpu_per_thousand": ("the same for 1,000 chunks", ".2f"),
    "build_peak": ("memory of building, MiB", ",.0f"),
    "index.sqlite3": ("index.sqlite3, bytes a chunk", ",.0f"),
    "cache": ("cache, bytes a chunk", ",.0f"),
    "open_cpu": ("opening and first answer, CPU s", ".2f"),
    "first_cpu": ("a question, first time, CPU ms", ".1f"),
    "repeated_cpu": ("a question, repeated, CPU ms", ".1f"),
    "p50": ("a question, first time, p50, ms", ".1f"),
    "p95": ("the same, p95, ms", ".1f"),
    "reader_memory": ("memory of a reader, MiB", ",.0f"),
    "refresh_cpu": ("refresh of one changed page, CPU s", ".2f"),
    "nothing_cpu": ("refresh without a change, CPU s", ".2f"),
}


class OfWords(BaseEmbedding):
    """Adds up a seeded direction for each word of a text."""

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
    """Yield paths and texts of real pages, then of changed ones, without end."""
    real_pages = [
        (document.metadata["path"], document.text)
        for document in pages_of(CORPUS or "kubernetes-docs")
    ]
    # The pages with answers come first, and they are long.
    random.Random(0).shuffle(real_pages)  # noqa: S311  no secret
    words = [word for _, text in real_pages[:200] for word in WORD.findall(text)]
    yield from real_pages
    for number in count(len(real_pages)):
        turn, place = divmod(number, len(real_pages))
        path, text = real_pages[place]
        yield f"{turn}/{path}", with_other_words(text, words, random.Random(number))  # noqa: S311


def with_other_words(text: str, words: list[str], draw: random.Random) -> str:
    """Return a text with a third of its longer words exchanged."""

    def exchanged(match: re.Match[str]) -> str:
        return draw.choice(words) if draw.random() < 1 / 3 else match.group()

    return WORD.sub(exchanged, text)


def pages_of_size(size: int) -> Iterator[tuple[str, str]]:
    """Yield paths and texts of pages of about so many chunks."""
    left = size * CHARACTERS
    for path, text in pages():
        yield path, text
        left -= len(text)
        if left <= 0:
            return


def write_pages(folder: Path, size: int) -> None:
    """Write pages of about so many chunks into a folder."""
    write_files(folder, pages_of_size(size))


def write_files(folder: Path, chosen: Iterable[tuple[str, str]]) -> None:
    """Write texts into a folder, by their paths."""
    for path, text in chosen:
        target = folder / path
        target.parent.mkdir(exist_ok=True, parents=True)
        target.write_text(text, "utf-8")


def build(folder: Path) -> dict[str, float]:
    """Index pages, and return what that took."""
    return measured_refresh(open_at(folder))


class TimedEmbedding(LocalEmbedding):
    """The local embedding, which adds up the time that it takes."""

    _cpu: float = PrivateAttr(default=0.0)
    _wall: float = PrivateAttr(default=0.0)

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Return the vectors of texts."""
        wall_start = time.perf_counter()
        cpu_start = time.process_time()
        vectors = super().embed(texts)
        self._cpu += time.process_time() - cpu_start
        self._wall += time.perf_counter() - wall_start
        return vectors

    @property
    def cpu(self) -> float:
        """Return the processor seconds of all calls."""
        return self._cpu

    @property
    def busy_cores(self) -> float:
        """Return how many cores the calls kept busy on average."""
        return self._cpu / self._wall


def build_by_local_embedding(folder: Path) -> dict[str, float]:
    """Index a folder of a user with the local embedding, and return what that took."""
    embedding = TimedEmbedding()
    embedding.embed(["Load the model."])
    figures = measured_refresh(ContextualIndex.open(folder, embed_model=embedding))
    figures["embedding_share"] = embedding.cpu / figures["build_cpu"]
    figures["busy_cores"] = embedding.busy_cores
    return figures


def measured_refresh(opened: ContextualIndex) -> dict[str, float]:
    """Refresh an index, and return what that took."""
    with opened as index:
        start = time.process_time()
        report = index.refresh()
        cpu = time.process_time() - start
    chunks = report.chunks
    sizes = index.settings.layout.sizes()
    peak_kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "chunks": chunks,
        "documents": report.documents,
        "build_cpu": cpu,
        "build_cpu_per_thousand": cpu / chunks * 1000,
        "build_peak": peak_kibibytes / 1024,
        **{name: size / chunks for name, size in sizes.items()},
    }


def ask(folder: Path) -> dict[str, float]:
    """Open an index, ask questions, change a page, and return what each took."""
    questions = [question.text for question in kubernetes_docs().questions]
    random.Random(0).shuffle(questions)  # noqa: S311  no secret
    figures = {}
    start = time.process_time()
    with open_at(folder) as index:
        retriever = index.as_retriever()
        retriever.retrieve(questions[0])
        figures["open_cpu"] = time.process_time() - start

        for question in questions[:WARM_UP]:
            retriever.retrieve(question)
        times = []
        first = []
        repeated = []
        for question in questions[WARM_UP : WARM_UP + QUESTIONS]:
            wall_start = time.perf_counter()
            first.append(cpu_of(lambda question=question: retriever.retrieve(question)))
            times.append((time.perf_counter() - wall_start) * 1000)
            repeated.append(cpu_of(lambda question=question: retriever.retrieve(question)))
        figures["first_cpu"] = statistics.fmean(first) * 1000
        figures["repeated_cpu"] = statistics.fmean(repeated) * 1000
        figures["p50"] = statistics.median(times)
        figures["p95"] = statistics.quantiles(times, n=20)[-1]
        [resident] = re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text("ascii"))
        figures["reader_memory"] = int(resident) / 1024

        page = min(folder.rglob("*.md"))
        refreshes = []
        for number in range(CHANGES):
            text = page.read_text("utf-8")
            page.write_text(f"{text}\n\nOne more line, number {number}.\n", "utf-8")
            refreshes.append(cpu_of(index.refresh))
        figures["refresh_cpu"] = statistics.median(refreshes)
        figures["nothing_cpu"] = cpu_of(index.refresh)
    return figures


def cpu_of(work: Callable[[], object]) -> float:
    """Return the processor time of a call in seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Measure each size and print a table."""
    options = command_line(__doc__, sizes=[1000, 10_000, 100_000], documents=int, folder=Path)
    if options.folder:
        print(json.dumps(in_fresh_process(build_by_local_embedding, options.folder)))
        return
    corpora = [pages_of_size(size) for size in options.sizes]
    if options.documents:
        corpora = [islice(pages(), options.documents)]
    results: list[dict[str, float]] = []
    for chosen in corpora:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_files(folder, chosen)
            figures = in_fresh_process(build, folder) | in_fresh_process(ask, folder)
        results.append(figures)
        print(json.dumps(figures), flush=True)
    header = ["chunks", *(f"{figures['chunks']:,.0f}" for figures in results)]
    rows = []
    for key, (label, form) in COLUMNS.items():
        rows.append([label, *(format(figures[key], form) for figures in results)])
    load = os.getloadavg()[1]
    print(f"\n{machine()}; load {load:.1f}\n\n{markdown_table(header, rows)}")


if __name__ == "__main__":
    main()
