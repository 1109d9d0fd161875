"""Generators of chunk contexts: from headings, from patterns, from an LLM, and from whichever of them can."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from llama_index_contextual.context.base import (
    ChunkContext,
    ContextGenerator,
    ContextProgress,
    DocumentChunks,
    Progress,
    SourceDocument,
)
from llama_index_contextual.context.documents import group_by_document
from llama_index_contextual.context.free import HeadingContextGenerator, PatternContextGenerator
from llama_index_contextual.context.kinds import CONTEXTS, LLM, OFF, context_name, resolve_generator
from llama_index_contextual.context.usage import ContextEstimate, ContextUsage, Prices, Tokens
from llama_index_contextual.sqlite_store import SQLiteKVStore

if TYPE_CHECKING:
    from llama_index_contextual.context.llm import LLMContextGenerator
    from llama_index_contextual.context.requests import LLMOptions

__all__ = [  # what users import
    "ChunkContext",
    "ContextEstimate",
    "ContextGenerator",
    "ContextProgress",
    "ContextUsage",
    "DocumentChunks",
    "HeadingContextGenerator",
    "LLMContextGenerator",
    "LLMOptions",
    "PatternContextGenerator",
    "Prices",
    "SQLiteKVStore",
    "SourceDocument",
    "Tokens",
    "resolve_generator",
]

_LATE = {"LLMContextGenerator": "llm", "LLMOptions": "requests"}  # their imports take a tenth of a question's start


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
