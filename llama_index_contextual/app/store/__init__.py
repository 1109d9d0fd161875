"""The storage folder of an index, and who may write in it.

::

    .contextual/
      index.sqlite3   documents, chunks, settings, revision            rebuilt from the files for nothing
      paid.sqlite3    vectors, contexts, conversions by hash           what cost money or minutes; never deleted by us
      cache/          arrays of BM25 and vectors, and their revision   may be deleted at any time
      write.lock      held by the process that writes, for as long as it does (write.lock.owner names it)
      .gitignore      keeps the folder out of version control
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from filelock import FileLock, Timeout

from llama_index_contextual.errors import LockedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_NAME: Final = ".contextual"


class Layout:
    """Paths below one storage folder; the docstring of this module says what each is for."""

    def __init__(self, root: Path) -> None:
        self.root, self.cache = root, root / "cache"
        self.database, self.successor = root / "index.sqlite3", root / "index.new.sqlite3"
        self.paid = root / "paid.sqlite3"

    def sizes(self) -> dict[str, int]:
        """The bytes of each thing in the folder."""
        sizes: dict[str, int] = {}
        for file in self.root.rglob("*"):
            name = file.relative_to(self.root).parts[0]
            sizes[name] = sizes.get(name, 0) + (file.stat().st_size if file.is_file() else 0)
        return dict(sorted(sizes.items()))

    def refuse_links(self) -> None:
        """Refuse symbolic links: a folder of somebody else would have files outside of it read, written or deleted.

        Raises:
            StorageError: The folder is a link, or one is in it.
        """
        for path in (self.root, *self.root.rglob("*")):
            if path.is_symlink():
                raise StorageError(
                    f"{path} is a symbolic link, and an index is not kept behind one. Cure: remove the link, or name "
                    "where it leads as the storage folder."
                )


class WriteLock:
    """The write lock of one storage folder; threads of this process take turns.

    It is a lock of the operating system, which frees it when its owner dies: nobody ever removes a stale lock file.

    Args:
        folder: The storage folder. Beside the lock, ``write.lock.owner`` names who holds it.
        timeout: Seconds to wait for another process.
    """

    def __init__(self, folder: Path, timeout: float = 0.0) -> None:
        self._folder, self._timeout = folder, timeout
        self._owner = folder / "write.lock.owner"
        self._threads = threading.Lock()
        self._file = FileLock(folder / "write.lock", thread_local=False)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Take the lock, and release it at the end; the folder is made, and kept out of version control.

        Raises:
            LockedError: Another process has it; the message names that process.
            StorageError: The lock file cannot be written.
        """
        with self._threads:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                if not (ignore := self._folder / ".gitignore").exists():
                    ignore.write_text("# Made by llama-index-contextual.\n*\n", "utf-8")
                self._file.acquire(timeout=self._timeout)
            except Timeout:
                raise LockedError(
                    f"another process is writing the index at {self._folder}: {self._last_writer()}. Cure: wait until "
                    "it ends, or lock_timeout=SECONDS"
                ) from None
            except OSError as error:
                raise StorageError(
                    f"the index at {self._folder} cannot be written ({error.strerror or error}). "
                    "Cure: make the folder writable, or choose another storage folder."
                ) from error
            since, command = datetime.now(timezone.utc).isoformat(timespec="seconds"), " ".join(sys.argv)[:200]
            owner = f"process {os.getpid()} on {socket.gethostname()}, since {since} ({command})"
            with contextlib.suppress(OSError):  # a failure to do so must not stop the writer
                self._owner.write_text(owner, "utf-8", "replace")
            try:
                yield
            finally:
                self._file.release()

    def _last_writer(self) -> str:
        """The process that wrote last."""
        with contextlib.suppress(OSError), self._owner.open(encoding="utf-8", errors="replace") as file:
            return file.read(1000)
        return "an unknown process"
