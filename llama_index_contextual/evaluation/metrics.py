"""Retrieval metrics over plain data, so that any retriever and any gold standard can use them.

A *hit* is described by the set of gold items it covers: usually one or none, several where a chunk holds two gold
lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def recall_at(k: int, hits: Sequence[Collection[object]], gold: Collection[object]) -> float:
    """Share of the gold items that the first k hits cover, 0 to 1.

    Its mean over queries is what Anthropic's contextual retrieval evaluation calls *pass@k*.

    Args:
        k: How many hits count, at least 1.
        hits: Best first; each the gold items it covers (others are ignored).
        gold: The items to find, at least one.

    Raises:
        ValueError: ``k`` or ``gold`` is empty, where recall has no meaning.
    """
    if k < 1 or not gold:
        raise ValueError(f"recall needs k >= 1 and at least one gold item, got k={k} and {len(gold)} items")
    wanted = set(gold)
    found = {item for hit in hits[:k] for item in hit} & wanted
    return len(found) / len(wanted)


def mean_reciprocal_rank(
    hits_of_queries: Sequence[Sequence[Collection[object]]], golds: Sequence[Collection[object]]
) -> float:
    """Mean over queries of 1 / rank of the first hit that covers any gold item (0 where none does).

    Raises:
        ValueError: There are no queries, or not as many as gold sets.
    """
    if not golds or len(golds) != len(hits_of_queries):
        raise ValueError(f"need one gold set per query, got {len(hits_of_queries)} queries and {len(golds)} gold sets")
    total = 0.0
    for hits, gold in zip(hits_of_queries, golds, strict=True):
        wanted = set(gold)
        total += next((1 / rank for rank, hit in enumerate(hits, 1) if wanted & set(hit)), 0.0)
    return total / len(golds)
