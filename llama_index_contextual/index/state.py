"""The open view of an index: one Chroma client, one collection, two arms; replaced when somebody else wrote.

Chroma's local client goes stale without an error when another process writes (measured: 14 of 161 new chunks seen, and
hits with empty metadata, while ``count()`` was right). So every write changes a stamp, and a reader that sees another
stamp than its own opens afresh. The old view closes when its last query ends.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, cast

from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual.index.retrieval import Arms, build_arms
from llama_index_contextual.storage.chroma import NodeStore, open_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chromadb.api import ClientAPI
    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_contextual.storage.layout import Layout

POOL: Final = 100  # candidates per arm, whatever the top-k, so that a top 5 is a prefix of a top 20


class View:
    """One opened state; use it inside :meth:`Views.reading`."""

    def __init__(self, client: ClientAPI, collection: str, *, owned: bool) -> None:
        self.client = client
        self.store = NodeStore(client, collection)
        self._owned = owned
        self._arms: Arms | None = None
        self._guard = threading.Lock()
        self.users = 0
        self.retired = False

    def arms(self, embedding: BaseEmbedding) -> Arms:
        """The arms, built at first use."""
        with self._guard:
            if self._arms is None:
                self._arms = build_arms(ChromaVectorStore(chroma_collection=self.store.collection), embedding, POOL)
            return self._arms

    def forget_arms(self) -> None:
        """Derive the keyword arm again at the next query: the nodes have changed."""
        with self._guard:
            self._arms = None

    def close(self) -> None:
        """Let go of the client, if it is ours."""
        if self._owned:
            cast("Any", self.client).close()  # ClientAPI, its declared type, does not have it


class Views:
    """The current view of a storage folder, shared by the threads of one index object.

    Args:
        layout: The storage.
        client: A Chroma client that the user gave, or None for a local one of our own.
        collection: Gives the name of the collection that holds the nodes today.
    """

    def __init__(self, layout: Layout, client: ClientAPI | None, collection: Callable[[], str]) -> None:
        self._layout = layout
        self._client = client
        self._collection = collection
        self._guard = threading.RLock()
        self._view: View | None = None
        self._stamp = b""

    @contextlib.contextmanager
    def reading(self) -> Iterator[View]:
        """The newest view, kept open for as long as it is used."""
        with self._guard:
            view = self._newest()
            view.users += 1
        try:
            yield view
        finally:
            with self._guard:
                view.users -= 1
                if view.retired and not view.users:
                    view.close()

    def wrote(self, *, rebuild: bool) -> None:
        """Take note of this object's own write, which its client has seen; ``rebuild`` the keyword arm."""
        with self._guard:
            self._stamp = self._read_stamp()
            if rebuild and self._view is not None:
                self._view.forget_arms()

    def close(self) -> None:
        """Close the view, or leave that to its last query."""
        with self._guard:
            if self._view is not None:
                self._retire(self._view)
                self._view = None

    def _newest(self) -> View:
        stamp = self._read_stamp()
        if self._view is not None and stamp != self._stamp:
            self._retire(self._view)
            self._view = None
        if self._view is None:
            client = self._client or open_client(self._layout.chroma)
            self._view, self._stamp = View(client, self._collection(), owned=self._client is None), stamp
        return self._view

    @staticmethod
    def _retire(view: View) -> None:
        view.retired = True
        if not view.users:
            view.close()

    def _read_stamp(self) -> bytes:
        try:
            return self._layout.generation.read_bytes()
        except OSError:
            return b""
