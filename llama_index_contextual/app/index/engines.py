"""The engines that are derived from the database: keywords, the matrix of vectors, and a store beyond its limit.

They know numbers of nodes only. They are caught up by comparing two sets of numbers: what the database has, and what an
engine shows. A question does that in memory and writes nothing. A writer keeps the engines on disk at its end, for the
next process. Whatever is wrong with such a copy, the engine is derived again.
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

from llama_index_contextual.app.index.tables import AT_ONCE, to_node
from llama_index_contextual.errors import StorageError
from llama_index_contextual.keyword import Analyzer, Column, KeywordEngine, lexical_text
from llama_index_contextual.matrix import Matrix
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from llama_index_contextual.app.index.snapshot import Snapshot
    from llama_index_contextual.app.index.tables import Rows

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

# While another process writes, an engine follows it only for a tenth of the time.
_SHARE: Final = 10.0
_PART: Final = 16_384  # nodes after which a writer puts on disk what an engine has got
_TEXTS: Final = 1000  # nodes that are in memory while an engine is derived
_COLUMNS: Final = 32  # metadata keys whose values are remembered
_ANSWERS: Final = 64  # what was found among all nodes
_UNUSED: Final = 1000  # values of a column that no row has any more
_IDS: Final = 50_000  # nodes whose ids are remembered: some 15 MB; of so many the values of a metadata key


class Engines:
    """The engines of one index in this process, and which change of the database each shows.

    Args:
        folder: Where writers keep them.
        model: Identity of the embedding model.
    """

    def __init__(self, folder: Path, model: str) -> None:
        self.model = model
        self.analyzer = Analyzer()
        load = partial(KeywordEngine.load, analyzer=self.analyzer)
        self._keywords = _Derived(folder / "keywords", KeywordEngine(self.analyzer), load, _with_texts, self.known)
        self._matrix = _Derived(folder / "matrix", Matrix(), Matrix.load, self._with_vectors, self.known)
        self._guard = threading.Lock()
        self._known = Known(("", 0), np.empty(0, np.int64))

    def keywords(self, snapshot: Snapshot) -> KeywordEngine:
        """Return the keyword engine, as near to a moment of the database as there is time for."""
        engine: KeywordEngine = self._keywords.at(snapshot)
        return engine

    def matrix(self, snapshot: Snapshot) -> Matrix:
        """Return all vectors, as near to a moment of the database as there is time for."""
        matrix: Matrix = self._matrix.at(snapshot)
        return matrix

    def nearest(
        self, snapshot: Snapshot, embeddings: Sequence[Sequence[float]], top_k: int, among: Rows | None
    ) -> list[tuple[Rows, Any]]:
        """Return the nearest rows to each vector, and their cosines."""
        return self.matrix(snapshot).nearest_to_each(embeddings, top_k, among)

    def known(self, snapshot: Snapshot) -> Known:
        """Return what is remembered of the nodes at the moment of a snapshot; whoever reads more of them adds it."""
        moment = _moment(snapshot)
        with self._guard:
            known = self._known
            if known.moment != moment or len(known.id_of) > _IDS:
                rows = known.rows if known.moment == moment else snapshot.rows()
                self._known = Known(moment, rows, known)
            return self._known

    def save(self, snapshot: Snapshot, *, embeds: bool) -> None:
        """Bring all engines up to date and keep them on disk. Where that fails, the next process derives them."""
        self._keywords.save(snapshot)
        if embeds:
            self._matrix.save(snapshot)

    def forget(self) -> None:
        """Derive all of it again when it is asked next."""
        self._keywords.forget()
        self._matrix.forget()

    def _with_vectors(self, matrix: Matrix, snapshot: Snapshot, rows: Rows) -> Matrix:
        read = 0
        for some, vectors in snapshot.vectors(self.model, rows):
            matrix, read = matrix.with_rows(some, vectors), read + len(some)
        if read < len(rows):
            lost = counted(len(rows) - read, "chunk")
            logger.warning(
                "%s: the vector is lost, so that only words find it. Cure: llama-index-contextual index", lost
            )
        return matrix


class Known:
    """What is remembered of the nodes at one moment. A row never changes, so the next moment takes over what it has.

    Args:
        moment: Of the database.
        rows: The numbers of all nodes, ascending.
        earlier: Of the moment before.
    """

    def __init__(self, moment: tuple[str, int], rows: Rows, earlier: Known | None = None) -> None:
        self.moment, self.rows = moment, rows
        self.answers: dict[str, Any] = {}
        """What was found among all nodes."""
        self.id_of: dict[int, str] = {}
        self.row_of: dict[str, int] = {}
        self.by_key: dict[str, dict[int, Any]] = {}
        self.columns: dict[str, tuple[Rows, Column]] = {}
        if earlier is not None and earlier.moment[0] == moment[0]:
            self.by_key, self.columns = earlier.by_key, earlier.columns
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
        """Return what ``read`` finds among all nodes; it is called once for each question."""
        answers = self.answers
        if question not in answers:
            if len(answers) >= _ANSWERS:
                answers = self.answers = {}
            answers[question] = read()
        found: _T = answers[question]
        return found

    def values(self, key: str, rows: Sequence[int], read: Callable[[str, Rows], Sequence[Any]]) -> list[Any]:
        """Return the values of a metadata key of some rows; those that were not read before are read.

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

    def column(self, key: str, read: Callable[[str, Rows], Sequence[Any]]) -> Column:
        """Return the values of a metadata key of all nodes; of those that an earlier moment did not have they are read.

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


class _Derived:
    """One engine, the moment that it shows, and the stamp of its copy on disk.

    Args:
        folder: Where a writer keeps its copy.
        empty: An engine without nodes.
        load: Returns the copy in a folder and its stamp; None where there is none that is whole.
        add: Returns an engine with more nodes.
        known: Returns what is remembered of a moment.
    """

    def __init__(
        self,
        folder: Path,
        empty: Any,
        load: Callable[[Path], tuple[Any, str] | None],
        add: Callable[[Any, Snapshot, Rows], Any],
        known: Callable[[Snapshot], Known],
    ) -> None:
        self._folder, self._empty, self._load, self._add, self._known = folder, empty, load, add, known
        self._engine: Any = None
        self._moment = "", 0
        self._saved = ""
        self._lock = threading.Lock()
        self._cost = self._derived_at = 0.0

    def at(self, snapshot: Snapshot, *, writes: bool = False) -> Any:
        """Return the engine at a moment; other threads go on with an older one while it is brought up to date.

        Args:
            snapshot: The moment.
            writes: Whether a writer asks, who waits, and keeps on disk what does not fit into memory together.
        """
        wanted = _moment(snapshot)
        if self._shows(wanted, snapshot):
            return self._engine
        if not self._lock.acquire(blocking=writes or self._engine is None):
            return self._engine
        try:
            started = time.monotonic()
            following = self._engine is not None and self._moment[0] == wanted[0]
            busy = following and not snapshot.state.complete and started - self._derived_at < self._cost * _SHARE
            if (busy and not writes) or self._shows(wanted, snapshot):
                return self._engine
            engine, self._saved = (self._engine, self._saved) if following else self._read(wanted)
            rows = self._known(snapshot).rows
            gone = _lacking(rows, engine.rows)
            if not following and self._saved == _stamp_of(wanted) and len(gone):
                snapshot.refuse("it lacks nodes that its engines have")
            engine = engine.without(gone)
            lacking = _lacking(engine.rows, rows)
            for start in range(0, len(lacking), _PART):
                part = lacking[start : start + _PART]
                engine = self._add(engine, snapshot, part)
                if writes and len(part) == _PART:
                    engine = engine.save(self._folder, _stamp_of((wanted[0], 0)))
            self._engine = engine
            self._moment, self._derived_at = wanted, time.monotonic()
            self._cost = self._derived_at - started
            return self._engine
        finally:
            self._lock.release()

    def _shows(self, wanted: tuple[str, int], snapshot: Snapshot) -> bool:
        """Return whether the engine has all nodes of a moment; a later one lacks some where a copy was put back."""
        if self._engine is None or self._moment[0] != wanted[0] or self._moment[1] < wanted[1]:
            return False
        return self._moment[1] == wanted[1] or bool(np.isin(self._known(snapshot).rows, self._engine.rows).all())

    def _read(self, wanted: tuple[str, int]) -> tuple[Any, str]:
        """Return the copy on disk, where it is of these nodes; else an empty engine."""
        saved = self._load(self._folder)
        return saved if saved is not None and saved[1].rpartition(" ")[0] == wanted[0] else (self._empty, "")

    def save(self, snapshot: Snapshot) -> None:
        """Keep it on disk as of a moment, and go on with that. Where it fails, the next process derives it."""
        with contextlib.suppress(StorageError):
            engine, stamp = self.at(snapshot, writes=True), _stamp_of(_moment(snapshot))
            if self._saved != stamp:
                engine = engine.save(self._folder, stamp)
                with self._lock:
                    self._engine, self._saved = engine, stamp

    def forget(self) -> None:
        """Derive it again."""
        with self._lock:
            self._engine = None


def _moment(snapshot: Snapshot) -> tuple[str, int]:
    """Return which nodes a snapshot is of, and the number of its last change."""
    return f"{snapshot.state.identity} {snapshot.edition}", snapshot.state.change


def _stamp_of(moment: tuple[str, int]) -> str:
    return f"{moment[0]} {moment[1]}"


def _lacking(rows: Rows, wanted: Rows) -> Rows:
    """Return which of some ascending numbers are not among others; most often all are, which is seen at once."""
    return wanted[:0] if np.array_equal(rows, wanted) else np.setdiff1d(wanted, rows, assume_unique=True)


def _with_texts(engine: KeywordEngine, snapshot: Snapshot, rows: Rows) -> KeywordEngine:
    for start in range(0, len(rows), _TEXTS):
        nodes = list(snapshot.nodes(rows[start : start + _TEXTS]))
        engine = engine.with_texts([one.row for one in nodes], (lexical_text(to_node(one)) for one in nodes))
    return engine
