"""The index of a folder: opened, refreshed, searched, and kept up to date in the background."""

from llama_index_contextual.app.folder.walk import FileRules
from llama_index_contextual.app.index.background import BackgroundRefresh, is_refreshing
from llama_index_contextual.app.index.status import Freshness, IndexStatus, RefreshReport

__all__ = [
    "BackgroundRefresh",
    "FileRules",
    "Freshness",
    "IndexStatus",
    "RefreshReport",
    "is_refreshing",
]
