"""The splitters that benchmarks/chunking.py compares: ours and its peers, each at 400 cl100k tokens without overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from llama_index_contextual.text.tokens import tiktoken_cl100k

Chunks: TypeAlias = list[tuple[str, int | None]]  # text and claimed offset
Splitter: TypeAlias = Callable[[str], Chunks]

SIZE: Final = 400


def count(text: str) -> int:
    """Tokens in cl100k."""
    return len(tiktoken_cl100k().encode_ordinary(text))


def ours(tokenizer: str = "cl100k") -> Splitter:
    """Our spans."""
    from llama_index_contextual.chunking import ChunkSettings, split_markdown

    settings = ChunkSettings(chunk_size=SIZE, chunk_overlap=0, tokenizer=tokenizer)
    return lambda text: [(text[s.start : s.end], s.start) for s in split_markdown(text, settings=settings)]


def ours_nodes() -> Splitter:
    """Our node parser, LlamaIndex nodes included."""
    from llama_index.core import Document

    from llama_index_contextual.chunking import HeadingAwareMarkdownNodeParser

    parser = HeadingAwareMarkdownNodeParser(chunk_size=SIZE, chunk_overlap=0)
    return lambda text: [(n.text, n.start_char_idx) for n in parser.get_nodes_from_documents([Document(text=text)])]


def llama_index_pair() -> Splitter:
    """What LlamaIndex recommends for Markdown."""
    from llama_index.core import Document
    from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter

    headings, sentences = (
        MarkdownNodeParser(),
        SentenceSplitter(chunk_size=SIZE, chunk_overlap=0, include_metadata=False),
    )

    def split(text: str) -> Chunks:
        nodes: Any = headings.get_nodes_from_documents([Document(text=text)])
        return [(n.text, n.start_char_idx) for n in sentences.get_nodes_from_documents(nodes)]

    return split


def llama_index_sentences() -> Splitter:
    """Its default splitter."""
    from llama_index.core import Document
    from llama_index.core.node_parser import SentenceSplitter

    splitter = SentenceSplitter(chunk_size=SIZE, chunk_overlap=0)
    return lambda text: [(n.text, n.start_char_idx) for n in splitter.get_nodes_from_documents([Document(text=text)])]


def langchain_headers() -> Splitter:
    """Headers first, then by characters that lengths in tokens govern."""
    from langchain_text_splitters import MarkdownHeaderTextSplitter, RecursiveCharacterTextSplitter

    marks = [("#" * level, f"h{level}") for level in range(1, 7)]
    headings = MarkdownHeaderTextSplitter(marks, strip_headers=False)
    pieces = RecursiveCharacterTextSplitter(
        chunk_size=SIZE, chunk_overlap=0, length_function=count, add_start_index=True
    )

    def split(text: str) -> Chunks:
        documents = pieces.split_documents(headings.split_text(text))
        return [(d.page_content, d.metadata["start_index"]) for d in documents]

    return split


def langchain_markdown() -> Splitter:
    """Its one-step Markdown splitter."""
    from langchain_text_splitters import MarkdownTextSplitter

    splitter = MarkdownTextSplitter(chunk_size=SIZE, chunk_overlap=0, length_function=count, add_start_index=True)
    return lambda text: [(d.page_content, d.metadata["start_index"]) for d in splitter.create_documents([text])]


def chonkie_markdown(tokenizer: Any = None) -> Splitter:
    """Recursive, with rules like its Markdown recipe; by tiktoken unless told otherwise."""
    from chonkie import RecursiveChunker, RecursiveLevel, RecursiveRules

    rules = RecursiveRules(
        levels=[  # chonkie's own Markdown recipe, which it would download
            RecursiveLevel(delimiters=[f"\n{'#' * level} " for level in range(1, 7)], include_delim="next"),
            RecursiveLevel(delimiters=["\n\n", "\n", "\r\n", "\r"], include_delim="prev"),
            RecursiveLevel(delimiters=[". ", "? ", "! "], include_delim="prev"),
            RecursiveLevel(whitespace=True),
            RecursiveLevel(),
        ]
    )
    tokenizer = tokenizer or tiktoken_cl100k()
    chunker = RecursiveChunker(tokenizer=tokenizer, chunk_size=SIZE, rules=rules, min_characters_per_chunk=24)
    return lambda text: [(c.text, c.start_index) for c in chunker.chunk(text)]


def semantic_text_splitter(unit: str) -> Splitter:
    """Rust; by tokens or by characters."""
    from semantic_text_splitter import MarkdownSplitter

    if unit == "tokens":
        splitter = MarkdownSplitter.from_tiktoken_model("gpt-3.5-turbo", SIZE)
    else:
        splitter = MarkdownSplitter(SIZE * 4)
    return lambda text: [(chunk, offset) for offset, chunk in splitter.chunk_indices(text)]


def semchunk_() -> Splitter:
    """By white space, recursively."""
    import semchunk

    # It remembers counts, by counter, as long as the process lives: with a new one, no pass profits from another.
    chunker = semchunk.chunkerify(lambda text: count(text), SIZE)  # noqa: PLW0108

    def split(text: str) -> Chunks:
        chunks, offsets = chunker(text, offsets=True)
        return [(chunk, offset[0]) for chunk, offset in zip(chunks, offsets, strict=True)]

    return split


SPLITTERS: Final[dict[str, tuple[Callable[[], Splitter], bool]]] = {  # and whether it gives header paths
    "ours, exact tokens": (ours, True),
    "ours, as LlamaIndex nodes": (ours_nodes, True),
    "LlamaIndex Markdown + Sentence": (llama_index_pair, True),
    "LlamaIndex SentenceSplitter": (llama_index_sentences, False),
    "LangChain Header + Recursive": (langchain_headers, True),
    "LangChain MarkdownTextSplitter": (langchain_markdown, False),
    "chonkie Recursive, Markdown": (chonkie_markdown, False),
    "semantic-text-splitter, tokens": (lambda: semantic_text_splitter("tokens"), False),
    "semantic-text-splitter, 1,600 chars": (lambda: semantic_text_splitter("chars"), False),
    "semchunk": (semchunk_, False),
}
