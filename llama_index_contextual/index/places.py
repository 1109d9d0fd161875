"""Where an index keeps its nodes: what ``vector_store=``, ``--store`` and ``[store] place`` may say."""

from __future__ import annotations

import re
import socket
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from llama_index_contextual.errors import MissingExtraError, SettingError
from llama_index_contextual.identity import short_hash
from llama_index_contextual.index.chroma_files import has_data
from llama_index_contextual.index.state import DEFAULT_COLLECTION
from llama_index_contextual.index.store import Place

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llama_index_contextual.index.chroma import ChromaDatabase
    from llama_index_contextual.index.manifest import Manifest
    from llama_index_contextual.index.qdrant import QdrantDatabase
    from llama_index_contextual.index.state import Layout
    from llama_index_contextual.index.store import Database

EMBEDDED: Final = "chroma"
# What all servers take. A number at the end would be that of a successor.
_NAME: Final = re.compile(r"(?!.*-\d+$)[A-Za-z0-9][A-Za-z0-9._-]{1,60}[A-Za-z0-9]")
_KINDS: Final = ("chroma", "qdrant")
_CURE: Final = "chroma, chroma:http://HOST:PORT, qdrant:http://HOST:PORT"


def resolve_place(given: Any, layout: Layout, root: Path, manifest: Manifest | None) -> Place:
    """Return the place of an index.

    Args:
        given: ``"chroma"``, ``"chroma:http://HOST:PORT"``, ``"qdrant:http://HOST:PORT"``, a :class:`Database`, or a
            client of Chroma or Qdrant. An address may end in ``#NAME``, the name of the collection.
        layout: The storage folder.
        root: The folder of the documents.
        manifest: Of the index, which knows the name of its collection; None where it is not known to be the user's.

    Raises:
        SettingError: It is none of these.
        MissingExtraError: Qdrant's client is not installed.
    """
    if given == EMBEDDED:
        folder = layout.chroma
        return Place(
            EMBEDDED, DEFAULT_COLLECTION, lambda: _chroma().at(folder), partial(has_data, folder), folder=folder
        )
    kind, address, name = _parts(given) if isinstance(given, str) else ("", "", "")
    setting = f"{kind}:{address}{name and '#'}{name}"
    if not name:
        known = manifest.collection if manifest and is_kept_in(manifest, setting if kind else "") else ""
        name = re.sub(r"-\d+$", "", known) or _name_of(root)
    if not kind:
        return _served("", name, _given(given))
    if kind == "qdrant":
        return _served(setting, name, partial(_qdrant().served, address))
    return _served(setting, name, lambda: _chroma().served(address))


def _chroma() -> type[ChromaDatabase]:
    from llama_index_contextual.index.chroma import ChromaDatabase  # its client takes a second to import

    return ChromaDatabase


def _qdrant() -> type[QdrantDatabase]:
    try:
        from llama_index_contextual.index.qdrant import QdrantDatabase
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "qdrant_client":
            raise
        raise MissingExtraError("Qdrant's client", "qdrant") from error
    return QdrantDatabase


def _name_of(root: Path) -> str:
    """Return a name that no index of another folder or machine has, as all may be on one server."""
    return f"{DEFAULT_COLLECTION}_{short_hash([socket.gethostname(), str(root)])[:8]}"


def place_of(manifest: Manifest) -> str:
    """Return where an index is kept, as :attr:`Place.name` says it."""
    return "" if "vector_store" in manifest.unremembered else str(manifest.choices.get("vector_store", EMBEDDED))


def is_kept_in(manifest: Manifest, name: str) -> bool:
    """Return whether an index is kept in a place."""
    return place_of(manifest) == name


def _parts(setting: str) -> tuple[str, str, str]:
    kind, _, rest = setting.partition(":")
    address, _, name = rest.partition("#")
    address = address.rstrip("/")
    if kind not in _KINDS or not address.startswith(("http://", "https://")) or (name and not _NAME.fullmatch(name)):
        raise _unknown(setting)
    if "@" in urlsplit(address).netloc:
        raise SettingError(
            "a password in the address of a store would be written down. Cure: pass a client of your own, which knows "
            "it, as vector_store= in Python."
        )
    return kind, address, name


def _unknown(setting: str) -> SettingError:
    return SettingError(
        f"{setting!r} names no place for an index. Cure: one of {_CURE}; an address may end in #NAME, the "
        "name of a collection: letters, digits, _ and -, and no number after a - at its end."
    )


def _served(setting: str, name: str, connect: Callable[[], Database]) -> Place:
    """Return a place on a server. It is asked when it is first needed, and the connection is kept."""
    connected = cache(connect)
    place = Place(setting, name, connected, lambda: bool(place.among(place.open().names())), shared=True)
    return place


def _given(thing: Any) -> Callable[[], Database]:
    if hasattr(thing, "get_or_create_collection"):
        return lambda: _chroma()(thing)
    if hasattr(thing, "query_batch_points"):
        return lambda: _qdrant()(thing)
    if all(hasattr(thing, method) for method in ("names", "collection", "drop", "close")):
        return lambda: cast("Database", thing)
    raise SettingError(
        f"an object of {type(thing).__name__} is no place for an index. Cure: one of {_CURE}; or a client of Chroma or "
        "Qdrant, or an object with the methods of llama_index_contextual.index.store.Database."
    )
