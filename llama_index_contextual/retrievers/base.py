"""The base class of the keyword and vector retrievers of this package, and what they return."""

from __future__ import annotations

import asyncio
import copy
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

from llama_index_contextual.retrievers.filters import merge_filters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from llama_index.core.vector_stores.types import MetadataFilters
    from typing_extensions import Self

T = TypeVar("T")


class Candidate(NamedTuple):
    """A hit of a retriever.

    Attributes:
        node_id: The id of the node.
        score: The score by the retriever. None if it returns no scores.
        node: The node, if the retriever has already loaded it.
    """

    node_id: str
    score: float | None
    node: BaseNode | None = None


class Pool(NamedTuple):
    """The best nodes of a retriever for one query.

    Attributes:
        matching: The best nodes that match the filters.
        unfiltered: The best of all nodes. Their scores set the scale, so that filters change no
            score.
    """

    matching: list[Candidate]
    unfiltered: list[Candidate]


class StoreReader(Protocol):
    """Reads a store that can change between two queries."""

    def ask(self, work: Callable[[Any], T]) -> T:
        """Return the result of ``work`` on the newest state of the store. It must only read."""

    def snapshot(self) -> AbstractContextManager[Any]:
        """Return a context in which all reads see the same state of the store."""


class PoolRetriever(BaseRetriever):
    """A retriever that can answer with ids, so that a fusion only loads the nodes that it returns.

    Attributes:
        reader: Reads the store.
        similarity_top_k: The largest number of nodes that a query returns.
        filters: Metadata filters for the returned nodes. None means all nodes.
        applies_operators: Whether the retriever can apply the filters of query operators.
        keeps_scores: Whether scores are the same with and without filters.
        has_async_query: Whether the store has its own asynchronous query.
    """

    reader: StoreReader
    similarity_top_k: int
    filters: MetadataFilters | None
    applies_operators = True
    keeps_scores = True
    has_async_query = False

    @abstractmethod
    def pools(
        self,
        queries: Sequence[QueryBundle],
        size: int,
        min_matching: int,
    ) -> list[Pool]:
        """Return the best nodes for each query, best first: all, and those that match the filters.

        Args:
            queries: The queries.
            size: The largest number of nodes in each list.
            min_matching: The store is queried again if fewer of its best nodes match the filters.
        """

    def candidates(self, queries: Sequence[QueryBundle], top_k: int) -> list[list[Candidate]]:
        """Return the ids and scores of the best ``top_k`` nodes for each query, best first."""
        return [pool.matching for pool in self.pools(queries, top_k, top_k)]

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return the nodes with these ids as new objects, by id. Unknown ids are ignored."""
        ids = list(node_ids)
        return self.reader.ask(lambda store: store.nodes(ids))

    def with_filters(self, filters: MetadataFilters | None) -> Self:
        """Return a copy with further filters. It shares the store of this retriever."""
        view = copy.copy(self)
        view.filters = merge_filters(self.filters, filters)
        return view

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        [candidates] = self.candidates([query_bundle], self.similarity_top_k)
        return self._with_nodes(candidates)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def _with_nodes(self, candidates: Sequence[Candidate]) -> list[NodeWithScore]:
        """Return the candidates with their nodes, without candidates whose node was deleted."""
        missing = [candidate.node_id for candidate in candidates if candidate.node is None]
        nodes = self.nodes(missing) if missing else {}
        results = []
        for candidate in candidates:
            node = candidate.node or nodes.get(candidate.node_id)
            if node is not None:
                results.append(NodeWithScore(node=node, score=candidate.score))
        return results
