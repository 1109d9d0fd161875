"""Readers of an index: whatever was written last, by whichever process.

Chroma's local client goes stale without an error when another process writes (measured: 14 of 161 new chunks seen, and
hits with empty metadata, while ``count()`` was right). So every write changes a stamp, and a reader that meets another
stamp than its own opens the store again and brings the keyword index up to date. A store closes when its last query has
ended. Nothing here writes unless a writer tells it to.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import httpx
from filelock import FileLock

from llama_index_contextual.embedding import NoEmbedding
from llama_index_contextual.errors import ContextualError, CopyError, FingerprintError, StorageError
from llama_index_contextual.index.chroma_files import (
    compact_copy,
    is_writable,
    plain_panics,
    put_in_place,
    unreachable,
)
from llama_index_contextual.index.keywords import Keywords
from llama_index_contextual.index.state import write_atomically
from llama_index_contextual.index.store import DamagedError, OpenStore
from llama_index_contextual.retrievers import POOL, ContextualBM25Retriever, ContextualVectorRetriever

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.vector_stores import MetadataFilters

    from llama_index_contextual.index.state import Layout
    from llama_index_contextual.index.store import Database, Held, NodeStore, Place
    from llama_index_contextual.retrievers.search import DenseSearch, KeywordSearch

_T = TypeVar("_T")
_LOOK_SECONDS: Final = 0.1  # each look at a server's stamp is one more request


class Reader:
    """The newest state of a storage folder and the keyword index derived from it, shared by all threads.

    Args:
        layout: The storage.
        place: Where the nodes are.
        collection: Returns what holds the nodes today.
        model: Identity of the embedding model, which a new collection remembers.
        require: Called before reading a store of our own; raises where there is none.
        cure: What a reader of a damaged store is told to do.
        exact_limit: Most nodes of an index whose every vector is compared with a question.
    """

    def __init__(
        self,
        layout: Layout,
        place: Place,
        collection: Callable[[], Held],
        model: str,
        require: Callable[[], None],
        cure: str,
        exact_limit: int,
    ) -> None:
        self._layout = layout
        self._place = place
        self._collection = collection
        self._model = model
        self._require = require
        self._cure = cure
        self._guard = threading.RLock()
        self._open: OpenStore | None = None
        self._held = contextvars.ContextVar[OpenStore | None]("what a question sees", default=None)
        self._looked: tuple[bytes, float] = b"", 0.0  # what was announced here when a server was last asked, and when
        self._exact_limit = exact_limit
        self.keywords = Keywords(layout.bm25, layout.matrix, exact_limit)

    def __deepcopy__(self, memo: object) -> Reader:
        return self  # a copy of a retriever follows the same index

    def __reduce__(self) -> NoReturn:
        raise CopyError(
            f"the index in {self._layout.root} is open in this process and cannot be pickled, nor can its retrievers. "
            "Cure: pickle the folder's path, and ContextualIndex.open() it where it arrives."
        )

    def ask(self, work: Callable[[OpenStore], _T], *, vectors: bool = False) -> _T:
        """Return what ``work`` returns, which only reads; it is done again where the collection was replaced under it.

        Args:
            work: Asks an open store.
            vectors: Whether it compares vectors.

        Raises:
            FingerprintError: The vectors are by now another model's.
            StorageError: The store cannot be read.
        """
        with self.reading() as view:
            try:
                return self._asked(view, work, vectors=vectors)
            except Exception as error:  # Chroma has several for a collection that is gone
                self._looked = b"", 0.0  # the server may be away: the other arm has to look
                if self._collection().name == view.held.name:
                    self._explain(error)
                    raise
            with self._guard:
                if self._open is view:  # its stamp changes only after the old collection has gone
                    self._retire(view)
                    self._open = None
        with self.reading(anew=True) as view:
            return self._asked(view, work, vectors=vectors)

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Look once: all that is asked in this context meanwhile, by its threads too, sees one state."""
        with self.reading() as view:
            token = self._held.set(view)
            try:
                yield
            finally:
                self._held.reset(token)

    def _asked(self, view: OpenStore, work: Callable[[OpenStore], _T], *, vectors: bool) -> _T:
        made_with = view.model if vectors else ""
        if made_with and made_with != self._model:
            raise FingerprintError(
                f"the index in {self._layout.root} was made with the embedding {made_with}, not with {self._model}: "
                "their vectors do not compare. Cure: open it again, with the former."
            )
        with plain_panics():
            return work(view)

    def _explain(self, error: Exception) -> None:
        if isinstance(error, httpx.TransportError) and self._place.shared:
            raise unreachable(error) from error
        if not isinstance(error, ContextualError) and type(error).__module__.partition(".")[0] == "chromadb":
            raise DamagedError(f"Chroma cannot answer ({error}). Cure: {self._cure}") from error

    @contextlib.contextmanager
    def reading(self, *, create: bool = False, anew: bool = False) -> Iterator[OpenStore]:
        """Keep a state open while it is used: the one that :meth:`looking` found, else the newest.

        Args:
            create: Whether what does not exist is made; only a writer may.
            anew: Whether to look again in any case.

        Raises:
            DamagedError: The store is lost or cannot be read.
            StorageError: There is none, or it cannot be opened now.
        """
        held = None if create or anew else self._held.get()
        if held is None and not self._place.shared and not create:
            self._require()
        with self._curing(create=create):
            view = self._enter(held, create=create)
        try:
            yield view
        finally:
            with self._guard:
                view.users -= 1
                if view.retired and not view.users:
                    view.close()

    @contextlib.contextmanager
    def _curing(self, *, create: bool) -> Iterator[None]:
        """Tell a reader what mends the store; a writer mends it."""
        try:
            yield
        except DamagedError as error:
            if create or "Cure: " in str(error):
                raise
            raise DamagedError(f"{error} Cure: {self._cure}") from error

    def _enter(self, held: OpenStore | None, *, create: bool) -> OpenStore:
        with self._guard:  # a thread that is late may have outlived its question, and what that had open
            view = self._newest(create=create) if held is None or held.closed else held
            view.users += 1
            return view

    @contextlib.contextmanager
    def changing_files(self) -> Iterator[None]:
        """Keep readers of other processes from opening Chroma's files while they change."""
        with _exclusive(self._layout, active=not self._place.shared):
            yield

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other threads from opening or closing the store."""
        with self._guard:
            yield

    def compact(self) -> None:
        """Give back the room that Chroma's file does not use, where that is much; for writers, at their end."""
        with self._guard, self.changing_files():
            copy = compact_copy(self._place.folder) if self._place.folder is not None else None
            if copy is None:
                return
            # First: whoever has the old file open must not write into it, and opens the new one once this lock is free.
            before, is_newest = self._announced(), self._open is not None and self._open.stamp == self._announced()
            self.announce(complete=True)
            put_in_place(copy)
            after = self._announced()
        if is_newest:  # without the lock of the files: who has that of the keywords may wait for it
            self.keywords.advance(before, after)

    def announce(self, *, complete: bool, seen: NodeStore | None = None) -> None:
        """Tell readers that something was written; ``seen`` is the store that shows it already."""
        with self._guard:
            # After a close() a question has opened another one, which does not show it.
            shown = self._open is not None and self._open.is_(seen) and self._open.stamp == self._read_stamp()
            generation = self.generation() + 1
            text = json.dumps({"generation": generation, "complete": complete})
            write_atomically(self._layout.generation, text.encode())
            if self._place.shared and self._open is not None:
                self._open.store.touch()
            if shown and self._open is not None:  # else another writer of the same server announced something meanwhile
                before, self._open.stamp = self._open.stamp, self._read_stamp()
                self.keywords.advance(before, self._open.stamp)

    def generation(self) -> int:
        """Return how many writes there have been; it only ever grows."""
        try:
            return int(json.loads(self._layout.generation.read_bytes())["generation"])
        except (OSError, ValueError, KeyError, TypeError):
            return time.time_ns() // 1_000_000  # lost: a number that no reader has seen

    def keyword_search(self, view: OpenStore) -> KeywordSearch:
        """Return what answers keyword queries: the store itself, or the keyword index, up to date with it."""
        own = self._own_keywords(view)
        if own is not None:
            return own
        self.keywords.sync(view)
        return self.keywords.index

    def _own_keywords(self, view: OpenStore) -> KeywordSearch | None:
        """Return what a store answers keyword queries with. A Chroma of our own has none, and is not opened."""
        return view.store.keywords() if self._place.folder is None else None

    def dense_search(self, view: OpenStore) -> DenseSearch:
        """Return what answers by vectors: the store itself, or a comparison with all of its vectors."""
        own = self._own_keywords(view)
        if own is not None:
            return view.store.search(own, exact_limit=self._exact_limit)
        return self.keywords.dense(view)

    def save_keywords(self) -> None:
        """Keep what is derived on disk as it is now, so that no question has to derive it; for writers."""
        stamp = self._announced()
        if not self._place.shared and self.keywords.shows(stamp):
            self.keywords.save(None, stamp)  # Chroma would need 1.5 kB for each vector, and the old file is open still
            return

        def work(view: OpenStore) -> None:
            if view.store.keywords() is None:
                self.keywords.save(view, view.stamp)

        self.ask(work)

    def close(self) -> None:
        """Close the store, or leave that to its last query."""
        with self._guard:
            if self._open is not None:
                self._retire(self._open)
                self._open = None

    def _newest(self, *, create: bool) -> OpenStore:
        if create and not is_writable(self._place.folder):
            raise StorageError(
                f"{self._place.folder} cannot be written. Cure: make it writable, or choose another storage=."
            )
        if self._open is not None and not (
            self._is_newest(self._open, just_now=create) and (self._open.is_writable or not create)
        ):
            self._retire(self._open)
            self._open = None
        if self._open is None:
            announced = self._announced()  # first: what is announced meanwhile is for the next reading
            held = self._collection()
            if not self._place.shared and not create and not self._place.exists():
                raise self._lost("no database")
            view = OpenStore(held, lambda: self._opened(held, create=create))
            if self._place.folder is None or create:
                view.opened()
            self._open = view
            self._open.stamp = self._stamp(announced)
        return self._open

    def _is_newest(self, view: OpenStore, *, just_now: bool) -> bool:
        announced, now = self._announced(), time.monotonic()
        if self._place.shared and not just_now:
            known, at = self._looked
            if announced == known and now - at < _LOOK_SECONDS:
                return True
        self._looked = announced, now
        return self._stamp(announced) == view.stamp

    def _opened(self, held: Held, *, create: bool) -> tuple[Database, NodeStore, bool]:
        with self._curing(create=create), _exclusive(self._layout, active=not self._place.shared):
            writable = is_writable(self._place.folder)
            database = self._place.open()
            try:
                store = database.collection(held.name, self._model, create=create)
                store.check()
                lost = held.chunks and not create and not store.count()
            except BaseException:
                database.close()
                raise
            if lost:
                database.close()
                raise self._lost(f"none of {held.chunks:,}")
            return database, store, writable

    def _lost(self, what: str) -> DamagedError:
        where = self._place.folder or self._place.name or "the store"
        return DamagedError(f"the chunks and their texts are lost: {where} holds {what}.")

    @staticmethod
    def _retire(view: OpenStore) -> None:
        view.retired = True
        if not view.users:
            view.close()

    def _read_stamp(self) -> object:
        """Return what changes with every write: a file of the storage folder, and the stamp of a server."""
        return self._stamp(self._announced())

    def _announced(self) -> bytes:
        try:
            return self._layout.generation.read_bytes()
        except OSError:
            return b""

    def _stamp(self, announced: bytes) -> object:
        if not self._place.shared or self._open is None:
            return announced
        return announced, self._open.store.stamp()


class _Newest:
    """Asks the newest state of an index through one seam of the retrievers; see ``StoreReader`` there."""

    def __init__(self, reader: Reader, side: Callable[[OpenStore], Any], *, vectors: bool) -> None:
        self._reader, self._side, self._vectors = reader, side, vectors

    def looking(self) -> AbstractContextManager[None]:
        """Look once for all that is asked meanwhile."""
        return self._reader.looking()

    def ask(self, work: Callable[[Any], _T]) -> _T:
        """Return what ``work`` makes of the newest state."""
        return self._reader.ask(lambda view: work(self._side(view)), vectors=self._vectors)


def arms_over(
    reader: Reader, embedding: BaseEmbedding, filters: MetadataFilters | None
) -> list[ContextualVectorRetriever | ContextualBM25Retriever]:
    """Return the vector arm and the keyword arm of an index, with the same filters, over whatever was written last.

    Without an embedding there is the keyword arm alone.
    """
    vectors = _Newest(reader, reader.dense_search, vectors=True)
    keywords = _Newest(reader, reader.keyword_search, vectors=False)
    analyzer = reader.keywords.index.analyzer
    words = ContextualBM25Retriever.over(keywords, analyzer=analyzer, similarity_top_k=POOL, filters=filters)
    if isinstance(embedding, NoEmbedding):
        return [words]
    return [ContextualVectorRetriever.over(vectors, embedding, similarity_top_k=POOL, filters=filters), words]


@contextlib.contextmanager
def _exclusive(layout: Layout, *, active: bool) -> Iterator[None]:
    """Hold the lock on Chroma's files; where it cannot be made (read-only media), nobody writes either."""
    lock = FileLock(layout.chroma_lock, thread_local=False)
    held = False
    if active:
        with contextlib.suppress(OSError):
            lock.acquire()
            held = True
    try:
        yield
    finally:
        if held:
            lock.release()
