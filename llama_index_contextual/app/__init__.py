"""The application: an index of a folder, its command line, its MCP server and its page.

It uses the plug-in; the plug-in never imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_contextual.utils import lazy

if TYPE_CHECKING:
    from llama_index_contextual.app.index.index import ContextualIndex
    from llama_index_contextual.app.settings.local import LocalEmbedding

__all__ = ["ContextualIndex", "LocalEmbedding"]

_MODULES = {"ContextualIndex": "index.index", "LocalEmbedding": "settings.local"}

__getattr__, __dir__ = lazy.attach(__name__, _MODULES, extra="app")
