"""The data of an answer: settings of a retriever, a question, its parsed form, and the pool of candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llama_index_contextual.retrieval.sessions import HALF_LIFE_DAYS

if TYPE_CHECKING:
    from datetime import date

    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import BaseNode, QueryBundle

    from llama_index_contextual.retrieval.arms import Arm
    from llama_index_contextual.retrieval.fusion import Fused, Mode
    from llama_index_contextual.retrieval.relevance import Judgement, MinScore


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """How a fusion retriever answers; see :class:`~llama_index_contextual.ContextualFusionRetriever`."""

    arms: tuple[Arm, ...]
    mode: Mode
    rrf_k: float
    similarity_top_k: int
    candidate_pool: int
    node_postprocessors: Sequence[BaseNodePostprocessor] = ()
    min_score: MinScore = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, with settings of memory beyond LlamaIndex's interface.

    Args:
        queries: The question, then its variants.
        is_explained: Whether reasons are collected, which takes as long as the fusion.
        subject: What a relevant hit holds of the question; "" for all of it.
        today: From which "last week" and the ages of a message's sessions count; None for the present day.
        half_life_days: After so many days a message's session counts half as new.
        ageless: Globs of paths whose sessions have no age.
        compares_all: Whether the scores of filtered chunks are those that they have among all chunks.
    """

    queries: tuple[QueryBundle, ...]
    is_explained: bool = False
    subject: str = ""
    today: date | None = None
    half_life_days: float = HALF_LIFE_DAYS
    ageless: Sequence[str] = ()
    compares_all: bool = True


@dataclass(frozen=True, slots=True)
class ParsedQuestion:
    """The queries of a question without their operators.

    Args:
        queries: The question, its variants, and in the mode for messages its sentences.
        arms: The arms, which evaluate the operators where they can.
        operators: The operators that are obeyed.
        admitted: Ids of the nodes that satisfy the operators; None for all.
        notes: Operators that are ignored.
    """

    queries: tuple[QueryBundle, ...]
    arms: tuple[Arm, ...]
    operators: tuple[str, ...] = ()
    admitted: frozenset[str] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """All that the arms propose and that is relevant enough.

    Args:
        judgement: How likely the index answers the question.
        fused: Best first.
        nodes: Those that the arms brought.
        left_out: How many candidates are not relevant enough.
        notes: What was degraded or left out.
    """

    judgement: Judgement
    fused: Sequence[Fused] = ()
    nodes: Mapping[str, BaseNode] = field(default_factory=dict)
    left_out: int = 0
    notes: tuple[str, ...] = ()
