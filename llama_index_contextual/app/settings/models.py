"""The strings that choose an embedding or a language model."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from llama_index.core import Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM

from llama_index_contextual.app.settings import embeddings
from llama_index_contextual.app.settings.local import E5Embedding, LocalEmbedding
from llama_index_contextual.context.calls import DEFAULT_WINDOW, OUTPUT_TOKENS
from llama_index_contextual.utils.errors import SettingError, needs, without_credentials
from llama_index_contextual.utils.text import short_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from types import ModuleType

TIMEOUT: Final = 60.0  # seconds that a server may be silent
DEFAULT_MODEL: Final = "ollama:qwen3:0.6b"
OLLAMA_URL: Final = "http://localhost:11434"
_NAME: Final = re.compile(
    r"(\w+):(?!@(?i:https?)://)(@?[^\s@](?:[^@\n]*[^\s@])?)(?:@((?i:https?)://[^\s/]\S*))?"
)
_LANGUAGE_MODELS: Final = ("ollama", "openai")
_LONGEST_PROMPT: Final = (
    3  # times the tokens of a usual one: it takes so much longer until an answer begins
)
_OLLAMA_WINDOW: Final = (
    16384  # Ollama reserves memory for all of it, and qwen3's own 40,960 is gigabytes
)


# Models that were trained with an instruction before every text; without it they find less. (query, document)
INSTRUCTIONS: Final = {
    "nomic-embed-text": ("search_query:", "search_document:"),
    "e5-": ("query:", "passage:"),
    "multilingual-e5-": ("query:", "passage:"),
}


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
    if spec in _PLAIN:
        plain: BaseEmbedding = _PLAIN[spec]()
        return plain
    if (parts := _parts(spec, _SERVED)) is None:
        name = without_credentials(str(spec))
        raise SettingError(f"`embed_model` must be {embeddings.FORMS} (got {name!r}).")
    package = f"llama-index-embeddings-{parts[0]}"
    with needs(package, "llm" if parts[0] == "ollama" else package):
        return _SERVED[parts[0]](*parts[1:], timeout)


def _parts(spec: object, kinds: Container[str]) -> tuple[str, str, str] | None:
    """Kind, model and address ("" for none) in the name of a model; None where it is none of these kinds.

    What stands behind an ``@`` is an address, with ``http://``: taken for a part of the model's name, it would send
    what was meant for another server to the usual one.

    Raises:
        SettingError: There can be no such address.
    """
    found = _NAME.fullmatch(str(spec))
    if not found or found[1] not in kinds:
        return None
    url = found[3] or ""
    try:
        is_address = not url or (urlsplit(url).hostname and urlsplit(url).port != 0)
    except ValueError:  # a port above 65535, half of an IPv6 address
        is_address = False
    if not is_address:
        cure = "http://HOST:PORT/v1, with a port from 1 to 65535"
        raise SettingError(f"the address {without_credentials(url)} cannot be. Cure: {cure}")
    return found[1], found[2], url


_SHAPING: Final = (
    "query_instruction", "text_instruction", "dimensions", "pooling", "normalize", "max_length", "max_tokens"
)  # fmt: skip
UNNAMED: Final = "unknown"  # the model_name of LlamaIndex's embeddings that have no other


def model_id(embedding: BaseEmbedding) -> str:
    """Name an embedding by what shapes its vectors, and by nothing secret: ``class:model#hash``.

    Two embeddings with the same id make comparable vectors.
    """
    values = {key: getattr(embedding, key, None) for key in _SHAPING}
    config = {key: repr(value) for key, value in values.items() if value is not None}
    return f"{embedding.class_name()}:{embedding.model_name}#{short_hash(config)[:8]}"


def _instructions(model: str) -> dict[str, Any]:
    both = next((both for prefix, both in INSTRUCTIONS.items() if model.startswith(prefix)), ())
    return dict(zip(("query_instruction", "text_instruction"), both, strict=False))


def _openai(model: str, url: str, timeout: float) -> BaseEmbedding:
    """An ``OpenAIEmbedding`` of OpenAI, or of another server with its interface, with bounded answers and waits."""
    from llama_index.embeddings.openai import OpenAIEmbedding

    from llama_index_contextual.app.settings.servers import ATTEMPTS, VECTOR_BYTES, http_clients

    class BoundedOpenAIEmbedding(OpenAIEmbedding):
        """It waits at most three times; of its two loops of attempts the client's is off."""

        @classmethod
        def class_name(cls) -> str:
            """The name under which vectors are recorded."""
            return "OpenAIEmbedding"

        def _create_retry_decorator(self) -> Any:
            return ATTEMPTS.copy().wraps

    # The client insists on a key. That of the environment is OpenAI's, and is not sent to another host.
    where = {"model_name": model, **({"api_base": url, "api_key": "none"} if url else {})}
    return BoundedOpenAIEmbedding(
        **where, **http_clients(timeout, VECTOR_BYTES, url), max_retries=0, timeout=timeout
    )


def _ollama(model: str, url: str, timeout: float) -> BaseEmbedding:
    """An ``OllamaEmbedding`` with bounded answers, which gives up a server that is silent for so many seconds."""
    from llama_index_contextual.app.settings.servers import (
        VECTOR_BYTES,
        client_options,
        making_client,
    )  # slow: httpx

    options = {"client_kwargs": client_options(timeout, VECTOR_BYTES, url), **_instructions(model)}
    with making_client():
        from llama_index.embeddings.ollama import OllamaEmbedding  # the import makes a client, too

        return OllamaEmbedding(
            model_name=model, base_url=url or OLLAMA_URL, embed_batch_size=64, **options
        )


def _huggingface(model: str, *_: Any) -> BaseEmbedding:
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    embedding: BaseEmbedding = HuggingFaceEmbedding(
        model_name=model, **_instructions(model.rsplit("/", 1)[-1])
    )
    return embedding


_PLAIN: Final = {"local": LocalEmbedding, "e5": E5Embedding, "none": embeddings.NoEmbedding}
_SERVED: Final[dict[str, Callable[[str, str, float], BaseEmbedding]]] = {
    "ollama": _ollama,
    "openai": _openai,
    "huggingface": _huggingface,
}


class NamedModel:
    """A language model by name; a call makes the LLM. Its client does not try again by itself: the callers do that.

    Args:
        spec: The name, such as ``"openai:MODEL@http://127.0.0.1:8080/v1"``.
        max_tokens: Of an answer at most.
        timeout: Seconds of silence, after which the server is given up.

    Attributes:
        model_name: The model's name without provider and address.

    Raises:
        SettingError: The name is none of a model.
        MissingExtraError: On a call: the integration is not installed.
    """

    def __init__(self, spec: str, max_tokens: int, timeout: float = TIMEOUT) -> None:
        parts = _parts(spec, _LANGUAGE_MODELS)
        if parts is None:  # now and not in the middle of a run
            named = "'ollama:MODEL', 'openai:MODEL', 'openai:MODEL@http://HOST/v1', or any LlamaIndex LLM object"
            raise SettingError(f"`llm` must be {named} (got {without_credentials(spec)!r}).")
        self._provider, self.model_name, self._url = parts
        self._max_tokens, self._timeout = max_tokens, timeout

    def __call__(self) -> LLM:
        """The LLM."""
        from llama_index_contextual.app.settings.servers import (
            client_options,
            http_clients,
            making_client,
        )

        options: dict[str, Any] = {"model": self.model_name, "temperature": 0.0}
        llm: LLM
        if self._provider == "ollama":
            host, limits = self._url or OLLAMA_URL, client_options(self._timeout, url=self._url)
            with making_client():
                integration, clients = _module("llama_index.llms.ollama"), _module("ollama")
                asking = {
                    "client": clients.Client(host, **limits),
                    "async_client": clients.AsyncClient(host, **limits),
                }
            llm = integration.Ollama(
                **options,
                base_url=host,
                context_window=_OLLAMA_WINDOW,
                request_timeout=self._timeout,
                thinking=False,  # two sentences need no thoughts, which a small model does not end
                additional_kwargs={"num_predict": self._max_tokens},
                **asking,
            )
            return llm
        options |= {
            "max_retries": 0,
            "timeout": self._timeout,
            **http_clients(self._timeout, url=self._url),
        }
        if self._url:
            options |= {
                "api_base": self._url,
                "api_key": "none",
                "is_chat_model": True,
            }  # the client insists on a key
            options |= {"context_window": DEFAULT_WINDOW, "max_tokens": self._max_tokens}
            llm = _module("llama_index.llms.openai_like").OpenAILike(**options)
        elif os.environ.get("OPENAI_API_KEY"):
            llm = _module("llama_index.llms.openai").OpenAI(**options)
        else:
            hint = "Set OPENAI_API_KEY, or name another server as 'openai:MODEL@http://HOST/v1'."
            raise SettingError(f"`llm` 'openai:{self.model_name}' needs a key. {hint}")
        return llm


def resolve_llm(llm: str | LLM | None, *, max_tokens: int, timeout: float = TIMEOUT) -> LLM:
    """The model of a setting: by name, an object, LlamaIndex's ``Settings.llm`` where that is set, the default."""
    chosen = llm or Settings._llm or DEFAULT_MODEL  # noqa: SLF001  Settings.llm would insist on an OpenAI key
    return chosen if isinstance(chosen, LLM) else NamedModel(chosen, max_tokens, timeout)()


def named_model(llm: Any, chunks: int, timeout: float) -> Any:
    """The model of contexts, as the plug-in takes it.

    Args:
        llm: Its name, an object, or None for ``Settings.llm`` where that is set, else the default.
        chunks: Of a call at most.
        timeout: Seconds of silence, after which a server is given up that reads a prompt of usual length.
    """
    if llm is None and Settings._llm is None:  # noqa: SLF001  Settings.llm would insist on an OpenAI key
        llm = DEFAULT_MODEL
    return (
        NamedModel(llm, chunks * OUTPUT_TOKENS, timeout * _LONGEST_PROMPT)
        if isinstance(llm, str)
        else llm
    )


def _module(name: str) -> ModuleType:
    """A module of LlamaIndex's integrations, or of their clients."""
    with needs(name.replace("llama_index.llms.", "llama-index-llms-").replace("_", "-"), "llm"):
        return import_module(name)
