"""The names and types of settings that are passed on as ``**settings``, so that a type checker sees a misspelt one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import IndexNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.keyword import Analyzer
    from llama_index_contextual.retrievers.neighbours import Reach


class ViewSettings(TypedDict, total=False):
    """What views of one keyword index may differ in."""

    similarity_top_k: int
    filters: MetadataFilters | None


class _Common(TypedDict, total=False):
    """What every LlamaIndex retriever takes."""

    callback_manager: CallbackManager | None
    objects: list[IndexNode] | None
    object_map: dict[str, Any] | None
    verbose: bool


class RetrieverSettings(ViewSettings, _Common, total=False):
    """Settings of a keyword retriever over an index that something else changes."""


class KeywordSettings(RetrieverSettings, total=False):
    """Settings of a keyword retriever whose analyzer is known."""

    k1: float
    b: float


class NewSettings(KeywordSettings, total=False):
    """All settings of a :class:`~llama_index_contextual.ContextualBM25Retriever`."""

    analyzer: Analyzer | None
    language: str | None


class FusionOptions(_Common, total=False):
    """Settings of a :class:`~llama_index_contextual.ContextualFusionRetriever` beside its arms and their top-k."""

    retriever_weights: Sequence[float] | None
    mode: str | None
    rrf_k: float | None
    candidate_pool: int
    num_queries: int
    variants: Literal["keyword", "all"]
    agreement_boost: float
    node_postprocessors: Sequence[BaseNodePostprocessor]
    arm_timeout: float | None
    on_arm_failure: Literal["warn", "raise"]
    expand: Reach
    min_score: float | Literal["auto"]
    llm: str | LLM | None
    query_gen_prompt: str | None
    use_async: bool
