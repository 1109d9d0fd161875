"""Vectors by row number that are compared with a question one by one, and their copy on disk.

A graph of neighbours, which vector stores search, loses small groups beside a large one. Comparing all loses none, and
takes 1 ms for 13,000 vectors of 384 numbers, 7 ms for 100,000 and 15 ms for 250,000.

On disk::

    manifest.json        format, stamp, how many places there are and which are alive; replacing it commits a change
    KEY.vectors          the vectors, of length 1, as float32; mapped into memory
    KEY.rows             their row numbers as int64; mapped into memory
    write.lock           held by the process that saves

Both files only grow: saving after an edit writes what is new at their ends, and then the manifest. Whatever lies beyond
the places that the manifest counts, a process left there that was killed. Once a third of the places is dead, the next
save writes new files. The manifest holds the checksums of what it counts, and of itself.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from llama_index_contextual.durable import (
    DAMAGE,
    map_file,
    packed,
    path_of,
    read_manifest,
    sweep,
    sync,
    unpacked,
    write_manifest,
    writing,
)
from llama_index_contextual.errors import FingerprintError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

_FORMAT: Final = 2
_VECTOR: Final = np.dtype("<f4")
_ROW: Final = np.dtype("<i8")
_DEAD: Final = 3  # places are thrown away once one of so many is dead
_BLOCK: Final = 4096  # vectors that are made wide at once
_FEW: Final = 500  # vectors that are compared exactly at once
_SLACK: Final = 1e-5  # more than what rounding can change of a product of unit vectors in float32


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """What of a matrix is on disk: its first places.

    Attributes:
        key: Names the files.
        places: How many.
        dimensions: Numbers of a vector.
        vectors: Checksum of the vectors.
        rows: Checksum of the row numbers.
    """

    key: str
    places: int = 0
    dimensions: int = 0
    vectors: int = 0
    rows: int = 0


class Matrix:
    """Unit vectors by row number. It never changes: each change makes another one, which shares what stays.

    Args:
        numbers: The row number at each place.
        pieces: The vectors, shape ``(some, dimensions)`` each, in the order of the places.
        live: False at a place whose row was deleted or replaced.
        disk: What of it is on disk.
    """

    def __init__(
        self,
        numbers: Rows | None = None,
        pieces: Sequence[Floats] = (),
        live: Bools | None = None,
        disk: _OnDisk | None = None,
    ) -> None:
        self.numbers = np.empty(0, np.int64) if numbers is None else numbers
        self.pieces = tuple(pieces)
        self.live = np.ones(len(self.numbers), dtype=np.bool_) if live is None else live
        self.disk = disk

    def __len__(self) -> int:
        return len(self._places)

    @property
    def dimensions(self) -> int:
        """Return how many numbers a vector has; 0 without vectors."""
        return self.pieces[0].shape[1] if self.pieces else 0

    @cached_property
    def _places(self) -> npt.NDArray[np.intp]:
        """Return the live places by ascending row number."""
        places = np.flatnonzero(self.live)
        numbers = self.numbers[places]
        return places if _is_ascending(numbers) else places[np.argsort(numbers)]

    @cached_property
    def rows(self) -> Rows:
        """Return all row numbers, ascending."""
        return self.numbers[self._places]

    # Changing it

    def with_rows(self, rows: npt.ArrayLike, vectors: npt.ArrayLike) -> Matrix:
        """Return a matrix with more vectors; a row that it has already gets the new one.

        Args:
            rows: Their row numbers; of one that stands there twice the last counts.
            vectors: Of any length, shape ``(rows, dimensions)``.

        Raises:
            FingerprintError: They have another number of dimensions.
        """
        numbers = np.asarray(rows, dtype=np.int64)
        if not len(numbers):
            return self
        wide = np.asarray(vectors)
        if not _is_ascending(numbers):
            numbers, last = np.unique(numbers[::-1], return_index=True)
            wide = wide[::-1][last]
        units = units_of(wide)
        if len(self) and units.shape[1] != self.dimensions:
            raise FingerprintError(
                f"vectors of {units.shape[1]} dimensions do not compare with those of {self.dimensions} that are "
                "there. Cure: the former embedding, or index everything again: reindex='all' (--reindex all)."
            )
        before = self.without(numbers) if len(self) else Matrix()
        live = np.concatenate([before.live, np.ones(len(numbers), dtype=np.bool_)])
        pieces = _joined(before.pieces, units, first=1 if before.disk is not None else 0)
        return Matrix(np.concatenate([before.numbers, numbers]), pieces, live, before.disk)

    def without(self, rows: npt.ArrayLike) -> Matrix:
        """Return a matrix without some rows; those that it does not have are ignored."""
        places = self._places[np.isin(self.rows, np.asarray(rows, dtype=np.int64))]
        if not len(places):
            return self
        live = self.live.copy()
        live[places] = False
        smaller = Matrix(self.numbers, self.pieces, live, self.disk)
        dead = len(live) - len(smaller)
        return smaller._compacted() if dead * _DEAD > len(live) else smaller

    def _compacted(self) -> Matrix:
        """Return the same vectors without dead places."""
        places = self._places
        return Matrix(self.rows, [self._of(places)]) if len(places) else Matrix()

    # Reading it

    def nearest(self, question: npt.ArrayLike, top_k: int, among: Rows | None = None) -> tuple[Rows, Float64s]:
        """Return the rows of the nearest vectors and their cosine similarities (-1 to 1), best first.

        These are the best ``top_k`` and every row whose score ties with the last of them, ties by row number.

        Args:
            question: A vector of any length.
            top_k: Most results, ties aside.
            among: Only these rows; those that are not there are ignored. By default all.

        Raises:
            FingerprintError: The question has another number of dimensions.
        """
        places = self._places if among is None else self._places[np.isin(self.rows, among)]
        if top_k <= 0 or not len(places):
            return np.empty(0, np.int64), np.empty(0, np.float64)
        wide = np.asarray(question, dtype=np.float64).reshape(1, -1)
        if wide.shape[1] != self.dimensions:
            raise FingerprintError(
                f"a question of {wide.shape[1]} dimensions does not compare with vectors of {self.dimensions}. Cure: "
                "the embedding that made the vectors."
            )
        asked = units_of(wide)[0]
        if len(places) > max(top_k, _FEW):
            # Faster than matrix @ vector, which OpenBLAS spreads over threads that wait for one another.
            every = np.concatenate([np.einsum("ij,j->i", piece, asked) for piece in self.pieces])
            scores = every[places]
            places = places[scores >= np.partition(scores, len(places) - top_k)[len(places) - top_k] - _SLACK]
        # Again, more exactly and each vector by itself: so equal vectors have equal scores wherever they stand.
        exact = np.einsum("ij,j->i", self._of(places).astype(np.float64), asked.astype(np.float64))
        return best(self.numbers[places], exact, top_k)

    def _of(self, places: npt.NDArray[np.intp]) -> Floats:
        """Return the vectors at some places."""
        if len(self.pieces) == 1:
            return self.pieces[0][places]
        starts = np.cumsum([0, *map(len, self.pieces)])
        owners = np.searchsorted(starts, places, side="right") - 1
        vectors = np.empty((len(places), self.dimensions), np.float32)
        for owner, piece in enumerate(self.pieces):
            own = owners == owner
            vectors[own] = piece[places[own] - starts[owner]]
        return vectors

    # Keeping it on disk

    def save(self, folder: Path, stamp: str) -> Matrix:
        """Keep it in a folder, and return the same matrix, mapped from there.

        Args:
            folder: Made where it is missing.
            stamp: Says what it shows; :meth:`load` returns it.

        Raises:
            StorageError: The folder cannot be written.
        """
        with writing(folder, "The vectors"):
            disk = self._write(folder, stamp)
            vectors, numbers = _mapped(folder, disk)
            return Matrix(numbers, [vectors] if len(vectors) else [], self.live, disk)

    def _write(self, folder: Path, stamp: str) -> _OnDisk:
        before = self.disk
        if before is None or _described(folder) != before:  # another process has written there since
            before = _OnDisk(uuid.uuid4().hex, dimensions=self.dimensions)
        starts = np.cumsum([0, *map(len, self.pieces)]).tolist()
        new = [
            piece[max(0, before.places - start) :]
            for piece, start in zip(self.pieces, starts, strict=False)
            if start + len(piece) > before.places
        ]
        words = before.places * before.dimensions  # so many numbers are there, of half a checked word each
        vectors = _append(folder / f"{before.key}.vectors", [*map(_as_words, new)], words, before.vectors)
        added = _as_words(self.numbers[before.places :].astype(_ROW, copy=False))
        rows = _append(folder / f"{before.key}.rows", [added], 2 * before.places, before.rows)
        disk = _OnDisk(before.key, len(self.numbers), self.dimensions, vectors, rows)
        write_manifest(folder, _FORMAT, {"stamp": stamp, "disk": asdict(disk), "live": packed(self.live)})
        for suffix in ("vectors", "rows"):
            sweep(folder, suffix, {disk.key})
        return disk

    @classmethod
    def load(cls, folder: Path) -> tuple[Matrix, str] | None:
        """Return what was saved and its stamp; None where there is none that is whole."""
        try:
            content = read_manifest(folder, _FORMAT)
            disk, stamp = _OnDisk(**content["disk"]), content["stamp"]
            vectors, numbers = _mapped(folder, disk)
            if (_sum(_as_words(vectors)), _sum(_as_words(numbers))) != (disk.vectors, disk.rows):
                return None
            live = unpacked(content["live"], len(numbers))
            matrix = cls(numbers, [vectors] if len(vectors) else [], live, disk)
            # The files may be a stranger's, who can make a checksum, too.
            return (matrix, stamp) if _is_ascending(matrix.rows) and isinstance(stamp, str) else None
        except DAMAGE:
            return None


def best(rows: Rows, scores: Float64s, top_k: int) -> tuple[Rows, Float64s]:
    """Return the best ``top_k`` rows and all that tie with the last of them, with their scores, best first."""
    order = np.lexsort((rows, -scores))
    if len(order) > top_k:
        order = order[: np.count_nonzero(scores >= scores[order[top_k - 1]])]
    return rows[order], scores[order]


def _is_ascending(rows: Rows) -> bool:
    return bool(np.all(rows[1:] > rows[:-1]))


def _joined(before: Sequence[Floats], units: Floats, first: int) -> list[Floats]:
    """Return pieces with one more. Those in memory are joined, so that there are few, each larger than the next.

    Args:
        before: The pieces.
        units: The new one.
        first: How many stay as they are, because they are mapped from disk.
    """
    pieces = [*before, units]
    while len(pieces) > first + 1 and len(pieces[-2]) < 2 * len(pieces[-1]):
        pieces[-2:] = [np.concatenate(pieces[-2:])]
    return pieces


def units_of(vectors: npt.NDArray[Any]) -> Floats:
    """Return vectors of length 1, shape ``(rows, dimensions)``; one without a direction becomes zeros."""
    units = np.empty(vectors.shape, np.float32)
    for start in range(0, len(vectors), _BLOCK):
        wide = vectors[start : start + _BLOCK].astype(np.float64)
        lengths = np.linalg.norm(wide, axis=1, keepdims=True)
        fine = np.isfinite(lengths) & (lengths > 0)
        units[start : start + _BLOCK] = np.divide(wide, lengths, out=np.zeros_like(wide), where=fine)
    return units


def _described(folder: Path) -> _OnDisk | None:
    try:
        return _OnDisk(**read_manifest(folder, _FORMAT)["disk"])
    except DAMAGE:
        return None


def _mapped(folder: Path, disk: _OnDisk) -> tuple[Floats, Rows]:
    """Return vectors and row numbers of two files, without reading them into this process's own memory."""
    shape = disk.places, disk.dimensions
    vectors = map_file(path_of(folder, disk.key, "vectors"), disk.places * disk.dimensions * _VECTOR.itemsize)
    rows = map_file(path_of(folder, disk.key, "rows"), disk.places * _ROW.itemsize)
    return vectors.view(_VECTOR).reshape(shape), rows.view(_ROW)


def _as_words(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return the bytes of an array as words of 32 bits."""
    return np.ascontiguousarray(numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)).reshape(-1).view("<u4")


def _append(path: Path, parts: Sequence[npt.NDArray[np.uint32]], place: int, checksum: int) -> int:
    """Write words from a place on and return the new checksum; what is there already was never committed."""
    with path.open("r+b" if place else "wb") as file:
        file.seek(place * 4)
        for words in parts:
            file.write(words.data.cast("B"))
            checksum = _sum(words, place, checksum)
            place += len(words)
        sync(file)
    return checksum


def _sum(words: npt.NDArray[np.uint32], place: int = 0, checksum: int = 0) -> int:
    """Return a checksum with some words more: the sum of 64-bit words, as fast as memory is read.

    Any one damaged word changes it.

    Args:
        words: Of 32 bits.
        place: How many came before them.
        checksum: Of those.
    """
    if place % 2 and len(words):  # the second half of a word
        checksum += int(words[0]) << 32
        words = words[1:]
    even = len(words) // 2 * 2
    checksum += int(words[:even].view("<u8").sum(dtype=np.uint64)) + sum(map(int, words[even:]))
    return checksum % (1 << 64)
