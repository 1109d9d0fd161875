"""Whether chunks that respect structure are found as well as others: recall, precision and IoU of gold passages.

    python benchmarks/chunking_evaluation.py [--sizes 200 400] [--corpora NAME ...] [--only NAME ...]

The measure of ``brandonstarxel/chunking_evaluation`` (MIT), on its own five corpora and 472 questions with gold
character spans: all corpora are chunked into one collection, each question retrieves its nearest five chunks, and the
characters of these are compared with the gold ones. Recall: share of the gold characters retrieved. Precision: share
of the retrieved characters that are gold. IoU: the gold ones retrieved, over all that are gold or retrieved. Best
precision: the same if exactly the chunks that hold gold were retrieved, so it speaks of boundaries alone. Each is the
mean over questions, in percent. Every splitter has the same budget in cl100k tokens and no overlap; what is embedded is
the chunk's text alone, by the ``local`` embedding. That model reads 254 of its own tokens at once, so 200 is the fairer
size.
"""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from chunkers import SPLITTERS, count
from common import RememberingEmbedding, intervals, machine, markdown_table
from datasets import DATA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chunkers import Chunks

    Gold = Mapping[str, Sequence[tuple[int, int]]]  # passages as (start, end) in characters, by corpus

TOP_K: Final = 5


class Chunk(NamedTuple):
    """A chunk and where it stands."""

    path: str
    text: str
    start: int
    end: int


def load(only: Sequence[str] = ()) -> tuple[dict[str, str], list[tuple[str, Gold]]]:
    """The corpora by name, and the questions about them; only these, if any are named."""
    folder = DATA / "chunking-evaluation"
    paths = [path for path in sorted((folder / "corpus").glob("*.md")) if path.stem in only or not only]
    corpora = {path.name: path.read_bytes().decode() for path in paths}
    questions: list[tuple[str, Gold]] = []
    for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        gold: dict[str, list[tuple[int, int]]] = {}
        for passage in sorted(row["gold"], key=lambda passage: passage["start_char"]):
            if passage["path"] in corpora:
                spans = gold.setdefault(passage["path"], [])
                start = max(passage["start_char"], spans[-1][1] if spans else 0)  # no character counts twice
                spans.append((start, max(start, passage["end_char"])))
        if gold:
            questions.append((row["query"], gold))
    return corpora, questions


def shared(chunk: Chunk, gold: Gold) -> int:
    """The number of gold characters in a chunk."""
    return sum(max(0, min(end, chunk.end) - max(start, chunk.start)) for start, end in gold.get(chunk.path, ()))


def place(path: str, text: str, chunks: Chunks) -> list[Chunk]:
    """Where chunks stand: as claimed if true, else the next place that reads so, white space aside.

    A chunk that is found nowhere stands at (0, 0), where nothing is gold: it costs its splitter.
    """
    placed, cursor = [], 0
    for chunk, claimed in chunks:
        is_true = claimed is not None and claimed >= cursor and text.startswith(chunk, claimed)
        start = claimed if is_true and claimed is not None else text.find(chunk, cursor)
        end = start + len(chunk)
        if start < 0:
            match = re.compile(r"\s+".join(map(re.escape, chunk.split()))).search(text, cursor)
            start, end = match.span() if match else (0, 0)
        cursor = max(cursor, end)
        placed.append(Chunk(path, chunk, start, end))
    return placed


def score(gold: Gold, chunks: Sequence[Chunk], nearest: Sequence[int]) -> tuple[float, float, float, float]:
    """Recall, precision, IoU and best precision of one question."""
    retrieved = [chunks[number] for number in nearest]
    found = sum(shared(chunk, gold) for chunk in retrieved)
    total = sum(end - start for spans in gold.values() for start, end in spans)
    size = sum(chunk.end - chunk.start for chunk in retrieved)
    holding = [chunk for chunk in chunks if shared(chunk, gold)]
    best = sum(shared(chunk, gold) for chunk in holding) / max(1, sum(chunk.end - chunk.start for chunk in holding))
    return found / total, found / max(1, size), found / (total + size - found), best


def table(size: int, names: Sequence[str], only: Sequence[str], embedding: RememberingEmbedding) -> str:
    """The figures of the named splitters at one size."""
    corpora, questions = load(only)
    asked = np.array([embedding.get_query_embedding(text) for text, _ in questions], np.float32)
    rows, reference = [], None
    for name in names:
        splitter = SPLITTERS[name](size)
        chunks = [chunk for path, text in corpora.items() for chunk in place(path, text, splitter(text))]
        chunks = [chunk for chunk in chunks if chunk.text.strip()]
        vectors = np.array(embedding.get_text_embedding_batch([chunk.text for chunk in chunks]), np.float32)
        nearest = np.argsort(-(asked @ vectors.T), axis=1, kind="stable")[:, :TOP_K].tolist()
        figures = 100 * np.array([score(gold, chunks, row) for (_, gold), row in zip(questions, nearest, strict=True)])
        reference = figures if name == "ours" else reference
        ahead = "" if reference is None or name == "ours" else intervals(reference[:, :1] - figures[:, :1])[0]
        tokens = float(np.mean([count(chunk.text) for chunk in chunks]))
        rows.append([name, len(chunks), tokens, *(f"{mean:.1f}" for mean in figures.mean(axis=0)), ahead])
    header = ["", "chunks", "mean tokens", f"recall@{TOP_K} %", "precision %", "IoU %", "best precision %"]
    return markdown_table([*header, "ours ahead in recall [95 %]"], rows)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", type=int, default=[200, 400], help="budgets in cl100k tokens")
    parser.add_argument("--corpora", nargs="*", default=[], help="these corpora, and the questions about them")
    parser.add_argument("--only", nargs="*", choices=SPLITTERS, default=list(SPLITTERS), help="these splitters")
    arguments = parser.parse_args()
    embedding = RememberingEmbedding()
    print(f"{machine()}. Embedding: {embedding.inner.model_name}.")
    for size in arguments.sizes:
        print(f"\n## {size} tokens\n\n{table(size, arguments.only, arguments.corpora, embedding)}")


if __name__ == "__main__":
    main()
