"""The two arms of an index: LlamaIndex retrievers that follow what is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index.core.base.base_retriever import BaseRetriever

from llama_index_contextual.retrievers import ContextualBM25Retriever, ContextualVectorRetriever
from llama_index_contextual.retrievers.arm_settings import POOL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode, QueryBundle
    from llama_index.core.vector_stores import MetadataFilters

    from llama_index_contextual.index.reader import OpenStore, Reader
    from llama_index_contextual.retrievers.candidates import Candidate
    from llama_index_contextual.retrievers.lexical_index import LexicalIndex


def live_arms(
    reader: Reader, embedding: BaseEmbedding, filters: MetadataFilters | None
) -> list[ContextualVectorRetriever | ContextualBM25Retriever]:
    """Give the vector arm and the keyword arm of an index, both with the same filters."""
    keyword = LiveKeywordRetriever(reader)
    vector = LiveVectorRetriever(reader, embedding, keyword)
    return [vector, keyword] if filters is None else [vector.with_filters(filters), keyword.with_filters(filters)]


class LiveKeywordRetriever(ContextualBM25Retriever):
    """The keyword arm of an index that changes: brings itself up to date whenever it is asked."""

    def __init__(self, reader: Reader, *, similarity_top_k: int = POOL) -> None:
        self._reader = reader
        super().__init__(similarity_top_k=similarity_top_k, analyzer=reader.bm25.analyzer)

    @property
    def _index(self) -> LexicalIndex:  # an attribute there; every reader goes through it
        return self._reader.synced_bm25()._index  # noqa: SLF001  the same class

    @_index.setter
    def _index(self, value: LexicalIndex) -> None:
        """Nothing: the index is the one that all views share."""


class LiveVectorRetriever(ContextualVectorRetriever):
    """The vector arm of an index that changes: each query goes to the newest view of Chroma."""

    def __init__(self, reader: Reader, embedding: BaseEmbedding, keyword: LiveKeywordRetriever) -> None:
        # Not the base's: it wants a store, and this one's changes.
        BaseRetriever.__init__(self)
        self.similarity_top_k = POOL
        self.filters: MetadataFilters | None = None
        self.companion = keyword
        self._reader = reader
        self._embed_model = embedding

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """New node objects for those of the ids that exist."""
        wanted = list(node_ids)
        return self._reader.ask(lambda view: self._over(view).nodes(wanted))

    def _nearest(self, embedding: list[float], query: QueryBundle, top_k: int) -> list[Candidate]:
        return self._reader.ask(
            lambda view: self._over(view)._nearest(embedding, query, top_k),  # noqa: SLF001  the same class
            vectors=True,
        )

    def _over(self, view: OpenStore) -> ContextualVectorRetriever:
        return ContextualVectorRetriever(
            view.vectors,
            self._embed_model,
            similarity_top_k=self.similarity_top_k,
            filters=self.filters,
            companion=self.companion,
        )
