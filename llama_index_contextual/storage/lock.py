"""One writer at a time, across processes: an operating-system lock whose refusal names the owner.

The kernel frees the lock when its owner dies, however it dies; no stale lock file ever has to be removed by hand.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from llama_index_contextual.errors import LockedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class WriteLock:
    """The write lock of one storage folder; re-entrant within a thread, exclusive between threads and processes.

    Args:
        path: The lock file. Beside it, ``<name>.owner`` says who holds it.
        timeout: Seconds to wait for another *process*; threads of this process simply take turns.
    """

    def __init__(self, path: Path, timeout: float = 0.0) -> None:
        self._path = path
        self._owner = path.with_name(path.name + ".owner")
        self._timeout = timeout
        self._threads = threading.RLock()
        self._file = FileLock(path, thread_local=False)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock; :class:`LockedError` names the process that has it."""
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
                "until it ends; or for several writers use Chroma's server (client=chromadb.HttpClient(...))."
            ) from None
        except OSError as error:
            raise StorageError(
                f"the index at {self._path.parent} cannot be written ({error.strerror or error}). "
                "Cure: make the folder writable, or choose another with storage=."
            ) from error
        if self._file.lock_counter == 1:
            self._write_owner()

    def _write_owner(self) -> None:
        """Say who holds the lock; only a courtesy, so a failure to write it must not stop the writer."""
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
