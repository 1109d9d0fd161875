"""Fuse ranked lists: a table of candidates and of what each ranking or feature adds to them, by ranks or learned.

Learned fusion is a line that was trained on questions with known answers. Each feature of a candidate, times a weight,
is summed up. The sum is in log-odds, so each summand tells how much a feature speaks for a candidate:

========== ==========================================================================================================
vector     the score of the vector arms, stretched from 0 to 1 over mean ± 3 standard deviations of the arm's answer
keyword    the same for keyword arms
others     :mod:`~llama_index_contextual.retrieval.signals`, and of source files :mod:`~.retrieval.code`
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
import numpy.typing as npt

from llama_index_contextual.retrieval.signals import (
    Floats,
    code_signals,
    date_shares,
    named_rows,
    opening_shares,
    repeats,
)
from llama_index_contextual.retrieval.vector import E5, MINILM
from llama_index_contextual.text import tell_language
from llama_index_contextual.text.tokens import share_spelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date

    from llama_index_contextual.keyword import Candidate
    from llama_index_contextual.retrieval.signals import PoolReads

_KNOWN: Final = 0.5  # of a question's letters: with so many in words that it knows, the English model is good at it
_LEAST_TRUST: Final = 0.2  # its vectors still tell apart what words do not
_E5_TRUST: Final = 0.8  # of multilingual-e5 where the words are found, beside English; where none is, one more
_FOUND: Final = 0.25  # of the question's rarity: so much is found where question and notes speak one language
LEAST: Final = 1e-6  # learned scores stay greater than 0
Ints = npt.NDArray[np.int64]


class Mode(str, Enum):
    """Ways to fuse lists; the values are those of LlamaIndex's ``FUSION_MODES``, and ours."""

    RECIPROCAL_RANK = "reciprocal_rerank"
    RELATIVE_SCORE = "relative_score"
    DIST_BASED_SCORE = "dist_based_score"
    SIMPLE = "simple"
    LEARNED = "learned"
    MESSAGE = "message"

    @property
    def is_learned(self) -> bool:
        """Whether a model makes the ranking: it has no use for the weights of arms of different kinds."""
        return self in {Mode.LEARNED, Mode.MESSAGE}


@dataclass(frozen=True)
class Ranking:
    """The answer of one arm to one query.

    Args:
        arm: The arm's name.
        query: Number of the query, 0 for the original.
        weight: Its share of the whole; the weights of all rankings sum to 1.
        candidates: Best first.
        compared: So many of the first are all chunks' best; those behind them are in the ranking because a filter left
            out better ones, and change no score of another. None: all.
    """

    arm: str
    query: int
    weight: float
    candidates: Sequence[Candidate]
    compared: int | None = None

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
        low = [scores[-1]] * len(rest) if scores else [1 - place / len(rest) for place in range(len(rest))]
        return ids + rest, np.array(scores + low, dtype=np.float64)


class Credit(NamedTuple):
    """What a ranking, or a feature of a learned model, adds to a document.

    Args:
        arm: The arm's name, or the feature's.
        query: Number of the query.
        rank: From 1; 0 of a feature.
        score: As the arm gave it.
        credit: What it adds to the fused score.
    """

    arm: str
    query: int
    rank: int
    score: float
    credit: float


class Fused(NamedTuple):
    """A document of the pool.

    Args:
        node_id: Its id.
        raw: The fused score as the mode defines it.
        score: ``raw`` normalised over the pool: the best has 1, and none of RECIPROCAL_RANK 0.
        credits: The summands of ``raw``; empty where no reasons are collected.
        is_named: Whether the question is the name of its document, or of a heading in it.
    """

    node_id: str
    raw: float
    score: float
    credits: tuple[Credit, ...] = ()
    is_named: bool = False


class Column(NamedTuple):
    """A ranking or a feature of all candidates.

    Args:
        name: Of the arm or the feature.
        query: Number of the query.
        values: Scores as the arm gave them, or values of the feature; 0 for candidates that it does not have.
        credits: What it adds to each.
        ranks: From 1, and 0 for candidates that are not in the ranking; None of a feature.
    """

    name: str
    query: int
    values: Floats
    credits: Floats
    ranks: Ints | None = None

    def credit(self, row: int) -> Credit | None:
        """The credit of a candidate; None where it has none."""
        rank = 0 if self.ranks is None else int(self.ranks[row])
        if not rank and (self.ranks is not None or not self.credits[row]):
            return None
        return Credit(self.name, self.query, rank, float(self.values[row]), float(self.credits[row]))


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
        self._rows: dict[int, Ints] = {}
        self.raw = np.zeros(len(self.ids))
        self.columns: list[Column] = []

    def spread(self, ranking: Ranking, values: Floats) -> Floats:
        """Values of a ranking's documents by row; 0 for all others. Documents that are no candidates are left out."""
        rows = self._rows.get(id(ranking))
        if rows is None:
            rows = np.array([self.row_of.get(node_id, -1) for node_id in ranking.in_ranks[0]], dtype=np.int64)
            self._rows[id(ranking)] = rows
        spread = np.zeros(len(self.ids) + 1)
        spread[rows] = values
        return spread[:-1]

    def add_ranking(self, ranking: Ranking, added: Floats) -> None:
        """Add a ranking, and what it adds to each of its documents, best first."""
        ranks = self.spread(ranking, np.arange(1.0, len(added) + 1)).astype(np.int64)
        scores = self.spread(ranking, ranking.in_ranks[1])
        self._add(Column(ranking.arm, ranking.query, scores, self.spread(ranking, added), ranks))

    def add(self, name: str, values: Floats, weight: float) -> None:
        """Add a feature: its values times its weight."""
        if values.any():
            self._add(Column(name, 0, values, weight * values))

    def _add(self, column: Column) -> None:
        self.columns.append(column)
        self.raw += column.credits

    def order(self) -> list[int]:
        """Rows, best first, ties by id."""
        rows: list[int] = np.argsort(-self.raw, kind="stable").tolist()
        return rows

    def credits(self, row: int) -> tuple[Credit, ...]:
        """The credits of a candidate."""
        return tuple(credit for column in self.columns if (credit := column.credit(row)) is not None)

    def ranked(self, scores: Floats, *, explained: int | None = 0, named: Sequence[int] = ()) -> list[Fused]:
        """The candidates, best first by their scores, ties by id.

        Args:
            scores: Of each.
            explained: How many of the best get credits; None for all.
            named: Rows of documents that the question names.
        """
        rows = np.argsort(-scores, kind="stable")
        ids, places = self.ids, rows.tolist()
        values = zip(places, self.raw[rows].tolist(), scores[rows].tolist(), strict=True)
        fused = [Fused(ids[row], raw, score, (), row in named) for row, raw, score in values]
        for at, row in enumerate(places[:explained]):
            fused[at] = fused[at]._replace(credits=self.credits(row))
        return fused


def fuse(rankings: Sequence[Ranking], *, mode: Mode, k: float, pool: int, explained: int | None = None) -> list[Fused]:
    """Fuse rankings into one, best first, ties by id, every document once.

    Args:
        rankings: Of all arms and queries.
        mode: RECIPROCAL_RANK adds ``weight / (k + rank)``, rank from 1; RELATIVE_SCORE adds weighted scores stretched
            from 0 to 1 over the ranking; DIST_BASED_SCORE the same over mean ± 3 standard deviations; SIMPLE takes the
            largest weighted score.
        k: RRF's constant.
        pool: Length that a ranking can have: sets the floor from which reciprocal ranks are normalised, so that a
            score means the same however many candidates there are.
        explained: How many of the best get credits; None for all.
    """
    weighted, floor = [ranking for ranking in rankings if ranking.weight > 0], 0.0
    table = Table(weighted)
    for ranking in weighted:
        scores = ranking.in_ranks[1]
        by_rank = mode is Mode.RECIPROCAL_RANK
        shares = 1 / (k + np.arange(1.0, len(scores) + 1)) if by_rank else stretch(scores, mode)
        table.add_ranking(ranking, ranking.weight * shares)
    if mode is Mode.SIMPLE and table.ids:
        of_rankings = [np.where(one.ranks == 0, -np.inf, one.credits) for one in table.columns]
        table.raw = np.max(of_rankings, axis=0)
    elif table.ids:  # exact sums, whatever the order of the rankings is
        table.raw = np.array(list(map(math.fsum, zip(*(one.credits.tolist() for one in table.columns), strict=True))))
    if mode is Mode.RECIPROCAL_RANK and weighted:
        floor = min(ranking.weight for ranking in weighted) / (k + pool + 1)
    lifted = table.raw - floor
    best = float(lifted.max()) if len(lifted) else 0.0
    return table.ranked(lifted / (best if best > 0 else 1.0), explained=explained)  # SIMPLE passes negative scores on


@cache
def shipped_weights(name: str) -> Any:
    """Weights of a model that comes with the package: ``learned``, ``code``, ``messages`` or ``relevance``."""
    return json.loads(files(__package__).joinpath(f"{name}.json").read_text("utf-8"))["weights"]


def stretch(scores: Floats, mode: Mode, compared: int | None = None) -> Floats:
    """Scores of a ranking, best first, as the mode compares them: stretched linearly; equal scores give 1.

    The first ``compared`` set the scale, on which none of the others is below 0.
    """
    if not len(scores) or mode not in {Mode.RELATIVE_SCORE, Mode.DIST_BASED_SCORE, Mode.LEARNED}:
        return scores
    scale = scores[:compared] if compared else scores
    low, high = float(scale.min()), float(scale.max())
    if mode is not Mode.RELATIVE_SCORE and high > low:
        mean, spread = float(scale.mean()), 3 * float(scale.std())
        low, high = mean - spread, mean + spread
    return np.maximum((scores - low) / (high - low), 0.0) if high > low else np.ones(len(scores))


# Learned


def learned_table(
    query: str,
    rankings: Sequence[Ranking],
    keyword: Mapping[str, bool],
    reads: PoolReads | None = None,
    *,
    trust: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
    today: date | None = None,
) -> tuple[Table, list[int]]:
    """The candidates with all their features, and the rows of those that the question names.

    Args:
        query: The question.
        rankings: Of all arms and queries. Arms of one kind share its feature by their weights, and so do the queries of
            an arm.
        keyword: For each arm's name whether it matches words.
        reads: Of a keyword arm of ours, for :func:`~.fusion.candidate_ids`; None where there is none.
        trust: Factors for the scores of some arms, 0 to 1, by the arm's name; of others 1.
        weights: What 1 of each feature adds to the log-odds that a candidate answers; default the shipped ones.
        today: From which "last week" counts; default the present day.
    """
    weights = weights or {**shipped_weights("learned"), **shipped_weights("code")}
    table, totals = Table(rankings), {True: 0.0, False: 0.0}
    for ranking in rankings:
        totals[keyword[ranking.arm]] += ranking.weight
    for ranking in rankings:
        if not ranking.weight:
            continue
        kind, scores = keyword[ranking.arm], ranking.in_ranks[1]
        factor = (trust or {}).get(ranking.arm, 1.0) * ranking.weight / totals[kind]
        stretched = stretch(scores, Mode.LEARNED, ranking.compared)
        table.add_ranking(ranking, weights["keyword" if kind else "vector"] * factor * stretched)
        if reads is not None and reads.weight and ranking.query == 0 and ranking.arm == reads.arm:
            shares = np.minimum(scores / reads.weight, 1.0)
            table.add("match", table.spread(ranking, shares), weights["match"])
    return table, [] if reads is None else _add_signals(table, query, rankings, keyword, reads, weights, today)


def _add_signals(
    table: Table,
    query: str,
    rankings: Sequence[Ranking],
    keyword: Mapping[str, bool],
    reads: PoolReads,
    weights: Mapping[str, float],
    today: date | None,
) -> list[int]:
    """Add what a keyword arm of ours reads of the candidates, and return the rows that the question names."""
    records = reads.records
    if reads.nearness is not None:
        table.add("nearness", reads.nearness, weights["nearness"])
    table.add("date", date_shares(query, records, today), weights["date"])
    named, shares = named_rows(query, records, table.raw), np.zeros(len(table.ids))
    shares[list(named)] = list(named.values())
    table.add("names", shares, weights.get("names", 0.0))
    order = table.order()
    table.add("opening", opening_shares(reads, order), weights.get("opening", 0.0))
    if any(record is not None and record.code for record in records):
        vector = next((one for one in rankings if not keyword[one.arm] and one.query == 0), None)
        cosines = np.zeros(len(table.ids))
        if vector is not None:
            cosines = table.spread(vector, stretch(vector.in_ranks[1], Mode.LEARNED, vector.compared))
        codes = [None if record is None else record.code for record in records]
        for name, values in code_signals(query, reads, codes, cosines, order).items():
            table.add(name, values, weights.get(name, 0.0))
        table.add("further chunk", repeats(query, codes, table.order()), -1.0)
    return list(named)


def fuse_learned(
    query: str,
    rankings: Sequence[Ranking],
    keyword: Mapping[str, bool],
    reads: PoolReads | None = None,
    *,
    trust: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
    today: date | None = None,
    explained: int | None = 0,
) -> list[Fused]:
    """Fuse rankings into one, best first, ties by id, every document once; arguments as of :func:`learned_table`.

    ``raw`` is the sum in log-odds, ``score`` its share of the best: it falls about as slowly as by ranks, so a recency
    decay weighs about as much as there. The score that a retriever returns is ``score`` times the :func:`relevance` of
    the best.
    """
    table, named = learned_table(query, rankings, keyword, reads, trust=trust, weights=weights, today=today)
    best = float(table.raw.max(initial=-math.inf))
    scores = np.maximum(table.raw / best, LEAST) if best > 0 else np.ones(len(table.ids))
    return table.ranked(scores, explained=explained, named=named)


def trust_in(
    models: Mapping[str, str], query: str, rankings: Sequence[Ranking], reads: PoolReads | None
) -> dict[str, float]:
    """Factors for scores of arms, by the arm's name; those of other arms are 1.

    The vectors of all-MiniLM-L6-v2 count by the share of the question that its vocabulary knows: all for an English
    question, a fifth for a Japanese one. Those of multilingual-e5 count all for an English question, and less for one
    in another language, where words find more. They count for more, and the keywords for less, where no chunk holds
    much of the question: it may be in another language than the notes. No answers are needed to know either.
    Figures: ``benchmarks/results/languages.md``.

    Args:
        models: Of vector arms whose model is known, by the arm's name; see ``ContextualVectorRetriever.cosines_of``.
        query: The question.
        rankings: The answers of the arms.
        reads: Of the keyword arm; None where there is none.
    """
    trust = {name: english_trust(query) for name, model in models.items() if model == MINILM}
    multilingual = [name for name, model in models.items() if model == E5]
    if reads is not None and reads.weight and multilingual:
        best = max((one.in_ranks[1].max(initial=0.0) for one in rankings if one.arm == reads.arm), default=0.0)
        share_found = min(float(best) / reads.weight / _FOUND, 1.0)
        least = 1.0 if tell_language(query) == "en" else _E5_TRUST
        trust |= {reads.arm: share_found, **dict.fromkeys(multilingual, max(least, _E5_TRUST + 1 - share_found))}
    return trust


def english_trust(query: str) -> float:
    """Weight of vectors of all-MiniLM-L6-v2 for a question, 0.2 to 1: 1 where it is in English."""
    return max(_LEAST_TRUST, min(1.0, share_spelled(query) / _KNOWN))
