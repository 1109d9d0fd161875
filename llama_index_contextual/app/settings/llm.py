"""Names of rerankers, as LlamaIndex's postprocessors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from llama_index.core import Settings

from llama_index_contextual.app.settings.models import resolve_llm
from llama_index_contextual.context.models import require_key
from llama_index_contextual.errors import ContextualError, MissingExtraError, SettingError
from llama_index_contextual.retrieval.rerank import (
    FastEmbedReranker,
    RerankWithContext,
    ServiceReranker,
    key_of,
    read_choices,
)
from llama_index_contextual.service import TIMEOUT

if TYPE_CHECKING:
    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor

RERANKERS: Final = (
    "'cohere:MODEL', 'jina:MODEL', 'llama.cpp:http://HOST', 'fastembed:MODEL', 'sentence-transformers:MODEL', 'llm', "
    "'ollama:MODEL', 'openai:MODEL', or any LlamaIndex postprocessor"
)
_RERANK_KEYS: Final = {"cohere": ("CO_API_KEY", "COHERE_API_KEY"), "jina": ("JINA_API_KEY",)}  # the first that is set
_RERANK_URLS: Final = {"cohere": "https://api.cohere.com/v2", "jina": "https://api.jina.ai/v1"}
_READ_BY_LLM: Final = 30  # hits, ten a call
_RANKING_TOKENS: Final = 200  # for a line on each of ten; a small model does not end by itself


def resolve_reranker(
    spec: str | BaseNodePostprocessor, pool: int, llm: str | LLM | None = None, timeout: float = TIMEOUT
) -> BaseNodePostprocessor:
    """A reranker by name, or an object so that it reads contexts.

    Args:
        spec: One of ``RERANKERS``. ``cohere:`` and ``jina:`` take the address of another server of their kind after
            ``@``: ``"jina:MODEL@http://HOST/v1"``.
        pool: How many hits it is given. It returns all of them.
        llm: The language model of ``"llm"``, as a name or an object. Default: LlamaIndex's ``Settings.llm``.
        timeout: Seconds of silence, after which a server is given up.

    Raises:
        SettingError: There is no such form, the key is missing, or the model cannot be loaded.
        MissingExtraError: The package that runs it is not installed.
    """
    from llama_index.core.postprocessor import LLMRerank, StructuredLLMRerank
    from llama_index.core.postprocessor.rankGPT_rerank import RankGPTRerank

    if not isinstance(spec, str):
        hides_contexts = isinstance(spec, LLMRerank | StructuredLLMRerank | RankGPTRerank)
        return RerankWithContext(spec) if hides_contexts else spec
    kind, _, model = spec.partition(":")
    if kind in _RERANK_URLS and model:
        name, _, url = model.partition("@")
        keys = _RERANK_KEYS[kind]
        if not url and not key_of(keys):
            raise SettingError(f"needs a key. Cure: set the environment variable {keys[0]}.", rerank=f"{kind}:{name}")
        return ServiceReranker(base_url=url or _RERANK_URLS[kind], model=name, key_names=keys, timeout=timeout)
    if kind == "llama.cpp" and model.startswith("http"):
        return ServiceReranker(base_url=f"{model.rstrip('/').removesuffix('/v1')}/v1", timeout=timeout)
    if kind in ("fastembed", "sentence-transformers", "huggingface") and model:
        return _on_this_machine(kind, model, pool)
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
    ranks = LLMRerank(llm=ranking_llm, top_n=pool, parse_choice_select_answer_fn=read_choices)
    return RerankWithContext(ranks, most=_READ_BY_LLM)


def _on_this_machine(kind: str, model: str, pool: int) -> BaseNodePostprocessor:
    try:
        if kind == "fastembed":
            return FastEmbedReranker(model=model)
        from llama_index.core.postprocessor import SentenceTransformerRerank

        return SentenceTransformerRerank(model=model, top_n=pool)
    except ContextualError:
        raise
    except ImportError as error:
        raise MissingExtraError("sentence-transformers", "sentence-transformers") from error
    except Exception as error:  # the hub's, the file system's, onnxruntime's own
        raise SettingError(
            f"cannot be loaded ({type(error).__name__}: {error}). Cure: the name of a cross-encoder that the library "
            "knows, and a network the first time.",
            rerank=f"{kind}:{model}",
        ) from error
