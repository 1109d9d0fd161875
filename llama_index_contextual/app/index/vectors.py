"""Exact nearest neighbours among the unit vectors of chunks, without an approximate graph.

A query is compared in two or three steps, each more exact and on fewer rows than the step before:

1. With 8-bit codes of all rows, if simsimd is installed. The error of each code is known, so every
   row that can be among the nearest is kept.
2. With the vectors in float32, if many rows are left.
3. With the vectors in float64, so that equal vectors have equal scores in any batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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

_ROUNDING = 5e-5  # largest error of a cosine in float32; errors below 1e-6 were measured
_LARGEST_CODE = 127
_COPIED_ROWS = 512  # rows per copy, which fit into the cache of a processor


def unit_vectors(vectors: npt.ArrayLike) -> Singles:
    """Return vectors scaled to length 1. Vectors of length 0 are not changed."""
    array = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(array, axis=-1, keepdims=True)
    lengths[lengths == 0] = 1.0
    units: Singles = (array / lengths).astype(np.float32)
    return units


@dataclass(frozen=True, eq=False)
class UnitVectors(RowArrays):
    """Unit vectors of rows, with 8-bit codes.

    Attributes:
        units: The vectors, of shape (rows, dimensions).
        codes: Integers from -127 to 127, of the same shape. ``codes * scales`` is about ``units``.
        scales: The factor of each row's codes.
        errors: The length of the difference between each vector and its scaled codes.
    """

    units: Singles
    codes: Codes
    scales: Singles
    errors: Singles
    matrices = ("units", "codes")

    @classmethod
    def of(cls, ids: Ints, units: Singles) -> Self:
        """Return the arrays for unit vectors."""
        scales = np.abs(units).max(axis=1, initial=0.0) / _LARGEST_CODE
        scales[scales == 0] = 1.0
        codes = np.rint(units / scales[:, None]).astype(np.int8)
        errors = np.linalg.norm(units - codes * scales[:, None], axis=1)
        return cls(ids, units, codes, scales.astype(np.float32), errors.astype(np.float32))

    def check(self) -> None:
        """Raise a ValueError if the arrays do not fit together."""
        super().check()
        require(self.codes.shape == self.units.shape)
        require(self.codes.dtype == np.int8)


class VectorIndex(ArrayIndex):
    """Unit vectors by row number."""

    arrays_type = UnitVectors

    def nearest(
        self, queries: Sequence[Sequence[float]], top_k: int, among: Ints | None = None
    ) -> list[list[tuple[Ints, Floats]]]:
        """Return the nearest rows to each query vector, with their cosines, best first.

        Args:
            queries: The query vectors.
            top_k: The number of rows. Rows that tie with the last one are added, so that the caller
                can break ties.
            among: A second list for each query contains the nearest of these rows.

        Raises:
            FingerprintError: A query vector has another length than those of the index.
        """
        places = np.flatnonzero(self.live)
        scopes = [places]
        if among is not None:
            scopes.append(places[np.isin(self.all_rows[places], among)])
        if not len(places):
            return [[(self.all_rows[:0], np.empty(0)) for _ in scopes] for _ in queries]
        for query in queries:
            self._check_length(len(query))
        return [self._nearest_to(query, top_k, scopes) for query in unit_vectors(queries)]

    def _check_length(self, length: int) -> None:
        for arrays, _ in self.parts:
            dimensions = arrays.units.shape[1]
            if dimensions != length:
                raise FingerprintError(
                    f"a vector of {length} dimensions cannot be compared with vectors of "
                    f"{dimensions}. Use the embedding that the index was made with."
                )

    def _nearest_to(
        self, query: Singles, top_k: int, scopes: Sequence[Ints]
    ) -> list[tuple[Ints, Floats]]:
        """Return the nearest rows and their cosines within each scope, an array of positions."""
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
        """Return the cosine of each row by its codes, and the largest error of it."""
        coded = UnitVectors.of(np.zeros(1, np.int64), query[None])
        estimates = []
        margins = []
        for arrays, _ in self.parts:
            if not len(arrays.codes):  # simsimd does not accept an array without rows
                continue
            products = np.asarray(simsimd.cdist(coded.codes, arrays.codes, "dot"))[0]
            estimates.append(products.astype(np.float32) * (arrays.scales * coded.scales))
            errors = arrays.errors + coded.errors + arrays.errors * coded.errors
            margins.append(errors + _ROUNDING)
        return np.concatenate(estimates), np.concatenate(margins)

    def _by_singles(self, query: Singles) -> tuple[Singles, Singles]:
        """Return the cosine of each row in float32, and the largest error of it."""
        by_part = [np.einsum("ij,j->i", arrays.units, query) for arrays, _ in self.parts]
        estimates = np.concatenate(by_part)
        return estimates, np.full_like(estimates, _ROUNDING)

    def _cosines(self, query: Singles | Floats, places: Ints) -> Floats:
        """Return the cosines of a query and rows, in the precision of the query."""
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
    """Return the positions of rows that can be among the nearest.

    Args:
        places: The positions of rows.
        cosines: The estimated cosine of each row.
        margins: The largest error of each estimate.
        top_k: The number of nearest rows.
    """
    if len(places) <= top_k:
        return places
    lowest = cosines - margins
    possible: Ints = places[cosines + margins >= kth_largest(lowest, top_k)]
    return possible
