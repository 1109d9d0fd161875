"""Figures of a comparison: recall, ranks, failures avoided, and their 95 % intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

Recalls: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Interval: TypeAlias = tuple[float, float, float]

_RESAMPLES: Final = 2000  # of the bootstrap


def interval(values: npt.ArrayLike) -> list[Interval]:
    """Return mean and 95 % bootstrap interval of each column, as ``(mean, low, high)``.

    Args:
        values: Shape ``(questions, k)``, at least one question. For a paired interval give differences.
    """
    points = np.asarray(values, float)
    return _with_ends(points.mean(axis=0), points[_resamples(len(points))].mean(axis=1))


def failures_avoided(without: npt.ArrayLike, with_contexts: npt.ArrayLike) -> list[Interval | None]:
    """Compare the recalls of the same questions without and with contexts.

    Args:
        without: Recalls from 0 to 1, shape ``(questions, k)``.
        with_contexts: The same, with contexts.

    Returns:
        For each k, of the recall that is missing without contexts the part that is found with them, in per cent, with
        the ends of its 95 % interval (paired bootstrap over the questions). Below 0 where contexts add failures. None
        where nothing is missing without them. Empty without questions.
    """
    before, after = np.asarray(without, float), np.asarray(with_contexts, float)
    if not len(before):
        return []
    sample = _resamples(len(before))
    shares = _with_ends(
        _avoided(before.mean(axis=0), after.mean(axis=0)),
        _avoided(before[sample].mean(axis=1), after[sample].mean(axis=1)),
    )
    fails = before.min(axis=0) < 1
    return [share if is_failing else None for share, is_failing in zip(shares, fails, strict=True)]


def _avoided(before: Recalls, after: Recalls) -> Recalls:
    with np.errstate(divide="ignore", invalid="ignore"):
        percent = 100 * (1 - (1 - after) / (1 - before))
    return np.where(np.isfinite(percent), percent, 0.0)  # a resample without failures has none to avoid


def _resamples(count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))


def _with_ends(values: Recalls, resampled: Recalls) -> list[Interval]:
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
    return list(zip(values.tolist(), low.tolist(), high.tolist(), strict=True))


def recall_at(k: int, hits: Sequence[Collection[object]], gold: Collection[object]) -> float:
    """Return the share of the gold items that the first k hits cover, 0 to 1.

    Anthropic's contextual retrieval evaluation calls the mean of this over all queries *pass@k*.

    Args:
        k: How many hits count, at least 1.
        hits: For each hit, best first, the gold items that it covers. Other items are ignored.
        gold: The items to find, at least one.

    Raises:
        ValueError: ``k`` is less than 1 or ``gold`` is empty.
    """
    if k < 1 or not gold:
        raise ValueError(f"recall needs k >= 1 and at least one gold item, got k={k} and {len(gold)} items")
    wanted = set(gold)
    return len(wanted & set().union(*hits[:k])) / len(wanted)


def mean_reciprocal_rank(
    hits_of_queries: Sequence[Sequence[Collection[object]]], golds: Sequence[Collection[object]]
) -> float:
    """Return the mean over queries of 1 / rank of the first hit that covers a gold item, or 0 where none does.

    Args:
        hits_of_queries: For each query its hits, as :func:`recall_at` takes them.
        golds: For each query its gold items.

    Raises:
        ValueError: There are no queries, or not as many as gold sets.
    """
    if not golds or len(golds) != len(hits_of_queries):
        raise ValueError(f"need one gold set per query, got {len(hits_of_queries)} queries and {len(golds)} gold sets")
    ranks = (
        next((1 / rank for rank, hit in enumerate(hits, 1) if set(gold) & set(hit)), 0.0)
        for hits, gold in zip(hits_of_queries, golds, strict=True)
    )
    return sum(ranks) / len(golds)


def ndcg(k: int, hits_of_queries: Sequence[Sequence[Collection[object]]], golds: Sequence[Collection[object]]) -> float:
    """Return the mean normalised discounted cumulative gain of the first k hits, 0 to 1.

    A hit gains 1 where it covers a gold item that no hit before it covered. So a second chunk with the same line gains
    nothing, and a chunk with two gold lines is as good as it can be. Where each hit covers one gold item of its own,
    this is the nDCG of trec_eval with gains of 0 and 1.

    Args:
        k: How many hits count.
        hits_of_queries: For each query its hits, as :func:`recall_at` takes them.
        golds: For each query its gold items, at least one.
    """
    return float(np.mean([_ndcg(hits[:k], set(gold), k) for hits, gold in zip(hits_of_queries, golds, strict=True)]))


def _ndcg(hits: Sequence[Collection[object]], gold: set[object], k: int) -> float:
    gain, needed, missing = 0.0, len(gold), set(gold)
    for rank, hit in enumerate(hits, 1):
        if new := missing & set(hit):
            gain += 1 / math.log2(rank + 1)
            needed -= len(new) - 1  # items that stand in one chunk need one hit
            missing -= new
    return gain / sum(1 / math.log2(rank + 1) for rank in range(1, min(k, needed) + 1))
