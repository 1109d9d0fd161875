"""The keyword index of an index that changes: it follows the store, and is kept on disk as a cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Final, cast

from filelock import FileLock, Timeout

from llama_index_contextual.errors import StorageError
from llama_index_contextual.retrievers import ContextualBM25Retriever
from llama_index_contextual.storage.chroma import to_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from llama_index_contextual.storage.chroma import NodeStore, Row
    from llama_index_contextual.storage.layout import Layout

# While another process writes, the keyword index follows its batches only for a tenth of the time.
_SYNC_SHARE: Final = 10.0


class Keyword:
    """The keyword index and what it shows of the store."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._saved: object = None  # the stamp that the copy on disk shows
        self.retriever = ContextualBM25Retriever()
        self._lock = threading.RLock()
        self._stamp: object = None  # of the state that it shows; None before it is first asked for
        self._shown: dict[str, bytes] = {}
        self._cost = self._synced_at = 0.0

    def sync(self, store: NodeStore, stamp: object) -> None:
        """Bring it up to the store's state; others go on with the last one meanwhile, unless there is none."""
        if stamp == self._stamp or not self._lock.acquire(blocking=self._stamp is None):
            return
        try:
            started = time.monotonic()
            if stamp == self._stamp or (_is_partial(stamp) and started - self._synced_at < self._cost * _SYNC_SHARE):
                return
            if self._stamp is not None or not self._load(stamp):
                self._follow(store)
            self._stamp, self._synced_at = stamp, time.monotonic()
            self._cost = self._synced_at - started
            self.save()
        finally:
            self._lock.release()

    def save(self) -> None:
        """Keep a finished state on disk, so that the next process need not derive it; only a cache."""
        with self._lock:
            if self._stamp is None or self._stamp == self._saved or _is_partial(self._stamp):
                return
            with contextlib.suppress(OSError, Timeout, StorageError), FileLock(self._layout.bm25_lock, timeout=0):
                self.retriever.persist(self._layout.bm25, stamp=str(self._stamp))
                self._saved = self._stamp

    def _load(self, stamp: object) -> bool:
        """Take the copy on disk if it shows exactly this state."""
        try:
            self.retriever = ContextualBM25Retriever.from_persist_dir(
                self._layout.bm25, stamp=str(stamp), analyzer=self.retriever.analyzer
            )
        except StorageError:
            return False
        self._shown = dict.fromkeys(self.retriever.node_ids, b"")  # to be compared anew when something changes
        self._saved = stamp
        return True

    def apply(self, rows: Iterable[Row], gone: Iterable[str]) -> None:
        """Show a write of this process, unless nobody has asked for anything yet."""
        with self._lock:
            if self._stamp is None:
                return
            changed = list(rows)
            self.retriever.add([row.node for row in changed])
            self._shown |= {row.node.node_id: _digest(row.metadata) for row in changed}
            self._forget(gone)

    def advance(self, before: object, after: object) -> None:
        """An own write, already applied, changed the stamp."""
        with self._lock:
            if self._stamp is not None and self._stamp == before:
                self._stamp = after

    def _follow(self, store: NodeStore) -> None:
        changed, seen = [], {}
        for stored, text in store.all_with_text():
            seen[stored.id] = digest = _digest(stored.metadata)
            if self._shown.get(stored.id) != digest:
                changed.append(to_node(stored, text))
        self.retriever.add(changed)
        self._forget([id_ for id_ in self._shown if id_ not in seen])
        self._shown = seen

    def _forget(self, ids: Iterable[str]) -> None:
        gone = list(ids)
        self.retriever.delete(gone)
        for id_ in gone:
            self._shown.pop(id_, None)


def _digest(metadata: Mapping[str, Any]) -> bytes:
    """Of everything that the keyword index shows of a node: its metadata holds the rest, the text's hash included."""
    text = json.dumps(sorted((key, value) for key, value in metadata.items()), default=str)
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest()


def _is_partial(stamp: object) -> bool:
    return b'"complete": false' in cast("bytes", stamp[0] if isinstance(stamp, tuple) else stamp or b"")
