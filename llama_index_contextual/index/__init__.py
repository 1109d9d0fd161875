"""The index: opened, refreshed, asked. What it keeps on disk is drawn in :mod:`llama_index_contextual.index.state`."""

from llama_index_contextual.documents import FileRules
from llama_index_contextual.index.asked import chosen_postprocessors, explained
from llama_index_contextual.index.background import BackgroundRefresh, Freshness, is_refreshing
from llama_index_contextual.index.contextual import ContextualIndex
from llama_index_contextual.index.database import DatabaseKVStore
from llama_index_contextual.index.inspection import IndexStatus, Pending, Verification
from llama_index_contextual.index.plan import RefreshReport
from llama_index_contextual.index.resolve import has_several
from llama_index_contextual.index.settings import PAID
from llama_index_contextual.index.state import DEFAULT_NAME, Layout

__all__ = [  # what users import
    "BackgroundRefresh",
    "ContextualIndex",
    "FileRules",
    "Freshness",
    "IndexStatus",
    "Pending",
    "RefreshReport",
    "Verification",
    "is_refreshing",
]
