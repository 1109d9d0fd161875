"""Retrievers over an index that lives on: each query goes to the newest state, whoever wrote it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_index.core.base.base_retriever import BaseRetriever

from llama_index_contextual.retrievers import ContextualBM25Retriever, ContextualVectorRetriever

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import NodeWithScore, QueryBundle
    from llama_index.core.vector_stores import MetadataFilters
    from llama_index.vector_stores.chroma import ChromaVectorStore


@dataclass(frozen=True, slots=True)
class Arms:
    """The two arms over one state of the index."""

    vector: ContextualVectorRetriever
    keyword: ContextualBM25Retriever


def build_arms(store: ChromaVectorStore, embedding: BaseEmbedding, pool: int) -> Arms:
    """Arms over what a store holds now; the keyword arm is derived from it."""
    return Arms(
        ContextualVectorRetriever(vector_store=store, embed_model=embedding, similarity_top_k=pool),
        ContextualBM25Retriever.from_defaults(vector_store=store, similarity_top_k=pool),
    )


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
        current: Callable[[], AbstractContextManager[BaseRetriever]],
        filters: MetadataFilters | None,
    ) -> None:
        self.name = name
        self._current = current
        self._filters = filters
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        with self._current() as retriever:
            return self._filtered(retriever).retrieve(query_bundle)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def _filtered(self, retriever: BaseRetriever) -> BaseRetriever:
        return retriever if self._filters is None else retriever.with_filters(self._filters)
