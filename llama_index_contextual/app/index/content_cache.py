"""``content.sqlite3``: the cache of results that cost money or minutes, for all folders of a user.

It keeps vectors by the hash of the embedded text, contexts of language models by chunk, and
converted files by the hash of the file. A folder that was renamed, copied or moved is therefore
neither embedded nor paid for again. Each index has its own copy of its vectors and contexts, so
deleting entries of the cache affects no index.
"""

from __future__ import annotations

import contextlib
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from filelock import FileLock

from llama_index_contextual.app.index.storage import ONLY_THE_USER
from llama_index_contextual.context.cache import COLUMNS, SQLiteKVStore, is_sound
from llama_index_contextual.utils.errors import DamagedError
from llama_index_contextual.utils.text import short_hash

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from llama_index_contextual.app.index.vectors import Singles

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
MAX_BYTES = 4_000_000_000  # per user; a million vectors of 384 dimensions take 1.7 GB
_VECTORS = "vectors:"
_FIX = "Run: llama-index-contextual cache --prune 0"
_ALL = f"SELECT {COLUMNS} FROM kept"  # noqa: S608  our own names
_NUMBER_BYTES = 4  # of a float32
_BATCH = 1000  # rows that are deleted together


class CachedContent(NamedTuple):
    """The number and the size of the entries of one kind."""

    entries: int
    bytes: int


class ContentCache(SQLiteKVStore):
    """A LlamaIndex key-value store that also keeps vectors, and repairs itself when it is damaged.

    Args:
        path: The file.
        scope: The folder whose contexts are read and written. Paths of documents are relative to
            their folder, so two folders may each have a ``README.md``.
    """

    mode = 0o600  # other users must not read texts and vectors

    def __init__(self, path: str | os.PathLike[str], scope: str = "") -> None:
        super().__init__(path, _FIX)
        self.scope = scope

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.scope)

    # Vectors

    def vectors(self, model: str, hashes: Iterable[str]) -> dict[str, Singles]:
        """Return the known vectors of embedded texts, by the hash of the text.

        A value that cannot be a vector is treated as absent, so its text is embedded again.
        """
        vectors = {}
        for key, blob in self.get_rows(_collection(model), hashes):
            vector = _vector(blob)
            if vector is not None:
                vectors[key] = vector
        return vectors

    def put_vectors(self, model: str, vectors: Mapping[str, Singles]) -> None:
        """Keep vectors by the hash of the embedded text."""
        rows = [(key, vector.astype("<f4").tobytes()) for key, vector in vectors.items()]
        self.put_rows(_collection(model), rows)

    # Size

    def contents(self) -> dict[str, CachedContent]:
        """Return the number and size of vectors, contexts and conversions."""
        query = "SELECT collection, count(*), sum(length(key) + length(value)) FROM kept GROUP BY 1"
        totals: dict[str, CachedContent] = {}
        for collection, entries, size in self.rows(query):
            kind = "vectors" if collection.startswith(_VECTORS) else collection
            before = totals.get(kind, CachedContent(0, 0))
            totals[kind] = CachedContent(before.entries + entries, before.bytes + size)
        return dict(sorted(totals.items()))

    def used_bytes(self) -> int:
        """Return the bytes of the file that are in use."""
        query = (
            "SELECT (page_count - freelist_count) * page_size "
            "FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
        )
        return sum(size for (size,) in self.rows(query))

    def prune(self, max_bytes: int = MAX_BYTES, *, shrink: bool = False) -> int:
        """Delete the oldest entries until the cache has at most ``max_bytes``.

        Contexts of language models are deleted last, because they are small and cost the most.

        Args:
            max_bytes: The bytes to keep.
            shrink: Whether to give the space back to the disk. This takes a while, and meanwhile
                as much space again.

        Returns:
            The number of deleted entries.
        """
        deleted = 0
        batch = (
            "DELETE FROM kept WHERE rowid IN "
            "(SELECT rowid FROM kept ORDER BY collection = 'contexts', rowid LIMIT ?)"
        )
        while self.used_bytes() > max_bytes:
            with self.transaction() as connection, self.explained():
                count = connection.execute(batch, [_BATCH]).rowcount
            if not count:
                break
            deleted += count
        if shrink and self.exists:
            with self.connection(writes=True) as connection, self.explained():
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return deleted

    # The file

    def _create(self, path: Path) -> None:
        with self.explained():
            path.parent.mkdir(mode=ONLY_THE_USER, parents=True, exist_ok=True)
        super()._create(path)

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query, after repairing the file if it is damaged."""
        return self._repaired(lambda: super(ContentCache, self).rows(query, values))

    def insert(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write all rows with their checksums, or none, after repairing the file if necessary."""
        listed = list(rows)
        self._repaired(lambda: super(ContentCache, self).insert(listed))

    def _repaired(self, operation: Callable[[], _T]) -> _T:
        try:
            return operation()
        except DamagedError as error:
            self._repair(str(error))
        return operation()

    def _repair(self, problem: str) -> None:
        """Set the damaged file aside, and copy its intact rows into a new one."""
        with self.explained():
            lock = FileLock(self.path.with_name(f"{self.path.name}.lock")).acquire()
        with lock:
            try:
                self.check()  # another process may have repaired it
            except DamagedError:
                aside = self.set_aside()
            else:
                return
            sound = _sound_rows(aside)
            super().insert(sound)
        logger.warning(
            "%s It is set aside as %s. %s of its values were recovered.",
            problem.removesuffix(f" {self.fix}"),
            aside.name,
            f"{len(sound):,}",
        )

    def _check_rows(self, connection: sqlite3.Connection) -> None:
        if not all(map(is_sound, connection.execute(_ALL))):
            raise ValueError("a value does not match its checksum")


def _sound_rows(path: Path) -> list[tuple[Any, ...]]:
    """Return the intact rows of a damaged file that come before the damage."""
    damaged = SQLiteKVStore(path)
    sound: list[tuple[Any, ...]] = []
    with (
        contextlib.suppress(DamagedError),
        contextlib.closing(damaged),
        damaged.connection() as connection,
        damaged.explained(),
    ):
        sound.extend(row for row in connection.execute(_ALL) if is_sound(row))
    return sound


def _vector(value: object) -> Singles | None:
    """Return a stored vector; None for a value that is not a vector, or has length 0."""
    if not isinstance(value, bytes) or len(value) % _NUMBER_BYTES:
        return None
    vector = np.frombuffer(value, "<f4")
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(vector @ vector)
    return vector if 0 < square < math.inf else None


def _collection(model: str) -> str:
    return f"{_VECTORS}{short_hash(model)}"
