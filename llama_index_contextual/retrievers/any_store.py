"""Search any LlamaIndex vector store, with filters that mean the same on each store.

Stores differ in their filters: some read NOT as AND, reject nested filters or lack half of the
operators. A store therefore only gets the parts of a filter that mean the same everywhere. Each hit
is checked against the whole filter, and the query is repeated with a larger size until there are
enough hits or the store has no more.
"""

from __future__ import annotations

import asyncio
import math
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from llama_index.core.schema import BaseNode, ObjectType
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)

from llama_index_contextual.retrievers.base import Candidate, Pool
from llama_index_contextual.retrievers.filters import (
    REF_DOC_ALIASES,
    ItemFilter,
    condition_of,
    metadata_match,
)
from llama_index_contextual.utils.errors import (
    ContextualWarning,
    CopyError,
    SettingError,
    StorageError,
)
from llama_index_contextual.utils.metadata import REF_DOC_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.storage.docstore import BaseDocumentStore
    from llama_index.vector_stores.chroma import ChromaVectorStore
    from typing_extensions import Self

T = TypeVar("T")
# The largest size of a query: clients of stores do not accept a larger number.
MOST = 2**31 - 1
_PAGE = 1000  # nodes that are read by id at a time
_GROWTH = 4  # if too few hits match, the size of the next query grows by this factor
_UNIT = 1e-3  # tolerance for the length of a normalized vector
# In these modes, similarity_top_k is the number of hits.
_COUNTED = frozenset({VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR})
_EQUALITIES = (FilterOperator.EQ, FilterOperator.IN)
_EVERYWHERE = (
    *_EQUALITIES,
    FilterOperator.GT,
    FilterOperator.GTE,
    FilterOperator.LT,
    FilterOperator.LTE,
)


class AnyStore:
    """A vector store that is searched through LlamaIndex's interface.

    A store cannot be copied, so copies of a retriever share it.

    Args:
        store: The vector store.
        docstore: The source of nodes if the store only contains vectors, and of nodes that are not
            plain text. A store would return an ``IndexNode`` as text.
        names: The ids of nodes in the docstore by their ids in the store, if they differ.
        options: Further arguments of the store's ``query``.
    """

    applies_operators = False
    snapshot = nullcontext  # LlamaIndex stores have no snapshots

    def __init__(
        self,
        store: BasePydanticVectorStore,
        docstore: BaseDocumentStore | None = None,
        names: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.store = store
        self._docstore = docstore
        self._names = {} if names is None else names  # the index adds to it
        self._options = dict(options or {})

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        # LlamaIndex pickles a store without its open client, so the copy would fail at its first
        # query.
        if not isinstance(self.store, SimpleVectorStore):
            raise CopyError(
                f"A retriever over {type(self.store).__name__} cannot be pickled, because the "
                "store has an open client. Create the store and the retriever in the other process."
            )
        return dict(self.__dict__)

    @property
    def has_async_query(self) -> bool:
        """Return whether the store has its own asynchronous query."""
        return type(self.store).aquery is not BasePydanticVectorStore.aquery

    def returns_cosines(self, query: VectorStoreQuery) -> bool:
        """Return whether the scores are cosine similarities."""
        is_plain = query.mode == VectorStoreQueryMode.DEFAULT and not self._options
        return is_plain and (isinstance(self.store, SimpleVectorStore) or is_chroma(self.store))

    def needs_vector(self, query: VectorStoreQuery) -> bool:
        """Return whether the query must be embedded."""
        by_words = {VectorStoreQueryMode.TEXT_SEARCH, VectorStoreQueryMode.SPARSE}
        return self.store.is_embedding_query and query.mode not in by_words

    def search(self, queries: Sequence[VectorStoreQuery]) -> list[list[Candidate]]:
        """Return for each query the best hits that match its filters and ``node_ids``, with nodes.

        A hybrid query returns all hits of the store, whatever their number.

        Raises:
            StorageError: The text of a hit is neither in the store nor in the docstore.
        """
        return [self._search(query) for query in queries]

    def pools(self, queries: Sequence[VectorStoreQuery], min_matching: int) -> list[Pool]:
        """Return for each query the best hits that match its filters, and the best of all.

        The store is queried again if fewer than ``min_matching`` of its best hits match.
        """
        return [self._pool(query, min_matching) for query in queries]

    def _pool(self, query: VectorStoreQuery, min_matching: int) -> Pool:
        unfiltered = self._search(replace(query, filters=None))
        if query.filters is None:
            return Pool(unfiltered, unfiltered)
        matching = [hit for hit in unfiltered if hit.node and node_matches(query.filters, hit.node)]
        if len(matching) < min_matching and len(unfiltered) == query.similarity_top_k:
            matching = self._search(query)
        return Pool(matching, unfiltered)

    async def asearch(self, queries: Sequence[VectorStoreQuery]) -> list[list[Candidate]]:
        """Like :meth:`search`, but with the asynchronous query of the store."""
        return list(await asyncio.gather(*map(self._asearch, queries)))

    def _search(self, query: VectorStoreQuery) -> list[Candidate]:
        search = StoreSearch(self, query)
        while search.is_open:
            try:
                search.receive(self.store.query(search.attempt, **self._options))
            except Exception as error:  # noqa: BLE001, PERF203  the search handles it
                search.refuse(error)
        return search.hits

    async def _asearch(self, query: VectorStoreQuery) -> list[Candidate]:
        search = StoreSearch(self, query)
        while search.is_open:
            try:
                search.receive(await self._aquery(search.attempt))
            except Exception as error:  # noqa: BLE001, PERF203  the search handles it
                search.refuse(error)
        return search.hits

    async def _aquery(self, query: VectorStoreQuery) -> VectorStoreQueryResult:
        """Return the answer of the store.

        A store without an asynchronous client is queried in a thread.
        """
        try:
            return await self.store.aquery(query, **self._options)
        except Exception as error:  # noqa: BLE001  raised below
            try:
                return await asyncio.to_thread(self.store.query, query, **self._options)
            except Exception:  # noqa: BLE001  the first error is more helpful
                raise error from None

    def candidates_of(
        self,
        query: VectorStoreQuery,
        result: VectorStoreQueryResult,
    ) -> list[Candidate]:
        """Return the hits of a result with their nodes.

        Raises:
            StorageError: The text of a hit is neither in the store nor in the docstore.
        """
        nodes = {node.node_id: node for node in result.nodes or []}
        ids = list(nodes) or list(result.ids or [])
        # Read nodes that are not plain text from the docstore, which has them unchanged.
        changed = [
            node_id
            for node_id in ids
            if node_id not in nodes or nodes[node_id].get_type() != ObjectType.TEXT
        ]
        nodes |= self._docstore_nodes(changed)
        missing = [node_id for node_id in ids if node_id not in nodes]
        if missing:
            raise StorageError(
                f"{type(self.store).__name__} found node {missing[0]!r}, whose text is not in the "
                "docstore. Load the index with the docstore that it was persisted with."
            )
        scores: Sequence[float | None] = result.similarities or [None] * len(ids)
        if is_chroma(self.store) and self.returns_cosines(query):
            cosines = chroma_cosines(
                self.store, result.similarities or [], query.query_embedding or []
            )
            pairs = sorted((-cosine, node_id) for cosine, node_id in zip(cosines, ids, strict=True))
            scores = [-negated for negated, _ in pairs]
            ids = [node_id for _, node_id in pairs]
        return [
            Candidate(nodes[node_id].node_id, score, nodes[node_id])
            for node_id, score in zip(ids, scores, strict=True)
        ]

    def ask(self, work: Callable[[AnyStore], T]) -> T:
        """Return the result of ``work``."""
        return work(self)

    def nodes(self, _: Iterable[str]) -> dict[str, BaseNode]:
        """Return nothing, because hits come with their nodes."""
        return {}

    def _docstore_nodes(self, ids: Sequence[str]) -> dict[str, BaseNode]:
        """Return copies of the nodes in the docstore by their ids in the vector store."""
        if self._docstore is None or not ids:
            return {}
        names = {node_id: self._names.get(node_id, node_id) for node_id in ids}
        nodes = self._docstore.get_nodes(list(names.values()), raise_error=False)
        by_name = {node.node_id: node for node in nodes}
        return {
            node_id: by_name[name].model_copy()
            for node_id, name in names.items()
            if name in by_name
        }


class StoreSearch:
    """A search of a store, which can need several queries.

    Args:
        store: The store.
        query: The query.

    Attributes:
        attempt: The next query to the store.
        is_open: Whether the store must be queried again.
        hits: The hits so far.
    """

    def __init__(self, store: AnyStore, query: VectorStoreQuery) -> None:
        self._store = store
        self._query = query
        self._top_k = min(query.similarity_top_k, MOST)
        self._size = self._top_k
        self._parts = portable_parts(query.filters)
        self._node_ids = None if query.node_ids is None else frozenset(query.node_ids)
        self._sends_node_ids = True
        self.hits: list[Candidate] = []
        self.is_open = self._node_ids is None or bool(self._node_ids)
        self.attempt = self._next_attempt()

    def _next_attempt(self) -> VectorStoreQuery:
        return replace(
            self._query,
            similarity_top_k=self._size,
            filters=MetadataFilters(filters=list(self._parts)) if self._parts else None,
            node_ids=self._query.node_ids if self._sends_node_ids else None,
        )

    def receive(self, result: VectorStoreQueryResult) -> None:
        """Process the answer to the last attempt.

        Raises:
            StorageError: The text of a hit is neither in the store nor in the docstore.
        """
        self._add(self._store.candidates_of(self.attempt, result))

    def refuse(self, error: Exception) -> None:
        """Prepare another attempt after an error of the store.

        Raises:
            Exception: The error of the store, if nothing is left to try.
        """
        if isinstance(error, Warning):  # LanceDB raises one if it finds nothing
            self._add([])
        elif self._parts or (self._query.node_ids and self._sends_node_ids):
            # The store rejects the filters, so filter its hits instead.
            self._parts = []
            self._sends_node_ids = False
            self.attempt = self._next_attempt()
        elif self._size == self._top_k:
            raise error
        else:
            warnings.warn(
                f"{type(self._store.store).__name__} returns no more than "
                f"{self._size // _GROWTH} hits ({error}). Some matching nodes may be missing.",
                ContextualWarning,
                stacklevel=2,
            )
            self.is_open = False

    def _add(self, candidates: Sequence[Candidate]) -> None:
        """Keep the candidates that match, and decide whether to query again."""
        is_unfiltered = self._query.filters is None and self._node_ids is None
        if is_unfiltered:
            self.hits = list(candidates)
        else:
            self.hits = [candidate for candidate in candidates if self._matches(candidate)]
        if self._query.mode in _COUNTED:
            self.hits = self.hits[: self._query.similarity_top_k]
        without_aliases = [part for part in self._parts if part.key not in REF_DOC_ALIASES]
        if not self.hits and without_aliases != self._parts:
            # Stores use this key for the id of the document, but nodes can have it, too.
            self._parts = without_aliases
            self.attempt = self._next_attempt()
        elif len(self.hits) >= self._top_k or len(candidates) < self._size or is_unfiltered:
            self.is_open = False
        else:
            self._size = min(self._size * _GROWTH, MOST)
            self.attempt = self._next_attempt()

    def _matches(self, candidate: Candidate) -> bool:
        """Return whether a candidate matches the filters and ids of the query."""
        node = candidate.node
        if node is None or (self._node_ids is not None and candidate.node_id not in self._node_ids):
            return False
        return node_matches(self._query.filters, node, self._parts)


def node_matches(
    filters: MetadataFilters | None,
    node: BaseNode,
    checked: Sequence[MetadataFilter] = (),
) -> bool:
    """Return whether a node matches filters, some of which the store has already checked."""
    return metadata_match(filters, {REF_DOC_ID: node.ref_doc_id, **node.metadata}, checked)


def is_chroma(store: object) -> TypeGuard[ChromaVectorStore]:
    """Return whether a store is a ``ChromaVectorStore``, without importing that class."""
    module = sys.modules.get("llama_index.vector_stores.chroma")
    return module is not None and isinstance(store, module.ChromaVectorStore)


def chroma_cosines(
    store: ChromaVectorStore,
    similarities: Sequence[float],
    query_vector: Sequence[float],
) -> Sequence[float]:
    """Return the cosines for LlamaIndex's similarities, which are ``exp(-distance)``.

    The similarities are returned unchanged if the collection does not compare by cosine and the
    vectors do not have unit length.
    """
    configuration = store.client.configuration_json
    space = (configuration.get("hnsw") or configuration.get("spann") or {}).get("space", "l2")
    if space != "cosine" and abs(math.hypot(*query_vector) - 1) > _UNIT:
        return similarities
    divisor = 2.0 if space == "l2" else 1.0  # the squared distance of unit vectors is 2 - 2 cos
    return [1.0 + math.log(similarity) / divisor for similarity in similarities]


def stored_nodes(store: BasePydanticVectorStore) -> list[BaseNode]:
    """Return all nodes of a vector store that contains text, sorted by id.

    Raises:
        SettingError: The store cannot list its nodes.
    """
    nodes: list[BaseNode] = []
    try:
        for page in _pages_of_ids(store):
            nodes += listed_nodes(store, page)
    except Exception as error:  # each store has its own
        raise SettingError(
            f"{type(store).__name__} cannot list its nodes ({error!r}). Pass nodes= or docstore=."
        ) from error
    return sorted(nodes, key=lambda node: node.node_id)


def listed_nodes(store: BasePydanticVectorStore, ids: list[str] | None) -> list[BaseNode]:
    """Return the nodes with these ids, or all nodes for None.

    Pgvector requires a filter, which can be empty. LanceDB's adapter can only list all nodes,
    because it quotes ids like names of columns.
    """
    try:
        return store.get_nodes(ids)
    except AssertionError:
        return store.get_nodes(ids, MetadataFilters(filters=[]))
    except ValueError:
        if ids is None:
            raise
        return [node for node in store.get_nodes() if node.node_id in set(ids)]


def _pages_of_ids(store: BasePydanticVectorStore) -> Iterator[list[str] | None]:
    """Yield the ids of all nodes in pages, or None for a store that can list all nodes at once.

    With about 30,000 ids at once, Chroma fails with "too many SQL variables".
    """
    if not is_chroma(store):
        yield None
        return
    for offset in range(0, store.client.count(), _PAGE):
        yield store.client.get(include=[], limit=_PAGE, offset=offset)["ids"]


def portable_parts(filters: MetadataFilters | None) -> list[MetadataFilter]:
    """Return the members of AND filters that mean the same on every store.

    These are equality and IN with texts that need no quoting, and equality, IN and comparisons with
    integers. Only some stores treat booleans as numbers, so filters that match a boolean are not
    portable.
    """
    parts: list[MetadataFilter] = []
    if filters is None or filters.condition not in {None, FilterCondition.AND}:
        return parts
    for member in filters.filters:
        if isinstance(member, MetadataFilters):
            parts += portable_parts(member)
        elif not isinstance(member, ItemFilter) and _is_portable(member):
            parts.append(member)
    return parts


def _is_portable(part: MetadataFilter) -> bool:
    if part.operator not in _EVERYWHERE:
        return False
    is_list = isinstance(part.value, list)
    values: list[Any] = part.value if isinstance(part.value, list) else [part.value]
    if not values or is_list != (part.operator == FilterOperator.IN):
        return False
    if all(isinstance(value, str) for value in values):
        needs_quoting = set("".join(values)) & set("'\"\\\0%")
        return part.operator in _EQUALITIES and not needs_quoting
    admits_boolean = any(map(condition_of(part), (True, False)))
    return all(isinstance(value, int) for value in values) and not admits_boolean
