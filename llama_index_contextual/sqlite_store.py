"""A LlamaIndex key-value store in one SQLite file, for what must outlive its process: contexts, vectors of windows."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from llama_index.core.storage.kvstore.types import DEFAULT_BATCH_SIZE, DEFAULT_COLLECTION, BaseKVStore
from llama_index.core.utils import iter_batch

from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_T = TypeVar("_T")

MAX_VARIABLES: Final = 500  # SQLite before 3.32 takes 999 in a statement
_BUSY_SECONDS: Final = 30.0  # how long a writer waits for another process
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS kv (
    collection TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (collection, key)
) WITHOUT ROWID
"""


class LocalKVStore(BaseKVStore):
    """The shared part of this package's key-value stores: several values at once, and async by threads."""

    @abstractmethod
    def write(self, values: dict[str, dict[str, Any]], collection: str) -> None:
        """Write several values in one transaction."""

    @abstractmethod
    def get_many(self, keys: Iterable[str], collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """The present ones of several values, by key."""

    def put_all(
        self,
        kv_pairs: Iterable[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = DEFAULT_BATCH_SIZE,  # noqa: ARG002  one transaction, however many
    ) -> None:
        """Write several values, all of them or none."""
        self.write(dict(kv_pairs), collection)

    def put(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> None:
        """Write one value; it survives the death of the process from here on."""
        self.put_all([(key, val)], collection)

    def get(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        """One value; None where there is none."""
        return self.get_many([key], collection).get(key)

    async def aput(self, *arguments: Any, **named: Any) -> None:
        """Write one value without blocking the event loop."""
        await asyncio.to_thread(self.put, *arguments, **named)

    async def aput_all(self, *arguments: Any, **named: Any) -> None:
        """Write several values without blocking the event loop."""
        await asyncio.to_thread(self.put_all, *arguments, **named)

    async def aget(self, *arguments: Any, **named: Any) -> dict[str, Any] | None:
        """One value, without blocking the event loop."""
        return await asyncio.to_thread(self.get, *arguments, **named)

    async def aget_all(self, *arguments: Any, **named: Any) -> dict[str, dict[str, Any]]:
        """All values of a collection, without blocking the event loop."""
        return await asyncio.to_thread(self.get_all, *arguments, **named)

    async def adelete(self, *arguments: Any, **named: Any) -> bool:
        """Delete one value without blocking the event loop."""
        return await asyncio.to_thread(self.delete, *arguments, **named)


class SQLiteKVStore(LocalKVStore):
    """Key-value store in a file in WAL mode, shared by threads and processes; each commit is on disk when it returns.

    LlamaIndex's own local store, ``SimpleKVStore``, writes all of itself when it is told to persist; a process killed
    before that has lost everything. The file is made at its first write, and opened again in a forked child, which must
    not use its parent's connection. A pickled or copied store opens the same file.

    Args:
        path: The file. It and its folder are created at the first write.

    Raises:
        StorageError: From each method: the file cannot be opened, read or written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0

    def __repr__(self) -> str:
        return f"SQLiteKVStore({str(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def write(self, values: dict[str, dict[str, Any]], collection: str = DEFAULT_COLLECTION) -> None:
        """Write several values in one transaction."""
        rows = [(collection, key, json.dumps(value)) for key, value in values.items()]
        self._write(lambda database: database.executemany("INSERT OR REPLACE INTO kv VALUES (?, ?, ?)", rows))

    def get_many(self, keys: Iterable[str], collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """The present ones of several values, by key."""
        values = {}
        for part in iter_batch(keys, MAX_VARIABLES):
            marks = ",".join("?" * len(part))
            query = f"SELECT key, value FROM kv WHERE collection = ? AND key IN ({marks})"  # noqa: S608  only "?"
            values.update({key: json.loads(value) for key, value in self._rows(query, (collection, *part))})
        return values

    def get_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """All values of a collection, by key."""
        rows = self._rows("SELECT key, value FROM kv WHERE collection = ?", (collection,))
        return {key: json.loads(value) for key, value in rows}

    def delete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Delete one value; False where there was none."""
        query = "DELETE FROM kv WHERE collection = ? AND key = ?"
        return self._write(lambda database: database.execute(query, (collection, key)).rowcount) > 0

    def close(self) -> None:
        """Close the file; the next access opens it again."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def _rows(self, query: str, parameters: Sequence[str]) -> list[tuple[str, str]]:
        """All rows of a query. Where there is no file there are none: reading makes no file."""
        with self._lock:
            if self._connection is None and not self.path.exists():
                return []
            return self._connected(lambda database: database.execute(query, parameters).fetchall())

    def _write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """The result of ``work``, done in one transaction: all of its changes are on disk, or none is."""

        def in_transaction(database: sqlite3.Connection) -> _T:
            database.execute("BEGIN IMMEDIATE")
            with database:  # which commits, or takes everything back
                return work(database)

        with self._lock:
            return self._connected(in_transaction)

    def _connected(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """The result of ``work`` on an open connection."""
        try:
            if self._connection is None or self._process != os.getpid():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._connection, self._process = self._opened(), os.getpid()
            return work(self._connection)
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # SQLite's message may quote damaged bytes
            cure = "name another file, or delete this one (what it keeps is then paid for again)."
            raise StorageError(f"{self.path} cannot be used: {error}. Cure: {cure}") from error

    def _opened(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, check_same_thread=False, isolation_level=None)
        try:
            database.execute("PRAGMA page_size=8192")  # of a new file: holds five vectors of 384 numbers; 4096, two
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")  # on disk at each commit, not at the next checkpoint
            database.execute(_SCHEMA)
        except BaseException:
            database.close()
            raise
        return database
