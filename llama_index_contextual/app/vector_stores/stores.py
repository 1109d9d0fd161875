"""Where vectors are kept: what ``vector_store`` and ``--store`` may say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from llama_index_contextual.errors import MissingExtraError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llama_index_contextual.app.vector_stores.engine import VectorEngine

EMBEDDED: Final = "chroma"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,60}[A-Za-z0-9]")  # what all servers take
_CURE: Final = "chroma, chroma:http://HOST:PORT, qdrant:http://HOST:PORT"
_METHODS: Final = ("rows", "count", "upsert", "delete", "nearest", "clear", "close")


@dataclass(frozen=True, slots=True)
class Store:
    """Where the vectors of an index are kept.

    Attributes:
        name: As a setting says it, ``"chroma"`` or ``"qdrant:http://HOST:PORT"``; "" for an object, which has to be
            given each time.
        open: Returns the engine, given the identity of the database. Nothing is opened or asked before the engine is
            used.
        is_shared: Whether it is elsewhere, and so is filled at any size. The one in the storage folder is for what is
            too large for the matrix.
        is_exact: Whether it compares a question with every vector up to the limit, and so is asked at any size. Up to
            the limit the matrix answers for others, because a graph loses neighbours.
        is_installed: Whether this machine has what it takes. Where it has not, the matrix answers at any size.
    """

    name: str
    open: Callable[[str], VectorEngine]
    is_shared: bool = True
    is_exact: bool = False
    is_installed: bool = True


def resolve_store(setting: Any, folder: Path, exact_limit: int) -> Store:
    """Return the store of an index.

    Args:
        setting: ``"chroma"``, ``"chroma:http://HOST:PORT"``, ``"qdrant:http://HOST:PORT"``, a client of Chroma or
            Qdrant, or a ``VectorEngine``. An address may end in ``#NAME``,
            the name of the collection; by default it is made of the identity of the database.
        folder: Where Chroma may keep its files; made when it is needed.
        exact_limit: Most vectors of which each is compared with a question, where the store can do so.

    Raises:
        SettingError: It is none of these.
        MissingExtraError: The client of a server is not installed.
    """
    if setting == EMBEDDED:
        has_chroma = find_spec("chromadb_rust_bindings") is not None  # not so where chromadb is the client alone
        return Store(EMBEDDED, lambda identity: _in_folder(folder, identity), is_shared=False, is_installed=has_chroma)
    if isinstance(setting, str):
        kind, address, name = _parts(setting)
        plain = f"{kind}:{address}{name and '#'}{name}"
        if find_spec("chromadb" if kind == "chroma" else "qdrant_client") is None:
            raise MissingExtraError(f"{kind.capitalize()}'s client", kind)
        if kind == "chroma":
            return Store(plain, lambda identity: _on_chroma(address, None, name, identity))
        return Store(plain, lambda identity: _on_qdrant(address, None, name, identity, exact_limit), is_exact=True)
    if hasattr(setting, "get_or_create_collection"):
        return Store("", lambda identity: _on_chroma("", setting, "", identity))
    if hasattr(setting, "query_batch_points"):
        return Store("", lambda identity: _on_qdrant("", setting, "", identity, exact_limit), is_exact=True)
    if all(callable(getattr(setting, method, None)) for method in _METHODS):
        return Store("", lambda _: cast("VectorEngine", setting), is_exact=True)
    raise SettingError(
        f"an object of {type(setting).__name__} keeps no vectors. Cure: one of {_CURE}; or a client of Chroma or "
        f"Qdrant, or an object with the methods of VectorEngine: {', '.join(_METHODS)}."
    )


def _in_folder(folder: Path, identity: str) -> VectorEngine:
    from llama_index_contextual.app.vector_stores.chroma import ChromaVectors
    from llama_index_contextual.app.vector_stores.chroma_clients import InFolder  # its client takes a second to import

    return ChromaVectors(InFolder(folder), "contextual", identity)


def _on_chroma(address: str, client: Any, name: str, identity: str) -> VectorEngine:
    from llama_index_contextual.app.vector_stores.chroma import ChromaVectors
    from llama_index_contextual.app.vector_stores.chroma_clients import Elsewhere, served

    connection = Elsewhere(lambda: served(address) if client is None else client)
    return ChromaVectors(connection, name or f"contextual-{identity}", identity)


def _on_qdrant(address: str, client: Any, name: str, identity: str, exact_limit: int) -> VectorEngine:
    from llama_index_contextual.app.vector_stores.qdrant import QdrantVectors, served

    def connect() -> Any:
        return served(address) if client is None else client

    return QdrantVectors(connect, name or f"contextual-{identity}", identity, exact_limit)


def _parts(setting: str) -> tuple[str, str, str]:
    kind, _, rest = setting.partition(":")
    address, _, name = rest.partition("#")
    address = address.rstrip("/")
    is_address = address.startswith(("http://", "https://"))
    if kind not in {"chroma", "qdrant"} or not is_address or ("#" in rest and not _NAME.fullmatch(name)):
        raise SettingError(
            f"{setting!r} names no store. Cure: one of {_CURE}; an address may end in #NAME, the name of a collection: "
            "3 to 62 letters, digits, dots, _ and -."
        )
    if "@" in urlsplit(address).netloc:
        raise SettingError(
            "a password in the address of a store would be written down. Cure: pass a client of your own, which knows "
            "it, as vector_store= in Python."
        )
    return kind, address, name
