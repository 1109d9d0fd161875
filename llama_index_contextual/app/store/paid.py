"""``paid.sqlite3``: what cost money or minutes, by hash. Nothing of it is ever deleted by this package.

Vectors of embedded texts, contexts of a language model, conversions of files, documents that were passed as objects,
and the settings of the index: with it and the files an index is made again for nothing.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llama_index_contextual.errors import DamagedError
from llama_index_contextual.sqlite_file import AMONG
from llama_index_contextual.sqlite_store import COLUMNS, SQLiteKVStore, is_sound
from llama_index_contextual.text import short_hash

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

DOCUMENTS: Final = "documents"  # collection of documents that were passed as objects
SETTINGS: Final = "settings"
_ALL: Final = f"SELECT {COLUMNS} FROM kept"  # noqa: S608  our own names


class PaidStore(SQLiteKVStore):
    """A LlamaIndex key-value store that keeps vectors by model and hash, too."""

    def with_vectors(self, model: str, hashes: Iterable[str]) -> set[str]:
        """Those hashes of embedded texts whose vector is there."""
        query = f"SELECT key FROM kept WHERE collection = ? AND key {AMONG}"  # noqa: S608  our own names
        return {key for (key,) in self.rows(query, (_collection(model), json.dumps([*hashes])))}

    def vectors(self, model: str, hashes: Iterable[str]) -> Iterator[tuple[str, Floats]]:
        """Vectors of embedded texts by the hash of the text; those that are not known are left out."""
        return ((key, np.frombuffer(blob, "<f4")) for key, blob in self.get_rows(_collection(model), hashes))

    def dimensions(self, model: str) -> int:
        """Length of a model's vectors, 0 where there is none yet."""
        query = "SELECT length(value) / 4 FROM kept WHERE collection = ? LIMIT 1"
        return next((int(length) for (length,) in self.rows(query, (_collection(model),))), 0)

    def put_vectors(self, model: str, vectors: Mapping[str, Any]) -> None:
        """Keep vectors by the hash of their text; one that is there already is replaced."""
        self.put_rows(_collection(model), ((key, np.asarray(one, "<f4").tobytes()) for key, one in vectors.items()))

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
        damaged, sound = PaidStore(aside, self.cure), list[tuple[Any, ...]]()
        with contextlib.suppress(DamagedError), damaged.connection() as connection, damaged.explained():
            sound.extend(row for row in connection.execute(_ALL) if is_sound(row))  # up to the place of the damage
        damaged.close()
        self.insert(sound)
        self.check()
        return (
            f"{self.path} was damaged, and is set aside as {aside.name}. {len(sound):,} of its values were taken over."
        )

    def _check_rows(self, connection: sqlite3.Connection) -> None:
        if not all(map(is_sound, connection.execute(_ALL))):
            raise ValueError("a value has another checksum")


def _collection(model: str) -> str:
    return f"vectors:{short_hash(model)}"
