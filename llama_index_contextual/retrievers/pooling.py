"""From the arms' answers to one pool: which failed, how the others are weighted, what they propose."""

from __future__ import annotations

import asyncio
import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

from llama_index_contextual.errors import ContextualWarning, RetrievalError, StorageError
from llama_index_contextual.retrievers.explain import Step
from llama_index_contextual.retrievers.fusion import Fused, Ranking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.postprocessor.types import BaseNodePostprocessor

    from llama_index_contextual.retrievers.arms import Answer, Question

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pool:
    """What the arms proposed, fused: everything before postprocessors and the cut.

    Args:
        queries: The original, then its variants.
        fused: Best first.
        given: Nodes that arms handed over with their answer.
        warnings: What was degraded.
    """

    queries: tuple[QueryBundle, ...]
    fused: tuple[Fused, ...]
    given: dict[str, BaseNode]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """An answer and where it came from."""

    nodes: list[NodeWithScore]
    pool: Pool
    steps: dict[str, list[Step]]


def rank_answers(
    questions: Sequence[Question], answers: Sequence[Answer], names: Sequence[str], weights: Sequence[float], size: int
) -> list[Ranking]:
    """Rankings of the arms that answered; their weights sum to 1 again where others failed."""
    good = [(q, a) for q, a in zip(questions, answers, strict=True) if not isinstance(a, Exception)]
    asked = [question.arm for question, _ in good]
    present = sum(weights[arm] for arm in set(asked)) or 1.0
    return [
        # An arm's weight is shared by its queries, so that variants do not make it more important.
        Ranking(names[q.arm], q.query, weights[q.arm] / present / asked.count(q.arm), answer[:size])
        for q, answer in good
    ]


def report_failures(
    questions: Sequence[Question],
    answers: Sequence[Answer],
    names: Sequence[str],
    *,
    timeout: float | None,
    strict: bool,
) -> tuple[str, ...]:
    """Warn of arms that failed or were late, and say so.

    Raises:
        StorageError: All failed alike on what is stored: that error names the cure.
        RetrievalError: All failed otherwise, or one did and ``strict`` is set.
    """
    failed = [(q, a) for q, a in zip(questions, answers, strict=True) if isinstance(a, Exception)]
    if not failed:
        return ()
    notes = tuple(dict.fromkeys(f"arm {names[q.arm]!r} {_reason(a, timeout)}" for q, a in failed))
    first = next(error for _, error in failed)
    if len(failed) == len(questions):
        if isinstance(first, StorageError) and len({str(error) for _, error in failed}) == 1:
            raise first
        raise RetrievalError(f"No retrieval arm could answer: {'; '.join(notes)}") from first
    if strict:
        raise RetrievalError(f"{'; '.join(notes)}. Cure: on_arm_failure='warn' answers from the other arms.") from first
    for note in notes:
        message = f"Retrieval degraded: {note}; the other arms answered."
        logger.warning(message)
        warnings.warn(message, ContextualWarning, stacklevel=2)
    return notes


def _reason(error: Exception, timeout: float | None) -> str:
    # concurrent.futures and asyncio have TimeoutErrors of their own on Python 3.10.
    late = isinstance(error, (TimeoutError, asyncio.TimeoutError)) or type(error).__name__ == "TimeoutError"
    return f"took longer than {timeout:g} s" if late and timeout else f"failed: {type(error).__name__}: {error}"


def own_copy(query: QueryBundle) -> QueryBundle:
    """A copy for one arm: LlamaIndex's retrievers write the embedding into the bundle that they are given."""
    return QueryBundle(
        query.query_str,
        image_path=query.image_path,
        custom_embedding_strs=query.custom_embedding_strs,
        embedding=query.embedding,
    )


def as_bundles(queries: Sequence[str | QueryBundle]) -> list[QueryBundle]:
    """Bundles of distinct queries, in order."""
    bundles = [query if isinstance(query, QueryBundle) else QueryBundle(query) for query in queries]
    unique = {bundle.query_str: bundle for bundle in reversed(bundles)}
    return [unique.pop(bundle.query_str) for bundle in bundles if bundle.query_str in unique]


def scores_of(found: Sequence[NodeWithScore]) -> dict[str, float]:
    """Score by node id, 0 for none."""
    return {one.node.node_id: one.score or 0.0 for one in found}


def in_order(found: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    """Best first. Stable, so a postprocessor that reorders without scores keeps its order."""
    if any(one.score is None for one in found):
        return list(found)
    return sorted(found, key=lambda one: -(one.score or 0.0))


def note_steps(
    steps: dict[str, list[Step]],
    postprocessor: BaseNodePostprocessor,
    before: dict[str, float],
    found: Sequence[NodeWithScore],
) -> None:
    """Write down what a postprocessor did to each score."""
    for one in found:
        old = before.get(one.node.node_id, 0.0)
        steps.setdefault(one.node.node_id, []).append(Step(postprocessor.class_name(), old, one.score or 0.0))
