"""The strings that choose an embedding, and what is known of each: identity, window, instructions, time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field

from llama_index_contextual.embeddings.local import SPECIAL_TOKENS, E5Embedding, LocalEmbedding
from llama_index_contextual.errors import SettingError, needs
from llama_index_contextual.text import short_hash
from llama_index_contextual.text.e5_pieces import PACKAGE as E5_PACKAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_TIMED_TEXTS: Final = 32  # about a second on two cores
_SHOWN: Final = 60  # characters of a text in a message


class NoEmbedding(BaseEmbedding):
    """No embedding: an index that has it finds by keywords alone.

    Raises:
        SettingError: Whenever it is asked for a vector.
    """

    model_name: str = Field(default="none", description="Name under which the index is recorded.")

    @classmethod
    def class_name(cls) -> str:
        """Name for LlamaIndex's serialisation."""
        return "NoEmbedding"

    def _get_text_embedding(self, text: str) -> list[float]:
        raise SettingError(
            f"embed_model='none' makes no vectors, and one of {text[:_SHOWN]!r} was asked for. Cure: ask the keyword "
            f"index, or choose an embedding: {FORMS}"
        )

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


@dataclass(frozen=True, slots=True)
class EmbeddingEstimate:
    """What embedding some texts would take.

    Attributes:
        chunks: How many chunks there will be.
        texts: How many different texts are to be embedded.
        tokens: Word pieces of all of them, as the local model counts.
        seconds: Time on this machine as busy as it is now; None where the embedding is not local, 0 without one.
        known: Chunks whose vector is kept already.
    """

    chunks: int
    texts: int
    tokens: int
    seconds: float | None
    known: int = 0


def estimate_embedding(embedding: BaseEmbedding, texts: Sequence[str]) -> EmbeddingEstimate:
    """Say how long embedding some texts would take, by embedding a few of them; nothing is sent to a server for that.

    Args:
        embedding: Any; of a server's the time is not known.
        texts: As they would be embedded.

    Raises:
        MissingExtraError: The ``local`` extra is not installed.
    """
    different = list(dict.fromkeys(texts))
    counter = embedding if isinstance(embedding, LocalEmbedding) else LocalEmbedding()
    tokens = [counter.count_tokens(text) for text in different]
    if isinstance(embedding, NoEmbedding) or not different:
        return EmbeddingEstimate(len(texts), len(different), sum(tokens), 0.0)
    if not isinstance(embedding, LocalEmbedding | E5Embedding):
        return EmbeddingEstimate(len(texts), len(different), sum(tokens), None)
    chosen = range(0, len(different), -(-len(different) // _TIMED_TEXTS))
    embedding.embed(different[:1])  # loads the model
    started = time.perf_counter()
    embedding.embed([different[number] for number in chosen])
    share = sum(tokens) / max(sum(tokens[number] for number in chosen), 1)
    return EmbeddingEstimate(len(texts), len(different), sum(tokens), (time.perf_counter() - started) * share)


# Tokens that models read of a text, by a part of their name (the first that fits), and which of the parser's tokenizers
# counts them. "minilm" has the English word pieces of BERT, as most of these have. For other multilingual ones than
# multilingual-e5 cl100k stands in, and a fifth of a short window is left free. From the models' cards, nomic's
# as Ollama runs it.
_WINDOWS: Final = {
    "text-embedding-3": (8191, "cl100k"),
    "text-embedding-ada-002": (8191, "cl100k"),
    "bge-m3": (8192, "cl100k"),
    "qwen3-embedding": (8192, "cl100k"),
    "snowflake-arctic-embed2": (8192, "cl100k"),
    "snowflake-arctic-embed-l-v2": (8192, "cl100k"),
    "nomic-embed-text": (2048, "minilm"),
    "multilingual-e5": (512, "e5"),
    "paraphrase-multilingual": (102, "cl100k"),
    "mxbai-embed-large": (512, "minilm"),
    "snowflake-arctic-embed": (512, "minilm"),
    "bge-small-en": (512, "minilm"),
    "bge-base-en": (512, "minilm"),
    "bge-large-en": (512, "minilm"),
    "e5-small": (512, "minilm"),
    "e5-base": (512, "minilm"),
    "e5-large": (512, "minilm"),
    "all-mpnet-base": (384, "minilm"),
    "all-minilm-l12": (128, "minilm"),
    "all-minilm": (256, "minilm"),
}
_AROUND: Final = 8  # tokens for the special ones and for an instruction such as "search_document:"


def embedding_limit(embedding: BaseEmbedding) -> tuple[str, int] | None:
    """Return how many tokens of a text an embedding reads, and in which of the parser's tokenizers.

    Returns:
        The tokenizer's name and the tokens, without special ones and instructions; None for a model that is not known.
    """
    if isinstance(embedding, LocalEmbedding):
        return "minilm", embedding.max_tokens - SPECIAL_TOKENS
    name = embedding.model_name.lower()
    tokens, tokenizer = next((window for part, window in _WINDOWS.items() if part in name), (0, ""))
    around = _AROUND
    if isinstance(embedding, NoEmbedding):  # the chunks of the default, so that an index can change to it and back
        tokens, tokenizer, around = LocalEmbedding().max_tokens, "minilm", SPECIAL_TOKENS
    if not tokens:
        return None
    if tokenizer == "minilm" and find_spec("tokenizers") is None:
        tokens, tokenizer = tokens * 3 // 4, "cl100k"  # technical words are more of BERT's pieces
    if tokenizer == "e5" and find_spec(E5_PACKAGE) is None:
        tokens, tokenizer = tokens * 4 // 5, "cl100k"
    return tokenizer, tokens - around


# Models that were trained with an instruction before every text; without it they find less. (query, document)
INSTRUCTIONS: Final = {
    "nomic-embed-text": ("search_query:", "search_document:"),
    "e5-": ("query:", "passage:"),
    "multilingual-e5-": ("query:", "passage:"),
}

FORMS: Final = (
    "'local', 'e5', 'none', 'local:FOLDER', 'ollama:MODEL', 'ollama:MODEL@http://host:port', 'openai:MODEL', "
    "'openai:MODEL@http://host/v1', 'huggingface:MODEL', 'voyage:MODEL', 'jina:MODEL', "
    "'llamacpp:NAME@http://host:port', or any LlamaIndex embedding object"
)


def resolve_embedding(spec: str | BaseEmbedding) -> BaseEmbedding:
    """Turn a string into a LlamaIndex embedding; an embedding object is given back as it is.

    Args:
        spec: ``"local"``, ``"e5"``, ``"none"``, ``"local:FOLDER"`` (a folder with ``model.onnx``), ``"ollama:MODEL"``,
            ``"ollama:MODEL@http://host:port"``, ``"openai:MODEL"``, ``"openai:MODEL@http://host/v1"`` (any server with
            OpenAI's interface), ``"huggingface:MODEL"``, or one that can embed the chunks of a document together:
            ``"voyage:MODEL"``, ``"jina:MODEL"``, ``"llamacpp:NAME@http://host:port"``; or an embedding object.

    Raises:
        SettingError: The string has no such form.
        MissingExtraError: The package that serves it is not installed.
    """
    if isinstance(spec, BaseEmbedding):
        return spec
    if not isinstance(spec, str):
        raise SettingError(f"is no embedding. Cure: an embedding of LlamaIndex, or one of {FORMS}", embed_model=spec)
    if spec in _WITHOUT_MODEL:
        return _WITHOUT_MODEL[spec]()
    kind, _, model = spec.partition(":")
    if kind not in _MAKERS or (kind != "local" and not model):
        raise SettingError(f"names no embedding. Cure: one of {FORMS}", embed_model=spec)
    return _MAKERS[kind](model)


_WITHOUT_MODEL: Final[dict[str, Callable[[], BaseEmbedding]]] = {"none": NoEmbedding, "e5": E5Embedding}


def model_id(embedding: BaseEmbedding) -> str:
    """Name an embedding by what shapes its vectors, and by nothing secret: ``class:model#hash``.

    Two embeddings with the same id make comparable vectors. Keys, hosts and batch sizes are not part of it.
    """
    shaping = (
        "query_instruction",
        "text_instruction",
        "dimensions",
        "pooling",
        "normalize",
        "max_length",
        "max_tokens",
    )
    config = {key: repr(getattr(embedding, key)) for key in shaping if getattr(embedding, key, None) is not None}
    digest = short_hash(config)[:8]
    return f"{embedding.class_name()}:{embedding.model_name}#{digest}"


def _local(folder: str) -> BaseEmbedding:
    if not folder:
        return LocalEmbedding()
    return LocalEmbedding(model_folder=folder, model_name=folder.rstrip("/").rsplit("/", 1)[-1])


def _ollama(model: str) -> BaseEmbedding:
    name, _, url = model.partition("@")
    options: dict[str, Any] = {"base_url": url} if url else {}
    return _imported("ollama", "OllamaEmbedding")(
        model_name=name, embed_batch_size=64, **_instructions(name), **options
    )


def _openai(model: str) -> BaseEmbedding:
    name, _, url = model.partition("@http")
    if not url:
        return _imported("openai", "OpenAIEmbedding")(model=name)
    # The client insists on a key. That of the environment is OpenAI's, and is not sent to another host.
    return _imported("openai", "OpenAIEmbedding")(model_name=name, api_base=f"http{url}", api_key="none")


def _huggingface(model: str) -> BaseEmbedding:
    return _imported("huggingface", "HuggingFaceEmbedding")(model_name=model, **_instructions(model.rsplit("/", 1)[-1]))


def _seeing_documents(kind: str, model: str) -> BaseEmbedding:
    from llama_index_contextual.embeddings import services

    name, _, url = model.partition("@")
    options = {"base_url": url} if url else {}
    maker: type[BaseEmbedding] = getattr(services, f"{kind}DocumentEmbedding")
    return maker(model_name=name, **options)


def _imported(provider: str, name: str) -> Callable[..., BaseEmbedding]:
    with needs(f"llama-index-embeddings-{provider}", provider):
        maker: Callable[..., BaseEmbedding] = getattr(import_module(f"llama_index.embeddings.{provider}"), name)
    return maker


def _instructions(model: str) -> dict[str, str]:
    for prefix, (query, text) in INSTRUCTIONS.items():
        if model.startswith(prefix):
            return {"query_instruction": query, "text_instruction": text}
    return {}


_MAKERS: Final[dict[str, Callable[[str], BaseEmbedding]]] = {
    "local": _local,
    "ollama": _ollama,
    "openai": _openai,
    "huggingface": _huggingface,
    "voyage": partial(_seeing_documents, "Voyage"),
    "jina": partial(_seeing_documents, "Jina"),
    "llamacpp": partial(_seeing_documents, "LlamaCpp"),
}
