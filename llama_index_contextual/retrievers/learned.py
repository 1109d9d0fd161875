"""Fuse ranked lists: a table of candidates and of what each ranking or feature adds to them, by ranks or learned.

Learned fusion is a line that was trained on questions with known answers. Each feature of a candidate, times a weight,
is summed up. The sum is in log-odds, so each summand tells how much a feature speaks for a candidate:

========== ==========================================================================================================
vector     the score of the vector arms, stretched from 0 to 1 over mean ± 3 standard deviations of the arm's answer
keyword    the same for keyword arms
others     :mod:`~llama_index_contextual.retrievers.features`, and of source files :mod:`~.retrieval.code`
========== ==========================================================================================================

``benchmarks/train.py`` trains the numbers in ``learned.json``; ``benchmarks/results/fusion.md`` has the figures.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES

from llama_index_contextual.retrievers.code_features import code_signals, repeats
from llama_index_contextual.retrievers.features import (
    PoolReads,
    date_shares,
    heading_shares,
    name_shares,
    part_lifts,
)
from llama_index_contextual.retrievers.vector import E5, MINILM
from llama_index_contextual.utils.language import tell_language
from llama_index_contextual.utils.tokens import share_spelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date

    from llama_index_contextual.retrievers.arrays import Floats
    from llama_index_contextual.retrievers.bm25_index import Candidate

_KNOWN: Final = 0.5  # of a question's letters: with so many in words that it knows, the English model is good at it
_LEAST_TRUST: Final = 0.2  # its vectors still tell apart what words do not
_E5_TRUST: Final = (
    0.8  # of multilingual-e5 where the words are found, beside English; where none is, one more
)
_FOUND: Final = (
    0.25  # of the question's rarity: so much is found where question and notes speak one language
)
LEAST: Final = 1e-6  # learned scores stay greater than 0


class Mode(str, Enum):
    """Ways to fuse lists beside LlamaIndex's: a model ranks, and has no use for weights of arms of different kinds."""

    LEARNED = "learned"
    MESSAGE = "message"


MODES: Final = tuple(mode.value for kind in (FUSION_MODES, Mode) for mode in kind)


@dataclass(frozen=True)
class Ranking:
    """The answer of one arm to one query.

    Args:
        arm: The arm's name.
        query: Number of the query, 0 for the original.
        weight: Its share of the whole.
        candidates: Best first.
        compared: So many of the first are all chunks' best; those behind them are in the ranking because a filter left
            out better ones, and change no score of another. None: all.
        is_keyword: Whether the arm matches words.
        model: Of its cosines, see ``ContextualVectorRetriever.cosines_of``.
    """

    arm: str
    query: int
    weight: float
    candidates: Sequence[Candidate]
    compared: int | None = None
    is_keyword: bool = False
    model: str = ""

    @cached_property
    def in_ranks(self) -> tuple[list[str], Floats]:
        """Ids and scores of the documents, best first.

        A document that is in it twice counts at its better rank. Those without a score follow in the arm's order: at
        the lowest score, or where no document has one, at scores that fall evenly from 1.
        """
        scored: dict[str, float] = {}
        unscored: dict[str, None] = {}
        for node_id, score, _ in self.candidates:
            if score is None or math.isnan(score):
                unscored[node_id] = None
            elif score >= scored.get(node_id, -math.inf):
                scored[node_id] = score
        # Most rankings come sorted, and then this hardly compares more than neighbours.
        pairs = sorted((-score, node_id) for node_id, score in scored.items())
        ids, scores = [node_id for _, node_id in pairs], [-score for score, _ in pairs]
        rest = [node_id for node_id in unscored if node_id not in scored]
        low = (
            [scores[-1]] * len(rest)
            if scores
            else [1 - place / len(rest) for place in range(len(rest))]
        )
        return ids + rest, np.array(scores + low, dtype=np.float64)


class Credit(NamedTuple):
    """What a ranking, or a feature of a learned model, adds to the fused score of a document.

    Args:
        arm: The arm's name, or the feature's.
        query: Number of the query.
        rank: From 1; 0 of a feature.
        score: As the arm gave it, or the value of the feature.
        credit: What it adds.
    """

    arm: str
    query: int
    rank: int
    score: float
    credit: float


def candidate_ids(rankings: Iterable[Ranking]) -> list[str]:
    """Ids of the documents of some rankings, in order."""
    return sorted({node_id for ranking in rankings for node_id in ranking.in_ranks[0]})


class Table:
    """Candidates of some rankings, a row each in the order of their ids, with a column for each ranking and feature.

    Args:
        rankings: Their candidates are the rows.
    """

    def __init__(self, rankings: Sequence[Ranking]) -> None:
        self.ids = candidate_ids(rankings)
        self.row_of = {node_id: row for row, node_id in enumerate(self.ids)}
        self.raw = np.zeros(len(self.ids))
        """The fused score as the mode defines it: the sum of what the columns add."""
        self.scores = self.raw
        """The same normalised over the pool: the best has 1, and none of RECIPROCAL_RANK 0."""
        self.columns: list[tuple[str, int, Floats, Floats, Floats | None]] = []
        """Name, number of the query, values, what they add, and ranks from 1; 0 without, and None for a feature."""

    def spread(self, ranking: Ranking, values: Floats) -> Floats:
        """Values of a ranking's documents by row; 0 for all others. Documents that are no candidates are left out."""
        spread = np.zeros(len(self.ids) + 1)
        spread[[self.row_of.get(node_id, -1) for node_id in ranking.in_ranks[0]]] = values
        return spread[:-1]

    def add_ranking(self, ranking: Ranking, added: Floats) -> None:
        """Add a ranking, and what it adds to each of its documents, best first."""
        ranks, credits_ = (
            self.spread(ranking, np.arange(1.0, len(added) + 1)),
            self.spread(ranking, added),
        )
        self.columns.append(
            (ranking.arm, ranking.query, self.spread(ranking, ranking.in_ranks[1]), credits_, ranks)
        )
        self.raw = self.raw + credits_

    def add(self, name: str, values: Floats, weight: float) -> None:
        """Add a feature: its values times its weight."""
        if values.any():
            self.columns.append((name, 0, values, weight * values, None))
            self.raw = self.raw + weight * values

    def order(self) -> list[int]:
        """Rows, best first by what was added so far, ties by id."""
        rows: list[int] = np.argsort(-self.raw, kind="stable").tolist()
        return rows

    def ranked(self) -> dict[str, float]:
        """The score of each candidate by its id, best first, ties by id."""
        rows = np.argsort(-self.scores, kind="stable")
        return dict(
            zip([self.ids[row] for row in rows.tolist()], self.scores[rows].tolist(), strict=True)
        )

    def credits_of(self, node_id: str) -> tuple[Credit, ...]:
        """What made the score of a candidate; nothing for what is none."""
        row, found = self.row_of.get(node_id), list[Credit]()
        for name, query, values, added, ranks in self.columns if row is not None else ():
            rank = 0 if ranks is None else int(ranks[row])
            if rank or (ranks is None and added[row]):
                found.append(Credit(name, query, rank, float(values[row]), float(added[row])))
        return tuple(found)


def fuse(rankings: Sequence[Ranking], *, mode: FUSION_MODES, k: float, pool: int) -> Table:
    """Rankings fused by ranks or by scores.

    Args:
        rankings: Of all arms and queries.
        mode: RECIPROCAL_RANK adds ``weight / (k + rank)``, rank from 1; RELATIVE_SCORE adds weighted scores stretched
            from 0 to 1 over the ranking; DIST_BASED_SCORE the same over mean ± 3 standard deviations; SIMPLE takes the
            largest weighted score.
        k: RRF's constant.
        pool: Length that a ranking can have: sets the floor from which reciprocal ranks are normalised, so that a
            score means the same however many candidates there are.
    """
    weighted, floor = [ranking for ranking in rankings if ranking.weight > 0], 0.0
    table = Table(weighted)
    for ranking in weighted:
        scores = ranking.in_ranks[1]
        by_rank = mode is FUSION_MODES.RECIPROCAL_RANK
        shares = 1 / (k + np.arange(1.0, len(scores) + 1)) if by_rank else stretch(scores, mode)
        table.add_ranking(ranking, ranking.weight * shares)
    if not table.ids:
        return table
    if mode is FUSION_MODES.SIMPLE:
        table.raw = np.max(
            [np.where(ranks == 0, -np.inf, added) for *_, added, ranks in table.columns], axis=0
        )
    if mode is FUSION_MODES.RECIPROCAL_RANK:
        floor = min(ranking.weight for ranking in weighted) / (k + pool + 1)
    lifted = table.raw - floor
    best = float(lifted.max())
    table.scores = lifted / (best if best > 0 else 1.0)  # SIMPLE passes negative scores on
    return table


@cache
def shipped_weights(name: str) -> Any:
    """Weights of a model that comes with the package: ``learned``, ``code``, ``messages`` or ``relevance``."""
    return json.loads(files(__package__).joinpath(f"{name}.json").read_text("utf-8"))["weights"]


def stretch(scores: Floats, mode: FUSION_MODES | Mode, compared: int | None = None) -> Floats:
    """Scores of a ranking, best first, as the mode compares them: stretched linearly; equal scores give 1.

    The first ``compared`` set the scale, on which none of the others is below 0.
    """
    if not len(scores) or mode is FUSION_MODES.SIMPLE:
        return scores
    scale = scores[:compared] if compared else scores
    low, high = float(scale.min()), float(scale.max())
    if mode is not FUSION_MODES.RELATIVE_SCORE and high > low:
        mean, spread = float(scale.mean()), 3 * float(scale.std())
        low, high = mean - spread, mean + spread
    return np.maximum((scores - low) / (high - low), 0.0) if high > low else np.ones(len(scores))


# Learned


def fuse_learned(
    query: str,
    rankings: Sequence[Ranking],
    reads: PoolReads | None = None,
    today: date | None = None,
) -> Table:
    """Rankings fused by the sum of the features in log-odds.

    A score is the sum's share of the best: it falls about as slowly as by ranks, so a recency decay weighs about as
    much as there. The score that a retriever returns is that times the :func:`relevance` of the best.

    Args:
        query: The question.
        rankings: Of all arms and queries. Arms of one kind share its feature by their weights, and so do the queries of
            an arm.
        reads: Of a keyword arm of ours, for :func:`candidate_ids`; None where there is none.
        today: From which "last week" counts; default the present day.
    """
    weights = {**shipped_weights("learned"), **shipped_weights("code")}
    table, trust, totals = (
        Table(rankings),
        trust_in(query, rankings, reads),
        {True: 0.0, False: 0.0},
    )
    cosines = np.zeros(len(table.ids))
    for ranking in rankings:
        totals[ranking.is_keyword] += ranking.weight
    for ranking in (one for one in rankings if one.weight):
        scores, weight = ranking.in_ranks[1], weights["keyword" if ranking.is_keyword else "vector"]
        weight *= trust.get(ranking.arm, 1.0) * ranking.weight / totals[ranking.is_keyword]
        stretched = stretch(scores, Mode.LEARNED, ranking.compared)
        table.add_ranking(ranking, weight * stretched)
        if not ranking.is_keyword and ranking.query == 0:
            cosines = table.spread(ranking, stretched)
        if reads is not None and reads.weight and ranking.query == 0 and ranking.arm == reads.arm:
            table.add(
                "match",
                table.spread(ranking, np.minimum(scores / reads.weight, 1.0)),
                weights["match"],
            )
    if reads is not None:
        table.add("nearness", reads.nearness, weights["nearness"])
        table.add("date", date_shares(query, reads.records, today), weights["date"])
        table.add("names", name_shares(query, reads, table.raw), weights["names"])
        table.add("heading", heading_shares(reads), weights["heading"])
        order = table.order()
        for name, values in code_signals(query, reads, cosines, order).items():
            table.add(name, values, weights[name])
        table.add("further chunk", repeats(query, reads, table.order()), -1.0)
        table.add("part", part_lifts(query, reads, table.raw), 1.0)
    best = float(table.raw.max(initial=-math.inf))
    table.scores = np.maximum(table.raw / best, LEAST) if best > 0 else np.ones(len(table.ids))
    return table


def trust_in(query: str, rankings: Sequence[Ranking], reads: PoolReads | None) -> dict[str, float]:
    """Factors for scores of arms, by the arm's name; those of other arms are 1.

    The vectors of all-MiniLM-L6-v2 count by the share of the question that its vocabulary knows: all for an English
    question, a fifth for a Japanese one. Those of multilingual-e5 count all for an English question, and less for one
    in another language, where words find more. They count for more, and the keywords for less, where no chunk holds
    much of the question: it may be in another language than the notes. No answers are needed to know either.
    Figures: ``benchmarks/results/languages.md``.

    Args:
        query: The question.
        rankings: The answers of the arms.
        reads: Of the keyword arm; None where there is none.
    """
    trust = {one.arm: english_trust(query) for one in rankings if one.model == MINILM}
    multilingual = [one.arm for one in rankings if one.model == E5]
    if reads is not None and reads.weight and multilingual:
        best = max(
            (one.in_ranks[1].max(initial=0.0) for one in rankings if one.arm == reads.arm),
            default=0.0,
        )
        share_found = min(float(best) / reads.weight / _FOUND, 1.0)
        least = 1.0 if tell_language(query) == "en" else _E5_TRUST
        trust |= {
            reads.arm: share_found,
            **dict.fromkeys(multilingual, max(least, _E5_TRUST + 1 - share_found)),
        }
    return trust


def english_trust(query: str) -> float:
    """Weight of vectors of all-MiniLM-L6-v2 for a question, 0.2 to 1: 1 where it is in English."""
    return max(_LEAST_TRUST, min(1.0, share_spelled(query) / _KNOWN))
