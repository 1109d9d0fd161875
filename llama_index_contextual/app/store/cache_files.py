"""What is derived from an index: BM25 and vectors as arrays in ``cache/``, and what is remembered of its rows.

A cache is behind by the rows that it lacks and by those that it has too many: two set differences, since a row never
changes. Writers keep the arrays on disk; where they are missing or damaged, whoever asks derives them in memory.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from llama_index.core.utils import iter_batch

from llama_index_contextual.app.store.nodes import to_node
from llama_index_contextual.app.store.sqlite_file import AT_ONCE
from llama_index_contextual.app.store.vectors import VectorIndex
from llama_index_contextual.errors import StorageError
from llama_index_contextual.keyword import Analyzer, Bm25Index, Column, lexical_text
from llama_index_contextual.keyword.array_files import DAMAGE, exclusive, read_parts, write_parts
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from llama_index_contextual.app.store.paid import PaidStore
    from llama_index_contextual.app.store.schema import Rows
    from llama_index_contextual.app.store.snapshot import Snapshot

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

# While another process writes, a reader's arrays follow it only for a tenth of the time.
_SHARE: Final = 10.0
_PART: Final = 16_384  # rows that are in memory while arrays are derived
_TEXTS: Final = 1000  # nodes that are in memory at once
_COLUMNS: Final = 32  # metadata keys whose values are remembered
_ANSWERS: Final = 64  # what was found among all rows
_UNUSED: Final = 1000  # values of a column that no row has any more
_IDS: Final = 50_000  # rows whose ids are remembered: some 15 MB; of so many the values of a metadata key


class Caches:
    """The arrays of one index in this process.

    Args:
        folder: Where writers keep them.
        paid: Has the vectors.
        model: Identity of the embedding model.
    """

    def __init__(self, folder: Path, paid: PaidStore, model: str) -> None:
        self.model = model
        self.analyzer = Analyzer()
        self._paid = paid
        load = partial(Bm25Index.from_arrays, analyzer=self.analyzer)
        empty = Bm25Index(self.analyzer)
        self._keywords = _CachedIndex(folder, "bm25", self.analyzer.fingerprint, empty, load, _with_texts)
        self._vectors = _CachedIndex(
            folder, "vectors", model, VectorIndex(), VectorIndex.from_arrays, self._with_vectors
        )
        self._guard = threading.Lock()
        self._rows = RowCache(("", 0), np.empty(0, np.int64))

    def keywords(self, snapshot: Snapshot) -> Bm25Index:
        """BM25, as near to a moment of the index as there is time for."""
        index: Bm25Index = self._keywords.at(snapshot, self.rows(snapshot).rows)
        return index

    def vectors(self, snapshot: Snapshot) -> VectorIndex:
        """All vectors, as near to a moment of the index as there is time for."""
        index: VectorIndex = self._vectors.at(snapshot, self.rows(snapshot).rows)
        return index

    def rows(self, snapshot: Snapshot) -> RowCache:
        """What is remembered of the rows at a moment; whoever reads more of them adds it."""
        moment = revision_of(snapshot)
        with self._guard:
            known = self._rows
            if known.moment != moment or len(known.id_of) > _IDS:
                rows = known.rows if known.moment == moment else snapshot.rows()
                self._rows = RowCache(moment, rows, known)
            return self._rows

    def save(self, snapshot: Snapshot, *, embeds: bool) -> None:
        """Bring the arrays up to date and keep them on disk. Where that fails, the next process derives them."""
        rows = self.rows(snapshot).rows
        self._keywords.save(snapshot, rows)
        if embeds:
            self._vectors.save(snapshot, rows)

    def saved_vectors(self, rows: Rows) -> dict[int, Any]:
        """Unit vectors of those of some rows that the folder has, by number."""
        index, _ = self._vectors.read()
        return dict(index.vectors_of(rows))

    def forget(self) -> None:
        """Derive all of it again when it is asked next."""
        self._keywords.forget()
        self._vectors.forget()

    def _with_vectors(self, index: VectorIndex, snapshot: Snapshot, rows: Rows) -> VectorIndex:
        found = 0
        for part in iter_batch(rows.tolist(), _TEXTS):
            some, vectors = self.vectors_of(snapshot, np.array(part, np.int64))
            index, found = index.with_vectors(some, vectors), found + len(some)
        if found < len(rows):
            lost = counted(len(rows) - found, "chunk")
            logger.warning(
                "%s: the vector is lost, so that only words find it. Cure: llama-index-contextual index", lost
            )
        return index

    def vectors_of(self, snapshot: Snapshot, rows: Rows) -> tuple[Rows, Any]:
        """Return those of some rows whose vector is there, and the vectors, from the file that keeps them."""
        hashes = snapshot.embed_hashes(rows)
        known, length = dict(self._paid.vectors(self.model, dict.fromkeys(hashes))), self._paid.dimensions(self.model)
        pairs = [
            (row, known[key])
            for row, key in zip(rows.tolist(), hashes, strict=True)
            if key in known and len(known[key]) == length
        ]
        vectors = np.stack([vector for _, vector in pairs]) if pairs else np.empty((0, max(length, 1)), np.float32)
        return np.array([row for row, _ in pairs], np.int64), vectors


class _CachedIndex:
    """Arrays of one kind, the revision that they show, and that of their copy on disk.

    Args:
        folder: Where a writer keeps the copy.
        kind: The beginning of its files' names.
        made_with: What makes the arrays: those of something else are not taken.
        empty: The arrays of no rows.
        load: Makes the arrays of the parts of a folder.
        add: Returns arrays with more rows.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        made_with: str,
        empty: Any,
        load: Callable[[Any], Any],
        add: Callable[[Any, Snapshot, Rows], Any],
    ) -> None:
        self._folder, self._kind, self._made_with = folder, kind, made_with
        self._empty, self._load, self._add = empty, load, add
        self._index: Any = None
        self._moment = "", 0
        self._saved: list[Any] | None = None  # the revision on disk, and how many rows it had
        self._lock = threading.Lock()
        self._cost = self._derived_at = 0.0

    def at(self, snapshot: Snapshot, rows: Rows, *, writes: bool = False) -> Any:
        """Return the arrays at a moment; other threads go on with older ones while they are brought up to date.

        Args:
            snapshot: The moment.
            rows: All of its rows.
            writes: Whether a writer asks, who waits.
        """
        wanted = revision_of(snapshot)
        if self._shows(wanted, rows):
            return self._index
        if not self._lock.acquire(blocking=writes or self._index is None):
            return self._index
        try:
            started = time.monotonic()
            following = self._index is not None and self._moment[0] == wanted[0]
            busy = following and not snapshot.state.complete and started - self._derived_at < self._cost * _SHARE
            if (busy and not writes) or self._shows(wanted, rows):
                return self._index
            index, self._saved = (self._index, self._saved) if following else self.read(wanted[0])
            if (
                not following
                and self._saved is not None
                and self._saved[:2] == [*wanted]
                and len(rows) < self._saved[2]
            ):
                snapshot.refuse("it lacks chunks that its caches have")
            index = index.without(_lacking(rows, index.rows))
            lacking = _lacking(index.rows, rows)
            for start in range(0, len(lacking), _PART):
                index = self._add(index, snapshot, lacking[start : start + _PART])
            self._index, self._moment, self._derived_at = index, wanted, time.monotonic()
            self._cost = self._derived_at - started
            return self._index
        finally:
            self._lock.release()

    def _shows(self, wanted: tuple[str, int], rows: Rows) -> bool:
        """Whether the arrays have all rows of a moment; later ones lack some where a copy was put back."""
        if self._index is None or self._moment[0] != wanted[0] or self._moment[1] < wanted[1]:
            return False
        return self._moment[1] == wanted[1] or bool(np.isin(rows, self._index.rows).all())

    def read(self, identity: str | None = None) -> tuple[Any, list[Any] | None]:
        """Return the copy on disk, and its revision and rows, where it is of an index; else an empty one."""
        try:
            parts, content = read_parts(self._folder, self._kind)
            if content["made_with"] == self._made_with and identity in (None, content["revision"][0]):
                return self._load(parts), [*content["revision"], content["rows"]]
        except DAMAGE:
            pass
        return self._empty, None

    def save(self, snapshot: Snapshot, rows: Rows) -> None:
        """Keep the arrays on disk as of a moment, and go on with that copy."""
        index, revision = self.at(snapshot, rows, writes=True), [*revision_of(snapshot)]
        if self._saved is not None and self._saved[:2] == revision:
            return
        with contextlib.suppress(StorageError), exclusive(self._folder, "The cache"):
            content = {"made_with": self._made_with, "revision": revision, "rows": len(rows)}
            written = write_parts(self._folder, self._kind, index.to_arrays(), content)
            with self._lock:
                self._index, self._saved = index.with_keys([part.key for part in written]), [*revision, len(rows)]

    def forget(self) -> None:
        """Derive the arrays again."""
        with self._lock:
            self._index = None


class RowCache:
    """What is remembered of the rows at one moment. A row never changes, so the next moment takes over what it has.

    Args:
        moment: Of the index.
        rows: Numbers of all chunks, ascending.
        earlier: Of the moment before.
    """

    def __init__(self, moment: tuple[str, int], rows: Rows, earlier: RowCache | None = None) -> None:
        self.moment, self.rows = moment, rows
        self.answers: dict[str, Any] = {}
        """What was found among all rows."""
        self.id_of: dict[int, str] = {}
        self.row_of: dict[str, int] = {}
        self.by_key: dict[str, dict[int, Any]] = {}
        self.made: dict[int, Any] = {}
        self.columns: dict[str, tuple[Rows, Column]] = {}
        if earlier is not None and earlier.moment[0] == moment[0]:
            self.by_key, self.columns, self.made = earlier.by_key, earlier.columns, earlier.made
            if len(earlier.id_of) <= _IDS:
                self.id_of, self.row_of = earlier.id_of.copy(), earlier.row_of.copy()
            for row in _lacking(rows, earlier.rows).tolist():
                node_id = self.id_of.pop(row, None)
                if node_id is not None and self.row_of.get(node_id) == row:
                    del self.row_of[node_id]

    def add_ids(self, id_of: Mapping[int, str]) -> None:
        """Remember ids of rows."""
        self.id_of.update(id_of)
        self.row_of.update({node_id: row for row, node_id in id_of.items()})

    def answer(self, question: str, read: Callable[[], _T]) -> _T:
        """Result of ``read``, which is called once for each question."""
        answers = self.answers
        if question not in answers:
            if len(answers) >= _ANSWERS:
                answers = self.answers = {}
            answers[question] = read()
        found: _T = answers[question]
        return found

    def values(self, key: str, rows: Sequence[int], read: Callable[[str, Rows], Sequence[Any]]) -> list[Any]:
        """Values of a metadata key of some rows; those that were not read before are read.

        Args:
            key: In the metadata.
            rows: Their numbers.
            read: Returns the values of a key of some rows, ascending.
        """
        known = self.by_key.get(key, {})
        if len(known) > _IDS or key not in self.by_key:
            if len(self.by_key) >= _COLUMNS:
                self.by_key.clear()
            known = self.by_key[key] = {}
        missing = sorted({row for row in rows if row not in known})
        for part in iter_batch(missing, AT_ONCE):
            known.update(zip(part, read(key, np.array(part, dtype=np.int64)), strict=True))
        return [known[row] for row in rows]

    def records(self, rows: Sequence[int], read: Callable[[Rows], Mapping[int, Any]]) -> list[Any]:
        """What ``read`` makes of each of some rows, once for each; None for those that it lacks."""
        made = self.made
        missing = sorted({row for row in rows if row and row not in made})
        if missing:
            if len(made) > _IDS:
                made = self.made = {}
                missing = sorted({*rows} - {0})
            made.update(read(np.array(missing, dtype=np.int64)))
        return [made.get(row) for row in rows]

    def column(self, key: str, read: Callable[[str, Rows], Sequence[Any]]) -> Column:
        """Values of a metadata key of all rows; of those that an earlier moment did not have they are read.

        Args:
            key: In the metadata.
            read: Returns the values of a key of some rows, ascending.
        """

        def updated() -> Column:
            before, column = self.columns.get(key, (self.rows[:0], Column.encode([])))
            if len(column.values) > len(before) + _UNUSED:
                before, column = self.rows[:0], Column.encode([])
            column = column.moved(before, self.rows, partial(read, key))
            if len(self.columns) >= _COLUMNS:
                self.columns.clear()
            self.columns[key] = self.rows, column
            return column

        return self.answer(f"metadata {key}", updated)


def revision_of(snapshot: Snapshot) -> tuple[str, int]:
    """Identity of an index, and the number of its last change."""
    return snapshot.state.identity, snapshot.state.change


def _lacking(rows: Rows, wanted: Rows) -> Rows:
    """Which of some ascending numbers are not among others; most often all are, which is seen at once."""
    return wanted[:0] if np.array_equal(rows, wanted) else np.setdiff1d(wanted, rows, assume_unique=True)


def _with_texts(index: Bm25Index, snapshot: Snapshot, rows: Rows) -> Bm25Index:
    texts = (
        lexical_text(to_node(row))
        for start in range(0, len(rows), _TEXTS)
        for row in list(snapshot.nodes(rows[start : start + _TEXTS]))
    )
    try:
        return index.with_texts(rows, texts)
    except ValueError as error:  # chunks went
        snapshot.refuse(str(error))
