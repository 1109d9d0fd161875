"""From the settings of a search to its postprocessors: recency, a reranker, few hits of each file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from llama_index_contextual.postprocessor.grouping import GroupingPostprocessor
from llama_index_contextual.postprocessor.recency import RecencyPostprocessor
from llama_index_contextual.postprocessor.rerank import reranker

if TYPE_CHECKING:
    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor

    from llama_index_contextual.config import Retrieval


def chosen_postprocessors(
    retrieval: Retrieval,
    recency: bool | float | None = None,
    rerank: str | BaseNodePostprocessor | Literal[False] | None = None,
    *,
    pool: int,
    llm: str | LLM | None = None,
) -> list[BaseNodePostprocessor]:
    """Return the postprocessors that some settings ask for, in the order in which they work.

    Args:
        retrieval: The settings of a search.
        recency: Whether newer notes win among near equals; a number is the half-life in days. None is what the settings
            say.
        rerank: A reranker by name or any postprocessor. False is none; None is what the settings say.
        pool: How many hits the postprocessors are given. A reranker returns all of them.
        llm: The language model that the reranker ``"llm"`` asks.

    Raises:
        SettingError: A reranker has no such form, no key, or a model that cannot be loaded.
        MissingExtraError: The package that serves it is not installed.
    """
    found: list[BaseNodePostprocessor] = []
    wanted = retrieval.recency if recency is None else recency
    if wanted is not None and wanted is not False:
        days = retrieval.half_life_days if wanted is True else wanted
        found.append(RecencyPostprocessor(**({} if days is None else {"half_life_days": days})))
    chosen = retrieval.rerank if rerank is None else rerank
    if isinstance(chosen, str):
        found.append(reranker(chosen, pool, llm))
    elif chosen:
        found.append(chosen)
    if retrieval.per_file is not None:
        found.append(GroupingPostprocessor(group_size=retrieval.per_file))
    return found
