"""The two arms of an index: plain retrievers over whatever was written last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_contextual.retrievers import POOL, ContextualBM25Retriever, ContextualVectorRetriever
from llama_index_contextual.retrievers.chroma import ChromaDense
from llama_index_contextual.retrievers.search import Unchanging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores import MetadataFilters

    from llama_index_contextual.index.reader import OpenStore, Reader
    from llama_index_contextual.keyword import KeywordIndex
    from llama_index_contextual.retrievers.search import Candidate, T


def live_arms(
    reader: Reader, embedding: BaseEmbedding, filters: MetadataFilters | None
) -> list[ContextualVectorRetriever | ContextualBM25Retriever]:
    """Return the vector arm and the keyword arm of an index, both with the same filters."""
    keyword = ContextualBM25Retriever.over(
        _NewestKeywords(reader), analyzer=reader.bm25.analyzer, similarity_top_k=POOL, filters=filters
    )
    vectors = Unchanging(_NewestVectors(reader, keyword.with_settings(filters=None)))
    return [ContextualVectorRetriever.over(vectors, embedding, similarity_top_k=POOL, filters=filters), keyword]


class _NewestKeywords:
    """Give the keyword index as it is after everything that was written."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def ask(self, work: Callable[[KeywordIndex], T]) -> T:
        """Call ``work`` with the keyword index and return its result."""
        return work(self._reader.synced_bm25().index)


class _NewestVectors:
    """Search the newest view of Chroma; the keyword arm evaluates filters and gives nodes."""

    def __init__(self, reader: Reader, keyword: ContextualBM25Retriever) -> None:
        self._reader = reader
        self._keyword = keyword

    def _over(self, view: OpenStore) -> ChromaDense:
        return ChromaDense(view.store.collection, self._keyword)

    def dense_query(
        self, embedding: Sequence[float], top_k: int, filters: MetadataFilters | None = None
    ) -> list[Candidate]:
        """Return the ``top_k`` nodes nearest to a vector."""
        return self._reader.ask(lambda view: self._over(view).dense_query(embedding, top_k, filters), vectors=True)

    def selected_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Return the ids of all nodes that the filters admit."""
        return self._keyword.selected_ids(filters)

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that exist."""
        wanted = list(node_ids)
        return self._reader.ask(lambda view: self._over(view).nodes(wanted))
