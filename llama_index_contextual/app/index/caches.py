"""Beside the database: ``paid.sqlite3`` keeps what cost money or minutes, ``cache/`` what is derived from the index.

Nothing of the former is ever deleted by this package: vectors of embedded texts, contexts of a language model and
conversions of files by hash, and the settings of the index. With it and the files an index is made again for nothing.

A cache is behind by the rows that it lacks and by those that it has too many: two set differences, since a row never
changes. Writers keep the arrays on disk; where they are missing or damaged, whoever asks derives them in memory.

Each vector is compared with a question: no graph of neighbours, which would lose some. Those that can be among the
nearest are compared again in float64, so that equal vectors have equal scores whatever stands beside them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from llama_index_contextual.context.cache import COLUMNS, SQLiteKVStore, is_sound
from llama_index_contextual.retrievers.arrays import ArrayIndex, RowArrays, matches
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
from llama_index_contextual.utils.errors import DamagedError, FingerprintError, StorageError
from llama_index_contextual.utils.sqlite_file import AMONG
from llama_index_contextual.utils.text import counted, short_hash

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from llama_index_contextual.app.index.database import NodeRow, Rows, Snapshot
    from llama_index_contextual.retrievers.arrays import Floats, Ints

logger = logging.getLogger(__name__)
Singles = npt.NDArray[np.float32]
T = TypeVar("T", bound=ArrayIndex)

SETTINGS: Final = "settings"  # the collection of the index's own
_ALL: Final = f"SELECT {COLUMNS} FROM kept"  # noqa: S608  our own names
_SHARE: Final = 50  # arrays are written anew where every fiftieth row is another; below that a reader derives the rest
_TEXTS: Final = 1000  # nodes that are in memory at once
_REMEMBERED: Final = 50_000  # rows whose ids, records, or values of a metadata key are remembered


class PaidStore(SQLiteKVStore):
    """A LlamaIndex key-value store that keeps vectors by model and hash, too."""

    def with_vectors(self, model: str, hashes: Iterable[str]) -> set[str]:
        """Those hashes of embedded texts whose vector is there."""
        query = f"SELECT key FROM kept WHERE collection = ? AND key {AMONG}"  # noqa: S608  our own names
        return {key for (key,) in self.rows(query, (_collection(model), json.dumps([*hashes])))}

    def vectors(self, model: str, hashes: Iterable[str]) -> Iterator[tuple[str, Singles]]:
        """Vectors of embedded texts by the hash of the text; those that are not known are left out."""
        return (
            (key, np.frombuffer(blob, "<f4"))
            for key, blob in self.get_rows(_collection(model), hashes)
        )

    def dimensions(self, model: str) -> int:
        """Length of a model's vectors, 0 where there is none yet."""
        query = "SELECT length(value) / 4 FROM kept WHERE collection = ? LIMIT 1"
        return next((int(length) for (length,) in self.rows(query, (_collection(model),))), 0)

    def put_vectors(self, model: str, vectors: Mapping[str, Any]) -> None:
        """Keep vectors by the hash of their text; one that is there already is replaced."""
        self.put_rows(
            _collection(model),
            ((key, np.asarray(one, "<f4").tobytes()) for key, one in vectors.items()),
        )

    def repair(self) -> str:
        """Set a damaged file aside and take over what can be read of it; a sentence about that, "" where it is sound.

        Raises:
            StorageError: The folder cannot be written.
        """
        try:
            self.check()
        except DamagedError:
            aside = self.set_aside()
        else:
            return ""
        damaged, sound = PaidStore(aside, self.cure), list[tuple[Any, ...]]()
        with (
            contextlib.suppress(DamagedError),
            damaged.connection() as connection,
            damaged.explained(),
        ):
            sound.extend(
                row for row in connection.execute(_ALL) if is_sound(row)
            )  # up to the place of the damage
        damaged.close()
        self.insert(sound)
        self.check()
        return f"{self.path} was damaged, and is set aside as {aside.name}. {len(sound):,} of its values were taken over."  # noqa: E501

    def _check_rows(self, connection: sqlite3.Connection) -> None:
        if not all(map(is_sound, connection.execute(_ALL))):
            raise ValueError("a value has another checksum")


def _collection(model: str) -> str:
    return f"vectors:{short_hash(model)}"


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
        paid: Has the vectors.
        model: Identity of the embedding model; "" for none.
    """

    def __init__(self, folder: Path, paid: PaidStore, model: str) -> None:
        self.model, self._folder, self._paid = model, folder, paid
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
                words = self._load("bm25", Bm25Index(), snapshot, len(rows))
                infos = self._load("infos", ChunkInfoIndex(), snapshot, len(rows))
                vectors = self._load("vectors", VectorIndex(), snapshot, len(rows))
                now = Moment(
                    (wanted[0], 0),
                    words,
                    infos,
                    vectors,
                    self._load("names", NameIndex(), snapshot, len(first)),
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

    def _load(self, kind: str, empty: Any, snapshot: Snapshot, size: int) -> Any:
        """The arrays on disk, where they are of this index; else those of no rows."""
        self._saved[kind] = empty.rows
        try:
            index, content = empty.load(self._path_of(kind))
            makers, change, rows = content
        except Exception:  # noqa: BLE001  whatever is wrong, it is derived again
            return empty
        if makers != [self._makers[kind], snapshot.state.identity]:
            return empty
        if change == snapshot.state.change and size < rows:
            snapshot.refuse("it lacks chunks that its caches have")
        self._saved[kind] = index.rows
        return index

    def _path_of(self, kind: str) -> Path:
        return self._folder / f"{kind}.arrays"

    def save(self, snapshot: Snapshot) -> None:
        """Keep the arrays on disk where they changed much. Where that fails, the next process derives them."""
        now = self.at(snapshot)
        identity, change = now.revision
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
                    index.save(self._path_of(kind), [[self._makers[kind], identity], change, size])
                    self._saved[kind] = index.rows

    def _vectors_of(self, snapshot: Snapshot, rows: Rows) -> list[UnitVectors]:
        """Vectors of some rows."""
        found, units = list[int](), list[Singles]()
        for start in range(0, len(rows), _TEXTS):
            part = rows[start : start + _TEXTS]
            hashes, length = snapshot.column("embed_hash", part), self._paid.dimensions(self.model)
            known = dict(self._paid.vectors(self.model, dict.fromkeys(hashes)))
            pairs = zip(part.tolist(), map(known.get, hashes), strict=True)
            whole = {
                row: vector for row, vector in pairs if vector is not None and len(vector) == length
            }
            found += whole
            units.append(unit_vectors([*whole.values()]).reshape(len(whole), length))
        if len(found) < len(rows):
            lost = counted(len(rows) - len(found), "chunk")
            logger.warning(
                "%s: the vector is lost, so that only words find it. Cure: llama-index-contextual index",
                lost,
            )
        return [UnitVectors(np.array(found, np.int64), np.concatenate(units))] if found else []

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


# Vectors

# How far a cosine may be from the true one by rounding in float32; measured: below 1e-6.
_MARGIN: Final = 5e-5
_COPIED: Final = 512  # rows that are copied at once: they fit into a cache


def unit_vectors(vectors: npt.ArrayLike) -> Singles:
    """Vectors of length 1 in their directions; those of length 0 stay."""
    array = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(array, axis=-1, keepdims=True)
    return (array / np.where(lengths == 0, 1.0, lengths)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class UnitVectors(RowArrays):
    """Unit vectors of some rows; ``units`` has the shape (rows, dimensions)."""

    units: Singles


class VectorIndex(ArrayIndex):
    """Unit vectors by row number."""

    made_of = UnitVectors

    def nearest(
        self, questions: Sequence[Sequence[float]], top_k: int, among: Ints | None = None
    ) -> list[tuple[Ints, Floats]]:
        """For each of some vectors the nearest rows and their cosines, best first.

        Args:
            questions: The vectors.
            top_k: How many rows. Those that tie with the last of them are added, so that the caller can break ties.
            among: Only these rows; those that are not there are ignored. By default all.

        Raises:
            FingerprintError: A vector has another length than those of the index.
        """
        live = self.live if among is None else self.live & np.isin(self.every, among)
        places = np.flatnonzero(live)
        if not len(places):
            return [(self.every[:0], np.empty(0)) for _ in questions]
        for length in {len(question) for question in questions}:
            if wanted := {arrays.units.shape[1] for arrays, _ in self.parts} - {length}:
                raise FingerprintError(
                    f"a vector of {length} dimensions does not compare with vectors of {wanted.pop()}. Cure: the "
                    "embedding that the index was made with."
                )
        return [self._nearest_to(question, top_k, places) for question in unit_vectors(questions)]

    def _nearest_to(self, question: Singles, top_k: int, places: Ints) -> tuple[Ints, Floats]:
        """The nearest of the rows at some places, and their cosines."""
        if len(places) > top_k:
            near = np.concatenate(
                [np.einsum("ij,j->i", arrays.units, question) for arrays, _ in self.parts]
            )[places]
            places = places[
                near >= np.partition(near, len(near) - top_k)[len(near) - top_k] - 2 * _MARGIN
            ]
        return self.best(self._cosines(question.astype(np.float64), places), top_k, places)

    def _cosines(self, question: Floats, places: Ints) -> Floats:
        """Cosines of a question and the rows at some places."""
        cosines = np.empty(len(places))
        for arrays, inside, at in self.by_part(places):
            for start in range(0, len(at), _COPIED):
                units = arrays.units[inside[start : start + _COPIED]].astype(np.float64)
                cosines[at[start : start + _COPIED]] = np.einsum("ij,j->i", units, question)
        return cosines
