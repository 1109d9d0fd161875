"""Whether chunks that respect structure are found as well as others: recall, precision and IoU of gold passages.

    python benchmarks/chunking_evaluation.py [--sizes 200 400] [--corpora NAME ...] [--only NAME ...] [--output FILE]

The measure of ``brandonstarxel/chunking_evaluation`` (MIT), on its own five corpora and 472 questions with gold
character spans: all corpora are chunked into one collection, each question retrieves its nearest five chunks, and the
characters of these are compared with the gold ones. Recall: share of the gold characters retrieved. Precision: share
of the retrieved characters that are gold. IoU: the gold ones retrieved, over all that are gold or retrieved. Best
precision: the same if exactly the chunks that hold gold were retrieved (the original's precision Ω), so it speaks of
boundaries alone. Each is the mean over questions, in percent.

Every splitter has the same budget in cl100k tokens and no overlap; what is embedded is the chunk's text alone, without
header paths or contexts, by the ``local`` embedding. That model reads 254 of its own tokens at once; a longer chunk's
vector is the mean of its windows', so 200 is the fairer size. Needs the ``bench`` and ``local`` extras.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from chunkers import count
from common import RememberingEmbedding, intervals, machine, markdown_table
from datasets import DATA

from llama_index_contextual.text.tokens import tiktoken_cl100k

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Spans = list[tuple[int, int]]
    Chunks = list[tuple[str, int | None]]  # text and claimed offset
    Splitter = Callable[[str], Chunks]

TOP_K: Final = 5


# --- the splitters -------------------------------------------------------------------------------------------------


def _of_nodes(*parsers: Any) -> Splitter:
    """One LlamaIndex node parser after another."""
    from llama_index.core import Document

    def split(text: str) -> Chunks:
        nodes: Any = [Document(text=text)]
        for parser in parsers:
            nodes = parser.get_nodes_from_documents(nodes)
        return [(node.text, node.start_char_idx) for node in nodes]

    return split


def ours(size: int) -> Splitter:
    """The node parser of this package."""
    from llama_index_contextual import HeadingAwareMarkdownNodeParser

    return _of_nodes(HeadingAwareMarkdownNodeParser(chunk_size=size, chunk_overlap=0))


def llama_index_sentences(size: int) -> Splitter:
    """LlamaIndex's default."""
    from llama_index.core.node_parser import SentenceSplitter

    return _of_nodes(SentenceSplitter(chunk_size=size, chunk_overlap=0, include_metadata=False))


def llama_index_pair(size: int) -> Splitter:
    """What LlamaIndex recommends for Markdown."""
    from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter

    sentences = SentenceSplitter(chunk_size=size, chunk_overlap=0, include_metadata=False)
    return _of_nodes(MarkdownNodeParser(), sentences)


def langchain_recursive(size: int) -> Splitter:
    """LangChain's usual one, lengths in tokens."""
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    splitter = RecursiveCharacterTextSplitter(
        chunk_size=size, chunk_overlap=0, length_function=count, add_start_index=True
    )
    return lambda text: [(d.page_content, d.metadata["start_index"]) for d in splitter.create_documents([text])]


def chonkie_recursive(size: int) -> Splitter:
    """Chonkie's, with its default rules."""
    from chonkie import RecursiveChunker

    chunker = RecursiveChunker(tokenizer=tiktoken_cl100k(), chunk_size=size)
    return lambda text: [(chunk.text, chunk.start_index) for chunk in chunker.chunk(text)]


def semantic_text_splitter(size: int) -> Splitter:
    """Rust, by tokens."""
    from semantic_text_splitter import MarkdownSplitter

    splitter = MarkdownSplitter.from_tiktoken_model("gpt-3.5-turbo", size)
    return lambda text: [(chunk, offset) for offset, chunk in splitter.chunk_indices(text)]


def fixed_tokens(size: int) -> Splitter:
    """So many tokens each, whatever they say (never inside a character)."""

    def split(text: str) -> Chunks:
        _, offsets = tiktoken_cl100k().decode_with_offsets(tiktoken_cl100k().encode_ordinary(text))
        edges = [*offsets[::size], len(text)]
        return [(text[start:end], start) for start, end in pairwise(edges) if end > start]

    return split


SPLITTERS: Final[dict[str, Callable[[int], Splitter]]] = {
    "ours": ours,
    "LlamaIndex SentenceSplitter": llama_index_sentences,
    "LlamaIndex Markdown + Sentence": llama_index_pair,
    "LangChain RecursiveCharacter": langchain_recursive,
    "chonkie Recursive": chonkie_recursive,
    "semantic-text-splitter Markdown": semantic_text_splitter,
    "fixed tokens": fixed_tokens,
}


# --- what is measured ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Question:
    """Gold passages as (start, end) in characters, by corpus."""

    text: str
    gold: Mapping[str, Spans]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk and where it stands."""

    path: str
    text: str
    start: int
    end: int


def load(only: Sequence[str] = ()) -> tuple[dict[str, str], list[Question]]:
    """The corpora by name, and the questions about them; only these, if any are named."""
    folder = DATA / "chunking-evaluation"
    paths = [path for path in sorted((folder / "corpus").glob("*.md")) if path.stem in only or not only]
    corpora = {path.name: path.read_bytes().decode() for path in paths}
    questions = []
    for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if not any(passage["path"] in corpora for passage in row["gold"]):
            continue
        gold: dict[str, Spans] = {}
        for passage in row["gold"]:
            start, end = passage["start_char"], passage["end_char"]
            assert corpora[passage["path"]][start:end] == passage["text"], row["query_id"]
            gold.setdefault(passage["path"], []).append((start, end))
        questions.append(Question(row["query"], {path: union(spans) for path, spans in gold.items()}))
    return corpora, questions


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    """The same characters as disjoint spans in order."""
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(spans: Spans) -> int:
    """Characters in disjoint spans."""
    return sum(end - start for start, end in spans)


def shared(chunk: Chunk, gold: Mapping[str, Spans]) -> Spans:
    """The gold characters of a chunk."""
    cut = [(max(start, chunk.start), min(end, chunk.end)) for start, end in gold.get(chunk.path, [])]
    return [(start, end) for start, end in cut if end > start]


def place(path: str, text: str, chunks: Chunks) -> list[Chunk]:
    """Where chunks stand: as claimed if true, else the next place that reads so, white space aside.

    Splitters that rewrite white space, or claim offsets into what an earlier step returned, are judged all the same. A
    chunk that is found nowhere stands at (0, 0), where nothing is gold: it costs its splitter.
    """
    placed = []
    cursor = 0
    for chunk, claimed in chunks:
        start, end = -1, 0
        if claimed is not None and claimed >= 0 and text.startswith(chunk, claimed):
            start = claimed
        if start < cursor:  # a chunk that repeats: without overlap, the next one is meant
            start = max(start, text.find(chunk, cursor))
        end = start + len(chunk)
        if start < 0:
            loose = re.compile(r"\s+".join(map(re.escape, chunk.split())))
            match = loose.search(text, cursor) or loose.search(text)
            start, end = match.span() if match else (0, 0)
        cursor = max(cursor, end)
        placed.append(Chunk(path, chunk, start, end))
    return placed


def score(question: Question, chunks: Sequence[Chunk], nearest: Sequence[int]) -> tuple[float, float, float, float]:
    """Recall, precision, IoU and best precision of one question."""
    retrieved = [chunks[number] for number in nearest]
    found = sum(length(shared(chunk, question.gold)) for chunk in retrieved)
    gold = sum(length(spans) for spans in question.gold.values())
    size = sum(chunk.end - chunk.start for chunk in retrieved)
    holding = [chunk for chunk in chunks if shared(chunk, question.gold)]
    covered = sum(length(shared(chunk, question.gold)) for chunk in holding)
    best = covered / max(1, sum(chunk.end - chunk.start for chunk in holding))
    return found / gold, found / max(1, size), found / (gold + size - found), best


def evaluate(
    splitter: Splitter, corpora: Mapping[str, str], questions: Sequence[Question], embedding: RememberingEmbedding
) -> tuple[list[Chunk], np.ndarray]:
    """Chunk, embed, retrieve: the chunks, and a row of four figures for each question."""
    chunks = [chunk for path, text in corpora.items() for chunk in place(path, text, splitter(text))]
    chunks = [chunk for chunk in chunks if chunk.text.strip()]
    vectors = np.array(embedding.get_text_embedding_batch([chunk.text for chunk in chunks]), np.float32)
    asked = np.array([embedding.get_query_embedding(question.text) for question in questions], np.float32)
    nearest = np.argsort(-(asked @ vectors.T), axis=1, kind="stable")[:, :TOP_K]
    rows = [score(question, chunks, row) for question, row in zip(questions, nearest.tolist(), strict=True)]
    return chunks, np.array(rows)


def table(
    size: int,
    names: Iterable[str],
    corpora: Mapping[str, str],
    questions: Sequence[Question],
    embedding: RememberingEmbedding,
) -> str:
    """Evaluate the named splitters at one size."""
    rows = []
    reference: np.ndarray | None = None
    for name in names:
        began = time.perf_counter()
        chunks, figures = evaluate(SPLITTERS[name](size), corpora, questions, embedding)
        reference = figures if name == "ours" else reference
        against = "" if reference is None or name == "ours" else intervals(100 * (reference[:, :1] - figures[:, :1]))[0]
        tokens = float(np.mean([count(chunk.text) for chunk in chunks]))
        unplaced = sum(chunk.start == chunk.end for chunk in chunks)
        means = (100 * figures.mean(axis=0)).tolist()
        rows.append([name, len(chunks), tokens, *(f"{mean:.1f}" for mean in means), against, unplaced])
        print(f"{size} {rows[-1]} {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    header = ["", "chunks", "mean tokens", f"recall@{TOP_K} %", "precision %", "IoU %", "best precision %"]
    return markdown_table([*header, "ours ahead in recall [95 %]", "unplaced"], rows)


def main() -> None:
    """Run and print, or write to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", type=int, default=[200, 400], help="budgets in cl100k tokens")
    parser.add_argument("--corpora", nargs="*", default=[], help="these corpora, and the questions about them")
    parser.add_argument("--only", nargs="*", choices=SPLITTERS, default=list(SPLITTERS), help="these splitters")
    parser.add_argument("--output", type=Path, help="a file instead of standard output")
    arguments = parser.parse_args()
    embedding = RememberingEmbedding()
    corpora, questions = load(arguments.corpora)
    names = ", ".join(path.removesuffix(".md") for path in corpora)
    scope = f"{len(questions)} questions about {names} ({sum(map(len, corpora.values())) / 1e6:.2f} M characters)"
    parts = [f"{machine()}. Embedding: {embedding.inner.model_name}. {scope}."]
    for size in arguments.sizes:
        parts.append(f"## {size} tokens")
        parts.append(table(size, arguments.only, corpora, questions, embedding))
    report = "\n\n".join(parts) + "\n"
    if arguments.output:
        arguments.output.write_text(report, encoding="utf-8")
    else:
        print(report)


if __name__ == "__main__":
    main()
