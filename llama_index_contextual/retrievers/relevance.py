"""Relevance: how likely a hit answers a query, 0 to 1, by its cosine and by the query's words that it holds.

A fused score ranks: the best hit has 1, even where nothing answers. Relevance stays low there. It is a logistic model,
fitted with all-MiniLM-L6-v2 on hits of questions whose answers are known, and of questions and gibberish that the index
cannot answer (``benchmarks/relevance.py``). Few chunks answer a question, so 0.2 is usual for a hit that does. A set
that was left out of the fit loses 0 to 7.5 % of its gold hits at a cut of 0.05, and 17 to 50 % of the hits that answer
nothing stay. At 0.1 it is 1 to 22 % and 1 to 8 %.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_contextual.retrievers.fusion import Fused

_BOTH: Final = (-3.75, 5.74, 1.81)  # the constant, the weight of nearness, the weight of words
_ONLY_NEARNESS: Final = (-3.17, 6.69, 0.0)
_ONLY_WORDS: Final = (-2.85, 0.0, 2.80)


def relevance(nearness: float | None, words: float | None) -> float | None:
    """Return how likely a hit answers a query, 0 to 1; None where nothing is known of it.

    Args:
        nearness: How near its vector is, as :func:`nearness_in` gives it; None without a vector arm.
        words: Share of the query's words that it holds, weighted by rarity, 0 to 1; None without a keyword arm, or
            where the query has no words.
    """
    if nearness is None and words is None:
        return None
    weights = _ONLY_WORDS if nearness is None else _ONLY_NEARNESS if words is None else _BOTH
    constant, of_nearness, of_words = weights
    return 1 / (1 + math.exp(-constant - of_nearness * (nearness or 0.0) - of_words * (words or 0.0)))


def nearness_in(pool: Sequence[Fused], vectors: set[str]) -> Mapping[str, float]:
    """Return by id how far each hit's cosine is from the pool's lowest to 1; empty where no vector arm answered.

    Embeddings differ in the cosines that they give to texts that have nothing in common; the lowest of a pool stands
    for those. A hit that no vector arm proposed has 0.

    Args:
        pool: All hits, with what each arm gave for the original query.
        vectors: Names of the arms whose score is a cosine.
    """
    cosines: dict[str, float] = {}
    for one in pool:
        for credit in one.credits:
            if credit.arm in vectors and credit.query == 0:
                cosines[one.node_id] = max(credit.score, cosines.get(one.node_id, -1.0))
    if not cosines:
        return {}
    low = min(cosines.values())
    return {one.node_id: (cosines.get(one.node_id, low) - low) / (1 - low) if low < 1 else 0.0 for one in pool}
