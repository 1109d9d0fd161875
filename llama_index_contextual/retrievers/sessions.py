"""Fuse rankings for a message that goes on with something, by what whole sessions contribute.

"It really works! My head rarely feels dizzy now" is no question. What answers it is the session that it goes on with:
what a note has of one day, or under one heading where it names no day. So sessions are ranked, by a sum in log-odds
as in :mod:`~llama_index_contextual.retrievers.learned`:

=============== =====================================================================================================
session vector  the mean of the session's three best vector scores, stretched as in learned fusion; 0 for one that is
                not among the candidates, so that many chunks that speak for a session count more than one
session keyword the same of its BM25 scores, each as a share of the summed rarity (idf) of the message's words
sentence        how far its best vector score for one sentence of the message is above the last candidate's, in the unit
                of ``session vector``: beside small talk and news, the sentence that the session is about counts
age             how new it is: 1 on the day of the message, and a fourth of it after each ``half_life_days``
=============== =====================================================================================================

Age hides an old session that the message goes on with. So every third session is the best of those left by the text
alone, where none is of a later day. The best chunk of a session comes first. Others count a tenth of it, a twentieth
and so on, so that the first hits are of as many sessions.
``benchmarks/train.py`` trains the numbers in ``weights.json``, but that of age, which was chosen with that turn. The
figures, and what was tried besides, are in ``benchmarks/results/memory.md``.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from datetime import date
from pathlib import PurePosixPath
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llama_index_contextual.retrievers.learned import (
    LEAST,
    KeywordReads,
    matched_shares,
    read_candidates,
    shipped_weights,
    trust_in,
)
from llama_index_contextual.retrievers.rankings import ScoreTable, stretch
from llama_index_contextual.utils.language import sentences_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_contextual.retrievers.arrays import Floats
    from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
    from llama_index_contextual.retrievers.chunk_info import ChunkInfo
    from llama_index_contextual.retrievers.rankings import Ranking

FEATURES: Final = ("session vector", "session keyword", "sentence", "age")
HALF_LIFE_DAYS: Final = 30.0
_SPEAKERS: Final = 3  # chunks of a session that speak for it
_RANGE: Final = 6.0  # standard deviations, over which a score is stretched
_FURTHER: Final = (
    0.1  # what the second chunk of a session counts of the first, and the third twice as little
)
_TURN: Final = 3  # of so many sessions one is found by its text alone
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
    node_ids: Sequence[str], info: Sequence[ChunkInfo | None]
) -> list[tuple[str, object]]:
    """Return the session of each candidate: its file, or the candidate itself, and the day or the section in it."""
    sessions: list[tuple[str, object]] = []
    for node_id, chunk in zip(node_ids, info, strict=True):
        if chunk is None:
            sessions.append((node_id, None))
        else:
            sessions.append((chunk.path or node_id, chunk.day or chunk.section))
    return sessions


def newness_of(
    session: tuple[str, object], today: date, half_life_days: float, ageless: Sequence[str] = ()
) -> float | None:
    """1 for a session of the day of the message, and a fourth of it after each half-life, before that day as after it.

    It is the square of a recency factor, so that a week counts. None for a session without a day, or with a path that
    never ages (``ageless`` are globs).
    """
    path, day = session
    if not isinstance(day, date) or any(PurePosixPath(path).match(one) for one in ageless):
        return None
    return float(0.5 ** (2 * abs((today - day).days) / half_life_days))


def fuse_sessions(
    query: str,
    rankings: Sequence[Ranking],
    keywords: tuple[str, ContextualBM25Retriever],
    today: date,
    *,
    half_life_days: float = HALF_LIFE_DAYS,
    ageless: Sequence[str] = (),
) -> tuple[ScoreTable, Sequence[ChunkInfo | None]]:
    """Return chunks scored by their sessions, and what is known of each chunk.

    Args:
        query: The message.
        rankings: Of all arms for the message, and of arms that do not match words for its sentences.
        keywords: The name of a keyword retriever and the retriever.
        today: The day of the message.
        half_life_days: After so many days the feature age is a fourth.
        ageless: Globs of paths that never age.

    Returns:
        ``raw`` is the log-odds of a chunk's session, less for each chunk of it that comes before, and ``score`` is
        ``raw`` as a share of the best. Among ``credits`` are the features, with rank 0.
    """
    # The sentences are no questions of their own: they speak for what the whole message finds.
    table = ScoreTable([ranking for ranking in rankings if ranking.query == 0])
    reads = read_candidates(
        query, keywords, table.node_ids, frozenset(table.node_ids), with_nearness=False
    )
    features = chunk_features(query, rankings, table, reads)
    sessions = sessions_of(table.node_ids, reads.info)
    ages = {one: newness_of(one, today, half_life_days, ageless) for one in sessions}
    known = {one: age for one, age in ages.items() if age is not None}
    middle = median(known.values()) if known else 0.0  # the newness of a session without an age
    members, credits_ = defaultdict[Any, list[int]](list), dict[Any, list[float]]()
    for row in np.argsort(-features.sum(axis=1), kind="stable").tolist():
        members[sessions[row]].append(row)
    for session, rows in members.items():
        best = -np.sort(-features[rows], axis=0)
        age = shipped_weights("messages")["age"] * known.get(session, middle)
        credits_[session] = [
            *(best[:_SPEAKERS, :2].sum(axis=0) / _SPEAKERS).tolist(),
            float(best[0, 2]),
            age,
        ]
    added = np.zeros((len(table.node_ids), len(FEATURES) + 1))
    totals = {
        session: (math.fsum(parts), math.fsum(parts[:-1])) for session, parts in credits_.items()
    }
    before = {
        one: both
        for one, both in totals.items()
        if not (isinstance(one[1], date) and one[1] > today)
    }
    for session, total in (
        {one: both for one, (both, _) in totals.items()} | _in_turn(before)
    ).items():
        rows = members[session]
        added[rows] = [*credits_[session], total - totals[session][0]]
        table.raw[rows] = total * np.array(
            [1.0, *(_FURTHER / place for place in range(1, len(rows)))]
        )
    for name, column in zip((*FEATURES, "turn"), added.T, strict=True):
        table.show_feature(name, column)
    table.scores = np.maximum(table.raw / max(float(table.raw.max(initial=0.0)), LEAST), LEAST)
    return table, reads.info


def _in_turn(totals: Mapping[Any, tuple[float, float]]) -> dict[Any, float]:
    """The totals of sessions in their order: in turn by what they have with age, and by what they have without it."""
    by_both, by_text = (sorted(totals, key=lambda one: -totals[one][at]) for at in (0, 1))
    order: dict[Any, None] = {}
    while len(order) < len(totals):
        ranked = by_text if len(order) % _TURN == _TURN - 1 else by_both
        order[next(one for one in ranked if one not in order)] = None
    return dict(
        zip(order, sorted((total for total, _ in totals.values()), reverse=True), strict=True)
    )


def chunk_features(
    query: str, rankings: Sequence[Ranking], table: ScoreTable, reads: KeywordReads
) -> Floats:
    """Return all features but age in log-odds, one a column: each value times its weight.

    The ranks of the candidates are added to the table; they add nothing by themselves.
    """
    whole, trust = [one for one in rankings if one.query == 0], trust_in(query, rankings, reads)
    shares = Counter[bool]()
    features, spread = np.zeros((len(table.node_ids), len(FEATURES) - 1)), 0.0
    for one in whole:
        shares[one.is_keyword] += one.weight  # type: ignore[assignment]
    for one in whole:
        table.add_ranking(one, np.zeros(len(one.scores)))
        if one.is_keyword:
            values = matched_shares(one, reads)
        else:
            values = stretch(one.scores, one.compared_scores)
            spread = max(spread, float(np.std(one.compared_scores)) if len(one.scores) else 0.0)
        features[:, int(one.is_keyword)] += table.spread(
            one, trust.get(one.retriever, 1.0) * one.weight * values
        )
    for kind, share in shares.items():
        features[:, int(kind)] /= share or 1.0
    vectors = [one for one in rankings if not one.is_keyword]
    for ranking in ([one for one in vectors if one.query] or vectors) if spread else ():
        last = ranking.compared_scores[-1] if len(ranking.scores) else 0.0
        above = trust.get(ranking.retriever, 1.0) * (ranking.scores - last) / (_RANGE * spread)
        features[:, 2] = np.maximum(features[:, 2], table.spread(ranking, above))
    weights = np.array([shipped_weights("messages")[name] for name in FEATURES[:-1]])
    weighted: Floats = features * weights
    return weighted
