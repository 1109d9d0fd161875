"""Vectors by row number that are compared with a question one by one, and their copy on disk.

A graph of neighbours, which vector stores search, loses small groups beside a large one. Comparing all loses none, and
takes 1 ms for 13,000 vectors of 384 numbers, 7 ms for 100,000 and 15 ms for 250,000. Several questions at once read
the vectors once.

On disk::

    manifest.json        format, stamp, pieces with their checksums and live places; replacing it commits a change
    KEY.vectors          a piece, written once and mapped into memory
    write.lock           held by the process that saves

A piece is the same bytes in memory and on disk, little-endian: how many rows it has and how many numbers a vector, the
row numbers (int64), the vectors, of length 1 (float32), and zeros up to a multiple of 8. Saving after an edit writes
the new pieces and the manifest. Once a third of a piece's places is dead, they are thrown away.
"""

from __future__ import annotations

import uuid
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from llama_index_contextual.durable import DAMAGE, joined, read_segments, unpacked, write_segments, writing
from llama_index_contextual.errors import FingerprintError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

_FORMAT: Final = 3
_HEADER: Final = 16  # bytes
_DEAD: Final = 3  # places of a piece are thrown away once one of so many is dead
_LARGEST: Final = 1 << 25  # bytes of a piece that is made of two: both are in memory meanwhile
_BLOCK: Final = 4096  # vectors that are made wide at once
_FEW: Final = 500  # vectors that are compared exactly at once
_SPARSE: Final = 4  # of so many vectors one is asked for: then they are compared without the others
_TOGETHER: Final = 4  # questions from which on a product of matrices is faster than one vector after the other
_MOST_AT_ONCE: Final = 16  # questions: of each the products with all vectors are in memory
_ONE_THREAD: Final = 1 << 18  # multiplications from which on OpenBLAS takes threads, which wait for one another
_SLACK: Final = 1e-5  # more than what rounding can change of a product of unit vectors in float32


class _Piece:
    """Row numbers and their vectors. It never changes.

    Args:
        data: The bytes, as the head of this file has them.
        key: Names the piece on disk.

    Raises:
        ValueError: They are no piece.
    """

    def __init__(self, data: Bytes, key: str | None = None) -> None:
        self.data, self.key = data, key or uuid.uuid4().hex
        count, dimensions = map(int, data[:_HEADER].view("<i8"))
        start, end = _HEADER + 8 * count, _HEADER + (8 + 4 * dimensions) * count
        if min(count, dimensions) < 1 or len(data) != end + -end % 8:
            raise ValueError("a piece has another length than it says")
        self.rows: Rows = data[_HEADER:start].view("<i8")
        self.vectors: Floats = data[start:end].view("<f4").reshape(count, dimensions)

    @classmethod
    def of(cls, rows: Sequence[Rows], vectors: Sequence[Floats]) -> _Piece:
        """Return a piece of some row numbers and as many vectors, each in several arrays."""
        header = np.array([sum(map(len, rows)), vectors[0].shape[1]], "<i8")
        numbers = (some.astype("<i8", copy=False) for some in rows)
        return cls(joined([header, *numbers, *(some.astype("<f4", copy=False) for some in vectors)]))

    def __len__(self) -> int:
        return len(self.rows)


class Matrix:
    """Unit vectors by row number. It never changes: each change makes another one, which shares what stays.

    Args:
        pieces: Its vectors; their places are counted through all pieces.
        live: False at a place whose row was deleted or replaced.
    """

    def __init__(self, pieces: Sequence[_Piece] = (), live: Bools | None = None) -> None:
        self.pieces = tuple(pieces)
        self.numbers: Rows = np.concatenate([np.empty(0, np.int64), *(piece.rows for piece in pieces)])
        self.live = np.ones(len(self.numbers), dtype=np.bool_) if live is None else live

    def __len__(self) -> int:
        return len(self._places)

    @property
    def dimensions(self) -> int:
        """Return how many numbers a vector has; 0 without vectors."""
        return self.pieces[0].vectors.shape[1] if self.pieces else 0

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
        pieces = [*before.pieces, _Piece.of([numbers], [units])]
        while len(smaller := pieces[-2:]) > 1 and sum(len(one.data) for one in smaller) <= _LARGEST:
            if len(pieces[-2]) >= 2 * len(pieces[-1]):  # so there are few, each larger than the next
                break
            pieces[-2:] = [_Piece.of([one.rows for one in smaller], [one.vectors for one in smaller])]
        return Matrix(pieces, live)

    def without(self, rows: npt.ArrayLike) -> Matrix:
        """Return a matrix without some rows; those that it does not have are ignored."""
        places = self._places[np.isin(self.rows, np.asarray(rows, dtype=np.int64))]
        if not len(places):
            return self
        live = self.live.copy()
        live[places] = False
        pieces: list[_Piece] = []
        lives: list[Bools] = [np.empty(0, np.bool_)]
        for piece, alive in zip(self.pieces, self._by_piece(live), strict=True):
            count = np.count_nonzero(alive)
            if (len(piece) - count) * _DEAD <= len(piece):
                pieces.append(piece)
                lives.append(alive)
            elif count:
                pieces.append(_Piece.of([piece.rows[alive]], [piece.vectors[alive]]))
                lives.append(np.ones(count, dtype=np.bool_))
        return Matrix(pieces, np.concatenate(lives))

    def _by_piece(self, live: Bools) -> list[Bools]:
        return np.split(live, np.cumsum([len(piece) for piece in self.pieces[:-1]], dtype=np.int64))[: len(self.pieces)]

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
        return self.nearest_to_each([question], top_k, among)[0]

    def nearest_to_each(
        self, questions: Sequence[npt.ArrayLike], top_k: int, among: Rows | None = None
    ) -> list[tuple[Rows, Float64s]]:
        """Return for each of some questions what :meth:`nearest` returns, and read the vectors once for all of them."""
        if len(questions) > _MOST_AT_ONCE:
            parts = (questions[start : start + _MOST_AT_ONCE] for start in range(0, len(questions), _MOST_AT_ONCE))
            return [hits for part in parts for hits in self.nearest_to_each(part, top_k, among)]
        places = self._places if among is None else self._places[np.isin(self.rows, among)]
        if top_k <= 0 or not len(places):
            return [(np.empty(0, np.int64), np.empty(0, np.float64)) for _ in questions]
        wide = np.stack([np.asarray(one, dtype=np.float64).reshape(-1) for one in questions])
        if wide.shape[1] != self.dimensions:
            raise FingerprintError(
                f"a question of {wide.shape[1]} dimensions does not compare with vectors of {self.dimensions}. Cure: "
                "the embedding that made the vectors."
            )
        asked, near = units_of(wide), [places] * len(wide)
        if len(places) > max(top_k, _FEW):
            at = len(places) - top_k
            near = [places[some >= np.partition(some, at)[at] - _SLACK] for some in self._products(asked, places)]
        # Again, more exactly and each vector by itself: so equal vectors have equal scores wherever they stand.
        exact = [
            np.einsum("ij,j->i", self._of(own).astype(np.float64), one.astype(np.float64))
            for own, one in zip(near, asked, strict=True)
        ]
        return [best(self.numbers[own], scores, top_k) for own, scores in zip(near, exact, strict=True)]

    def _products(self, asked: Floats, places: npt.NDArray[np.intp]) -> Floats:
        """Return the products of unit vectors with those at some places, shape ``(asked, places)``."""
        if len(places) * _SPARSE < len(self.live):
            return _products(self._of(places), asked)
        return np.concatenate([_products(piece.vectors, asked) for piece in self.pieces], axis=1)[:, places]

    def _of(self, places: npt.NDArray[np.intp]) -> Floats:
        """Return the vectors at some places."""
        starts = np.cumsum([0, *map(len, self.pieces)])
        owners = np.searchsorted(starts, places, side="right") - 1
        vectors = np.empty((len(places), self.dimensions), np.float32)
        for owner, piece in enumerate(self.pieces):
            own = owners == owner
            vectors[own] = piece.vectors[places[own] - starts[owner]]
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
            lives = self._by_piece(self.live)
            parts = [(one.key, one.data, live) for one, live in zip(self.pieces, lives, strict=True)]
            mapped = write_segments(folder, _FORMAT, "vectors", parts, {"stamp": stamp})
            return Matrix([_Piece(data, one.key) for data, one in zip(mapped, self.pieces, strict=True)], self.live)

    @classmethod
    def load(cls, folder: Path) -> tuple[Matrix, str] | None:
        """Return what was saved and its stamp; None where there is none that is whole."""
        try:
            parts, facts = read_segments(folder, _FORMAT, "vectors")
            pieces = [_Piece(data, key) for key, data, _ in parts]
            lives = [unpacked(live, len(piece)) for piece, (_, _, live) in zip(pieces, parts, strict=True)]
        except DAMAGE:
            return None
        matrix = cls(pieces, np.concatenate([np.empty(0, np.bool_), *lives]))
        # The files may be a stranger's, who can make a checksum, too.
        is_sound = _is_ascending(matrix.rows) and len({piece.vectors.shape[1] for piece in pieces}) <= 1
        return (matrix, facts["stamp"]) if is_sound else None


def best(rows: Rows, scores: Float64s, top_k: int) -> tuple[Rows, Float64s]:
    """Return the best ``top_k`` rows and all that tie with the last of them, with their scores, best first."""
    order = np.lexsort((rows, -scores))
    if len(order) > top_k:
        order = order[: np.count_nonzero(scores >= scores[order[top_k - 1]])]
    return rows[order], scores[order]


def _products(vectors: Floats, asked: Floats) -> Floats:
    """Return the product of each of some vectors with each of some others, shape ``(asked, vectors)``."""
    products = np.empty((len(asked), len(vectors)), np.float32)
    if len(asked) < _TOGETHER:
        for one, row in zip(asked, products, strict=True):
            np.einsum("ij,j->i", vectors, one, out=row)
        return products
    step = max(1, _ONE_THREAD // asked.size)
    for start in range(0, len(vectors), step):
        products[:, start : start + step] = asked @ vectors[start : start + step].T
    return products


def _is_ascending(rows: Rows) -> bool:
    return bool(np.all(rows[1:] > rows[:-1]))


def units_of(vectors: npt.NDArray[Any]) -> Floats:
    """Return vectors of length 1, shape ``(rows, dimensions)``; one without a direction becomes zeros."""
    units = np.empty(vectors.shape, np.float32)
    for start in range(0, len(vectors), _BLOCK):
        wide = vectors[start : start + _BLOCK].astype(np.float64)
        lengths = np.linalg.norm(wide, axis=1, keepdims=True)
        fine = np.isfinite(lengths) & (lengths > 0)
        units[start : start + _BLOCK] = np.divide(wide, lengths, out=np.zeros_like(wide), where=fine)
    return units
