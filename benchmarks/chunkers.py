"""The splitters that are compared: ours and its peers, each by a number of cl100k tokens and without overlap."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, TypeAlias

from llama_index_contextual.text.tokens import tiktoken_cl100k

Chunks: TypeAlias = list[tuple[str, int | None]]  # text and claimed offset
Splitter: TypeAlias = Callable[[str], Chunks]


def count(text: str) -> int:
    """Tokens in cl100k."""
    return len(tiktoken_cl100k().encode_ordinary(text))


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


def langchain_markdown(size: int) -> Splitter:
    """LangChain's for Markdown, lengths in tokens."""
    from langchain_text_splitters import MarkdownTextSplitter

    splitter = MarkdownTextSplitter(chunk_size=size, chunk_overlap=0, length_function=count, add_start_index=True)
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
    "LangChain MarkdownTextSplitter": langchain_markdown,
    "chonkie Recursive": chonkie_recursive,
    "semantic-text-splitter Markdown": semantic_text_splitter,
    "fixed tokens": fixed_tokens,
}
