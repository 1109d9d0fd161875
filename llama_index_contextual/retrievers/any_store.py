"""Search any LlamaIndex vector store; what a store cannot filter is filtered on its hits, before the cut.

Stores' own filters differ: some take NOT for AND, refuse nested filters or know half of the operators. So a store gets
only those parts that mean the same everywhere, each hit is checked against all of the filters, and the store is asked
for more until there are enough or no more.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.schema import ObjectType
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)

from llama_index_contextual.errors import ContextualWarning, SettingError, StorageError
from llama_index_contextual.keyword.filters import ITEMS, REF_DOC_ALIASES, REF_DOC_ID, condition_of, select
from llama_index_contextual.retrievers.chroma import stored_nodes
from llama_index_contextual.retrievers.search import Candidate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.core.storage.docstore import BaseDocumentStore

logger = logging.getLogger(__name__)

_MORE: Final = 4  # times as many, each time that too few hits pass
_EVERYWHERE: Final = frozenset(
    {FilterOperator.EQ, FilterOperator.IN, *(FilterOperator(sign) for sign in (">", ">=", "<", "<="))}
)


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
    """Search a store through LlamaIndex's own interface.

    Args:
        store: The vector store.
        elsewhere: The nodes that it does not hold.
        options: What its ``query`` takes besides.
    """

    def __init__(
        self,
        store: BasePydanticVectorStore,
        elsewhere: NodesElsewhere | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = store
        self._elsewhere = elsewhere
        self._options = dict(options or {})

    def search(self, query: VectorStoreQuery) -> list[Candidate]:
        """Return the best ``query.similarity_top_k`` that ``query.filters`` and ``query.node_ids`` admit, with nodes.

        Raises:
            SettingError: A filter cannot work.
            StorageError: The store names a node that nobody holds.
        """
        top_k, filters, ids = query.similarity_top_k, query.filters, query.node_ids
        parts = portable_parts(filters)
        size, results = top_k, list[Candidate]()
        while True:
            pushed = MetadataFilters(filters=list(parts)) if parts else None
            try:
                candidates = self._ask(replace(query, similarity_top_k=size, filters=pushed))
            except Exception as error:
                if parts or query.node_ids:
                    logger.info("%s refuses filters (%s); its hits are filtered", type(self._store).__name__, error)
                    parts, query = [], replace(query, node_ids=None)
                    continue
                if size == top_k:
                    raise
                message = f"{type(self._store).__name__} gives no more than {size // _MORE} hits ({error})"
                warnings.warn(f"{message}; behind these none was looked for.", ContextualWarning, stacklevel=2)
                return results
            admitted = [
                candidate
                for candidate in candidates
                if candidate.node is not None and _admits(filters, candidate.node, parts)
            ]
            results = [candidate for candidate in admitted if ids is None or candidate.node_id in ids][:top_k]
            if len(results) == top_k or len(candidates) < size or (filters is None and ids is None):
                return results
            size *= _MORE

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that exist, and that the store can read by id."""
        ids = list(node_ids)
        if not ids:
            return {}
        if not self._store.stores_text:
            return self._elsewhere.get(ids) if self._elsewhere else {}
        try:
            nodes = {node.node_id: node for node in stored_nodes(self._store, ids)}
        except SettingError:  # it cannot list its nodes; its hits come with them
            return {}
        return self._elsewhere.completed(nodes) if self._elsewhere else nodes

    def _ask(self, query: VectorStoreQuery) -> list[Candidate]:
        try:
            result = self._store.query(query, **self._options)
        except Warning:  # so says LanceDB that it found nothing
            return []
        nodes = {node.node_id: node for node in result.nodes or []}
        ids = [node.node_id for node in result.nodes or []] or list(result.ids or [])
        if nodes and self._elsewhere:
            nodes = self._elsewhere.completed(nodes)
        elif ids and not nodes:
            nodes = self._elsewhere.get(ids) if self._elsewhere else {}
            if missing := [node_id for node_id in ids if node_id not in nodes]:
                raise StorageError(
                    f"{type(self._store).__name__} found node {missing[0]!r}, whose text is not in the docstore. "
                    "Cure: load the index with the docstore that it was persisted with."
                )
        scores: Sequence[float | None] = result.similarities or [None] * len(ids)
        return [
            Candidate(nodes[node_id].node_id, score, nodes[node_id]) for node_id, score in zip(ids, scores, strict=True)
        ]


def portable_parts(filters: MetadataFilters | None) -> list[MetadataFilter]:
    """Return those members of AND filters that every store takes as we do, so that it returns no fewer nodes.

    They are equality, IN and comparisons of numbers, with values that need no quoting. To some stores a boolean is a
    number and to some not, so filters that admit one stay here.
    """
    if filters is None or (filters.condition not in {None, FilterCondition.AND} and len(filters.filters) > 1):
        return []
    if filters.condition == FilterCondition.NOT:
        return []
    members = [
        portable_parts(member) if isinstance(member, MetadataFilters) else [member] for member in filters.filters
    ]
    return [member for parts in members for member in parts if _is_portable(member)]


def _is_portable(part: MetadataFilter) -> bool:
    if part.key.startswith(ITEMS) or part.operator not in _EVERYWHERE:
        return False
    if isinstance(part.value, list) != (part.operator == FilterOperator.IN):
        return False
    values: list[Any] = part.value if isinstance(part.value, list) else [part.value]
    holds, ranged = condition_of(part), part.operator not in {FilterOperator.EQ, FilterOperator.IN}
    plain = all(_is_plain(value) and not (ranged and isinstance(value, str)) for value in values)
    return bool(values) and plain and not any(map(holds, (True, False)))


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return not set(value) & set("'\"\\\0%")
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _admits(filters: MetadataFilters | None, node: BaseNode, pushed: Sequence[MetadataFilter]) -> bool:
    """Return whether filters admit a node; a store that looked into a list for a value was right to do so."""
    if filters is None:
        return True
    metadata = {REF_DOC_ID: node.ref_doc_id, **node.metadata}

    def test(condition: MetadataFilter) -> np.ndarray[Any, np.dtype[np.bool_]]:
        key = REF_DOC_ID if condition.key in REF_DOC_ALIASES and condition.key not in metadata else condition.key
        value, holds = metadata.get(key.removeprefix(ITEMS)), condition_of(condition)
        inside = isinstance(value, list) and any(condition is part for part in pushed) and any(map(holds, value))
        return np.array([inside or holds(value)])

    return bool(select(filters, test, 1)[0])
