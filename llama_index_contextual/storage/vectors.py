"""Vectors that were computed, on disk before anything else happens: no text is embedded twice.

Chroma keeps vectors in memory for up to 1,000 writes and cannot be asked for the vector of a text. This cache holds
them by the hash of the embedded text: a kill loses the batch in flight, a renamed or restored file costs nothing, and a
damaged Chroma segment is filled again without the model. It can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_T = TypeVar("_T")
_PART = 500  # below SQLite's old limit of 999 variables


class VectorCache:
    """A table of (model, hash of the embedded text) to vector, in SQLite's WAL mode.

    Args:
        path: The file. One that is damaged or no database is set aside as ``<name>.damaged`` and started afresh.
        model: Identity of the embedding model: vectors of several models live side by side.
    """

    def __init__(self, path: Path, model: str) -> None:
        self._path = path
        self._model = model
        try:
            self._database = self._open()
        except sqlite3.DatabaseError:
            self._database = self._afresh()

    def _afresh(self) -> sqlite3.Connection:
        with contextlib.suppress(OSError):
            self._path.replace(self._path.with_name(self._path.name + ".damaged"))
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        return self._open()

    def _mended(self, work: Callable[[], _T]) -> _T:
        """What work gives; where it meets damage deeper than opening looks, it is done again on a fresh file."""
        try:
            return work()
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:  # its subclasses tell of a full disk, a lock, a wrong call
                raise
            self._database.close()
            self._database = self._afresh()
            return work()

    def _open(self) -> sqlite3.Connection:
        try:
            database = sqlite3.connect(self._path, timeout=30, check_same_thread=False, isolation_level=None)
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS vectors (model TEXT, hash TEXT, vector BLOB, PRIMARY KEY (model, hash)) "
                "WITHOUT ROWID"
            )
        except sqlite3.OperationalError as error:
            raise StorageError(
                f"{self._path} cannot be written ({error}). Cure: free space, or choose another storage=."
            ) from error
        return database

    def get(self, hashes: Sequence[str]) -> dict[str, list[float]]:
        """Vectors by hash; unknown hashes are absent."""
        return self._mended(lambda: self._get(hashes))

    def _get(self, hashes: Sequence[str]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for start in range(0, len(hashes), _PART):
            part = hashes[start : start + _PART]
            marks = ",".join("?" * len(part))
            rows = self._database.execute(
                f"SELECT hash, vector FROM vectors WHERE model = ? AND hash IN ({marks})",  # noqa: S608  only marks
                (self._model, *part),
            )
            found |= {key: np.frombuffer(blob, np.float32).tolist() for key, blob in rows}
        return found

    def put(self, vectors: Mapping[str, Sequence[float]]) -> None:
        """Keep vectors."""
        rows = [(self._model, key, np.asarray(vector, np.float32).tobytes()) for key, vector in vectors.items()]
        try:
            self._mended(lambda: self._put(rows))
        except sqlite3.Error as error:
            raise StorageError(
                f"{self._path} cannot be written ({error}). What was indexed before is unharmed. "
                "Cure: free space or make the folder writable, then refresh."
            ) from error

    def _put(self, rows: Sequence[tuple[str, str, bytes]]) -> None:
        with self._transaction():
            self._database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)

    def __len__(self) -> int:
        """How many vectors of this model there are."""
        return self._mended(self._count)

    def _count(self) -> int:
        (count,) = self._database.execute("SELECT count(*) FROM vectors WHERE model = ?", (self._model,)).fetchone()
        return int(count)

    def keep_only(self, hashes: Iterable[str]) -> int:
        """Forget this model's vectors of all other hashes; returns how many went."""
        return self._mended(lambda: self._keep_only(hashes))

    def _keep_only(self, hashes: Iterable[str]) -> int:
        with self._transaction():
            self._database.execute("CREATE TEMP TABLE IF NOT EXISTS kept (hash TEXT PRIMARY KEY)")
            self._database.execute("DELETE FROM kept")
            self._database.executemany("INSERT OR IGNORE INTO kept VALUES (?)", ((key,) for key in hashes))
            gone = self._database.execute(
                "DELETE FROM vectors WHERE model = ? AND hash NOT IN (SELECT hash FROM kept)", (self._model,)
            )
        return gone.rowcount

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
