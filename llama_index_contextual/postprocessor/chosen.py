"""From the settings of a search to its postprocessors: recency, a reranker, few hits of each file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index_contextual.errors import MissingExtraError, SettingError
from llama_index_contextual.postprocessor.grouping import GroupingPostprocessor
from llama_index_contextual.postprocessor.recency import RecencyPostprocessor

if TYPE_CHECKING:
    from llama_index.core.postprocessor.types import BaseNodePostprocessor

    from llama_index_contextual.config import Retrieval


def chosen_postprocessors(
    retrieval: Retrieval, recency: bool | float | None = None, *, pool: int
) -> list[BaseNodePostprocessor]:
    """Return the postprocessors that some settings ask for, in the order in which they work.

    Args:
        retrieval: The settings of a search.
        recency: Whether newer notes win among near equals; a number is the half-life in days. None is what the settings
            say.
        pool: How many hits the postprocessors are given. A reranker returns all of them.

    Raises:
        SettingError: A reranker has no such form.
        MissingExtraError: The package that serves it is not installed.
    """
    found: list[BaseNodePostprocessor] = []
    wanted = retrieval.recency if recency is None else recency
    if wanted is not None and wanted is not False:
        days = retrieval.half_life_days if wanted is True else wanted
        found.append(RecencyPostprocessor(**({} if days is None else {"half_life_days": days})))
    if retrieval.rerank is not None:
        found.append(_reranker(retrieval.rerank, pool))
    if retrieval.per_file is not None:
        found.append(GroupingPostprocessor(group_size=retrieval.per_file))
    return found


def _reranker(spec: str, pool: int) -> BaseNodePostprocessor:
    kind, _, model = spec.partition(":")
    made: Any
    if kind == "huggingface" and model:
        from llama_index.core.postprocessor import SentenceTransformerRerank

        try:
            made = SentenceTransformerRerank(model=model, top_n=pool)
        except ImportError as error:
            raise MissingExtraError("sentence-transformers", "huggingface") from error
    elif kind in ("ollama", "openai") and model:
        from llama_index.core.postprocessor import LLMRerank

        from llama_index_contextual.context import LLMContextGenerator

        made = LLMRerank(llm=LLMContextGenerator(spec, cache=False).llm, top_n=pool)
    else:
        raise SettingError(
            f"rerank={spec!r} names no reranker. Cure: 'huggingface:MODEL', 'ollama:MODEL' or 'openai:MODEL'"
        )
    return made  # type: ignore[no-any-return]
