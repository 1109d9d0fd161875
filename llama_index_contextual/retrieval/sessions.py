"""Fuse rankings for a message that goes on with something, by what whole sessions contribute.

"It really works! My head rarely feels dizzy now" is no question. What answers it is the session that it goes on with:
what a note has of one day, or under one heading where it names no day. So sessions are ranked, by a sum in log-odds
as in :mod:`~llama_index_contextual.retrieval.learned`:

=============== =====================================================================================================
session vector  the mean of the session's three best vector scores, stretched as in learned fusion; 0 for one that is
                not among the candidates, so that many chunks that speak for a session count more than one
session keyword the same of its BM25 scores, each as a share of the summed rarity (idf) of the message's words
sentence        how far its best vector score for one sentence of the message is above the last candidate's, in the unit
                of ``session vector``: beside small talk and news, the sentence that the session is about counts
age             how new it is: 1 on the day of the message, and half of it after each ``half_life_days``
=============== =====================================================================================================

Age hides an old session that the message goes on with. So every second session is the best of those left by the text
alone. The best chunk of a session comes first; each further one counts half as much as the one before.
``benchmarks/train.py`` trains the numbers in ``messages.json``, but that of age, which was chosen with that turn. The
figures, and what was tried besides, are in ``benchmarks/results/memory.md``.
"""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from llama_index_contextual.metadata import HEADER_PATH
from llama_index_contextual.retrieval.fusion import LEAST, Mode, Table, shipped_weights, stretch, trust_in
from llama_index_contextual.text import sentences_in

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from datetime import date

    from llama_index_contextual.retrieval.fusion import Floats, Ranking
    from llama_index_contextual.retrieval.signals import PoolReads

FEATURES: Final = ("session vector", "session keyword", "sentence", "age")
HALF_LIFE_DAYS: Final = 30.0
_SPEAKERS: Final = 3  # chunks of a session that speak for it
_RANGE: Final = 6.0  # standard deviations, over which a score is stretched
_FURTHER: Final = 0.5  # what a chunk counts of the one of its session before it
_TURN: Final = 2  # of so many sessions one is found by its text alone
_SENTENCES: Final = 6
_LEAST_WORDS: Final = 3  # of a sentence


def sentences_of(message: str) -> list[str]:
    """The six longest sentences of a message, in its order; none where it is a single one."""
    sentences = sentences_in(message)
    if len(sentences) < 2:  # noqa: PLR2004
        return []
    longest = sorted(dict.fromkeys(sentences), key=len, reverse=True)[:_SENTENCES]
    return [one for one in sentences if one in longest and len(one.split()) >= _LEAST_WORDS]


def sessions_of(
    reads: PoolReads, today: date, ageless: Sequence[str] = ()
) -> tuple[list[Hashable], dict[Hashable, int | None]]:
    """The session of each candidate, and the days between each session and the message.

    A later day is as far away as an earlier one; None stands for a session without a day, or with a path that never
    ages (``ageless`` are globs).
    """
    sessions, ages = list["Hashable"](), dict["Hashable", "int | None"]()
    for node_id, record in zip(reads.ids, reads.records, strict=True):
        path, day = (node_id, None) if record is None else (record.path, record.day)
        session = (path or node_id, day or (record and record.dated.get(HEADER_PATH)))
        sessions.append(session)
        if session not in ages:
            aged = day is not None and not any(PurePosixPath(path).match(one) for one in ageless)
            ages[session] = abs((today - day).days) if day and aged else None
    return sessions, ages


def fuse_sessions(
    query: str,
    rankings: Sequence[Ranking],
    reads: PoolReads,
    today: date,
    *,
    half_life_days: float = HALF_LIFE_DAYS,
    ageless: Sequence[str] = (),
    weights: Mapping[str, float] | None = None,
) -> Table:
    """Rankings of chunks fused by their sessions.

    Args:
        query: The message.
        rankings: Of all arms for the message, and of arms that do not match words for its sentences.
        reads: Of the keyword arm for the candidates: those that the whole message finds.
        today: The day of the message.
        half_life_days: After so many days the feature age is one half.
        ageless: Globs of paths that never age.
        weights: Of the features; default the shipped ones.

    Returns:
        ``raw`` is the log-odds of a chunk's session, halved for each chunk of it that comes before, and ``score`` is
        ``raw`` as a share of the best. Among ``credits`` are the features, with rank 0; the score of ``age`` are the
        days of the session, or -1.
    """
    weights = weights or shipped_weights("messages")
    sessions, ages = sessions_of(reads, today, ageless)
    known = {one: 0.5 ** (age / half_life_days) for one, age in ages.items() if age is not None}
    middle = median(known.values()) if known else 0.0  # the newness of a session without an age
    table, features = chunk_features(query, rankings, reads)
    chunk_scores = features @ [weights[name] for name in FEATURES[:-1]]
    members: dict[Hashable, list[int]] = {}
    for row in np.argsort(-chunk_scores, kind="stable").tolist():
        members.setdefault(sessions[row], []).append(row)
    values, days = np.zeros((len(reads.ids), len(FEATURES))), np.full(len(reads.ids), -1.0)
    totals = dict["Hashable", "tuple[float, float]"]()
    for session, rows in members.items():
        best = -np.sort(-features[rows], axis=0)
        of_session = [*best[:_SPEAKERS, :2].sum(axis=0) / _SPEAKERS, best[0, 2], known.get(session, middle)]
        values[rows], age = of_session, ages[session]
        days[rows] = -1.0 if age is None else age
        summands = [weights[name] * value for name, value in zip(FEATURES, of_session, strict=True)]
        totals[session] = math.fsum(summands), math.fsum(summands[:-1])
    lifted = np.zeros(len(reads.ids))
    for session, total in _in_turn(totals).items():
        rows = members[session]
        lifted[rows] = total - totals[session][0]
        table.raw[rows] = total * _FURTHER ** np.arange(len(rows))
    table.columns.append(("turn", 0, lifted, lifted, None))
    for at, name in enumerate(FEATURES):
        shown = days if name == "age" else values[:, at]
        table.columns.append((name, 0, shown, weights[name] * values[:, at], None))
    table.scores = np.maximum(table.raw / max(float(table.raw.max(initial=0.0)), LEAST), LEAST)
    return table


def _in_turn(totals: Mapping[Hashable, tuple[float, float]]) -> dict[Hashable, float]:
    """The totals of sessions in their order: in turn by what they have with age, and by what they have without it."""
    by_both, by_text = (sorted(totals, key=lambda one: -totals[one][at]) for at in (0, 1))
    order: dict[Hashable, None] = {}
    while len(order) < len(totals):
        ranked = by_text if len(order) % _TURN == _TURN - 1 else by_both
        order[next(one for one in ranked if one not in order)] = None
    return dict(zip(order, sorted((total for total, _ in totals.values()), reverse=True), strict=True))


def chunk_features(query: str, rankings: Sequence[Ranking], reads: PoolReads) -> tuple[Table, Floats]:
    """The candidates with their ranks, which add nothing by themselves, and all features but age, one a column."""
    whole = [one for one in rankings if one.query == 0]
    table, trust = Table(whole), trust_in(query, rankings, reads)
    for ranking in whole:
        table.add_ranking(ranking, np.zeros(len(ranking.in_ranks[0])))
    vectors, matches = ([one for one in whole if one.is_keyword is kind] for kind in (False, True))
    sentences = [one for one in rankings if one.query and not one.is_keyword] or vectors
    unit = _RANGE * max(
        (float(np.std(one.in_ranks[1][: one.compared])) for one in vectors if one.candidates), default=0
    )

    def weighted(several: Sequence[Ranking], scaled: Callable[[Ranking], Floats]) -> Floats:
        total = math.fsum(one.weight for one in several) or 1.0
        shares = [trust.get(one.arm, 1.0) * one.weight / total * table.spread(one, scaled(one)) for one in several]
        return np.sum(shares, axis=0) if shares else np.zeros(len(table.ids))

    features = np.zeros((len(table.ids), len(FEATURES) - 1))
    features[:, 0] = weighted(vectors, lambda one: stretch(one.in_ranks[1], Mode.LEARNED, one.compared))
    features[:, 1] = weighted(matches, lambda one: np.minimum(one.in_ranks[1] / (reads.weight or 1.0), 1.0))
    for ranking in sentences if unit else ():
        ids, scores = ranking.in_ranks
        last = scores[: ranking.compared][-1] if len(ids) else 0.0
        above = trust.get(ranking.arm, 1.0) * (scores - last) / unit
        features[:, 2] = np.maximum(features[:, 2], table.spread(ranking, above))
    return table, features
