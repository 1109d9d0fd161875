"""A postprocessor that weighs scores by age."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime, timezone
from pathlib import PurePosixPath
from typing import Annotated, Final

from llama_index.core.bridge.pydantic import Field, PlainSerializer
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

from llama_index_contextual.utils.errors import Checked
from llama_index_contextual.utils.metadata import DATE, date_of, path_of

_DAY = 86_400.0
_LEAST_SPREAD: Final = 0.5  # of best score and baseline, as a share of the best


def decay(age_days: float, half_life_days: float) -> float:
    """A factor that halves every ``half_life_days``: 1 for today and the future, 0.25 after two half-lives."""
    return float(0.5 ** (max(0.0, age_days) / half_life_days))


def age_in_days(when: date | datetime, now: datetime) -> float:
    """The days from ``when`` to ``now``, negative in the future.

    A date without a time counts whole calendar days in the zone of ``now``, so today's note is 0 days old all day long.
    A naive time is read in the zone of ``now``.
    """
    if isinstance(when, datetime):
        aware = when if when.tzinfo else when.replace(tzinfo=now.tzinfo)
        return (now - aware).total_seconds() / _DAY
    return float((now.date() - when).days)


def apply_multipliers(
    scores: Sequence[float], multipliers: Sequence[float], *, is_plain: bool = False
) -> list[float]:
    """Multiply what each score has above the pool's baseline; a multiplier of 1 leaves its score as it is.

    Plain products fail twice: a reranker's logits are negative, and raw RRF scores are so flat (at k = 60) that a
    factor of 0.5 moves rank 1 to rank 63. So the baseline is the lowest score. Only, the lower of two near equals
    would then be its own baseline and could never win: so the baseline is at least half of the best score's size below
    the best. Plain products have no baseline, unless a score is negative.
    """
    best, lowest = max(scores, default=0.0), min(scores, default=0.0)
    baseline = (
        0.0 if is_plain and lowest >= 0 else best - max(best - lowest, _LEAST_SPREAD * abs(best))
    )
    pairs = zip(scores, multipliers, strict=True)
    return [
        baseline + (score - baseline) * multiplier if multiplier != 1 else score
        for score, multiplier in pairs
    ]


class RecencyPostprocessor(Checked, BaseNodePostprocessor):
    """Weigh scores by age: ``0.5 ** (age / half_life_days)`` on dated nodes, nothing on undated and evergreen ones.

    ``weight`` says how much of that factor counts. By default it is enough for the newer of near equals to win, and no
    more.

    Give it the whole candidate pool, before the cut to top-k: what was cut already cannot come back. The date is
    ``metadata[date_key]``, else ``date_ts``, else the innermost dated heading of ``header_path``, else one in the path
    (see `metadata.date_of`). Nodes come out best first (ties: the newer one, then by id)
    as new ``NodeWithScore`` objects; the input stays as it was. ``FixedRecencyPostprocessor``, where it may stand,
    orders by date alone.

    Examples:
        >>> from llama_index.core.schema import NodeWithScore, TextNode
        >>> old = TextNode(id_="old", text="Tea is at four.", metadata={"path": "memory/2026-01-09.md"})
        >>> new = TextNode(id_="new", text="Tea is at five.", metadata={"path": "memory/2026-04-09.md"})
        >>> recency = RecencyPostprocessor(now=date(2026, 4, 10))
        >>> pool = [NodeWithScore(node=old, score=0.52), NodeWithScore(node=new, score=0.50)]
        >>> [hit.node.node_id for hit in recency.postprocess_nodes(pool)]
        ['new', 'old']
    """

    half_life_days: float = Field(
        default=30.0,
        gt=0,
        allow_inf_nan=False,
        description="Days after which the decay factor is one half.",
    )
    # benchmarks/results/memory.md: 0.1 costs 0.1 points of recall@4, 1 costs 34
    weight: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="How much of it age may take: 0 nothing; 1 multiplies by the plain factor.",
    )
    evergreen: tuple[str, ...] = Field(
        default=("MEMORY.md",),
        description="Globs of paths, matched from the right, that never age.",
    )
    date_key: str = Field(default=DATE, description="The metadata key that holds a node's date.")
    top_k: int | None = Field(
        default=None, ge=1, description="Return at most this many nodes; None returns all."
    )
    now: Annotated[datetime, PlainSerializer(datetime.isoformat)] | None = Field(
        default=None,
        description="The present, or a day of which it is midnight; None is the clock, in local time.",
    )

    def aged(self, nodes: Sequence[NodeWithScore]) -> list[tuple[float, float | None]]:
        """The score of every node, in their order, and its age in days; None where it has no date or is evergreen."""
        now, scores = self.now or datetime.now(timezone.utc).astimezone(), _finite_scores(nodes)
        now = now if now.tzinfo else now.astimezone()
        dates = [self._date_of(path_of(hit.node.metadata), hit.node) for hit in nodes]
        ages = [None if when is None else age_in_days(when, now) for when in dates]
        factors = [1.0 if age is None else decay(age, self.half_life_days) for age in ages]
        multipliers = [1.0 - self.weight * (1.0 - factor) for factor in factors]
        return [
            *zip(
                apply_multipliers(scores, multipliers, is_plain=self.weight == 1), ages, strict=True
            )
        ]

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], _: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        pairs = zip(self.aged(nodes), nodes, strict=True)
        ordered = sorted(
            pairs, key=lambda pair: (-pair[0][0], pair[0][1] or 0.0, pair[1].node.node_id)
        )
        return [
            NodeWithScore(node=hit.node, score=score) for (score, _), hit in ordered[: self.top_k]
        ]

    def _date_of(self, path: str, node: BaseNode) -> date | datetime | None:
        if path and any(PurePosixPath(path).match(glob) for glob in self.evergreen):
            return None
        return date_of(node.metadata, self.date_key)


def _finite_scores(nodes: Sequence[NodeWithScore]) -> list[float]:
    """Scores as numbers; a missing or infinite one is the pool's lowest, or 0 if no node has one."""
    scores = [
        hit.score if hit.score is not None and math.isfinite(hit.score) else None for hit in nodes
    ]
    lowest = min((score for score in scores if score is not None), default=0.0)
    return [lowest if score is None else float(score) for score in scores]
