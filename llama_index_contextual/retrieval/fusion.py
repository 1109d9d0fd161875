"""Fuse ranked lists: pure functions on ids and scores.

:func:`fuse` adds ranks or scores as LlamaIndex's modes do. :func:`fuse_learned` is a line that was trained on questions
with known answers: each signal of a candidate, times a weight, summed up. The sum is in log-odds, so each summand says
how much a signal speaks for a candidate:

========== ==========================================================================================================
vector     the score of the vector arms, stretched from 0 to 1 over mean ± 3 standard deviations of the arm's answer
keyword    the same for keyword arms
others     :mod:`~llama_index_contextual.retrieval.signals`
========== ==========================================================================================================

``benchmarks/train_fusion.py`` trains the numbers in ``learned.json``; ``benchmarks/results/fusion.md`` says on what.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib.resources import files
from itertools import chain, count, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from llama_index_contextual.keyword import Candidate


_LEAST: Final = 1e-6  # scores stay greater than 0


class Mode(str, Enum):
    """Name the ways to fuse lists; the values are those of LlamaIndex's ``FUSION_MODES``, and ours."""

    RECIPROCAL_RANK = "reciprocal_rerank"
    RELATIVE_SCORE = "relative_score"
    DIST_BASED_SCORE = "dist_based_score"
    SIMPLE = "simple"
    LEARNED = "learned"
    MESSAGE = "message"

    @property
    def is_learned(self) -> bool:
        """Return whether a model makes the ranking: it has no use for the weights of arms of different kinds."""
        return self in {Mode.LEARNED, Mode.MESSAGE}


@dataclass(frozen=True, slots=True)
class Ranking:
    """What one arm answered to one query.

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

    @property
    def compared_candidates(self) -> Sequence[Candidate]:
        """Return the candidates whose scores are compared with one another."""
        return self.candidates[: self.compared]


class Credit(NamedTuple):
    """What a ranking gave to a document.

    Args:
        arm: The arm's name.
        query: Number of the query.
        rank: From 1.
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
        credits: Where ``raw`` comes from.
        is_named: Whether the question is the name of its document, or of a heading in it.
    """

    node_id: str
    raw: float
    score: float
    credits: tuple[Credit, ...]
    is_named: bool = False


def fuse(
    rankings: Sequence[Ranking],
    *,
    mode: Mode,
    k: float,
    pool: int,
) -> list[Fused]:
    """Fuse rankings into one, best first, ties by id, every document once.

    Args:
        rankings: Of all arms and queries.
        mode: RECIPROCAL_RANK adds ``weight / (k + rank)``, rank from 1; RELATIVE_SCORE adds weighted scores stretched
            from 0 to 1 over the ranking; DIST_BASED_SCORE the same over mean ± 3 standard deviations; SIMPLE takes the
            largest weighted score.
        k: RRF's constant.
        pool: Length that a ranking can have: sets the floor from which reciprocal ranks are normalised, so that a
            score means the same however many candidates there are.
    """
    entries_of: dict[str, list[Credit]] = {}
    for ranking in rankings:
        for node_id, credit in _credits(ranking, mode, k):
            entries_of.setdefault(node_id, []).append(credit)
    combine = max if mode is Mode.SIMPLE else math.fsum
    raw = {
        node_id: entries[0].credit if len(entries) == 1 else combine([credit.credit for credit in entries])
        for node_id, entries in entries_of.items()
    }
    floor = 0.0
    if mode is Mode.RECIPROCAL_RANK and rankings:
        floor = min((ranking.weight for ranking in rankings if ranking.weight > 0), default=0.0) / (k + pool + 1)
    lifted = {node_id: score - floor for node_id, score in raw.items()}
    best = max(lifted.values(), default=1.0)
    scale = best if best > 0 else 1.0  # SIMPLE passes negative scores on as they are
    scores = {node_id: score / scale for node_id, score in lifted.items()}  # may be equal where lifted ones were not
    return [Fused(id_, raw[id_], scores[id_], tuple(entries_of[id_])) for id_ in best_first(scores)]


@cache
def shipped_weights(name: str) -> Any:
    """Return the weights of a model that comes with the package: ``learned``, ``messages`` or ``relevance``."""
    return json.loads(files(__package__).joinpath(f"{name}.json").read_text("utf-8"))["weights"]


def best_first(scores: dict[str, float]) -> list[str]:
    """Return ids by score, ties by id: two stable sorts are faster than one by both."""
    return sorted(sorted(scores), key=scores.__getitem__, reverse=True)


def _credits(ranking: Ranking, mode: Mode, k: float) -> list[tuple[str, Credit]]:
    """Return what each document of a ranking earns."""
    if ranking.weight <= 0:
        return []
    ids, scores = in_ranks(ranking)
    if mode is Mode.RECIPROCAL_RANK:
        parts = [1 / (k + rank) for rank in range(1, len(ids) + 1)]
    else:
        parts = stretch(scores, mode).tolist()
    places = enumerate(zip(ids, scores, parts, strict=True), start=1)
    weight = ranking.weight
    return [
        (node_id, Credit(ranking.arm, ranking.query, rank, score, weight * part))
        for rank, (node_id, score, part) in places
    ]


def in_ranks(ranking: Ranking) -> tuple[list[str], list[float]]:
    """Return ids and scores of the documents of a ranking, best first.

    A document that is in it twice counts at its better rank. Those without a score follow in the arm's order: at the
    lowest score, or where no document has one, at scores that fall evenly from 1.
    """
    scored: dict[str, float] = {}
    unscored: dict[str, None] = {}
    for node_id, score, _ in ranking.candidates:
        if score is None or math.isnan(score):
            unscored[node_id] = None
        elif score >= scored.get(node_id, -math.inf):
            scored[node_id] = score
    # Most rankings come sorted, and then this hardly compares more than neighbours.
    pairs = sorted((-score, node_id) for node_id, score in scored.items())
    ids, scores = [node_id for _, node_id in pairs], [-score for score, _ in pairs]
    rest = [node_id for node_id in unscored if node_id not in scored]
    low = [scores[-1]] * len(rest) if scores else [1 - place / len(rest) for place in range(len(rest))]
    return ids + rest, scores + low


def stretch(scores: Sequence[float], mode: Mode, compared: int | None = None) -> npt.NDArray[np.float64]:
    """Return the scores of a ranking, best first, as the mode compares them: stretched linearly; equal scores give 1.

    The first ``compared`` set the scale, on which none of the others is below 0.
    """
    values = np.array(scores, dtype=np.float64)
    if not scores or mode not in {Mode.RELATIVE_SCORE, Mode.DIST_BASED_SCORE, Mode.LEARNED}:
        return values
    scale = values[:compared] if compared else values
    low, high = float(scale.min()), float(scale.max())
    if mode is not Mode.RELATIVE_SCORE:
        mean = math.fsum(scale) / len(scale)
        spread = 3 * math.sqrt(math.fsum((scale - mean) ** 2) / len(scale))
        low, high = mean - spread, mean + spread
    return np.maximum((values - low) / (high - low), 0.0) if high > low else np.ones(len(scores))


# By a line that was trained


@dataclass(frozen=True, slots=True)
class Signals:
    """The signals of a keyword arm of ours for the candidates of a question.

    Args:
        arm: Its name.
        weight: The summed idf of the question's words, which no BM25 score exceeds.
        shares: By signal the value of each candidate that has one, 0 to 1.
        names: The document of each candidate that the question names, and how surely, 0 to 1.
    """

    arm: str
    weight: float
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    names: Mapping[str, tuple[str, float]] = field(default_factory=dict)


class _Column(NamedTuple):
    """What one feature, taken from one ranking, adds to candidates.

    Args:
        arm: The arm's name, or the feature's where it is of no arm.
        query: Number of the query.
        ids: The candidates that have the feature, by rank where it has ranks.
        values: The feature of each: an arm's score, or a share.
        credits: What it adds to the log-odds of each.
        ranked: Whether it is an arm's ranking.
    """

    arm: str
    query: int
    ids: list[str]
    values: list[float]
    credits: npt.NDArray[np.float64]
    ranked: bool = False


def fuse_learned(
    rankings: Sequence[Ranking],
    keyword: Mapping[str, bool],
    signals: Signals | None,
    *,
    trust: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
    explained: bool = True,
) -> list[Fused]:
    """Fuse rankings into one, best first, ties by id, every document once.

    Args:
        rankings: Of all arms and queries.
        keyword: For each arm's name whether it matches words.
        signals: None where no arm tells them.
        trust: What the scores of some arms count, 0 to 1, by the arm's name; of others 1.
        weights: What 1 of each feature adds to the log-odds that a candidate answers; default the shipped ones.
        explained: Give ``credits``, which takes as long as the rest.

    Returns:
        ``credits`` holds what each feature adds to the log-odds, and ``raw`` their sum. ``score`` is ``raw`` as a share
        of the best: it falls about as slowly as by ranks, so a recency decay weighs about as much as there. What a
        retriever returns is ``score`` times the :func:`relevance` of the best.
    """
    weights = weights or shipped_weights("learned")
    columns = _columns(rankings, keyword, signals, trust or {}, weights)
    rows = dict(zip(dict.fromkeys(chain.from_iterable(column.ids for column in columns)), count(), strict=False))
    table = np.zeros((len(rows), len(columns)))
    for number, column in enumerate(columns):
        table[list(map(rows.__getitem__, column.ids)), number] = column.credits
    raw = dict(zip(rows, map(math.fsum, table.tolist()), strict=True))
    named = _named(raw, signals, weights.get("names", 0.0))
    for name in named:
        raw[name.ids[0]] += float(name.credits[0])
    order = best_first(raw)
    best = raw[order[0]] if order else 0.0
    shares = np.array([raw[node_id] for node_id in order]) / (best if best > 0 else 1.0)
    scores = np.maximum(shares, _LEAST).tolist() if best > 0 else [1.0] * len(order)
    entries = _credits_of([*columns, *named]) if explained else {}
    sources = (tuple(entries[node_id]) for node_id in order) if explained else repeat((), len(order))
    names = {name.ids[0] for name in named}
    return list(map(Fused, order, map(raw.__getitem__, order), scores, sources, map(names.__contains__, order)))


def with_signals(
    fused: Sequence[Fused], shares: Mapping[str, Mapping[str, float]], weights: Mapping[str, float], *, explained: bool
) -> list[Fused]:
    """Return candidates with more signals, best first.

    Args:
        fused: Of :func:`fuse_learned`.
        shares: By signal the value of each candidate that has one.
        weights: What 1 of each signal adds to the log-odds that a candidate answers.
        explained: Whether ``credits`` are given.
    """
    added = defaultdict[str, list[Credit]](list)
    for name, values in shares.items():
        for node_id, value in values.items():
            added[node_id].append(Credit(name, 0, 0, value, weights[name] * value))
    if not added:
        return list(fused)
    raw = {
        one.node_id: one.raw + math.fsum(credit.credit for credit in added[one.node_id])
        if one.node_id in added
        else one.raw
        for one in fused
    }
    by_id, order = {one.node_id: one for one in fused}, best_first(raw)
    best = max(raw[order[0]], _LEAST)
    return [
        by_id[node_id]._replace(
            raw=raw[node_id],
            score=max(raw[node_id] / best, _LEAST),
            credits=(*by_id[node_id].credits, *added.get(node_id, ())) if explained else (),
        )
        for node_id in order
    ]


def _columns(
    rankings: Sequence[Ranking],
    keyword: Mapping[str, bool],
    signals: Signals | None,
    trust: Mapping[str, float],
    weights: Mapping[str, float],
) -> list[_Column]:
    """Return what each feature adds; absent features add nothing.

    Arms of one kind share its feature by their weights, and so do the queries of an arm.
    """
    totals = {
        kind: math.fsum(ranking.weight for ranking in rankings if keyword[ranking.arm] is kind)
        for kind in (True, False)
    }
    columns: list[_Column] = []
    for ranking in rankings:
        if not ranking.weight:
            continue
        kind = keyword[ranking.arm]
        factor = weights["keyword" if kind else "vector"] * trust.get(ranking.arm, 1.0) * ranking.weight / totals[kind]
        ids, scores = in_ranks(ranking)
        added = factor * stretch(scores, Mode.LEARNED, ranking.compared)
        columns.append(_Column(ranking.arm, ranking.query, ids, scores, added, ranked=True))
        if signals and signals.weight and ranking.query == 0 and ranking.arm == signals.arm:
            shares = np.minimum(np.array(scores) / signals.weight, 1.0)
            columns.append(_Column("match", 0, ids, shares.tolist(), weights["match"] * shares))
    if signals:
        ids_so_far = set(chain.from_iterable(column.ids for column in columns))
        for name, values in signals.shares.items():
            shares_of = {node_id: share for node_id, share in values.items() if share and node_id in ids_so_far}
            shares = np.array(list(shares_of.values()))
            columns.append(_Column(name, 0, list(shares_of), shares.tolist(), weights[name] * shares))
    return columns


def _named(raw: Mapping[str, float], signals: Signals | None, weight: float) -> list[_Column]:
    """Return what names add: to the best chunk of each document that the question names, and to no other."""
    columns: dict[str, _Column] = {}
    names = {} if signals is None else signals.names
    for node_id in sorted(names.keys() & raw.keys(), key=lambda node_id: (-names[node_id][1], -raw[node_id], node_id)):
        document, share = names[node_id]
        columns.setdefault(document, _Column("names", 0, [node_id], [share], np.array([weight * share])))
    return list(columns.values())


def _credits_of(columns: Sequence[_Column]) -> dict[str, list[Credit]]:
    """Return by id where each document's log-odds come from."""
    entries_of: dict[str, list[Credit]] = {}
    for column in columns:
        values = zip(column.ids, column.values, column.credits.tolist(), strict=True)
        for rank, (node_id, value, credit) in enumerate(values, start=1):
            entries = entries_of.setdefault(node_id, [])
            entries.append(Credit(column.arm, column.query, rank if column.ranked else 0, value, credit))
    return entries_of
