"""The cache of vectors: by the hash of the embedded text, in the file that holds paid contexts, too.

Chroma keeps new vectors in memory for up to 1,000 writes and cannot be asked for the vector of a text, as the cache
can. So a kill loses one batch, a renamed or restored file costs nothing, and damaged vector files of Chroma are filled
again without the model. Whether a vector can be used is judged here, for those who make, keep or read it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import warnings
from base64 import b64decode, b64encode
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.utils import iter_batch

from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.sqlite_store import SQLiteFile, SQLiteKVStore, in_parts
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from llama_index_contextual.shared_store import SharedStore

_ROWS: Final = 1000  # rows moved at once
_FLOAT: Final = "<f4"  # how a shared vector is written, as base64
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS vectors "
    "(model TEXT NOT NULL, hash TEXT NOT NULL, vector BLOB NOT NULL, UNIQUE (model, hash))"
)
_COLUMNS: Final = {"vectors": ["model", "hash", "vector"], "kv": ["collection", "key", "value"]}
_DAMAGED: Final = ".damaged"  # as :class:`SQLiteFile` calls what it sets aside


def _opened(path: Path) -> SQLiteFile:
    cure = "free space or make the folder writable, then refresh; what was indexed before is unharmed."
    file = SQLiteFile(path, set_aside=True, cure=cure).add_table(_TABLE)
    SQLiteKVStore(file)  # has the table of contexts made
    return file


class VectorCache:
    """Vectors by model and hash of the embedded text, in a SQLite file that holds paid contexts too.

    Args:
        path: The file. One that is damaged is set aside with a warning, and what can be read of it is taken over.
        model: Identity of the embedding model; vectors of several models live side by side.
        former: Caches of earlier versions. Their rows are moved over.
        shared: What other machines have made, and are given.
    """

    def __init__(self, path: Path, model: str, former: Iterable[Path] = (), shared: SharedStore | None = None) -> None:
        self._model, self._shared = model, shared
        self._file = _opened(path)
        if not self._fits():
            self._file.close()
            path.replace(path.with_name(path.name + _DAMAGED))
            text = f"{path} is of another version. It is kept as {path.name}{_DAMAGED}, and a new file is started."
            warnings.warn(text, ContextualWarning, stacklevel=2)
            self._file = _opened(path)
        damaged = path.with_name(path.name + _DAMAGED)
        if damaged.exists():
            self._take_over(damaged)
            damaged.replace(path.with_name(path.name + _DAMAGED + ".read"))
        for old in former:
            if old.exists():
                self._take_over(old)
                for suffix in ("", "-wal", "-shm"):
                    old.with_name(old.name + suffix).unlink(missing_ok=True)

    def get(self, hashes: Sequence[str], length: Callable[[], int] | None = None) -> dict[str, list[float]]:
        """Return vectors by hash; hashes that are not known, or whose vector cannot be used, are absent.

        What only others have is kept from here on, if it is as long as the model's vectors are. What is not is named.

        Args:
            hashes: Of texts.
            length: Says how long a vector of the model is. It is asked where others have something, and where the
                vectors that are kept differ in length. None takes the length of those that are kept.

        Raises:
            EmbeddingError: The length is needed, and the model cannot be asked.
            StorageError: The file cannot be used, or what is shared does not answer.
        """
        found = self._own(hashes)
        missing = [key for key in hashes if key not in found]
        values = self._shared.get_many(missing, self._collection) if self._shared is not None and missing else {}
        if values or len(set(map(len, found.values()))) > 1:
            wanted = length() if length is not None else self.dimensions
            found = {key: vector for key, vector in found.items() if len(vector) == wanted}
            others = {key: _decoded(value) for key, value in values.items()}
            faults = {key: fault for key, vector in others.items() if (fault := fault_of(vector, wanted)) is not None}
            usable = {key: vector.tolist() for key, vector in others.items() if key not in faults}
            self._keep(usable)
            found |= usable
            if faults:
                text = f"{counted(len(faults), 'vector')} of the shared cache cannot be used and is made here: "
                warnings.warn(text + next(iter(faults.values())), ContextualWarning, stacklevel=2)
        return found

    def put(self, vectors: Mapping[str, Sequence[float]]) -> None:
        """Keep vectors; they are on disk when this returns, and shared.

        Raises:
            StorageError: The file cannot be used, or what is shared does not answer: they are on disk then.
        """
        self._keep(vectors)
        if self._shared is not None and vectors:
            shared = {key: b64encode(np.asarray(vector, _FLOAT).tobytes()) for key, vector in vectors.items()}
            self._shared.put_all({key: {"vector": text.decode()} for key, text in shared.items()}, self._collection)

    @property
    def _collection(self) -> str:
        return f"vectors:{self._model}"

    def _own(self, hashes: Sequence[str]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for marks, part in in_parts(hashes):
            query = f"SELECT hash, vector FROM vectors WHERE model = ? AND hash IN ({marks})"  # noqa: S608  only "?"
            for key, blob in self._fetch(query, (self._model, *part)):
                vector = np.frombuffer(blob, np.float32)
                if fault_of(vector) is None:  # an earlier version kept whatever a server answered
                    found[key] = vector.tolist()
        return found

    def _keep(self, vectors: Mapping[str, Sequence[float]]) -> None:
        rows = [(self._model, key, np.asarray(vector, np.float32).tobytes()) for key, vector in vectors.items()]
        self._file.write(lambda database: database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows))

    def __len__(self) -> int:
        """Return how many vectors of this model there are."""
        [(count,)] = self._fetch("SELECT count(*) FROM vectors WHERE model = ?", (self._model,))
        return int(count)

    @property
    def dimensions(self) -> int:
        """Return the length of this model's vectors, 0 where there is none yet, or where they differ."""
        rows = self._fetch("SELECT DISTINCT length(vector) FROM vectors WHERE model = ? LIMIT 2", (self._model,))
        return rows[0][0] // np.dtype(np.float32).itemsize if len(rows) == 1 else 0

    def keep_only(self, hashes: Iterable[str]) -> int:
        """Forget this model's vectors of all other hashes; return how many went."""
        kept = list(hashes)

        def forget(database: sqlite3.Connection) -> int:
            database.execute("CREATE TEMP TABLE IF NOT EXISTS kept (hash TEXT PRIMARY KEY)")
            database.execute("DELETE FROM kept")
            database.executemany("INSERT OR IGNORE INTO kept VALUES (?)", ((key,) for key in kept))
            query = "DELETE FROM vectors WHERE model = ? AND hash NOT IN (SELECT hash FROM kept)"
            return database.execute(query, (self._model,)).rowcount

        return self._file.write(forget)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _fetch(self, query: str, parameters: Sequence[str]) -> list[Any]:
        return self._file.read(lambda database: database.execute(query, parameters).fetchall())

    def _fits(self) -> bool:
        """Return whether the file's tables are those of this version."""

        def columns(database: sqlite3.Connection, table: str) -> list[str]:
            return [row[1] for row in database.execute(f"PRAGMA table_info({table})")]

        return all(self._file.read(partial(columns, table=name)) == wanted for name, wanted in _COLUMNS.items())

    def _insert(self, table: str, rows: Sequence[Any]) -> None:
        statement = f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?)"  # noqa: S608  one of two names
        self._file.write(lambda database: database.executemany(statement, rows))

    def _take_over(self, old: Path) -> None:
        """Copy the rows of another cache into this one, as far as they can be read."""
        readable = contextlib.suppress(sqlite3.Error, UnicodeDecodeError)  # SQLite may quote damaged bytes in an error
        with readable, contextlib.closing(sqlite3.connect(old)) as database:
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in set(names) & set(_COLUMNS):
                columns = ", ".join(_COLUMNS[table])
                rows = database.execute(f"SELECT {columns} FROM {table}")  # noqa: S608  our own names
                for part in iter_batch(rows, _ROWS):
                    self._insert(table, part)


def kept_hashes(path: Path, model: str, hashes: Sequence[str]) -> set[str]:
    """Return those of some hashes whose vector a cache keeps; its file is only read, and need not exist.

    Args:
        path: The file.
        model: Identity of the embedding model.
        hashes: Of embedded texts.
    """
    log = path.with_name(f"{path.name}-wal")  # which SQLite would make where there is none
    alone = "" if log.exists() and os.access(path.parent, os.W_OK) else "&immutable=1"
    found: set[str] = set()
    readable = contextlib.suppress(sqlite3.Error, UnicodeDecodeError)  # absent or damaged: nothing of it is known
    with readable, contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{alone}", uri=True)) as cache:
        for marks, part in in_parts(hashes):
            query = f"SELECT hash FROM vectors WHERE model = ? AND hash IN ({marks})"  # noqa: S608  only "?"
            found.update(key for (key,) in cache.execute(query, (model, *part)))
    return found


def _decoded(value: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Return a vector that others have made; an empty one where the value is none."""
    try:
        return np.frombuffer(b64decode(value["vector"]), _FLOAT)
    except (KeyError, TypeError, ValueError):
        return np.empty(0, _FLOAT)


def fault_of(vector: Sequence[float] | npt.NDArray[np.float32], dimensions: int = 0) -> str | None:
    """Return why a vector cannot be used, or None where it can.

    Args:
        vector: Of any length.
        dimensions: How long it should be; 0 where that is not known.
    """
    if not len(vector):
        return "it is empty"
    if dimensions and len(vector) != dimensions:
        return f"it has {len(vector)} dimensions instead of {dimensions}"
    with np.errstate(over="ignore"):
        values = np.asarray(vector, np.float32)  # as stores keep it
        square = float(values @ values)
    if not np.isfinite(values).all() or not np.isfinite(square):
        return "its numbers are too large or no numbers"
    return None if square > 0 else "all its numbers are 0"
