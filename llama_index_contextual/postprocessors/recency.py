"""A postprocessor that weighs scores by age."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

from llama_index.core.bridge.pydantic import Field, PlainSerializer
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_contextual.postprocessors.hits import checked_hits
from llama_index_contextual.utils.errors import Checked
from llama_index_contextual.utils.metadata import DATE, date_of, is_evergreen, path_of

_SECONDS_PER_DAY = 86_400.0
_MIN_SPREAD = 0.5  # between the best score and the baseline, as a share of the best


def decay(age_days: float, half_life_days: float) -> float:
    """Return a factor that halves every ``half_life_days``. It is 1 for today and the future."""
    return float(0.5 ** (max(0.0, age_days) / half_life_days))


def age_in_days(when: date | datetime, now: datetime) -> float:
    """Return the number of days from ``when`` to ``now``, negative for the future.

    The age of a date without a time is in whole calendar days in the time zone of ``now``, so that
    today's note is 0 days old all day. A naive time is read in the time zone of ``now``.
    """
    if isinstance(when, datetime):
        aware = when if when.tzinfo else when.replace(tzinfo=now.tzinfo)
        return (now - aware).total_seconds() / _SECONDS_PER_DAY
    return float((now.date() - when).days)


def apply_multipliers(scores: Sequence[float], multipliers: Sequence[float]) -> list[float]:
    """Multiply the part of each score that is above a baseline.

    A plain product fails in two cases: the logits of a reranker can be negative, and raw RRF scores
    (k = 60) are so close together that a factor of 0.5 moves rank 1 to rank 63. The baseline is the
    lowest score, but at most ``best - 0.5 * abs(best)``. Otherwise the lower of two nearly equal
    scores would be the baseline and could never win.

    Args:
        scores: The scores of the whole pool.
        multipliers: The multiplier of each score. 1 leaves the score unchanged.
    """
    best = max(scores, default=0.0)
    lowest = min(scores, default=0.0)
    baseline = best - max(best - lowest, _MIN_SPREAD * abs(best))
    weighted = []
    for score, multiplier in zip(scores, multipliers, strict=True):
        loss = (score - baseline) * (1 - multiplier)
        weighted.append(score - loss)
    return weighted


class AgedScore(NamedTuple):
    """The score of a node, reduced by its age.

    Attributes:
        score: The new score.
        age_days: The age in days. None means that the node is undated or evergreen.
    """

    score: float
    age_days: float | None


class RecencyPostprocessor(Checked, BaseNodePostprocessor):
    """Weight scores by age, with the factor ``0.5 ** (age / half_life_days)`` for dated nodes.

    Undated nodes and nodes of ``evergreen`` files keep their scores. ``weight`` limits the effect
    of the factor. With the default, the newer of two nearly equal hits wins.

    Pass the whole candidate pool before it is cut to top-k, because a node that was cut cannot
    return. The date is ``metadata[date_key]``, else ``date_ts``, else the innermost dated heading
    of ``header_path``, else a date in the path (see `metadata.date_of`). The result is a list of
    new ``NodeWithScore`` objects, best first. Ties are broken by date (newest first), then by id.
    LlamaIndex's ``FixedRecencyPostprocessor`` sorts by date alone.

    Args:
        half_life_days: The age in days at which the factor is one half.
        weight: The share of a score that is multiplied by the factor, 0 to 1.
        evergreen: Glob patterns of paths that never age, matched from the right.
        date_key: The metadata key of a node's date.
        top_k: The largest number of nodes to return. None returns all.
        now: The present time. A date means midnight of that day. None uses the clock.
        callback_manager: LlamaIndex's callback manager.
        **fields: Fields of a subclass.

    Raises:
        SettingError: A setting is unknown or invalid.

    Examples:
        >>> from llama_index.core.schema import NodeWithScore, TextNode
        >>> old = TextNode(id_="old", text="Tea at 4.", metadata={"path": "2026-01-09.md"})
        >>> new = TextNode(id_="new", text="Tea at 5.", metadata={"path": "2026-04-09.md"})
        >>> recency = RecencyPostprocessor(now=date(2026, 4, 10))
        >>> pool = [NodeWithScore(node=old, score=0.52), NodeWithScore(node=new, score=0.50)]
        >>> [hit.node.node_id for hit in recency.postprocess_nodes(pool)]
        ['new', 'old']
    """

    half_life_days: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    # A weight of 0.1 costs 0.1 points of recall@4, 1 costs 34 (benchmarks/results/memory.md).
    weight: float = Field(default=0.1, ge=0, le=1)
    evergreen: tuple[str, ...] = ("MEMORY.md",)
    date_key: str = DATE
    top_k: int | None = Field(default=None, ge=1)
    now: Annotated[datetime, PlainSerializer(datetime.isoformat)] | None = None

    def __init__(
        self,
        half_life_days: float = 30.0,
        weight: float = 0.1,
        *,
        evergreen: Iterable[str] = ("MEMORY.md",),
        date_key: str = DATE,
        top_k: int | None = None,
        now: datetime | date | None = None,
        callback_manager: CallbackManager | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(
            half_life_days=half_life_days,
            weight=weight,
            evergreen=evergreen,
            date_key=date_key,
            top_k=top_k,
            now=now,
            callback_manager=callback_manager or CallbackManager([]),
            **fields,
        )

    def aged_scores(self, nodes: Sequence[NodeWithScore]) -> list[AgedScore]:
        """Return the new score and the age of each node, in the order of the nodes."""
        now = self.now or datetime.now().astimezone()
        if now.tzinfo is None:
            now = now.astimezone()
        ages = [self._age(hit.node.metadata, now) for hit in nodes]
        multipliers = []
        for age in ages:
            lost_share = 1.0 - decay(age or 0.0, self.half_life_days)
            multipliers.append(1.0 - self.weight * lost_share)
        scores = apply_multipliers(_finite_scores(nodes), multipliers)
        return list(map(AgedScore, scores, ages))

    def _age(self, metadata: Mapping[str, Any], now: datetime) -> float | None:
        """Return the age of a node in days. None means that it is undated or evergreen."""
        if is_evergreen(path_of(metadata), self.evergreen):
            return None
        when = date_of(metadata, self.date_key)
        return None if when is None else age_in_days(when, now)

    def _postprocess_nodes(
        self,
        nodes: list[NodeWithScore],
        _: QueryBundle | None = None,
    ) -> list[NodeWithScore]:
        nodes = checked_hits(nodes)
        ranked = []
        for hit, aged in zip(nodes, self.aged_scores(nodes), strict=True):
            order = (-aged.score, aged.age_days or 0.0, hit.node.node_id)
            ranked.append((order, NodeWithScore(node=hit.node, score=aged.score)))
        ranked.sort(key=itemgetter(0))
        return [hit for _, hit in ranked[: self.top_k]]


def _finite_scores(nodes: Sequence[NodeWithScore]) -> list[float]:
    """Return the scores, with the lowest finite score (else 0) in place of missing or infinite."""
    scores = [math.nan if hit.score is None else float(hit.score) for hit in nodes]
    lowest = min(filter(math.isfinite, scores), default=0.0)
    return [score if math.isfinite(score) else lowest for score in scores]
