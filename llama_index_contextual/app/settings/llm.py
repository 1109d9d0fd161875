"""Names of rerankers, as LlamaIndex's postprocessors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from llama_index.core import Settings

from llama_index_contextual.app.settings.models import resolve_llm
from llama_index_contextual.context.models import require_key
from llama_index_contextual.errors import ContextualError, SettingError
from llama_index_contextual.retrieval import FastEmbedReranker, RerankWithContext
from llama_index_contextual.service import TIMEOUT

if TYPE_CHECKING:
    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor

RERANKERS: Final = "'fastembed:MODEL', 'llm', 'ollama:MODEL', 'openai:MODEL', or any LlamaIndex postprocessor"
_CHOICE: Final = re.compile(r"Doc(?:ument)?\s*:?\s*(\d+)\s*,?\s*Relevance\s*:?\s*(\d+(?:\.\d+)?)", re.IGNORECASE)
_READ_BY_LLM: Final = 30  # hits, ten a call
_RANKING_TOKENS: Final = 200  # for a line on each of ten; a small model does not end by itself


def resolve_reranker(
    spec: str | BaseNodePostprocessor, pool: int, llm: str | LLM | None = None, timeout: float = TIMEOUT
) -> BaseNodePostprocessor:
    """A reranker by name, or an object so that it reads contexts.

    Args:
        spec: One of ``RERANKERS``.
        pool: How many hits it is given. It returns all of them.
        llm: The language model of ``"llm"``, as a name or an object. Default: LlamaIndex's ``Settings.llm``.
        timeout: Seconds of silence, after which a server is given up.

    Raises:
        SettingError: There is no such form, the key is missing, or the model cannot be loaded.
        MissingExtraError: fastembed is not installed.
    """
    from llama_index.core.postprocessor import LLMRerank, StructuredLLMRerank
    from llama_index.core.postprocessor.rankGPT_rerank import RankGPTRerank

    if not isinstance(spec, str):
        hides_contexts = isinstance(spec, LLMRerank | StructuredLLMRerank | RankGPTRerank)
        return RerankWithContext(spec) if hides_contexts else spec
    kind, _, model = spec.partition(":")
    if kind == "fastembed" and model:
        try:
            return FastEmbedReranker(model)
        except ContextualError:
            raise
        except Exception as error:  # the hub's, the file system's, onnxruntime's own
            cure = "Cure: the name of a cross-encoder that fastembed knows, and a network the first time."
            raise SettingError(f"cannot be loaded ({type(error).__name__}: {error}). {cure}", rerank=spec) from error
    if spec != "llm" and not (kind in ("ollama", "openai") and model):
        raise SettingError(f"names no reranker. Cure: {RERANKERS}", rerank=spec)
    chosen = llm if spec == "llm" else spec
    if chosen is None and Settings._llm is None:  # noqa: SLF001  Settings.llm would insist on an OpenAI key
        raise SettingError(
            "needs a language model. Cure: name one, as 'ollama:MODEL', or [context_options] llm in contextual.toml, "
            "or set LlamaIndex's Settings.llm.",
            rerank="llm",
        )
    ranking_llm = resolve_llm(chosen, max_tokens=_RANKING_TOKENS, timeout=timeout)
    if isinstance(chosen, str):
        require_key(ranking_llm, "nothing can be reranked")
    ranks = LLMRerank(llm=ranking_llm, top_n=pool, parse_choice_select_answer_fn=_choices_of)
    return RerankWithContext(ranks, most=_READ_BY_LLM)


def _choices_of(answer: str, count: int) -> tuple[list[int], list[float]]:
    """The documents and relevances of "Doc: 3, Relevance: 7" lines; no document counts twice."""
    relevances: dict[int, float] = {}
    for number, relevance in _CHOICE.findall(answer):
        if 1 <= int(number) <= count:
            relevances.setdefault(int(number), float(relevance))
    return list(relevances), list(relevances.values())
