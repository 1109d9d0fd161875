"""Everything that a write needs, under the lock: the store, the vectors that are known, and the manifest."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from llama_index_contextual.index.manifest import Manifest, load_manifest, save_manifest
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from llama_index_contextual.index.manifest import Entry
    from llama_index_contextual.index.reader import Reader
    from llama_index_contextual.index.state import WriteLock
    from llama_index_contextual.index.store import NodeStore, Row
    from llama_index_contextual.index.vectors import Vectorizer

_SPARE_VECTORS: Final = 1000  # kept whatever the size: 1.5 MB of the local model's
CHECKPOINT_SECONDS: Final = 5.0  # between two manifests: at 100,000 documents one takes a second


@dataclass(slots=True)
class Writer:
    """What one write needs, under the lock.

    Attributes:
        store: Where nodes go.
        vectors: Gives rows their vectors.
        reader: The readers of this process.
        path: Where the manifest lies.
        manifest: As of the last commit.
        lock: Held for the whole write if the store is ours alone; taken for each commit if it is a server's, where
            other processes write at the same time.
        shared: Whether that is so.
        hidden: Whether the store is one that no reader sees yet.
    """

    store: NodeStore
    vectors: Vectorizer
    reader: Reader
    path: Path
    manifest: Manifest
    lock: WriteLock
    shared: bool = False
    hidden: bool = False
    _pending: dict[str, Entry | None] = field(default_factory=dict)
    _committed_at: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Say that the index is being changed. Everything that was written before is shown from here on."""
        if not self.hidden and not self.shared:  # of a server others may write at the same time
            self.reader.ask(self.reader.dense_search)  # so that it follows each write, and need not be derived
        self.commit(complete=False)

    def end(self) -> None:
        """Say that the index is whole again, and keep the keyword index on disk; what is unused is given back."""
        self.commit(complete=True)
        if not self.hidden:
            self.reader.compact()
            self.reader.save_keywords()

    def write(self, fresh: Sequence[Row] = (), relocated: Sequence[Row] = (), gone: Sequence[str] = ()) -> None:
        """Change the store: new nodes before stale ones go, so that no reader and no kill meets a gap."""
        try:
            with (
                step("store", added=len(fresh), changed=len(relocated), deleted=len(gone)),
                self.reader.changing_files(),
            ):
                self.store.upsert(fresh)
                self.store.update_metadata(relocated)
                self.store.delete(gone)
        except BaseException:
            self.reader.keywords.doubt()  # else what was written stays out of it for good
            raise
        if not self.hidden:
            self.reader.keywords.apply([*fresh, *relocated], gone)
        self.reader.announce(complete=False, seen=None if self.hidden else self.store)

    def delete(self, document: str) -> int:
        """Take one document out of the store and the manifest; return how many nodes went."""
        ids = [item.id for items in self.store.of_entries([document]).values() for item in items]
        if ids or document in self.manifest.documents:
            # Not complete before the manifest agrees: a kill in between is for the next refresh to finish.
            was_complete = self.manifest.complete
            self.begin()
            self.write(gone=ids)
            self.record({document: None})
            self.end() if was_complete else self.commit(complete=False)
        return len(ids)

    def record(self, changes: dict[str, Entry | None]) -> None:
        """Note what the store now holds of some documents (None: nothing); committed from time to time."""
        self._pending |= changes
        if time.monotonic() - self._committed_at >= CHECKPOINT_SECONDS:
            self.commit(complete=False)

    def prune(self) -> None:
        """Forget vectors of texts that are long gone, when they are more than the ones in use.

        Until then an undone edit, a switched branch, or settings that are tried and taken back embed nothing.
        """
        if len(self.vectors.cache) > 2 * self.store.count() + _SPARE_VECTORS:
            self.vectors.cache.keep_only(stored.embed_hash for stored in self.store.all())

    def commit(self, *, complete: bool) -> None:
        """Bring the manifest up to date, on disk."""
        with self.lock.hold() if self.shared else contextlib.nullcontext():
            base = (load_manifest(self.path) or self.manifest) if self.shared else self.manifest
            documents = {**base.documents, **self._pending}
            kept = {key: entry for key, entry in documents.items() if entry is not None}
            generation = self.reader.generation() + 1
            self.manifest = replace(self.manifest, documents=kept, complete=complete, generation=generation)
            save_manifest(self.path, self.manifest)
            self.reader.announce(complete=complete, seen=None if self.hidden else self.store)
        self._pending.clear()
        self._committed_at = time.monotonic()
