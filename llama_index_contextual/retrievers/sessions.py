"""Rank whole sessions for a message that continues a conversation.

"It really works! My head rarely feels dizzy now" is not a question. The relevant note is the
session that it continues. A session is the text of a note from the same day or, in a note without
days, below the same heading. The score of a session is a sum in log-odds, as in
:mod:`~llama_index_contextual.retrievers.rankings`:

=============== ====================================================================================
session vector  the mean of the three best vector scores of the session, stretched as in learned
                fusion, so that a session with several matching chunks ranks above one with a single
                match
session keyword the mean of the three best BM25 scores, as shares of the summed rarity of the
                message's words
sentence        the best vector score for any sentence of the message, minus the lowest score in
                that ranking, so that small talk around this sentence does not matter
age             the recency: 1 on the day of the message, 1/4 after ``half_life_days``
=============== ====================================================================================

By age alone, an old session that the message continues would rank low. Every third session is
therefore the best remaining one by text alone, unless it is from a later day. The best chunk of a
session gets its score. The second gets a tenth of it, the third a twentieth and so on, so that the
first hits are from different sessions. ``benchmarks/train.py`` trains all weights except that of
age, which was chosen together with the rule of every third session. The figures are in
``benchmarks/results/memory.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from llama_index_contextual.postprocessors.recency import decay
from llama_index_contextual.retrievers.rankings import (
    MIN_SCORE,
    FeatureColumn,
    KeywordData,
    ScoreTable,
    query_and_candidates,
    read_candidates,
    shipped_weights,
    trust_in,
)
from llama_index_contextual.utils.language import sentences_in
from llama_index_contextual.utils.metadata import is_evergreen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_contextual.retrievers.arrays import Floats
    from llama_index_contextual.retrievers.chunk_info import Chunks
    from llama_index_contextual.retrievers.rankings import KeywordMember, Ranking

TEXT_FEATURES = ("session vector", "session keyword", "sentence")
FEATURES = (*TEXT_FEATURES, "age")
HALF_LIFE_DAYS = 30.0
_BEST_CHUNKS = 3  # chunks whose scores represent a session
_DEVIATIONS = 6.0  # standard deviations of vector scores that become the range 0 to 1
_FURTHER_SHARE = 0.1  # score of the second chunk of a session, as a share of the first
_TURN = 3  # every third session is chosen by text alone
_MAX_SENTENCES = 6
_MIN_WORDS = 3  # words of a sentence that is searched for


class Session(NamedTuple):
    """The part of a note from the same day or, without a day, below the same heading."""

    path: str
    part: date | str | None

    def is_after(self, today: date) -> bool:
        """Return whether the session is from a later day."""
        return isinstance(self.part, date) and self.part > today


@dataclass(frozen=True, slots=True)
class SessionScore:
    """The score of a session in log-odds.

    Attributes:
        rows: The rows of its chunks among the candidates, best first.
        by_text: The summands of the text features.
        age: The summand of age.
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
        """Return the score with age."""
        return math.fsum([*self.by_text, self.age])


def sentences_of(message: str) -> list[str]:
    """Return the six longest distinct sentences of a message in order, or none for one sentence."""
    sentences = list(dict.fromkeys(sentences_in(message)))
    if len(sentences) == 1:
        return []
    longest_first = sorted(sentences, key=len, reverse=True)
    longest = longest_first[:_MAX_SENTENCES]
    return [
        sentence
        for sentence in sentences
        if sentence in longest and len(sentence.split()) >= _MIN_WORDS
    ]


def sessions_of(node_ids: Sequence[str], chunks: Chunks) -> list[Session]:
    """Return the session of each candidate. A candidate unknown to the index is its own session."""
    sessions = [Session(node_id, None) for node_id in node_ids]
    for row in np.flatnonzero(chunks.is_known).tolist():
        info = chunks.info(row)
        day = int(chunks.days[row])
        part = date.fromordinal(day) if day else info.section
        sessions[row] = Session(info.path or node_ids[row], part)
    return sessions


def recency_of(
    session: Session,
    today: date,
    half_life_days: float,
    evergreen: Sequence[str] = (),
) -> float | None:
    """Return ``0.25 ** (days / half_life_days)``, where ``days`` is the distance from today.

    This is the square of a recency factor, so that even a week makes a difference. The result is
    None for a session without a day or with a path that never ages.
    """
    if not isinstance(session.part, date) or is_evergreen(session.path, evergreen):
        return None
    days = abs((today - session.part).days)
    return decay(2 * days, half_life_days)


def fuse_sessions(
    query: str,
    rankings: Sequence[Ranking],
    keywords: KeywordMember,
    today: date,
    *,
    half_life_days: float = HALF_LIFE_DAYS,
    evergreen: Sequence[str] = (),
) -> tuple[ScoreTable, KeywordData]:
    """Return the chunks, scored by their sessions, and their data from the keyword index.

    Args:
        query: The message.
        rankings: The answers of all retrievers to the message, and of the vector retrievers to its
            sentences.
        keywords: The keyword retriever.
        today: The day of the message.
        half_life_days: The half-life for :func:`recency_of`.
        evergreen: Patterns of paths that never age.

    Returns:
        A table in which ``raw`` is the log-odds of a chunk's session, reduced for all but its best
        chunk, and ``scores`` are shares of the best.
    """
    # Sentences only score candidates. All candidates come from the whole message.
    originals = [ranking for ranking in rankings if ranking.query_number == 0]
    table = ScoreTable(originals)
    matching_ids = frozenset(table.node_ids)
    keyword_data = read_candidates(
        query, keywords, table.node_ids, matching_ids, with_nearness=False
    )
    features = chunk_features(query, today, rankings, table, keyword_data)
    sessions = sessions_of(table.node_ids, keyword_data.chunks)
    recency = {
        session: recency_of(session, today, half_life_days, evergreen) for session in sessions
    }
    scores = score_sessions(features, sessions, recency)

    # Choose every third session by text alone.
    totals = {session: score.total for session, score in scores.items()}
    totals |= interleaved_totals(
        {session: score for session, score in scores.items() if not session.is_after(today)}
    )

    # Give each chunk its share of the session's score.
    added = np.zeros((len(table.node_ids), len(FEATURES) + 1))
    for session, score in scores.items():
        rows = list(score.rows)
        further = [_FURTHER_SHARE / number for number in range(1, len(rows))]
        total = totals[session]
        turn = total - score.total
        added[rows] = [*score.by_text, score.age, turn]
        table.raw[rows] = total * np.array([1.0, *further])
    for name, column in zip((*FEATURES, "turn"), added.T, strict=True):
        table.features.append(FeatureColumn(name, column, column))
    best = max(float(table.raw.max(initial=0.0)), MIN_SCORE)
    table.scores = np.maximum(table.raw / best, MIN_SCORE)
    return table, keyword_data


def score_sessions(
    features: Floats,
    sessions: Sequence[Session],
    recency: Mapping[Session, float | None],
) -> dict[Session, SessionScore]:
    """Return the score of each session.

    Args:
        features: The result of :func:`chunk_features`.
        sessions: The session of each candidate.
        recency: The recency of each session. A session without one gets the median.
    """
    rows_of: dict[Session, list[int]] = {}
    for row in np.argsort(-features.sum(axis=1), kind="stable").tolist():
        rows_of.setdefault(sessions[row], []).append(row)
    known = [value for value in recency.values() if value is not None]
    default = median(known) if known else 0.0
    weight_of_age = shipped_weights("messages")["age"]
    scores = {}
    for session, rows in rows_of.items():
        best = -np.sort(-features[rows], axis=0)
        means = best[:_BEST_CHUNKS].sum(axis=0) / _BEST_CHUNKS
        by_text = [float(means[0]), float(means[1]), float(best[0, 2])]
        value = recency[session]
        if value is None:
            value = default
        scores[session] = SessionScore(rows, by_text, weight_of_age * value)
    return scores


def interleaved_totals(scores: Mapping[Session, SessionScore]) -> dict[Session, float]:
    """Return new totals by which every third session is the best remaining one by text alone.

    The new totals are the old ones, assigned to the sessions in their new order.
    """
    by_total = sorted(scores, key=lambda session: -scores[session].total)
    by_text = sorted(scores, key=lambda session: -scores[session].text_total)
    order: dict[Session, None] = {}
    while len(order) < len(scores):
        is_turn_of_text = len(order) % _TURN == _TURN - 1
        ranked = by_text if is_turn_of_text else by_total
        best_left = next(session for session in ranked if session not in order)
        order[best_left] = None
    totals = [scores[session].total for session in by_total]
    return dict(zip(order, totals, strict=True))


def chunk_features(
    query: str,
    today: date,
    rankings: Sequence[Ranking],
    table: ScoreTable,
    keyword_data: KeywordData,
) -> Floats:
    """Return the text features of each candidate in log-odds, one column for each feature."""
    trust = trust_in(query, rankings, keyword_data)
    originals = [ranking for ranking in rankings if ranking.query_number == 0]
    matching_ids = frozenset(table.node_ids)
    _, candidates = query_and_candidates(query, today, originals, table, keyword_data, matching_ids)
    matched = trust.get(keyword_data.retriever, 1.0) * candidates.matched
    best_sentence = best_sentence_scores(rankings, table, trust)
    values = np.column_stack([candidates.vector_scores, matched, best_sentence])
    shipped = shipped_weights("messages")
    weights = [shipped[name] for name in TEXT_FEATURES]
    weighted: Floats = values * np.array(weights)
    return weighted


def best_sentence_scores(
    rankings: Sequence[Ranking], table: ScoreTable, trust: Mapping[str, float]
) -> Floats:
    """Return the best vector score of each candidate for any sentence of the message.

    Scores are measured from the lowest score of the ranking, in units of six standard deviations
    of the scores for the whole message. A message of one sentence is itself the sentence.
    """
    best: Floats = np.zeros(len(table.node_ids))
    vectors = [
        ranking for ranking in rankings if not ranking.is_keyword and ranking.unfiltered_count
    ]
    originals = [ranking for ranking in vectors if ranking.query_number == 0]
    sentences = [ranking for ranking in vectors if ranking.query_number > 0]
    deviations = [float(np.std(ranking.unfiltered_scores)) for ranking in originals]
    deviation = max(deviations, default=0.0)
    if not deviation:
        return best
    for ranking in sentences or vectors:
        above_lowest = ranking.scores - ranking.unfiltered_scores[-1]
        trusted = trust.get(ranking.retriever, 1.0) * above_lowest
        scores = table.by_row(ranking, trusted / (_DEVIATIONS * deviation))
        best = np.maximum(best, scores)
    return best
