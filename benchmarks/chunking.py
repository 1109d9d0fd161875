"""How chunkers treat text.

What they split, lose and overflow, how fast they are, and whether their chunks are found.

    python benchmarks/chunking.py [--only NAME ...] [--quick]                   # quick: every tenth
    page python benchmarks/chunking.py --found [--sizes 200 400] [--corpora NAME ...]

Every splitter gets the same number of cl100k tokens and no overlap. The peers come with ``pip
install chonkie langchain-text-splitters semantic-text-splitter``.

Without ``--found``: the pages of ``markdown`` and ``kubernetes-docs``, 400 tokens. Fences and
tables are markdown-it-py's. split %: fences and tables of at most 400 tokens whose lines are in no
single chunk. over %: chunks of more than 400 tokens. offsets %: ``text[start:end] == chunk``. lost
%: words in no chunk (front matter aside). orphan %: chunks, but a file's last, that end in a
heading. tiny %: under 40 tokens.

With it: the measure of ``brandonstarxel/chunking_evaluation`` (MIT) on its five corpora and 472
questions with gold character spans. All corpora are one collection, each question retrieves its
nearest five chunks by the ``local`` embedding, and their characters are compared with the gold
ones. Best precision: that of exactly the chunks that hold gold, so it speaks of boundaries alone.
Each is the mean over questions, in percent. The model reads 254 of its own tokens at once, so 200
is the fairer size.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
from common import RememberingEmbedding, command_line, intervals, machine, markdown_table
from datasets import DATA, queries
from markdown_it import MarkdownIt

from llama_index_contextual.node_parser.front_matter import read_front_matter
from llama_index_contextual.utils.tokens import tiktoken_cl100k

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Chunks: TypeAlias = list[tuple[str, int | None]]  # text and claimed offset
    Splitter: TypeAlias = Callable[[str], Chunks]
    Gold: TypeAlias = Mapping[
        str, Sequence[tuple[int, int]]
    ]  # passages as (start, end) in characters, by corpus

SIZE: Final = 400
TINY: Final = 40
TOP_K: Final = 5
PARSER: Final = MarkdownIt("commonmark").enable("table").disable(["inline"])


def count(text: str) -> int:
    """Count the tokens in cl100k."""
    return len(tiktoken_cl100k().encode_ordinary(text))


def of_nodes(*parsers: Any) -> Splitter:
    """One LlamaIndex node parser after another."""
    from llama_index.core import Document

    def split(text: str) -> Chunks:
        nodes: Any = [Document(text=text)]
        for parser in parsers:
            nodes = parser.get_nodes_from_documents(nodes)
        return [(node.text, node.start_char_idx) for node in nodes]

    return split


def ours(size: int) -> Splitter:
    """Return the node parser of this package."""
    from llama_index_contextual import HeadingAwareMarkdownNodeParser

    return of_nodes(HeadingAwareMarkdownNodeParser(chunk_size=size, chunk_overlap=0))


def llama_index(size: int, *, markdown: bool = False) -> Splitter:
    """LlamaIndex's default, and with ``markdown`` what it recommends for Markdown."""
    from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter

    sentences = SentenceSplitter(chunk_size=size, chunk_overlap=0, include_metadata=False)
    return of_nodes(MarkdownNodeParser(), sentences) if markdown else of_nodes(sentences)


def langchain_markdown(size: int) -> Splitter:
    """LangChain's for Markdown, lengths in tokens."""
    from langchain_text_splitters import MarkdownTextSplitter

    splitter = MarkdownTextSplitter(
        chunk_size=size, chunk_overlap=0, length_function=count, add_start_index=True
    )
    return lambda text: [
        (d.page_content, d.metadata["start_index"]) for d in splitter.create_documents([text])
    ]


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
    "LlamaIndex SentenceSplitter": llama_index,
    "LlamaIndex Markdown + Sentence": lambda size: llama_index(size, markdown=True),
    "LangChain MarkdownTextSplitter": langchain_markdown,
    "chonkie Recursive": chonkie_recursive,
    "semantic-text-splitter Markdown": semantic_text_splitter,
    "fixed tokens": fixed_tokens,
}


# Defects


def speed(texts: Sequence[str], splitter: Splitter) -> float:
    """Return megabytes of UTF-8 a CPU second, the better of two passes."""
    best = float("inf")
    for _ in range(2):
        began = time.process_time()
        for text in texts:
            splitter(text)
        best = min(best, time.process_time() - began)
    return sum(len(text.encode()) for text in texts) / 1e6 / best


def blocks(text: str) -> list[str]:
    """Return the fences and tables that fit into a chunk."""
    lines = text.splitlines(keepends=True)
    tokens = [
        token for token in PARSER.parse(text) if token.type in {"fence", "table_open"} and token.map
    ]
    all_blocks = ["".join(lines[slice(*token.map)]).strip() for token in tokens if token.map]
    return [block for block in all_blocks if count(block) <= SIZE]


def defects(texts: Sequence[str], splitter: Splitter) -> Counter[str]:
    """Count defects by name, and chunks, blocks and words."""
    total: Counter[str] = Counter()
    for text in texts:
        chunks = [(chunk, start) for chunk, start in splitter(text) if chunk.strip()]
        plain = [" ".join(chunk.split()) for chunk, _ in chunks]
        body = text[read_front_matter(text).end :]
        plain_blocks = [" ".join(block.split()) for block in blocks(body)]
        words = Counter(body.split())
        last_lines = [chunk.rstrip().rpartition("\n")[2] for chunk, _ in chunks[:-1]]
        total.update(
            chunks=len(chunks),
            blocks=len(plain_blocks),
            words=words.total(),
            split=sum(not any(block in chunk for chunk in plain) for block in plain_blocks),
            over=sum(count(chunk) > SIZE for chunk, _ in chunks),
            offsets=sum(
                start is not None and text.startswith(chunk, start) for chunk, start in chunks
            ),
            lost=(words - Counter(" ".join(plain).split())).total(),
            orphan=sum(line.startswith("#") and " " in line for line in last_lines),
            tiny=sum(count(chunk) < TINY for chunk, _ in chunks),
        )
    return total


def table_of_defects(texts: Sequence[str], names: Sequence[str]) -> str:
    """Return a table with the speed and the shares of defects of each splitter."""
    rows, kinds = [], ("split", "over", "offsets", "lost", "orphan", "tiny")
    wholes = dict.fromkeys(kinds, "chunks") | {"split": "blocks", "lost": "words"}
    for name in names:
        splitter = SPLITTERS[name](SIZE)
        counts = defects(texts, splitter)
        percent = [
            f"{100 * counts[part] / max(1, counts[whole]):.2f}" for part, whole in wholes.items()
        ]
        rows.append([name, f"{speed(texts, splitter):.1f}", counts["chunks"], *percent])
    return markdown_table(["", "MB/s", "chunks", *(f"{name} %" for name in wholes)], rows)


# What is found


class Chunk(NamedTuple):
    """A chunk and where it stands."""

    path: str
    text: str
    start: int
    end: int


def load(only: Sequence[str] = ()) -> tuple[dict[str, str], list[tuple[str, Gold]]]:
    """Return the corpora by name, and the questions about them; only these, if any are named."""
    paths = sorted((DATA / "chunking-evaluation" / "corpus").glob("*.md"))
    paths = [path for path in paths if path.stem in only or not only]
    corpora = {path.name: path.read_bytes().decode() for path in paths}
    questions: list[tuple[str, Gold]] = []
    for row in queries("chunking-evaluation"):
        gold: dict[str, list[tuple[int, int]]] = {}
        for passage in sorted(row["gold"], key=lambda passage: passage["start_char"]):
            if passage["path"] in corpora:
                spans = gold.setdefault(passage["path"], [])
                start = max(
                    passage["start_char"], spans[-1][1] if spans else 0
                )  # no character counts twice
                spans.append((start, max(start, passage["end_char"])))
        if gold:
            questions.append((row["query"], gold))
    return corpora, questions


def shared(chunk: Chunk, gold: Gold) -> int:
    """Return the number of gold characters in a chunk."""
    return sum(
        max(0, min(end, chunk.end) - max(start, chunk.start))
        for start, end in gold.get(chunk.path, ())
    )


def place(path: str, text: str, chunks: Chunks) -> list[Chunk]:
    """Locate chunks: as claimed if true, else at the next place with the same words.

    A chunk that is found nowhere gets (0, 0), where nothing is gold: it costs its splitter.
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


def score(
    gold: Gold, chunks: Sequence[Chunk], nearest: Sequence[int]
) -> tuple[float, float, float, float]:
    """Return recall, precision, intersection over union and best precision of one question."""
    retrieved = [chunks[number] for number in nearest]
    overlap = sum(shared(chunk, gold) for chunk in retrieved)
    total = sum(end - start for spans in gold.values() for start, end in spans)
    size = sum(chunk.end - chunk.start for chunk in retrieved)
    holding = [chunk for chunk in chunks if shared(chunk, gold)]
    best = sum(shared(chunk, gold) for chunk in holding) / max(
        1, sum(chunk.end - chunk.start for chunk in holding)
    )
    return overlap / total, overlap / max(1, size), overlap / (total + size - overlap), best


def table_of_found(
    size: int, names: Sequence[str], only: Sequence[str], embedding: RememberingEmbedding
) -> str:
    """Return the figures of the named splitters at one size."""
    corpora, questions = load(only)
    asked = np.array([embedding.get_query_embedding(text) for text, _ in questions], np.float32)
    rows, reference = [], None
    for name in names:
        splitter = SPLITTERS[name](size)
        chunks = [
            chunk for path, text in corpora.items() for chunk in place(path, text, splitter(text))
        ]
        chunks = [chunk for chunk in chunks if chunk.text.strip()]
        vectors = np.array(
            embedding.get_text_embedding_batch([chunk.text for chunk in chunks]), np.float32
        )
        nearest = np.argsort(-(asked @ vectors.T), axis=1, kind="stable")[:, :TOP_K].tolist()
        figures = 100 * np.array(
            [score(gold, chunks, row) for (_, gold), row in zip(questions, nearest, strict=True)]
        )
        reference = figures if name == "ours" else reference
        ahead = (
            ""
            if reference is None or name == "ours"
            else intervals(reference[:, :1] - figures[:, :1])[0]
        )
        tokens = float(np.mean([count(chunk.text) for chunk in chunks]))
        rows.append(
            [name, len(chunks), tokens, *(f"{mean:.1f}" for mean in figures.mean(axis=0)), ahead]
        )
    header = [
        "",
        "chunks",
        "mean tokens",
        f"recall@{TOP_K} %",
        "precision %",
        "IoU %",
        "best precision %",
    ]
    return markdown_table([*header, "ours ahead in recall [95 %]"], rows)


def main() -> None:
    """Measure and print."""
    options = command_line(
        __doc__, only=list(SPLITTERS), quick=False, found=False, sizes=[200, 400], corpora=[str]
    )
    if not options.found:
        paths = [
            path
            for name in ("markdown", "kubernetes-docs")
            for path in sorted((DATA / name).rglob("*.md"))
        ]
        texts = [path.read_bytes().decode() for path in paths[:: 10 if options.quick else 1]]
        print(f"{machine()}; {len(texts)} files, {SIZE} cl100k tokens, no overlap.\n")
        print(table_of_defects(texts, options.only))
        return
    embedding = RememberingEmbedding()
    print(f"{machine()}. Embedding: {embedding.inner.model_name}.")
    for size in options.sizes:
        print(
            f"\n## {size} tokens\n\n"
            f"{table_of_found(size, options.only, options.corpora or (), embedding)}"
        )


if __name__ == "__main__":
    main()
