"""A LlamaIndex key-value store in a SQLite file."""

from __future__ import annotations

import asyncio
import json
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.storage.kvstore.types import DEFAULT_BATCH_SIZE, DEFAULT_COLLECTION, BaseKVStore

from llama_index_contextual.sqlite_file import AMONG, SqliteFile, checksum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_TABLE: Final = """
CREATE TABLE kept (
    collection TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (collection, key)
)"""
COLUMNS: Final = "collection, key, value, checksum"


def _in_thread(method: Callable[..., Any]) -> Any:
    """A method that does not block the event loop."""

    @wraps(method)
    async def call(*arguments: Any, **named: Any) -> Any:
        return await asyncio.to_thread(method, *arguments, **named)

    return call


class SQLiteKVStore(SqliteFile, BaseKVStore):
    """Key-value store in a file, shared by threads and processes; each value is on disk when its write returns.

    LlamaIndex's own local store, ``SimpleKVStore``, writes all of itself when ``persist`` is called; a process killed
    before that has lost everything. A value that is not as it was written counts as absent. Each method raises a
    StorageError where the file cannot be opened, read or written.
    """

    tables, layout = _TABLE, 3

    def put_rows(self, collection: str, values: Iterable[tuple[str, str | bytes]]) -> None:
        """Write texts or bytes by key, all of them or none."""
        self.insert([(collection, key, value, checksum_of(collection, key, value)) for key, value in values])

    def insert(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write rows with their checksums, all of them or none."""
        with self.transaction() as connection, self.explained():
            connection.executemany(f"INSERT OR REPLACE INTO kept ({COLUMNS}) VALUES (?, ?, ?, ?)", rows)  # noqa: S608

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

    def get_many(self, keys: Iterable[str] | None, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
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
