"""The keyword index that a reader keeps beside the store: derived from it, and brought up to date when it is asked.

A question derives it in memory and writes nothing. A writer keeps it on disk at its end, for the next process.
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
from llama_index_contextual.index.store import to_node
from llama_index_contextual.keyword import KeywordIndex
from llama_index_contextual.keyword.persistence import load_index, save_index, saved_stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from llama_index_contextual.index.store import NodeStore, Row

# While another process writes, the keyword index follows its batches only for a tenth of the time.
_SYNC_SHARE: Final = 10.0
_AT_ONCE: Final = 1000  # nodes that are in memory while all are read for the first time: 5 kB each


class Keywords:
    """The keyword index of a store, and which state of the store it shows.

    Args:
        folder: Where a writer keeps it for the next process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.index = KeywordIndex()
        self._lock = threading.RLock()
        self._stamp: object = None  # of the state that it shows; None before it is first asked for
        self._shown: dict[str, bytes] = {}
        self._cost = self._synced_at = 0.0

    def sync(self, store: NodeStore, stamp: object) -> None:
        """Bring it up to the store's state. Other threads go on with the last state meanwhile, where there is one."""
        if stamp == self._stamp or not self._lock.acquire(blocking=self._stamp is None):
            return
        try:
            started = time.monotonic()
            if stamp == self._stamp or (_is_partial(stamp) and started - self._synced_at < self._cost * _SYNC_SHARE):
                return
            if not self._load(stamp):
                self._follow(store)
            self._stamp, self._synced_at = stamp, time.monotonic()
            self._cost = self._synced_at - started
        finally:
            self._lock.release()

    def shows(self, stamp: object) -> bool:
        """Return whether it shows this state of the store."""
        return stamp == self._stamp

    def save(self, store: NodeStore | None, stamp: object) -> None:
        """Keep the state of the store on disk. Where that fails, nothing is lost: the next process derives it.

        Args:
            store: Where it is read if it is not yet shown.
            stamp: Of the state.
        """
        with self._lock, contextlib.suppress(OSError, StorageError):
            if saved_stamp(self._folder) != (kept := self._kept_as(stamp)):
                if store is not None:
                    self.sync(store, stamp)
                elif not self.shows(stamp):
                    return
                save_index(self.index, self._folder, stamp=kept)

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
        return True

    def apply(self, rows: Iterable[Row], gone: Iterable[str]) -> None:
        """Show a write of this process, unless nobody has asked for anything yet."""
        with self._lock:
            if self._stamp is None:
                return
            changed = list(rows)
            self.index.add([row.node for row in changed])
            self._shown |= {row.node.node_id: _digest(row.metadata) for row in changed}
            self._forget(gone)

    def doubt(self) -> None:
        """Compare all nodes at the next question: a write failed, and what it left in the store is not known."""
        with self._lock:
            if self._stamp is not None:
                self._stamp = object()  # which no store has; other threads go on with the last state

    def discard(self) -> None:
        """Derive it anew from the store when it is asked next, whatever the copy on disk holds; for writers."""
        with self._lock:
            self._stamp = None
            shutil.rmtree(self._folder, ignore_errors=True)

    def advance(self, before: object, after: object) -> None:
        """Note that a write of this process, already applied, changed the stamp."""
        with self._lock:
            if self._stamp is not None and self._stamp == before:
                self._stamp = after

    def _follow(self, store: NodeStore) -> None:
        changed, seen, nobody_looks = [], {}, self._stamp is None
        if nobody_looks:  # so it can be made in parts; what an earlier attempt left of it is thrown away
            self.index, self._shown = KeywordIndex(self.index.analyzer), {}
        for stored, text in store.all_with_text():
            seen[stored.id] = digest = _digest(stored.metadata)
            if self._shown.get(stored.id) != digest:
                changed.append(to_node(stored, text))
            if nobody_looks and len(changed) >= _AT_ONCE:
                self.index.add(changed)
                changed = []
        self.index.add(changed)
        self._forget([id_ for id_ in self._shown if id_ not in seen])
        self._shown = seen

    def _forget(self, ids: Iterable[str]) -> None:
        gone = list(ids)
        self.index.delete(gone)
        for id_ in gone:
            self._shown.pop(id_, None)


def _digest(metadata: Mapping[str, Any]) -> bytes:
    """Hash everything that the keyword index shows of a node: metadata holds the rest, the text's hash included."""
    text = json.dumps(sorted((key, value) for key, value in metadata.items()), default=str)
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest()


def _is_partial(stamp: object) -> bool:
    return b'"complete": false' in cast("bytes", stamp[0] if isinstance(stamp, tuple) else stamp or b"")
