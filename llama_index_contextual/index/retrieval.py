"""Retrievers over an index that lives on: each query goes to the newest state, whoever wrote it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_index.core.base.base_retriever import BaseRetriever

from llama_index_contextual.retrievers import ContextualBM25Retriever, ContextualVectorRetriever

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle
    from llama_index.core.vector_stores import MetadataFilters
    from llama_index.vector_stores.chroma import ChromaVectorStore

    from llama_index_contextual.retrievers.candidates import Candidate

    Arm = ContextualBM25Retriever | ContextualVectorRetriever


@dataclass(frozen=True, slots=True)
class Arms:
    """The two arms over one state of the index."""

    vector: ContextualVectorRetriever
    keyword: ContextualBM25Retriever


def build_arms(store: ChromaVectorStore, embedding: BaseEmbedding, pool: int) -> Arms:
    """Arms over what a store holds now; the keyword arm is derived from it."""
    keyword = ContextualBM25Retriever.from_defaults(vector_store=store, similarity_top_k=pool)
    vector = ContextualVectorRetriever(store, embedding, similarity_top_k=pool, companion=keyword)
    return Arms(vector, keyword)


class IndexArm(BaseRetriever):
    """One arm of an index that may change under it: asks the index for its current state at every query.

    Args:
        name: What explanations call it: ``"vector"`` or ``"bm25"``.
        current: Gives the retriever over the newest state.
        filters: Which nodes count.
    """

    def __init__(
        self,
        name: str,
        current: Callable[[], AbstractContextManager[Arm]],
        filters: MetadataFilters | None,
    ) -> None:
        self.name = name
        self._current = current
        self._filters = filters
        super().__init__()

    def candidates(self, query: QueryBundle, top_k: int) -> list[Candidate]:
        """Ids and scores of the best ``top_k``, best first."""
        with self._current() as retriever:
            return self._filtered(retriever).candidates(query, top_k)

    async def acandidates(self, query: QueryBundle, top_k: int) -> list[Candidate]:
        """The same, off the event loop."""
        return await asyncio.to_thread(self.candidates, query, top_k)

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """New node objects for those of the ids that exist."""
        with self._current() as retriever:
            return retriever.nodes(node_ids)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        with self._current() as retriever:
            return self._filtered(retriever).retrieve(query_bundle)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def _filtered(self, retriever: Arm) -> Arm:
        return retriever if self._filters is None else retriever.with_filters(self._filters)
