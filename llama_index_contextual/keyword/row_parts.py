"""Rows in two parts that never change: a large one, and a small one of what was added since.

A part has ``ids``, ascending. With it come a mask of its living rows (None: all) and the key of the files that hold it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from llama_index_contextual.keyword.evidence import Ints
    from llama_index_contextual.keyword.term_arrays import Bools, Floats

SHARE: Final = 4  # a small part joins the large one when it has a fourth of its rows


def best_rows(every: Ints, scores: Floats, top_k: int, places: Ints) -> tuple[Ints, Floats]:
    """Return the rows with the highest scores, best first, ties by number, and those that tie with the last.

    Args:
        every: Number of each row.
        scores: Of each row.
        top_k: How many.
        places: Of the rows that count.
    """
    if top_k <= 0:
        return every[:0], scores[:0]
    values = scores[places]
    if len(values) > top_k:
        best = values >= np.partition(values, len(values) - top_k)[len(values) - top_k]
        places, values = places[best], values[best]
    rows = every[places]
    order = np.lexsort((rows, -values))
    return rows[order], values[order]


def join_parts(parts: Iterable[tuple[Any, Bools | None, str]], merge: Callable[[Any], Any]) -> list[Any]:
    """Return a large part and perhaps a small one: the small ones are merged, and with the large one where they grew.

    A part of which half is dead is merged, too. So each row is merged a few times, however often rows are added.
    """
    living = [part for part in parts if part[1] is None or part[1].any()]
    if not living:
        return []
    base, *rest = living
    alive = len(base[0].ids) if base[1] is None else int(base[1].sum())
    added = sum(len(part.ids) for part, _, _ in rest)
    if added * SHARE > alive or 2 * alive < len(base[0].ids):
        return [base] if not rest and base[1] is None else [(merge([part[:2] for part in (base, *rest)]), None, "")]
    return [base] if not rest else [base, rest[0] if len(rest) == 1 else (merge([one[:2] for one in rest]), None, "")]


def without_rows(parts: tuple[tuple[Any, Bools | None, str], ...], rows: Ints) -> Any:
    """Return parts in which some rows are dead; the same object where they have none of them."""
    changed = []
    for part, live, key in parts:
        dead = np.isin(part.ids, rows) if len(rows) else np.zeros(len(part.ids), np.bool_)
        dead = dead if live is None else dead & live
        changed.append((part, (~dead if live is None else live & ~dead) if dead.any() else live, key))
    is_same = all(one[1] is other[1] for one, other in zip(parts, changed, strict=True))
    return parts if is_same else tuple(changed)


def places_of(ids: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """Return which of some numbers are among ascending ids, and where."""
    places = np.minimum(ids.searchsorted(wanted), max(len(ids) - 1, 0))
    at = np.flatnonzero(ids[places] == wanted) if len(ids) else wanted[:0]
    return at, places[at]
