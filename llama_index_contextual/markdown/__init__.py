"""Markdown text to chunks, as pure functions: blocks, sentences, packing, front matter. No LlamaIndex here."""

from __future__ import annotations

from llama_index_contextual.markdown.packing import ChunkSettings
from llama_index_contextual.markdown.properties import (
    FrontMatter,
    inline_tags,
    prose_lines,
    read_front_matter,
    with_fences,
    without_comments,
)
from llama_index_contextual.markdown.sections import TOP, Open
from llama_index_contextual.markdown.spans import Span, headings_of, split_markdown
