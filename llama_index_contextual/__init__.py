"""Contextual retrieval for LlamaIndex: give every chunk its context back, and find it again.

The names below are the public interface; each is imported when it is first used, because chromadb alone takes a second.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llama_index_contextual.chunking import HeadingAwareMarkdownNodeParser
    from llama_index_contextual.common import ContextualError, ContextualWarning
    from llama_index_contextual.memory import MemoryContext
    from llama_index_contextual.retrieval import (
        ContextualBM25Retriever,
        ContextualFusionRetriever,
        ContextualNodePostprocessor,
        ContextualVectorRetriever,
        GroupingPostprocessor,
        RecencyPostprocessor,
    )

__all__ = [  # those that are in none of these rooms are in the room of retrieval
    "ContextualBM25Retriever",
    "ContextualError",
    "ContextualFusionRetriever",
    "ContextualNodePostprocessor",
    "ContextualVectorRetriever",
    "ContextualWarning",
    "GroupingPostprocessor",
    "HeadingAwareMarkdownNodeParser",
    "MemoryContext",
    "RecencyPostprocessor",
]

__version__ = "0.1.0"

_ROOMS: Final = {
    "ContextualError": "common",
    "ContextualWarning": "common",
    "HeadingAwareMarkdownNodeParser": "chunking",
    "MemoryContext": "memory",
    # The application's two names are found here, too, where it is installed. The plug-in imports nothing of it.
    "ContextualIndex": "app",
    "LocalEmbedding": "app",
}


def __getattr__(name: str) -> object:
    if name not in {*__all__, *_ROOMS}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS.get(name, 'retrieval')}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
