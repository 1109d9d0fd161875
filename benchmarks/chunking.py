"""Compare chunkers: what they split and lose, how fast they are, and whether chunks are found.

    python benchmarks/chunking.py [--only NAME ...] [--quick]
    python benchmarks/chunking.py --found [--sizes 200 400] [--corpora NAME ...]

Every splitter gets the same number of cl100k tokens and no overlap. The other splitters come with
``pip install chonkie langchain-text-splitters semantic-text-splitter``.

Without ``--found``, it splits the pages of ``markdown`` and ``kubernetes-docs`` into chunks of 400
tokens, or with ``--quick`` every tenth page. markdown-it-py tells what a fence or a table is.

- split %: fences and tables of at most 400 tokens that are not within a single chunk
- over %: chunks of more than 400 tokens
- offsets %: chunks with ``text[start:end] == chunk``
- lost %: words that are in no chunk, apart from front matter
- orphan %: chunks that end in a heading, apart from the last one of a file
- tiny %: chunks under 40 tokens

With ``--found``, it computes the measure of ``brandonstarxel/chunking_evaluation`` (MIT) on its
five corpora and 472 questions with gold character spans. All corpora are one collection. Each
question retrieves its nearest five chunks by the ``local`` embedding, and their characters are
compared with the gold ones. Best precision is that of exactly the chunks that contain gold, so it
depends on the boundaries alone. Figures are means over questions, in percent. The model reads 254
of its own tokens at once, so 200 is the fairer size.
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
    from collections.abc import Callable, Collection, Mapping, Sequence

    Chunks: TypeAlias = list[tuple[str, int | None]]  # text and claimed offset
    Splitter: TypeAlias = Callable[[str], Chunks]
    # Passages as start and end in characters, by corpus.
    Gold: TypeAlias = Mapping[str, Sequence[tuple[int, int]]]

SIZE: Final = 400
TINY: Final = 40
TOP_K: Final = 5
PARSER: Final = MarkdownIt("commonmark").enable("table").disable(["inline"])


def count(text: str) -> int:
    """Count the tokens in cl100k."""
    return len(tiktoken_cl100k().encode_ordinary(text))


def by_parsers(*parsers: Any) -> Splitter:
    """Return a splitter that runs one LlamaIndex node parser after another."""
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

    return by_parsers(HeadingAwareMarkdownNodeParser(chunk_size=size, chunk_overlap=0))


def llama_index(size: int, *, markdown: bool = False) -> Splitter:
    """Return LlamaIndex's default, or with ``markdown`` what it recommends for Markdown."""
    from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter

    sentences = SentenceSplitter(chunk_size=size, chunk_overlap=0, include_metadata=False)
    return by_parsers(MarkdownNodeParser(), sentences) if markdown else by_parsers(sentences)


def langchain_markdown(size: int) -> Splitter:
    """Return LangChain's splitter for Markdown."""
    from langchain_text_splitters import MarkdownTextSplitter

    splitter = MarkdownTextSplitter(
        chunk_size=size, chunk_overlap=0, length_function=count, add_start_index=True
    )

    def split(text: str) -> Chunks:
        documents = splitter.create_documents([text])
        return [(document.page_content, document.metadata["start_index"]) for document in documents]

    return split


def chonkie_recursive(size: int) -> Splitter:
    """Return Chonkie's recursive splitter with its default rules."""
    from chonkie import RecursiveChunker

    chunker = RecursiveChunker(tokenizer=tiktoken_cl100k(), chunk_size=size)
    return lambda text: [(chunk.text, chunk.start_index) for chunk in chunker.chunk(text)]


def semantic_text_splitter(size: int) -> Splitter:
    """Return the Markdown splitter of the Rust package."""
    from semantic_text_splitter import MarkdownSplitter

    splitter = MarkdownSplitter.from_tiktoken_model("gpt-3.5-turbo", size)
    return lambda text: [(chunk, offset) for offset, chunk in splitter.chunk_indices(text)]


def fixed_tokens(size: int) -> Splitter:
    """Return a splitter into chunks of equal length, which never cuts a character."""

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
    """Return the megabytes of UTF-8 per CPU second, in the better of two passes."""
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
    all_blocks = []
    for token in PARSER.parse(text):
        if token.type in {"fence", "table_open"} and token.map:
            first, end = token.map
            all_blocks.append("".join(lines[first:end]).strip())
    return [block for block in all_blocks if count(block) <= SIZE]


def defects(texts: Sequence[str], splitter: Splitter) -> Counter[str]:
    """Return the number of defects by name, and of chunks, blocks and words."""
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


# What each kind of defect is a share of.
WHOLES: Final = {
    "split": "blocks",
    "over": "chunks",
    "offsets": "chunks",
    "lost": "words",
    "orphan": "chunks",
    "tiny": "chunks",
}


def table_of_defects(texts: Sequence[str], names: Sequence[str]) -> str:
    """Return a table with the speed and the shares of defects of each splitter."""
    rows: list[list[object]] = []
    for name in names:
        splitter = SPLITTERS[name](SIZE)
        counts = defects(texts, splitter)
        shares = []
        for kind, whole in WHOLES.items():
            shares.append(f"{100 * counts[kind] / max(1, counts[whole]):.2f}")
        rows.append([name, f"{speed(texts, splitter):.1f}", counts["chunks"], *shares])
    return markdown_table(["", "MB/s", "chunks", *(f"{kind} %" for kind in WHOLES)], rows)


# What is found


class Chunk(NamedTuple):
    """A chunk and its place in a corpus."""

    path: str
    text: str
    start: int
    end: int

    def gold_size(self, gold: Gold) -> int:
        """Return the number of its characters that are gold."""
        size = 0
        for start, end in gold.get(self.path, ()):
            size += max(0, min(end, self.end) - max(start, self.start))
        return size


class FoundQuestion(NamedTuple):
    """A question with the passages that answer it."""

    text: str
    gold: Gold


def load_corpora(names: Sequence[str]) -> dict[str, str]:
    """Return the texts of the named corpora, or of all if none is named, by file name."""
    paths = sorted((DATA / "chunking-evaluation" / "corpus").glob("*.md"))
    return {
        path.name: path.read_bytes().decode() for path in paths if path.stem in names or not names
    }


def load_questions(corpora: Collection[str]) -> list[FoundQuestion]:
    """Return the questions about some corpora."""
    questions = []
    for row in queries("chunking-evaluation"):
        gold: dict[str, list[tuple[int, int]]] = {}
        for passage in sorted(row["gold"], key=lambda passage: passage["start_char"]):
            if passage["path"] in corpora:
                spans = gold.setdefault(passage["path"], [])
                end_before = spans[-1][1] if spans else 0
                start = max(passage["start_char"], end_before)  # no character counts twice
                spans.append((start, max(start, passage["end_char"])))
        if gold:
            questions.append(FoundQuestion(row["query"], gold))
    return questions


def place(path: str, text: str, chunks: Chunks) -> list[Chunk]:
    """Return chunks with their places: as claimed if true, else where their words occur next.

    A chunk that does not occur gets the place 0 to 0, which lowers the scores of its splitter.
    """
    placed = []
    earliest = 0
    for chunk, claimed in chunks:
        if claimed is not None and claimed >= earliest and text.startswith(chunk, claimed):
            start = claimed
        else:
            start = text.find(chunk, earliest)
        end = start + len(chunk)
        if start < 0:
            words = r"\s+".join(map(re.escape, chunk.split()))
            match = re.compile(words).search(text, earliest)
            start, end = match.span() if match else (0, 0)
        earliest = max(earliest, end)
        placed.append(Chunk(path, chunk, start, end))
    return placed


def total_size(chunks: Sequence[Chunk]) -> int:
    """Return the number of characters of chunks."""
    return sum(chunk.end - chunk.start for chunk in chunks)


def score(gold: Gold, chunks: Sequence[Chunk], nearest: Sequence[int]) -> list[float]:
    """Return recall, precision, intersection over union and best precision of a question.

    Args:
        gold: The passages that answer it.
        chunks: All chunks.
        nearest: The positions of the retrieved chunks.
    """
    retrieved = [chunks[position] for position in nearest]
    overlap = sum(chunk.gold_size(gold) for chunk in retrieved)
    gold_size = sum(end - start for spans in gold.values() for start, end in spans)
    retrieved_size = total_size(retrieved)
    chunks_with_gold = [chunk for chunk in chunks if chunk.gold_size(gold)]
    best_overlap = sum(chunk.gold_size(gold) for chunk in chunks_with_gold)
    return [
        overlap / gold_size,
        overlap / max(1, retrieved_size),
        overlap / (gold_size + retrieved_size - overlap),
        best_overlap / max(1, total_size(chunks_with_gold)),
    ]


FOUND_HEADER: Final = (
    "",
    "chunks",
    "mean tokens",
    f"recall@{TOP_K} %",
    "precision %",
    "IoU %",
    "best precision %",
    "ours ahead in recall [95 %]",
)


def table_of_found(
    size: int, names: Sequence[str], corpus_names: Sequence[str], embedding: RememberingEmbedding
) -> str:
    """Return the table of what is found in the chunks of some splitters.

    Args:
        size: The size of a chunk in tokens.
        names: The splitters.
        corpus_names: The corpora; empty for all.
        embedding: The embedding of questions and chunks.
    """
    corpora = load_corpora(corpus_names)
    questions = load_questions(corpora)
    query_vectors = np.array(
        [embedding.get_query_embedding(question.text) for question in questions], np.float32
    )
    rows: list[list[object]] = []
    our_scores = None
    for name in names:
        splitter = SPLITTERS[name](size)
        chunks: list[Chunk] = []
        for path, text in corpora.items():
            chunks += [chunk for chunk in place(path, text, splitter(text)) if chunk.text.strip()]
        texts = [chunk.text for chunk in chunks]
        vectors = np.array(embedding.get_text_embedding_batch(texts), np.float32)
        order = np.argsort(-(query_vectors @ vectors.T), axis=1, kind="stable")
        scores = []
        for question, nearest in zip(questions, order[:, :TOP_K].tolist(), strict=True):
            scores.append(score(question.gold, chunks, nearest))
        points = 100 * np.array(scores)
        ahead = ""
        if name == "ours":
            our_scores = points
        elif our_scores is not None:
            [ahead] = intervals(our_scores[:, :1] - points[:, :1])
        mean_tokens = float(np.mean([count(text) for text in texts]))
        means = [f"{mean:.1f}" for mean in points.mean(axis=0)]
        rows.append([name, len(chunks), mean_tokens, *means, ahead])
    return markdown_table(FOUND_HEADER, rows)


def main() -> None:
    """Measure the splitters and print a table."""
    options = command_line(
        __doc__, only=list(SPLITTERS), quick=False, found=False, sizes=[200, 400], corpora=[str]
    )
    if not options.found:
        paths = sorted((DATA / "markdown").rglob("*.md"))
        paths += sorted((DATA / "kubernetes-docs").rglob("*.md"))
        step = 10 if options.quick else 1
        texts = [path.read_bytes().decode() for path in paths[::step]]
        print(f"{machine()}; {len(texts)} files, {SIZE} cl100k tokens, no overlap.\n")
        print(table_of_defects(texts, options.only))
        return
    embedding = RememberingEmbedding()
    print(f"{machine()}. Embedding: {embedding.inner.model_name}.")
    for size in options.sizes:
        table = table_of_found(size, options.only, options.corpora or (), embedding)
        print(f"\n## {size} tokens\n\n{table}")


if __name__ == "__main__":
    main()
