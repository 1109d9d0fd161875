"""Vectors by row number in Chroma: a graph of neighbours, in a folder or on a server."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from llama_index_contextual.app.vector_stores.chroma_clients import Elsewhere, InFolder, explained  # before chromadb
from llama_index_contextual.errors import StorageError
from llama_index_contextual.matrix import units_of
from llama_index_contextual.retrieval import GRAPH, queried

# isort: split
from chromadb.errors import NotFoundError

from llama_index_contextual.app.vector_stores.engine import StoreDamagedError, damaged, nearest_by, pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    import numpy.typing as npt
    from chromadb.api import ClientAPI
    from chromadb.api.models.Collection import Collection

    from llama_index_contextual.app.vector_stores.engine import Floats, Hits, Rows

    T = TypeVar("T")

# What is not in its vector files, each process that opens a folder adds to the graph again, so that the first question
# takes seconds: by default up to 1,000 vectors.
_CONFIGURATION: Final[dict[str, Any]] = {"hnsw": {"space": "cosine", "sync_threshold": 100, **GRAPH}}
_INDEX: Final = "index"  # in the collection's metadata: whose it is
_WRITTEN: Final = "written"  # beside it: how many vectors its graph has ever got
_WRITE: Final = 1000  # rows a request
_IDS: Final = 10_000  # of a question; SQLite refuses some 32,000
_LEAST_DEAD: Final = 5000  # fewer dead places are left in any graph


class ChromaVectors:
    """One collection; see :class:`~llama_index_contextual.app.vector_stores.engine.VectorEngine`.

    Chroma keeps the place of a deleted vector in its graph for ever, and each one slows writing down. Once a deletion
    leaves more places dead than alive, the collection counts as damaged, and is filled anew.

    Args:
        client: Opens Chroma.
        name: Of the collection.
        identity: Of the database that the rows are of.
    """

    def __init__(self, client: Elsewhere | InFolder, name: str, identity: str) -> None:
        self._client = client
        self._name = name
        self._identity = identity
        self._open: tuple[ClientAPI, Collection] | None = None
        self._was_there = False

    def rows(self) -> Rows:
        """Return the numbers of all rows, ascending; reads and searches one vector to see that the files are whole."""
        return self._asked(_rows_of, np.empty(0, np.int64))

    def count(self) -> int:
        """Return how many rows it holds."""
        return self._asked(lambda collection: collection.count(), 0)

    def upsert(self, rows: Rows, vectors: Floats) -> None:
        """Write vectors."""
        with self._writing("write") as client:
            collection = client.get_or_create_collection(
                self._name,
                embedding_function=None,  # vectors always come from us, and Chroma's default would fetch a model
                configuration=cast("Any", _CONFIGURATION),
                metadata={_INDEX: self._identity},
            )
            self._check(collection)
            self._was_there = True
            for page in pages(np.arange(len(rows)), _WRITE):
                collection.upsert(ids=_ids(rows[page]), embeddings=cast("Any", [*units_of(vectors[page])]))
            metadata = collection.metadata or {}
            collection.modify(metadata={**metadata, _WRITTEN: int(metadata.get(_WRITTEN, 0)) + len(rows)})

    def delete(self, rows: Rows) -> None:
        """Delete rows."""
        with self._writing("delete") as client, contextlib.suppress(NotFoundError):
            collection = self._collection(client)
            for page in pages(rows, _WRITE):
                collection.delete(ids=_ids(page))
            alive, written = collection.count(), int((collection.metadata or {}).get(_WRITTEN, 0))
            if written - alive > max(alive, _LEAST_DEAD):
                raise damaged(f"of {written} places in the graph of {self._name!r} only {alive} are in use.")

    def nearest(self, question: npt.ArrayLike, top_k: int, among: Rows | None = None) -> Hits:
        """Return the nearest rows and their cosine similarities."""
        query = np.asarray(question, dtype=np.float32)

        def answer(collection: Collection) -> Hits:
            return nearest_by(partial(_query, collection, query), query, top_k, among, collection.count, _IDS)

        return self._asked(answer, (np.empty(0, np.int64), np.empty(0, np.float64)))

    def clear(self) -> None:
        """Delete the collection; in a folder of ours all files."""
        if isinstance(self._client, InFolder):
            self._client.wipe()
        else:
            with self._writing("clear") as client, contextlib.suppress(NotFoundError):
                self._collection(client)  # not another index's
                client.delete_collection(self._name)
        self._open, self._was_there = None, False

    def close(self) -> None:
        """Let go of the client, if it is ours."""
        self._open = None
        self._client.close()

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[ClientAPI]:
        with explained(what, is_own=self._client.is_own), self._client.writing() as client:
            self._open = None  # another writer may have replaced it
            yield client

    def _asked(self, ask: Callable[[Collection], T], nothing: T) -> T:
        """Return what a collection answers; where there never was one, nothing."""
        with contextlib.suppress(NotFoundError, StoreDamagedError):
            return self._answer(ask, nothing)
        self._open = None  # another process may have written meanwhile, or replaced it
        try:
            return self._answer(ask, nothing)
        except NotFoundError as error:
            if self._was_there:
                raise damaged(f"Chroma has lost the collection {self._name!r}.") from error
            return nothing

    def _answer(self, ask: Callable[[Collection], T], nothing: T) -> T:
        with explained("read", is_own=self._client.is_own), self._client.reading() as client:
            return nothing if client is None else ask(self._collection(client))

    def _collection(self, client: ClientAPI) -> Collection:
        known = self._open
        if known is not None and known[0] is client:
            return known[1]
        collection = client.get_collection(self._name, embedding_function=None)
        self._check(collection)
        self._open, self._was_there = (client, collection), True
        return collection

    def _check(self, collection: Collection) -> None:
        if (collection.metadata or {}).get(_INDEX) == self._identity:
            return
        if self._client.is_own:
            raise damaged(f"the vectors in {self._name!r} are of another database.")
        raise StorageError(
            f"the collection {self._name!r} of Chroma is not of this index. It is unharmed. Cure: another name, by an "
            "address that ends in #NAME; or delete the collection, if nobody needs it."
        )


def _rows_of(collection: Collection) -> Rows:
    ids = collection.get(include=[])["ids"]
    if ids:
        sample: Any = collection.get(ids=ids[:1], include=["embeddings"])["embeddings"]
        hits = collection.query(query_embeddings=[sample[0]], n_results=1, include=[])
        if not hits["ids"][0]:
            raise damaged(f"Chroma has lost the vectors of {collection.name!r}.")
    return np.sort(np.array(ids, dtype=np.int64))


def _query(collection: Collection, query: Floats, wide: int, ids: Rows | None) -> tuple[Rows, Floats]:
    options = {"query_embeddings": [query], "n_results": wide, "include": ["embeddings"]}
    hits = queried(collection, None if ids is None else _ids(ids), **options)
    rows = np.array(hits["ids"][0], dtype=np.int64)
    return rows, np.asarray(hits["embeddings"][0], dtype=np.float32).reshape(len(rows), len(query))


def _ids(rows: Rows) -> list[str]:
    return list(map(str, rows.tolist()))
