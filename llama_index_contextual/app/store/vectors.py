"""Vectors by row number, each of which is compared with a question: no graph of neighbours, which would lose some.

All are compared in float32, and those that come near to the best again in float64, so that equal vectors have equal
scores whatever stands beside them.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from llama_index_contextual.errors import FingerprintError
from llama_index_contextual.keyword.array_files import ArrayPart
from llama_index_contextual.keyword.bm25_index import best_rows, join_parts, without_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index_contextual.app.store.schema import Floats, Rows

# How far the float32 cosine of two vectors of a thousand numbers may be from the true one; measured: below 1e-6.
_MARGIN: Final = 5e-5


def unit_vectors(vectors: npt.ArrayLike) -> Floats:
    """Vectors of length 1 in their directions; those of length 0 stay."""
    array = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(array, axis=-1, keepdims=True)
    return (array / np.where(lengths == 0, 1.0, lengths)).astype(np.float32)


class UnitVectors:
    """Unit vectors of some rows, which never change.

    Args:
        ids: Number of each row, ascending.
        units: Shape (rows, dimensions).
    """

    def __init__(self, ids: Rows, units: Floats) -> None:
        self.ids, self.units = ids, units

    @classmethod
    def merge(cls, parts: Sequence[tuple[UnitVectors, Any]]) -> UnitVectors:
        """Return the living rows of some parts as one."""
        kept = [np.ones(len(part.ids), np.bool_) if live is None else live for part, live in parts]
        ids = np.concatenate([part.ids[live] for (part, _), live in zip(parts, kept, strict=True)])
        units = np.concatenate([part.units[live] for (part, _), live in zip(parts, kept, strict=True)])
        if (np.diff(ids) < 0).any():
            order = np.argsort(ids)
            ids, units = ids[order], units[order]
        return cls(ids, units)


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

    def vectors_of(self, rows: Rows) -> Iterable[tuple[int, Floats]]:
        """Unit vectors of those of some rows that are there, by number."""
        for part, live, _ in self._parts:
            for at in np.flatnonzero(np.isin(part.ids, rows) & (True if live is None else live)).tolist():
                yield int(part.ids[at]), part.units[at]

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
        asked = unit_vectors(questions)
        _refuse_other_length(asked.shape[1], self._parts[0][0].units.shape[1])
        parts = [(part, np.ones(len(part.ids), np.bool_) if live is None else live) for part, live, _ in self._parts]
        if among is not None:
            parts = [(part, live & np.isin(part.ids, among)) for part, live in parts]
        places = np.flatnonzero(np.concatenate([live for _, live in parts]))
        if among is not None and len(places) < len(every) // 2:
            near = np.concatenate([part.units[live] for part, live in parts]) @ asked.T
        else:
            near = np.concatenate([part.units @ asked.T for part, _ in parts])[places]
        answers = []
        for question, scores in zip(asked.astype(np.float64), near.T, strict=True):
            best = np.arange(len(scores))
            if len(scores) > top_k:
                least = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
                best = np.flatnonzero(scores >= least - _MARGIN)
            exact = np.einsum("ij,j->i", self._units_at(places[best]).astype(np.float64), question)
            answers.append(best_rows(every[places[best]], exact, top_k, np.arange(len(best))))
        return answers

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
        return [ArrayPart(key, {"rows": part.ids, "vectors": part.units}) for part, _, key in self._parts]

    def with_keys(self, keys: Sequence[str]) -> VectorIndex:
        """Return the same index, whose parts have been written under some keys."""
        return VectorIndex((part, live, key) for (part, live, _), key in zip(self._parts, keys, strict=True))

    @classmethod
    def from_arrays(cls, parts: Iterable[ArrayPart]) -> VectorIndex:
        """Return the index of parts that :meth:`to_arrays` gave; all of their rows live.

        Raises:
            ValueError: They do not fit together.
        """
        made = [(UnitVectors(part.arrays["rows"], part.arrays["vectors"]), None, part.key) for part in parts]
        for part, _, _ in made:
            shapes = part.units.ndim == 2 and part.ids.shape == part.units.shape[:1]  # noqa: PLR2004
            is_sound = shapes and part.ids.dtype == np.int64 and part.units.dtype == np.float32
            if not is_sound or (np.diff(part.ids) <= 0).any() or part.units.shape[1] != made[0][0].units.shape[1]:
                raise ValueError("the arrays of vectors do not fit together")
        return cls(made)


def _refuse_other_length(length: int, wanted: int) -> None:
    if length != wanted:
        raise FingerprintError(
            f"a vector of {length} dimensions does not compare with vectors of {wanted}. Cure: the embedding that the "
            "index was made with."
        )
