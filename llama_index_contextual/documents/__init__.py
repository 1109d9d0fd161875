"""What a folder is read as: which of its files count, and what each becomes, converted where it is no text.

The names are imported when they are first used: the process that converts needs none of LlamaIndex.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from llama_index_contextual.documents.files import FileRules
    from llama_index_contextual.documents.reader import DocumentReader

__all__ = ["DocumentReader", "FileRules"]

_FILES: Final = {"DocumentReader": "reader", "FileRules": "files"}


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
