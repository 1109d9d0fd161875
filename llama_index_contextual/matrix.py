"""Vectors by row number that are compared with a question one by one, and their copy on disk.

A graph of neighbours, which vector stores search, loses small groups beside a large one. Comparing all loses none, and
takes .7 ms for 13,000 vectors of 384 numbers and 2.3 ms for 100,000.

A vector has three bytes a number: a coarse one and two fine ones. A question is compared with the coarse bytes of all
vectors first. What these leave out of a vector has a known length, and so has what they leave out of the question. By
Cauchy and Schwarz the product of both differs by no more than these lengths (and their product) from that of the whole
vectors. Those that this does not exclude, some 200 of real texts, are compared in full. So the answer is the same as if
all were.

On disk::

    manifest.json        format, stamp, pieces with their checksums and live places; replacing it commits a change
    KEY.vectors          a piece, written once and mapped into memory
    write.lock           held by the process that saves

A piece is the same bytes in memory and on disk, little-endian: how many rows it has and how many numbers a vector, the
row numbers (int64), the scale of each vector (float32), the length of what its coarse bytes leave out (float32), the
fine bytes (int16), the coarse bytes (int8), and zeros up to a multiple of 8. A vector of length 1 is ``scale * (coarse
+ fine / 65536)``. Saving after an edit writes the new pieces and the manifest. Once a third of a piece's places is
dead, they are thrown away.
"""

from __future__ import annotations

import uuid
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
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
Places = npt.NDArray[np.intp]
Columns = tuple[npt.NDArray[Any], ...]

# Multiplies bytes. Where there is none for a machine, numpy takes some five times as long.
simsimd: Any = import_module("simsimd") if find_spec("simsimd") is not None else None

_FORMAT: Final = 4
_HEADER: Final = 16  # bytes
_DEAD: Final = 3  # places of a piece are thrown away once one of so many is dead
_LARGEST: Final = 1 << 25  # bytes of a piece that is made of two: both are in memory meanwhile
_BLOCK: Final = 4096  # vectors that are made wide at once
_FEW: Final = 250  # vectors that are compared in full at once
_SPARSE: Final = 16  # of so many vectors one is asked for: then they are compared without the others
_MOST_AT_ONCE: Final = 16  # questions: of each the products with all vectors are in memory
_ONE_THREAD: Final = 1 << 18  # multiplications from which on OpenBLAS takes threads, which wait for one another
_COARSE: Final = 127  # the largest
_FINE: Final = 1 << 16  # steps of a coarse one
_SLACK: Final = 1e-5  # more than what rounding can change of a product of unit vectors in float32
_BLOCKS: Final = 4  # blocks for each result, of whose maxima the floor is taken
_SHORT: Final = 8  # scores a block below which a maximum a block saves nothing
_KINDS: Final = ("<i8", "<f4", "<f4", "<i2", "i1")  # of the columns of a piece


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
        sizes = (8 * count, 4 * count, 4 * count, 2 * count * dimensions, count * dimensions)
        ends = list(accumulate(sizes, initial=_HEADER))
        if min(count, dimensions) < 1 or len(data) != ends[-1] + -ends[-1] % 8:
            raise ValueError("a piece has another length than it says")
        parts = zip(_KINDS, ends, ends[1:], strict=False)
        rows, scales, rests, fine, coarse = (data[start:end].view(kind) for kind, start, end in parts)
        self.columns = rows, scales, rests, fine.reshape(count, -1), coarse.reshape(count, -1)
        self.rows, self.scales, self.rests, self.fine, self.coarse = self.columns

    @classmethod
    def of(cls, parts: Sequence[Columns]) -> _Piece:
        """Return a piece of the columns of several parts."""
        header = np.array([sum(len(rows) for rows, *_ in parts), parts[0][-1].shape[1]], "<i8")
        columns = zip(_KINDS, zip(*parts, strict=True), strict=True)
        return cls(joined([header, *(some.astype(kind, copy=False) for kind, column in columns for some in column)]))

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
        return self.pieces[0].coarse.shape[1] if self.pieces else 0

    @cached_property
    def _places(self) -> Places:
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
        pieces = [*before.pieces, _Piece.of([(numbers, *_in_bytes(units))])]
        while len(smaller := pieces[-2:]) > 1 and sum(len(one.data) for one in smaller) <= _LARGEST:
            if len(pieces[-2]) >= 2 * len(pieces[-1]):  # so there are few, each larger than the next
                break
            pieces[-2:] = [_Piece.of([one.columns for one in smaller])]
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
                pieces.append(_Piece.of([tuple(column[alive] for column in piece.columns)]))
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
        if len(places) > max(top_k, _FEW, len(self.live) // _SPARSE):
            near = self._perhaps_near(asked, places, top_k)
        scores = [self._products(one.astype(np.float64), own) for one, own in zip(asked, near, strict=True)]
        return [best(self.numbers[own], its, top_k) for own, its in zip(near, scores, strict=True)]

    def _perhaps_near(self, asked: Floats, places: Places, top_k: int) -> list[Places]:
        """Return for each unit vector those of some places that may be among the nearest, and some others."""
        scales, rests, _, coarse = _in_bytes(asked)
        products, start = np.empty((len(asked), len(self.live)), np.float32), 0
        for piece in self.pieces:
            part = products[:, start : (start := start + len(piece))]
            _multiply(coarse, piece.coarse, part)
            part *= piece.scales
        left_out = self._rests
        if len(places) < len(self.live):
            products, left_out = products[:, places], left_out[places]
        else:
            places = np.arange(len(self.live))
        questions = zip(products, scales.tolist(), rests.tolist(), strict=True)
        return [
            places[_within_reach(some, left_out, scale, rest, top_k)] if scale else places
            for some, scale, rest in questions
        ]

    @cached_property
    def _rests(self) -> Floats:
        return np.concatenate([piece.rests for piece in self.pieces])

    def _products(self, one: Float64s, places: Places) -> Float64s:
        """Return the products of a unit vector with others, each by itself: equal vectors have equal ones."""
        starts = np.cumsum([0, *map(len, self.pieces)])
        owners = np.searchsorted(starts, places, side="right") - 1
        products = np.empty(len(places))
        for owner, piece in enumerate(self.pieces):
            own = np.flatnonzero(owners == owner)
            for start in range(0, len(own), _BLOCK):
                some = own[start : start + _BLOCK]
                at = places[some] - starts[owner]
                vectors = np.multiply(piece.fine[at], 1 / _FINE)
                vectors += piece.coarse[at]
                products[some] = np.einsum("ij,j->i", vectors, one) * piece.scales[at]
        return products

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
        is_sound = _is_ascending(matrix.rows) and len({piece.coarse.shape[1] for piece in pieces}) <= 1
        return (matrix, facts["stamp"]) if is_sound else None


def best(rows: Rows, scores: Float64s, top_k: int) -> tuple[Rows, Float64s]:
    """Return the best ``top_k`` rows and all that tie with the last of them, with their scores, best first."""
    order = np.lexsort((rows, -scores))
    if len(order) > top_k:
        order = order[: np.count_nonzero(scores >= scores[order[top_k - 1]])]
    return rows[order], scores[order]


def _in_bytes(units: Floats) -> tuple[Floats, Floats, npt.NDArray[np.int16], npt.NDArray[np.int8]]:
    """Return scales of unit vectors, what their coarse bytes leave out, fine bytes, and coarse ones."""
    scales, rests = np.empty((2, len(units)), np.float32)
    fine, coarse = np.empty(units.shape, np.int16), np.empty(units.shape, np.int8)
    for start in range(0, len(units), _BLOCK):
        part = slice(start, start + _BLOCK)
        wide = units[part].astype(np.float64)
        scales[part] = np.abs(wide).max(axis=1) / _COARSE
        steps = scales[part, None].astype(np.float64)
        whole = np.rint(np.divide(wide * _FINE, steps, out=np.zeros_like(wide), where=steps > 0)).astype(np.int32)
        coarse[part] = (whole + _FINE // 2) // _FINE
        whole -= coarse[part].astype(np.int32) * _FINE
        fine[part] = whole
        rests[part] = np.linalg.norm(whole, axis=1) * steps[:, 0] / _FINE
    return scales, rests, fine, coarse


def _multiply(some: npt.NDArray[np.int8], others: npt.NDArray[np.int8], products: Floats) -> None:
    """Put the product of each of some vectors of bytes with each of some others where they are wanted."""
    if simsimd is not None:
        simsimd.cdist(some, others, "dot", out=products)
        return
    wide, step = some.astype(np.float32), max(1, _ONE_THREAD // some.size)
    for start in range(0, len(others), step):
        products[:, start : start + step] = wide @ others[start : start + step].astype(np.float32).T


def _within_reach(products: Floats, rests: Floats, scale: float, rest: float, top_k: int) -> Places:
    """Return where vectors may be among the nearest to a question, given the products of coarse bytes.

    Args:
        products: Of each vector with the question, but for the scale of the latter.
        rests: What the bytes leave out of each vector.
        scale: Of the question.
        rest: What its bytes leave out.
        top_k: How many are asked for.
    """
    most = ((1 + rest) * float(rests.max()) + rest + _SLACK) / scale  # that any product may be off
    at = np.flatnonzero(products >= _floor(products, top_k) - 2 * most)
    products, off = products[at], ((1 + rest) * rests[at] + rest + _SLACK) / scale
    return at[products + off >= _floor(products - off, top_k)]


def _floor(scores: Floats, top_k: int) -> float:
    """Return a score that at least ``top_k`` reach: that of the last of these, or a little less.

    It is the k-th largest of the maxima of many blocks: reading the scores once is faster than partitioning all.
    """
    block = len(scores) // (_BLOCKS * top_k)
    if block >= _SHORT:
        scores = scores[: len(scores) // block * block].reshape(-1, block).max(axis=1)
    at = len(scores) - top_k
    return float(np.partition(scores, at)[at]) if at > 0 else -np.inf


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
