"""Rank whole sessions for a message that continues a conversation.

"It really works! My head rarely feels dizzy now" is no question. What answers it is the session
that it continues: what a note says on one day, or under one heading where it names no day. A
session's score is a sum in log-odds, as in :mod:`~llama_index_contextual.retrievers.rankings`:

=============== ====================================================================================
session vector  the mean of the session's three best vector scores, stretched as in learned fusion,
                so that many chunks that speak for a session count more than one
session keyword the same of its BM25 scores, as shares of the summed rarity of the message's words
sentence        how far its best vector score for one sentence of the message is above the last
                candidate's: beside small talk, the sentence that the session is about counts
age             how new it is: 1 on the day of the message, a fourth after ``half_life_days``
=============== ====================================================================================

Age hides an old session that the message continues. So every third session is the best of those
left by the text alone, unless it is of a later day. The best chunk of a session comes first; the
others count a tenth of it, a twentieth and so on, so that the first hits are of as many sessions.
``benchmarks/train.py`` trains the weights, but not that of age, which was chosen with those turns.
``benchmarks/results/memory.md`` has the figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from llama_index_contextual.postprocessors.recency import decay
from llama_index_contextual.retrievers.rankings import (
    LEAST,
    FeatureColumn,
    KeywordReads,
    ScoreTable,
    collect,
    read_candidates,
    shipped_weights,
    trust_in,
)
from llama_index_contextual.utils.language import sentences_in
from llama_index_contextual.utils.metadata import is_evergreen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_contextual.retrievers.arrays import Floats
    from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
    from llama_index_contextual.retrievers.chunk_info import Chunks
    from llama_index_contextual.retrievers.rankings import Ranking

TEXT_FEATURES: Final = ("session vector", "session keyword", "sentence")
FEATURES: Final = (*TEXT_FEATURES, "age")
HALF_LIFE_DAYS: Final = 30.0
_SPEAKERS: Final = 3  # chunks that speak for a session
_DEVIATIONS: Final = 6.0  # over which a vector score is stretched
_FURTHER_SHARE: Final = 0.1  # what the second chunk of a session counts of the first
_TURN: Final = 3  # every third session is found by its text alone
_MAX_SENTENCES: Final = 6
_MIN_WORDS: Final = 3  # of a sentence


class Session(NamedTuple):
    """A part of a note: what it says on one day, or under one heading where it names no day."""

    path: str
    part: date | str | None

    def is_after(self, today: date) -> bool:
        """Tell whether the session is of a later day."""
        return isinstance(self.part, date) and self.part > today


@dataclass(frozen=True, slots=True)
class SessionScore:
    """The score of a session in log-odds.

    Attributes:
        rows: Its chunks among the candidates, best first.
        by_text: What each text feature adds.
        age: What its age adds.
    """

    rows: Sequence[int]
    by_text: Sequence[float]
    age: float

    @property
    def text_total(self) -> float:
        """Return the score without age."""
        return math.fsum(self.by_text)

    @property
    def total(self) -> float:
        """Return the whole score."""
        return math.fsum([*self.by_text, self.age])


def sentences_of(message: str) -> list[str]:
    """Return the six longest sentences of a message, in its order; none if it is a single one."""
    sentences = sentences_in(message)
    if len(sentences) == 1:
        return []
    longest = sorted(dict.fromkeys(sentences), key=len, reverse=True)[:_MAX_SENTENCES]
    return [
        sentence
        for sentence in sentences
        if sentence in longest and len(sentence.split()) >= _MIN_WORDS
    ]


def sessions_of(node_ids: Sequence[str], chunks: Chunks) -> list[Session]:
    """Return the session of each candidate; a candidate that nothing is known of is its own."""
    sessions = [Session(node_id, None) for node_id in node_ids]
    for row in np.flatnonzero(chunks.is_known).tolist():
        info = chunks.info(row)
        day = int(chunks.days[row])
        part = date.fromordinal(day) if day else info.section
        sessions[row] = Session(info.path or node_ids[row], part)
    return sessions


def newness_of(
    session: Session, today: date, half_life_days: float, evergreen: Sequence[str] = ()
) -> float | None:
    """Return 1 for a session of today, and a fourth after each half-life, before and after.

    It is the square of a recency factor, so that a week counts. None for a session without a day,
    or with a path that never ages.
    """
    if not isinstance(session.part, date) or is_evergreen(session.path, evergreen):
        return None
    days = abs((today - session.part).days)
    return decay(2 * days, half_life_days)


def fuse_sessions(
    query: str,
    rankings: Sequence[Ranking],
    keywords: tuple[str, ContextualBM25Retriever],
    today: date,
    *,
    half_life_days: float = HALF_LIFE_DAYS,
    evergreen: Sequence[str] = (),
) -> tuple[ScoreTable, KeywordReads]:
    """Return chunks scored by their sessions, and what is known of them.

    Args:
        query: The message.
        rankings: Of all retrievers for the message, and of vector retrievers for its sentences.
        keywords: The name of a keyword retriever and the retriever.
        today: The day of the message.
        half_life_days: After so many days a session counts a fourth as new.
        evergreen: Patterns of paths that never age.

    Returns:
        A table whose ``raw`` is the log-odds of a chunk's session, less for each chunk of it that
        comes before, and whose ``scores`` are shares of the best.
    """
    # The sentences are no questions of their own: they speak for what the whole message finds.
    table = ScoreTable([ranking for ranking in rankings if ranking.query == 0])
    reads = read_candidates(
        query, keywords, table.node_ids, frozenset(table.node_ids), with_nearness=False
    )
    features = chunk_features(query, today, rankings, table, reads)
    sessions = sessions_of(table.node_ids, reads.chunks)
    newness = {
        session: newness_of(session, today, half_life_days, evergreen) for session in sessions
    }
    scores = score_sessions(features, sessions, newness)

    # Order the sessions in turn by their score and by their text alone.
    totals = {session: score.total for session, score in scores.items()}
    totals |= totals_in_turn(
        {session: score for session, score in scores.items() if not session.is_after(today)}
    )

    # Give each chunk its part of the session's score.
    added = np.zeros((len(table.node_ids), len(FEATURES) + 1))
    for session, score in scores.items():
        rows = list(score.rows)
        further = [_FURTHER_SHARE / place for place in range(1, len(rows))]
        added[rows] = [*score.by_text, score.age, totals[session] - score.total]
        table.raw[rows] = totals[session] * np.array([1.0, *further])
    for name, column in zip((*FEATURES, "turn"), added.T, strict=True):
        table.features.append(FeatureColumn(name, column, column))
    best = max(float(table.raw.max(initial=0.0)), LEAST)
    table.scores = np.maximum(table.raw / best, LEAST)
    return table, reads


def score_sessions(
    features: Floats, sessions: Sequence[Session], newness: Mapping[Session, float | None]
) -> dict[Session, SessionScore]:
    """Return the score of each session.

    Args:
        features: Of :func:`chunk_features`.
        sessions: Of each candidate.
        newness: Of each session. One without an age counts as the median of those that have one.
    """
    rows_of: dict[Session, list[int]] = {}
    for row in np.argsort(-features.sum(axis=1), kind="stable").tolist():
        rows_of.setdefault(sessions[row], []).append(row)
    known = [value for value in newness.values() if value is not None]
    default = median(known) if known else 0.0
    weight_of_age = shipped_weights("messages")["age"]
    scores = {}
    for session, rows in rows_of.items():
        best = -np.sort(-features[rows], axis=0)
        means = best[:_SPEAKERS].sum(axis=0) / _SPEAKERS
        by_text = [float(means[0]), float(means[1]), float(best[0, 2])]
        value = newness[session]
        age = weight_of_age * (default if value is None else value)
        scores[session] = SessionScore(rows, by_text, age)
    return scores


def totals_in_turn(scores: Mapping[Session, SessionScore]) -> dict[Session, float]:
    """Return the totals of sessions, dealt out so that every third session is found by its text.

    The sessions get the sorted totals in their new order.
    """
    by_total = sorted(scores, key=lambda session: -scores[session].total)
    by_text = sorted(scores, key=lambda session: -scores[session].text_total)
    order: dict[Session, None] = {}
    while len(order) < len(scores):
        is_turn_of_text = len(order) % _TURN == _TURN - 1
        ranked = by_text if is_turn_of_text else by_total
        order[next(session for session in ranked if session not in order)] = None
    totals = [scores[session].total for session in by_total]
    return dict(zip(order, totals, strict=True))


def chunk_features(
    query: str, today: date, rankings: Sequence[Ranking], table: ScoreTable, reads: KeywordReads
) -> Floats:
    """Return the text features of each candidate in log-odds, one a column."""
    trust = trust_in(query, rankings, reads)
    originals = [ranking for ranking in rankings if ranking.query == 0]
    admitted = frozenset(table.node_ids)
    _, candidates = collect(query, today, originals, table, reads, admitted)
    matched = trust.get(reads.retriever, 1.0) * candidates.matched

    # The best sentence; a message of one sentence is its own.
    sentence: Floats = np.zeros(len(table.node_ids))
    vectors = [ranking for ranking in rankings if not ranking.is_keyword and ranking.compared]
    deviations = [
        float(np.std(ranking.compared_scores)) for ranking in vectors if not ranking.query
    ]
    deviation = max(deviations, default=0.0)
    sentences = [ranking for ranking in vectors if ranking.query] or vectors
    for ranking in sentences if deviation else ():
        above = trust.get(ranking.retriever, 1.0) * (ranking.scores - ranking.compared_scores[-1])
        spread = table.spread(ranking, above / (_DEVIATIONS * deviation))
        sentence = np.maximum(sentence, spread)
    shipped = shipped_weights("messages")
    values = np.column_stack([candidates.vector_scores, matched, sentence])
    weighted: Floats = values * np.array([shipped[name] for name in TEXT_FEATURES])
    return weighted
