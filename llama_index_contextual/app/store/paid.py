"""``paid.sqlite3``: what cost money or minutes, by hash. Nothing of it is ever deleted by this package.

Vectors of embedded texts, contexts of a language model, conversions of files, documents that were given by hand, and
the settings that somebody chose: with it and the files an index is made again for nothing.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.storage.kvstore.types import DEFAULT_COLLECTION
from llama_index.core.utils import iter_batch

from llama_index_contextual.app.store.schema import PAID_TABLES, short_name_of_model, vector_of
from llama_index_contextual.app.store.sqlite_file import AT_ONCE, SqliteFile
from llama_index_contextual.sqlite_store import LocalKVStore

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from llama_index_contextual.app.store.schema import Floats

DOCUMENTS: Final = "documents"  # collection of what was given by hand
SETTINGS: Final = "settings"


class PaidStore(LocalKVStore):
    """Vectors by model and hash, and a LlamaIndex key-value store of all else.

    Args:
        file: Made at the first write.
        cure: What a reader of a damaged file can do.
    """

    def __init__(self, file: Path, cure: str) -> None:
        self.database = _PaidFile(file, PAID_TABLES, cure)

    def __deepcopy__(self, memo: object) -> PaidStore:
        return self

    # Vectors

    def with_vectors(self, model: str, hashes: Iterable[str]) -> set[str]:
        """Those hashes of embedded texts whose vector is there."""
        return {key for (key,) in self._rows("SELECT hash FROM vectors WHERE", "model", model, "hash", hashes)}

    def vectors(self, model: str, hashes: Iterable[str]) -> Iterator[tuple[str, Floats]]:
        """Vectors of embedded texts by the hash of the text; those that are not known are left out."""
        query = "SELECT hash, vector, checksum FROM vectors WHERE"
        for key, blob, checksum in self._rows(query, "model", model, "hash", hashes):
            if (vector := vector_of(blob, checksum)) is not None:
                yield key, vector

    def dimensions(self, model: str) -> int:
        """Length of a model's vectors, 0 where there is none yet."""
        if not self.database.exists:
            return 0
        with self.database.connection() as connection, self.database.explained():
            query = "SELECT length(vector) FROM vectors WHERE model = ? ORDER BY id LIMIT 1"
            row = connection.execute(query, (short_name_of_model(model),)).fetchone()
            return row[0] // 4 if row else 0

    def put_vectors(self, model: str, vectors: Mapping[str, Any]) -> None:
        """Keep vectors by the hash of their text; one that is there already is replaced."""
        name = short_name_of_model(model)
        blobs = ((key, np.asarray(vector, "<f4").tobytes()) for key, vector in vectors.items())
        rows = [(name, key, blob, zlib.crc32(blob)) for key, blob in blobs]
        self._put("INSERT OR REPLACE INTO vectors (model, hash, vector, checksum) VALUES (?, ?, ?, ?)", rows)

    # Values

    def write(self, values: dict[str, dict[str, Any]], collection: str = DEFAULT_COLLECTION) -> None:
        """Write several values in one transaction."""
        texts = {key: json.dumps(value) for key, value in values.items()}
        rows = [(collection, key, text, _checksum(collection, key, text)) for key, text in texts.items()]
        self._put("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", rows)

    def get_many(self, keys: Iterable[str] | None, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Those of several values that there are; None asks for all."""
        query = "SELECT key, value, checksum FROM kept WHERE"
        rows = self._rows(query, "collection", collection, "key", keys)
        return {key: json.loads(text) for key, text, checksum in rows if checksum == _checksum(collection, key, text)}

    def get_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """All values of a collection."""
        return self.get_many(None, collection)

    def keys(self, collection: str) -> set[str]:
        """Keys of a collection."""
        return {key for (key,) in self._rows("SELECT key FROM kept WHERE", "collection", collection, "key", None)}

    def delete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Delete one value; return whether there was one."""
        if not self.database.exists:
            return False
        with self.database.transaction() as connection, self.database.explained():
            query = "DELETE FROM kept WHERE collection = ? AND key = ?"
            return connection.execute(query, (collection, key)).rowcount > 0

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self.database.close()

    def _put(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        self.database.create()
        with self.database.transaction() as connection, self.database.explained():
            connection.executemany(statement, rows)

    def _rows(self, query: str, column: str, value: str, other: str, values: Iterable[str] | None) -> Iterator[Any]:
        """Rows in which a column has a value, and another one any of several values, or anything where these are None.

        The model is named as messages name it; the table has its short name.
        """
        if not self.database.exists:
            return
        first = short_name_of_model(value) if column == "model" else value
        for part in [None] if values is None else iter_batch(values, AT_ONCE):
            among = "" if part is None else f" AND {other} IN ({','.join('?' * len(part))})"
            with self.database.connection() as connection, self.database.explained():
                found = connection.execute(f"{query} {column} = ?{among}", (first, *(part or ()))).fetchall()
            yield from found


class _PaidFile(SqliteFile):
    def _check_rows(self, connection: sqlite3.Connection) -> None:
        for stored in connection.execute("SELECT vector, checksum FROM vectors"):
            if vector_of(*stored) is None:
                raise ValueError("a vector has another checksum")
        for *row, checksum in connection.execute("SELECT collection, key, value, checksum FROM kept"):
            if _checksum(*row) != checksum:
                raise ValueError("a value has another checksum")


def _checksum(collection: str, key: str, text: str) -> int:
    return zlib.crc32(f"{collection}\0{key}\0{text}".encode("utf-8", "surrogatepass"))
