"""Generators of chunk contexts: from headings, from patterns, from an LLM, and from whichever of them can."""

from llama_index_contextual.context.base import (
    ChunkContext,
    ContextGenerator,
    ContextProgress,
    DocumentChunks,
    SourceDocument,
)
from llama_index_contextual.context.free import HeadingContextGenerator, PatternContextGenerator
from llama_index_contextual.context.kinds import resolve_generator
from llama_index_contextual.context.llm.generator import LLMContextGenerator
from llama_index_contextual.context.usage import ContextEstimate, ContextUsage, Prices, Tokens
from llama_index_contextual.sqlite_store import SQLiteKVStore

__all__ = [
    "ChunkContext",
    "ContextEstimate",
    "ContextGenerator",
    "ContextProgress",
    "ContextUsage",
    "DocumentChunks",
    "HeadingContextGenerator",
    "LLMContextGenerator",
    "PatternContextGenerator",
    "Prices",
    "SQLiteKVStore",
    "SourceDocument",
    "Tokens",
    "resolve_generator",
]
