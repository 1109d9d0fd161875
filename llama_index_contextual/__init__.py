"""Contextual retrieval for LlamaIndex: give every chunk its context back, and find it again.

The names below are the public interface; each is imported when it is first used, because chromadb alone takes a second.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llama_index_contextual.chunking import HeadingAwareMarkdownNodeParser
    from llama_index_contextual.errors import ContextualError, ContextualWarning
    from llama_index_contextual.memory import MemoryContext
    from llama_index_contextual.retrieval import (
        ContextualBM25Retriever,
        ContextualFusionRetriever,
        ContextualNodePostprocessor,
        ContextualVectorRetriever,
        GroupingPostprocessor,
        RecencyPostprocessor,
    )

__all__ = [
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
    "ContextualBM25Retriever": "retrieval",
    "ContextualError": "errors",
    "ContextualFusionRetriever": "retrieval",
    "ContextualNodePostprocessor": "retrieval",
    "ContextualVectorRetriever": "retrieval",
    "ContextualWarning": "errors",
    "GroupingPostprocessor": "retrieval",
    "HeadingAwareMarkdownNodeParser": "chunking",
    "MemoryContext": "memory",
    "RecencyPostprocessor": "retrieval",
    # The application's two names are found here, too, where it is installed. The plug-in imports nothing of it.
    "ContextualIndex": "app",
    "LocalEmbedding": "app",
}


def __getattr__(name: str) -> object:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{room}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
