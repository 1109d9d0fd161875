"""Memory for agents: what notes hold about a message, as a digest of a few lines."""

from llama_index_contextual.keyword import note_filters
from llama_index_contextual.memory.adapters import MemoryContextBlock, MemoryContextRetriever, memory_tool
from llama_index_contextual.memory.context import MemoryContext, gate_digest
from llama_index_contextual.memory.digest import MemoryDigest, MemoryEntry, Place, on_one_line, shown_path
from llama_index_contextual.memory.ranking import MemorySettings

__all__ = [  # what users import
    "MemoryContext",
    "MemoryContextBlock",
    "MemoryContextRetriever",
    "MemoryDigest",
    "MemoryEntry",
    "MemorySettings",
    "Place",
    "memory_tool",
    "note_filters",
]
