"""Everything that a write needs, under the lock: the store, the vectors that are known, and the manifest."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from llama_index.core.schema import MetadataMode

from llama_index_contextual.errors import EmbeddingError
from llama_index_contextual.storage.manifest import Manifest, load_manifest, save_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_contextual.index.live import Live
    from llama_index_contextual.storage.chroma import NodeStore, Row
    from llama_index_contextual.storage.lock import WriteLock
    from llama_index_contextual.storage.manifest import Entry
    from llama_index_contextual.storage.vectors import VectorCache

_SPARE_VECTORS: Final = 1000  # kept whatever the size: 1.5 MB of the local model's
CHECKPOINT_SECONDS: Final = 5.0  # between two manifests: at 100,000 documents one takes a second


@dataclass(slots=True)
class Vectorizer:
    """Vectors of texts, from the cache or from the model."""

    cache: VectorCache
    embedding: BaseEmbedding

    def __call__(self, rows: Sequence[Row]) -> int:
        """Give rows their vectors, from the cache or from the model; returns how many texts were embedded."""
        return len(self.embed(rows))

    def embed(self, rows: Sequence[Row]) -> set[str]:
        """Do the same; returns the hashes of the texts that were embedded.

        New vectors are on disk before this returns, so that a kill cannot lose what was paid for.
        """
        vectors: dict[str, Sequence[float]] = dict(self.cache.get(list(dict.fromkeys(row.embed_hash for row in rows))))
        missing = {row.embed_hash: row for row in rows if row.embed_hash not in vectors}
        if missing:
            texts = [row.node.get_content(metadata_mode=MetadataMode.EMBED) for row in missing.values()]
            computed = dict(zip(missing, embed_texts(self.embedding, texts), strict=True))
            self.cache.put(computed)
            vectors |= computed
        for row in rows:
            row.vector = vectors[row.embed_hash]
        return set(missing)


@dataclass(slots=True)
class Writer:
    """One write session.

    Attributes:
        store: Where nodes go.
        give_vectors: Embeds rows.
        live: The readers of this process.
        path: Where the manifest lies.
        manifest: As of the last commit.
        lock: Held for the whole session if the store is ours alone; taken for each commit if it is a server's, where
            other processes write at the same time.
        shared: Whether that is so.
        hidden: Whether the store is one that no reader sees yet.
    """

    store: NodeStore
    give_vectors: Vectorizer
    live: Live
    path: Path
    manifest: Manifest
    lock: WriteLock
    shared: bool = False
    hidden: bool = False
    _pending: dict[str, Entry | None] = field(default_factory=dict)
    _committed_at: float = field(default_factory=time.monotonic)

    def write(self, fresh: Sequence[Row] = (), relocated: Sequence[Row] = (), gone: Sequence[str] = ()) -> None:
        """Change the store: new nodes before stale ones go, so that no reader and no kill meets a gap."""
        with self.live.changing_files():
            self.store.upsert(fresh)
            self.store.update_metadata(relocated)
            self.store.delete(gone)
        if not self.hidden:
            self.live.apply([*fresh, *relocated], gone)
        self.live.announce(complete=False, seen=not self.hidden)

    def record(self, changes: dict[str, Entry | None]) -> None:
        """Note what the store now holds of some documents (None: nothing); committed from time to time."""
        self._pending |= changes
        if time.monotonic() - self._committed_at >= CHECKPOINT_SECONDS:
            self.commit(complete=False)

    def prune(self) -> None:
        """Forget vectors of texts that are long gone, when they are more than the ones in use.

        Until then an undone edit, a switched branch, or settings that are tried and taken back embed nothing.
        """
        if len(self.give_vectors.cache) > 2 * self.store.count() + _SPARE_VECTORS:
            self.give_vectors.cache.keep_only(stored.embed_hash for stored in self.store.all())

    def commit(self, *, complete: bool) -> None:
        """Bring the manifest up to date, on disk."""
        with self.lock.hold() if self.shared else contextlib.nullcontext():
            base = (load_manifest(self.path) or self.manifest) if self.shared else self.manifest
            documents = {**base.documents, **self._pending}
            kept = {key: entry for key, entry in documents.items() if entry is not None}
            generation = self.live.generation() + 1
            self.manifest = replace(self.manifest, documents=kept, complete=complete, generation=generation)
            save_manifest(self.path, self.manifest)
            self.live.announce(complete=complete, seen=not self.hidden)
        self._pending.clear()
        self._committed_at = time.monotonic()


def embed_texts(embedding: BaseEmbedding, texts: list[str]) -> list[list[float]]:
    """Vectors of texts; :class:`EmbeddingError` where the model fails or gives something that is no vector."""
    try:
        vectors = embedding.get_text_embedding_batch(texts)
    except EmbeddingError:
        raise
    except Exception as error:
        raise EmbeddingError(
            f"{embedding.model_name} could not embed {len(texts)} texts ({type(error).__name__}: {error}). "
            "What was finished is kept. Cure: see to the model, then refresh."
        ) from error
    if len(vectors) != len(texts) or len({len(vector) for vector in vectors}) != 1:
        raise EmbeddingError(
            f"{embedding.model_name} gave {len(vectors)} vectors for {len(texts)} texts, or of unequal length."
        )
    return vectors
