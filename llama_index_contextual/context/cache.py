"""The cache of paid contexts: by the chunk that they belong to, in any LlamaIndex key-value store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from llama_index.core.schema import MetadataMode
from llama_index.core.storage.kvstore.types import BaseKVStore
from llama_index.core.utils import get_cache_dir

from llama_index_contextual.context.base import MAX_CHARS
from llama_index_contextual.errors import SettingError, StorageError
from llama_index_contextual.metadata import HEADER_PATH, value_of
from llama_index_contextual.sqlite_store import SQLiteKVStore
from llama_index_contextual.text import replace_surrogates, short_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import SourceDocument

_CONTEXTS: Final = "contexts"
_STATES: Final = "context_states"
_FILE: Final = "contexts.sqlite3"
UNUSABLE: Final = "unusable"
# Marks by version, of each store of this process. A pipeline hashes them, and no file may be opened for that.
_FAILED_RUNS: Final[dict[object, dict[str, str]]] = {}


class Kept(NamedTuple):
    """The record of a chunk: its context, or why and how many times the model gave none."""

    text: str | None = None
    reason: str = ""
    times: int = 0


def open_store(cache: str | os.PathLike[str] | BaseKVStore | bool | None) -> BaseKVStore | None:
    """The store of a setting: a file (SQLite), a store; True or None for a file in LlamaIndex's cache folder."""
    if cache is False or isinstance(cache, BaseKVStore):
        return cache if isinstance(cache, BaseKVStore) else None
    path = Path(get_cache_dir()) / "contextual" / _FILE if cache is None or cache is True else cache
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise SettingError("is no cache. Cure: a file's path, a LlamaIndex BaseKVStore, or False.", cache=cache)
    return SQLiteKVStore(Path(path) / _FILE if Path(path).is_dir() else path)


class ContextCache:
    """The contexts that a model gave, and how often it gave a chunk none.

    A context is found again under its chunk's text, header path, model and prompt, together with either the
    document's path or the document's text. So it survives an edit elsewhere in its document (same path) and a renaming
    (same text), and a chunk that stands word for word in two documents gets a context in each.

    Args:
        store: Where; None stores nothing.
        version_of: The hash of model and prompt for a document.
    """

    def __init__(self, store: BaseKVStore | None, version_of: Callable[[SourceDocument], str]) -> None:
        self.store, self._version_of = store, version_of
        self._failed_runs = {} if store is None else _FAILED_RUNS.setdefault(getattr(store, "path", id(store)), {})
        self._failed_runs |= self._marks()

    def find(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[Kept]:
        """The records of chunks. A store may be shared: what is no record there counts as none."""
        keys = self._keys(nodes, document)
        values = self._values([key for row in keys for key in row])
        found = [[values.get(key, Kept()) for key in row] for row in keys]
        return [max(row, key=lambda kept: (kept.text is not None, kept.times)) for row in found]

    def keep(self, records: Iterable[tuple[BaseNode, Kept]], document: SourceDocument) -> None:
        """Store records; they are on disk when this returns."""
        records = list(records)
        if self.store is None or not records:
            return
        rows = zip(self._keys((node for node, _ in records), document), records, strict=True)
        self._write([(key, kept._asdict()) for keys, (_, kept) in rows for key in keys], _CONTEXTS)

    def state(self, version: str) -> str:
        """The mark of a version's last run that had to fall back; empty where none had to. It opens no file."""
        return self._failed_runs.get(version, "")

    def mark_failed(self, version: str) -> None:
        """Note that a run fell back, so that a pipeline's own cache does not take its result for final."""
        self._failed_runs[version] = uuid4().hex
        self._write([(version, {"run": self._failed_runs[version]})], _STATES)

    def _marks(self) -> dict[str, str]:
        """The marks that are stored; none where the file cannot be read, which a run names."""
        try:
            stored = {} if self.store is None else self.store.get_all(_STATES)
            return {version: str(value["run"]) for version, value in stored.items()}
        except (StorageError, ValueError, TypeError, LookupError, RecursionError):  # a store may be shared, too
            return {}
        finally:
            self.close()

    def _write(self, values: list[tuple[str, dict[str, Any]]], collection: str) -> None:
        if self.store is not None:
            self.store.put_all(values, collection)

    def close(self) -> None:
        """Close the store, where it is a file of ours."""
        if isinstance(self.store, SQLiteKVStore):
            self.store.close()

    def _keys(self, nodes: Iterable[BaseNode], document: SourceDocument) -> list[tuple[str, str]]:
        """The two keys of each chunk: with the document's path, and with its text."""
        version, path, rows = self._version_of(document), document.path or document.id, []
        text_hash = short_hash([document.text])
        for node in nodes:
            chunk = node.get_content(metadata_mode=MetadataMode.NONE)
            parts = [chunk, str(value_of(node.metadata, HEADER_PATH) or ""), version]
            rows.append((short_hash([*parts, "path", path]), short_hash([*parts, "text", text_hash])))
        return rows

    def _values(self, keys: Sequence[str]) -> dict[str, Kept]:
        if self.store is None:
            return {}
        get_many = getattr(self.store, "get_many", None)
        values = get_many(keys, _CONTEXTS) if get_many else {key: self.store.get(key, _CONTEXTS) for key in keys}
        return {key: _record(value) for key, value in values.items() if value is not None}


def _record(value: object) -> Kept:
    """The record in a stored value; one that is unusable for anything that no model's answer becomes."""
    text, reason, times = map(value.get, Kept._fields) if isinstance(value, dict) else (None, None, None)
    if isinstance(text, str) and text.strip() and len(text) <= MAX_CHARS and len(text.splitlines()) == 1:
        return Kept(replace_surrogates(text)[0])
    return Kept(None, reason, times) if isinstance(reason, str) and isinstance(times, int) else Kept(reason=UNUSABLE)
