"""LlamaIndex's embedding of Ollama, with bounded answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index.embeddings.ollama import OllamaEmbedding
from ollama import AsyncClient, Client

from llama_index_contextual.service import VECTOR_BYTES, client_options

if TYPE_CHECKING:
    from llama_index.core.base.embeddings.base import BaseEmbedding


def bounded_ollama(timeout: float, **options: Any) -> BaseEmbedding:
    """An ``OllamaEmbedding`` that gives up a server which is silent for ``timeout`` seconds."""
    embedding = OllamaEmbedding(embed_batch_size=64, **options)
    host, limits = embedding.base_url, (timeout, VECTOR_BYTES)  # its client_kwargs are for both clients alike
    embedding._client = Client(host, **client_options(*limits))  # noqa: SLF001
    embedding._async_client = AsyncClient(host, **client_options(*limits, is_async=True))  # noqa: SLF001
    return embedding
