"""The seam to a vector store: what an index asks of whatever holds its nodes.

:class:`Place` says where that is. It opens a :class:`Database`, which has collections, and each is a
:class:`NodeStore`. Questions go to what :meth:`NodeStore.search` and :meth:`NodeStore.keywords` return, the seam of
:mod:`llama_index_contextual.retrievers.search`. ``docs/stores.md`` shows how to write another store, and
``tests/index/test_stores.py`` is the test that it has to pass. It keeps these promises:

* A node is written with its text, vector and metadata together; writing an id that exists replaces all three.
* The metadata holds, beside what LlamaIndex writes, :data:`ENTRY`, :data:`KIND` and :data:`EMBED_HASH`. It comes back
  as it was written: a refresh compares it.
* What was written is found by every later call of this process. Other processes open the database again.
* A store that cannot be read as it is raises :class:`DamagedError`; what it held can be made again. One that cannot be
  reached now raises a :class:`StorageError`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from llama_index_contextual.errors import StorageError
from llama_index_contextual.metadata import CONTEXT, CONTEXT_VERSION, FRONT_MATTER, LEXICAL_CONTEXT, own_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from llama_index_contextual.retrievers.search import DenseSearch, KeywordSearch, NodeSearch

ENTRY: Final = "_entry"  # the manifest's key of the document
KIND: Final = "_kind"  # "file" or "document", as in the manifest
_NODE: Final = "_node_content"  # LlamaIndex's key of the whole node as JSON
_EMPTY: Final[tuple[Any, ...]] = (None, {}, [])
_UNFILTERED: Final = frozenset({CONTEXT, CONTEXT_VERSION, LEXICAL_CONTEXT, FRONT_MATTER})
EMBED_HASH: Final = "_embed_hash"  # of the EMBED view: equal hash, equal vector


class DamagedError(StorageError):
    """What the store keeps on disk is lost or cannot be read; it can be made again."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A node as the store has it: its id, its manifest entry, the hash of its embedded text, and all metadata."""

    id: str
    entry: str
    embed_hash: str
    metadata: Mapping[str, Any]


@dataclass(slots=True)
class Row:
    """A node on its way into the store.

    Attributes:
        node: The node.
        metadata: Under which it will be stored; see :func:`store_metadata`.
        stored: What the store has under its id, if anything.
        vector: Of its embedded text, when it is known.
        window: The texts that are embedded together with its own, and its place among them; None where it is embedded
            alone.
    """

    node: BaseNode
    metadata: dict[str, Any]
    stored: Stored | None = None
    vector: Sequence[float] | None = None
    window: tuple[tuple[str, ...], int] | None = None

    @property
    def embed_hash(self) -> str:
        """Return the hash of its embedded text."""
        return str(self.metadata[EMBED_HASH])

    @property
    def is_fresh(self) -> bool:
        """Return whether its id is new, or its embedded text changed."""
        return self.stored is None or self.stored.embed_hash != self.embed_hash

    @property
    def is_relocated(self) -> bool:
        """Return whether its vector stays and its lines, neighbours or the like changed."""
        return self.stored is not None and not self.is_fresh and self.stored.metadata != self.metadata

    @property
    def merged(self) -> dict[str, Any]:
        """Return metadata for a store that merges: a key that went is None in it."""
        return {**dict.fromkeys(self.stored.metadata if self.stored else ()), **self.metadata}


class NodeStore(Protocol):
    """One collection of nodes.

    Attributes:
        name: Of the collection.
        model: Identity of the embedding model whose vectors it holds; "" where it does not say.
    """

    name: str

    @property
    def model(self) -> str:
        """Return the identity of the embedding model."""

    def search(self, companion: NodeSearch | None = None, *, exact_limit: int = 0) -> DenseSearch:
        """Return the side that retrievers ask: nearest vectors, nodes by id, filters.

        Args:
            companion: What answers keyword queries: it may evaluate filters faster.
            exact_limit: Most nodes of which every vector is to be compared with a question, where the store can do so.
                Of a store without keyword queries this is done by the process that asks.
        """

    def keywords(self) -> KeywordSearch | None:
        """Return the side that answers keyword queries; None where each process derives a keyword index of its own."""

    def stamp(self) -> str:
        """Return what :meth:`touch` wrote last, of a store that other machines write to; at least whether it is there.

        Readers compare it at each question, open the collection again where it differs, and bring the keyword index
        that they derive up to date.
        """

    def touch(self) -> None:
        """Write another stamp: something was changed."""

    def check(self) -> None:
        """Read one vector and search for it.

        Raises:
            DamagedError: That does not work.
            StorageError: The store cannot be read now, and is unharmed.
        """

    def count(self) -> int:
        """Return the number of nodes."""

    def of_entries(self, entries: Sequence[str]) -> dict[str, list[Stored]]:
        """Return stored nodes by manifest entry; entries without nodes are absent."""

    def all(self) -> Iterator[Stored]:
        """Yield every stored node, without text and vectors."""

    def all_with_text(self) -> Iterator[tuple[Stored, str]]:
        """Yield every stored node and its text."""

    def vectors(self, ids: Sequence[str] | None = None) -> Iterator[tuple[list[str], npt.NDArray[np.float32]]]:
        """Yield ids and vectors, shape ``(ids, dimensions)``, a page at a time.

        Args:
            ids: Of which nodes; those that are not stored are left out. By default of all, in the order of
                :meth:`all_with_text`.
        """

    def rows(self) -> Iterator[list[Row]]:
        """Yield every stored node with its vector, a page at a time, as another store can take it."""

    def without_vectors(self) -> list[str]:
        """Return the ids of nodes whose vector is lost, or what keywords are found by; this reads every vector."""

    def upsert(self, rows: Sequence[Row]) -> None:
        """Write nodes with their vectors; an id that exists gets the new text, vector and metadata."""

    def update_metadata(self, rows: Sequence[Row]) -> None:
        """Give stored nodes new metadata; texts and vectors stay."""

    def delete(self, ids: Sequence[str]) -> None:
        """Delete nodes by id; ids that are not stored are ignored."""


class Database(Protocol):
    """Where collections are."""

    def names(self) -> list[str]:
        """Return the names of all collections."""

    def collection(self, name: str, model: str = "", *, create: bool = True) -> NodeStore:
        """Return a collection.

        Args:
            name: Of the collection.
            model: Identity of the embedding model, which a new collection remembers.
            create: Whether one that does not exist is made.

        Raises:
            DamagedError: It does not exist, and may not be made.
        """

    def drop(self, name: str) -> None:
        """Delete a collection; one that does not exist is ignored."""

    def close(self) -> None:
        """Let go of what is open, if it is ours."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an index keeps its nodes.

    Attributes:
        name: As a setting says it, ``"chroma"`` or ``"qdrant:http://HOST:PORT"``; "" for an object that was given.
        collection: Name of the first collection; those that replace it are numbered.
        open: Opens the database. It may return one that is open already.
        exists: Returns whether there is anything: the files, or a collection of that name on the server.
        shared: Whether other processes and machines write at the same time, without a lock of ours.
        folder: Of the files, where they are this index's own.
    """

    name: str
    collection: str
    open: Callable[[], Database]
    exists: Callable[[], bool]
    shared: bool = False
    folder: Path | None = None

    def among(self, names: Sequence[str]) -> list[str]:
        """Return the collections of this index among all of a database."""
        return [name for name in names if re.fullmatch(rf"{re.escape(self.collection)}(-\d+)?", name)]


class Held(NamedTuple):
    """What holds the nodes of an index.

    Attributes:
        name: Of the collection.
        chunks: How many nodes it should have; 0 where that is not known, as during a refresh.
        model: Identity of the embedding model; "" where only the store knows it.
    """

    name: str
    chunks: int
    model: str = ""


class OpenStore:
    """One database and collection, opened when it is first asked for itself; use it while a reader keeps it open.

    What is derived from the store answers questions, and Chroma takes a second to import and open.

    Args:
        held: What it holds.
        open_: Opens it.
    """

    def __init__(self, held: Held, open_: Callable[[], tuple[Database, NodeStore, bool]]) -> None:
        self.held = held
        self._open = open_
        self._opened: tuple[Database, NodeStore, bool] | None = None
        self._opening = threading.Lock()
        self.stamp: object = None  # of the state that it shows
        self.users = 0
        self.retired = False
        self.closed = False

    def opened(self) -> tuple[Database, NodeStore, bool]:
        """Open it unless it is open; return the database, the collection, and whether they can be written."""
        if self._opened is None:
            with self._opening:
                self._opened = self._opened or self._open()
        return self._opened

    @property
    def database(self) -> Database:
        """Return the database."""
        return self.opened()[0]

    @property
    def store(self) -> NodeStore:
        """Return the collection."""
        return self.opened()[1]

    @property
    def model(self) -> str:
        """Return the identity of the embedding model whose vectors it holds; "" where that is not known."""
        return self.held.model if self.held.model and self._opened is None else self.store.model

    def is_(self, store: NodeStore | None) -> bool:
        """Return whether a store is this one, which is open then."""
        return self._opened is not None and self._opened[1] is store

    @property
    def is_writable(self) -> bool:
        """Return whether it is open for a writer."""
        return self._opened is not None and self._opened[2]

    def close(self) -> None:
        """Let go of the database."""
        self.closed = True
        if self._opened is not None:
            self._opened[0].close()


def embed_hash(node: BaseNode) -> str:
    """Return the hash of what is embedded of a node: the text with its context."""
    text = node.get_content(metadata_mode=MetadataMode.EMBED)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def store_metadata(node: BaseNode, entry: str, kind: str) -> dict[str, Any]:
    """Return the flat metadata under which a node is stored; a None value becomes "", as in ``ChromaVectorStore``.

    Each value is in ``_node_content`` too, from which LlamaIndex makes the node again, and stores index every value.
    So what nobody filters by is there alone, and empty fields of the node are left out.
    """
    flat = node_to_metadata_dict(node, remove_text=True, flat_metadata=True)
    unfiltered = {own_name(key) if own_name(key) in flat else key for key in _UNFILTERED}
    flat = {key: value for key, value in flat.items() if key not in unfiltered}
    flat[_NODE] = _without_empty(flat[_NODE])
    flat |= {ENTRY: entry, KIND: kind, EMBED_HASH: embed_hash(node)}
    return {key: "" if value is None else value for key, value in flat.items()}


def _without_empty(node: str) -> str:
    """Return a node as JSON without fields that are empty: LlamaIndex reads them as empty where they are absent."""

    def filled(fields: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in fields.items() if value not in _EMPTY}

    fields = filled(json.loads(node))
    fields.pop("text", None)  # it was left out already
    for kind, related in fields.get("relationships", {}).items():
        fields["relationships"][kind] = filled(related) if isinstance(related, dict) else list(map(filled, related))
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def to_node(stored: Stored, text: str) -> BaseNode:
    """Return the node that was stored."""
    try:
        return metadata_dict_to_node(dict(stored.metadata), text=text)
    except (ValueError, TypeError):  # a collection that LlamaIndex did not write
        return TextNode(id_=stored.id, text=text, metadata=dict(stored.metadata))
