"""What the ranking reads of each chunk, by row.

Written when a chunk is indexed, read for candidates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from llama_index_contextual.retrievers.arrays import ArrayIndex, Ints, Part, RowArrays, require
from llama_index_contextual.retrievers.chunk_info import ChunkInfo
from llama_index_contextual.utils.errors import StorageError

_MOST_REMEMBERED: Final = 50_000  # rows whose info is kept as an object


@dataclass(frozen=True, eq=False)
class ChunkInfoArrays(RowArrays):
    """The info of some rows as JSON.

    Attributes:
        ids: The number of each row.
        bounds: Where the JSON of each row begins, and where the last one ends.
        data: The JSON of all rows.
    """

    bounds: Ints
    data: npt.NDArray[np.uint8]

    @classmethod
    def build(cls, ids: Ints, infos: Iterable[ChunkInfo]) -> ChunkInfoArrays:
        """Return the arrays of rows and their info.

        Raises:
            ValueError: There are fewer infos than rows, or more.
        """
        texts = [json.dumps(info.to_json(), separators=(",", ":")).encode() for info in infos]
        if len(texts) != len(ids):
            raise ValueError(f"{len(ids)} rows have {len(texts)} infos")
        bounds = np.cumsum([0, *map(len, texts)])
        return cls(ids, bounds, np.frombuffer(b"".join(texts), np.uint8))

    @classmethod
    def merge(cls, parts: Sequence[Part]) -> ChunkInfoArrays:
        """Return the living rows of several arrays as one."""
        ids = []
        sizes = []
        data = []
        for arrays, live in parts:
            row_sizes = np.diff(arrays.bounds)
            ids.append(arrays.ids[live])
            sizes.append(row_sizes[live])
            data.append(arrays.data[np.repeat(live, row_sizes)])
        bounds = np.cumsum(np.concatenate([[0], *sizes]))
        return cls(np.concatenate(ids), bounds, np.concatenate(data))

    def check(self) -> None:
        """Raise a ValueError where the arrays do not fit together."""
        require(self.data.dtype == np.uint8)
        require(len(self.bounds) == len(self.ids) + 1)
        require(self.bounds[0] == 0 and self.bounds[-1] == len(self.data))
        require(bool((np.diff(self.bounds) > 0).all()))

    def text_of(self, place: int) -> bytes:
        """Return the JSON of the row at a place."""
        return self.data[self.bounds[place] : self.bounds[place + 1]].tobytes()


class ChunkInfoIndex(ArrayIndex):
    """The :class:`ChunkInfo` of rows."""

    made_of = ChunkInfoArrays

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        super().__init__(parts)
        self._remembered: dict[int, ChunkInfo] = {}

    def with_infos(self, rows: Sequence[int] | Ints, infos: Iterable[ChunkInfo]) -> ChunkInfoIndex:
        """Return the index with more rows; a known row gets the new info."""
        ids = np.asarray(rows, np.int64)
        return self.changed(ids, ChunkInfoArrays.build(ids, infos)) if len(ids) else self

    def read(self, rows: Sequence[int]) -> dict[int, ChunkInfo]:
        """Return the info of rows by number, without unknown rows.

        Raises:
            StorageError: The info on disk is not that of a chunk.
        """
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered = {}
        known = self._remembered
        unread = np.array([row for row in rows if row not in known], np.int64)
        places, _ = self.find(unread)
        for arrays, inside, hits in self.by_part(places):
            for place, row in zip(inside.tolist(), self.every[places[hits]].tolist(), strict=True):
                known[row] = _decode(arrays.text_of(place))
        return {row: known[row] for row in rows if row in known}


def _decode(text: bytes) -> ChunkInfo:
    try:
        values: Any = json.loads(text)
        return ChunkInfo.from_json(values)
    except Exception as error:
        raise StorageError(
            "What the index keeps of a chunk is damaged. Build the index again."
        ) from error
