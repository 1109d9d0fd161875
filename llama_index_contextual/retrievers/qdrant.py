"""Search a Qdrant collection: vectors, keywords scored by the server, and the filters of LlamaIndex.

Nothing of the collection is held in this process. A keyword's rarity (idf) is the server's own: one question for each
new term tells it, and it is remembered for a minute.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.utils import iter_batch
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilters
from llama_index.core.vector_stores.utils import metadata_dict_to_node
from qdrant_client import models
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse

from llama_index_contextual.errors import StorageError
from llama_index_contextual.keyword.evidence import MOST_TERMS, Match, Nearness, TermScores, nearness_of
from llama_index_contextual.keyword.filters import WORDS, condition_of
from llama_index_contextual.keyword.sparse import SparseEncoder, dimension_of
from llama_index_contextual.keyword.words import lexical_text, spaced
from llama_index_contextual.metadata import DATE, DATE_TS, PATH, TAGS
from llama_index_contextual.retrievers.search import MOST, Candidate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilter

    from llama_index_contextual.keyword.evidence import Group

DENSE: Final = "text-dense"  # as QdrantVectorStore of LlamaIndex calls them
SPARSE: Final = "text-sparse-new"
ID: Final = "_id"  # the node's id, where it is none that Qdrant takes
ORDER: Final = "_order"  # the codes of the node's terms in their order
FACETS: Final = (PATH, TAGS, DATE)  # keys whose distinct values the server lists quickly
NUMBERS: Final = (DATE_TS,)
PAGE: Final = 1000  # points a request
_ALL: Final = 1_000_000  # values of a key, or points that hold a term
_REMEMBERED_SECONDS: Final = 60.0

_RANGES: Final = {
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
}


class GoneError(StorageError):
    """The collection is not there (any more)."""


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Say what an error of Qdrant means: a server that is away, a collection that is gone, a refused request."""
    try:
        yield
    except (ApiException, ValueError, RuntimeError, OSError) as error:
        missing = getattr(error, "status_code", 0) == 404 or str(error).endswith("not found")  # noqa: PLR2004
        if missing:
            raise GoneError(f"Qdrant has lost the collection ({error}).") from error
        if isinstance(error, UnexpectedResponse | ValueError | RuntimeError):
            raise StorageError(
                f"Qdrant could not {what} ({error}). What is indexed is unharmed. Cure: see what the message says of "
                "the server, then try again."
            ) from error
        raise StorageError(
            f"Qdrant does not answer ({error}). What is indexed is unharmed. Cure: see that the server runs, then try "
            "again."
        ) from error


def point_id(node_id: str) -> str:
    """Return the id of a node's point: its own where that is a UUID, as Qdrant wants it, else a UUID made of it."""
    with contextlib.suppress(ValueError):
        if str(uuid.UUID(node_id)) == node_id:
            return node_id
    return str(uuid.uuid5(uuid.NAMESPACE_OID, node_id))


def id_of(point: Any) -> str:
    """Return the id of a point's node; the point comes with :data:`ID` of its payload."""
    return str((point.payload or {}).get(ID, point.id))


@contextlib.contextmanager
def _whole() -> Iterator[None]:
    """Say what it means where a payload is not what was written: bits of a file flipped, or another program wrote."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(
            f"Qdrant holds a chunk that cannot be read ({error}). Cure: drop the "
            "collection, then refresh: files are indexed again, with vectors from the cache."
        ) from error


def _node_of(point: Any) -> BaseNode:
    with _whole():
        return metadata_dict_to_node(point.payload)


def split_payload(payload: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the metadata and the text that :func:`payload_of` put together."""
    metadata = {key: value for key, value in payload.items() if key not in (ID, ORDER)}
    with _whole():
        content = json.loads(metadata.get("_node_content") or "{}")
        text = str(content.get("text", ""))
    if "text" in content:
        metadata["_node_content"] = json.dumps({**content, "text": ""})
    return metadata, text


def payload_of(metadata: Mapping[str, Any], text: str, node_id: str, codes: bytes) -> dict[str, Any]:
    """Return a point's payload: what ``QdrantVectorStore`` would have written, and the order of the node's terms."""
    content = json.loads(metadata["_node_content"])
    payload = {**metadata, "_node_content": json.dumps({**content, "text": text})}
    payload[ORDER] = base64.b64encode(codes).decode("ascii")
    return payload if point_id(node_id) == node_id else {**payload, ID: node_id}


class QdrantSearch:
    """Search one collection; see :class:`~llama_index_contextual.retrievers.search.SearchStore`.

    Args:
        client: A Qdrant client.
        collection: Name of the collection.
        encoder: Made the sparse vectors.

    Attributes:
        exact_limit: Most nodes of a collection whose every vector the server compares with a question.
    """

    def __init__(self, client: Any, collection: str, encoder: SparseEncoder) -> None:
        self.exact_limit = 0
        self._client = client
        self._collection = collection
        self._encoder = encoder
        self._guard = threading.Lock()
        self._idfs: dict[int, float] = {}
        self._count, self._counted_at = 0, -math.inf

    # Nodes and filters

    def count(self) -> int:
        """Return the number of nodes."""
        with explained("count"):
            return int(self._client.count(self._collection, exact=True).count)

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that exist."""
        points = self._points(node_ids, payload=models.PayloadSelectorExclude(exclude=[ORDER]))
        return {id_of(one): _node_of(one) for one in points}

    def values(self, key: str, node_ids: Iterable[str]) -> dict[str, Any]:
        """Return the nodes' values of a metadata key, and nothing else of them."""
        return {id_of(one): (one.payload or {}).get(key) for one in self._points(node_ids, payload=[ID, key])}

    def selected_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Return the ids of all nodes that the filters admit."""
        return [id_of(one) for one in self.scroll(self._filter(filters), payload=[ID])]

    def scroll(
        self, wanted: models.Filter | None = None, *, payload: Any = True, vectors: bool | list[str] = False
    ) -> Iterator[Any]:
        """Yield points, all or those that a filter of Qdrant admits."""
        offset: Any = None
        while True:
            with explained("read nodes"):
                points, offset = self._client.scroll(
                    self._collection,
                    scroll_filter=wanted,
                    limit=PAGE,
                    offset=offset,
                    with_payload=payload,
                    with_vectors=vectors,
                )
            yield from points
            if offset is None:
                return

    def _points(self, node_ids: Iterable[str], *, payload: Any, vectors: bool | list[str] = False) -> list[Any]:
        found: list[Any] = []
        for part in iter_batch(map(point_id, node_ids), PAGE):
            with explained("read nodes"):
                found += self._client.retrieve(self._collection, part, with_payload=payload, with_vectors=vectors)
        return found

    def _filter(self, filters: MetadataFilters | None) -> models.Filter | None:
        if filters is None or not filters.filters:
            return None
        parts: list[Any] = [
            self._filter(one) or models.Filter() if isinstance(one, MetadataFilters) else self._condition(one)
            for one in filters.filters
        ]
        if filters.condition == FilterCondition.OR:
            return models.Filter(should=parts)
        return models.Filter(must_not=parts) if filters.condition == FilterCondition.NOT else models.Filter(must=parts)

    def _condition(self, one: MetadataFilter) -> Any:
        """Return a filter in Qdrant's form: its own comparison where that means the same, else the values that pass."""
        if one.key == WORDS:
            return models.HasIdCondition(has_id=self._holding(one))
        holds = condition_of(one)
        equal = one.operator == FilterOperator.EQ
        if _is_number(one.value) and (equal or one.operator in _RANGES):
            limits = {"gte": one.value, "lte": one.value} if equal else {_RANGES[one.operator]: one.value}
            # To Qdrant no boolean is a number.
            named = [models.MatchValue(value=value) for value in (True, False) if holds(value)]
            ways: list[dict[str, Any]] = [{"range": models.Range(**limits)}, *({"match": own} for own in named)]
            return models.Filter(should=[models.FieldCondition(key=one.key, **way) for way in ways])
        among = [one.value] if equal else one.value if one.operator == FilterOperator.IN else None
        if among and isinstance(among, list) and all(isinstance(value, str) for value in among):
            return models.FieldCondition(key=one.key, match=models.MatchAny(any=[str(value) for value in among]))
        if one.key in FACETS:
            parts: list[Any] = [models.IsEmptyCondition(is_empty=models.PayloadField(key=one.key))]
            parts = parts if holds(None) else []
            texts = [value for value in self._values_of(one.key) if holds(value)]
            parts += [models.FieldCondition(key=one.key, match=models.MatchAny(any=texts))] if texts else []
            return models.Filter(should=parts) if parts else models.HasIdCondition(has_id=[])
        points = self.scroll(payload=[one.key])
        return models.HasIdCondition(has_id=[p.id for p in points if holds((p.payload or {}).get(one.key))])

    def _values_of(self, key: str) -> list[str]:
        with explained("list values"):
            found = self._client.facet(self._collection, key=key, limit=_ALL, exact=True)
        return [str(hit.value) for hit in found.hits]

    def _holding(self, one: MetadataFilter) -> list[Any]:
        """Return the points that hold the words of a filter on WORDS, for TEXT_MATCH side by side."""
        groups = self._encoder.analyzer.query_groups(str(one.value))
        if not groups:
            return []
        each = [{point.id for point in self._sparse(dict.fromkeys(_dimensions(g), 1.0), _ALL)} for g in groups]
        held = set.intersection(*each)
        if one.operator != FilterOperator.TEXT_MATCH or not held:
            return list(held)
        phrase = spaced(str(one.value))
        with explained("read nodes"):
            points = self._client.retrieve(self._collection, list(held), with_payload=True)
        return [p.id for p in points if phrase in spaced(lexical_text(_node_of(p)))]

    # The vector arm

    def dense_query(
        self, embedding: Sequence[float], top_k: int, filters: MetadataFilters | None = None
    ) -> list[Candidate]:
        """Return the ``top_k`` nodes nearest to a vector; scores are cosine similarities."""
        wanted = self._filter(filters)
        with explained("compare vectors"):
            found = self._client.query_points(
                self._collection,
                query=list(embedding),
                using=DENSE,
                limit=min(top_k, MOST),
                query_filter=wanted,
                with_payload=[ID],
                search_params=models.SearchParams(exact=self._known_count() <= self.exact_limit),
            ).points
        pairs = sorted(((id_of(one), float(one.score)) for one in found), key=lambda pair: (-pair[1], pair[0]))
        return [Candidate(node_id, score) for node_id, score in pairs]

    # The keyword arm

    def keyword_query(self, groups: Sequence[Group], top_k: int, filters: MetadataFilters | None = None) -> list[Match]:
        """Return the best ``top_k`` nodes that hold a term, best first, ties by id."""
        if not groups:
            return []
        distinct = tuple(dict.fromkeys(groups))
        weights: dict[int, float] = {}
        idfs = self._learned(distinct)
        for group, idf in zip(distinct, self._group_idfs(distinct), strict=True):
            for dimension in _dimensions(group):  # the server weighs each alternative; together they are one term
                own = idfs[dimension]
                weights[dimension] = max(weights.get(dimension, 0.0), idf / own if own else 1.0)
        found = self._sparse(weights, top_k, self._filter(filters))
        matches = [Match(id_of(one), float(one.score)) for one in found if one.score > 0]
        return sorted(matches, key=lambda match: (-match.score, match.node_id))

    def term_scores(self, groups: Sequence[Group], node_ids: Sequence[str]) -> TermScores:
        """Return what each term adds to the keyword score of each node; repeated terms count once."""
        distinct = tuple(dict.fromkeys(groups))
        idfs = self._group_idfs(distinct)
        points = {id_of(one): one for one in self._points(node_ids, payload=[ID], vectors=[SPARSE])}
        scores = np.zeros((len(node_ids), len(distinct)))
        for row, node_id in enumerate(node_ids):
            held = _sparse_of(points[node_id]) if node_id in points else {}
            for column, (group, idf) in enumerate(zip(distinct, idfs, strict=True)):
                scores[row, column] = idf * sum(held.get(dimension, 0.0) for dimension in _dimensions(group))
        return TermScores(distinct, tuple(map(self._frequency, idfs)), tuple(idfs), scores)

    def nearness(self, groups: Sequence[Group], node_ids: Sequence[str]) -> Nearness:
        """Return how near to each other neighbouring terms of a query stand in each node."""
        distinct = tuple(dict.fromkeys(groups))[:MOST_TERMS]
        found = self._points(node_ids, payload=[ID, ORDER])
        codes = {id_of(one): base64.b64decode((one.payload or {}).get(ORDER, "")) for one in found}
        parts = [codes.get(node_id, b"") for node_id in node_ids]
        together = np.frombuffer(b"".join(parts), dtype="<u2"), np.array([len(part) // 2 for part in parts], np.int64)
        return nearness_of(distinct, self._group_idfs(distinct), len(node_ids), lambda: together)

    def _sparse(self, weights: Mapping[int, float], top_k: int, wanted: models.Filter | None = None) -> list[Any]:
        with explained("search by keywords"):
            return list(
                self._client.query_points(
                    self._collection,
                    query=models.SparseVector(indices=list(weights), values=list(weights.values())),
                    using=SPARSE,
                    limit=min(top_k, MOST),
                    query_filter=wanted,
                    with_payload=[ID],
                ).points
            )

    def _group_idfs(self, groups: Sequence[Group]) -> list[float]:
        """Return the weight of each term: the rarity of all its alternatives together."""
        idfs = self._learned(groups)
        counts = [sum(self._frequency(idfs[dimension]) for dimension in _dimensions(group)) for group in groups]
        return [_idf(min(count, self._count), self._count) for count in counts]

    def _learned(self, groups: Sequence[Group]) -> Mapping[int, float]:
        """Return the rarity of all alternatives; asks for those that are not known yet.

        A score is the idf times what the point's vector says. What is returned only grows: another thread that forgets
        begins with a new object.
        """
        with self._guard:
            self._forget_old()
            idfs = self._idfs
            unknown = sorted({dimension for group in groups for dimension in _dimensions(group)} - set(idfs))
            if not unknown:
                return idfs
            asked = [
                models.QueryRequest(
                    query=models.SparseVector(indices=[dimension], values=[1.0]),
                    using=SPARSE,
                    limit=1,
                    with_vector=[SPARSE],
                )
                for dimension in unknown
            ]
            with explained("look up terms"):
                answers = self._client.query_batch_points(self._collection, requests=asked)
            for dimension, answer in zip(unknown, answers, strict=True):
                best = next(iter(answer.points), None)
                held = _sparse_of(best).get(dimension) if best is not None else None
                idfs[dimension] = float(best.score) / held if best is not None and held else _idf(0, self._count)
            return idfs

    def _known_count(self) -> int:
        """Return how many nodes there are, as of a minute ago at most."""
        with self._guard:
            self._forget_old()
            return self._count

    def _forget_old(self) -> None:
        if time.monotonic() - self._counted_at > _REMEMBERED_SECONDS:
            self._idfs = {}
            self._count, self._counted_at = self.count(), time.monotonic()

    def _frequency(self, idf: float) -> int:
        """Return how many nodes hold a term of that rarity."""
        return max(round((self._count + 1) / math.exp(idf) - 0.5), 0)


def _idf(frequency: int, count: int) -> float:
    return math.log(1 + (count - frequency + 0.5) / (frequency + 0.5))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _dimensions(group: Group) -> list[int]:
    return list(dict.fromkeys(map(dimension_of, group)))


def _sparse_of(point: Any) -> dict[int, float]:
    vector = (point.vector or {}).get(SPARSE)
    return {} if vector is None else dict(zip(vector.indices, vector.values, strict=True))
