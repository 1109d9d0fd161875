"""The index: opened, refreshed, asked."""

from llama_index_contextual.index.contextual import ContextualIndex
from llama_index_contextual.index.files import FileRules
from llama_index_contextual.index.inspection import IndexStatus, Pending, Verification
from llama_index_contextual.index.migration import MigrationReport
from llama_index_contextual.index.plan import RefreshReport

__all__ = ["ContextualIndex", "FileRules", "IndexStatus", "MigrationReport", "Pending", "RefreshReport", "Verification"]
