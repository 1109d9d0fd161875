"""Rankings of single retrievers, and their fusion by ranks or by scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.retrievers.arrays import Floats
    from llama_index_contextual.retrievers.bm25_index import Candidate

_DEVIATIONS: Final = 3  # a score is stretched over so many standard deviations on each side


class Mode(str, Enum):
    """Ways to fuse rankings beside LlamaIndex's.

    A model ranks, and weights of retrievers of different kinds are unused.
    """

    LEARNED = "learned"
    MESSAGE = "message"


MODES: Final = tuple(mode.value for modes in (FUSION_MODES, Mode) for mode in modes)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The answer of one retriever to one query.

    Attributes:
        retriever: The name of the retriever.
        query: The number of the query, 0 for the original.
        weight: Its share of the fusion.
        node_ids: Best first, each once.
        scores: The score of each node, falling.
        compared: How many of the first nodes are the best of all chunks, whatever the filters are.
            Their scores set the scale, so that a filter changes no score.
        is_keyword: Whether the retriever matches words.
        model: The embedding whose cosines the scores are, "" for an embedding that was not
            measured; None for a retriever that does not tell.
    """

    retriever: str
    query: int
    weight: float
    node_ids: Sequence[str]
    scores: Floats
    compared: int
    is_keyword: bool = False
    model: str | None = None

    @property
    def compared_scores(self) -> Floats:
        """Return the scores of the best of all chunks."""
        return self.scores[: self.compared]


class Credit(NamedTuple):
    """What a retriever or a feature adds to the score of a hit.

    Attributes:
        name: The name of the retriever or the feature.
        value: The score of the retriever, or the value of the feature.
        credit: What it adds.
        query: The number of the query that the retriever answered.
        rank: The rank in the answer of the retriever, from 1; None for a feature.
    """

    name: str
    value: float
    credit: float
    query: int = 0
    rank: int | None = None


class FeatureColumn(NamedTuple):
    """The values of a feature, and what they add to the scores, by row."""

    name: str
    values: Floats
    credits: Floats


class ScoreTable:
    """The candidates with their scores, and what the scores are made of.

    It has one row per node, in the order of the ids.

    Args:
        rankings: Whose nodes are the candidates.

    Attributes:
        node_ids: Ids in row order.
        raw: The sum of all credits, in log-odds for the learned mode.
        scores: The same as a share of the best.
        rankings: Each ranking, with what it adds to the score of each of its nodes.
        features: What each feature adds.
    """

    def __init__(self, rankings: Sequence[Ranking]) -> None:
        unique_ids = {node_id for ranking in rankings for node_id in ranking.node_ids}
        self.node_ids = sorted(unique_ids)
        self.raw: Floats = np.zeros(len(self.node_ids))
        self.scores = self.raw
        self.rankings = [(ranking, np.zeros(len(ranking.scores))) for ranking in rankings]
        self.features: list[FeatureColumn] = []
        self._row_of = {node_id: row for row, node_id in enumerate(self.node_ids)}

    def spread(self, ranking: Ranking, values: Floats, missing: float = 0.0) -> Floats:
        """Return the values of a ranking's nodes by row.

        Nodes that are no candidates are left out.
        """
        spread = np.full(len(self.node_ids) + 1, missing)
        spread[[self._row_of.get(node_id, -1) for node_id in ranking.node_ids]] = values
        return spread[:-1]

    def best_first(self) -> dict[str, float]:
        """Return the score of each candidate by id, best first, ties by id."""
        order = np.argsort(-self.scores, kind="stable").tolist()
        return {self.node_ids[row]: float(self.scores[row]) for row in order}

    def credits_of(self, node_id: str) -> tuple[Credit, ...]:
        """Return what the score of a candidate is made of.

        Nothing for a node that is no candidate.
        """
        row = self._row_of.get(node_id)
        if row is None:
            return ()
        parts: list[Credit] = []
        for ranking, credit in self.rankings:
            if node_id in ranking.node_ids:
                place = list(ranking.node_ids).index(node_id)
                score = float(ranking.scores[place])
                parts.append(
                    Credit(ranking.retriever, score, float(credit[place]), ranking.query, place + 1)
                )
        for feature in self.features:
            if feature.values[row]:
                value = float(feature.values[row])
                parts.append(Credit(feature.name, value, float(feature.credits[row])))
        return tuple(parts)


def in_ranks(candidates: Sequence[Candidate]) -> tuple[list[str], Floats]:
    """Return the ids and the scores of candidates, best first, each node at its best rank.

    Candidates without a score follow in their order, with the lowest score; where none has a score,
    scores fall evenly from 1.
    """
    scored: dict[str, float] = {}
    unscored: dict[str, None] = {}
    for node_id, score, _ in candidates:
        if score is None or math.isnan(score):
            unscored[node_id] = None
        else:
            scored[node_id] = max(score, scored.get(node_id, -math.inf))
    pairs = sorted((-score, node_id) for node_id, score in scored.items())
    scores = [-negated for negated, _ in pairs]
    last_ids = [node_id for node_id in unscored if node_id not in scored]
    if scores:
        scores += [scores[-1]] * len(last_ids)
    else:
        scores = [1 - place / len(last_ids) for place in range(len(last_ids))]
    return [node_id for _, node_id in pairs] + last_ids, np.array(scores, dtype=np.float64)


def stretch(scores: Floats, scale: Floats, *, by_range: bool = False) -> Floats:
    """Return scores stretched linearly to about 0 to 1, none below 0; where all are equal, 1.

    Args:
        scores: The scores of a ranking.
        scale: Those of them that set the scale.
        by_range: Whether the lowest becomes 0 and the highest 1, and not the mean ± 3 standard
            deviations.
    """
    low = float(scale.min(initial=math.inf))
    high = float(scale.max(initial=-math.inf))
    if low < high and not by_range:
        mean = float(scale.mean())
        spread = _DEVIATIONS * float(scale.std())
        low = mean - spread
        high = mean + spread
    if low >= high:
        return np.ones(len(scores))
    return np.maximum((scores - low) / (high - low), 0.0)


def fuse(rankings: Sequence[Ranking], *, mode: FUSION_MODES, k: float, pool: int) -> ScoreTable:
    """Fuse rankings by ranks or by scores.

    Args:
        rankings: The answers of all retrievers to all queries.
        mode: RECIPROCAL_RANK adds ``weight / (k + rank)``, ranks from 1; RELATIVE_SCORE adds
            weighted scores stretched from 0 to 1; DIST_BASED_SCORE the same over mean ± 3 standard
            deviations; SIMPLE takes the largest weighted score.
        k: The constant of reciprocal ranks.
        pool: The most nodes that a ranking can have. It sets the score from which reciprocal ranks
            are normalized, so that a score means the same however many candidates there are.
    """
    table = ScoreTable([ranking for ranking in rankings if ranking.weight > 0])
    if not table.node_ids:
        return table
    largest = np.full(len(table.node_ids), -np.inf)
    for ranking, credit in table.rankings:
        credit[:] = ranking.weight * _shares(ranking, mode, k)
        table.raw += table.spread(ranking, credit)
        largest = np.maximum(largest, table.spread(ranking, credit, missing=-np.inf))
    floor = 0.0
    if mode is FUSION_MODES.SIMPLE:
        table.raw = largest
    if mode is FUSION_MODES.RECIPROCAL_RANK:
        # The share of the first rank that a ranking cannot have: each candidate is above it.
        floor = min(ranking.weight for ranking, _ in table.rankings) / (k + pool + 1)
    lifted = table.raw - floor
    best = float(lifted.max())
    table.scores = lifted / best if best > 0 else lifted
    return table


def _shares(ranking: Ranking, mode: FUSION_MODES, k: float) -> Floats:
    """Return what each node of a ranking counts before weights."""
    if mode is FUSION_MODES.RECIPROCAL_RANK:
        return 1 / (k + np.arange(1.0, len(ranking.scores) + 1))
    if mode is FUSION_MODES.SIMPLE:
        return ranking.scores
    by_range = mode is FUSION_MODES.RELATIVE_SCORE
    return stretch(ranking.scores, ranking.scores, by_range=by_range)
