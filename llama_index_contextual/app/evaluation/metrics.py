"""Measures of retrieval: recall, mean reciprocal rank, and intervals by bootstrap."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_RESAMPLES = 2000
_ENDS = (2.5, 97.5)  # percentiles of a 95 % interval


class Interval(NamedTuple):
    """A mean and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


def interval(values: npt.ArrayLike) -> list[Interval]:
    """Return the mean and the 95 % bootstrap interval of each column.

    Args:
        values: An array of shape ``(questions, k)`` with at least one question. For a paired
            interval, pass differences.
    """
    points = np.asarray(values, float)
    generator = np.random.default_rng(0)
    sample = generator.integers(len(points), size=(_RESAMPLES, len(points)))
    low, high = np.percentile(points[sample].mean(axis=1), _ENDS, axis=0)
    columns = np.column_stack([points.mean(axis=0), low, high])
    return [Interval(*column) for column in columns.tolist()]


def recall_at(k: int, hits: Sequence[Collection[object]], gold: Collection[object]) -> float:
    """Return the share of the gold items that the first k hits cover, 0 to 1.

    Anthropic's contextual retrieval evaluation calls the mean of this over all queries *pass@k*.

    Args:
        k: The number of hits, at least 1.
        hits: For each hit, best first, the gold items that it covers. Other items are ignored.
        gold: The items to find, at least one.
    """
    covered = set[object]().union(*hits[:k])
    return len(covered.intersection(gold)) / len(set(gold))


def mean_reciprocal_rank(
    hits_of_queries: Sequence[Sequence[Collection[object]]], golds: Sequence[Collection[object]]
) -> float:
    """Return the mean over queries of 1 / rank of the first hit with a gold item, 0 without one.

    Args:
        hits_of_queries: For each query its hits, as in :func:`recall_at`.
        golds: For each query its gold items.
    """
    total = 0.0
    for hits, gold in zip(hits_of_queries, golds, strict=True):
        for rank, hit in enumerate(hits, start=1):
            if not set(gold).isdisjoint(hit):
                total += 1 / rank
                break
    return total / len(golds)
