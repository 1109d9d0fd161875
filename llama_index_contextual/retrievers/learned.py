"""Fuse rankings by a small model that was trained on questions with known answers.

The model is a line: what each feature of a candidate is, times a weight, summed up. The sum is in log-odds, so each
summand says how much a feature speaks for a candidate. All features come from what the arms answered and from the
keyword arm's index:

========== ==========================================================================================================
vector     the score of the vector arms, stretched from 0 to 1 over mean ± 3 standard deviations of the arm's answer
keyword    the same for keyword arms
match      BM25 as a share of the summed rarity (idf) of the question's words: how much of the question is found
nearness   how near to each other the question's neighbouring words stand, weighted by their rarity
========== ==========================================================================================================

The first two compare candidates of one answer and fit arms of any kind. The last two need a keyword arm of ours, mean
the same for every question, and are 0 for all candidates where there is none. ``benchmarks/train_fusion.py`` trains the
numbers in ``learned.json``; ``benchmarks/results/fusion.md`` says on what, and what was tried besides.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.retrievers.fusion import Credit, Fused, Mode, best_first, stretched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_contextual.retrievers.fusion import Ranking

_LEAST: Final = 1e-6  # scores stay greater than 0
FEATURES: Final = ("vector", "keyword", "match", "nearness")


@dataclass(frozen=True, slots=True)
class FusionModel:
    """Hold the numbers of a model.

    Args:
        weights: What 1 of each feature adds to the log-odds that a candidate answers the question.
    """

    weights: Mapping[str, float]


@cache
def shipped_model() -> FusionModel:
    """Return the model that comes with the package."""
    content = json.loads(files("llama_index_contextual.retrievers").joinpath("learned.json").read_text("utf-8"))
    return FusionModel(content["weights"])


class Words(NamedTuple):
    """Hold what a keyword arm of ours knows of the question's words.

    Args:
        arm: Its name.
        weight: The summed idf of the question's words, which no BM25 score exceeds.
        nearness: Of each candidate, 0 to 1.
    """

    arm: str
    weight: float
    nearness: Mapping[str, float]


def fuse_learned(
    rankings: Sequence[Ranking],
    keyword: Mapping[str, bool],
    words: Words | None,
    *,
    agreement_boost: float,
    model: FusionModel | None = None,
) -> list[Fused]:
    """Fuse rankings into one, best first, ties by id, every document once.

    Args:
        rankings: Of all arms and queries.
        keyword: For each arm's name whether it matches words.
        words: None where no arm knows.
        agreement_boost: Factor for the odds of documents that at least two queries found.
        model: Default: the shipped one.

    Returns:
        ``credits`` holds what each feature adds to the log-odds, and ``raw`` their sum. ``score`` is ``raw`` as a share
        of the best: it falls about as slowly as by ranks, so a recency decay weighs about as much as there.
    """
    model = model or shipped_model()
    earned = _credits(rankings, keyword, words, model.weights)
    raw = {node_id: math.fsum([one.credit for one in own]) for node_id, own in earned.items()}
    boosts: dict[str, float] = {}
    if len({ranking.query for ranking in rankings}) > 1:
        found_by = {node_id: {one.query for one in own if one.rank} for node_id, own in earned.items()}
        boosts = {node_id: agreement_boost for node_id, queries in found_by.items() if len(queries) > 1}
    lifted = {node_id: one + math.log(boosts.get(node_id, 1.0)) for node_id, one in raw.items()}
    best = max(lifted.values(), default=0.0)
    return [
        Fused(
            one,
            raw[one],
            max(lifted[one] / best, _LEAST) if best > 0 else 1.0,
            boosts.get(one, 1.0),
            tuple(earned[one]),
        )
        for one in best_first(lifted)
    ]


def _credits(
    rankings: Sequence[Ranking], keyword: Mapping[str, bool], words: Words | None, weights: Mapping[str, float]
) -> dict[str, list[Credit]]:
    """Return what each feature adds for each candidate; absent features add nothing.

    Arms of one kind share its feature by their weights, and so do the queries of an arm.
    """
    totals = {kind: math.fsum(one.weight for one in rankings if keyword[one.arm] is kind) for kind in (True, False)}
    earned: dict[str, list[Credit]] = {}
    for ranking in rankings:
        if not ranking.weight:
            continue
        kind = keyword[ranking.arm]
        factor = weights["keyword" if kind else "vector"] * ranking.weight / totals[kind]
        for node_id, rank, score, stretch in stretched(ranking, Mode.LEARNED):
            own = earned.setdefault(node_id, [])
            own.append(Credit(ranking.arm, ranking.query, rank, score, factor * stretch))
            if words and words.weight and ranking.query == 0 and ranking.arm == words.arm:
                share = min(score / words.weight, 1.0)
                own.append(Credit("match", 0, 0, share, weights["match"] * share))
    for node_id, near in words.nearness.items() if words else ():
        if near and node_id in earned:
            earned[node_id].append(Credit("nearness", 0, 0, near, weights["nearness"] * near))
    return earned
