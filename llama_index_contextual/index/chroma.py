"""Nodes in Chroma: the first :class:`~llama_index_contextual.index.store.Database`.

Chroma holds what ``ChromaVectorStore`` of LlamaIndex would have written, so that the stock class reads it, and the keys
that :mod:`llama_index_contextual.index.store` names.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import httpx
import numpy as np
from llama_index.core.schema import MetadataMode
from llama_index.core.utils import iter_batch
from pydantic import ValidationError

from llama_index_contextual.errors import SettingError, StorageError
from llama_index_contextual.index.chroma_files import (
    DATABASE_FILE,
    check_tables,
    copied,
    is_damage,
    is_writable,
    plain_panics,
    unreachable,
)
from llama_index_contextual.index.store import EMBED_HASH, ENTRY, DamagedError, Row, Stored, to_node
from llama_index_contextual.retrievers.chroma import GRAPH, PAGE, ChromaDense, pages

try:
    import chromadb
    from chromadb.config import Settings as ChromaSettings
    from chromadb.errors import NotFoundError
except ValidationError as error:  # it reads the file .env of the working directory, too, and whatever stands in it
    names = ", ".join(str(one["loc"][0]) for one in error.errors())
    raise SettingError(
        f"Chroma cannot start: the environment, or the file .env of this folder, has a value of {names} that it cannot "
        "read. Cure: correct it, or start in another folder."
    ) from error

if TYPE_CHECKING:
    import tempfile
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from chromadb.api import ClientAPI
    from chromadb.api.models.Collection import Collection

    from llama_index_contextual.retrievers.search import DenseSearch, KeywordSearch, NodeSearch

_MODEL: Final = "embedding_model"  # in the collection's own metadata, should the manifest get lost
_STAMP: Final = "written"  # beside it, where a server keeps the collection: another value after each write
_WRITTEN: Final = 500  # rows per write, where the client takes so many: for 2,000 at once Chroma needs 100 MB

# Chroma says many things of damaged vector files; these are about something else.
_ELSEWHERE: Final = ("readonly", "unable to open", "is full", "no space", "permission", "is locked", "too many open")

# Vectors are compared by angle, whatever their length.
CONFIGURATION: Final[dict[str, Any]] = {"hnsw": {"space": "cosine", **GRAPH}}


def _settings() -> ChromaSettings:
    """Return Chroma's settings, without telemetry and without the file ``.env`` of the working directory.

    Chroma would read that file, which may be a stranger's: it can name any class to import, the older implementation
    that unpickles, and credentials. Environment variables are the user's, and hold.
    """
    return ChromaSettings(_env_file=None, anonymized_telemetry=False)


class ChromaDatabase:
    """The collections of one Chroma client.

    Args:
        client: Any Chroma client, local or of a server.
        folder: Of a local one that is ours, and closed with this object; None for one that the user gave.
        copy: Where it is only a copy, which goes when this object is closed.
    """

    def __init__(
        self, client: ClientAPI, folder: Path | None = None, copy: tempfile.TemporaryDirectory[str] | None = None
    ) -> None:
        self.client = client
        self._folder = folder
        self._copy = copy

    @classmethod
    def at(cls, folder: Path) -> ChromaDatabase:
        """Open Chroma in a folder, without telemetry, apart from other clients of this process.

        Chroma writes whenever it opens, so a folder that cannot be written is opened as a copy.

        Chroma shares one system among all clients of a path in a process, so that closing and opening again would give
        back the stale one. Another spelling of the same path is another system.

        Raises:
            DamagedError: Its database is broken.
            StorageError: It cannot be opened now.
        """
        copy = None if is_writable(folder) else copied(folder)
        if copy is not None:
            folder = Path(copy.name)
        name = str(folder) + "".join("/." if bit == "1" else "//." for bit in f"{secrets.randbits(20):020b}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{folder} cannot be made ({error.strerror}). Cure: choose another storage=.") from error
        check_tables(folder / DATABASE_FILE)
        try:
            with plain_panics():
                client = chromadb.PersistentClient(name, settings=_settings())
        except DamagedError:
            raise
        except UnicodeError as error:  # in the locale "C" the path of a folder "ñ" has no characters, only bytes
            raise StorageError(
                f"Chroma cannot open {str(folder)!a}: its path is not valid in this locale ({error}). What is indexed "
                "is unharmed. Cure: PYTHONUTF8=1 in the environment, or a UTF-8 locale, or storage= with a plain name."
            ) from error
        except Exception as error:
            if is_damage(error):
                raise DamagedError(f"Chroma cannot open {folder} ({error}).") from error
            raise StorageError(
                f"Chroma cannot open {folder} ({error}). What is indexed is unharmed. Cure: make it writable, see that "
                "the disk has room, and end other programs that use it."
            ) from error
        return cls(client, folder, copy)

    @classmethod
    def served(cls, url: str) -> ChromaDatabase:
        """Return the database of a server.

        Args:
            url: ``http://HOST:PORT``; the port is 8000 by default.

        Raises:
            StorageError: It cannot be reached, or another program answers.
        """
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 8000)
        try:
            return cls(chromadb.HttpClient(str(parts.hostname), port, ssl=secure, settings=_settings()))
        except Exception as error:  # of a missing server, and of an answer that it does not understand
            raise StorageError(
                f"no Chroma server of version 1 answers at {url} ({error}). What is indexed is unharmed. Cure: start "
                f"it (chroma run --path FOLDER --port {port}), or correct the address."
            ) from error

    def names(self) -> list[str]:
        """Return the names of all collections."""
        with _explained("list"):
            return [collection.name for collection in self.client.list_collections()]

    def collection(self, name: str, model: str = "", *, create: bool = True) -> ChromaStore:
        """Return a collection; one that is missing is made, or without ``create`` a :class:`DamagedError`."""
        try:
            # No embedding function: vectors always come from us, and Chroma's default would fetch a model.
            with plain_panics():
                if create:
                    found = self.client.get_or_create_collection(
                        name,
                        embedding_function=None,
                        configuration=cast("Any", CONFIGURATION),
                        metadata={_MODEL: model} if model else None,
                    )
                else:
                    found = self.client.get_collection(name, embedding_function=None)
        except DamagedError:
            raise
        except NotFoundError as error:
            raise DamagedError(f"Chroma has lost the collection {name!r}.") from error
        except Exception as error:
            if is_damage(error):
                raise DamagedError(f"Chroma cannot read the collection {name!r} ({error}).") from error
            raise StorageError(
                f"Chroma cannot open the collection {name!r} ({error}). What is indexed is unharmed. Cure: see that "
                "the disk has room and the folder is writable, or that the server runs."
            ) from error
        return ChromaStore(self.client, found)

    def drop(self, name: str) -> None:
        """Delete a collection; one that does not exist is ignored."""
        with contextlib.suppress(NotFoundError), _explained("drop"):
            self.client.delete_collection(name)

    def vector_files(self, name: str) -> Path | None:
        """Return the folder in which a local Chroma keeps a collection's vectors, or None where it has none yet."""
        if self._folder is None:
            return None
        identity = str(self.client.get_collection(name, embedding_function=None).id)
        query = "SELECT id FROM segments WHERE collection = ? AND scope = 'VECTOR'"
        with contextlib.closing(sqlite3.connect(f"file:{self._folder / DATABASE_FILE}?mode=ro", uri=True)) as database:
            found = database.execute(query, (identity,)).fetchone()
        return self._folder / found[0] if found and (self._folder / found[0]).is_dir() else None

    def close(self) -> None:
        """Let go of the client, if it is ours."""
        if self._folder is not None:
            cast("Any", self.client).close()  # ClientAPI, its declared type, does not have it
        if self._copy is not None:
            self._copy.cleanup()


def without_vector_files(folder: Path, name: str) -> ChromaDatabase:
    """Open Chroma after deleting a collection's vector files: without them it reads the texts of that collection."""
    database = ChromaDatabase.at(folder)
    files = database.vector_files(name)
    if files is None:
        return database
    database.close()
    shutil.rmtree(files)  # what it held cannot be read any more
    return ChromaDatabase.at(folder)


class ChromaStore:
    """One Chroma collection of nodes; see :class:`~llama_index_contextual.index.store.NodeStore`.

    Args:
        client: The collection's.
        collection: The collection.
    """

    def __init__(self, client: ClientAPI, collection: Collection) -> None:
        self._client = client
        self.collection = collection
        self.name = collection.name
        self._batch = client.get_max_batch_size()  # most rows that Chroma takes at once

    @property
    def model(self) -> str:
        """Return the identity of the embedding model, "" where the collection does not say."""
        return str((self.collection.metadata or {}).get(_MODEL, ""))

    def search(self, companion: NodeSearch | None = None, *, exact_limit: int = 0) -> DenseSearch:  # noqa: ARG002
        """Return the side that retrievers ask; only its graph can answer."""
        return ChromaDense(self.collection, companion)

    def keywords(self) -> KeywordSearch | None:
        """Return None: Chroma answers no keyword queries."""
        return None

    def stamp(self) -> str:
        """Return what the last write of any client left in the collection's metadata."""
        try:
            with _explained("read the stamp of"):
                found = self._client.get_collection(self.name, embedding_function=None)
        except NotFoundError:  # another one has replaced it
            return "replaced"
        return str((found.metadata or {}).get(_STAMP, ""))

    def touch(self) -> None:
        """Write another stamp."""
        with _explained("write the stamp of"):
            self.collection.modify(metadata={**(self.collection.metadata or {}), _STAMP: secrets.token_hex(8)})

    def check(self) -> None:
        """Read one vector and search for it.

        Chroma writes its vector files in place: of 60 processes killed while it wrote every 100 vectors, 3 left files
        that it cannot open again, and of lost ones it says nothing before they are asked for.
        """
        try:
            with plain_panics():
                sample: Any = self.collection.get(limit=1, include=["embeddings"])["embeddings"]
                if not len(sample):
                    return
                found = self.collection.query(query_embeddings=[sample[0]], n_results=1, include=["distances"])
                fine = bool(found["ids"][0])
        except DamagedError:
            raise
        except httpx.TransportError as error:
            raise unreachable(error) from error
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
        """Return the ids of nodes whose vector is lost. Reads every vector: 0.4 s for 5,000."""
        ids = self.collection.get(include=[])["ids"]
        lost: list[str] = []
        for part in iter_batch(ids, PAGE):
            lost += self._without_vectors(part)
        return lost

    def _without_vectors(self, ids: list[str]) -> list[str]:
        try:
            self.collection.get(ids=ids, include=["embeddings"])
        except Exception:  # noqa: BLE001  Chroma says InternalError and names no id, so the ids are halved
            half = len(ids) // 2
            return self._without_vectors(ids[:half]) + self._without_vectors(ids[half:]) if half else ids
        return []

    def count(self) -> int:
        """Return the number of nodes."""
        return self.collection.count()

    def of_entries(self, entries: Sequence[str]) -> dict[str, list[Stored]]:
        """Return stored nodes by manifest entry; entries without nodes are absent."""
        found: dict[str, list[Stored]] = {}
        for part in iter_batch(entries, 500):
            for page in self._pages({ENTRY: {"$in": part}}, "metadatas"):
                for stored in map(_stored, page["ids"], page["metadatas"]):
                    found.setdefault(stored.entry, []).append(stored)
        return found

    def all(self) -> Iterator[Stored]:
        """Yield every stored node, without text and vectors."""
        for page in self._pages(None, "metadatas"):
            yield from map(_stored, page["ids"], page["metadatas"])

    def all_with_text(self) -> Iterator[tuple[Stored, str]]:
        """Yield every stored node and its text."""
        for page in self._pages(None, "metadatas", "documents"):
            for id_, metadata, text in zip(page["ids"], page["metadatas"], page["documents"], strict=True):
                yield _stored(id_, metadata), text or ""

    def vectors(self, ids: Sequence[str] | None = None) -> Iterator[tuple[list[str], npt.NDArray[np.float32]]]:
        """Yield ids and vectors, shape ``(ids, dimensions)``, a page at a time."""
        with _explained("read"):
            for page in pages(self.collection, ["embeddings"], node_ids=ids):
                yield page["ids"], np.asarray(page["embeddings"], dtype=np.float32)

    def rows(self) -> Iterator[list[Row]]:
        """Yield every stored node with its vector, a page at a time."""
        for page in self._pages(None, "metadatas", "documents", "embeddings"):
            found = zip(page["ids"], page["metadatas"], page["documents"], page["embeddings"], strict=True)
            yield [
                Row(to_node(_stored(id_, metadata), text or ""), dict(metadata), vector=vector.tolist())
                for id_, metadata, text, vector in found
            ]

    def upsert(self, rows: Sequence[Row]) -> None:
        """Write nodes with their vectors; ``ChromaVectorStore.add`` would keep the old text of an id that exists."""
        for part in iter_batch(rows, min(self._batch, _WRITTEN)):
            with _explained("write"):
                self.collection.upsert(
                    ids=[row.node.node_id for row in part],
                    embeddings=cast("Any", [np.asarray(row.vector, np.float32) for row in part]),
                    documents=[row.node.get_content(metadata_mode=MetadataMode.NONE) for row in part],
                    metadatas=[row.merged for row in part],
                )

    def update_metadata(self, rows: Sequence[Row]) -> None:
        """Give stored nodes new metadata and leave texts and vectors alone."""
        for part in iter_batch(rows, self._batch):
            with _explained("update"):
                self.collection.update(ids=[row.node.node_id for row in part], metadatas=[row.merged for row in part])

    def delete(self, ids: Sequence[str]) -> None:
        """Delete nodes by id; unknown ids are ignored."""
        for part in iter_batch(ids, self._batch):
            with _explained("delete"):
                self.collection.delete(ids=part)

    def _pages(self, where: dict[str, Any] | None, *include: str) -> Iterator[Any]:
        with _explained("read"):
            yield from pages(self.collection, include, where=where)


def _stored(id_: str, metadata: Mapping[str, Any] | None) -> Stored:
    metadata = metadata or {}
    return Stored(id_, str(metadata.get(ENTRY, "")), str(metadata.get(EMBED_HASH, "")), dict(metadata))


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Chroma raises many classes for a full disk or a lost server; all of them mean that something did not happen."""
    try:
        with plain_panics():
            yield
    except (NotFoundError, DamagedError):
        raise  # the former means that the collection was replaced meanwhile
    except httpx.TransportError as error:
        raise unreachable(error) from error
    except Exception as error:
        elsewhere = any(sign in str(error).lower() for sign in _ELSEWHERE)
        if is_damage(error) or (what == "read" and not elsewhere):
            raise DamagedError(f"Chroma could not {what} nodes ({error}).") from error
        raise StorageError(
            f"Chroma could not {what} nodes ({error}). What was indexed before is unharmed. "
            "Cure: see that the disk has room and the folder is writable, or that the server runs, then refresh."
        ) from error


def refused_key(metadata: Mapping[str, Any]) -> str | None:
    """Return a metadata key that Chroma refuses, and all of a write with it; None where it takes all."""
    return next((key for key in metadata if not key or key[0] in "$#" or key == "chroma:document"), None)
