"""The application: an index of a folder, its command line, its MCP server and its page.

It uses the plug-in; the plug-in never imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from llama_index_contextual.utils.errors import needs

if TYPE_CHECKING:
    from llama_index_contextual.app.index.index import ContextualIndex
    from llama_index_contextual.app.settings.local import LocalEmbedding

__all__ = ["ContextualIndex", "LocalEmbedding"]

_MODULES: Final = {"ContextualIndex": "index.index", "LocalEmbedding": "settings.local"}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs("The application", "app"):
        return getattr(import_module(f"{__name__}.{module}"), name)
