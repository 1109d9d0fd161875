"""Fuse ranked lists: pure functions on ids and scores, which add ranks or scores as LlamaIndex's modes do."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from llama_index_contextual.keyword import Candidate


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
    """Return the credit of each document of a ranking."""
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
