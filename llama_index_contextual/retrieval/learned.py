"""Fuse by a line that was trained on questions with known answers.

Each feature of a candidate, times a weight, is summed up. The sum is in log-odds, so each summand tells how much a
feature speaks for a candidate:

========== ==========================================================================================================
vector     the score of the vector arms, stretched from 0 to 1 over mean ± 3 standard deviations of the arm's answer
keyword    the same for keyword arms
others     :mod:`~llama_index_contextual.retrieval.signals`, and of source files :mod:`~.retrieval.code`
========== ==========================================================================================================

``benchmarks/train.py`` trains the numbers in ``learned.json``; ``benchmarks/results/fusion.md`` has the figures.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from llama_index_contextual.retrieval.code import code_signals, repeats
from llama_index_contextual.retrieval.fusion import Fused, Mode, Table, shipped_weights, stretch
from llama_index_contextual.retrieval.signals import date_shares, named_rows, opening_shares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from llama_index_contextual.retrieval.fusion import Ranking
    from llama_index_contextual.retrieval.signals import PoolReads

LEAST: Final = 1e-6  # scores stay greater than 0


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
        for name, values in code_signals(query, reads.analyzer, codes, cosines, order).items():
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
