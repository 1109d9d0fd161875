"""Embeddings and language models by name, such as ``"ollama:qwen3:0.6b"``.

The plug-in takes objects. Only the application reads names, from options, variables and files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core import Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM

from llama_index_contextual.app.settings.embeddings import NoEmbedding
from llama_index_contextual.app.settings.local import E5Embedding, LocalEmbedding
from llama_index_contextual.app.settings.names import embedding_name, language_model_name
from llama_index_contextual.context.calls import DEFAULT_WINDOW, OUTPUT_TOKENS
from llama_index_contextual.utils.errors import SettingError, needs, without_credentials
from llama_index_contextual.utils.text import short_hash

if TYPE_CHECKING:
    from types import ModuleType

TIMEOUT = 60.0  # seconds without an answer after which a request fails
DEFAULT_MODEL = "ollama:qwen3:0.6b"
OLLAMA_URL = "http://localhost:11434"
UNNAMED = "unknown"  # the default model_name of LlamaIndex's embeddings
# A prompt with a document has about three times the tokens of a usual one, so the answer starts
# after about three times as long.
_LONG_PROMPT = 3
# Ollama reserves memory for the whole window. The 40,960 tokens of qwen3 would take gigabytes.
_OLLAMA_WINDOW = 16_384
_OLLAMA_BATCH = 64  # texts per request
# Attributes of an embedding that shape its vectors, besides its class and model.
_SHAPING = (
    "query_instruction",
    "text_instruction",
    "dimensions",
    "pooling",
    "normalize",
    "max_length",
    "max_tokens",
)


class Instructions(NamedTuple):
    """The prefixes that a model expects before queries and texts. Without them it finds less."""

    query_instruction: str
    text_instruction: str


INSTRUCTIONS = {
    "nomic-embed-text": Instructions("search_query:", "search_document:"),
    "e5-": Instructions("query:", "passage:"),
    "multilingual-e5-": Instructions("query:", "passage:"),
}


# Embeddings


def resolve_embedding(spec: str | BaseEmbedding, timeout: float = TIMEOUT) -> BaseEmbedding:
    """Return the LlamaIndex embedding with a name, or an embedding object unchanged.

    Args:
        spec: A name in one of the ``EMBEDDING_FORMS``, or an embedding object. ``@http://host/v1``
            names a server with OpenAI's interface.
        timeout: Seconds without an answer after which a request fails.

    Raises:
        SettingError: The name has none of these forms.
        MissingExtraError: The package of the embedding is not installed.
    """
    if isinstance(spec, BaseEmbedding):
        return spec
    try:
        name = embedding_name(spec)
    except ValueError as error:
        raise _setting_error("embed_model", spec, error) from error
    if name.kind in _LOCAL_EMBEDDINGS:
        embedding: BaseEmbedding = _LOCAL_EMBEDDINGS[name.kind]()
        return embedding
    package = f"llama-index-embeddings-{name.kind}"
    with needs(package, "llm" if name.kind == "ollama" else package):
        return _SERVED_EMBEDDINGS[name.kind](name.model, name.url, timeout)


def model_id(embedding: BaseEmbedding) -> str:
    """Return an id of everything that shapes the vectors of an embedding, without secrets.

    Embeddings with the same id make comparable vectors. The form is ``class:model#hash``.
    """
    shape: dict[str, str] = {}
    for name in _SHAPING:
        value = getattr(embedding, name, None)
        if value is not None:
            shape[name] = repr(value)
    return f"{embedding.class_name()}:{embedding.model_name}#{short_hash(shape)[:8]}"


def _openai(model: str, url: str, timeout: float) -> BaseEmbedding:
    """Return an ``OpenAIEmbedding`` with bounded answers, retries and waits."""
    from llama_index.embeddings.openai import OpenAIEmbedding

    from llama_index_contextual.app.settings.servers import ATTEMPTS, VECTOR_BYTES, http_clients

    class BoundedOpenAIEmbedding(OpenAIEmbedding):
        """An embedding that retries at most three times. The client's own retries are disabled."""

        @classmethod
        def class_name(cls) -> str:
            """Return the name under which vectors are recorded."""
            return "OpenAIEmbedding"

        def _create_retry_decorator(self) -> Any:
            return ATTEMPTS.copy().wraps

    options: dict[str, Any] = {"model_name": model, "max_retries": 0, "timeout": timeout}
    if url:
        # The client requires a key. The one in the environment is for OpenAI, and must not be sent
        # to another host.
        options |= {"api_base": url, "api_key": "none"}
    return BoundedOpenAIEmbedding(**options, **http_clients(timeout, VECTOR_BYTES, url))


def _ollama(model: str, url: str, timeout: float) -> BaseEmbedding:
    """Return an ``OllamaEmbedding`` with bounded answers and waits."""
    from llama_index_contextual.app.settings.servers import (
        VECTOR_BYTES,
        client_options,
        making_client,
    )

    address = url or OLLAMA_URL
    with making_client():
        # The import creates a client, too.
        from llama_index.embeddings.ollama import OllamaEmbedding

        return OllamaEmbedding(
            model_name=model,
            base_url=address,
            embed_batch_size=_OLLAMA_BATCH,
            client_kwargs=client_options(timeout, VECTOR_BYTES, address),
            **_instructions(model),
        )


def _huggingface(model: str, _url: str, _timeout: float) -> BaseEmbedding:
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    name_without_owner = model.rsplit("/", 1)[-1]
    embedding: BaseEmbedding = HuggingFaceEmbedding(
        model_name=model, **_instructions(name_without_owner)
    )
    return embedding


def _instructions(model: str) -> dict[str, Any]:
    """Return the instructions of a model as keyword arguments, empty for most models."""
    for prefix, instructions in INSTRUCTIONS.items():
        if model.startswith(prefix):
            return instructions._asdict()
    return {}


_LOCAL_EMBEDDINGS = {"local": LocalEmbedding, "e5": E5Embedding, "none": NoEmbedding}
_SERVED_EMBEDDINGS: dict[str, Callable[[str, str, float], BaseEmbedding]] = {
    "ollama": _ollama,
    "openai": _openai,
    "huggingface": _huggingface,
}


# Language models


class NamedModel:
    """A language model by name. Call the object to create the LLM.

    The client of the LLM does not retry, because its callers do.

    Args:
        spec: The name, such as ``"openai:MODEL@http://127.0.0.1:8080/v1"``.
        max_tokens: The longest answer.
        timeout: Seconds without an answer after which a request fails.

    Attributes:
        model_name: The name of the model without provider and address.

    Raises:
        SettingError: The name is not that of a language model.
        MissingExtraError: The integration is not installed (raised by the call).
    """

    def __init__(self, spec: str, max_tokens: int, timeout: float = TIMEOUT) -> None:
        try:
            name = language_model_name(spec)
        except ValueError as error:
            raise _setting_error("llm", spec, error) from error
        self.model_name = name.model
        self._name = name
        self._max_tokens = max_tokens
        self._timeout = timeout

    def __call__(self) -> LLM:
        """Return the LLM."""
        return self._ollama() if self._name.kind == "ollama" else self._openai()

    def _ollama(self) -> LLM:
        from llama_index_contextual.app.settings.servers import client_options, making_client

        address = self._name.url or OLLAMA_URL
        limits = client_options(self._timeout, url=address)
        with making_client():
            integration = _module("llama_index.llms.ollama")
            clients = _module("ollama")
            client = clients.Client(address, **limits)
            async_client = clients.AsyncClient(address, **limits)
        llm: LLM = integration.Ollama(
            model=self.model_name,
            temperature=0.0,
            base_url=address,
            context_window=_OLLAMA_WINDOW,
            request_timeout=self._timeout,
            thinking=False,  # small models may never stop, and two sentences need none
            additional_kwargs={"num_predict": self._max_tokens},
            client=client,
            async_client=async_client,
        )
        return llm

    def _openai(self) -> LLM:
        from llama_index_contextual.app.settings.servers import http_clients

        url = self._name.url
        if not url and not os.environ.get("OPENAI_API_KEY"):
            raise SettingError(
                f"`llm` 'openai:{self.model_name}' needs a key. Set OPENAI_API_KEY, or choose "
                "another server as 'openai:MODEL@http://HOST/v1'."
            )
        options: dict[str, Any] = {
            "model": self.model_name,
            "temperature": 0.0,
            "max_retries": 0,
            "timeout": self._timeout,
            **http_clients(self._timeout, url=url),
        }
        if not url:
            openai: LLM = _module("llama_index.llms.openai").OpenAI(**options)
            return openai
        llm: LLM = _module("llama_index.llms.openai_like").OpenAILike(
            **options,
            api_base=url,
            api_key="none",  # the client requires a key
            is_chat_model=True,
            context_window=DEFAULT_WINDOW,
            max_tokens=self._max_tokens,
        )
        return llm


def resolve_llm(llm: str | LLM | None, *, max_tokens: int, timeout: float = TIMEOUT) -> LLM:
    """Return the LLM with a name, or an LLM object unchanged.

    Args:
        llm: The name or the object. None means ``Settings.llm`` if it is set, else the default.
        max_tokens: The longest answer.
        timeout: Seconds without an answer after which a request fails.
    """
    chosen = llm or _settings_llm() or DEFAULT_MODEL
    return chosen if isinstance(chosen, LLM) else NamedModel(chosen, max_tokens, timeout)()


def named_model(llm: Any, chunks: int, timeout: float) -> Any:
    """Return the model that generates contexts, in a form that the plug-in accepts.

    Args:
        llm: A name or an object. None means ``Settings.llm`` if it is set, else the default.
        chunks: The largest number of chunks per call.
        timeout: Seconds without an answer after which a request with a usual prompt fails.
    """
    if llm is None and _settings_llm() is None:
        llm = DEFAULT_MODEL
    if not isinstance(llm, str):
        return llm
    return NamedModel(llm, chunks * OUTPUT_TOKENS, timeout * _LONG_PROMPT)


def _settings_llm() -> LLM | None:
    """Return ``Settings.llm`` if it is set. Reading the property itself needs an OpenAI key."""
    return Settings._llm  # noqa: SLF001


def _setting_error(setting: str, spec: object, error: ValueError) -> SettingError:
    requirement = str(error).removeprefix("Input should ")
    return SettingError(f"`{setting}` must {requirement} (got {without_credentials(repr(spec))}).")


def _module(name: str) -> ModuleType:
    """Import a LlamaIndex integration, or the client that it needs."""
    package = name.replace("llama_index.llms.", "llama-index-llms-").replace("_", "-")
    with needs(package, "llm"):
        return import_module(name)
