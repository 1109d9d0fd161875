"""Fuse rankings by a small model that was trained on questions with known answers.

The model is a line: what each feature of a candidate is, times a weight, summed up. The sum is in log-odds, so each
summand says how much a feature speaks for a candidate. All features come from what the arms answered and from the
keyword arm's index:

========== ==========================================================================================================
vector     the score of the vector arms, stretched from 0 to 1 over mean ± 3 standard deviations of the arm's answer
keyword    the same for keyword arms
match      BM25 as a share of the summed rarity (idf) of the question's words: how much of the question is found
nearness   how near to each other the question's neighbouring words stand, weighted by their rarity
date       1 on a day that the question names, less over the week after it
========== ==========================================================================================================

A vector arm counts for less where its model knows little of the question's language: see :func:`trust_in`.

The first two compare candidates of one answer and fit arms of any kind. The others need a keyword arm of ours, mean
the same for every question, and are 0 for all candidates where there is none. ``benchmarks/train_fusion.py`` trains the
numbers in ``learned.json``, but that of dates, which only one set asks for: there it is chosen on one half of the
questions and tried on the other. ``benchmarks/results/fusion.md`` says on what, and what was tried besides.
"""

from __future__ import annotations

import math
from datetime import datetime
from itertools import chain, count, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from llama_index_contextual.keyword import closeness, find_dates, lexicon_of
from llama_index_contextual.metadata import DATE
from llama_index_contextual.retrieval.fusion import (
    Credit,
    Fused,
    Mode,
    best_first,
    in_ranks,
    shipped_weights,
    stretch,
)
from llama_index_contextual.retrieval.vector import E5, MINILM
from llama_index_contextual.text import parse_day, tell_language
from llama_index_contextual.text.tokens import share_spelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    import numpy.typing as npt

    from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever
    from llama_index_contextual.retrieval.fusion import Ranking

_LEAST: Final = 1e-6  # scores stay greater than 0
_KNOWN: Final = 0.5  # of a question's letters: with so many in words that it knows, the English model is at home
_LEAST_TRUST: Final = 0.2  # its vectors still tell apart what words do not
_E5_TRUST: Final = 0.8  # of multilingual-e5 where the words are found, beside English; where none is, one more
_FOUND: Final = 0.25  # of the question's rarity: so much is found where question and notes speak one language
FEATURES: Final = ("vector", "keyword", "match", "nearness", "date")


class Words(NamedTuple):
    """What a keyword arm of ours knows of the question's words.

    Args:
        arm: Its name.
        weight: The summed idf of the question's words, which no BM25 score exceeds.
        nearness: Of each candidate, 0 to 1.
        date: How close to a named day each candidate is, 0 to 1; empty where the question names none.
    """

    arm: str
    weight: float
    nearness: Mapping[str, float]
    date: Mapping[str, float]


def words_of(
    query: str,
    name: str,
    arm: ContextualBM25Retriever,
    node_ids: Sequence[str],
    today: date | None = None,
    *,
    near: bool = True,
) -> Words:
    """Return what a keyword arm knows of a question's words in some nodes.

    Args:
        query: The question.
        name: The arm's.
        arm: The keyword arm.
        node_ids: The candidates.
        today: From which "last week" counts; default the day it is.
        near: Look how near to each other the words stand, which takes long for a long text.
    """
    near_ids = list(node_ids) if near else []
    nearness = arm.nearness(query, near_ids)
    dates = find_dates(query, today or datetime.now().astimezone().date(), lexicon_of(query))
    days = arm.values(DATE, node_ids) if dates else {}
    on_date = {node_id: closeness(parse_day(value), dates) for node_id, value in days.items() if value}
    return Words(name, nearness.weight, dict(zip(near_ids, nearness.shares.tolist(), strict=True)), on_date)


def trust_in(
    models: Mapping[str, str], query: str, rankings: Sequence[Ranking], words: Words | None
) -> dict[str, float]:
    """Return what the scores of arms count, by the arm's name; of arms that are not named they count 1.

    The vectors of all-MiniLM-L6-v2 count by the share of the question that its vocabulary knows: all for an English
    question, a fifth for a Japanese one. Those of multilingual-e5 count all for an English question, and less for one
    in another language, where words find more. They count for more, and the keywords for less, where no chunk holds
    much of the question: it may be in another language than the notes. No answers are needed to know either.
    Figures: ``benchmarks/results/languages.md``.

    Args:
        models: Of vector arms whose model is known, by the arm's name; see ``ContextualVectorRetriever.cosines_of``.
        query: The question.
        rankings: What the arms answered.
        words: What the keyword arm knows; None where there is none.
    """
    trust = {name: english_trust(query) for name, model in models.items() if model == MINILM}
    if words and words.weight and (multilingual := [name for name, model in models.items() if model == E5]):
        scores = (one.score or 0.0 for ranking in rankings if ranking.arm == words.arm for one in ranking.candidates)
        share_found = min(max(scores, default=0.0) / words.weight / _FOUND, 1.0)
        least = 1.0 if tell_language(query) == "en" else _E5_TRUST
        trust |= {words.arm: share_found, **dict.fromkeys(multilingual, max(least, _E5_TRUST + 1 - share_found))}
    return trust


def english_trust(query: str) -> float:
    """Return what the vectors of all-MiniLM-L6-v2 count for a question, 0.2 to 1: all where it is in English."""
    return max(_LEAST_TRUST, min(1.0, share_spelled(query) / _KNOWN))


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
    words: Words | None,
    *,
    trust: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
    explained: bool = True,
) -> list[Fused]:
    """Fuse rankings into one, best first, ties by id, every document once.

    Args:
        rankings: Of all arms and queries.
        keyword: For each arm's name whether it matches words.
        words: None where no arm knows.
        trust: What the scores of some arms count, 0 to 1, by the arm's name; of others 1.
        weights: What 1 of each feature adds to the log-odds that a candidate answers; default the shipped ones.
        explained: Give ``credits``, which takes as long as the rest.

    Returns:
        ``credits`` holds what each feature adds to the log-odds, and ``raw`` their sum. ``score`` is ``raw`` as a share
        of the best: it falls about as slowly as by ranks, so a recency decay weighs about as much as there. What a
        retriever returns is ``score`` times the :func:`relevance` of the best.
    """
    columns = _columns(rankings, keyword, words, trust or {}, weights or shipped_weights("learned"))
    rows = dict(zip(dict.fromkeys(chain.from_iterable(column.ids for column in columns)), count(), strict=False))
    table = np.zeros((len(rows), len(columns)))
    for number, column in enumerate(columns):
        table[list(map(rows.__getitem__, column.ids)), number] = column.credits
    raw = dict(zip(rows, map(math.fsum, table.tolist()), strict=True))
    order = best_first(raw)
    best = raw[order[0]] if order else 0.0
    shares = np.array([raw[node_id] for node_id in order]) / (best if best > 0 else 1.0)
    scores = np.maximum(shares, _LEAST).tolist() if best > 0 else [1.0] * len(order)
    entries = _credits(columns) if explained else {}
    sources = (tuple(entries[node_id]) for node_id in order) if explained else repeat((), len(order))
    return list(map(Fused, order, map(raw.__getitem__, order), scores, sources))


def _columns(
    rankings: Sequence[Ranking],
    keyword: Mapping[str, bool],
    words: Words | None,
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
        added = factor * stretch(scores, Mode.LEARNED)
        columns.append(_Column(ranking.arm, ranking.query, ids, scores, added, ranked=True))
        if words and words.weight and ranking.query == 0 and ranking.arm == words.arm:
            shares = np.minimum(np.array(scores) / words.weight, 1.0)
            columns.append(_Column("match", 0, ids, shares.tolist(), weights["match"] * shares))
    if words:
        ids_so_far = set(chain.from_iterable(column.ids for column in columns))
        for name, features in (("nearness", words.nearness), ("date", words.date)):
            shares_of = {node_id: share for node_id, share in features.items() if share and node_id in ids_so_far}
            shares = np.array(list(shares_of.values()))
            columns.append(_Column(name, 0, list(shares_of), shares.tolist(), weights[name] * shares))
    return columns


def _credits(columns: Sequence[_Column]) -> dict[str, list[Credit]]:
    """Return by id where each document's log-odds come from."""
    entries_of: dict[str, list[Credit]] = {}
    for column in columns:
        values = zip(column.ids, column.values, column.credits.tolist(), strict=True)
        for rank, (node_id, value, credit) in enumerate(values, start=1):
            entries = entries_of.setdefault(node_id, [])
            entries.append(Credit(column.arm, column.query, rank if column.ranked else 0, value, credit))
    return entries_of
