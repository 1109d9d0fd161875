"""What arms have in common, and what the vector arm searches in a LlamaIndex store.

LlamaIndex's stores differ in their filters: some take NOT for AND, refuse nested filters or know half of the operators.
So a store gets only those parts that mean the same everywhere, each hit is checked against all of the filters, and the
query is repeated for more until there are enough or no more.
"""

from __future__ import annotations

import asyncio
import copy
import math
import sys
import warnings
from abc import abstractmethod
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, NodeWithScore, ObjectType, QueryBundle
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

from llama_index_contextual.retrievers.bm25_index import Candidate
from llama_index_contextual.retrievers.filters import (
    ITEMS,
    REF_DOC_ALIASES,
    admits,
    both,
    condition_of,
)
from llama_index_contextual.utils.errors import (
    ContextualWarning,
    CopyError,
    SettingError,
    StorageError,
)
from llama_index_contextual.utils.metadata import REF_DOC_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from llama_index.vector_stores.chroma import ChromaVectorStore
    from typing_extensions import Self

T = TypeVar("T")
MOST: Final = (
    2**31 - 1
)  # hits: no store holds more nodes, and clients of stores take no larger number
_PAGE: Final = 1000  # nodes that are read by id at a time
_MORE: Final = 4  # times as many, each time that too few hits pass
_UNIT: Final = 1e-3  # how far from 1 the length of a normalised vector may be
# Modes in which similarity_top_k is the number of hits.
_COUNTED: Final = frozenset({VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR})
_EVERYWHERE: Final = (
    FilterOperator.EQ,
    FilterOperator.IN,
    *map(FilterOperator, (">", ">=", "<", "<=")),
)


def run(flow: Coroutine[Any, Any, T]) -> T:
    """Result of a coroutine that waits for nothing: with ``on_loop=False`` each call in it is done in this thread."""
    try:
        flow.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("a flow that should not wait has waited")


async def call(work: Callable[..., T], *arguments: Any, on_loop: bool) -> T:
    """Result of a function that may block: called in this thread, or in another one while an event loop runs."""
    return await asyncio.to_thread(work, *arguments) if on_loop else work(*arguments)


class PoolRetriever(BaseRetriever):
    """A retriever that answers with ids, so that of a pool of 100 candidates 10 nodes are read."""

    _reader: Any  # of the store
    similarity_top_k: int
    filters: MetadataFilters | None
    filters_words = True
    """Whether filters may be those of a query's operators."""
    asks_async = False
    """Whether the store has a query of its own for an event loop."""
    is_comparable = True
    """Whether a filter changes no score."""

    @abstractmethod
    async def candidates(
        self, queries: Sequence[QueryBundle], top_k: int, *, on_loop: bool
    ) -> list[list[Candidate]]:
        """Ids and scores of the best ``top_k`` of each query, best first."""

    def ask(self, work: Callable[[Any], T]) -> T:
        """Result of ``work``, which only reads, for the newest state of the store."""
        return self._reader.ask(work)  # type: ignore[no-any-return]

    def snapshot(self) -> AbstractContextManager[Any]:
        """A context in which everything that is read comes from one state of the store."""
        return self._reader.snapshot()  # type: ignore[no-any-return]

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """New node objects for those of the ids that exist."""
        ids = list(node_ids)
        return self.ask(lambda store: store.nodes(ids))

    def with_filters(self, filters: MetadataFilters | None) -> Self:
        """A view that returns only nodes that these filters and this view's admit. It shares the store."""
        view = copy.copy(self)
        view.filters = both(self.filters, filters)
        return view

    async def _flow(self, query: QueryBundle, *, on_loop: bool) -> list[NodeWithScore]:
        [candidates] = await self.candidates([query], self.similarity_top_k, on_loop=on_loop)
        missing = [candidate.node_id for candidate in candidates if candidate.node is None]
        loaded = await call(self.nodes, missing, on_loop=on_loop) if missing else {}
        pairs = [
            (candidate.node or loaded.get(candidate.node_id), candidate.score)
            for candidate in candidates
        ]
        return [NodeWithScore(node=node, score=score) for node, score in pairs if node is not None]

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return run(self._flow(query_bundle, on_loop=False))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await self._flow(query_bundle, on_loop=True)


# LlamaIndex's stores


class AnyStore:
    """Search a store through LlamaIndex's own interface. Copies of a retriever share it, as a store cannot be copied.

    Args:
        store: The vector store.
        index: The ``VectorStoreIndex`` on it. Its docstore has the nodes where the store holds vectors only, and those
            that are no text, such as an ``IndexNode``, which every store turns into text.
        options: Further arguments of the store's ``query``.
    """

    filters_words = False
    snapshot = nullcontext  # the next question may read another state of the store

    def __init__(
        self,
        store: BasePydanticVectorStore,
        index: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.store = store
        self._docstore = None if index is None else index.docstore
        self._names: Mapping[str, str] = (
            {} if index is None else getattr(index.index_struct, "nodes_dict", {})
        )
        self._options = dict(options or {})

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        # LlamaIndex pickles a store without its open client, and what arrives fails at its first query.
        if not isinstance(self.store, SimpleVectorStore):
            raise CopyError(
                f"a retriever over {type(self.store).__name__} cannot be pickled: the store holds an open client. "
                "Cure: pickle what makes the store, and make store and retriever where it arrives."
            )
        return dict(self.__dict__)

    def gives_cosines(self, query: VectorStoreQuery) -> bool:
        """Whether the scores are cosine similarities."""
        is_plain = query.mode == VectorStoreQueryMode.DEFAULT and not self._options
        return is_plain and (isinstance(self.store, SimpleVectorStore) or is_chroma(self.store))

    def needs_vector(self, query: VectorStoreQuery) -> bool:
        """Whether a query is to be embedded."""
        by_words = {VectorStoreQueryMode.TEXT_SEARCH, VectorStoreQueryMode.SPARSE}
        return self.store.is_embedding_query and query.mode not in by_words

    @property
    def asks_async(self) -> bool:
        """Whether the store has a query of its own for an event loop."""
        return type(self.store).aquery is not BasePydanticVectorStore.aquery

    async def search_each(
        self, queries: Sequence[VectorStoreQuery], *, on_loop: bool
    ) -> list[list[Candidate]]:
        """The hits of each of some queries, as :meth:`search` gives them."""
        searches = [self.search(query, on_loop=on_loop) for query in queries]
        return (
            list(await asyncio.gather(*searches))
            if on_loop
            else [await search for search in searches]
        )

    async def search(self, query: VectorStoreQuery, *, on_loop: bool) -> list[Candidate]:
        """The best ``query.similarity_top_k`` that ``query.filters`` and ``query.node_ids`` admit, with nodes.

        Of a hybrid query that is all that the store gives: how many that is, is its own.

        Raises:
            SettingError: A filter cannot work.
            StorageError: The store names a node that is nowhere.
        """
        most = query.similarity_top_k if query.mode in _COUNTED else None
        size = top_k = min(query.similarity_top_k, MOST)
        among = None if query.node_ids is None else frozenset(query.node_ids)
        if among is not None and not among:
            return []
        filters, parts, results = query.filters, portable_parts(query.filters), list[Candidate]()
        while True:
            pushed = MetadataFilters(filters=list(parts)) if parts else None
            attempt = replace(query, similarity_top_k=size, filters=pushed)
            try:
                found = await self._aquery(attempt) if on_loop else self._query(attempt)
                candidates = self._candidates(attempt, found)
            except Warning:  # so LanceDB reports that it found nothing
                candidates = []
            except Exception as error:
                if parts or query.node_ids:
                    # It refuses them; its hits are filtered.
                    parts, query = [], replace(query, node_ids=None)
                    continue
                if size == top_k:
                    raise
                message = (
                    f"{type(self.store).__name__} gives no more than {size // _MORE} hits ({error})"
                )
                warnings.warn(
                    f"{message}; behind these there may be more.", ContextualWarning, stacklevel=2
                )
                return results
            results = [
                one
                for one in candidates
                if one.node is not None
                and (among is None or one.node_id in among)
                and admits(filters, {REF_DOC_ID: one.node.ref_doc_id, **one.node.metadata}, parts)
            ][:most]
            if (
                not results
                and (others := [one for one in parts if one.key not in REF_DOC_ALIASES]) != parts
            ):
                parts = others  # the key may be a node's own, and stores have its document under that name
                continue
            if (
                len(results) >= top_k
                or len(candidates) < size
                or (filters is None and among is None)
            ):
                return results
            size = min(size * _MORE, MOST)

    def _query(self, query: VectorStoreQuery) -> VectorStoreQueryResult:
        return self.store.query(query, **self._options)

    async def _aquery(self, query: VectorStoreQuery) -> VectorStoreQueryResult:
        """The answer of a store; by its other query, in a thread, where it has or was made with no async client."""
        if not self.asks_async:
            return await asyncio.to_thread(self._query, query)
        try:
            return await self.store.aquery(query, **self._options)
        except Exception as error:  # noqa: BLE001  it is raised again
            try:
                return await asyncio.to_thread(self._query, query)
            except Exception:  # noqa: BLE001  the first one counts
                raise error from None

    def _candidates(
        self, query: VectorStoreQuery, result: VectorStoreQueryResult
    ) -> list[Candidate]:
        """The hits of a store with their nodes."""
        nodes = {node.node_id: node for node in result.nodes or []}
        ids = list(nodes) or list(result.ids or [])
        # Nodes that are no text are as they were when they were inserted.
        nodes |= self._kept(
            [one for one in ids if one not in nodes or nodes[one].get_type() != ObjectType.TEXT]
        )
        if missing := [node_id for node_id in ids if node_id not in nodes]:
            raise StorageError(
                f"{type(self.store).__name__} found node {missing[0]!r}, whose text is not in the docstore. "
                "Cure: load the index with the docstore that it was persisted with."
            )
        scores: Sequence[float | None] = result.similarities or [None] * len(ids)
        if is_chroma(self.store) and self.gives_cosines(query):
            cosines = chroma_cosines(
                self.store, result.similarities or [], query.query_embedding or []
            )
            pairs = sorted((-cosine, node_id) for cosine, node_id in zip(cosines, ids, strict=True))
            scores, ids = [-negated for negated, _ in pairs], [node_id for _, node_id in pairs]
        return [
            Candidate(nodes[node_id].node_id, score, nodes[node_id])
            for node_id, score in zip(ids, scores, strict=True)
        ]

    def ask(self, work: Callable[[AnyStore], T]) -> T:
        """Result of ``work``."""
        return work(self)

    def nodes(self, _: Iterable[str]) -> dict[str, BaseNode]:
        """No nodes: its hits come with them."""
        return {}

    def _kept(self, ids: Sequence[str]) -> dict[str, BaseNode]:
        """Copies of those nodes that the docstore has, by the ids of the vector store."""
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


def is_chroma(store: object) -> TypeGuard[ChromaVectorStore]:
    """Whether a store is LlamaIndex's on Chroma. It is not imported for that, which would take a second."""
    module = sys.modules.get("llama_index.vector_stores.chroma")
    return module is not None and isinstance(store, module.ChromaVectorStore)


def chroma_cosines(
    store: ChromaVectorStore, similarities: Sequence[float], question: Sequence[float]
) -> Sequence[float]:
    """Cosines of hits, whose similarities LlamaIndex makes of Chroma's distances: ``exp(-distance)``.

    Vectors that are not of unit length have no cosine here, unless the collection compares by cosines.
    """
    configuration = store.client.configuration_json
    space = (configuration.get("hnsw") or configuration.get("spann") or {}).get("space", "l2")
    if space != "cosine" and abs(math.hypot(*question) - 1) > _UNIT:
        return similarities
    halve = 2.0 if space == "l2" else 1.0  # the squared distance of unit vectors is 2 - 2 cos
    return [1.0 + math.log(similarity) / halve for similarity in similarities]


def stored_nodes(store: BasePydanticVectorStore) -> list[BaseNode]:
    """All nodes of a vector store that holds text, by their ids.

    Raises:
        SettingError: The store cannot list its nodes.
    """
    try:
        nodes = [node for page in _pages_of_ids(store) for node in _listed(store, page)]
    except (
        Exception
    ) as error:  # each has its own, an AttributeError where it has an async client alone
        cure = "Cure: pass nodes= or docstore="
        raise SettingError(
            f"{type(store).__name__} cannot list its nodes ({error!r}). {cure}."
        ) from error
    return sorted(nodes, key=lambda node: node.node_id)


def _listed(store: BasePydanticVectorStore, ids: list[str] | None) -> list[BaseNode]:
    """Nodes of a store with these ids, all for None. pgvector lists none without a filter, and takes an empty one."""
    try:
        return store.get_nodes(ids)
    except AssertionError:
        return store.get_nodes(ids, MetadataFilters(filters=[]))


def _pages_of_ids(store: BasePydanticVectorStore) -> Iterator[list[str] | None]:
    """The ids of all nodes, some at a time: of some 30,000 at once Chroma says "too many SQL variables"."""
    if not is_chroma(store):
        yield None
        return
    for offset in range(0, store.client.count(), _PAGE):
        yield store.client.get(include=[], limit=_PAGE, offset=offset)["ids"]


def portable_parts(filters: MetadataFilters | None) -> list[MetadataFilter]:
    """Those members of AND filters that every store takes as we do, so that it returns no fewer nodes.

    They are equality, IN and comparisons, with integers or texts that need no quoting. To some stores a boolean is a
    number and to some not, so filters that admit one stay here.
    """
    if filters is None or filters.condition not in {None, FilterCondition.AND}:
        return []
    parts = (
        portable_parts(one) if isinstance(one, MetadataFilters) else [one]
        for one in filters.filters
    )
    return [
        one
        for several in parts
        for one in several
        if not one.key.startswith(ITEMS) and _is_portable(one)
    ]


def _is_portable(part: MetadataFilter) -> bool:
    is_list = isinstance(part.value, list)
    values: list[Any] = part.value if isinstance(part.value, list) else [part.value]
    if (
        is_list != (part.operator == FilterOperator.IN)
        or part.operator not in _EVERYWHERE
        or not values
    ):
        return False
    if all(isinstance(one, str) for one in values):
        return part.operator in _EVERYWHERE[:2] and not set("".join(values)) & set("'\"\\\0%")
    return all(isinstance(one, int) for one in values) and not any(
        map(condition_of(part), (True, False))
    )
