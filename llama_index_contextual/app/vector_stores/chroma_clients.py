"""How Chroma is reached: in a folder of ours, on a server, or by a client that the user gave.

What is known of its files and its errors is here. In a folder Chroma is made for one process: another one that has it
open sees neither new rows nor that old ones went. So a lock is held while its files change and while they are opened,
and a stamp beside them says when to open them again. Chroma writes whenever it opens a folder: one that cannot be
written cannot be asked, and every vector is compared instead.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import sqlite3
import threading
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import httpx
import numpy as np
from filelock import FileLock
from pydantic import ValidationError

from llama_index_contextual.app.vector_stores.engine import damaged
from llama_index_contextual.durable import write_atomically
from llama_index_contextual.errors import FingerprintError, SettingError, StorageError

try:
    import chromadb
    from chromadb.config import Settings as ChromaSettings
    from chromadb.errors import InvalidArgumentError, NotFoundError
except ValidationError as error:  # it reads the file .env of the working directory, too, and whatever stands in it
    names = ", ".join(str(one["loc"][0]) for one in error.errors())
    raise SettingError(
        f"Chroma cannot start: the environment, or the file .env of this folder, has a value of {names} that it cannot "
        "read. Cure: correct it, or start in another folder."
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from chromadb.api import ClientAPI

_FILE: Final = "chroma.sqlite3"
_STAMP: Final = "written"
_COUNT: Final = slice(20, 28)  # of a graph's header.bin: how many vectors its files hold
_OPENING: Final = ("migrations", "tenants", "databases", "collections", "collection_metadata", "segments")

# What SQLite says of a broken file or one that is no database, and Chroma of one that lacks its tables.
_DAMAGE: Final = (
    "malformed",
    "not a database",
    "already exists",
    "no such table",
    "no such column",
    "code: 11",
    "file is corrupt",
)
_SAME_HASH: Final = re.compile(r"Inconsistent hash: db=(\w+), source=\1\b")  # other hashes tell of another version
# Chroma says many things of damaged vector files; these are about something else.
_ELSEWHERE: Final = (
    "readonly",
    "read-only",
    "unable to open",
    "is full",
    "no space",
    "permission",
    "is locked",
    "too many open",
)


class Elsewhere:
    """A client of a server, or one that the user gave: others have collections there, too.

    Args:
        connect: Returns the client.
    """

    is_own = False

    def __init__(self, connect: Callable[[], ClientAPI]) -> None:
        self._connect = connect
        self._client: ClientAPI | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def reading(self) -> Iterator[ClientAPI]:
        """Give the client."""
        with self._lock:
            self._client = self._client or self._connect()
        yield self._client

    writing = reading

    def close(self) -> None:
        """Keep it: whoever made the client closes it, and the one of a server holds nothing open."""


class InFolder:
    """Chroma in a folder of ours, one thread at a time.

    Args:
        folder: Made by the first write.
    """

    is_own = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._client: ClientAPI | None = None
        self._stamp = ""  # of what is open
        self._threads = threading.RLock()
        self._files = FileLock(folder.with_name(f"{folder.name}.lock"))

    @contextlib.contextmanager
    def reading(self) -> Iterator[ClientAPI | None]:
        """Give a client that shows what was written last."""
        with self._threads:
            if not (self._folder / _FILE).exists():
                self.close()
                yield None
                return
            if self._client is None or self._stamp != self._written()[0]:
                with self._locked():
                    self._open()
            yield self._client

    @contextlib.contextmanager
    def writing(self) -> Iterator[ClientAPI]:
        """Give a client, alone; whoever reads opens the folder again afterwards."""
        with self._threads, self._locked():
            if self._client is None or self._stamp != self._written()[0]:
                self._open()
            self._stamp = secrets.token_hex(8)
            self._sign(None)
            try:
                yield cast("ClientAPI", self._client)
            except (InvalidArgumentError, KeyboardInterrupt):  # Chroma refused it, or it was stopped between two calls
                self._sign(_checksums(self._folder))
                raise
            except BaseException:
                self._stamp = ""  # whoever opens it next meets a write that did not end
                raise
            self._sign(_checksums(self._folder))

    def wipe(self) -> None:
        """Delete the folder."""
        with self._threads, self._locked():
            self.close()
            try:
                if self._folder.exists():
                    shutil.rmtree(self._folder)
            except OSError as error:
                raise _unwritable(self._folder, error) from error

    def close(self) -> None:
        """Close the client."""
        with self._threads:
            client, self._client = self._client, None
            if client is not None:
                cast("Any", client).close()  # ClientAPI, its declared type, does not have it

    def _written(self) -> tuple[str, object]:
        """Return the stamp of the last write, and the checksums of the vector files; None where it did not end."""
        try:
            stamp, checksums = json.loads((self._folder / _STAMP).read_bytes())
        except (OSError, ValueError, TypeError):
            return "", None
        return str(stamp), checksums

    def _sign(self, checksums: dict[str, int] | None) -> None:
        write_atomically(self._folder / _STAMP, json.dumps([self._stamp, checksums]).encode())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._files.acquire()
        except OSError as error:
            raise _unwritable(self._folder, error) from error
        try:
            yield
        finally:
            self._files.release()

    def _open(self) -> None:
        self.close()
        stamp, checksums = self._written()
        if (self._folder / _FILE).exists() and checksums != _checksums(self._folder):
            # Of what a killed writer left, Chroma opens all and answers some questions with "Error finding id".
            raise damaged(f"the vector files of Chroma in {self._folder} are damaged, or a write of them did not end.")
        self._client, self._stamp = _local(self._folder), stamp


def served(url: str) -> ClientAPI:
    """Return a client of a server.

    Args:
        url: ``http://HOST:PORT``; the port is 8000 by default.

    Raises:
        StorageError: It cannot be reached, or another program answers.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 8000)
    try:
        return chromadb.HttpClient(str(parts.hostname), port, ssl=secure, settings=_settings())
    except Exception as error:  # of a missing server, and of an answer that it does not understand
        raise StorageError(
            f"no Chroma server of version 1 answers at {url} ({error}). What is indexed is unharmed. Cure: start "
            f"it (chroma run --path FOLDER --port {port}), or correct the address."
        ) from error


@contextlib.contextmanager
def explained(what: str, *, is_own: bool) -> Iterator[None]:
    """Say what an error of Chroma means: it raises many classes for a full disk, a lost server or a broken file.

    Args:
        what: Was to be done.
        is_own: Whether the files are ours alone; then what cannot be read is broken, unless Chroma names another cause.
    """
    try:
        yield
    except (NotFoundError, StorageError):
        raise  # the former means that the collection was replaced meanwhile
    except httpx.TransportError as error:
        raise StorageError(
            f"the Chroma server does not answer ({error}). What is indexed is unharmed. Cure: see that it runs, then "
            "try again."
        ) from error
    except Exception as error:
        if isinstance(error, InvalidArgumentError) and "dimension" in str(error):
            raise FingerprintError(
                f"Chroma has vectors of other dimensions ({error}). Cure: the former embedding, or index everything "
                "again: reindex='all' (--reindex all)."
            ) from error
        elsewhere = any(sign in str(error).lower() for sign in _ELSEWHERE)
        if _is_damage(error) or (what == "read" and is_own and not elsewhere):
            raise damaged(f"Chroma could not {what} vectors ({error}).") from error
        raise StorageError(
            f"Chroma could not {what} vectors ({error}). What is indexed is unharmed. Cure: see that the disk has "
            "room and the folder is writable, or that the server runs, and end other programs that use it."
        ) from error
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # no subclass of Exception, and its module cannot be imported
            raise damaged(f"Chroma broke down ({error}).") from error
        raise


def _settings() -> ChromaSettings:
    """Return Chroma's settings, without telemetry and without the file ``.env`` of the working directory.

    Chroma would read that file, which may be a stranger's: it can name any class to import, the older implementation
    that unpickles, and credentials. Environment variables are the user's, and hold.
    """
    return ChromaSettings(_env_file=None, anonymized_telemetry=False)


def _local(folder: Path) -> ClientAPI:
    """Open Chroma in a folder, apart from other clients of this process. :func:`explained` says what its errors mean.

    Chroma shares one system among all clients of a path in a process, so that closing and opening again would give
    back the stale one. Another spelling of the same path is another system.

    Raises:
        StoreDamagedError: Its database cannot be read.
        StorageError: The folder cannot be written, or its path is not valid here.
    """
    name = str(folder) + "".join("/." if bit == "1" else "//." for bit in f"{secrets.randbits(20):020b}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    _check_tables(folder / _FILE)
    try:
        return chromadb.PersistentClient(name, settings=_settings())
    except UnicodeError as error:  # in the locale "C" the path of a folder "ñ" has no characters, only bytes
        raise StorageError(
            f"Chroma cannot open {str(folder)!a}: its path is not valid in this locale ({error}). What is indexed "
            "is unharmed. Cure: PYTHONUTF8=1 in the environment, or a UTF-8 locale, or a plainly named storage folder."
        ) from error


def _check_tables(file: Path) -> None:
    """Read what Chroma reads when it opens: of what it cannot decode there it panics, or aborts the whole process.

    Raises:
        StoreDamagedError: It cannot be read.
    """
    if not file.is_file() or not file.stat().st_size:
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in ("sqlite_master", *sorted(tables.intersection(_OPENING))):
                database.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608  our own names
    except sqlite3.OperationalError as error:
        if "decode" in str(error) or _is_damage(error):
            raise damaged(f"Chroma's database {file} is damaged ({error}).") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise damaged(f"Chroma's database {file} is damaged ({error}).") from error


def _checksums(folder: Path) -> dict[str, int]:
    """Return the checksum of each vector file. Chroma reads one without looking: it may end the whole process.

    Any one damaged byte of a file changes it.
    """
    checksums: dict[str, int] = {}
    for path in sorted((*folder.glob("*/*.bin"), *folder.glob("*/*.pickle"))):
        if not _holds_vectors(
            path.parent / "header.bin"
        ):  # each process that opens it writes it anew, with chance bytes
            continue
        data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        words = data[: len(data) // 8 * 8].view(np.uint64)
        checksum = len(data) + int(words.sum(dtype=np.uint64)) + int.from_bytes(data[8 * len(words) :].tobytes(), "big")
        checksums[path.relative_to(folder).as_posix()] = checksum
    return checksums


def _holds_vectors(header: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(header.read_bytes()[_COUNT])
    return True


def _is_damage(error: BaseException) -> bool:
    return any(sign in str(error).lower() for sign in _DAMAGE) or _SAME_HASH.search(str(error)) is not None


def _unwritable(folder: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{folder} cannot be written ({error.strerror or error}). What is indexed is unharmed. Cure: make it writable, "
        "see that the disk has room, or choose another storage folder."
    )
