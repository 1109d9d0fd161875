"""Vectors by row number, each of which is compared with a question: no graph of neighbours, which would lose some.

All are compared by a byte a number first. What the bytes leave out of a vector has a known length, so those that can be
among the nearest are known, too, some hundreds of real texts. These are compared in float64, so that equal vectors have
equal scores whatever stands beside them. The answer is the same as if all were.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from llama_index_contextual.errors import FingerprintError
from llama_index_contextual.keyword.arrays import ArrayIndex, RowArrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.keyword.arrays import Floats, Ints

Singles = npt.NDArray[np.float32]

# Multiplies bytes; where it is not installed, numpy compares all in float32, which takes some five times as long.
simsimd: Any = import_module("simsimd") if find_spec("simsimd") is not None else None
# How far a cosine may be from the true one by rounding in float32; measured: below 1e-6.
_MARGIN: Final = 5e-5
_BYTE: Final = 127
_FEW: Final = 250  # rows that are compared in full without a first look
_MANY: Final = 4096  # rows from which on there is a second look in float32
_COPIED: Final = 512  # rows that are copied at once: they fit into a cache


def unit_vectors(vectors: npt.ArrayLike) -> Singles:
    """Vectors of length 1 in their directions; those of length 0 stay."""
    array = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(array, axis=-1, keepdims=True)
    return (array / np.where(lengths == 0, 1.0, lengths)).astype(np.float32)


def coarse_vectors(units: Singles) -> tuple[npt.NDArray[np.int8], Singles, Singles]:
    """Vectors as bytes, what to multiply them by, and the length of what that leaves out of each."""
    scales = (np.abs(units).max(axis=1, initial=0) / _BYTE).astype(np.float32)
    coarse = np.rint(units / np.where(scales == 0, 1, scales)[:, None]).astype(np.int8)
    rests = np.linalg.norm(units - coarse * scales[:, None], axis=1).astype(np.float32)
    return coarse, scales, rests


@dataclass(frozen=True, eq=False)
class UnitVectors(RowArrays):
    """Unit vectors of some rows.

    Args:
        ids: Number of each row, ascending.
        units: Shape (rows, dimensions).
        coarse: The same as bytes, as :func:`coarse_vectors` makes them.
        scales: What to multiply the bytes by.
        rests: Length of what that leaves out of each.
    """

    units: Singles
    coarse: npt.NDArray[np.int8]
    scales: Singles
    rests: Singles

    def is_sound(self) -> bool:
        """Whether the arrays fit together."""
        kinds = [(one.dtype.name, one.ndim) for one in (self.units, self.coarse, self.scales, self.rests)]
        return (
            kinds == [("float32", 2), ("int8", 2), ("float32", 1), ("float32", 1)]
            and self.units.shape == self.coarse.shape
            and self.ids.shape == self.scales.shape == self.rests.shape == self.units.shape[:1]
        )

    def bounds(self, question: Singles) -> tuple[Singles, Singles]:
        """Least and greatest cosine that each row can have with a question, of length 1."""
        if simsimd is None:
            middle, reach = np.einsum("ij,j->i", self.units, question), np.full(len(self.ids), _MARGIN, np.float32)
        else:
            [coarse], [scale], [rest] = coarse_vectors(question[None])
            products = np.asarray(simsimd.cdist(coarse[None], self.coarse, "dot"), np.float32).reshape(-1)
            middle, reach = products * (self.scales * scale), self.rests * (1 + rest) + rest + _MARGIN
        return middle - reach, middle + reach


class VectorIndex(ArrayIndex):
    """Unit vectors by row number."""

    made_of = UnitVectors

    def with_vectors(self, rows: Ints, vectors: npt.ArrayLike) -> VectorIndex:
        """Index with more rows, whose numbers ascend."""
        units = unit_vectors(vectors)
        return self.with_arrays(UnitVectors(rows, units, *coarse_vectors(units))) if len(rows) else self

    def nearest(
        self, questions: Sequence[Sequence[float]], top_k: int, among: Ints | None = None
    ) -> list[tuple[Ints, Floats]]:
        """For each of some vectors the nearest rows and their cosines, best first.

        Args:
            questions: The vectors.
            top_k: How many rows. Those that tie with the last of them are added, so that the caller can break ties.
            among: Only these rows; those that are not there are ignored. By default all.

        Raises:
            FingerprintError: A vector has another length than those of the index.
        """
        live = self.live if among is None else self.live & np.isin(self.every, among)
        places = np.flatnonzero(live)
        if not len(places) or top_k <= 0:
            return [(self.every[:0], np.empty(0)) for _ in questions]
        for length in {len(question) for question in questions}:
            if wanted := {part.arrays.units.shape[1] for part in self.parts} - {length}:
                raise FingerprintError(
                    f"a vector of {length} dimensions does not compare with vectors of {wanted.pop()}. Cure: the "
                    "embedding that the index was made with."
                )
        return [self._nearest_to(question, top_k, places) for question in unit_vectors(questions)]

    def _nearest_to(self, question: Singles, top_k: int, places: Ints) -> tuple[Ints, Floats]:
        """The nearest of the rows at some places, and their cosines."""
        if len(places) > max(_FEW, top_k):
            bounds = [part.arrays.bounds(question) for part in self.parts]
            least, greatest = (np.concatenate(values)[places] for values in zip(*bounds, strict=True))
            places = places[greatest >= np.partition(least, len(least) - top_k)[len(least) - top_k]]
        if len(places) > max(_MANY, top_k):  # where vectors are alike
            near = self._cosines(question, places)
            places = places[near >= np.partition(near, len(near) - top_k)[len(near) - top_k] - _MARGIN]
        return self.best(self._cosines(question.astype(np.float64), places), top_k, places)

    def _cosines(self, question: npt.NDArray[Any], places: Ints) -> npt.NDArray[Any]:
        """Cosines of a question and the rows at some places, as precise as the question's numbers."""
        cosines = np.empty(len(places), question.dtype)
        for arrays, inside, at in self.by_part(places):
            for start in range(0, len(at), _COPIED):
                units = arrays.units[inside[start : start + _COPIED]].astype(question.dtype)
                cosines[at[start : start + _COPIED]] = np.einsum("ij,j->i", units, question)
        return cosines
