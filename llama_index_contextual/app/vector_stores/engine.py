"""What keeps vectors by row number outside of this process, or beyond the limit of the matrix.

An engine holds row numbers and vectors and nothing else; all of it is derived from the database. To catch up it deletes
the rows that the database no longer has, and gets those that it lacks. Whatever is wrong with it, it is filled anew.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from llama_index_contextual.errors import StorageError
from llama_index_contextual.matrix import best

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Hits = tuple[Rows, npt.NDArray[np.float64]]

logger = logging.getLogger(__name__)

_PAGE: Final = 2000  # rows that are read from the database and written at once
_SPARE: Final = 50  # candidates beyond those that were asked for: a store's own scores are rounded
_MOST: Final = 10_000  # candidates at most, where many tie
_WIDE: Final = 1000  # candidates at least that are filtered here
_SLACK: Final = 1e-5  # more than what rounding changes of a store's scores


class StoreDamagedError(StorageError):
    """What is derived from the database cannot be used any more, and has to be derived again."""


def damaged(what: str) -> StoreDamagedError:
    """Return the error, given what is damaged."""
    return StoreDamagedError(f"{what} Nothing is lost. Cure: refresh, which derives it from the database again.")


class VectorEngine(Protocol):
    """Vectors by row number. Several threads may ask at the same time; one writes.

    A row never changes: what changed of a node is another row. All methods raise a
    :class:`~llama_index_contextual.errors.StorageError` where the store cannot be reached or written, and a
    :class:`StoreDamagedError` where it has to be cleared and filled again.
    """

    def rows(self) -> Rows:
        """Return the numbers of all rows that it holds, ascending; none where it was never filled."""

    def count(self) -> int:
        """Return how many rows it holds."""

    def upsert(self, rows: Rows, vectors: Floats) -> None:
        """Write vectors, durably.

        Args:
            rows: Their numbers, each above 0 and once; a number that is there already gets the new vector.
            vectors: Of any length, shape ``(rows, dimensions)``.

        Raises:
            FingerprintError: They have another number of dimensions than those that are there.
        """

    def delete(self, rows: Rows) -> None:
        """Delete rows; those that it does not hold are ignored."""

    def nearest(self, question: npt.ArrayLike, top_k: int, among: Rows | None = None) -> Hits:
        """Return the rows of the nearest vectors and their cosine similarities (-1 to 1), best first.

        These are the best ``top_k`` and, as far as the store can tell, every row whose score ties with the last of
        them. Equal vectors have equal scores.

        Args:
            question: A vector of any length.
            top_k: Most results, ties aside.
            among: Only these rows, ascending; there may be 100,000. Those that it does not hold are ignored.
        """

    def clear(self) -> None:
        """Delete everything, whatever state it is in; the next :meth:`upsert` may bring other dimensions."""

    def close(self) -> None:
        """Let go of what is open. An engine that is used again opens it again."""


def catch_up(
    engine: VectorEngine,
    wanted: Rows,
    vectors_of: Callable[[Rows], Iterable[tuple[Rows, Floats]]],
    newest: int | None = None,
) -> None:
    """Let an engine hold some rows and no others. What is damaged is cleared and filled again.

    Args:
        engine: The engine.
        wanted: The rows, ascending.
        vectors_of: Yields vectors of some thousand rows, in pages: their numbers and the vectors.
        newest: The largest row number that the database had given when ``wanted`` was read. Larger ones are those of
            another writer, who is ahead, and stay. By default there is none.
    """
    try:
        _fill(engine, wanted, vectors_of, newest)
    except StoreDamagedError as error:
        logger.warning("The vectors are derived from the database again: %s", error)
        engine.clear()
        _fill(engine, wanted, vectors_of, newest)


def _fill(
    engine: VectorEngine,
    wanted: Rows,
    vectors_of: Callable[[Rows], Iterable[tuple[Rows, Floats]]],
    newest: int | None,
) -> None:
    present = engine.rows()
    unwanted = present[~np.isin(present, wanted)]
    if newest is not None:
        unwanted = unwanted[unwanted <= newest]
    if len(unwanted) and len(unwanted) == len(present):  # also where another embedding has other dimensions
        engine.clear()
    else:
        for page in pages(unwanted, _PAGE):
            engine.delete(page)
    for page in pages(wanted[~np.isin(wanted, present)], _PAGE):
        for rows, vectors in vectors_of(page):
            engine.upsert(rows, vectors)


def pages(rows: Rows, size: int) -> Iterator[Rows]:
    """Yield row numbers a page at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def nearest_by(
    ask: Callable[[int, Rows | None], tuple[Rows, Floats]],
    question: npt.ArrayLike,
    top_k: int,
    among: Rows | None,
    count: Callable[[], int],
    most_ids: int,
) -> Hits:
    """Answer :meth:`VectorEngine.nearest` by what a store finds: more candidates than asked for, scored again exactly.

    Args:
        ask: Returns the rows and vectors of so many nearest ones, of all or of some rows.
        question: A vector of any length.
        top_k: Most results, ties aside.
        among: Only these rows.
        count: Returns how many rows there are.
        most_ids: How many row numbers the store takes with a question.
    """
    query = np.asarray(question, dtype=np.float64)
    query = query / (np.linalg.norm(query) or 1.0)

    def scored(wide: int, ids: Rows | None) -> Hits:
        rows, vectors = ask(wide, ids)
        exact = vectors.astype(np.float64)
        lengths = np.linalg.norm(exact, axis=1)
        # Each by itself, so that equal vectors have equal scores.
        scores = np.einsum("ij,j->i", exact, query) / np.where(lengths > 0, lengths, 1.0)
        return rows, scores

    def best_of(ids: Rows | None) -> Hits:
        wide = top_k + _SPARE
        while True:
            rows, scores = scored(wide, ids)
            hits = best(rows, scores, top_k)
            # As long as the worst candidate ties with the last hit, there may be more that do.
            if len(rows) < wide or wide >= _MOST or scores.min() < hits[1][-1] - _SLACK:
                return hits
            wide *= 4

    if top_k <= 0 or (among is not None and not len(among)):
        return np.empty(0, np.int64), np.empty(0, np.float64)
    if among is None or len(among) <= most_ids:
        return best_of(among)
    # Too many to name. Most often enough of them are among the nearest of all.
    wide = max(_WIDE, 4 * top_k * count() // len(among))
    if wide <= _MOST:
        rows, scores = scored(wide, None)
        inside = np.isin(rows, among)
        hits = best(rows[inside], scores[inside], top_k)
        if len(rows) < wide or (len(hits[0]) >= top_k and scores.min() < hits[1][-1] - _SLACK):
            return hits
    parts = [best_of(page) for page in pages(among, most_ids)]
    return best(np.concatenate([rows for rows, _ in parts]), np.concatenate([scores for _, scores in parts]), top_k)
