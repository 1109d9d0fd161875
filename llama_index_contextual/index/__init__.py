"""The index: opened, refreshed, asked."""

from llama_index_contextual.index.contextual import ContextualIndex
from llama_index_contextual.index.report import RefreshReport

__all__ = ["ContextualIndex", "RefreshReport"]
