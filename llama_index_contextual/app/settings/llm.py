"""Names of rerankers, as LlamaIndex's postprocessors."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from llama_index.core import Settings
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from llama_index_contextual.app.settings.models import resolve_llm
from llama_index_contextual.context.models import require_key
from llama_index_contextual.errors import Checked, ContextualError, SettingError, needs
from llama_index_contextual.retrieval import RerankWithContext
from llama_index_contextual.service import TIMEOUT
from llama_index_contextual.text import replace_surrogates

if TYPE_CHECKING:
    from llama_index.core.llms import LLM

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


class FastEmbedReranker(Checked, BaseNodePostprocessor):
    """A cross-encoder on this machine, run by fastembed (ONNX, no PyTorch); it reads each hit as it was embedded."""

    model: str = Field(description="One of fastembed's cross-encoders.")
    _encoder: Any = PrivateAttr()

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model=model)
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime's import would look for its maker's server
        with needs("fastembed", "rerank"):
            from fastembed.rerank.cross_encoder import TextCrossEncoder
        self._encoder = TextCrossEncoder(model_name=model, **options)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise SettingError("FastEmbedReranker needs the query. Cure: postprocess_nodes(nodes, query_str=…)")
        texts = [hit.node.get_content(metadata_mode=MetadataMode.EMBED) for hit in nodes]
        query, *texts = [replace_surrogates(text)[0] for text in (query_bundle.query_str, *texts)]
        scores = map(float, self._encoder.rerank(query, texts) if texts else ())
        scored = [NodeWithScore(node=hit.node, score=score) for hit, score in zip(nodes, scores, strict=True)]
        return sorted(scored, key=lambda hit: -(hit.score or 0.0))


def _choices_of(answer: str, count: int) -> tuple[list[int], list[float]]:
    """The documents and relevances of "Doc: 3, Relevance: 7" lines; no document counts twice."""
    relevances: dict[int, float] = {}
    for number, relevance in _CHOICE.findall(answer):
        if 1 <= int(number) <= count:
            relevances.setdefault(int(number), float(relevance))
    return list(relevances), list(relevances.values())
