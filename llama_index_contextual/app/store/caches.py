"""What is derived from an index: BM25 and vectors as arrays in ``cache/``, and what was read of its rows.

A cache is behind by the rows that it lacks and by those that it has too many: two set differences, since a row never
changes. Writers keep the arrays on disk; where they are missing or damaged, whoever asks derives them in memory.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from llama_index.core.utils import iter_batch

from llama_index_contextual.app.store.rows import to_node
from llama_index_contextual.app.store.vectors import VectorIndex
from llama_index_contextual.errors import StorageError
from llama_index_contextual.keyword import Analyzer, Bm25Index, lexical_text
from llama_index_contextual.keyword.arrays import DAMAGE
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from llama_index_contextual.app.store.database import Rows, Snapshot
    from llama_index_contextual.app.store.paid import PaidStore

logger = logging.getLogger(__name__)

_PART: Final = 16_384  # rows that are in memory while arrays are derived
_TEXTS: Final = 1000  # nodes that are in memory at once
_REMEMBERED: Final = 50_000  # rows whose ids, or values of a metadata key, are remembered: some 15 MB


class Caches:
    """The arrays of one index in this process, and what was read of its rows.

    Args:
        folder: Where writers keep the arrays.
        paid: Has the vectors.
        model: Identity of the embedding model.
    """

    def __init__(self, folder: Path, paid: PaidStore, model: str) -> None:
        self.model, self._paid = model, paid
        self.analyzer = Analyzer()
        self._guard = threading.Lock()
        self._moment: Moment | None = None
        self._values: dict[str, dict[int, Any]] = {}
        of_words, no_words = self.analyzer.fingerprint, Bm25Index((), self.analyzer)
        self._keywords = _CachedIndex(folder, "bm25", of_words, no_words, _with_texts)
        self._vectors = _CachedIndex(folder, "vectors", model, VectorIndex(), self._with_vectors)

    def moment(self, snapshot: Snapshot) -> Moment:
        """The rows at a moment of the index."""
        with self._guard:
            if self._moment is None or self._moment.revision != revision_of(snapshot):
                self._moment = Moment(revision_of(snapshot), snapshot.rows(), {})
            return self._moment

    def keywords(self, snapshot: Snapshot) -> Bm25Index:
        """BM25 at a moment of the index."""
        index: Bm25Index = self._keywords.at(snapshot, self.moment(snapshot).rows)
        return index

    def vectors(self, snapshot: Snapshot) -> VectorIndex:
        """All vectors at a moment of the index."""
        index: VectorIndex = self._vectors.at(snapshot, self.moment(snapshot).rows)
        return index

    def values(self, key: str, rows: Sequence[int], read: Callable[[str, Rows], Sequence[Any]]) -> list[Any]:
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

    def save(self, snapshot: Snapshot, *, embeds: bool) -> None:
        """Bring the arrays up to date and keep them on disk. Where that fails, the next process derives them."""
        rows = self.moment(snapshot).rows
        self._keywords.save(snapshot, rows)
        if embeds:
            self._vectors.save(snapshot, rows)

    def forget(self) -> None:
        """Read all of it again at the next question."""
        self._moment, self._values = None, {}
        self._keywords.forget()
        self._vectors.forget()

    def _with_vectors(self, index: VectorIndex, snapshot: Snapshot, rows: Rows) -> VectorIndex:
        found = 0
        for start in range(0, len(rows), _TEXTS):
            part = rows[start : start + _TEXTS]
            hashes, length = snapshot.column("embed_hash", part), self._paid.dimensions(self.model)
            known = dict(self._paid.vectors(self.model, dict.fromkeys(hashes)))
            pairs = zip(part.tolist(), map(known.get, hashes), strict=True)
            whole = {row: vector for row, vector in pairs if vector is not None and len(vector) == length}
            index = index.with_vectors(np.array([*whole], np.int64), [*whole.values()])
            found += len(whole)
        if found < len(rows):
            lost = counted(len(rows) - found, "chunk")
            logger.warning(
                "%s: the vector is lost, so that only words find it. Cure: llama-index-contextual index", lost
            )
        return index


class Moment(NamedTuple):
    """The rows of an index at one moment.

    Args:
        revision: Of the index.
        rows: Numbers of all chunks, ascending.
        answers: What was found among all of them.
    """

    revision: tuple[str, int]
    rows: Rows
    answers: dict[str, Any]


class _CachedIndex:
    """Arrays of one kind, the revision that they show, and that of their copy on disk.

    Args:
        folder: Where a writer keeps the copy.
        kind: The beginning of its files' names.
        made_with: What makes the arrays: those of something else are not taken.
        empty: The arrays of no rows.
        add: Returns arrays with more rows.
    """

    def __init__(
        self, folder: Path, kind: str, made_with: str, empty: Any, add: Callable[[Any, Snapshot, Rows], Any]
    ) -> None:
        self._folder, self._kind, self._made_with = folder, kind, made_with
        self._empty, self._add = empty, add
        self._current: tuple[tuple[str, int], Any] | None = None  # the revision, and the arrays
        self._saved: tuple[str, int] | None = None  # the revision on disk
        self._lock = threading.Lock()

    def at(self, snapshot: Snapshot, rows: Rows) -> Any:
        """The arrays at a moment, which has these rows. Those of an earlier one than before are made for this call."""
        wanted, current = revision_of(snapshot), self._current
        if current is not None and current[0] == wanted:
            return current[1]
        with self._lock:
            if self._current is None or self._current[0][0] != wanted[0]:
                self._current = (wanted[0], 0), self._read(snapshot, rows)
            revision, index = self._current
            index = index.without(np.setdiff1d(index.rows, rows, assume_unique=True))
            lacking = np.setdiff1d(rows, index.rows, assume_unique=True)
            for start in range(0, len(lacking), _PART):
                index = self._add(index, snapshot, lacking[start : start + _PART])
            if wanted >= revision:
                self._current = wanted, index
            return index

    def _read(self, snapshot: Snapshot, rows: Rows) -> Any:
        """The copy on disk, where it is of this index; else an empty one."""
        self._saved = None
        try:
            index, content = self._empty.load(self._folder, self._kind)
            identity, change = content["revision"]
            makers, size = (content["made_with"], identity), int(content["rows"])
        except DAMAGE:
            return self._empty
        if makers != (self._made_with, snapshot.state.identity):
            return self._empty
        if change == snapshot.state.change and len(rows) < size:
            snapshot.refuse("it lacks chunks that its caches have")
        self._saved = identity, change
        return index

    def save(self, snapshot: Snapshot, rows: Rows) -> None:
        """Keep the arrays on disk as of a moment, and go on with that copy."""
        index, revision = self.at(snapshot, rows), revision_of(snapshot)
        if self._saved == revision:
            return
        with contextlib.suppress(StorageError):
            content = {"made_with": self._made_with, "revision": revision, "rows": len(rows)}
            written = index.save(self._folder, self._kind, content)
            with self._lock:
                self._current, self._saved = (revision, written), revision

    def forget(self) -> None:
        """Derive the arrays again."""
        self._current = None


def revision_of(snapshot: Snapshot) -> tuple[str, int]:
    """Identity of an index, and the number of its last change."""
    return snapshot.state.identity, snapshot.state.change


def _with_texts(index: Bm25Index, snapshot: Snapshot, rows: Rows) -> Bm25Index:
    texts = (
        lexical_text(to_node(row)) for part in iter_batch(rows.tolist(), _TEXTS) for row in list(snapshot.nodes(part))
    )
    try:
        return index.with_texts(rows, texts)
    except ValueError as error:  # chunks went
        snapshot.refuse(str(error))
