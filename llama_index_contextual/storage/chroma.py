"""Nodes in a Chroma collection: written so that an id's text, vector and metadata always belong together.

Chroma holds what ``ChromaVectorStore`` of LlamaIndex would have written, so that the stock class reads it, and two keys
more, outside the node: which manifest entry the node belongs to, and the hash of the text that was embedded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import chromadb
from chromadb.config import Settings as ChromaSettings
from chromadb.errors import NotFoundError
from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from chromadb.api import ClientAPI
    from chromadb.api.models.Collection import Collection

ENTRY: Final = "_entry"  # the manifest's key of the document
EMBED_HASH: Final = "_embed_hash"  # of the EMBED view: equal hash, equal vector
_PAGE: Final = 5000  # rows per read; writes go by the client's own limit, 5461 for the local one


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


def open_client(folder: Path) -> ClientAPI:
    """Open Chroma in a folder, without telemetry."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return chromadb.PersistentClient(str(folder), settings=ChromaSettings(anonymized_telemetry=False))
    except Exception as error:
        raise StorageError(f"Chroma cannot open {folder} ({error}).") from error


class NodeStore:
    """One collection of nodes.

    Args:
        client: Any Chroma client, local or of a server.
        name: The collection; it is made at the first write if it does not exist.
    """

    def __init__(self, client: ClientAPI, name: str) -> None:
        self._client = client
        self.name = name
        # No embedding function: vectors always come from us, and Chroma's default would fetch a model.
        self.collection: Collection = client.get_or_create_collection(
            name, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )
        self._batch = client.get_max_batch_size()

    def count(self) -> int:
        """How many nodes there are."""
        return self.collection.count()

    def of_entries(self, entries: Sequence[str]) -> dict[str, list[Stored]]:
        """Stored nodes by manifest entry; entries without nodes are absent."""
        found: dict[str, list[Stored]] = {}
        for part in _parts(entries, 500):
            for stored in self._read(where={ENTRY: {"$in": list(part)}}):
                found.setdefault(stored.entry, []).append(stored)
        return found

    def all(self) -> Iterator[Stored]:
        """Every stored node, without text and vectors."""
        yield from self._read()

    def upsert(self, entry_of: Mapping[str, str], nodes: Sequence[BaseNode]) -> None:
        """Write nodes with their embeddings; an id that exists gets the new text, vector and metadata.

        ``ChromaVectorStore.add`` would silently keep the old text of an id that exists.
        """
        for part in _parts(nodes, self._batch):
            self.collection.upsert(
                ids=[node.node_id for node in part],
                embeddings=[node.get_embedding() for node in part],
                documents=[node.get_content(metadata_mode=MetadataMode.NONE) for node in part],
                metadatas=[store_metadata(node, entry_of[node.node_id]) for node in part],
            )

    def update_metadata(self, changes: Sequence[tuple[Stored, Mapping[str, Any]]]) -> None:
        """Give stored nodes new metadata and leave texts and vectors alone.

        Chroma merges: a key that is no longer there has to be set to None to go.
        """
        for part in _parts(changes, self._batch):
            self.collection.update(
                ids=[stored.id for stored, _ in part],
                metadatas=[{**dict.fromkeys(stored.metadata), **new} for stored, new in part],
            )

    def delete(self, ids: Sequence[str]) -> None:
        """Delete nodes by id; unknown ids are no error."""
        for part in _parts(ids, self._batch):
            self.collection.delete(ids=list(part))

    def _read(self, where: dict[str, Any] | None = None) -> Iterator[Stored]:
        offset = 0
        while True:
            page = self.collection.get(where=where, include=["metadatas"], limit=_PAGE, offset=offset)
            for id_, metadata in zip(page["ids"], page["metadatas"] or [], strict=True):
                values = dict(metadata or {})
                yield Stored(id_, str(values.get(ENTRY, "")), str(values.get(EMBED_HASH, "")), values)
            if len(page["ids"]) < _PAGE:
                return
            offset += _PAGE


def store_metadata(node: BaseNode, entry: str) -> dict[str, Any]:
    """The flat metadata under which a node is stored; a None value becomes "", as in ``ChromaVectorStore``."""
    flat = node_to_metadata_dict(node, remove_text=True, flat_metadata=True)
    flat |= {ENTRY: entry, EMBED_HASH: embed_hash(node)}
    return {key: "" if value is None else value for key, value in flat.items()}


def to_node(stored: Stored, text: str) -> BaseNode:
    """The node that was stored."""
    try:
        return metadata_dict_to_node(dict(stored.metadata), text=text)
    except (ValueError, TypeError):  # a collection that LlamaIndex did not write
        return TextNode(id_=stored.id, text=text, metadata=dict(stored.metadata))


def has_collection(client: ClientAPI, name: str) -> bool:
    """Whether a collection exists."""
    try:
        client.get_collection(name, embedding_function=None)
    except NotFoundError:
        return False
    return True


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
