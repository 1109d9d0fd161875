"""Chunking: Markdown text to blocks and spans, as pure functions, and the node parser that makes nodes of them."""

from __future__ import annotations

from llama_index_contextual.chunking.markdown import read_front_matter
from llama_index_contextual.chunking.node_metadata import headings_of
from llama_index_contextual.chunking.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.chunking.splitting import ChunkSettings, split_markdown
