"""A cache of contexts in a LlamaIndex key-value store, and a key-value store in a SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from llama_index.core.storage.kvstore.types import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_COLLECTION,
    BaseKVStore,
)
from llama_index.core.utils import get_cache_dir

from llama_index_contextual.context.answers import storable_line
from llama_index_contextual.context.documents import text_of
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import SettingError
from llama_index_contextual.utils.sqlite_file import AMONG, SqliteFile, checksum_of
from llama_index_contextual.utils.text import short_hash

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import SourceDocument

CacheSource: TypeAlias = "str | os.PathLike[str] | BaseKVStore | bool | None"

_TABLE = """
CREATE TABLE kept (
    collection TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (collection, key)
)"""
_CONTEXTS = "contexts"
_FILE = "contexts.sqlite3"
COLUMNS = "collection, key, value, checksum"
_INSERT = f"INSERT OR REPLACE INTO kept ({COLUMNS}) VALUES (?, ?, ?, ?)"  # noqa: S608  our own names
_SELECT = f"SELECT {COLUMNS} FROM kept WHERE collection = ?"  # noqa: S608  as above
_DELETE = "DELETE FROM kept WHERE collection = ? AND key = ?"


def _in_thread(method: Callable[..., Any]) -> Any:
    """Return an async twin of a method that runs it in a thread."""
    return lambda *arguments, **named: asyncio.to_thread(method, *arguments, **named)


class SQLiteKVStore(SqliteFile, BaseKVStore):
    """A key-value store in a SQLite file that threads and processes can share.

    Each write is on disk when its method returns. LlamaIndex's own local store, ``SimpleKVStore``,
    writes everything when ``persist`` is called, so a process that is killed before that loses all
    its work. A value that was changed on disk is treated as absent. Every method raises a
    StorageError if the file cannot be opened, read or written.
    """

    tables = _TABLE
    layout = 3

    def put_rows(self, collection: str, values: Iterable[tuple[str, str | bytes]]) -> None:
        """Write texts or bytes by key, either all of them or none."""
        rows = []
        for key, value in values:
            checksum = checksum_of(collection, key, value)
            rows.append((collection, key, value, checksum))
        self.insert(rows)

    def insert(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write rows with their checksums, either all of them or none."""
        with self.transaction() as connection, self.explained():
            connection.executemany(_INSERT, rows)

    def get_rows(self, collection: str, keys: Iterable[str] | None) -> Iterator[tuple[str, Any]]:
        """Yield keys with their texts or bytes, or the whole collection if ``keys`` is None."""
        query = _SELECT
        arguments = [collection]
        if keys is not None:
            query += f" AND key {AMONG}"
            arguments.append(json.dumps([*keys]))
        for row in self.rows(query, arguments):
            if is_sound(row):
                _, key, value, _ = row
                yield key, value

    def put_all(
        self,
        kv_pairs: Iterable[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = DEFAULT_BATCH_SIZE,  # noqa: ARG002  always one transaction
    ) -> None:
        """Write several values, either all of them or none."""
        rows = [(key, json.dumps(value)) for key, value in kv_pairs]
        self.put_rows(collection, rows)

    def put(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> None:
        """Write one value. It survives even if the process is killed right afterwards."""
        self.put_all([(key, val)], collection)

    def get_many(
        self, keys: Iterable[str] | None, collection: str = DEFAULT_COLLECTION
    ) -> dict[str, dict[str, Any]]:
        """Return the values of the keys that are present, or all values if ``keys`` is None.

        A value that is not a JSON object was not written by this class and is treated as absent.
        """
        values = {}
        for key, text in self.get_rows(collection, keys):
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                value = json.loads(text)
                if isinstance(value, dict):
                    values[key] = value
        return values

    def get(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        """Return one value, or None if it is absent."""
        return self.get_many([key], collection).get(key)

    def get_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Return all values of a collection."""
        return self.get_many(None, collection)

    def delete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Delete one value, and return whether it was there."""
        if not self.exists:
            return False
        with self.transaction() as connection, self.explained():
            return connection.execute(_DELETE, (collection, key)).rowcount > 0

    aput = _in_thread(put)
    aput_all = _in_thread(put_all)
    aget = _in_thread(get)
    aget_all = _in_thread(get_all)
    adelete = _in_thread(delete)


def is_sound(row: tuple[Any, ...]) -> bool:
    """Return whether a row of ``kept`` is unchanged since it was written."""
    return bool(row[-1] == checksum_of(*row[:-1]))


class CachedContext(NamedTuple):
    """The context of a chunk, or the reason for none. Both are empty if no model was called."""

    text: str = ""
    reason: str = ""


class ContextCache:
    """The contexts that a model wrote, and the reasons why it wrote none for other chunks.

    The key of a context consists of the chunk's text and header path, the model, the prompt, and
    either the document's path or the document's text. So a context survives edits elsewhere in its
    document (same path) and renaming the document (same text). A chunk that appears word for word
    in two documents has a separate context in each.

    Args:
        where: A SQLite file, any LlamaIndex key-value store, None for a file in LlamaIndex's cache
            folder, or False for no cache.
        version_of: A function that returns the hash of the model and the prompt for a document.

    Attributes:
        place: The value of ``where`` as plain data. For a key-value store it is the name of its
            class, from which the store cannot be restored.
    """

    def __init__(self, where: CacheSource, version_of: Callable[[SourceDocument], str]) -> None:
        self._version_of = version_of
        self.store: BaseKVStore | None = None
        self.place: str | bool | dict[str, str] | None = None
        if where is False:
            self.place = False
        elif where is None:
            self.store = SQLiteKVStore(Path(get_cache_dir()) / "contextual" / _FILE)
        elif isinstance(where, BaseKVStore):
            self.store = where
            self.place = {"store": type(where).__qualname__}
        elif isinstance(where, str | os.PathLike) and os.fspath(where):
            self.store = SQLiteKVStore(where)
            self.place = os.fspath(where)
        else:
            raise SettingError(
                "`cache` must be the path of a file, a LlamaIndex BaseKVStore, or False "
                f"(got {where!r})."
            )
        # In a store that several folders share, document paths are relative to one of the folders.
        self._folder = getattr(self.store, "scope", "")

    def find(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[CachedContext]:
        """Return one record per chunk, which is empty if the store has none."""
        if self.store is None:
            return [CachedContext() for _ in nodes]
        keys_of_nodes = self._keys(nodes, document)
        keys = [key for pair in keys_of_nodes for key in pair]
        values: dict[str, Any]
        if isinstance(self.store, SQLiteKVStore):
            values = self.store.get_many(keys, _CONTEXTS)  # in one query
        else:
            values = {key: self.store.get(key, _CONTEXTS) for key in keys}
        records = []
        for pair in keys_of_nodes:
            candidates = [_record(values.get(key)) for key in pair]
            records.append(max(candidates, key=_usefulness))
        return records

    def keep(
        self, records: Sequence[tuple[BaseNode, CachedContext]], document: SourceDocument
    ) -> None:
        """Store records. With a SQLite file, they are on disk when this method returns."""
        if self.store is None or not records:
            return
        keys_of_nodes = self._keys([node for node, _ in records], document)
        rows = []
        for keys, (_, record) in zip(keys_of_nodes, records, strict=True):
            rows += [(key, record._asdict()) for key in keys]
        self.store.put_all(rows, _CONTEXTS)

    def renew(
        self, nodes: Sequence[BaseNode], document: SourceDocument, records: Sequence[CachedContext]
    ) -> None:
        """Store known contexts under their current keys, too, if folders share the store."""
        if not self._folder:
            return
        pairs = zip(nodes, records, strict=True)
        with_text = [(node, record) for node, record in pairs if record.text]
        self.keep(with_text, document)

    def close(self) -> None:
        """Close the file of a SQLite store. It opens again when it is needed."""
        if isinstance(self.store, SQLiteKVStore):
            self.store.close()

    def _keys(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[tuple[str, str]]:
        """Return two keys per chunk: one from the document's path and one from its text."""
        version = self._version_of(document)
        text_hash = short_hash([document.text])
        place = ["path", self._folder, document.path or document.id]
        keys = []
        for node in nodes:
            headings = metadata.text_value(node.metadata, metadata.HEADER_PATH)
            chunk = [text_of(node), headings, version]
            by_path = short_hash([*chunk, *place])
            by_text = short_hash([*chunk, "text", text_hash])
            keys.append((by_path, by_text))
        return keys


def _usefulness(record: CachedContext) -> tuple[bool, str]:
    has_text = record.text != ""
    return has_text, record.reason


def _record(value: object) -> CachedContext:
    """Return the record in a stored value, cleaned like a model's answer; empty for other data.

    A store can be shared, so anybody could have written its values.
    """
    if not isinstance(value, dict):
        return CachedContext()
    text = _line(value.get("text"))
    if text:
        return CachedContext(text)
    return CachedContext("", _line(value.get("reason")))


def _line(value: object) -> str:
    return storable_line(value) if isinstance(value, str) else ""
