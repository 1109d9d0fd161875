"""A postprocessor that weighs scores by age."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from operator import itemgetter
from typing import Annotated, Any, Final

from llama_index.core.bridge.pydantic import Field, PlainSerializer
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_contextual.postprocessors.hits import checked_hits
from llama_index_contextual.utils.errors import Checked
from llama_index_contextual.utils.metadata import DATE, date_of, is_evergreen, path_of

_SECONDS_PER_DAY: Final = 86_400.0
_LEAST_SPREAD: Final = 0.5  # of best score and baseline, as a share of the best


def decay(age_days: float, half_life_days: float) -> float:
    """Return a factor that halves every ``half_life_days``: 1 for today and the future."""
    return float(0.5 ** (max(0.0, age_days) / half_life_days))


def age_in_days(when: date | datetime, now: datetime) -> float:
    """Return the days from ``when`` to ``now``, negative in the future.

    A date without a time counts whole calendar days in the zone of ``now``, so that today's note is
    0 days old all day long. A naive time is read in the zone of ``now``.
    """
    if isinstance(when, datetime):
        aware = when if when.tzinfo else when.replace(tzinfo=now.tzinfo)
        return (now - aware).total_seconds() / _SECONDS_PER_DAY
    return float((now.date() - when).days)


def apply_multipliers(scores: Sequence[float], multipliers: Sequence[float]) -> list[float]:
    """Multiply what each score has above a baseline; a multiplier of 1 leaves its score as it is.

    Plain products fail twice: a reranker's logits are negative, and raw RRF scores are so flat (at
    k = 60) that a factor of 0.5 moves rank 1 to rank 63. So the baseline is the lowest score, but
    at least half of the best score's size below the best: otherwise the lower of two nearly equal
    scores would be its own baseline and could never win.

    Args:
        scores: Of the pool.
        multipliers: One per score.
    """
    best = max(scores, default=0.0)
    lowest = min(scores, default=0.0)
    baseline = best - max(best - lowest, _LEAST_SPREAD * abs(best))
    weighed = []
    for score, multiplier in zip(scores, multipliers, strict=True):
        lost = (score - baseline) * (1 - multiplier)
        weighed.append(score - lost)
    return weighed


class RecencyPostprocessor(Checked, BaseNodePostprocessor):
    """Weigh scores by age: ``0.5 ** (age / half_life_days)`` on dated nodes.

    Undated nodes and those of ``evergreen`` files keep their scores. ``weight`` says how much of
    the factor counts. By default it is enough for the newer of two nearly equal hits to win.

    Give it the whole candidate pool, before the cut to top-k: what was cut cannot come back. The
    date is ``metadata[date_key]``, else ``date_ts``, else the innermost dated heading of
    ``header_path``, else one in the path (see `metadata.date_of`). Nodes come out best first (ties:
    the newer one, then by id) as new ``NodeWithScore`` objects; the input stays as it was.
    ``FixedRecencyPostprocessor`` of LlamaIndex orders by date alone.

    Args:
        half_life_days: Days after which the decay factor is one half.
        weight: How much of the factor counts, 0 to 1.
        evergreen: Globs of paths, matched from the right, that never age.
        date_key: The metadata key that holds a node's date.
        top_k: Return at most this many nodes; None returns all.
        now: The present, or a day, which means its midnight; None is the clock.
        callback_manager: LlamaIndex's callback manager.
        **fields: The fields of a subclass.

    Raises:
        SettingError: A setting is unknown or cannot work.

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
    # benchmarks/results/memory.md: 0.1 costs 0.1 points of recall@4, 1 costs 34
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

    def aged(self, nodes: Sequence[NodeWithScore]) -> list[tuple[float, float | None]]:
        """Return score and age in days of every node.

        The age is None without a date or if evergreen.
        """
        now = self.now or datetime.now().astimezone()
        if now.tzinfo is None:
            now = now.astimezone()
        ages = [self._age(hit.node.metadata, now) for hit in nodes]
        multipliers = []
        for age in ages:
            lost_share = 1.0 - decay(age or 0.0, self.half_life_days)
            multipliers.append(1.0 - self.weight * lost_share)
        scores = apply_multipliers(_finite_scores(nodes), multipliers)
        return list(zip(scores, ages, strict=True))

    def _age(self, metadata: Mapping[str, Any], now: datetime) -> float | None:
        """Return the age of a node in days; None without a date or if evergreen."""
        if is_evergreen(path_of(metadata), self.evergreen):
            return None
        when = date_of(metadata, self.date_key)
        return None if when is None else age_in_days(when, now)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], _: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        nodes = checked_hits(nodes)
        ranked = []
        for hit, (score, age) in zip(nodes, self.aged(nodes), strict=True):
            order = (-score, age or 0.0, hit.node.node_id)
            ranked.append((order, NodeWithScore(node=hit.node, score=score)))
        ranked.sort(key=itemgetter(0))
        return [hit for _, hit in ranked[: self.top_k]]


def _finite_scores(nodes: Sequence[NodeWithScore]) -> list[float]:
    """Return scores as numbers; a missing or infinite one is the pool's lowest, or 0."""
    scores = [math.nan if hit.score is None else float(hit.score) for hit in nodes]
    lowest = min(filter(math.isfinite, scores), default=0.0)
    return [score if math.isfinite(score) else lowest for score in scores]
