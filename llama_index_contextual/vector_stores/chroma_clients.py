"""How Chroma is reached: in a folder of ours, on a server, or by a client that the user gave.

What is known of its files and its errors is here. In a folder Chroma is made for one process: another one that has it
open sees neither new rows nor that old ones went. So a lock is held while its files change and while they are opened,
and a stamp beside them says when to open them again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import sqlite3
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import urlsplit

import httpx
import numpy as np
from filelock import FileLock
from pydantic import ValidationError

from llama_index_contextual.errors import FingerprintError, SettingError, StorageError
from llama_index_contextual.vector_stores.engine import damaged

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

    from chromadb.api import ClientAPI

_FILE: Final = "chroma.sqlite3"
_STAMP: Final = "written"
_COUNT: Final = slice(20, 28)  # of a graph's header.bin: how many vectors its files hold
_OPENING: Final = ("migrations", "tenants", "databases", "collections", "collection_metadata", "segments")
_TRIES: Final = 3

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


class ChromaClient(Protocol):
    """A client that is opened when it is needed.

    Attributes:
        is_own: Whether nobody else has anything there.
    """

    is_own: bool

    def reading(self) -> contextlib.AbstractContextManager[ClientAPI | None]:
        """Give the client for a question; None where nothing was ever written."""

    def writing(self) -> contextlib.AbstractContextManager[ClientAPI]:
        """Give the client for a write."""

    def wipe(self) -> None:
        """Delete all files, if nobody else has any."""

    def close(self) -> None:
        """Let go of it, if it is ours."""


class Elsewhere:
    """A client of a server, or one that the user gave.

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

    def wipe(self) -> None:
        """Do nothing: others have collections there."""

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
        self._copy: tempfile.TemporaryDirectory[str] | None = None
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
                with self._locked() if is_writable(self._folder) else contextlib.nullcontext():
                    self._open()
            yield self._client

    @contextlib.contextmanager
    def writing(self) -> Iterator[ClientAPI]:
        """Give a client, alone; whoever reads opens the folder again afterwards."""
        with self._threads, self._locked():
            if not is_writable(self._folder):
                raise _unwritable(self._folder, PermissionError("it is read-only"))
            if self._client is None or self._copy is not None or self._stamp != self._written()[0]:
                self._open()
            self._stamp = secrets.token_hex(8)
            self._sign(None)
            yield cast("ClientAPI", self._client)
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
        """Close the client; the copy goes."""
        with self._threads:
            client, self._client = self._client, None
            if client is not None:
                cast("Any", client).close()  # ClientAPI, its declared type, does not have it
            copy, self._copy = self._copy, None
            if copy is not None:
                copy.cleanup()

    def _written(self) -> tuple[str, object]:
        """Return the stamp of the last write, and the checksums of the vector files; None where it did not end."""
        try:
            stamp, checksums = json.loads((self._folder / _STAMP).read_bytes())
        except (OSError, ValueError, TypeError):
            return "", None
        return str(stamp), checksums

    def _sign(self, checksums: dict[str, int] | None) -> None:
        try:
            temporary = self._folder / f"{_STAMP}.tmp"
            temporary.write_text(json.dumps([self._stamp, checksums]), "utf-8")
            temporary.replace(self._folder / _STAMP)
        except OSError as error:
            raise _unwritable(self._folder, error) from error

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
        """Open the folder; it writes whenever it opens, so a folder that cannot be written is opened as a copy."""
        self.close()
        (stamp, checksums), folder = self._written(), self._folder
        if checksums is not None and checksums != _checksums(folder):
            raise damaged(f"the vector files of Chroma in {folder} are damaged.")
        if not is_writable(folder):
            self._copy = _copied(folder)
            folder = Path(self._copy.name)
        self._client, self._stamp = _local(folder), stamp


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


def is_writable(folder: Path) -> bool:
    """Return whether Chroma can write its files; it has to, even where it is only asked."""
    there = [one for one in (folder, folder / _FILE) if one.exists()]
    return all(os.access(one, os.W_OK) for one in there)


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


def _copied(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a copy that can be written, for as long as it is used.

    Raises:
        StorageError: There is no room for it.
    """
    file = folder / _FILE
    copy = tempfile.TemporaryDirectory(prefix="llama-index-contextual-", ignore_cleanup_errors=True)
    try:
        for _ in range(_TRIES):  # another user, who may write, may do so now
            before = file.stat()
            shutil.copytree(folder, copy.name, dirs_exist_ok=True, copy_function=shutil.copyfile)
            if (before.st_size, before.st_mtime_ns) == (file.stat().st_size, file.stat().st_mtime_ns):
                break
        for path in Path(copy.name).rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
    except OSError as error:
        copy.cleanup()
        raise StorageError(
            f"{folder} cannot be written, which Chroma needs, nor be copied to {copy.name} ({error}). Cure: make one "
            "of them writable, or name a folder with room in TMPDIR."
        ) from error
    return copy


def _unwritable(folder: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{folder} cannot be written ({error.strerror or error}). What is indexed is unharmed. Cure: make it writable, "
        "see that the disk has room, or choose another storage folder."
    )
