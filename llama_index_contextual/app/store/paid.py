"""``paid.sqlite3``: what cost money or minutes, by hash. Nothing of it is ever deleted by this package.

Vectors of embedded texts, contexts of a language model, conversions of files, documents that were passed as objects,
and the settings of the index: with it and the files an index is made again for nothing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llama_index_contextual.errors import DamagedError
from llama_index_contextual.sqlite_store import SQLiteKVStore, checksum_of
from llama_index_contextual.text import short_hash

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

DOCUMENTS: Final = "documents"  # collection of documents that were passed as objects
SETTINGS: Final = "settings"
_TABLES: Final = """
CREATE TABLE vectors (
    id INTEGER PRIMARY KEY, model TEXT NOT NULL, hash TEXT NOT NULL, vector BLOB NOT NULL, checksum INTEGER NOT NULL,
    UNIQUE (hash, model)
);
"""
_COLUMNS: Final = {"vectors": "model, hash, vector, checksum", "kept": "collection, key, value, checksum"}


class PaidStore(SQLiteKVStore):
    """Vectors by model and hash, and a LlamaIndex key-value store of all else.

    Args:
        path: The file, made at the first write.
        cure: The cure of a damaged file.
    """

    def __init__(self, path: Path, cure: str) -> None:
        super().__init__(path, tables=_TABLES, cure=cure)

    def with_vectors(self, model: str, hashes: Iterable[str]) -> set[str]:
        """Those hashes of embedded texts whose vector is there."""
        query = "SELECT hash FROM vectors WHERE model = ? AND hash IN ({})"
        return {key for (key,) in self.rows(query, (short_hash(model),), hashes)}

    def vectors(self, model: str, hashes: Iterable[str]) -> Iterator[tuple[str, Floats]]:
        """Vectors of embedded texts by the hash of the text; those that are not known are left out."""
        query = "SELECT hash, vector, checksum FROM vectors WHERE model = ? AND hash IN ({})"
        for key, blob, checksum in self.rows(query, (short_hash(model),), hashes):
            if checksum_of(short_hash(model), key, blob) == checksum:
                yield key, np.frombuffer(blob, "<f4")

    def dimensions(self, model: str) -> int:
        """Length of a model's vectors, 0 where there is none yet."""
        query = "SELECT length(vector) / 4 FROM vectors WHERE model = ? ORDER BY id LIMIT 1"
        return next((int(length) for (length,) in self.rows(query, (short_hash(model),))), 0)

    def put_vectors(self, model: str, vectors: Mapping[str, Any]) -> None:
        """Keep vectors by the hash of their text; one that is there already is replaced."""
        rows = [(short_hash(model), key, np.asarray(vector, "<f4").tobytes()) for key, vector in vectors.items()]
        self._insert("vectors", [(*row, checksum_of(*row)) for row in rows])

    def repair(self) -> str:
        """Set a damaged file aside and take over what can be read of it; a sentence about that, "" where it is sound.

        Raises:
            StorageError: The folder cannot be written.
        """
        try:
            self.check()
        except DamagedError:
            aside = self.set_aside()
        else:
            return ""
        damaged, taken = PaidStore(aside, self.cure), 0
        for table, columns in _COLUMNS.items():
            sound: list[tuple[Any, ...]] = []
            with contextlib.suppress(DamagedError), damaged.connection() as connection, damaged.explained():
                # up to the place of the damage
                for row in connection.execute(f"SELECT {columns} FROM {table}"):  # noqa: S608  our own names
                    sound += [row] if _is_sound(row) else []
            self._insert(table, sound)
            taken += len(sound)
        damaged.close()
        self.check()
        return f"{self.path} was damaged, and is set aside as {aside.name}. {taken:,} of its values were taken over."

    def _insert(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        with self.transaction() as connection, self.explained():
            columns = _COLUMNS[table]
            connection.executemany(f"INSERT OR REPLACE INTO {table} ({columns}) VALUES (?, ?, ?, ?)", rows)  # noqa: S608

    def _check_rows(self, connection: sqlite3.Connection) -> None:
        for table, columns in _COLUMNS.items():
            for row in connection.execute(f"SELECT {columns} FROM {table}"):  # noqa: S608  our own names
                if not _is_sound(row):
                    raise ValueError("a value has another checksum")


def _is_sound(row: tuple[Any, ...]) -> bool:
    *values, checksum = row
    return bool(checksum == checksum_of(*values))
