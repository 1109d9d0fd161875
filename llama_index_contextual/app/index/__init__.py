"""The index: opened, refreshed, searched."""

from llama_index_contextual.app.folder.walk import FileRules
from llama_index_contextual.app.index.background import BackgroundRefresh, is_refreshing
from llama_index_contextual.app.index.index import ContextualIndex
from llama_index_contextual.app.index.plan import RefreshReport
from llama_index_contextual.app.index.status import Freshness, IndexStatus

__all__ = [  # what users import
    "BackgroundRefresh",
    "ContextualIndex",
    "FileRules",
    "Freshness",
    "IndexStatus",
    "RefreshReport",
    "is_refreshing",
]
