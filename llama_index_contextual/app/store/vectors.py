"""Vectors by row number, each of which is compared with a question: no graph of neighbours, which would lose some.

All are compared by a byte a number first. What the bytes leave out of a vector has a known length, so those that can be
among the nearest are known, too, some hundreds of real texts. These are compared in float64, so that equal vectors have
equal scores whatever stands beside them. The answer is the same as if all were.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from llama_index_contextual.errors import FingerprintError
from llama_index_contextual.keyword.array_files import ArrayPart, best_rows, join_parts, without_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# Multiplies bytes; where it is not installed, numpy takes some five times as long.
simsimd: Any = import_module("simsimd") if find_spec("simsimd") is not None else None
# How far a cosine may be from the true one by rounding in float32; measured: below 1e-6.
_MARGIN: Final = 5e-5
_ARRAYS: Final = ("ids", "units", "coarse", "scales", "rests")
_BYTE: Final = 127
_FEW: Final = 250  # rows that are compared in full without a first look
_AT_ONCE: Final = 4096  # rows that are made float64 at once
_BLOCK: Final = 1 << 18  # multiplications from which on OpenBLAS takes threads, which wait for one another


def unit_vectors(vectors: npt.ArrayLike) -> Floats:
    """Vectors of length 1 in their directions; those of length 0 stay."""
    array = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(array, axis=-1, keepdims=True)
    return (array / np.where(lengths == 0, 1.0, lengths)).astype(np.float32)


def coarse_vectors(units: Floats) -> tuple[npt.NDArray[np.int8], Floats, Floats]:
    """Vectors as bytes, what to multiply them by, and the length of what that leaves out of each."""
    scales = (np.abs(units).max(axis=1, initial=0) / _BYTE).astype(np.float32)
    coarse = np.rint(units / np.where(scales == 0, 1, scales)[:, None]).astype(np.int8)
    rests = np.linalg.norm(units - coarse * scales[:, None], axis=1).astype(np.float32)
    return coarse, scales, rests


class UnitVectors:
    """Unit vectors of some rows, which never change.

    Args:
        ids: Number of each row, ascending.
        units: Shape (rows, dimensions).
        coarse: The same as bytes, as :func:`coarse_vectors` makes them.
        scales: What to multiply the bytes by.
        rests: Length of what that leaves out of each.
    """

    def __init__(self, ids: Rows, units: Floats, coarse: Any = None, scales: Any = None, rests: Any = None) -> None:
        self.ids, self.units = ids, units
        if coarse is None:
            coarse, scales, rests = coarse_vectors(units)
        self.coarse, self.scales, self.rests = coarse, scales, rests

    def bounds(self, question: Floats) -> tuple[Floats, Floats]:
        """Least and greatest cosine that each row can have with a question, of length 1."""
        [coarse], [scale], [rest] = coarse_vectors(question[None])
        if simsimd is not None:
            products = np.asarray(simsimd.cdist(coarse[None], self.coarse, "dot"), np.float32).reshape(-1)
        else:
            step, wide = max(1, _BLOCK // len(coarse)), coarse.astype(np.float32)
            blocks = (self.coarse[start : start + step] for start in range(0, len(self.coarse), step))
            products = np.concatenate([block.astype(np.float32) @ wide for block in blocks])
        middle = products * (self.scales * scale)
        reach = self.rests * (1 + rest) + rest + _MARGIN
        return middle - reach, middle + reach

    @classmethod
    def merge(cls, parts: Sequence[tuple[UnitVectors, Any]]) -> UnitVectors:
        """Return the living rows of some parts as one."""
        kept = [np.ones(len(part.ids), np.bool_) if live is None else live for part, live in parts]
        ids = np.concatenate([part.ids[live] for (part, _), live in zip(parts, kept, strict=True)])
        order = np.argsort(ids, kind="stable") if (np.diff(ids) < 0).any() else slice(None)
        arrays = (
            np.concatenate([getattr(part, name)[live] for (part, _), live in zip(parts, kept, strict=True)])[order]
            for name in _ARRAYS
        )
        return cls(*arrays)


class VectorIndex:
    """Vectors by row number. It never changes: a change makes another one, which shares much.

    Args:
        parts: Vectors of rows, which of them live (None: all), and the key of the files that hold them.
    """

    def __init__(self, parts: Iterable[tuple[UnitVectors, Any, str]] = ()) -> None:
        self._parts = tuple(parts)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def rows(self) -> Rows:
        """Numbers of all rows, ascending."""
        ids = [part.ids if live is None else part.ids[live] for part, live, _ in self._parts]
        return np.sort(np.concatenate([np.empty(0, np.int64), *ids]))

    def with_vectors(self, rows: Rows, vectors: npt.ArrayLike) -> VectorIndex:
        """Return an index with more rows, whose numbers ascend.

        Raises:
            FingerprintError: The vectors have another length.
        """
        if not len(rows):
            return self
        new = UnitVectors(np.asarray(rows, np.int64), unit_vectors(vectors))
        for part, _, _ in self._parts:
            _refuse_other_length(new.units.shape[1], part.units.shape[1])
        return VectorIndex(join_parts([*self._parts, (new, None, "")], UnitVectors.merge))

    def without(self, rows: Rows) -> VectorIndex:
        """Return an index without some rows; rows that it does not have are ignored."""
        parts = without_rows(self._parts, rows)
        return self if parts is self._parts else VectorIndex(join_parts(parts, UnitVectors.merge))

    def nearest(
        self, questions: Sequence[Sequence[float]], top_k: int, among: Rows | None = None
    ) -> list[tuple[Rows, npt.NDArray[np.float64]]]:
        """Return for each of some vectors the nearest rows and their cosines, best first.

        Args:
            questions: The vectors.
            top_k: How many rows. Those that tie with the last of them are added, so that the caller can break ties.
            among: Only these rows; those that are not there are ignored. By default all.

        Raises:
            FingerprintError: A vector has another length than those of the index.
        """
        every = np.concatenate([np.empty(0, np.int64), *(part.ids for part, _, _ in self._parts)])
        if not len(every) or not len(questions) or top_k <= 0:
            return [(every[:0], np.empty(0)) for _ in questions]
        units = unit_vectors(questions)
        _refuse_other_length(units.shape[1], self._parts[0][0].units.shape[1])
        alive = np.concatenate(
            [np.ones(len(part.ids), np.bool_) if live is None else live for part, live, _ in self._parts]
        )
        if among is not None:
            alive &= np.isin(every, among)
        places = np.flatnonzero(alive)
        return [self._nearest_to(question, top_k, every, places) for question in units]

    def _nearest_to(
        self, question: Floats, top_k: int, every: Rows, places: Rows
    ) -> tuple[Rows, npt.NDArray[np.float64]]:
        """Return the nearest of the rows at some places, and their cosines."""
        if len(places) > max(_FEW, top_k):
            bounds = [part.bounds(question) for part, _, _ in self._parts]
            least, greatest = (np.concatenate(values)[places] for values in zip(*bounds, strict=True))
            places = places[greatest >= np.partition(least, len(least) - top_k)[len(least) - top_k]]
        if len(places) > max(_AT_ONCE, top_k):  # where vectors are alike
            step = max(1, _BLOCK // len(question))
            blocks = (self._units_at(places[start : start + step]) for start in range(0, len(places), step))
            near = np.concatenate([block @ question for block in blocks])
            places = places[near >= np.partition(near, len(near) - top_k)[len(near) - top_k] - _MARGIN]
        exact = np.empty(len(places))
        for start in range(0, len(places), _AT_ONCE):
            part = self._units_at(places[start : start + _AT_ONCE]).astype(np.float64)
            exact[start : start + _AT_ONCE] = np.einsum("ij,j->i", part, question.astype(np.float64))
        return best_rows(every[places], exact, top_k, np.arange(len(places)))

    def _units_at(self, places: Rows) -> Floats:
        """Vectors at some ascending places among all rows."""
        chosen, offset = [], 0
        for part, _, _ in self._parts:
            inside = places[(places >= offset) & (places < offset + len(part.ids))] - offset
            chosen.append(part.units[inside])
            offset += len(part.ids)
        return np.concatenate(chosen)

    # Keeping it on disk

    def to_arrays(self) -> list[ArrayPart]:
        """Parts as files keep them; dead rows are among them."""
        return [ArrayPart(key, {name: getattr(part, name) for name in _ARRAYS}) for part, _, key in self._parts]

    def with_keys(self, keys: Sequence[str]) -> VectorIndex:
        """Return the same index, whose parts have been written under some keys."""
        return VectorIndex((part, live, key) for (part, live, _), key in zip(self._parts, keys, strict=True))

    @classmethod
    def from_arrays(cls, parts: Iterable[ArrayPart]) -> VectorIndex:
        """Return the index of parts that :meth:`to_arrays` gave; all of their rows live.

        Raises:
            ValueError: They do not fit together.
        """
        made = [(UnitVectors(**part.arrays), None, part.key) for part in parts]
        for part, _, _ in made:
            shapes = part.units.ndim == 2 and part.ids.shape == part.units.shape[:1]  # noqa: PLR2004
            is_sound = (
                shapes
                and part.coarse.shape == part.units.shape
                and part.scales.shape == part.rests.shape == part.ids.shape
                and [one.dtype for one in (part.ids, part.units, part.coarse, part.scales, part.rests)]
                == [np.int64, np.float32, np.int8, np.float32, np.float32]
            )
            if not is_sound or (np.diff(part.ids) <= 0).any() or part.units.shape[1] != made[0][0].units.shape[1]:
                raise ValueError("the arrays of vectors do not fit together")
        return cls(made)


def _refuse_other_length(length: int, wanted: int) -> None:
    if length != wanted:
        raise FingerprintError(
            f"a vector of {length} dimensions does not compare with vectors of {wanted}. Cure: the embedding that the "
            "index was made with."
        )
