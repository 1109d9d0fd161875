"""Unit vectors of chunks, compared with all of them: no graph of neighbours, which would lose some.

The vectors that can be among the nearest are compared again in float64, so that equal vectors have
equal scores whatever is beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from llama_index_contextual.retrievers.arrays import ArrayIndex, RowArrays
from llama_index_contextual.utils.errors import FingerprintError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.retrievers.arrays import Floats, Ints

Singles = npt.NDArray[np.float32]

_MARGIN: Final = 5e-5  # of a cosine in float32; measured: below 1e-6
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
    """Unit vectors of rows; ``units`` has the shape (rows, dimensions)."""

    units: Singles


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
        rough_by_part = [np.einsum("ij,j->i", arrays.units, query) for arrays, _ in self.parts]
        rough = np.concatenate(rough_by_part)
        nearest = []
        for scope in scopes:
            places = scope
            if len(places) > top_k:
                # Keep what can be among the nearest, whatever the rounding.
                values = rough[places]
                last = np.partition(values, len(values) - top_k)[len(values) - top_k]
                places = places[values >= last - 2 * _MARGIN]
            nearest.append(
                self.best(self._cosines(query.astype(np.float64), places), top_k, places)
            )
        return nearest

    def _cosines(self, query: Floats, places: Ints) -> Floats:
        """Return the exact cosines of a query and the rows at some places."""
        cosines = np.empty(len(places))
        for arrays, inside, targets in self.by_part(places):
            for start in range(0, len(targets), _COPIED_ROWS):
                rows = inside[start : start + _COPIED_ROWS]
                units = arrays.units[rows].astype(np.float64)
                cosines[targets[start : start + _COPIED_ROWS]] = np.einsum("ij,j->i", units, query)
        return cosines
