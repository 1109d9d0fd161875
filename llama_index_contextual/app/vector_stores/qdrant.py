"""Vectors by row number in Qdrant: a server, or a local client that the user gave.

No setting names a folder for Qdrant's local mode, which reads points with ``pickle``.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse
from qdrant_client.local.qdrant_local import QdrantLocal

from llama_index_contextual.app.vector_stores.engine import StoreDamagedError, damaged, nearest_by, pages
from llama_index_contextual.errors import FingerprintError, StorageError
from llama_index_contextual.matrix import units_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from llama_index_contextual.app.vector_stores.engine import Floats, Hits, Rows

_VECTOR: Final = "vector"
_INDEX: Final = "index"  # in the collection's own metadata: whose it is
_LEAST: Final = (1, 16)  # the first server that keeps such metadata
_WRITE: Final = 256  # points a request
_READ: Final = 10_000
_SECONDS: Final = 60  # that a request may take
_IDS: Final = 100_000  # of a question: 1 MB of JSON
_LOCAL_IDS: Final = 1000  # the local mode compares each with each
_REMEMBERED_SECONDS: Final = 60.0
_MISSING: Final = 404
_KEY: Final = "QDRANT_API_KEY"

# Our pages say it of the local mode. Once and here: catch_warnings() changes the filters of the whole process, and
# two threads that leave it in another order silence every warning.
warnings.filterwarnings("ignore", "Local mode is not recommended")


class QdrantVectors:
    """One collection; see :class:`~llama_index_contextual.app.vector_stores.engine.VectorEngine`.

    Args:
        connect: Returns the client.
        name: Of the collection.
        identity: Of the database that the rows are of.
        exact_limit: Most rows of a collection, or admitted by a filter, of which the server compares each with a
            question; beyond it answers by its graph.
    """

    def __init__(self, connect: Callable[[], Any], name: str, identity: str, exact_limit: int) -> None:
        self._connect = connect
        self._name = name
        self._identity = identity
        self._exact_limit = exact_limit
        self._client: Any = None
        self._is_local = False
        self._dimensions = 0  # 0: the collection was not there
        self._count, self._counted_at = 0, -math.inf
        self._lock = threading.RLock()

    def rows(self) -> Rows:
        """Return the numbers of all rows, ascending."""
        if not self._is_there():
            return np.empty(0, np.int64)
        rows: list[int] = []
        offset: Any = None
        while True:
            with self._asking("read") as client:
                points, offset = client.scroll(
                    self._name, limit=_READ, offset=offset, with_payload=False, with_vectors=False
                )
            rows += [int(point.id) for point in points]
            if offset is None:
                return np.sort(np.array(rows, dtype=np.int64))

    def count(self) -> int:
        """Return how many rows it holds."""
        if not self._is_there():
            return 0
        with self._asking("count") as client:
            return int(client.count(self._name, exact=True).count)

    def upsert(self, rows: Rows, vectors: Floats) -> None:
        """Write vectors."""
        length = vectors.shape[1]
        if len(rows) and not self._is_there():
            self._make(length)
        if len(rows) and length != self._dimensions:
            raise FingerprintError(
                f"the collection {self._name!r} of Qdrant has vectors of {self._dimensions} dimensions, and these have "
                f"{length}. Nothing was written. Cure: the former embedding, or index everything again: reindex='all' "
                "(--reindex all)."
            )
        for page in pages(np.arange(len(rows)), _WRITE):
            units = units_of(vectors[page])
            points = [
                models.PointStruct(id=row, vector={_VECTOR: unit.tolist()}, payload={})
                for row, unit in zip(rows[page].tolist(), units, strict=True)
            ]
            with self._asking("write") as client:
                client.upsert(self._name, points=points, wait=True)
        self._counted_at = -math.inf

    def delete(self, rows: Rows) -> None:
        """Delete rows."""
        if self._is_there():
            for page in pages(rows, _READ):
                with self._asking("delete") as client:
                    client.delete(self._name, points_selector=models.PointIdsList(points=page.tolist()), wait=True)

    def nearest(self, question: npt.ArrayLike, top_k: int, among: Rows | None = None) -> Hits:
        """Return the nearest rows and their cosine similarities."""
        if not self._is_there():
            return np.empty(0, np.int64), np.empty(0, np.float64)
        query = np.asarray(question, dtype=np.float32)
        if len(query) != self._dimensions:
            raise FingerprintError(
                f"a question of {len(query)} dimensions does not compare with vectors of {self._dimensions}. Cure: the "
                "embedding that made the vectors."
            )
        number = query.tolist()

        def ask(wide: int, ids: Rows | None) -> tuple[Rows, Floats]:
            exact = self._known_count() <= self._exact_limit if ids is None else len(ids) <= self._exact_limit
            admitted = None if ids is None else models.Filter(must=[models.HasIdCondition(has_id=ids.tolist())])
            with self._asking("compare") as client:
                points = client.query_points(
                    self._name,
                    query=number,
                    using=_VECTOR,
                    limit=wide,
                    query_filter=admitted,
                    with_payload=False,
                    with_vectors=True,
                    search_params=None if self._is_local else models.SearchParams(exact=exact),
                ).points
            vectors = np.array([point.vector[_VECTOR] for point in points], dtype=np.float32)
            return np.array([int(point.id) for point in points], dtype=np.int64), vectors.reshape(-1, len(query))

        most_ids = _LOCAL_IDS if self._is_local else _IDS
        return nearest_by(ask, query, top_k, among, self._known_count, most_ids)

    def clear(self) -> None:
        """Delete the collection."""
        if self._is_there():
            with contextlib.suppress(StoreDamagedError), self._asking("clear") as client:
                client.delete_collection(self._name)
        self._dimensions, self._counted_at = 0, -math.inf

    def close(self) -> None:
        """Keep the connection: whoever made the client closes it, and that of a server holds nothing open."""

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[Any]:
        """Give the client, a local one to one thread at a time, and say what its errors mean."""
        with self._lock:
            if self._client is None:
                self._client = self._connect()
                self._is_local = isinstance(getattr(self._client, "_client", None), QdrantLocal)
        try:
            with self._lock if self._is_local else contextlib.nullcontext():
                yield self._client
        except (ApiException, ValueError, RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())
            if getattr(error, "status_code", 0) == _MISSING or str(error).endswith("not found"):
                self._dimensions = 0
                raise damaged(f"Qdrant has lost the collection {self._name!r} ({reason}).") from error
            if isinstance(error, UnexpectedResponse | ValueError | RuntimeError):
                raise StorageError(
                    f"Qdrant could not {what} vectors ({reason}). What is indexed is unharmed. Cure: see what the "
                    "message says of the server, then try again."
                ) from error
            raise StorageError(
                f"Qdrant does not answer ({reason}). What is indexed is unharmed. Cure: see that the server runs, then "
                "try again."
            ) from error

    def _is_there(self) -> bool:
        """Return whether the collection was there when it was last looked for; one that is missing is looked for again.

        Raises:
            StorageError: It is another index's, or another program's.
        """
        if self._dimensions:
            return True
        with self._asking("look for") as client:
            if not client.collection_exists(self._name):
                return False
            config = client.get_collection(self._name).config
        vectors = config.params.vectors
        if (config.metadata or {}).get(_INDEX) != self._identity or not isinstance(vectors, dict):
            raise StorageError(
                f"the collection {self._name!r} of Qdrant is not of this index. It is unharmed. Cure: another name, by "
                "an address that ends in #NAME; or delete the collection, if nobody needs it."
            )
        self._dimensions = vectors[_VECTOR].size
        return True

    def _make(self, length: int) -> None:
        """Make the collection, unless another process just did."""
        try:
            with self._asking("make a collection of") as client:
                client.create_collection(
                    self._name,
                    vectors_config={_VECTOR: models.VectorParams(size=length, distance=models.Distance.COSINE)},
                    metadata={_INDEX: self._identity},
                )
        except StorageError:
            if not self._is_there():
                raise
        self._is_there()

    def _known_count(self) -> int:
        """Return how many rows there are, as of a minute ago at most."""
        if time.monotonic() - self._counted_at > _REMEMBERED_SECONDS:
            self._count, self._counted_at = self.count(), time.monotonic()
        return self._count


def served(url: str) -> QdrantClient:
    """Return a client of a server; its key is in the environment variable QDRANT_API_KEY, if it has one.

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
        reason = " ".join(str(error).split())
        raise StorageError(
            f"no Qdrant server answers at {url} ({reason}). What is indexed is unharmed. Cure: start it, correct the "
            f"address, or set {_KEY}."
        ) from error
    if known < _LEAST:
        least = ".".join(map(str, _LEAST))
        raise StorageError(
            f"the Qdrant server at {url} has version {version}. What is indexed is unharmed. Cure: {least} or later."
        )
    return client
