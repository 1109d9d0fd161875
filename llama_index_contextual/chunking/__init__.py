"""Chunking: Markdown text to blocks and spans, as pure functions, and the node parser that makes nodes of them."""

from __future__ import annotations

from llama_index_contextual.chunking.front_matter import (
    FrontMatter,
    inline_tags,
    prose_lines,
    read_front_matter,
    with_fences,
    without_comments,
)
from llama_index_contextual.chunking.packing import ChunkSettings
from llama_index_contextual.chunking.parser import HeadingAwareMarkdownNodeParser, usual_size
from llama_index_contextual.chunking.sections import TOP, Open
from llama_index_contextual.chunking.splitting import Span, headings_of, split_markdown

__all__ = ["HeadingAwareMarkdownNodeParser", "usual_size"]
