"""Contextual retrieval for LlamaIndex: give every chunk its context back, and find it again.

The names below are the public interface; each is imported when it is first used, because chromadb alone takes a second.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llama_index_contextual.embeddings import LocalEmbedding
    from llama_index_contextual.errors import ContextualError, ContextualWarning
    from llama_index_contextual.index import ContextualIndex
    from llama_index_contextual.memory import MemoryContext
    from llama_index_contextual.node_parser import HeadingAwareMarkdownNodeParser
    from llama_index_contextual.postprocessor import (
        ContextualNodePostprocessor,
        GroupingPostprocessor,
        RecencyPostprocessor,
    )
    from llama_index_contextual.retrievers import (
        ContextualBM25Retriever,
        ContextualFusionRetriever,
        ContextualVectorRetriever,
    )

__all__ = [
    "ContextualBM25Retriever",
    "ContextualError",
    "ContextualFusionRetriever",
    "ContextualIndex",
    "ContextualNodePostprocessor",
    "ContextualVectorRetriever",
    "ContextualWarning",
    "GroupingPostprocessor",
    "HeadingAwareMarkdownNodeParser",
    "LocalEmbedding",
    "MemoryContext",
    "RecencyPostprocessor",
]

__version__ = "0.1.0"

_ROOMS: Final = {
    "ContextualBM25Retriever": "retrievers",
    "ContextualError": "errors",
    "ContextualFusionRetriever": "retrievers",
    "ContextualIndex": "index",
    "ContextualNodePostprocessor": "postprocessor",
    "ContextualVectorRetriever": "retrievers",
    "ContextualWarning": "errors",
    "GroupingPostprocessor": "postprocessor",
    "HeadingAwareMarkdownNodeParser": "node_parser",
    "LocalEmbedding": "embeddings",
    "MemoryContext": "memory",
    "RecencyPostprocessor": "postprocessor",
}


def __getattr__(name: str) -> object:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{room}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
