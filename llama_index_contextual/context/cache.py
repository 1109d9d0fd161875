"""Paid contexts, kept: by the chunk they belong to, in any LlamaIndex key-value store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

from llama_index.core.schema import MetadataMode
from llama_index.core.storage.kvstore.types import BaseKVStore
from llama_index.core.utils import get_cache_dir

from llama_index_contextual.errors import SettingError
from llama_index_contextual.identity import short_hash
from llama_index_contextual.metadata import HEADER_PATH
from llama_index_contextual.sqlite_store import SQLiteKVStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import SourceDocument

Reuse = Literal["chunk", "document"]

OBJECT: Final = "object:"  # before the name of something that was passed as an object
_COLLECTION: Final = "contexts"
_STATES: Final = "context_states"
_FILE: Final = "contexts.sqlite"


def open_store(cache: str | os.PathLike[str] | BaseKVStore | bool | None) -> BaseKVStore | None:
    """Give the store that a setting names.

    Args:
        cache: A file (SQLite); a store; True or None for a file in LlamaIndex's cache folder; False for none.
    """
    if cache is False:
        return None
    if isinstance(cache, BaseKVStore):
        return cache
    if cache is None or cache is True:
        return SQLiteKVStore(Path(get_cache_dir()) / "contextual" / _FILE)
    if isinstance(cache, str) and cache.startswith(OBJECT):
        raise SettingError(f"cache={cache!r} was a store, which is never written down. Cure: pass it again.")
    if isinstance(cache, str | os.PathLike) and os.fspath(cache):
        path = Path(cache)
        return SQLiteKVStore(path / _FILE if path.is_dir() else path)
    raise SettingError(f"cache={cache!r} is no cache. Cure: a file's path, a LlamaIndex BaseKVStore, or False.")


class ContextCache:
    """Contexts by what they were made from.

    A context is found again under its chunk's text, header path, model and prompt, together with either the
    document's path or the document's text. So it survives an edit elsewhere in its document (same path) and a renaming
    (same text), and a chunk that stands word for word in two documents gets a context in each. After an edit elsewhere
    it may be outdated in what it says about the rest: ``reuse="document"`` does not look under the path.

    Args:
        store: Where; None keeps nothing.
        version: The generator's: model, prompt, settings.
        reuse: ``"chunk"`` or ``"document"``.
    """

    def __init__(self, store: BaseKVStore | None, version: str, reuse: Reuse) -> None:
        self.store, self._version, self._reuse = store, version, reuse

    def keys(self, node: BaseNode, document: SourceDocument, text_hash: str) -> tuple[str, ...]:
        """Give the keys that a chunk's context is kept under; ``text_hash`` is of the document's text."""
        parts = [
            node.get_content(metadata_mode=MetadataMode.NONE),
            str(node.metadata.get(HEADER_PATH) or ""),
            self._version,
        ]
        by_text = short_hash([*parts, "text", text_hash])
        if self._reuse == "document":
            return (by_text,)
        return short_hash([*parts, "path", document.path or document.id]), by_text

    def find(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[str | None]:
        """Give the contexts of chunks; None for those that are not kept."""
        if self.store is None:
            return [None] * len(nodes)
        text_hash = short_hash([document.text])
        keys = [self.keys(node, document, text_hash) for node in nodes]
        found = self._get([key for both in keys for key in both])
        return [next((found[key]["text"] for key in both if key in found), None) for both in keys]

    def keep(self, contexts: Sequence[tuple[BaseNode, str]], document: SourceDocument) -> None:
        """Keep contexts; they are on disk when this returns."""
        if self.store is None or not contexts:
            return
        text_hash = short_hash([document.text])
        pairs = [(key, {"text": text}) for node, text in contexts for key in self.keys(node, document, text_hash)]
        if isinstance(self.store, SQLiteKVStore):
            self.store.put_all(pairs, _COLLECTION)
        else:  # not every store takes a batch
            for key, value in pairs:
                self.store.put(key, value, _COLLECTION)

    def state(self) -> str:
        """Give the mark of the last run that had to fall back; empty where none had to."""
        kept = None if self.store is None else self.store.get(self._version, _STATES)
        return "" if kept is None else str(kept["run"])

    def mark_failed(self) -> None:
        """Note that a run fell back, so that a pipeline's own cache does not take its result for final."""
        if self.store is not None:
            self.store.put(self._version, {"run": uuid4().hex}, _STATES)

    def close(self) -> None:
        """Close the store, where it is a file of ours."""
        if isinstance(self.store, SQLiteKVStore):
            self.store.close()

    def _get(self, keys: list[str]) -> dict[str, dict[str, Any]]:
        if self.store is None:
            return {}
        if isinstance(self.store, SQLiteKVStore):
            return self.store.get_many(keys, _COLLECTION)
        values = ((key, self.store.get(key, _COLLECTION)) for key in keys)
        return {key: value for key, value in values if value is not None}
