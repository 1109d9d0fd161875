"""Arrays that are derived from an index: BM25, vectors and names of documents.

A cache is behind by the rows that it lacks and by those that it has too many: two set differences, since a row never
changes and its number is never used again. Writers keep the arrays on disk. Where they are missing or damaged, whoever
searches derives them in memory.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from llama_index_contextual.app.index.vectors import UnitVectors, VectorIndex, unit_vectors
from llama_index_contextual.retrievers.arrays import ArrayIndex, matches
from llama_index_contextual.retrievers.bm25_index import Bm25Index
from llama_index_contextual.retrievers.chunk_info import (
    CHUNK_INFO_VERSION,
    ChunkInfo,
    describe_chunk,
)
from llama_index_contextual.retrievers.chunk_info_index import ChunkInfoIndex
from llama_index_contextual.retrievers.names import NAMES_VERSION, NameIndex
from llama_index_contextual.retrievers.node_index import lexical_text
from llama_index_contextual.retrievers.terms import TERMS_VERSION
from llama_index_contextual.utils.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from llama_index_contextual.app.index.database import NodeRow, Rows, Snapshot
    from llama_index_contextual.retrievers.arrays import Ints

T = TypeVar("T", bound=ArrayIndex)

_SHARE: Final = 50  # arrays are written anew where every fiftieth row is another; below that a reader derives the rest
_ROWS_AT_ONCE: Final = 1000  # whose vectors are in memory together
_REMEMBERED: Final = 50_000  # rows whose ids, records, or values of a metadata key are remembered


class Moment(NamedTuple):
    """What is derived from an index at one moment.

    Attributes:
        revision: Of the index.
        words: BM25 over all chunks.
        infos: What the ranking reads of each chunk.
        vectors: Vectors of all chunks; none without an embedding, or with another than made the index.
        names: Names of all documents.
        answers: What was found among all chunks.
    """

    revision: tuple[str, int]
    words: Bm25Index
    infos: ChunkInfoIndex
    vectors: VectorIndex
    names: NameIndex
    answers: dict[str, Any]


class Caches:
    """The arrays of one index in this process, and what was read of its rows.

    Args:
        folder: Where writers keep the arrays.
        model: Identity of the embedding model; "" for none.
    """

    def __init__(self, folder: Path, model: str) -> None:
        self.model, self._folder = model, folder
        self._lock = threading.Lock()
        self._moment: Moment | None = None
        self._makers = {
            "bm25": str(TERMS_VERSION),
            "infos": f"{TERMS_VERSION}.{CHUNK_INFO_VERSION}",
            "vectors": model,
            "names": str(NAMES_VERSION),
        }
        self._saved: dict[str, Ints] = {}  # the rows on disk, by kind
        self._values: dict[str, dict[int, Any]] = {}

    def at(self, snapshot: Snapshot) -> Moment:
        """What is derived at a moment of the index. That of an earlier one than before is made for this call."""
        wanted = snapshot.state.revision
        with self._lock:
            now = self._moment
            if now is not None and now.revision == wanted:
                return now
            rows, first = snapshot.rows(), snapshot.first_rows()
            if now is None or now.revision[0] != wanted[0]:
                snapshot.refuse_lost_chunks(len(rows))
                words = self._load("bm25", Bm25Index(), snapshot)
                infos = self._load("infos", ChunkInfoIndex(), snapshot)
                vectors = self._load("vectors", VectorIndex(), snapshot)
                now = Moment(
                    (wanted[0], 0),
                    words,
                    infos,
                    vectors,
                    self._load("names", NameIndex(), snapshot),
                    {},
                )
            embedded = rows if snapshot.state.model == self.model else rows[:0]
            words, lacking = _with_rows(now.words, rows)
            words = words.with_texts(lacking, map(lexical_text, snapshot.nodes(lacking)))
            infos, lacking = _with_rows(now.infos, rows)
            infos = infos.with_infos(lacking, map(_describe, snapshot.node_rows(lacking)))
            vectors, lacking = _with_rows(now.vectors, embedded)
            vectors = vectors.changed((), *self._vectors_of(snapshot, lacking))
            names, lacking = _with_rows(now.names, np.array([*first], np.int64))
            metadata = (json.loads(one.metadata) for one in snapshot.node_rows(lacking))
            names = names.with_documents(
                lacking, zip(map(first.__getitem__, lacking.tolist()), metadata, strict=True)
            )
            made = Moment(wanted, words, infos, vectors, names, {})
            if wanted >= now.revision:
                self._moment = made
                self._drop({*np.setdiff1d(now.words.rows, rows).tolist()})
            return made

    def _load(self, kind: str, empty: Any, snapshot: Snapshot) -> Any:
        """The arrays on disk, where they are of this index; else those of no rows."""
        self._saved[kind] = empty.rows
        try:
            index, content = empty.load(self._path_of(kind))
            makers = content
        except Exception:  # noqa: BLE001  whatever is wrong, it is derived again
            return empty
        if makers != [self._makers[kind], snapshot.state.identity]:
            return empty
        self._saved[kind] = index.rows
        return index

    def _path_of(self, kind: str) -> Path:
        return self._folder / f"{kind}.arrays"

    def save(self, snapshot: Snapshot) -> None:
        """Keep the arrays on disk where they changed much. Where that fails, the next process derives them."""
        now = self.at(snapshot)
        identity, _ = now.revision
        indexes = {
            "bm25": now.words,
            "infos": now.infos,
            "vectors": now.vectors,
            "names": now.names,
        }
        for kind, index in indexes.items():
            size = len(np.unique(index.rows))
            if size < _SHARE * len(np.setxor1d(index.rows, self._saved[kind])):
                with contextlib.suppress(StorageError):
                    index.save(self._path_of(kind), [self._makers[kind], identity])
                    self._saved[kind] = index.rows

    def _vectors_of(self, snapshot: Snapshot, rows: Rows) -> list[UnitVectors]:
        """Return the unit vectors of rows, which all have one."""
        if not len(rows):
            return []
        units = [
            unit_vectors(snapshot.vectors(rows[start : start + _ROWS_AT_ONCE]))
            for start in range(0, len(rows), _ROWS_AT_ONCE)
        ]
        return [UnitVectors(np.asarray(rows, np.int64), np.concatenate(units))]

    def values(
        self, key: str, rows: Sequence[int], read: Callable[[str, Rows], Sequence[Any]]
    ) -> list[Any]:
        """What ``read`` makes of each of some rows, once for each.

        Args:
            key: A name of it, such as a key of the metadata.
            rows: Their numbers.
            read: Makes it of some rows, ascending.
        """
        known = self._values.get(key, {})
        if len(known) > _REMEMBERED or key not in self._values:
            known = self._values[key] = {}
        if missing := sorted({row for row in rows if row not in known}):
            known.update(zip(missing, read(key, np.array(missing, np.int64)), strict=True))
        return [known[row] for row in rows]

    def _drop(self, rows: set[int]) -> None:
        """Drop values of rows that are deleted. Other threads go on with the mappings that they have."""
        for key, known in [*self._values.items()] if rows else ():
            self._values[key] = {
                row: value for row, value in known.copy().items() if row not in rows
            }


def _describe(node: NodeRow) -> ChunkInfo:
    return describe_chunk(json.loads(node.metadata), node.text)


def _with_rows(index: T, rows: Ints) -> tuple[T, Ints]:
    """An index of some rows at most, and those that it lacks."""
    known = index.rows  # both ascend, which numpy's set differences do not use
    lacking = np.delete(rows, matches(known, rows)[1])
    return index.changed(np.delete(known, matches(rows, known)[1])), lacking
