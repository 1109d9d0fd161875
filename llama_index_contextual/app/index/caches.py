"""Arrays that are derived from an index: BM25 terms, vectors and names of documents.

A row never changes, and its number is never used again. Two set differences of row numbers
therefore tell which rows an array lacks and which it has to drop. A refresh saves the arrays. If
they are missing or damaged, a search derives them in memory.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from llama_index_contextual.app.index.vectors import UnitVectors, VectorIndex, unit_vectors
from llama_index_contextual.retrievers.arrays import ArrayIndex, find_sorted
from llama_index_contextual.retrievers.bm25_index import Bm25Index
from llama_index_contextual.retrievers.chunk_info import CHUNK_INFO_VERSION, ChunkInfoIndex
from llama_index_contextual.retrievers.names import NAMES_VERSION, NameIndex
from llama_index_contextual.retrievers.node_index import with_nodes
from llama_index_contextual.retrievers.terms import TERMS_VERSION
from llama_index_contextual.utils.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from llama_index_contextual.app.index.database import Rows, Snapshot
    from llama_index_contextual.retrievers.arrays import Ints

_T = TypeVar("_T", bound=ArrayIndex)

_WRITTEN_FROM = 1 / 50  # share of changed rows from which saving is worthwhile
_ROWS_AT_ONCE = 1000  # rows whose vectors are loaded together
_MAX_VALUES = 50_000  # cached rows per kind of value, deleted rows included


class Moment(NamedTuple):
    """Everything that is derived from one revision of an index. Arrays are named like their files.

    Attributes:
        revision: The revision of the index.
        bm25: The terms of all chunks.
        infos: The facts about each chunk that the ranking needs.
        vectors: The vectors of all chunks. Empty without an embedding, and if the index was made
            with another one.
        names: The names of all documents.
        cached_values: Values computed for all chunks, by name.
    """

    revision: tuple[str, int]
    bm25: Bm25Index
    infos: ChunkInfoIndex
    vectors: VectorIndex
    names: NameIndex
    cached_values: dict[str, Any]


class Caches:
    """The arrays of one index in this process, and cached values of its rows.

    Args:
        folder: The folder in which the arrays are saved.
        model: The identity of the embedding model; "" for none.
    """

    def __init__(self, folder: Path, model: str) -> None:
        self.model = model
        self._folder = folder
        self._lock = threading.Lock()
        self._moment: Moment | None = None
        # The version or model that makes each kind of array. Arrays of another one are discarded.
        self._makers = {
            "bm25": str(TERMS_VERSION),
            "infos": f"{TERMS_VERSION}.{CHUNK_INFO_VERSION}",
            "vectors": model,
            "names": str(NAMES_VERSION),
        }
        self._saved_rows: dict[str, Ints] = {}  # on disk, by kind
        self._values: dict[str, dict[int, Any]] = {}

    def moment_of(self, snapshot: Snapshot) -> Moment:
        """Return everything that is derived from a snapshot of the index.

        The result is cached, unless a newer one is cached already.
        """
        revision = snapshot.state.revision
        with self._lock:
            before = self._moment
            if before is not None and before.revision == revision:
                return before
            if before is None or before.revision[0] != revision[0]:
                snapshot.refuse_lost_chunks()
                before = self._loaded(snapshot)
            moment = self._derived(before, snapshot)
            if revision >= before.revision:
                self._moment = moment
            return moment

    def _loaded(self, snapshot: Snapshot) -> Moment:
        """Return the saved arrays of this index, and empty arrays in place of missing ones."""
        identity = snapshot.state.identity
        empty = Moment(
            revision=(identity, 0),
            bm25=Bm25Index(),
            infos=ChunkInfoIndex(),
            vectors=VectorIndex(),
            names=NameIndex(),
            cached_values={},
        )
        loaded: dict[str, Any] = {
            kind: self._load(kind, getattr(empty, kind), identity) for kind in self._makers
        }
        return empty._replace(**loaded)

    def _load(self, kind: str, empty: ArrayIndex, identity: str) -> ArrayIndex:
        index = empty
        with contextlib.suppress(Exception):  # arrays that cannot be read are derived again
            saved, makers = empty.load(self._path_of(kind))
            if makers == [self._makers[kind], identity]:
                index = saved
        self._saved_rows[kind] = index.rows
        return index

    def _derived(self, before: Moment, snapshot: Snapshot) -> Moment:
        """Return everything that is derived from a snapshot, reusing earlier arrays."""
        rows = snapshot.rows()
        bm25, without_terms = _compare_rows(before.bm25, rows)
        infos, without_info = _compare_rows(before.infos, rows)
        new_chunks = np.union1d(without_terms, without_info)
        bm25, infos = with_nodes(bm25, infos, new_chunks, snapshot.nodes(new_chunks))

        embedded = rows if snapshot.state.model == self.model else rows[:0]
        vectors, without_vector = _compare_rows(before.vectors, embedded)
        vectors = vectors.changed((), *_unit_vectors_of(snapshot, without_vector))

        key_of_first = snapshot.first_rows()
        first_rows = np.array([*key_of_first], np.int64)
        names, new_documents = _compare_rows(before.names, first_rows)
        keys = [key_of_first[row] for row in new_documents.tolist()]
        metadata = [json.loads(node.metadata) for node in snapshot.node_rows(new_documents)]
        names = names.with_documents(new_documents, zip(keys, metadata, strict=True))
        return Moment(snapshot.state.revision, bm25, infos, vectors, names, {})

    def save(self, snapshot: Snapshot) -> None:
        """Save the arrays that changed much. If that fails, the next process derives them."""
        moment = self.moment_of(snapshot)
        for kind, maker in self._makers.items():
            index: ArrayIndex = getattr(moment, kind)
            saved_rows = self._saved_rows[kind]
            added = _lacking(saved_rows, index.rows)
            removed = _lacking(index.rows, saved_rows)
            if len(added) + len(removed) > len(index) * _WRITTEN_FROM:
                with contextlib.suppress(StorageError):
                    index.save(self._path_of(kind), [maker, snapshot.state.identity])
                    self._saved_rows[kind] = index.rows

    def _path_of(self, kind: str) -> Path:
        return self._folder / f"{kind}.arrays"

    def values(
        self, name: str, rows: Sequence[int], read: Callable[[Rows], Sequence[Any]]
    ) -> list[Any]:
        """Return a value for each row. ``read`` is called only for rows without a cached value.

        Args:
            name: The name of the value, such as a metadata key.
            rows: The row numbers.
            read: Returns the values of rows, which it gets in ascending order.
        """
        known = self._values.setdefault(name, {})
        if len(known) > _MAX_VALUES:
            known = self._values[name] = {}
        missing = sorted({row for row in rows if row not in known})
        if missing:
            known.update(zip(missing, read(np.array(missing, np.int64)), strict=True))
        return [known[row] for row in rows]


def _unit_vectors_of(snapshot: Snapshot, rows: Rows) -> list[UnitVectors]:
    """Return the unit vectors of rows as one item, or an empty list without rows."""
    units = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        vectors = snapshot.vectors(rows[start : start + _ROWS_AT_ONCE])
        units.append(unit_vectors(vectors))
    return [UnitVectors.of(rows, np.concatenate(units))] if units else []


def _compare_rows(index: _T, rows: Ints) -> tuple[_T, Ints]:
    """Return an index without any other rows, and the rows that it lacks."""
    return index.changed(_lacking(rows, index.rows)), _lacking(index.rows, rows)


def _lacking(known: Ints, rows: Ints) -> Ints:
    """Return the rows that are not among the known ones. Both arrays are sorted."""
    if known is rows:
        return rows[:0]
    # This is ten times as fast as numpy's set differences, which do not exploit the order.
    return np.delete(rows, find_sorted(known, rows)[1])
