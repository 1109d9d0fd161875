"""What the vector arm searches: any LlamaIndex store, or a store that something else changes.

Stores' own filters differ: some take NOT for AND, refuse nested filters or know half of the operators. So a store gets
only those parts that mean the same everywhere, each hit is checked against all of the filters, and the query is
repeated for more until there are enough or no more.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import ObjectType
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)

from llama_index_contextual.errors import ContextualWarning, CopyError, SettingError, StorageError
from llama_index_contextual.keyword import REF_DOC_ID, Candidate, admits
from llama_index_contextual.retrieval.search import MOST
from llama_index_contextual.retrieval.stored import chroma_cosines, is_chroma, portable_parts, stored_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from llama_index.core.schema import BaseNode
    from llama_index.core.storage.docstore import BaseDocumentStore
    from typing_extensions import Self

    from llama_index_contextual.retrieval.search import DenseSearch, NodeSearch, StoreReader

logger = logging.getLogger(__name__)

_MORE: Final = 4  # times as many, each time that too few hits pass
# Modes in which similarity_top_k says how many hits there are.
_COUNTED: Final = frozenset({VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR})


class NodesElsewhere:
    """Where the nodes of an index are that its vector store does not hold whole.

    ``SimpleVectorStore`` holds vectors only. Any store turns the object of an ``IndexNode`` into text.

    Args:
        docstore: Of the index.
        names: Ids of the docstore by the ids of the vector store.
    """

    def __init__(self, docstore: BaseDocumentStore, names: Mapping[str, str]) -> None:
        self._docstore = docstore
        self._names = names

    def get(self, ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return copies of those nodes that are there, by the ids of the vector store."""
        names = {node_id: self._names.get(node_id, node_id) for node_id in ids}
        nodes = self._docstore.get_nodes(list(names.values()), raise_error=False)
        by_name = {node.node_id: node for node in nodes}
        return {node_id: by_name[name].model_copy() for node_id, name in names.items() if name in by_name}

    def completed(self, nodes: Mapping[str, BaseNode]) -> dict[str, BaseNode]:
        """Return the same nodes, with those that are no text as they were when they were inserted."""
        other = [node_id for node_id, node in nodes.items() if node.get_type() != ObjectType.TEXT]
        return {**nodes, **self.get(other)} if other else dict(nodes)


class AnyStore:
    """Search a store through LlamaIndex's own interface. Copies of a retriever share it, as a store cannot be copied.

    Args:
        store: The vector store.
        elsewhere: The nodes that it does not hold.
        options: What its ``query`` takes besides.
        companion: Evaluates filters faster than the store, and those of a query's operators, and finds nodes by id.
    """

    def __init__(
        self,
        store: BasePydanticVectorStore,
        elsewhere: NodesElsewhere | None = None,
        options: Mapping[str, Any] | None = None,
        companion: NodeSearch | None = None,
    ) -> None:
        self.store = store
        self._elsewhere = elsewhere
        self._companion = companion
        self._options = dict(options or {})

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        # LlamaIndex pickles a store without its open client, and what arrives fails at its first query.
        copied = self.store.model_copy()  # pickling may take parts out of the object
        if set(copied.__getstate__().get("__pydantic_private__") or ()) != set(copied.__pydantic_private__ or ()):
            raise CopyError(
                f"a retriever over {type(self.store).__name__} cannot be pickled: the store holds an open client. "
                "Cure: pickle what makes the store, and make store and retriever where it arrives."
            )
        return dict(self.__dict__)

    def is_plain(self, query: VectorStoreQuery) -> bool:
        """Return whether a store is asked for nothing but the nearest vectors."""
        return query.mode == VectorStoreQueryMode.DEFAULT and not self._options

    @property
    def filters_words(self) -> bool:
        """Return whether it evaluates the filters of a query's operators."""
        return self._companion is not None

    def gives_cosines(self, query: VectorStoreQuery) -> bool:
        """Return whether the scores are cosine similarities."""
        return self.is_plain(query) and (isinstance(self.store, SimpleVectorStore) or is_chroma(self.store))

    def needs_vector(self, query: VectorStoreQuery) -> bool:
        """Return whether a query is to be embedded."""
        by_words = {VectorStoreQueryMode.TEXT_SEARCH, VectorStoreQueryMode.SPARSE}
        return self.store.is_embedding_query and query.mode not in by_words

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a context that changes nothing: the next question may read another state of the store."""
        return nullcontext()

    @property
    def asks_async(self) -> bool:
        """Return whether the store has a query of its own for an event loop."""
        return type(self.store).aquery is not BasePydanticVectorStore.aquery

    def search_each(self, queries: Sequence[VectorStoreQuery]) -> list[list[Candidate]]:
        """Return for each of some queries what :meth:`search` returns."""
        return [self.search(query) for query in queries]

    def search(self, query: VectorStoreQuery) -> list[Candidate]:
        """Return the best ``query.similarity_top_k`` that ``query.filters`` and ``query.node_ids`` admit, with nodes.

        Of a hybrid query that is all that the store gives: how many that is, is its own.

        Raises:
            SettingError: A filter cannot work.
            StorageError: The store names a node that nobody holds.
        """
        flow, outcome = self._flow(query), _Outcome()
        while (call := _advance(flow, outcome)) is not None:
            try:
                outcome = _Outcome(self.store.query(call, **self._arguments(call)))
            except Exception as error:  # noqa: BLE001, PERF203  the flow decides what it means
                outcome = _Outcome(error=error)
        return outcome.found

    async def asearch(self, query: VectorStoreQuery) -> list[Candidate]:
        """Return the hits of :meth:`search`, by the store's query for an event loop."""
        flow, outcome = self._flow(query), _Outcome()
        while (call := _advance(flow, outcome)) is not None:
            try:
                outcome = _Outcome(await self._aquery(call))
            except Exception as error:  # noqa: BLE001, PERF203  the flow decides what it means
                outcome = _Outcome(error=error)
        return outcome.found

    async def _aquery(self, query: VectorStoreQuery) -> VectorStoreQueryResult:
        """Return the answer of a store; by its other query, in a thread, where it was made without an async client."""
        try:
            return await self.store.aquery(query, **self._arguments(query))
        except Exception as error:  # noqa: BLE001  it is raised again
            try:
                return await asyncio.to_thread(self.store.query, query, **self._arguments(query))
            except Exception:  # noqa: BLE001  the first one counts
                raise error from None

    def _arguments(self, query: VectorStoreQuery) -> dict[str, Any]:
        """Return the keyword arguments of a query; LlamaIndex's Chroma takes ids as one of them."""
        by_ids = query.node_ids is not None and is_chroma(self.store)
        return {**self._options, "ids": query.node_ids} if by_ids else self._options

    def _flow(self, query: VectorStoreQuery) -> Flow:
        """Yield queries for the store, and return the hits."""
        most = query.similarity_top_k if query.mode in _COUNTED else None
        top_k, filters, ids = min(query.similarity_top_k, MOST), query.filters, query.node_ids
        if self._companion is not None and filters is not None:
            chosen = self._companion.selected_ids(filters)
            ids, filters = chosen if ids is None else sorted({*ids} & {*chosen}), None
            query = replace(query, node_ids=ids)
        if ids is not None:
            if not ids:
                return []
            ids = [*dict.fromkeys(ids)]
        among = None if ids is None else frozenset(ids)
        parts = portable_parts(filters)
        size, results = top_k, list[Candidate]()
        while True:
            pushed = MetadataFilters(filters=list(parts)) if parts else None
            try:
                call = replace(query, similarity_top_k=size, filters=pushed)
                candidates = self._candidates(call, (yield call))
            except Warning:  # so says LanceDB that it found nothing
                return []
            except Exception as error:
                if parts or query.node_ids:
                    logger.info("%s refuses filters (%s); its hits are filtered", type(self.store).__name__, error)
                    parts, query = [], replace(query, node_ids=None)
                    continue
                if size == top_k:
                    raise
                message = f"{type(self.store).__name__} gives no more than {size // _MORE} hits ({error})"
                warnings.warn(f"{message}; behind these there may be more.", ContextualWarning, stacklevel=2)
                return results
            admitted = [
                candidate
                for candidate in candidates
                if (node := candidate.node) is not None
                and admits(filters, {REF_DOC_ID: node.ref_doc_id, **node.metadata}, parts)
            ]
            results = [candidate for candidate in admitted if among is None or candidate.node_id in among][:most]
            if len(results) >= top_k or len(candidates) < size or (filters is None and ids is None):
                return results
            size = min(size * _MORE, MOST)

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that exist, and that the store can read by id."""
        ids = list(node_ids)
        if not ids:
            return {}
        if not self.store.stores_text:
            return self._elsewhere.get(ids) if self._elsewhere else {}
        try:
            nodes = self._companion.nodes(ids) if self._companion is not None else {}
            missing = [node_id for node_id in ids if node_id not in nodes]
            nodes |= {node.node_id: node for node in stored_nodes(self.store, missing)}
        except SettingError:  # it cannot list its nodes; its hits come with them
            return {}
        return self._elsewhere.completed(nodes) if self._elsewhere else nodes

    def _candidates(self, query: VectorStoreQuery, result: VectorStoreQueryResult) -> list[Candidate]:
        """Return the hits of a store with their nodes."""
        nodes = {node.node_id: node for node in result.nodes or []}
        ids = [node.node_id for node in result.nodes or []] or list(result.ids or [])
        if nodes and self._elsewhere:
            nodes = self._elsewhere.completed(nodes)
        elif ids and not nodes:
            nodes = self._elsewhere.get(ids) if self._elsewhere else {}
            if missing := [node_id for node_id in ids if node_id not in nodes]:
                raise StorageError(
                    f"{type(self.store).__name__} found node {missing[0]!r}, whose text is not in the docstore. "
                    "Cure: load the index with the docstore that it was persisted with."
                )
        scores: Sequence[float | None] = result.similarities or [None] * len(ids)
        if is_chroma(self.store) and self.is_plain(query):
            scores = chroma_cosines(self.store.client, ids, result.similarities or [], query.query_embedding or [])
            pairs = sorted(zip(ids, scores, strict=True), key=lambda pair: (-pair[1], pair[0]))
            ids, scores = [node_id for node_id, _ in pairs], [score for _, score in pairs]
        return [
            Candidate(nodes[node_id].node_id, score, nodes[node_id]) for node_id, score in zip(ids, scores, strict=True)
        ]


Flow = Generator[VectorStoreQuery, VectorStoreQueryResult, list[Candidate]]


@dataclass
class _Outcome:
    """What a store answered, and at the end the hits."""

    result: VectorStoreQueryResult | None = None
    error: Exception | None = None
    found: list[Candidate] = field(default_factory=list)


def _advance(flow: Flow, outcome: _Outcome) -> VectorStoreQuery | None:
    """Return the next query of a flow; None where it has ended, with the hits in the outcome."""
    try:
        if outcome.error is not None:
            return flow.throw(outcome.error)
        return next(flow) if outcome.result is None else flow.send(outcome.result)
    except StopIteration as end:
        outcome.found = end.value
        return None


class ReadStore:
    """Search a store that something else changes, by its reader.

    Args:
        reader: Gives the newest state of the store.
    """

    filters_words = True
    asks_async = False

    def __init__(self, reader: StoreReader[DenseSearch]) -> None:
        self._reader = reader

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a context in which everything that is read comes from one state of the store."""
        return self._reader.snapshot()

    def gives_cosines(self, _: VectorStoreQuery) -> bool:
        """Return whether the scores are cosine similarities."""
        return True

    def needs_vector(self, _: VectorStoreQuery) -> bool:
        """Return whether a query is to be embedded."""
        return True

    def search_each(self, queries: Sequence[VectorStoreQuery]) -> list[list[Candidate]]:
        """Return for each of some queries, which differ by their vectors alone, the best that its filters admit."""
        if not queries:
            return []
        vectors = [query.query_embedding or [] for query in queries]
        top_k, filters = queries[0].similarity_top_k, queries[0].filters
        return self._reader.ask(lambda store: store.dense_queries(vectors, top_k, filters))

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that exist."""
        ids = list(node_ids)
        return self._reader.ask(lambda store: store.nodes(ids))
