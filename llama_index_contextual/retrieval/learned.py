"""Fuse by a line that was trained on questions with known answers.

Each signal of a candidate, times a weight, is summed up. The sum is in log-odds, so each summand says how much a signal
speaks for a candidate:

========== ==========================================================================================================
vector     the score of the vector arms, stretched from 0 to 1 over mean ± 3 standard deviations of the arm's answer
keyword    the same for keyword arms
others     :mod:`~llama_index_contextual.retrieval.signals`
========== ==========================================================================================================

``benchmarks/train_fusion.py`` trains the numbers in ``learned.json``; ``benchmarks/results/fusion.md`` says on what.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain, count, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from llama_index_contextual.retrieval.fusion import Credit, Fused, Mode, best_first, in_ranks, shipped_weights, stretch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from llama_index_contextual.retrieval.fusion import Ranking

_LEAST: Final = 1e-6  # scores stay greater than 0


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
        explained: Whether ``credits`` are collected.
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
    """Return the columns of all signals; absent signals have none.

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
    """Return the columns of names: of the best chunk of each document that the question names."""
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
