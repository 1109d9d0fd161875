"""Memory for agents.

A short digest of what notes say about a message, and its LlamaIndex adapters.
"""

from llama_index_contextual.memory.adapters import (
    MemoryContextBlock,
    MemoryContextRetriever,
    memory_tool,
)
from llama_index_contextual.memory.context import MemoryContext
from llama_index_contextual.memory.digest import MemoryDigest, MemoryEntry, MemorySettings

__all__ = [
    "MemoryContext",
    "MemoryContextBlock",
    "MemoryContextRetriever",
    "MemoryDigest",
    "MemoryEntry",
    "MemorySettings",
    "memory_tool",
]
