"""The living side of an index: retrievers that always answer from the newest state, whoever wrote it.

Chroma's local client goes stale without an error when another process writes (measured: 14 of 161 new chunks seen, and
hits with empty metadata, while ``count()`` was right). So every write changes a stamp; a reader that meets another
stamp than its own opens Chroma afresh and brings the keyword index up to date. A client closes when its last query
has ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

from filelock import FileLock, Timeout
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual.errors import CopyError, FingerprintError, StorageError
from llama_index_contextual.index.chroma import MODEL, DamagedError, NodeStore, open_client, to_node
from llama_index_contextual.index.state import write_atomically
from llama_index_contextual.retrievers import ContextualBM25Retriever

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from chromadb.api import ClientAPI

    from llama_index_contextual.index.chroma import Row
    from llama_index_contextual.index.state import Layout


_T = TypeVar("_T")


class OpenStore:
    """One open client and collection; use it inside :meth:`Reader.reading`."""

    def __init__(self, client: ClientAPI, collection: str, model: str, *, owned: bool) -> None:
        self.client = client
        self.store = NodeStore(client, collection, model)
        self.vectors = ChromaVectorStore(chroma_collection=self.store.collection)
        self.stamp: object = None  # of the state that it shows
        self.users = 0
        self.retired = False
        self._owned = owned

    def close(self) -> None:
        """Let go of the client, if it is ours."""
        if self._owned:
            cast("Any", self.client).close()  # ClientAPI, its declared type, does not have it


class Reader:
    """The newest view of a storage folder and the keyword index derived from it, shared by all threads.

    Args:
        layout: The storage.
        client: A Chroma client that the user gave, or None for a local one of our own.
        collection: Gives the name of the collection that holds the nodes today.
        model: Identity of the embedding model, which a new collection remembers.
        repair: Called when Chroma's files turn out to be damaged.
        require: Called before reading a store of our own; raises where there is none, as opening Chroma makes one.
    """

    def __init__(
        self,
        layout: Layout,
        client: ClientAPI | None,
        collection: Callable[[], str],
        model: str,
        repair: Callable[[], None],
        require: Callable[[], None],
    ) -> None:
        self._model = model
        self._repair = repair
        self._require = require
        self._layout = layout
        self._client = client
        self._collection = collection
        self._guard = threading.RLock()
        self._view: OpenStore | None = None
        self._keyword = Keyword(layout)

    def __deepcopy__(self, memo: object) -> Reader:
        return self  # a copy of a retriever follows the same index

    def __reduce__(self) -> NoReturn:
        raise CopyError(
            f"the index in {self._layout.root} is open in this process and cannot be pickled, nor can its retrievers. "
            "Cure: pickle the folder's path, and ContextualIndex.open() it where it arrives."
        )

    @property
    def bm25(self) -> ContextualBM25Retriever:
        """The keyword index as it is; :meth:`synced_bm25` is the one to ask."""
        return self._keyword.retriever

    def synced_bm25(self) -> ContextualBM25Retriever:
        """The keyword index, up to date with the newest view."""
        self.ask(lambda view: self._keyword.sync(view.store, view.stamp))
        return self._keyword.retriever

    def ask(self, work: Callable[[OpenStore], _T], *, vectors: bool = False) -> _T:
        """What work gives, which only reads; done again where the collection was replaced under it.

        Args:
            work: Asks a view.
            vectors: Whether it compares vectors.

        Raises:
            FingerprintError: The vectors are by now another model's.
        """
        with self.reading() as view:
            try:
                return self._asked(view, work, vectors=vectors)
            except Exception:  # Chroma has several for a collection that is gone
                if self._collection() == view.store.name:
                    raise
            with self._guard:
                if self._view is view:  # its stamp changes only after the old collection has gone
                    self._retire(view)
                    self._view = None
        with self.reading() as view:
            return self._asked(view, work, vectors=vectors)

    def _asked(self, view: OpenStore, work: Callable[[OpenStore], _T], *, vectors: bool) -> _T:
        made_with = (view.store.collection.metadata or {}).get(MODEL)
        if vectors and made_with and made_with != self._model:
            raise FingerprintError(
                f"the index in {self._layout.root} was made with the embedding {made_with}, not with {self._model}: "
                "their vectors do not compare. Cure: open it again, with the former."
            )
        return work(view)

    @contextlib.contextmanager
    def reading(self, *, create: bool = False) -> Iterator[OpenStore]:
        """The newest view, kept open while it is used; only a writer may ``create`` what does not exist."""
        if self._client is None and not create:
            self._require()
        try:
            view = self._enter()
        except DamagedError:
            self._repair()  # not under our guard: it takes the write lock, whose holder may want the guard
            view = self._enter()
        try:
            yield view
        finally:
            with self._guard:
                view.users -= 1
                if view.retired and not view.users:
                    view.close()

    def _enter(self) -> OpenStore:
        with self._guard:
            view = self._newest()
            view.users += 1
            return view

    @contextlib.contextmanager
    def changing_files(self) -> Iterator[None]:
        """Keep readers of other processes from opening Chroma's files while they change."""
        with _exclusive(self._layout, active=self._client is None):
            yield

    def announce(self, *, complete: bool, seen: bool = True) -> None:
        """Tell readers that something was written; ``seen`` if this object's own view shows it already."""
        with self._guard:
            generation = self.generation() + 1
            text = json.dumps({"generation": generation, "complete": complete})
            write_atomically(self._layout.generation, text.encode())
            if seen and self._view is not None:
                before, self._view.stamp = self._view.stamp, self._read_stamp()
                self._keyword.advance(before, self._view.stamp)

    def apply(self, rows: Iterable[Row], gone: Iterable[str]) -> None:
        """Show a write of our own in the keyword index, if that is in use."""
        self._keyword.apply(rows, gone)

    def close(self) -> None:
        """Close the view, or leave that to its last query."""
        self._keyword.save()
        with self._guard:
            if self._view is not None:
                self._retire(self._view)
                self._view = None

    def generation(self) -> int:
        """How many writes there have been; only ever grows."""
        try:
            return int(json.loads(self._layout.generation.read_bytes())["generation"])
        except (OSError, ValueError, KeyError, TypeError):
            return time.time_ns() // 1_000_000  # lost: a number that no reader has seen

    def _newest(self) -> OpenStore:
        stamp = self._read_stamp()
        if self._view is not None and stamp != self._view.stamp:
            self._retire(self._view)
            self._view = None
        if self._view is None:
            with _exclusive(self._layout, active=self._client is None):
                announced = self._announced()  # first: what is announced meanwhile is for the next reading
                self._view = self._opened(self._collection())
                self._view.stamp = self._stamp(announced)
        return self._view

    def _opened(self, collection: str) -> OpenStore:
        """A view that has been read from: the first read applies what Chroma's log still holds, which is a write."""
        client = self._client or open_client(self._layout.chroma)
        view = OpenStore(client, collection, self._model, owned=self._client is None)
        try:
            view.store.check()
        except BaseException:
            view.close()
            raise
        return view

    @staticmethod
    def _retire(view: OpenStore) -> None:
        view.retired = True
        if not view.users:
            view.close()

    def _read_stamp(self) -> object:
        """What changes with every write: a file beside the store, and for a server its own count besides."""
        return self._stamp(self._announced())

    def _announced(self) -> bytes:
        try:
            return self._layout.generation.read_bytes()
        except OSError:
            return b""

    def _stamp(self, announced: bytes) -> object:
        if self._client is None or self._view is None:
            return announced
        return announced, self._view.store.count()


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
