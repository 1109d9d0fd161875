"""What the retrievers of this package have in common."""

from __future__ import annotations

import asyncio
import copy
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

from llama_index_contextual.retrievers.filters import both

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from llama_index.core.vector_stores.types import MetadataFilters
    from typing_extensions import Self

    from llama_index_contextual.retrievers.bm25_index import Candidate, Pool

T = TypeVar("T")


class StoreReader(Protocol):
    """Reads a store that may change between two queries."""

    def ask(self, work: Callable[[Any], T]) -> T:
        """Return the result of ``work``, which only reads, for the newest state of the store."""

    def snapshot(self) -> AbstractContextManager[Any]:
        """Return a context in which everything that is read comes from one state of the store."""


class PoolRetriever(BaseRetriever):
    """A retriever that answers with ids, so that of a pool of 100 candidates 10 nodes are read.

    Attributes:
        reader: Reads the store.
        similarity_top_k: The most nodes that a query returns.
        filters: Nodes that may be returned; None for all.
        obeys_operators: Whether filters may be those of the operators of a query.
        keeps_scores: Whether filters change no score.
        asks_async: Whether the store has an asynchronous query of its own.
    """

    reader: StoreReader
    similarity_top_k: int
    filters: MetadataFilters | None
    obeys_operators = True
    keeps_scores = True
    asks_async = False

    @abstractmethod
    def pools(self, queries: Sequence[QueryBundle], size: int, least: int) -> list[Pool]:
        """Return the best nodes for each query as a fusion compares them, best first.

        Args:
            queries: The queries.
            size: The most nodes of each list.
            least: How many matching nodes suffice.
        """

    def candidates(self, queries: Sequence[QueryBundle], top_k: int) -> list[list[Candidate]]:
        """Return ids and scores of the best ``top_k`` nodes for each query, best first."""
        return [pool.matching for pool in self.pools(queries, top_k, top_k)]

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects by id for those of the ids that exist."""
        ids = list(node_ids)
        return self.reader.ask(lambda store: store.nodes(ids))

    def with_filters(self, filters: MetadataFilters | None) -> Self:
        """Return a view that returns only nodes that match these filters and the view's own.

        It shares the store.
        """
        view = copy.copy(self)
        view.filters = both(self.filters, filters)
        return view

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        [candidates] = self.candidates([query_bundle], self.similarity_top_k)
        return self._with_nodes(candidates)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def _with_nodes(self, candidates: Sequence[Candidate]) -> list[NodeWithScore]:
        """Return candidates with their nodes, without those whose node is gone."""
        missing = [candidate.node_id for candidate in candidates if candidate.node is None]
        nodes = self.nodes(missing) if missing else {}
        results = []
        for candidate in candidates:
            node = candidate.node or nodes.get(candidate.node_id)
            if node is not None:
                results.append(NodeWithScore(node=node, score=candidate.score))
        return results
