"""The seam to a store: what the arms ask of whatever holds the nodes.

A store that implements :class:`SearchStore` is searched by both arms, filtered, fused and explained as Chroma is. Ours
are a state of :class:`~llama_index_contextual.keyword.KeywordIndex` for keywords, and the view of an index for both. A
store that computes keyword scores on its own server implements :class:`KeywordSearch`.

All methods are called from several threads at once. They may block, because no arm calls them on an event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.keyword import Candidate, Group, Nearness, TermScores


MOST: Final = 2**31 - 1  # hits: no store holds more nodes, and clients of stores take no larger number
T = TypeVar("T")
S_co = TypeVar("S_co", covariant=True)


class NodeSearch(Protocol):
    """Nodes by id, and ids by filters."""

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects, without vectors, for those of the ids that exist."""

    def selected_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Return the ids of all nodes that the filters admit; None admits all.

        The meaning of each operator is that of :func:`llama_index_contextual.keyword.filters.admits`.
        """


class KeywordSearch(NodeSearch, Protocol):
    """Search by terms. A term is a group of alternatives that count as one, such as its stems in two languages."""

    def keyword_query(
        self, groups: Sequence[Group], top_k: int, filters: MetadataFilters | None = None
    ) -> list[Candidate]:
        """Return the best ``top_k`` nodes that hold a term: scores are above 0, best first, ties by id."""

    def term_scores(self, groups: Sequence[Group], node_ids: Sequence[str]) -> TermScores:
        """Return the share of each term in the keyword score of each node, 0 where the node does not hold it.

        Relevance and explanations are made of it. An unknown id holds no term; with no ids it still says how many nodes
        hold each term.
        """

    def nearness(self, groups: Sequence[Group], node_ids: Sequence[str]) -> Nearness:
        """Return the nearness of neighbouring terms of a query in each node.

        A learned fusion uses it. A store that does not know the order of terms returns zeros.
        """

    def values(self, key: str, node_ids: Iterable[str]) -> dict[str, Any]:
        """Return the nodes' values of a metadata key, without reading the nodes where the store can."""

    def texts(self, node_ids: Iterable[str]) -> dict[str, str]:
        """Return the texts of those of the nodes that exist, without what else there is of them."""

    def count(self, filters: MetadataFilters | None = None) -> int:
        """Return the number of nodes that the filters admit."""


class DenseSearch(NodeSearch, Protocol):
    """Search by vectors."""

    def dense_queries(
        self, embeddings: Sequence[Sequence[float]], top_k: int, filters: MetadataFilters | None = None
    ) -> list[list[Candidate]]:
        """Return the ``top_k`` nodes nearest to each of some vectors, best first, ties by id.

        The score is the cosine similarity, -1 to 1, where the store can tell it.
        """


class SearchStore(DenseSearch, KeywordSearch, Protocol):
    """A store that both arms search."""


class StoreReader(Protocol[S_co]):
    """A consistent view of a store that changes.

    ``ContextualVectorRetriever.over(reader)`` and ``ContextualBM25Retriever.over(reader)`` ask through it.
    """

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a context in which everything that is read comes from one state of the store."""

    def ask(self, work: Callable[[S_co], T]) -> T:
        """Call ``work`` with the newest state of the store and return its result.

        The state of the store must not change or close before it returns. ``work`` only reads, so it may be called
        again where the store was replaced meanwhile.
        """
