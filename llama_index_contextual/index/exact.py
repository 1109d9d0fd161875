"""The matrix that a reader keeps beside a store, so that a question is compared with every vector.

It is derived from the store's vectors, follows what the keyword index finds changed, and is kept on disk by writers. A
question derives it in memory and writes nothing. An index that is larger than the limit has none: its store answers.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from typing import TYPE_CHECKING

from llama_index_contextual.errors import StorageError
from llama_index_contextual.index._old_matrix import Matrix
from llama_index_contextual.retrievers.search import Candidate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores import MetadataFilters

    from llama_index_contextual.index.store import NodeStore, OpenStore, Row
    from llama_index_contextual.retrievers.search import DenseSearch, KeywordSearch, NodeSearch

logger = logging.getLogger(__name__)


class Exact:
    """The matrix of a store's vectors, where there are not too many.

    Args:
        folder: Where a writer keeps it for the next process.
        limit: Most vectors.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._matrix: Matrix | None = None  # None: nobody has asked for it, or what it should show is not known
        self._missing: set[str] = set()  # what it has to read from the store before it answers
        self._name = ""  # of the collection whose vectors it holds
        self._failed: object = None  # the state of the store in which its vectors could not be read
        self._lock = threading.RLock()

    def search(self, view: OpenStore, keywords: KeywordSearch, stamp: object) -> DenseSearch:
        """Return what compares a question with every vector of a store; beyond the limit the store's own search.

        Args:
            view: The store, which is not opened where the copy on disk has this state.
            keywords: The keyword index: it gives nodes and evaluates filters.
            stamp: Of the state that it shows.
        """
        matrix = self._complete(view, keywords.count(), stamp)
        return view.store.search(keywords) if matrix is None else MatrixSearch(matrix, keywords)

    def _complete(self, view: OpenStore, count: int, stamp: object) -> Matrix | None:
        with self._lock:
            if count > self._limit:
                self.forget()
                return None
            if view.held.name != self._name:
                self.forget()
                self._name = view.held.name
            if self._failed is not None and self._failed == stamp:
                return None
            try:
                if self._matrix is None:
                    self._matrix = self._load(count, stamp) or _with_vectors(Matrix(), view.store)
                elif self._missing:
                    self._matrix = _with_vectors(self._matrix, view.store, sorted(self._missing))
                self._missing, self._failed = set(), None
            except StorageError as error:
                self._failed = stamp
                logger.warning("The store answers by itself, and may miss what is near: %s", error)
                return None
            return self._matrix

    def _load(self, count: int, stamp: object) -> Matrix | None:
        found = Matrix.load(self._folder, self._kept_as(stamp))
        return found if found is not None and len(found) == count else None

    def _kept_as(self, stamp: object) -> str:
        return f"{stamp} {self._name}"

    def apply(self, rows: Iterable[Row], gone: Collection[str]) -> None:
        """Show a write of this process, unless nobody has asked for anything yet."""
        with self._lock:
            if self._matrix is None:
                return
            vectors = {row.node.node_id: row.vector for row in rows if row.vector is not None}
            self._matrix = self._matrix.with_rows(list(vectors), list(vectors.values())).without(gone)
            self._missing -= {*vectors, *gone}
            if len(self._matrix) > self._limit:
                self.forget()

    def doubt(self, changed: Iterable[str], gone: Collection[str], count: int) -> None:
        """Read these vectors anew at the next question: another process wrote them.

        Args:
            changed: Ids of what is new or other.
            gone: Ids of what is deleted.
            count: How many nodes there are now.
        """
        with self._lock:
            if self._matrix is None:
                return
            self._missing = (self._missing | set(changed)).difference(gone)
            self._matrix = self._matrix.without([*gone, *self._missing])
            if len(self._matrix) + len(self._missing) != count:  # it was derived while the other process wrote
                self.forget()

    def forget(self) -> None:
        """Make it anew at the next question."""
        with self._lock:
            self._matrix, self._missing = None, set()

    def discard(self) -> None:
        """Make it anew, whatever the copy on disk holds; for writers."""
        with self._lock:
            self.forget()
            shutil.rmtree(self._folder, ignore_errors=True)

    def shows(self, count: int) -> bool:
        """Return whether it shows all nodes of its store, given how many there are, or need not."""
        return count > self._limit or (self._matrix is not None and not self._missing)

    def save(self, stamp: object) -> None:
        """Keep it on disk as of a state of the store. Where that fails, nothing is lost: the next process derives it.

        Of an index that is too large nothing is kept.
        """
        with self._lock, contextlib.suppress(StorageError):
            if self._matrix is None:
                shutil.rmtree(self._folder, ignore_errors=True)
            elif not self._missing:
                self._matrix = self._matrix.save(self._folder, self._kept_as(stamp))


class MatrixSearch:
    """Search a matrix; see :class:`~llama_index_contextual.retrievers.search.DenseSearch`.

    Args:
        matrix: The vectors.
        nodes: Gives nodes and evaluates filters.
    """

    def __init__(self, matrix: Matrix, nodes: NodeSearch) -> None:
        self._matrix = matrix
        self._nodes = nodes

    def dense_query(
        self, embedding: Sequence[float], top_k: int, filters: MetadataFilters | None = None
    ) -> list[Candidate]:
        """Return the ``top_k`` nodes nearest to a vector among those that the filters admit; scores are cosines."""
        among = None if filters is None else self.selected_ids(filters)
        return [Candidate(node_id, score) for node_id, score in self._matrix.nearest(embedding, top_k, among)]

    def selected_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Return the ids of all nodes that the filters admit."""
        return self._nodes.selected_ids(filters)

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that exist."""
        return self._nodes.nodes(node_ids)


def _with_vectors(matrix: Matrix, store: NodeStore, ids: Sequence[str] | None = None) -> Matrix:
    """Return a matrix with vectors of a store, all or those of some ids; without those that the store lacks by now."""
    for found, vectors in store.vectors(ids):
        matrix = matrix.with_rows(found, vectors)
    return matrix
