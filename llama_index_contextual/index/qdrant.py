"""Nodes in Qdrant: dense and sparse vectors in one collection of a server.

No setting names a folder for Qdrant's local mode, which reads points with ``pickle``; a local client of the user's own
may be given.

A point is what ``QdrantVectorStore(enable_hybrid=True)`` of LlamaIndex would have written with our analyzer as its
sparse functions, so that the stock class reads it. The server weighs terms by their rarity (``Modifier.IDF``), and no
process holds a keyword index.
"""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.schema import MetadataMode
from llama_index.core.utils import iter_batch
from qdrant_client import QdrantClient, models
from qdrant_client.local.qdrant_local import QdrantLocal

from llama_index_contextual.errors import FingerprintError, StorageError
from llama_index_contextual.index.store import EMBED_HASH, ENTRY, DamagedError, Row, Stored, to_node
from llama_index_contextual.keyword.evidence import code_of
from llama_index_contextual.keyword.sparse import SparseEncoder
from llama_index_contextual.keyword.words import lexical_text
from llama_index_contextual.retrievers.qdrant import (
    DENSE,
    FACETS,
    ID,
    NUMBERS,
    PAGE,
    SPARSE,
    GoneError,
    QdrantSearch,
    explained,
    id_of,
    payload_of,
    point_id,
    split_payload,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from llama_index_contextual.retrievers.search import DenseSearch, KeywordSearch, NodeSearch

_MODEL: Final = "embedding_model"  # in the collection's own metadata
_LEAST: Final = (1, 16)  # the first server that keeps such metadata
_BATCH: Final = 128  # points a request
_SECONDS: Final = 60  # that a request may take
_KEY: Final = "QDRANT_API_KEY"
ENCODER: Final = SparseEncoder()


class _OneAtATime:
    """A local client as one thread at a time may use it; the threads of this process share it."""

    def __init__(self, client: QdrantClient) -> None:
        self._client = client
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                return method(*arguments, **options)

        return call


# Our pages say it of the local mode. Once and here: catch_warnings() changes the filters of the whole process, and
# two threads that leave it in another order silence every warning.
_NEEDLESS: Final = (
    "Local mode is not recommended",
    "Payload indexes have no effect in the local Qdrant",
    "Local mode performs exact",
)
warnings.filterwarnings("ignore", f"({'|'.join(_NEEDLESS)})")


class QdrantDatabase:
    """The collections of one Qdrant client.

    Args:
        client: Of a server, or a local one.
    """

    def __init__(self, client: Any) -> None:
        local = isinstance(getattr(client, "_client", None), QdrantLocal)
        self._client = _OneAtATime(client) if local else client

    @classmethod
    def served(cls, url: str) -> QdrantDatabase:
        """Return the database of a server; its key is in the environment variable QDRANT_API_KEY, if it has one.

        Args:
            url: ``http://HOST:PORT``; the port is 6333 by default.

        Raises:
            StorageError: It cannot be reached, is another program, or too old.
        """
        client = QdrantClient(url=url, api_key=os.environ.get(_KEY), timeout=_SECONDS, check_compatibility=False)
        try:
            version = str(client.info().version)
            known = tuple(int(part) for part in version.split(".")[:2])
        except Exception as error:  # of a missing server, and of an answer that it does not understand
            said = " ".join(str(error).split())
            raise StorageError(
                f"no Qdrant server answers at {url} ({said}). What is indexed is unharmed. Cure: start it, correct the "
                f"address, or set {_KEY}."
            ) from error
        if known < _LEAST:
            least = ".".join(map(str, _LEAST))
            raise StorageError(
                f"the Qdrant server at {url} has version {version}. What is indexed is unharmed. Cure: {least} or "
                "later."
            )
        return cls(client)

    def names(self) -> list[str]:
        """Return the names of all collections."""
        with explained("list collections"):
            return [one.name for one in self._client.get_collections().collections]

    def collection(self, name: str, model: str = "", *, create: bool = True) -> QdrantStore:
        """Return a collection; one that is missing is made by its first write, or is a :class:`DamagedError`."""
        with explained("look for a collection"):
            exists = self._client.collection_exists(name)
        if not exists and not create:
            raise DamagedError(f"Qdrant has no collection {name!r}.")
        return QdrantStore(self._client, name, model, exists=exists)

    def drop(self, name: str) -> None:
        """Delete a collection; one that does not exist is ignored."""
        with suppress(GoneError), explained("drop a collection"):
            self._client.delete_collection(name)

    def close(self) -> None:
        """Keep the connection: whoever made the client closes it."""


class QdrantStore:
    """One collection of nodes; see :class:`~llama_index_contextual.index.store.NodeStore`.

    Args:
        client: Of the database.
        name: Of the collection.
        model: Identity of the embedding model, which a new collection remembers.
        exists: Whether it is there; else the first write makes it, as only then the length of vectors is known.

    Raises:
        StorageError: It is another program's.
    """

    def __init__(self, client: Any, name: str, model: str, *, exists: bool) -> None:
        self._client = client
        self.name = name
        self._model = model
        self._search = QdrantSearch(client, name, ENCODER)
        self._length = 0  # of its vectors
        if exists:
            self._look()

    def _look(self) -> None:
        with explained("open a collection"):
            config = self._client.get_collection(self.name).config
        vectors, sparse = config.params.vectors, config.params.sparse_vectors
        if not isinstance(vectors, dict) or DENSE not in vectors or SPARSE not in (sparse or {}):
            raise StorageError(
                f"the collection {self.name!r} of Qdrant is not one of an index. It is unharmed. Cure: another name, "
                "by an address that ends in #NAME."
            )
        self._length = vectors[DENSE].size
        self._model = str((config.metadata or {}).get(_MODEL, ""))

    @property
    def model(self) -> str:
        """Return the identity of the embedding model, "" where the collection does not say."""
        return self._model

    def search(self, companion: NodeSearch | None = None, *, exact_limit: int = 0) -> DenseSearch:  # noqa: ARG002
        """Return the side that retrievers ask; it needs no companion."""
        self._search.exact_limit = exact_limit
        return self._search

    def keywords(self) -> KeywordSearch | None:
        """Return the same: the server scores keywords."""
        return self._search

    def stamp(self) -> str:
        """Return whether the collection is there; nobody derives anything from it, so nobody asks for more."""
        with explained("look for a collection"):
            return "there" if self._client.collection_exists(self.name) else "gone"

    def touch(self) -> None:
        """Do nothing, for that reason."""

    def check(self) -> None:
        """Read one point with its vectors."""
        if self._length:
            with explained("read nodes"):
                self._client.scroll(self.name, limit=1, with_vectors=True)

    def count(self) -> int:
        """Return the number of nodes."""
        return self._search.count() if self._length else 0

    def of_entries(self, entries: Sequence[str]) -> dict[str, list[Stored]]:
        """Return stored nodes by manifest entry; entries without nodes are absent."""
        found: dict[str, list[Stored]] = {}
        for part in iter_batch(entries, 500):
            condition = models.FieldCondition(key=ENTRY, match=models.MatchAny(any=part))
            for stored, _ in self._read(models.Filter(must=[condition])):
                found.setdefault(stored.entry, []).append(stored)
        return found

    def all(self) -> Iterator[Stored]:
        """Yield every stored node, without text and vectors."""
        for stored, _ in self._read():
            yield stored

    def all_with_text(self) -> Iterator[tuple[Stored, str]]:
        """Yield every stored node and its text."""
        yield from self._read()

    def _read(self, wanted: models.Filter | None = None) -> Iterator[tuple[Stored, str]]:
        for point in self._scroll(wanted):
            yield _stored(point)

    def _scroll(self, wanted: models.Filter | None = None, **options: Any) -> Iterator[Any]:
        return self._search.scroll(wanted, **options) if self._length else iter(())

    def rows(self) -> Iterator[list[Row]]:
        """Yield every stored node with its vector, a page at a time."""
        for page in iter_batch(self._scroll(vectors=[DENSE]), PAGE):
            read = [(*_stored(point), point.vector[DENSE]) for point in page]
            yield [Row(to_node(one, text), dict(one.metadata), vector=vector) for one, text, vector in read]

    def vectors(self, ids: Sequence[str] | None = None) -> Iterator[tuple[list[str], npt.NDArray[np.float32]]]:
        """Yield ids and vectors, shape ``(ids, dimensions)``, a page at a time."""
        wanted = None if ids is None else models.Filter(must=[models.HasIdCondition(has_id=[*map(point_id, ids)])])
        for page in iter_batch(self._scroll(wanted, payload=[ID], vectors=[DENSE]), PAGE):
            yield [id_of(point) for point in page], np.array([point.vector[DENSE] for point in page], dtype=np.float32)

    def without_vectors(self) -> list[str]:
        """Return the ids of nodes that lack the dense or the sparse vector."""
        points = self._scroll(payload=["_id"], vectors=[DENSE, SPARSE])
        return [id_of(point) for point in points if not {DENSE, SPARSE} <= set(point.vector or {})]

    def upsert(self, rows: Sequence[Row]) -> None:
        """Write nodes with both vectors."""
        for part in iter_batch(rows, _BATCH):
            length = len(part[0].vector or ())
            if not self._length:
                self._make(length)
            if length != self._length:
                raise FingerprintError(
                    f"the collection {self.name!r} of Qdrant has vectors of {self._length} dimensions, and these have "
                    f"{length}. Nothing was written. Cure: the former embedding, or another name: #NAME."
                )
            points = [
                models.PointStruct(
                    id=point_id(row.node.node_id),
                    payload=_payload(row),
                    vector={DENSE: [float(x) for x in row.vector or ()], SPARSE: sparse},
                )
                for row, sparse in zip(part, _sparse(part), strict=True)
            ]
            with explained("write nodes"):
                self._client.upsert(self.name, points=points, wait=True)

    def _make(self, length: int) -> None:
        """Make the collection, unless another process just did."""
        try:
            with explained("make a collection"):
                self._client.create_collection(
                    self.name,
                    vectors_config={DENSE: models.VectorParams(size=length, distance=models.Distance.COSINE)},
                    sparse_vectors_config={SPARSE: models.SparseVectorParams(modifier=models.Modifier.IDF)},
                    metadata={_MODEL: self._model},
                )
        except StorageError:
            if not self._client.collection_exists(self.name):
                raise
        with explained("index the metadata"):
            kinds = dict.fromkeys((ENTRY, "doc_id", *FACETS), models.PayloadSchemaType.KEYWORD)
            kinds |= dict.fromkeys(NUMBERS, models.PayloadSchemaType.INTEGER)
            for key, kind in kinds.items():
                self._client.create_payload_index(self.name, field_name=key, field_schema=kind, wait=True)
        self._look()

    def update_metadata(self, rows: Sequence[Row]) -> None:
        """Give stored nodes new metadata, and the keywords that follow from it; dense vectors stay."""
        for part in iter_batch(rows, _BATCH):
            operations: list[Any] = [
                models.OverwritePayloadOperation(
                    overwrite_payload=models.SetPayload(payload=_payload(row), points=[point_id(row.node.node_id)])
                )
                for row in part
            ]
            vectors = [
                models.PointVectors(id=point_id(row.node.node_id), vector={SPARSE: sparse})
                for row, sparse in zip(part, _sparse(part), strict=True)
            ]
            operations.append(models.UpdateVectorsOperation(update_vectors=models.UpdateVectors(points=vectors)))
            with explained("update nodes"):
                self._client.batch_update_points(self.name, update_operations=operations, wait=True)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete nodes by id; unknown ids are ignored."""
        for part in iter_batch(ids if self._length else (), PAGE):
            points = models.PointIdsList(points=[point_id(id_) for id_ in part])
            with explained("delete nodes"):
                self._client.delete(self.name, points_selector=points, wait=True)


def _stored(point: Any) -> tuple[Stored, str]:
    metadata, text = split_payload(point.payload or {})
    return Stored(id_of(point), str(metadata.get(ENTRY, "")), str(metadata.get(EMBED_HASH, "")), metadata), text


def _payload(row: Row) -> dict[str, Any]:
    terms = ENCODER.analyzer.tokens(lexical_text(row.node))
    codes = np.fromiter(map(code_of, terms), dtype="<u2", count=len(terms)).tobytes()
    text = row.node.get_content(metadata_mode=MetadataMode.NONE)
    return payload_of(row.metadata, text, row.node.node_id, codes)


def _sparse(rows: Sequence[Row]) -> list[models.SparseVector]:
    indices, values = ENCODER.documents([lexical_text(row.node) for row in rows])
    return [models.SparseVector(indices=i, values=v) for i, v in zip(indices, values, strict=True)]
