"""Names of language models and of rerankers, as LlamaIndex's LLMs and postprocessors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import httpx
from llama_index.core import Settings
from llama_index.core.llms import LLM

from llama_index_contextual.context.models import DEFAULT_WINDOW, require_key
from llama_index_contextual.errors import ContextualError, MissingExtraError, SettingError, needs, without_credentials
from llama_index_contextual.retrieval.rerank import (
    FastEmbedReranker,
    RerankWithContext,
    ServiceReranker,
    key_of,
    read_choices,
)
from llama_index_contextual.service import TIMEOUT, client_options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from llama_index.core.postprocessor.types import BaseNodePostprocessor

DEFAULT_MODEL: Final = "ollama:qwen3:0.6b"
CREDENTIALS: Final = "LLAMA_INDEX_CONTEXTUAL_LLM_CREDENTIALS"  # user:password, for a server given by its URL
OLLAMA_URL: Final = "http://localhost:11434"
_PATIENCE: Final = 3600.0  # seconds: each request for contexts has a shorter limit, by its length
RERANKERS: Final = (
    "'cohere:MODEL', 'jina:MODEL', 'llama.cpp:http://HOST', 'fastembed:MODEL', 'sentence-transformers:MODEL', 'llm', "
    "'ollama:MODEL', 'openai:MODEL', or any LlamaIndex postprocessor"
)
_RERANK_KEYS: Final = {"cohere": ("CO_API_KEY", "COHERE_API_KEY"), "jina": ("JINA_API_KEY",)}  # the first that is set
_RERANK_URLS: Final = {"cohere": "https://api.cohere.com/v2", "jina": "https://api.jina.ai/v1"}
_READ_BY_LLM: Final = 30  # hits, ten a call
_RANKING_TOKENS: Final = 200  # for a line on each of ten; a small model does not end by itself
_OLLAMA_WINDOW: Final = 16384  # Ollama reserves memory for all of it, and qwen3's own 40,960 is gigabytes


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A language model by name; a call makes the LLM. Its client does not try again by itself: the callers do that.

    Attributes:
        spec: Such as ``"openai:MODEL@http://127.0.0.1:8080/v1"``.
        max_tokens: Tokens of an answer at most.
        timeout: Seconds of silence, after which the server is given up.
        window: Tokens that the model takes.
        api_key: By default the provider's environment variable.

    Raises:
        SettingError: The name is none of a model, or OpenAI has no such model.
        MissingExtraError: On a call: the integration is not installed.
    """

    spec: str
    max_tokens: int
    timeout: float = TIMEOUT
    window: int | None = None
    api_key: str | None = None

    def __post_init__(self) -> None:
        self.parts  # noqa: B018  raises now and not in the middle of a run

    @property
    def parts(self) -> tuple[str, str, str]:
        """Provider, model and address ("" for the provider's own)."""
        provider, _, rest = self.spec.partition(":")
        model, _, url = rest.partition("@http")
        if provider not in ("ollama", "openai") or not model:
            raise SettingError(
                "names no model. Cure: 'ollama:MODEL', 'openai:MODEL', 'openai:MODEL@http://HOST/v1', or any "
                "LlamaIndex LLM object.",
                llm=without_credentials(self.spec),
            )
        return provider, model, f"http{url}" if url else ""

    @property
    def model_name(self) -> str:
        """The model's name without provider and address."""
        return self.parts[1]

    def __repr__(self) -> str:
        return f"NamedModel({without_credentials(self.spec)!r})"

    def __call__(self) -> LLM:
        """The LLM."""
        provider, model, url = self.parts
        options: dict[str, Any] = {"model": model, "temperature": 0.0}
        if provider == "ollama":
            host = _with_credentials(url) if url else OLLAMA_URL
            integration, clients = _module("llama_index.llms.ollama"), _module("ollama")
            llm: LLM = integration.Ollama(
                **options,
                base_url=host,
                context_window=self.window or _OLLAMA_WINDOW,
                request_timeout=self.timeout,
                thinking=False,  # two sentences need no thoughts, which a small model does not end
                additional_kwargs={"num_predict": self.max_tokens},
                client=clients.Client(host, **client_options(self.timeout)),
                async_client=clients.AsyncClient(host, **client_options(self.timeout, is_async=True)),
            )
            return llm
        options |= {"max_retries": 0, "timeout": self.timeout, "api_key": self.api_key}
        options["http_client"] = httpx.Client(**client_options(self.timeout))
        options["async_http_client"] = httpx.AsyncClient(**client_options(self.timeout, is_async=True))
        if url:
            options["api_key"] = self.api_key or "none"  # the client insists on one
            like: LLM = _module("llama_index.llms.openai_like").OpenAILike(
                **options,
                api_base=_with_credentials(url),
                is_chat_model=True,
                context_window=self.window or DEFAULT_WINDOW,
                max_tokens=self.max_tokens,
            )
            return like
        openai: LLM = _module("llama_index.llms.openai").OpenAI(**options)
        try:
            openai.metadata  # noqa: B018  looks the model up
        except ValueError as error:
            raise SettingError(
                f"llm='openai:{model}': OpenAI's integration does not know this model. "
                f"Cure: for another server say 'openai:{model}@http://HOST/v1'."
            ) from error
        return openai


def resolve_llm(llm: str | LLM | None, *, max_tokens: int, timeout: float = TIMEOUT) -> LLM:
    """The model of a setting: by name, an object, LlamaIndex's ``Settings.llm`` where that has been set, the default.

    Args:
        llm: A name, an LLM, or None.
        max_tokens: Tokens of an answer at most, for a model by name.
        timeout: Seconds of silence, after which its server is given up.

    Raises:
        SettingError: The name is none of a model.
    """
    chosen = llm or Settings._llm or DEFAULT_MODEL  # noqa: SLF001  Settings.llm would insist on an OpenAI key
    return chosen if isinstance(chosen, LLM) else NamedModel(chosen, max_tokens, timeout)()


def named_model(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of contexts from a language model, with an object in place of a model's name and of a key."""
    options = dict(options)
    llm, key = options.get("llm"), options.pop("api_key", None)
    if llm is None and Settings._llm is None:  # noqa: SLF001  Settings.llm would insist on an OpenAI key
        llm = DEFAULT_MODEL
    if isinstance(llm, str):
        most = options.get("max_output_tokens", 100) * options.get("batch_size", 8)
        options["llm"] = NamedModel(llm, most, _PATIENCE, options.get("context_window"), key)
    return options


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


def _module(name: str) -> ModuleType:
    """A module of LlamaIndex's integrations, or of their clients."""
    with needs(name.replace("llama_index.llms.", "llama-index-llms-").replace("_", "-"), "llm"):
        return import_module(name)


def _with_credentials(url: str) -> str:
    """A URL with the user and password of the environment, where it has none of its own."""
    login = os.environ.get(CREDENTIALS)
    return url if not login or without_credentials(url) != url else url.replace("://", f"://{login}@", 1)
