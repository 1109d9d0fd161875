"""One string chooses an embedding: ``local``, ``ollama:nomic-embed-text``, ``openai:text-embedding-3-small``, …."""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.embedding import LocalEmbedding
from llama_index_contextual.errors import MissingExtraError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

# Models that were trained with an instruction before every text; without it they find less. (query, document)
INSTRUCTIONS: Final = {
    "nomic-embed-text": ("search_query:", "search_document:"),
    "e5-": ("query:", "passage:"),
    "multilingual-e5-": ("query:", "passage:"),
}

FORMS: Final = (
    "'local', 'local:FOLDER', 'ollama:MODEL', 'ollama:MODEL@http://host:port', 'openai:MODEL', 'huggingface:MODEL', "
    "or any LlamaIndex embedding object"
)


def resolve_embedding(spec: str | BaseEmbedding) -> BaseEmbedding:
    """Turn a string into a LlamaIndex embedding; an embedding object is given back as it is.

    Args:
        spec: ``"local"``, ``"local:FOLDER"`` (a folder with ``model.onnx``), ``"ollama:MODEL"``,
            ``"ollama:MODEL@http://host:port"``, ``"openai:MODEL"``, ``"huggingface:MODEL"``, or an embedding object.

    Raises:
        SettingError: The string has no such form.
        MissingExtraError: The package that serves it is not installed.
    """
    if isinstance(spec, BaseEmbedding):
        return spec
    kind, _, model = spec.partition(":")
    if kind not in _MAKERS or (kind != "local" and not model):
        raise SettingError(f"embed_model={spec!r} names no embedding. Cure: one of {FORMS}")
    return _MAKERS[kind](model)


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
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
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
    return _imported("openai", "OpenAIEmbedding")(model=model)


def _huggingface(model: str) -> BaseEmbedding:
    return _imported("huggingface", "HuggingFaceEmbedding")(model_name=model, **_instructions(model.rsplit("/", 1)[-1]))


def _imported(provider: str, name: str) -> Callable[..., BaseEmbedding]:
    try:
        module = import_module(f"llama_index.embeddings.{provider}")
    except ImportError as error:
        raise MissingExtraError(f"llama-index-embeddings-{provider}", provider) from error
    maker: Callable[..., BaseEmbedding] = getattr(module, name)
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
}
