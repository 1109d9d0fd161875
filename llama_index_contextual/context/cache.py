"""What language models said of chunks, kept in a LlamaIndex key-value store; and such a store in a SQLite file."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.storage.kvstore.types import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_COLLECTION,
    BaseKVStore,
)
from llama_index.core.utils import get_cache_dir

from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import SettingError
from llama_index_contextual.utils.sqlite_file import AMONG, SqliteFile, checksum_of
from llama_index_contextual.utils.text import short_hash

if TYPE_CHECKING:
    from llama_index_contextual.context.base import SourceDocument

_TABLE: Final = """
CREATE TABLE kept (
    collection TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (collection, key)
)"""
_CONTEXTS: Final = "contexts"
_FILE: Final = "contexts.sqlite3"
COLUMNS: Final = "collection, key, value, checksum"


def _in_thread(method: Callable[..., Any]) -> Any:
    """A method that does not block the event loop."""
    return lambda *arguments, **named: asyncio.to_thread(method, *arguments, **named)


class SQLiteKVStore(SqliteFile, BaseKVStore):
    """Key-value store in a file, shared by threads and processes; each value is on disk when its write returns.

    LlamaIndex's own local store, ``SimpleKVStore``, writes all of itself when ``persist`` is called; a process killed
    before that has lost everything. A value that is not as it was written counts as absent. Each method raises a
    StorageError where the file cannot be opened, read or written.
    """

    tables, layout = _TABLE, 3

    def put_rows(self, collection: str, values: Iterable[tuple[str, str | bytes]]) -> None:
        """Write texts or bytes by key, all of them or none."""
        self.insert(
            [(collection, key, value, checksum_of(collection, key, value)) for key, value in values]
        )

    def insert(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write rows with their checksums, all of them or none."""
        with self.transaction() as connection, self.explained():
            connection.executemany(
                f"INSERT OR REPLACE INTO kept ({COLUMNS}) VALUES (?, ?, ?, ?)",  # noqa: S608
                rows,  # noqa: RUF100, S608
            )

    def get_rows(self, collection: str, keys: Iterable[str] | None) -> Iterator[tuple[str, Any]]:
        """The present ones of some texts or bytes, by key; None for all."""
        query, values = f"SELECT {COLUMNS} FROM kept WHERE collection = ?", [collection]  # noqa: S608  our own names
        if keys is not None:
            query, values = f"{query} AND key {AMONG}", [collection, json.dumps([*keys])]
        return ((key, value) for _, key, value, *_ in filter(is_sound, self.rows(query, values)))

    def put_all(
        self,
        kv_pairs: Iterable[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = DEFAULT_BATCH_SIZE,  # noqa: ARG002  one transaction, however many
    ) -> None:
        """Write several values, all of them or none."""
        self.put_rows(collection, [(key, json.dumps(value)) for key, value in kv_pairs])

    def put(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> None:
        """Write one value; it survives the death of the process from here on."""
        self.put_all([(key, val)], collection)

    def get_many(
        self, keys: Iterable[str] | None, collection: str = DEFAULT_COLLECTION
    ) -> dict[str, dict[str, Any]]:
        """The present ones of several values, by key; None for all."""
        return {key: json.loads(text) for key, text in self.get_rows(collection, keys)}

    def get(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        """One value; None where there is none."""
        return self.get_many([key], collection).get(key)

    def get_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """All values of a collection, by key."""
        return self.get_many(None, collection)

    def delete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Delete one value; False where there was none."""
        if not self.exists:
            return False
        with self.transaction() as connection, self.explained():
            query = "DELETE FROM kept WHERE collection = ? AND key = ?"
            return connection.execute(query, (collection, key)).rowcount > 0

    aput, aput_all, adelete = _in_thread(put), _in_thread(put_all), _in_thread(delete)
    aget, aget_all = _in_thread(get), _in_thread(get_all)


def is_sound(row: tuple[Any, ...]) -> bool:
    """Whether a row of ``kept`` is as it was written."""
    return bool(row[-1] == checksum_of(*row[:-1]))


class Kept(NamedTuple):
    """The record of a chunk: its context, or why the model gave none."""

    text: str | None = None
    reason: str = ""


class ContextCache:
    """The contexts that a model gave, and why it gave a chunk none.

    A context is found again under its chunk's text, header path, model and prompt, together with either the
    document's path or the document's text. So it survives an edit elsewhere in its document (same path) and a renaming
    (same text), and a chunk that stands word for word in two documents gets a context in each.

    Args:
        where: A file (SQLite), any LlamaIndex key-value store, None for a file in LlamaIndex's cache folder; False
            keeps nothing.
        version_of: The hash of model and prompt for a document.
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | BaseKVStore | bool | None,
        version_of: Callable[[SourceDocument], str],
    ) -> None:
        place = Path(get_cache_dir()) / "contextual" / _FILE if where is None else where
        self.store: BaseKVStore | None = place if isinstance(place, BaseKVStore) else None
        self._version_of = version_of
        if isinstance(place, str | os.PathLike) and os.fspath(place):
            self.store = SQLiteKVStore(place)
        elif self.store is None and place is not False:
            raise SettingError(
                "`cache` must be the path of a file, a LlamaIndex BaseKVStore, or False "
                f"(got {where!r})."
            )

    def find(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[Kept]:
        """The records of chunks. A store may be shared: what is no record there counts as none."""
        if self.store is None:
            return [Kept() for _ in nodes]
        rows, get_many = self._keys(nodes, document), getattr(self.store, "get_many", None)
        keys = [key for row in rows for key in row]
        values = (
            get_many(keys, _CONTEXTS)
            if get_many
            else {key: self.store.get(key, _CONTEXTS) for key in keys}
        )
        found = [[_record(values.get(key)) for key in row] for row in rows]
        return [max(row, key=lambda kept: (kept.text is not None, kept.reason)) for row in found]

    def keep(self, records: Sequence[tuple[BaseNode, Kept]], document: SourceDocument) -> None:
        """Store records; they are on disk when this returns."""
        if self.store is not None and records:
            rows = zip(self._keys((node for node, _ in records), document), records, strict=True)
            self.store.put_all(
                [(key, kept._asdict()) for keys, (_, kept) in rows for key in keys], _CONTEXTS
            )

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
            parts = [
                chunk,
                str(metadata.value_of(node.metadata, metadata.HEADER_PATH) or ""),
                version,
            ]
            rows.append(
                (short_hash([*parts, "path", path]), short_hash([*parts, "text", text_hash]))
            )
        return rows


def _record(value: object) -> Kept:
    """The record in a stored value; an empty one for anything else."""
    text, reason = map(value.get, Kept._fields) if isinstance(value, dict) else (None, "")
    if isinstance(text, str) and text.strip():
        return Kept(text)
    return Kept(None, reason if isinstance(reason, str) else "")
