"""Nodes in a Chroma collection: written so that an id's text, vector and metadata always belong together.

Chroma holds what ``ChromaVectorStore`` of LlamaIndex would have written, so that the stock class reads it, and two keys
more, outside the node: which manifest entry the node belongs to, and the hash of the text that was embedded.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import chromadb
import numpy as np
from chromadb.config import Settings as ChromaSettings
from chromadb.errors import NotFoundError
from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from chromadb.api import ClientAPI
    from chromadb.api.models.Collection import Collection


ENTRY: Final = "_entry"  # the manifest's key of the document
KIND: Final = "_kind"  # "file" or "document", as in the manifest
EMBED_HASH: Final = "_embed_hash"  # of the EMBED view: equal hash, equal vector
MODEL: Final = "embedding_model"  # in the collection's own metadata, should the manifest get lost
_PAGE: Final = 5000  # rows per read; writes go by the client's own limit, 5461 for the local one

# What SQLite says of a broken file or one that is no database, and Chroma of one that lacks its tables. Only with these
# may an index be set aside: a path, a lock or a permission is the same again once its cause is gone.
_DAMAGE: Final = ("malformed", "not a database", "already exists", "no such table", "no such column")
# Chroma says many things of damaged vector files; these are about something else.
_ELSEWHERE: Final = ("readonly", "unable to open", "is full", "no space", "permission", "is locked", "too many open")


def embed_hash(node: BaseNode) -> str:
    """Hash of what is embedded: the text with its context."""
    text = node.get_content(metadata_mode=MetadataMode.EMBED)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


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
    """

    node: BaseNode
    metadata: dict[str, Any]
    stored: Stored | None = None
    vector: Sequence[float] | None = None

    @property
    def embed_hash(self) -> str:
        """Hash of its embedded text."""
        return str(self.metadata[EMBED_HASH])

    @property
    def is_fresh(self) -> bool:
        """Whether its id is new, or its embedded text changed."""
        return self.stored is None or self.stored.embed_hash != self.embed_hash

    @property
    def is_relocated(self) -> bool:
        """Whether its vector stays and its lines, neighbours or the like changed."""
        return self.stored is not None and not self.is_fresh and self.stored.metadata != self.metadata

    @property
    def merged(self) -> dict[str, Any]:
        """Metadata that replaces what is stored: Chroma merges, so a key that went has to be set to None."""
        return {**dict.fromkeys(self.stored.metadata if self.stored else ()), **self.metadata}


class DamagedError(StorageError):
    """Chroma's files cannot be used as they are; what they held can be made again."""


def open_client(folder: Path) -> ClientAPI:
    """Open Chroma in a folder, without telemetry, apart from other clients of this process.

    Chroma shares one system among all clients of a path in a process, so that closing and opening again would give
    back the stale one. Another spelling of the same path is another system.
    """
    name = str(folder) + "".join("/." if bit == "1" else "//." for bit in f"{secrets.randbits(20):020b}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made ({error.strerror}). Cure: choose another storage=.") from error
    try:
        return chromadb.PersistentClient(name, settings=ChromaSettings(anonymized_telemetry=False))
    except UnicodeError as error:  # in the locale "C" the path of a folder "ñ" has no characters, only bytes
        raise StorageError(
            f"Chroma cannot open {str(folder)!a}: its path is not valid in this locale ({error}). What is indexed is "
            "unharmed. Cure: PYTHONUTF8=1 in the environment, or a UTF-8 locale, or storage= with a plain name."
        ) from error
    except Exception as error:
        if any(sign in str(error).lower() for sign in _DAMAGE):
            raise DamagedError(f"Chroma cannot open {folder} ({error}).") from error
        raise StorageError(
            f"Chroma cannot open {folder} ({error}). What is indexed is unharmed. Cure: make it writable, see that the "
            "disk has room, and end other programs that use it."
        ) from error


# Vectors are compared by angle, whatever their length.
CONFIGURATION: Final[dict[str, Any]] = {"hnsw": {"space": "cosine"}}


class NodeStore:
    """One collection of nodes.

    Args:
        client: Any Chroma client, local or of a server.
        name: The collection; it is made if it does not exist.
        model: Identity of the embedding model, which a new collection remembers.
    """

    def __init__(self, client: ClientAPI, name: str, model: str = "") -> None:
        self._client = client
        self.name = name
        # No embedding function: vectors always come from us, and Chroma's default would fetch a model.
        self.collection: Collection = client.get_or_create_collection(
            name,
            embedding_function=None,
            configuration=cast("Any", CONFIGURATION),
            metadata={MODEL: model} if model else None,
        )
        self._batch = client.get_max_batch_size()

    def check(self) -> None:
        """Read one vector and search for it.

        Chroma writes its vector files in place: of 60 processes killed while it wrote every 100 vectors, 3 left files
        that it cannot open again, and of lost ones it says nothing before they are asked for.

        Raises:
            DamagedError: That does not work.
        """
        try:
            if not self.collection.count():
                return
            sample: Any = self.collection.get(limit=1, include=["embeddings"])["embeddings"]
            found = self.collection.query(query_embeddings=[sample[0]], n_results=1, include=["distances"])
            fine = bool(found["ids"][0])
        except Exception as error:
            if any(sign in str(error).lower() for sign in _ELSEWHERE):
                raise StorageError(
                    f"Chroma cannot read {self.name!r} now ({error}). What is indexed is unharmed. Cure: make its "
                    "folder readable and writable, see that the disk has room, and end other programs that use it."
                ) from error
            raise DamagedError(f"Chroma cannot read the vectors of {self.name!r} ({error}).") from error
        if not fine:
            raise DamagedError(f"Chroma has lost the vectors of {self.name!r}.")

    def without_vectors(self) -> list[str]:
        """Ids of nodes whose vector is lost. Reads every vector: 0.4 s for 5,000."""
        ids = self.collection.get(include=[])["ids"]
        lost: list[str] = []
        for part in _parts(ids, _PAGE):
            lost += self._without_vectors(list(part))
        return lost

    def _without_vectors(self, ids: list[str]) -> list[str]:
        try:
            self.collection.get(ids=ids, include=["embeddings"])
        except Exception:  # noqa: BLE001  Chroma says InternalError and names no id, so the ids are halved
            half = len(ids) // 2
            return self._without_vectors(ids[:half]) + self._without_vectors(ids[half:]) if half else ids
        return []

    def count(self) -> int:
        """How many nodes there are."""
        return self.collection.count()

    def of_entries(self, entries: Sequence[str]) -> dict[str, list[Stored]]:
        """Stored nodes by manifest entry; entries without nodes are absent."""
        found: dict[str, list[Stored]] = {}
        for part in _parts(entries, 500):
            for stored, _ in self._read(where={ENTRY: {"$in": list(part)}}):
                found.setdefault(stored.entry, []).append(stored)
        return found

    def all(self) -> Iterator[Stored]:
        """Every stored node, without text and vectors."""
        for stored, _ in self._read():
            yield stored

    def all_with_text(self) -> Iterator[tuple[Stored, str]]:
        """Every stored node and its text."""
        yield from self._read(text=True)

    def vectors(self) -> Iterator[npt.NDArray[np.float32]]:
        """Every vector, a page at a time, shape ``(nodes, dimensions)``."""
        for offset in range(0, self.count(), _PAGE):
            yield np.array(self.collection.get(include=["embeddings"], limit=_PAGE, offset=offset)["embeddings"])

    def upsert(self, rows: Sequence[Row]) -> None:
        """Write nodes with their vectors; an id that exists gets the new text, vector and metadata.

        ``ChromaVectorStore.add`` would silently keep the old text of an id that exists.
        """
        for part in _parts(rows, self._batch):
            with _explained("write"):
                self.collection.upsert(
                    ids=[row.node.node_id for row in part],
                    embeddings=[row.vector for row in part],
                    documents=[row.node.get_content(metadata_mode=MetadataMode.NONE) for row in part],
                    metadatas=[row.merged for row in part],
                )

    def update_metadata(self, rows: Sequence[Row]) -> None:
        """Give stored nodes new metadata and leave texts and vectors alone."""
        for part in _parts(rows, self._batch):
            with _explained("update"):
                self.collection.update(ids=[row.node.node_id for row in part], metadatas=[row.merged for row in part])

    def delete(self, ids: Sequence[str]) -> None:
        """Delete nodes by id; unknown ids are no error."""
        for part in _parts(ids, self._batch):
            with _explained("delete"):
                self.collection.delete(ids=list(part))

    def _read(self, where: dict[str, Any] | None = None, *, text: bool = False) -> Iterator[tuple[Stored, str]]:
        offset = 0
        include: Any = ["metadatas", "documents"] if text else ["metadatas"]
        while True:
            page = self.collection.get(where=where, include=include, limit=_PAGE, offset=offset)
            texts = page["documents"] or [""] * len(page["ids"])
            for id_, metadata, document in zip(page["ids"], page["metadatas"] or [], texts, strict=True):
                values = dict(metadata or {})
                stored = Stored(id_, str(values.get(ENTRY, "")), str(values.get(EMBED_HASH, "")), values)
                yield stored, document or ""
            if len(page["ids"]) < _PAGE:
                return
            offset += _PAGE


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Chroma raises many classes for a full disk or a lost server; all of them mean that a write did not happen."""
    try:
        yield
    except Exception as error:
        raise StorageError(
            f"Chroma could not {what} nodes ({error}). What was indexed before is unharmed. "
            "Cure: see that the disk has room and the folder is writable, or that the server runs, then refresh."
        ) from error


def store_metadata(node: BaseNode, entry: str, kind: str) -> dict[str, Any]:
    """The flat metadata under which a node is stored; a None value becomes "", as in ``ChromaVectorStore``."""
    flat = node_to_metadata_dict(node, remove_text=True, flat_metadata=True)
    flat |= {ENTRY: entry, KIND: kind, EMBED_HASH: embed_hash(node)}
    return {key: "" if value is None else value for key, value in flat.items()}


def refused_key(metadata: Mapping[str, Any]) -> str | None:
    """A metadata key that Chroma refuses, and all of a write with it; None where it takes all."""
    return next((key for key in metadata if not key or key[0] in "$#" or key == "chroma:document"), None)


def to_node(stored: Stored, text: str) -> BaseNode:
    """The node that was stored."""
    try:
        return metadata_dict_to_node(dict(stored.metadata), text=text)
    except (ValueError, TypeError):  # a collection that LlamaIndex did not write
        return TextNode(id_=stored.id, text=text, metadata=dict(stored.metadata))


def drop_collection(client: ClientAPI, name: str) -> None:
    """Delete a collection; one that does not exist is no error."""
    with contextlib.suppress(NotFoundError):
        client.delete_collection(name)


def vector_segment(folder: Path, client: ClientAPI, name: str) -> Path | None:
    """The folder in which a local Chroma keeps a collection's vectors, or None where it has none yet."""
    identity = str(client.get_collection(name, embedding_function=None).id)
    query = "SELECT id FROM segments WHERE collection = ? AND scope = 'VECTOR'"
    with contextlib.closing(sqlite3.connect(f"file:{folder / 'chroma.sqlite3'}?mode=ro", uri=True)) as database:
        found = database.execute(query, (identity,)).fetchone()
    return folder / found[0] if found and (folder / found[0]).is_dir() else None


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
