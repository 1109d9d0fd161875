"""A LlamaIndex key-value store in one SQLite file, where every write is on disk when it returns."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.storage.kvstore.types import DEFAULT_BATCH_SIZE, DEFAULT_COLLECTION, BaseKVStore

from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS kv (
    collection TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (collection, key)
) WITHOUT ROWID
"""
_BUSY_SECONDS: Final = 30.0  # how long a writer waits for another process
_MAX_VARIABLES: Final = 500  # SQLite before 3.32 takes 999 in a statement


class SQLiteKVStore(BaseKVStore):
    """Key-value store in a file that several threads and processes may share.

    LlamaIndex's own local store, ``SimpleKVStore``, writes all of itself when it is told to persist; a process killed
    before that has lost everything.

    Args:
        path: The file. It and its folder are created at the first write.

    Raises:
        StorageError: The file cannot be opened or is no SQLite database.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0

    def __repr__(self) -> str:
        return f"SQLiteKVStore({str(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]

    def put(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> None:
        """Write one value; it survives the death of the process from here on."""
        self.put_all([(key, val)], collection)

    def put_all(
        self,
        kv_pairs: Iterable[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = DEFAULT_BATCH_SIZE,  # noqa: ARG002  one transaction, however many
    ) -> None:
        """Write several values, all of them or none."""
        rows = [(collection, key, json.dumps(value)) for key, value in kv_pairs]
        self._run("INSERT OR REPLACE INTO kv VALUES (?, ?, ?)", rows)

    def get(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        """Read one value; None where there is none."""
        return self.get_many([key], collection).get(key)

    def get_many(self, keys: Iterable[str], collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Read those of several values that there are."""
        wanted, found = list(keys), {}
        for start in range(0, len(wanted), _MAX_VARIABLES):
            part = wanted[start : start + _MAX_VARIABLES]
            marks = ",".join("?" * len(part))
            query = f"SELECT key, value FROM kv WHERE collection = ? AND key IN ({marks})"  # noqa: S608  only "?"
            found.update({key: json.loads(value) for key, value in self._fetch(query, (collection, *part))})
        return found

    def get_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Read everything."""
        rows = self._fetch("SELECT key, value FROM kv WHERE collection = ?", (collection,))
        return {key: json.loads(value) for key, value in rows}

    def delete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Delete one value; say whether there was one."""
        return self._run("DELETE FROM kv WHERE collection = ? AND key = ?", [(collection, key)]) > 0

    async def aput(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> None:
        """Write one value without blocking the event loop."""
        await asyncio.to_thread(self.put, key, val, collection)

    async def aput_all(
        self,
        kv_pairs: Iterable[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> None:
        """Write several values without blocking the event loop."""
        await asyncio.to_thread(self.put_all, kv_pairs, collection, batch_size)

    async def aget(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        """Read one value without blocking the event loop."""
        return await asyncio.to_thread(self.get, key, collection)

    async def aget_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Read everything without blocking the event loop."""
        return await asyncio.to_thread(self.get_all, collection)

    async def adelete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Delete one value without blocking the event loop."""
        return await asyncio.to_thread(self.delete, key, collection)

    def close(self) -> None:
        """Close the file; the next access opens it again."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def _run(self, statement: str, rows: Sequence[tuple[str, ...]]) -> int:
        with self._lock:
            try:
                with self._open() as connection:  # a transaction
                    return connection.executemany(statement, rows).rowcount
            except sqlite3.Error as error:
                raise self._failed(error) from error

    def _fetch(self, query: str, parameters: tuple[str, ...]) -> list[tuple[str, str]]:
        with self._lock:
            try:
                with closing(self._open().execute(query, parameters)) as rows:
                    return rows.fetchall()
            except sqlite3.Error as error:
                raise self._failed(error) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None or self._process != os.getpid():  # a forked child must not use its parent's
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise self._failed(error) from error
            connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, check_same_thread=False)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")  # on disk at each commit, not at the next checkpoint
            with connection:
                connection.execute(_SCHEMA)
            self._connection, self._process = connection, os.getpid()
        return self._connection

    def _failed(self, error: Exception) -> StorageError:
        return StorageError(
            f"The cache of contexts {self.path} cannot be used: {error}. "
            "Cure: name another file, or delete this one (its contexts are then paid for again)."
        )
