"""Fuse rankings for a message that goes on with something, by what whole sessions say to it.

"It really works! My head rarely feels dizzy now" asks nothing. What answers it is the session that it goes on with:
what a note says on one day, or under one heading where it names no day. So sessions are ranked, by a sum in log-odds
as in :func:`~llama_index_contextual.retrieval.learned.fuse_learned`:

=============== =====================================================================================================
session vector  the mean of the session's three best vector scores, stretched as in learned fusion; 0 for one that is
                not among the candidates, so that many chunks that speak for a session count more than one
session keyword the same of its BM25 scores, each as a share of the summed rarity (idf) of the message's words
sentence        how far its best vector score for one sentence of the message is above the last candidate's, in the unit
                of ``session vector``: beside small talk and news, the sentence that the session is about counts
age             how new it is: 1 on the day of the message, and half of it after each ``half_life_days``
date            how near it is to a day that the message names, as in learned fusion
=============== =====================================================================================================

The chunk that says most by itself tells of its session first; each further one counts half as much as the one before.
``benchmarks/train_messages.py`` trains the numbers in ``messages.json``, but that of dates, which few messages name.
``benchmarks/results/memory.md`` says what they give, and what was tried besides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import PurePosixPath
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from llama_index_contextual.metadata import DATE, HEADER_PATH, PATH, day_of
from llama_index_contextual.retrieval.fusion import Credit, Fused, Mode, best_first, in_ranks, shipped_weights, stretch
from llama_index_contextual.text import sentences_in

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence
    from datetime import date

    from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever
    from llama_index_contextual.retrieval.fusion import Ranking
    from llama_index_contextual.retrieval.learned import Signals

Scale = Callable[[list[float], int | None], npt.NDArray[np.float64]]

FEATURES: Final = ("session vector", "session keyword", "sentence", "date", "age")
HALF_LIFE_DAYS: Final = 30.0
_SPEAKERS: Final = 3  # chunks of a session that speak for it
_RANGE: Final = 6.0  # standard deviations, over which a score is stretched
_FURTHER: Final = 0.5  # what a chunk counts of the one of its session before it
_LEAST: Final = 1e-6  # scores stay greater than 0
_SENTENCES: Final = 6
_LEAST_WORDS: Final = 3  # of a sentence


def sentences_of(message: str) -> list[str]:
    """Return the six longest sentences of a message, in its order; none where it is a single one."""
    sentences = sentences_in(message)
    if len(sentences) < 2:  # noqa: PLR2004
        return []
    longest = sorted(dict.fromkeys(sentences), key=len, reverse=True)[:_SENTENCES]
    return [one for one in sentences if one in longest and len(one.split()) >= _LEAST_WORDS]


class Sessions(NamedTuple):
    """What is known of the sessions of some chunks.

    Args:
        of: The session of each chunk, by id.
        ages: Days between each session and the message; None where it has no day, or never ages.
        half_life_days: After so many days the feature age is one half.
    """

    of: Mapping[str, Hashable]
    ages: Mapping[Hashable, int | None]
    half_life_days: float = HALF_LIFE_DAYS

    def newness(self) -> dict[Hashable, float]:
        """Return the feature age of each session, 0 to 1; one without an age is like the middle one of the others."""
        known = {one: 0.5 ** (age / self.half_life_days) for one, age in self.ages.items() if age is not None}
        middle = median(known.values()) if known else 0.0
        return {one: known.get(one, middle) for one in self.ages}


def sessions_of(
    arm: ContextualBM25Retriever,
    node_ids: Collection[str],
    today: date,
    *,
    half_life_days: float = HALF_LIFE_DAYS,
    ageless: Sequence[str] = (),
) -> Sessions:
    """Return the sessions of some chunks.

    Args:
        arm: Knows the metadata of the chunks.
        node_ids: Of the chunks.
        today: The day of the message. A later day is as far away as an earlier one.
        half_life_days: Of the feature age.
        ageless: Globs of paths that never age.
    """
    paths, days, headings = (arm.values(key, node_ids) for key in (PATH, DATE, HEADER_PATH))
    of, ages = dict[str, "Hashable"](), dict["Hashable", "int | None"]()
    known: dict[tuple[str, object, object], Hashable] = {}
    for node_id in node_ids:
        place = (str(paths.get(node_id) or node_id), days.get(node_id), headings.get(node_id))
        if place not in known:
            path, day = place[0], day_of({DATE: place[1], HEADER_PATH: place[2], PATH: paths.get(node_id)})
            session = known[place] = (path, day or place[2])
            aged = day is not None and not any(PurePosixPath(path).match(one) for one in ageless)
            ages[session] = abs((today - day).days) if day and aged else None
        of[node_id] = known[place]
    return Sessions(of, ages, half_life_days)


def fuse_sessions(
    rankings: Sequence[Ranking],
    keyword: Mapping[str, bool],
    signals: Signals,
    sessions: Sessions,
    trust: Mapping[str, float] | None = None,
    *,
    weights: Mapping[str, float] | None = None,
    explained: int | None = None,
) -> list[Fused]:
    """Fuse rankings of chunks into one by their sessions, best first, ties by id.

    Args:
        rankings: Of all arms for the message, and of arms that do not match words for its sentences.
        keyword: For each arm's name whether it matches words.
        signals: Of the keyword arm for the message.
        sessions: Of the chunks that are candidates: those that the whole message finds.
        trust: What the scores of some arms count, 0 to 1, by the arm's name; of others 1.
        weights: Of the features; default the shipped ones.
        explained: How many of the best get ``credits``, which are a thousand objects a message; default all.

    Returns:
        ``raw`` is the log-odds of a chunk's session, halved for each chunk of it that comes before, and ``score`` is
        ``raw`` as a share of the best. Among ``credits`` are the features, with rank 0; the score of the
        first two is how many chunks of the session are candidates, that of ``age`` its days, or -1.
    """
    weights, trust = weights or shipped_weights("messages"), trust or {}
    whole = [one for one in rankings if one.query == 0]
    vectors, matches = ([one for one in whole if keyword[one.arm] is kind] for kind in (False, True))
    sentences = [one for one in rankings if one.query and not keyword[one.arm]]
    known = signals.weight or 1.0
    spread = max((float(np.std(in_ranks(one)[1][: one.compared])) for one in vectors if one.candidates), default=0.0)
    features = {
        "session vector": _weighted(vectors, trust, lambda scores, compared: stretch(scores, Mode.LEARNED, compared)),
        "session keyword": _weighted(matches, trust, lambda scores, _: np.minimum(np.array(scores) / known, 1.0)),
        "sentence": _above_the_last(sentences or vectors, trust, _RANGE * spread),
        "date": signals.shares.get("date", {}),
    }
    ids = sorted(sessions.of)
    table = np.array([[of.get(one, 0.0) for of in features.values()] for one in ids]).reshape(-1, len(features))
    says = (table @ [weights[name] for name in features]).tolist()
    members: dict[Hashable, list[int]] = {}
    for row in sorted(range(len(ids)), key=lambda row: -says[row]):
        members.setdefault(sessions.of[ids[row]], []).append(row)
    newness = sessions.newness()
    raw, values_of = dict[str, float](), dict["Hashable", "dict[str, float]"]()
    for session, rows in members.items():
        best = -np.sort(-table[rows], axis=0)
        values = dict(zip(features, best[0].tolist(), strict=True)) | {"age": newness[session]}
        values |= zip(FEATURES[:2], (best[:_SPEAKERS, :2].sum(axis=0) / _SPEAKERS).tolist(), strict=True)
        values_of[session] = values
        total = math.fsum(weights[name] * value for name, value in values.items())
        raw |= {ids[row]: total * _FURTHER**place for place, row in enumerate(rows)}
    order = best_first(raw)
    top = max(raw[order[0]], _LEAST) if order else 1.0
    earned = _credits_of_arms(whole, order[:explained])
    for node_id in earned:
        session = sessions.of[node_id]
        shown = dict.fromkeys(FEATURES[:2], len(members[session])) | {"age": sessions.ages[session]}
        earned[node_id] += _credits(values_of[session], weights, shown)
    return [Fused(one, raw[one], max(raw[one] / top, _LEAST), tuple(earned.get(one, ()))) for one in order]


def _weighted(rankings: Sequence[Ranking], trust: Mapping[str, float], scaled: Scale) -> dict[str, float]:
    """Return the scaled scores of the arms of one kind, which share by their weights."""
    total = math.fsum(one.weight for one in rankings) or 1.0
    values = dict[str, float]()
    for ranking in rankings:
        ids, scores = in_ranks(ranking)
        share = trust.get(ranking.arm, 1.0) * ranking.weight / total
        for node_id, value in zip(ids, scaled(scores, ranking.compared).tolist(), strict=True):
            values[node_id] = values.get(node_id, 0.0) + share * value
    return values


def _above_the_last(rankings: Sequence[Ranking], trust: Mapping[str, float], unit: float) -> dict[str, float]:
    """Return by how many units the best score of each chunk is above the last one of the same ranking."""
    values = dict[str, float]()
    for ranking in rankings if unit else ():
        ids, scores = in_ranks(ranking)
        last = next(reversed(scores[: ranking.compared]), 0.0)
        for node_id, score in zip(ids, scores, strict=True):
            above = trust.get(ranking.arm, 1.0) * (score - last) / unit
            values[node_id] = max(values.get(node_id, 0.0), above)
    return values


def _credits(values: dict[str, float], weights: Mapping[str, float], shown: Mapping[str, int | None]) -> list[Credit]:
    """Return the credits of a session; some features show a number instead of their value."""
    scores = values | {name: -1.0 if number is None else float(number) for name, number in shown.items()}
    return [Credit(name, 0, 0, scores[name], weights[name] * value) for name, value in values.items() if value]


def _credits_of_arms(rankings: Sequence[Ranking], node_ids: Sequence[str]) -> dict[str, list[Credit]]:
    """Return where chunks stand in rankings for the whole message; what that adds is their session's."""
    places: dict[str, list[Credit]] = {node_id: [] for node_id in node_ids}
    for ranking in rankings:
        for rank, (node_id, score) in enumerate(zip(*in_ranks(ranking), strict=True), start=1):
            if node_id in places:
                places[node_id].append(Credit(ranking.arm, ranking.query, rank, score, 0.0))
    return places
