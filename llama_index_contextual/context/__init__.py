"""Generators of chunk contexts: from headings, from patterns, from an LLM, and from whichever of them can."""

from llama_index_contextual.context.base import (
    ChunkContext,
    ContextGenerator,
    ContextProgress,
    DocumentChunks,
    SourceDocument,
)
from llama_index_contextual.context.headings import HeadingContextGenerator
from llama_index_contextual.context.resolve import resolve_generator

__all__ = [
    "ChunkContext",
    "ContextGenerator",
    "ContextProgress",
    "DocumentChunks",
    "HeadingContextGenerator",
    "SourceDocument",
    "resolve_generator",
]
