"""The state of an index on disk: where each file lies, who may write, and how a file is replaced as a whole.

::

    .contextual/
      manifest.json   what is indexed, with which settings; replaced as a whole, written last; a memory of work done
      building.json   the manifest of an index that is being made to replace this one
      generation      a number that grows with every write: readers compare it, and open the store again when it grew
      chroma/         the nodes, their texts and vectors: the truth, unless a server keeps them
      cache.sqlite3   vectors by the hash of their text, and contexts that were paid for; a cache
      bm25/           the keyword index, derived from the nodes; a cache
      matrix/         the vectors once more, to be compared with a question one by one; a cache
      write.lock      held by the process that writes, for as long as it does (write.lock.owner says who it is)
      chroma.lock     held while Chroma's files change, and while a reader opens them
      .gitignore      keeps the folder out of version control

The generation is a file of its own because it changes with every batch, and the manifest of 100,000 documents takes a
second to write. Without the manifest the next refresh reads and parses every file again, and embeds nothing that Chroma
has. A cache can be deleted at any time. Earlier versions had ``vectors.sqlite3`` and ``contexts.sqlite3`` in place of
``cache.sqlite3``: their rows are moved over at the next write.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import stat
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from filelock import FileLock, Timeout

from llama_index_contextual.errors import LockedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

DEFAULT_NAME: Final = ".contextual"
DEFAULT_COLLECTION: Final = "contextual"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below one storage folder; the docstring of this module says what each is for."""

    root: Path

    @property
    def manifest(self) -> Path:
        """Return the path of the manifest."""
        return self.root / "manifest.json"

    @property
    def building(self) -> Path:
        """Return the path of the manifest of a successor that is being made."""
        return self.root / "building.json"

    @property
    def moving(self) -> Path:
        """Return the path of the marker of a move to another store that is under way."""
        return self.root / "moving.json"

    @property
    def generation(self) -> Path:
        """Return the path of the file that changes with every write."""
        return self.root / "generation"

    @property
    def chroma(self) -> Path:
        """Return Chroma's folder."""
        return self.root / "chroma"

    @property
    def cache(self) -> Path:
        """Return the path of the cache of vectors and contexts."""
        return self.root / "cache.sqlite3"

    @property
    def former_caches(self) -> tuple[Path, ...]:
        """Return the paths of the caches of earlier versions."""
        return self.root / "vectors.sqlite3", self.root / "contexts.sqlite3"

    @property
    def bm25(self) -> Path:
        """Return the folder of the saved keyword index."""
        return self.root / "bm25"

    @property
    def matrix(self) -> Path:
        """Return the folder of the vectors that are compared one by one."""
        return self.root / "matrix"

    @property
    def chroma_lock(self) -> Path:
        """Return the path of the lock of Chroma's files."""
        return self.root / "chroma.lock"

    @property
    def lock(self) -> Path:
        """Return the path of the write lock."""
        return self.root / "write.lock"

    def create(self) -> None:
        """Make the folder, and keep it out of version control.

        Raises:
            StorageError: The folder cannot be made.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            ignore = self.root / ".gitignore"
            if not ignore.exists():
                ignore.write_text("# Made by llama-index-contextual; everything here can be made again.\n*\n", "utf-8")
        except OSError as error:
            raise StorageError(
                f"the index cannot be kept in {self.root} ({error.strerror}). Cure: make it writable, or choose "
                "another folder with storage=."
            ) from error

    def refuse_links(self) -> None:
        """Refuse symbolic links: a folder of somebody else would have files outside of it read, written or deleted.

        Raises:
            StorageError: The folder is a link, or one is in it.
        """
        inside = (Path(folder, name) for folder, *names in os.walk(self.root) for name in (*names[0], *names[1]))
        for path in (self.root, *inside):
            if path.is_symlink():
                raise StorageError(
                    f"{path} is a symbolic link, and an index is not kept behind one. Cure: remove the link, or name "
                    "where it leads with storage=."
                )

    def sweep(self, seconds: float) -> None:
        """Delete what killed processes left of :func:`write_atomically`, at least so many seconds ago."""
        for name in ("manifest.json", "building.json", "moving.json", "generation"):
            for left in self.root.glob(f".{name}.????????"):
                with contextlib.suppress(OSError):
                    if time.time() - left.stat().st_mtime >= seconds:
                        left.unlink()


class WriteLock:
    """The write lock of one storage folder; a thread may take it again, other threads and processes wait.

    It is a lock of the operating system, which frees it when its owner dies: nobody ever removes a stale lock file.

    Args:
        path: The lock file. Beside it, ``<name>.owner`` says who holds it.
        timeout: Seconds to wait for another *process*; threads of this process take turns.
    """

    def __init__(self, path: Path, timeout: float = 0.0) -> None:
        self._path = path
        self._owner = path.with_name(path.name + ".owner")
        self._timeout = timeout
        self._threads = threading.RLock()
        self._file = FileLock(path, thread_local=False)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            LockedError: Another process has it; the message names that process.
            StorageError: The lock file cannot be written.
        """
        with self._threads:
            self._acquire()
            try:
                yield
            finally:
                self._file.release()

    def _acquire(self) -> None:
        try:
            self._file.acquire(timeout=self._timeout)
        except Timeout:
            raise LockedError(
                f"another process is writing the index at {self._path.parent}: {self._describe_owner()}. Cure: wait "
                "until it ends; or for several writers keep it on a server: --store, as docs/stores.md says."
            ) from None
        except OSError as error:
            raise StorageError(
                f"the index at {self._path.parent} cannot be written ({error.strerror or error}). "
                "Cure: make the folder writable, or choose another with storage=."
            ) from error
        if self._file.lock_counter == 1:
            self._write_owner()

    def _write_owner(self) -> None:
        """Write down who holds the lock; a failure to do so must not stop the writer."""
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv)[:200],
        }
        with contextlib.suppress(OSError):
            self._owner.write_text(json.dumps(owner), encoding="utf-8")

    def _describe_owner(self) -> str:
        try:
            owner = json.loads(self._owner.read_text(encoding="utf-8"))
            return f"process {owner['pid']} on {owner['host']}, since {owner['since']} ({owner['command']})"
        except (OSError, ValueError, KeyError, TypeError):
            return "an unknown process"


def write_atomically(
    path: Path, data: bytes | Iterable[bytes], *, check: Callable[[], None] | None = None
) -> os.stat_result:
    """Replace a file's content, and keep its mode; return what the new file says of itself.

    Args:
        path: The file.
        data: What it holds afterwards, perhaps in parts.
        check: Called when all of it is on disk, right before the file is replaced. Where it raises, the old content
            is kept.

    Raises:
        StorageError: That failed; the old content is kept.
    """
    temporary = ""
    try:
        temporary = str(path.with_name(f".{path.name}.{secrets.token_hex(4)}"))
        with Path(temporary).open("xb") as file:  # as readable for others as all files of this user
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
            found = os.fstat(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).chmod(stat.S_IMODE(path.stat().st_mode))
        if check is not None:
            check()
        Path(temporary).replace(path)
    except BaseException as error:  # the parts may fail, too, or be interrupted
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        if not isinstance(error, OSError):
            raise
        raise StorageError(
            f"{path} cannot be written ({error.strerror}). What was there before is unharmed. "
            "Cure: free space or make the folder writable, then refresh."
        ) from error
    return found
