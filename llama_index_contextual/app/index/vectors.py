"""Unit vectors of chunks, compared with all of them: no graph of neighbours, which would lose some.

A query is compared in two or three steps, each more exact and on fewer rows than the one before:

1. With 8-bit codes of all rows, where simsimd is installed. The error of each code is known, so
   every row that can be among the nearest is kept. Without simsimd, this step is left out.
2. With the vectors in float32, where more than a few rows are left.
3. With the vectors in float64, so that equal vectors have equal scores whatever is beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from llama_index_contextual.retrievers.arrays import ArrayIndex, RowArrays, kth_largest, require
from llama_index_contextual.utils.errors import FingerprintError

try:
    import simsimd
except ImportError:
    simsimd = None  # type: ignore[assignment, unused-ignore]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from llama_index_contextual.retrievers.arrays import Floats, Ints

Singles = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]

_ROUNDING: Final = 5e-5  # of a cosine in float32; measured: below 1e-6
_LARGEST_CODE: Final = 127
_COPIED_ROWS: Final = 512  # at once: they fit into the cache of a processor


def unit_vectors(vectors: npt.ArrayLike) -> Singles:
    """Return vectors of length 1 in the same directions; those of length 0 stay."""
    array = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(array, axis=-1, keepdims=True)
    lengths[lengths == 0] = 1.0
    units: Singles = (array / lengths).astype(np.float32)
    return units


@dataclass(frozen=True, eq=False)
class UnitVectors(RowArrays):
    """Unit vectors of rows, and what 8-bit codes keep of them.

    Attributes:
        units: The vectors, of shape (rows, dimensions).
        codes: Whole numbers from -127 to 127, of the same shape; ``codes * scales`` is about
            ``units``.
        scales: The unit of each row's codes.
        errors: The length of the difference between a vector and its codes.
    """

    units: Singles
    codes: Codes
    scales: Singles
    errors: Singles
    matrices = ("units", "codes")

    @classmethod
    def of(cls, ids: Ints, units: Singles) -> Self:
        """Return the arrays of unit vectors."""
        scales = np.abs(units).max(axis=1, initial=0.0) / _LARGEST_CODE
        scales[scales == 0] = 1.0
        codes = np.rint(units / scales[:, None]).astype(np.int8)
        errors = np.linalg.norm(units - codes * scales[:, None], axis=1)
        return cls(ids, units, codes, scales.astype(np.float32), errors.astype(np.float32))

    def check(self) -> None:
        """Raise a ValueError where the arrays do not fit together."""
        super().check()
        require(self.codes.shape == self.units.shape)
        require(self.codes.dtype == np.int8)


class VectorIndex(ArrayIndex):
    """Unit vectors by row number."""

    made_of = UnitVectors

    def nearest(
        self, queries: Sequence[Sequence[float]], top_k: int, among: Ints | None = None
    ) -> list[list[tuple[Ints, Floats]]]:
        """Return for each query vector the nearest rows and their cosines, best first.

        Args:
            queries: The vectors.
            top_k: How many rows. Rows that tie with the last of them are added, so that the caller
                can break ties.
            among: Rows for which there is a second list: the nearest of these.

        Raises:
            FingerprintError: A vector has another length than those of the index.
        """
        places = np.flatnonzero(self.live)
        scopes = [places]
        if among is not None:
            scopes.append(places[np.isin(self.every[places], among)])
        if not len(places):
            return [[(self.every[:0], np.empty(0)) for _ in scopes] for _ in queries]
        for query in queries:
            self._check_length(len(query))
        return [self._nearest_to(query, top_k, scopes) for query in unit_vectors(queries)]

    def _check_length(self, length: int) -> None:
        for arrays, _ in self.parts:
            dimensions = arrays.units.shape[1]
            if dimensions != length:
                raise FingerprintError(
                    f"a vector of {length} dimensions does not compare with vectors of "
                    f"{dimensions}. "
                    "Use the embedding that the index was made with."
                )

    def _nearest_to(
        self, query: Singles, top_k: int, scopes: Sequence[Ints]
    ) -> list[tuple[Ints, Floats]]:
        """Return the nearest of the rows at some places, and their cosines, for each scope."""
        has_codes = simsimd is not None
        estimates, margins = self._by_codes(query) if has_codes else self._by_singles(query)
        nearest = []
        for scope in scopes:
            places = _possible(scope, estimates[scope], margins[scope], top_k)
            if has_codes and len(places) > _COPIED_ROWS:
                places = _possible(places, self._cosines(query, places), _ROUNDING, top_k)
            exact = self._cosines(query.astype(np.float64), places)
            nearest.append(self.best(exact, top_k, places))
        return nearest

    def _by_codes(self, query: Singles) -> tuple[Singles, Singles]:
        """Return the cosine of each row by the codes, and how far it may be off."""
        coded = UnitVectors.of(np.zeros(1, np.int64), query[None])
        estimates = []
        margins = []
        for arrays, _ in self.parts:
            if not len(arrays.codes):  # simsimd refuses an array without rows
                continue
            products = np.asarray(simsimd.cdist(coded.codes, arrays.codes, "dot"))[0]
            estimates.append(products.astype(np.float32) * (arrays.scales * coded.scales))
            errors = arrays.errors + coded.errors + arrays.errors * coded.errors
            margins.append(errors + _ROUNDING)
        return np.concatenate(estimates), np.concatenate(margins)

    def _by_singles(self, query: Singles) -> tuple[Singles, Singles]:
        """Return the cosine of each row in float32, and how far it may be off."""
        by_part = [np.einsum("ij,j->i", arrays.units, query) for arrays, _ in self.parts]
        estimates = np.concatenate(by_part)
        return estimates, np.full_like(estimates, _ROUNDING)

    def _cosines(self, query: Singles | Floats, places: Ints) -> Floats:
        """Return the cosines of a query and the rows at some places, as exact as the query is."""
        cosines = np.empty(len(places))
        for arrays, inside, targets in self.by_part(places):
            for start in range(0, len(targets), _COPIED_ROWS):
                rows = inside[start : start + _COPIED_ROWS]
                units = arrays.units[rows].astype(query.dtype)
                cosines[targets[start : start + _COPIED_ROWS]] = np.einsum("ij,j->i", units, query)
        return cosines


def _possible(
    places: Ints, cosines: Singles | Floats, margins: Singles | float, top_k: int
) -> Ints:
    """Return the places that can be among the nearest.

    Args:
        places: Some places.
        cosines: The estimated cosine of each.
        margins: How far the estimate of each may be off.
        top_k: How many are the nearest.
    """
    if len(places) <= top_k:
        return places
    lowest = cosines - margins
    possible: Ints = places[cosines + margins >= kth_largest(lowest, top_k)]
    return possible
