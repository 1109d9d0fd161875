"""Memory for agents: a short digest of the notes about a message, and its LlamaIndex adapters.

The names below are imported on first use, so that the settings can be read without LlamaIndex.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_contextual.utils import lazy

if TYPE_CHECKING:
    from llama_index_contextual.memory.adapters import MemoryContextBlock, MemoryContextRetriever
    from llama_index_contextual.memory.context import MemoryContext
    from llama_index_contextual.memory.digest import MemoryDigest, MemoryEntry
    from llama_index_contextual.memory.settings import MemorySettings

__all__ = [
    "MemoryContext",
    "MemoryContextBlock",
    "MemoryContextRetriever",
    "MemoryDigest",
    "MemoryEntry",
    "MemorySettings",
]

_MODULES = {
    "MemoryContext": "context",
    "MemoryContextBlock": "adapters",
    "MemoryContextRetriever": "adapters",
    "MemoryDigest": "digest",
    "MemoryEntry": "digest",
    "MemorySettings": "settings",
}

__getattr__, __dir__ = lazy.attach(__name__, _MODULES)
