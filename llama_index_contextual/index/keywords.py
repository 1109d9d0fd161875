"""What a reader keeps beside the store, derived from it: the keyword index and, with it, the matrix of all vectors.

Both are brought up to date when they are asked. A question derives them in memory and writes nothing. A writer keeps
them on disk at its end, for the next process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any, Final, cast

from llama_index_contextual.errors import StorageError
from llama_index_contextual.index.exact import Exact
from llama_index_contextual.index.store import to_node
from llama_index_contextual.keyword import KeywordIndex
from llama_index_contextual.keyword.persistence import load_index, save_index, saved_stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from llama_index_contextual.index.store import NodeStore, OpenStore, Row
    from llama_index_contextual.retrievers.search import DenseSearch

# While another process writes, the keyword index follows its batches only for a tenth of the time.
_SYNC_SHARE: Final = 10.0
_AT_ONCE: Final = 1000  # nodes that are in memory while all are read for the first time: 5 kB each


class Keywords:
    """The keyword index of a store, and which state of the store it shows.

    Args:
        folder: Where a writer keeps it for the next process.
        vectors: The same of the matrix.
        exact_limit: Most vectors of the matrix.
    """

    def __init__(self, folder: Path, vectors: Path, exact_limit: int) -> None:
        self._folder = folder
        self.index = KeywordIndex()
        self._exact = Exact(vectors, exact_limit)
        self._lock = threading.RLock()
        self._stamp: object = None  # of the state that it shows; None before it is first asked for
        self._shown: dict[str, bytes] = {}
        self._cost = self._synced_at = 0.0

    def sync(self, view: OpenStore) -> None:
        """Bring it up to a state of the store. Other threads go on with the last state meanwhile, where there is one.

        The store is not opened where the copy on disk has that state.
        """
        stamp = view.stamp
        if stamp == self._stamp or not self._lock.acquire(blocking=self._stamp is None):
            return
        try:
            started = time.monotonic()
            if stamp == self._stamp or (_is_partial(stamp) and started - self._synced_at < self._cost * _SYNC_SHARE):
                return
            if not self._load(stamp):
                self._follow(view.store)
            self._stamp, self._synced_at = stamp, time.monotonic()
            self._cost = self._synced_at - started
        finally:
            self._lock.release()

    def dense(self, view: OpenStore) -> DenseSearch:
        """Return what answers by vectors, of the state that the keyword index shows: it evaluates the filters."""
        self.sync(view)
        return self._exact.search(view, self.index, self._stamp)

    def shows(self, stamp: object) -> bool:
        """Return whether all of it shows this state of the store."""
        return stamp == self._stamp and self._exact.shows(self.index.count())

    def save(self, view: OpenStore | None, stamp: object) -> None:
        """Keep the state of the store on disk. Where that fails, nothing is lost: the next process derives it.

        Args:
            view: The store, which is read if its state is not yet shown.
            stamp: Of the state.
        """
        with self._lock, contextlib.suppress(OSError, StorageError):
            if saved_stamp(self._folder) != (kept := self._kept_as(stamp)):
                if view is not None:
                    self.dense(view)
                elif not self.shows(stamp):
                    return
                save_index(self.index, self._folder, stamp=kept)
                self._exact.save(stamp)

    def _kept_as(self, stamp: object) -> str:
        """Return the stamp of the copy on disk: another version of the analyzer makes another copy."""
        return f"{stamp} {self.index.analyzer.fingerprint}"

    def _load(self, stamp: object) -> bool:
        """Take the copy on disk if it shows exactly this state."""
        if saved_stamp(self._folder) != (kept := self._kept_as(stamp)):
            return False
        try:
            self.index, _ = load_index(self._folder, stamp=kept, analyzer=self.index.analyzer)
        except StorageError:
            return False
        self._shown = dict.fromkeys(self.index.selected_ids(), b"")  # to be compared anew when something changes
        self._exact.forget()
        return True

    def apply(self, rows: Iterable[Row], gone: Iterable[str]) -> None:
        """Show a write of this process, unless nobody has asked for anything yet."""
        with self._lock:
            if self._stamp is None:
                return
            changed = list(rows)
            self.index.add([row.node for row in changed])
            self._shown |= {row.node.node_id: _digest(row.metadata) for row in changed}
            removed = list(gone)
            self._forget(removed)
            self._exact.apply(changed, removed)

    def doubt(self) -> None:
        """Compare all nodes at the next question: a write failed, and what it left in the store is not known."""
        with self._lock:
            if self._stamp is not None:
                self._stamp = object()  # which no store has; other threads go on with the last state
                self._exact.forget()

    def discard(self) -> None:
        """Derive it anew from the store when it is asked next, whatever the copy on disk holds; for writers."""
        with self._lock:
            self._stamp = None
            shutil.rmtree(self._folder, ignore_errors=True)
            self._exact.discard()

    def advance(self, before: object, after: object) -> None:
        """Note that a write of this process, already applied, changed the stamp."""
        with self._lock:
            if self._stamp is not None and self._stamp == before:
                self._stamp = after

    def _follow(self, store: NodeStore) -> None:
        changed, seen, nobody_looks = [], {}, self._stamp is None
        if nobody_looks:  # so it can be made in parts; what an earlier attempt left of it is thrown away
            self.index, self._shown = KeywordIndex(self.index.analyzer), {}
            self._exact.forget()
        other: list[str] = []
        for stored, text in store.all_with_text():
            seen[stored.id] = digest = _digest(stored.metadata)
            if self._shown.get(stored.id) != digest:
                changed.append(to_node(stored, text))
                other.append(stored.id)
            if nobody_looks and len(changed) >= _AT_ONCE:
                self.index.add(changed)
                changed = []
        self.index.add(changed)
        gone = [id_ for id_ in self._shown if id_ not in seen]
        self._forget(gone)
        self._exact.doubt(other, gone, len(seen))
        self._shown = seen

    def _forget(self, gone: Sequence[str]) -> None:
        self.index.delete(gone)
        for id_ in gone:
            self._shown.pop(id_, None)


def _digest(metadata: Mapping[str, Any]) -> bytes:
    """Hash everything that the keyword index shows of a node: metadata holds the rest, the text's hash included."""
    text = json.dumps(sorted((key, value) for key, value in metadata.items()), default=str)
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest()


def _is_partial(stamp: object) -> bool:
    return b'"complete": false' in cast("bytes", stamp[0] if isinstance(stamp, tuple) else stamp or b"")
