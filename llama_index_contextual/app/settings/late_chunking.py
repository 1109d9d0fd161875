"""Embeddings that see the document: its chunks are embedded together, and each vector knows the chunks around it.

LlamaIndex embeds each text alone. :class:`DocumentEmbedding` adds ``embed_document(chunks)`` to its interface, and
:class:`EmbedDocuments` uses it in any ``IngestionPipeline``. ``services.py`` has the kinds there are.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from abc import abstractmethod
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.schema import BaseNode, MetadataMode, TransformComponent

from llama_index_contextual.errors import Checked, EmbeddingError
from llama_index_contextual.sqlite_store import SQLiteKVStore
from llama_index_contextual.text import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_BYTES_A_TOKEN: Final = 3  # fewer than any tokenizer makes of prose, so that windows err on the short side


@dataclass(frozen=True, slots=True)
class Window:
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

    A subclass says what a window of chunks and what a query become. Queries are embedded as queries; a text that comes
    without its document is embedded as a document of one chunk.

    Raises:
        SettingError: A setting cannot work.
    """

    window_tokens: int = Field(gt=0, description="Tokens that the model reads at once.")
    cache: str | None = Field(default=None, description="A SQLite file that keeps the vectors of every window.")
    _windows: SQLiteKVStore | None = PrivateAttr(default=None)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.cache is not None:
            self._windows = SQLiteKVStore(self.cache, set_aside=True)

    @abstractmethod
    def _embed_window(self, chunks: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return one vector for each chunk of a window."""

    @abstractmethod
    def _embed_query(self, query: str) -> Sequence[float]:
        """Return the vector of a query."""

    def _sizes(self, chunks: Sequence[str]) -> list[int]:
        """Return the tokens of each chunk; by its bytes, where the model's tokenizer is not here."""
        return [len(chunk.encode("utf-8", "replace")) // _BYTES_A_TOKEN + 1 for chunk in chunks]

    def embed_document(self, chunks: Sequence[str]) -> list[list[float]]:
        """Embed the chunks of one document, which should not overlap, in their order.

        Windows that are in the cache are not embedded again: an edit costs the windows that hold it.

        Args:
            chunks: All chunks of the document, as they are embedded.

        Returns:
            A vector for each chunk, all of the same dimension, of unit length.

        Raises:
            EmbeddingError: The server failed for good, or answered what cannot be used; or a chunk is too long.
            SettingError: The key is missing.
        """
        vectors: list[list[float]] = []
        for window in self.windows(chunks):
            window_vectors = self.embed_window(chunks[window.start : window.end])
            vectors += window_vectors[window.first - window.start : window.last - window.start]
        if len({len(vector) for vector in vectors}) > 1:
            raise EmbeddingError(f"{self.model_name} gave vectors of several dimensions. Cure: see to the server.")
        return vectors

    def windows(self, chunks: Sequence[str]) -> list[Window]:
        """Return which chunks of a document :meth:`embed_document` embeds together.

        Raises:
            EmbeddingError: A chunk is longer than what the model reads.
        """
        return list(plan_windows(self._sizes(chunks), self.window_tokens, self.window_tokens // 8))

    def embed_window(self, chunks: Sequence[str]) -> list[list[float]]:
        """Embed the chunks of one window, or take their vectors from the cache."""
        texts = [replace_surrogates(chunk)[0] for chunk in chunks]
        shown = json.dumps([self.class_name(), self.model_name, getattr(self, "dimensions", None), *texts])
        key = hashlib.sha256(shown.encode()).hexdigest()
        cached = None if self._windows is None else self._windows.get(key)
        if cached is not None:
            vectors = np.frombuffer(b64decode(cached["vectors"]), np.float32).reshape(len(texts), -1)
            return vectors.tolist()
        try:
            vectors = _checked(self._embed_window(texts), len(texts))
        except _UnusableError:  # an answer that cannot be used is asked for once more
            vectors = _checked(self._embed_window(texts), len(texts))
        if self._windows is not None:
            self._windows.put(key, {"vectors": b64encode(vectors.tobytes()).decode()})
        return vectors.tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self.embed_document([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        vector = _checked([self._embed_query(replace_surrogates(query)[0])], 1)[0]
        return cast("list[float]", vector.tolist())

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)


class _UnusableError(EmbeddingError):
    """An answer that is no vectors."""


def _checked(vectors: Sequence[Sequence[float]], count: int) -> NDArray[np.float32]:
    """Return vectors as rows of unit length.

    Raises:
        EmbeddingError: They are too few or too many, not of one length, zero, infinite or not numbers.
    """
    try:
        array = np.asarray(vectors, np.float64)
    except (TypeError, ValueError) as error:
        raise _UnusableError(f"the answer is no list of vectors ({error}). Cure: see to the server.") from error
    if array.ndim != 2 or len(array) != count or not array.shape[1]:  # noqa: PLR2004  rows and columns
        raise _UnusableError(f"the answer has the shape {array.shape}, not {count} vectors. Cure: see to the server.")
    norms = np.linalg.norm(array, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or not norms.all():
        raise _UnusableError("the answer has a vector that is zero, infinite or not a number. Cure: see to the server.")
    return cast("NDArray[np.float32]", (array / norms).astype(np.float32))


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
