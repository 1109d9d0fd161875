"""How an index of a folder grows: building, memory, disk, questions, the refresh of one document, opening.

    python benchmarks/scale.py --sizes 1000 10000 100000
    python benchmarks/scale.py --folder FOLDER                 # a folder as it is, by the local embedding
    python benchmarks/scale.py --vectors 1000 13000 100000     # the nearest of made vectors instead

Each size is indexed as a user does it, by `ContextualIndex.refresh` over a folder of real pages (Kubernetes
documentation); beyond what exists they are repeated with a third of the longer words exchanged for others of the
corpus. Vectors are the sum of a seeded direction for each word (384 numbers): alike texts have alike vectors, and
nothing is spent on a model. Building and asking are two processes of their own for each size.

With ``--vectors`` an index and LlamaIndex's retriever on Chroma's graph answer by the same vectors alone. *Even* ones
are 40 groups of one size. *Uneven* ones are a crowd around one centre and 60 apart from it and from one another. What
is true comes from comparing every vector in float64; those that are equally near count alike.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chromadb
import numpy as np
from common import machine, markdown_table
from datasets import kubernetes_docs
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual.app import ContextualIndex, LocalEmbedding
from llama_index_contextual.app.index.settings import default_parser
from llama_index_contextual.app.store.vectors import VectorIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

WORD = re.compile(r"[a-z]{5,}")
CHUNKS_A_PAGE = 17.5  # of these pages with the defaults, to begin with; the table counts what came out
QUESTIONS, WARM = 300, 20
APART, ASKED, SAME = 60, 60, 1e-5  # vectors, questions of each kind, cosines that differ by less are equal
DIRECTIONS = np.random.default_rng(0).standard_normal((16_384, 384), dtype=np.float32)
COLUMNS = {
    "build": ("build, s", ",.0f"), "build_cpu": ("of it CPU, s", ",.0f"), "build_peak": ("its memory, MiB", ",.0f"),
    "index.sqlite3": ("index.sqlite3, bytes a chunk", ",.0f"),
    "paid.sqlite3": ("paid.sqlite3, bytes a chunk", ",.0f"), "cache": ("cache, bytes a chunk", ",.0f"),
    "open": ("open and first answer, s", ".2f"), "p50": ("question p50, ms", ".1f"), "p95": ("p95, ms", ".1f"),
    "p99": ("p99, ms", ".1f"), "rss": ("memory of a reader, MiB", ",.0f"),
    "refresh": ("refresh of one page, s", ".2f"), "nothing": ("refresh of nothing, s", ".2f"),
}  # fmt: skip


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


def open_at(folder: Path) -> ContextualIndex:
    """The index of a folder of pages of :func:`write_pages`."""
    embedding = OfWords(model_name="of-words", embed_batch_size=256)
    return ContextualIndex.open(folder, embed_model=embedding, node_parser=default_parser(LocalEmbedding()))


def write_pages(folder: Path, count: int) -> None:
    """Write real pages; beyond what exists, with words exchanged for others of the corpus."""
    found = [(document.metadata["path"], document.text) for document in kubernetes_docs().documents[""]]
    random.Random(0).shuffle(found)  # noqa: S311  no secret; the pages with answers come first, and are long
    words = [word for _, text in found[:200] for word in WORD.findall(text)]
    for number in range(count):
        turn, (path, text) = number // len(found), found[number % len(found)]
        if turn:
            draw = random.Random(number)  # noqa: S311  no secret
            text = WORD.sub(lambda one: draw.choice(words) if draw.random() < 1 / 3 else one.group(), text)  # noqa: B023
        target = folder / (f"{turn}/{path}" if turn else path)
        target.parent.mkdir(exist_ok=True, parents=True)
        target.write_text(text, "utf-8")


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
    began = time.perf_counter()
    with open_at(folder) as index:
        retriever = index.as_retriever()
        retriever.retrieve(questions[0])
        opened, times, refreshes = time.perf_counter() - began, list[float](), list[float]()
        for question in questions[: WARM + QUESTIONS]:
            started = time.perf_counter()
            retriever.retrieve(question)
            times.append((time.perf_counter() - started) * 1000)
        [status] = re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text("ascii"))
        page = min(folder.rglob("*.md"))
        for turn in range(4):
            if turn < 3:
                page.write_text(f"{page.read_text('utf-8')}\n\nOne more line, number {turn}.\n", "utf-8")
            started = time.perf_counter()
            index.refresh()
            refreshes.append(time.perf_counter() - started)
    cuts = statistics.quantiles(times[WARM:], n=100)
    figures = {"open": opened, "p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "rss": int(status) / 1024}
    return {**figures, "refresh": statistics.median(refreshes[:3]), "nothing": refreshes[3]}


def made_vectors(size: int) -> Iterator[tuple[str, npt.NDArray[np.float32], npt.NDArray[np.float32]]]:
    """Vectors, and questions of one kind, whose cosine to some of them is about 0.9."""
    rng, dimensions = np.random.default_rng(size), DIRECTIONS.shape[1]

    def near(vectors: Any) -> Any:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return (vectors + 0.48 * lengths / dimensions**0.5 * rng.standard_normal(vectors.shape)).astype(np.float32)

    centres = rng.standard_normal((40, dimensions))
    groups = centres[np.arange(size) % 40] + 0.6 * rng.standard_normal((size, dimensions))
    yield "even", groups.astype(np.float32), near(groups[rng.permutation(size)[:ASKED]])
    apart = rng.standard_normal((APART, dimensions))
    crowd = rng.standard_normal(dimensions) + 0.3 * rng.standard_normal((size - APART, dimensions))
    uneven = np.concatenate([apart, crowd]).astype(np.float32)
    yield "uneven, apart", uneven, near(apart)
    yield "uneven, of the crowd", uneven, near(crowd[rng.permutation(len(crowd))[:ASKED]])


def systems(folder: str, vectors: npt.NDArray[np.float32]) -> dict[str, Callable[[Any], list[int]]]:
    """The places of the ten nearest vectors, by each system."""
    index = VectorIndex().with_vectors(np.arange(1, len(vectors) + 1), vectors)
    collection = chromadb.PersistentClient(folder).create_collection(
        "bench", configuration={"hnsw": {"space": "cosine"}}
    )
    store = ChromaVectorStore(chroma_collection=collection)
    for start in range(0, len(vectors), 1000):
        part = enumerate(vectors[start : start + 1000].tolist(), start)
        store.add([TextNode(id_=str(number), text="a", embedding=vector) for number, vector in part])

    def of_store(question: Any) -> list[int]:
        query = VectorStoreQuery(query_embedding=question.tolist(), similarity_top_k=10)
        return [int(key) for key in store.query(query).ids or ()]

    return {
        "an index": lambda question: (index.nearest([question.tolist()], 10)[0][0][:10] - 1).tolist(),
        "LlamaIndex on Chroma": of_store,
    }


def vector_rows(size: int) -> Iterator[list[object]]:
    """A row for each kind of questions and each system: how many of the true ten are found, and CPU milliseconds."""
    for kind, vectors, questions in made_vectors(size):
        units = vectors.astype(np.float64)
        units /= np.linalg.norm(units, axis=1, keepdims=True)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for name, nearest in systems(folder, vectors).items():
                found, times = 0, []
                for question in questions:
                    start = time.process_time()
                    places = nearest(question)
                    times.append((time.process_time() - start) * 1000)
                    cosines = units @ (question / np.linalg.norm(question))
                    found += int((cosines[places] >= np.partition(cosines, -10)[-10] - SAME).sum())
                yield [f"{size:,}", kind, name, 10 * found / len(questions), f"{statistics.median(times):.2f}"]


def main() -> None:
    """Measure each size and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000], help="chunks")
    parser.add_argument("--step", choices=["build", "ask"], help="what a process of its own does")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--vectors", type=int, nargs="*", default=[], help="numbers of made vectors")
    options = parser.parse_args()
    if options.vectors:
        rows = [row for size in options.vectors for row in vector_rows(size)]
        header = ["vectors", "questions", "asked", "of the true ten, %", "CPU, ms"]
        print(f"{machine()}\n\n{markdown_table(header, rows)}")
        return
    if options.folder and not options.step:
        with tempfile.TemporaryDirectory() as storage:
            print(json.dumps(build(ContextualIndex.open(options.folder, storage=storage))))
        return
    if options.step:
        print(json.dumps(ask(options.folder) if options.step == "ask" else build(open_at(options.folder))))
        return
    results = list[dict[str, float]]()
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            write_pages(Path(folder), max(1, round(size / CHUNKS_A_PAGE)))
            figures: dict[str, float] = {}
            for step in ("build", "ask"):
                command = [sys.executable, __file__, "--step", step, "--folder", folder]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
                figures |= json.loads(done.stdout.splitlines()[-1])
            results.append(figures)
            print(json.dumps(figures), flush=True)
    rows = [[name, *(format(one[key], form) for one in results)] for key, (name, form) in COLUMNS.items()]
    header = ["chunks", *(f"{one['chunks']:,.0f}" for one in results)]
    print(f"\n{machine()}; load {os.getloadavg()[1]:.1f}\n\n{markdown_table(header, rows)}")


if __name__ == "__main__":
    main()
