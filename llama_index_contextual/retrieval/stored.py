"""Nodes that a LlamaIndex store lists, the cosines of Chroma, and the filters that every store takes as we do."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np
from llama_index.core.utils import iter_batch
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from llama_index_contextual.errors import SettingError
from llama_index_contextual.keyword import ITEMS, condition_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.vector_stores.chroma import ChromaVectorStore


_PAGE: Final = 1000  # nodes that a store is asked for by id at a time
_UNIT: Final = 1e-3  # how far from 1 the length of a normalised vector may be
_CANNOT_LIST: Final = (NotImplementedError, AssertionError, ValueError, TypeError)  # as stores say that they do not
_EVERYWHERE: Final = frozenset(
    {FilterOperator.EQ, FilterOperator.IN, *(FilterOperator(sign) for sign in (">", ">=", "<", "<="))}
)


def is_chroma(store: object) -> TypeGuard[ChromaVectorStore]:
    """Return whether a store is LlamaIndex's on Chroma. It is not imported for that, which would take a second."""
    module = sys.modules.get("llama_index.vector_stores.chroma")
    return module is not None and isinstance(store, module.ChromaVectorStore)


def chroma_cosines(
    collection: Any, ids: Sequence[str], similarities: Sequence[float], question: Sequence[float]
) -> list[float]:
    """Cosines of the hits of a collection, whose similarities LlamaIndex makes of distances: ``exp(-distance)``.

    Of unit vectors the distance gives the cosine; of others it is computed from the vectors.
    """
    configuration = collection.configuration_json
    space = (configuration.get("hnsw") or configuration.get("spann") or {}).get("space", "l2")
    length = math.hypot(*question)
    if space == "cosine" or abs(length - 1) <= _UNIT:
        halve = 2.0 if space == "l2" else 1.0  # the squared distance of unit vectors is 2 - 2 cos
        return [1.0 + math.log(similarity) / halve for similarity in similarities]
    vectors = dict[str, Any]()
    for part in iter_batch(ids, _PAGE):
        page = collection.get(ids=part, include=["embeddings"])
        vectors.update(zip(page["ids"], page["embeddings"], strict=True))
    every = np.array([vectors[node_id] for node_id in ids], np.float64).reshape(len(ids), -1)
    norms = np.linalg.norm(every, axis=1) * length
    cosines: list[float] = (every @ np.asarray(question, np.float64) / np.where(norms == 0, 1.0, norms)).tolist()
    return cosines


def stored_nodes(store: BasePydanticVectorStore, node_ids: Sequence[str] | None = None) -> list[BaseNode]:
    """Nodes of a vector store that holds text, all or those with some ids; of Chroma by their ids.

    Raises:
        SettingError: The store cannot list its nodes.
    """
    parts = [None] if node_ids is None else [*iter_batch(node_ids, _PAGE)]
    try:
        nodes = [node for part in parts for node in store.get_nodes(part)]
    except _CANNOT_LIST as error:
        if node_ids is None or isinstance(error, NotImplementedError):
            cure = "Cure: pass nodes= or docstore="
            raise SettingError(f"{type(store).__name__} cannot list its nodes ({error!r}). {cure}.") from error
        return [node for node in store.get_nodes(None) if node.node_id in set(node_ids)]
    except Exception:
        if node_ids is None:
            raise
        # LanceDB's adapter takes ids for names of columns.
        return [node for node in store.get_nodes(None) if node.node_id in set(node_ids)]
    return sorted(nodes, key=lambda node: node.node_id) if is_chroma(store) else nodes


def stored_ids(store: BasePydanticVectorStore) -> list[str]:
    """Ids of all nodes of a vector store."""
    if is_chroma(store):
        return list(store.client.get(include=[])["ids"])
    return [node.node_id for node in stored_nodes(store)]


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
