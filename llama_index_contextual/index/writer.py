"""Everything that a write needs, under the lock: the store, the vectors that are known, and the manifest."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from llama_index.core.schema import MetadataMode

from llama_index_contextual.errors import EmbeddingError, StorageError
from llama_index_contextual.index.state import Manifest, load_manifest, save_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_contextual.index.chroma import NodeStore, Row
    from llama_index_contextual.index.reader import Reader
    from llama_index_contextual.index.state import Entry, WriteLock


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
        reader: The readers of this process.
        path: Where the manifest lies.
        manifest: As of the last commit.
        lock: Held for the whole session if the store is ours alone; taken for each commit if it is a server's, where
            other processes write at the same time.
        shared: Whether that is so.
        hidden: Whether the store is one that no reader sees yet.
    """

    store: NodeStore
    give_vectors: Vectorizer
    reader: Reader
    path: Path
    manifest: Manifest
    lock: WriteLock
    shared: bool = False
    hidden: bool = False
    _pending: dict[str, Entry | None] = field(default_factory=dict)
    _committed_at: float = field(default_factory=time.monotonic)

    def write(self, fresh: Sequence[Row] = (), relocated: Sequence[Row] = (), gone: Sequence[str] = ()) -> None:
        """Change the store: new nodes before stale ones go, so that no reader and no kill meets a gap."""
        with self.reader.changing_files():
            self.store.upsert(fresh)
            self.store.update_metadata(relocated)
            self.store.delete(gone)
        if not self.hidden:
            self.reader.apply([*fresh, *relocated], gone)
        self.reader.announce(complete=False, seen=not self.hidden)

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
            generation = self.reader.generation() + 1
            self.manifest = replace(self.manifest, documents=kept, complete=complete, generation=generation)
            save_manifest(self.path, self.manifest)
            self.reader.announce(complete=complete, seen=not self.hidden)
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


_T = TypeVar("_T")
_PART = 500  # below SQLite's old limit of 999 variables


class VectorCache:
    """A table of (model, hash of the embedded text) to vector, in SQLite's WAL mode.

    Args:
        path: The file. One that is damaged or no database is set aside as ``<name>.damaged`` and started afresh.
        model: Identity of the embedding model: vectors of several models live side by side.
    """

    def __init__(self, path: Path, model: str) -> None:
        self._path = path
        self._model = model
        try:
            self._database = self._open()
        except sqlite3.DatabaseError:
            self._database = self._afresh()

    def _afresh(self) -> sqlite3.Connection:
        with contextlib.suppress(OSError):
            self._path.replace(self._path.with_name(self._path.name + ".damaged"))
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        return self._open()

    def _mended(self, work: Callable[[], _T]) -> _T:
        """What work gives; where it meets damage deeper than opening looks, it is done again on a fresh file."""
        try:
            return work()
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:  # its subclasses tell of a full disk, a lock, a wrong call
                raise
            self._database.close()
            self._database = self._afresh()
            return work()

    def _open(self) -> sqlite3.Connection:
        try:
            database = sqlite3.connect(self._path, timeout=30, check_same_thread=False, isolation_level=None)
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS vectors (model TEXT, hash TEXT, vector BLOB, PRIMARY KEY (model, hash)) "
                "WITHOUT ROWID"
            )
        except sqlite3.OperationalError as error:
            raise StorageError(
                f"{self._path} cannot be written ({error}). Cure: free space, or choose another storage=."
            ) from error
        return database

    def get(self, hashes: Sequence[str]) -> dict[str, list[float]]:
        """Vectors by hash; unknown hashes are absent."""
        return self._mended(lambda: self._get(hashes))

    def _get(self, hashes: Sequence[str]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for start in range(0, len(hashes), _PART):
            part = hashes[start : start + _PART]
            marks = ",".join("?" * len(part))
            rows = self._database.execute(
                f"SELECT hash, vector FROM vectors WHERE model = ? AND hash IN ({marks})",  # noqa: S608  only marks
                (self._model, *part),
            )
            found |= {key: np.frombuffer(blob, np.float32).tolist() for key, blob in rows}
        return found

    def put(self, vectors: Mapping[str, Sequence[float]]) -> None:
        """Keep vectors."""
        rows = [(self._model, key, np.asarray(vector, np.float32).tobytes()) for key, vector in vectors.items()]
        try:
            self._mended(lambda: self._put(rows))
        except sqlite3.Error as error:
            raise StorageError(
                f"{self._path} cannot be written ({error}). What was indexed before is unharmed. "
                "Cure: free space or make the folder writable, then refresh."
            ) from error

    def _put(self, rows: Sequence[tuple[str, str, bytes]]) -> None:
        with self._transaction():
            self._database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)

    def __len__(self) -> int:
        """How many vectors of this model there are."""
        return self._mended(self._count)

    def _count(self) -> int:
        (count,) = self._database.execute("SELECT count(*) FROM vectors WHERE model = ?", (self._model,)).fetchone()
        return int(count)

    def keep_only(self, hashes: Iterable[str]) -> int:
        """Forget this model's vectors of all other hashes; returns how many went."""
        return self._mended(lambda: self._keep_only(hashes))

    def _keep_only(self, hashes: Iterable[str]) -> int:
        with self._transaction():
            self._database.execute("CREATE TEMP TABLE IF NOT EXISTS kept (hash TEXT PRIMARY KEY)")
            self._database.execute("DELETE FROM kept")
            self._database.executemany("INSERT OR IGNORE INTO kept VALUES (?)", ((key,) for key in hashes))
            gone = self._database.execute(
                "DELETE FROM vectors WHERE model = ? AND hash NOT IN (SELECT hash FROM kept)", (self._model,)
            )
        return gone.rowcount

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
