"""Search Chroma: pages of nodes, ids with cosine scores, the filters that Chroma evaluates as we do, and what it loses.

A graph of neighbours misses some vectors, above all small groups beside a large one, and does not report it. So some
stored vectors are asked for: each itself, and one that is about as far from it as a good question.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np
import numpy.typing as npt
from llama_index.core.utils import iter_batch
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node

from llama_index_contextual.errors import SettingError
from llama_index_contextual.keyword import ITEMS, admits, condition_of
from llama_index_contextual.matrix import units_of
from llama_index_contextual.retrieval.search import MOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.vector_stores.chroma import ChromaVectorStore


# Nodes a request, which bounds SQLite's variables and memory: after pages of 5,000 texts a process keeps 150 MB.
PAGE: Final = 1000
# With Chroma's own 16, 100 and 100 its graph finds 71 % of the ten nearest where thirty notes are beside a document of
# 11,500 chunks, and all of them with these; making it takes 0.7 ms of a core more for each vector. results/exact.md
GRAPH: Final = {"max_neighbors": 64, "ef_construction": 800, "ef_search": 2000}
_UNIT: Final = 1e-3  # how far from 1 the length of a normalised vector may be

# What Chroma says for a moment while another thread writes the first vectors of a collection.
_STARTING: Final = "Nothing found on disk"

_ORDERED: Final = frozenset({FilterOperator.GT, FilterOperator.GTE, FilterOperator.LT, FilterOperator.LTE})
_SETS: Final = frozenset({FilterOperator.EQ, FilterOperator.NE, FilterOperator.IN, FilterOperator.NIN})
_OPERATORS: Final = {operator: f"${operator.name.lower()}" for operator in _ORDERED | _SETS}


def is_chroma(store: object) -> TypeGuard[ChromaVectorStore]:
    """Return whether a store is LlamaIndex's on Chroma. It is not imported for that, which would take a second."""
    module = sys.modules.get("llama_index.vector_stores.chroma")
    return module is not None and isinstance(store, module.ChromaVectorStore)


def stored_nodes(store: BasePydanticVectorStore, node_ids: Sequence[str] | None = None) -> list[BaseNode]:
    """Return the nodes of a vector store that holds text, all or those with these ids; Chroma's are sorted by id.

    Raises:
        SettingError: The store cannot list its nodes.
    """
    if is_chroma(store):
        return sorted(nodes_of(store.client, node_ids), key=lambda node: node.node_id)
    wanted = None if node_ids is None else list(node_ids)
    try:
        return list(store.get_nodes(wanted))
    except NotImplementedError as error:
        raise SettingError(f"{type(store).__name__} cannot list its nodes. Cure: pass nodes= or docstore=.") from error
    except Exception:
        if wanted is None:
            raise
        # LanceDB's adapter takes ids for names of columns.
        return [node for node in store.get_nodes(None) if node.node_id in set(wanted)]


def stored_ids(store: BasePydanticVectorStore) -> list[str]:
    """Return the ids of all nodes of a vector store."""
    if is_chroma(store):
        return list(store.client.get(include=[])["ids"])
    return [node.node_id for node in stored_nodes(store)]


def nodes_of(collection: Any, node_ids: Iterable[str] | None = None) -> Iterator[BaseNode]:
    """Yield the nodes with these ids, or all; unknown ids are left out."""
    for page in pages(collection, ["metadatas", "documents"], node_ids=node_ids):
        for metadata, text in zip(page["metadatas"], page["documents"], strict=True):
            yield metadata_dict_to_node(metadata, text=text)


def pages(collection: Any, include: Sequence[str], node_ids: Iterable[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield what Chroma holds of nodes, in one order whatever is included; unknown ids are left out.

    Pages are read by ids: with an offset Chroma reads all rows for each page, 4 s each at half a million.

    Args:
        collection: A Chroma collection.
        include: What of each node, as Chroma names it.
        node_ids: Which nodes; default all.
    """
    ids = collection.get(include=[])["ids"] if node_ids is None else node_ids
    for part in iter_batch(ids, PAGE):
        page = collection.get(ids=part, include=list(include))
        if page["ids"]:  # on a server others may have deleted them meanwhile
            yield page


def nearest(
    collection: Any,
    embedding: Sequence[float],
    top_k: int,
    *,
    where: dict[str, Any] | None = None,
    ids: Sequence[str] | None = None,
) -> list[tuple[str, float]]:
    """Return ids and cosine similarities (-1 to 1) of the nearest vectors, best first, ties by id.

    Args:
        collection: A Chroma collection of any distance function.
        embedding: The query's vector.
        top_k: Most results.
        where: Chroma's own filter.
        ids: Only these; ids that are not in the collection are ignored.
    """
    if ids is not None and not ids:
        return []
    query = np.asarray(embedding, dtype=np.float64)
    length = float(np.linalg.norm(query))
    space = space_of(collection)
    # Unit vectors give cosine from the distance alone; for others it needs the vectors.
    exact = space != "cosine" and abs(length - 1) > _UNIT
    include = ["distances", "embeddings"] if exact else ["distances"]
    most = min(top_k, MOST)
    hits = queried(collection, ids, query_embeddings=[list(embedding)], n_results=most, include=include, where=where)
    if exact:
        vectors = np.asarray(hits["embeddings"][0], dtype=np.float64).reshape(len(hits["ids"][0]), -1)
        norms = np.linalg.norm(vectors, axis=1) * length
        similarities = (vectors @ query / np.where(norms == 0, 1.0, norms)).tolist()
    else:
        halve = 2.0 if space == "l2" else 1.0  # squared distance of unit vectors = 2 - 2 cos
        similarities = [1.0 - distance / halve for distance in hits["distances"][0]]
    return sorted(zip(hits["ids"][0], similarities, strict=True), key=lambda pair: (-pair[1], pair[0]))


def queried(collection: Any, ids: Sequence[str] | None, **options: Any) -> Any:
    """Return what a query of Chroma gives, among some ids or all; ids that are not in the collection are ignored."""
    try:
        return collection.query(ids=ids if ids is None else list(ids), **options)
    except Exception as error:
        if _STARTING in str(error):  # by now they are written
            return collection.query(ids=ids if ids is None else list(ids), **options)
        # Chroma answers an id that it does not hold with an internal error.
        present = None if ids is None else [i for page in pages(collection, [], node_ids=ids) for i in page["ids"]]
        if present is None or len(present) == len(ids or ()):
            raise
    if not present:
        return {"ids": [[]], "distances": [[]], "embeddings": [[]]}
    return queried(collection, present, **options)


def space_of(collection: Any) -> str:
    """Return the collection's distance function: "l2", "cosine" or "ip"."""
    configuration = collection.configuration_json
    return str((configuration.get("hnsw") or configuration.get("spann") or {}).get("space", "l2"))


def to_where(filters: MetadataFilters) -> dict[str, Any] | None:
    """Return Chroma's form of filters, None where Chroma would refuse them or answer otherwise than our evaluator."""
    condition = filters.condition or FilterCondition.AND
    if condition == FilterCondition.NOT or not filters.filters:
        return None
    members = [to_where(one) if isinstance(one, MetadataFilters) else _one(one) for one in filters.filters]
    if any(member is None for member in members):
        return None
    return members[0] if len(members) == 1 else {f"${condition.value}": members}


def _one(one: MetadataFilter) -> dict[str, Any] | None:
    operator = _OPERATORS.get(one.operator)
    values = one.value if isinstance(one.value, list) else [one.value]
    is_list = one.operator in {FilterOperator.IN, FilterOperator.NIN}
    if (
        operator is None
        or one.key.startswith(ITEMS)
        or is_list != isinstance(one.value, list)
        or not values
        or None in values
    ):
        return None
    if one.operator in _ORDERED and not isinstance(one.value, (int, float)):  # $gt on text is an error
        return None
    # Chroma 1.5 cuts 3.5 to 3 where it compares it with stored integers: 3 >= 3.5 holds.
    if any(isinstance(value, float) and not value.is_integer() for value in values):
        return None
    # To Chroma no boolean is a number; where our evaluator says otherwise of one, it is named as well.
    holds, negative = condition_of(one), one.operator in {FilterOperator.NE, FilterOperator.NIN}
    named = [{one.key: {"$ne" if negative else "$eq": value}} for value in (True, False) if holds(value) != negative]
    where = {one.key: {operator: one.value}}
    return {"$and" if negative else "$or": [where, *named]} if named else where


def select_ids(collection: Any, filters: MetadataFilters | None) -> list[str]:
    """Return the ids that filters admit, by reading all metadata: 0.2 s for 10,000 nodes."""
    return [
        node_id
        for page in pages(collection, ["metadatas"])
        for node_id, metadata in zip(page["ids"], page["metadatas"], strict=True)
        if admits(filters, metadata)
    ]


logger = logging.getLogger(__name__)
Floats = npt.NDArray[np.float32]

TOP: Final = 10
ENOUGH: Final = 0.98  # of the true ten nearest, or of the sample: less is worth a word
_AWAY: Final = 0.8  # length of what is added to a vector of length 1: their cosine is then 0.78
_SAME: Final = 1e-4  # cosines that differ by less are equal: stores round
_LEAST: Final = 200  # vectors: a graph of fewer loses next to nothing
_SAMPLE: Final = 128
_ROUNDS: Final = 4  # in which other documents are looked for
_DOCUMENT: Final = "ref_doc_id"  # LlamaIndex's key


def made_questions(vectors: npt.ArrayLike) -> Floats:
    """Return two questions of each vector, shape ``(2 * vectors, dimensions)``: itself, and one away from it."""
    plain = np.asarray(vectors, dtype=np.float32)
    noise = np.random.default_rng(0).standard_normal(plain.shape)
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    away = plain + _AWAY * lengths * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    return np.concatenate([plain, away.astype(np.float32)])


def found_share(
    pages: Iterable[tuple[Sequence[str], Floats]], questions: Floats, answers: Sequence[Sequence[str]]
) -> float:
    """Return which share of the true :data:`TOP` nearest some answers hold, 0 to 1; equally near ones count as well.

    Args:
        pages: Ids and vectors of everything that there is.
        questions: Vectors, shape ``(questions, dimensions)``.
        answers: The ids that were found for each question.
    """
    units = units_of(questions)
    best = np.full((len(units), 0), -np.inf, dtype=np.float32)
    answer_scores = [dict.fromkeys(answer[:TOP], -np.inf) for answer in answers]
    for ids, vectors in pages:
        cosines = units @ units_of(vectors).T
        best = -np.sort(-np.concatenate([best, cosines], axis=1), axis=1)[:, :TOP]
        columns = {id_: column for column, id_ in enumerate(ids)}
        for row, answer in enumerate(answer_scores):
            answer.update({id_: float(cosines[row, columns[id_]]) for id_ in answer if id_ in columns})
    if not best.size:
        return 1.0
    count: int = sum(
        score >= least - _SAME
        for answer, least in zip(answer_scores, best[:, -1].tolist(), strict=True)
        for score in answer.values()
    )
    return count / int(best.size)
