"""The storage folder of an index, who may write in it, and what is true of the whole index.

::

    .contextual/
      index.sqlite3   the index: documents, nodes, vectors, contexts that were paid for, settings
      keywords/       the keyword engine, derived from the nodes
      matrix/         the vectors once more, to be compared with a question one by one, derived from the database
      write.lock      held by the process that writes, for as long as it does (write.lock.owner says who it is)
      .gitignore      keeps the folder out of version control

What is derived can be deleted at any time: the next refresh, or a question in memory, derives it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import threading
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from filelock import FileLock, Timeout
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError

from llama_index_contextual.app.index.tables import LAYOUT, check_layout
from llama_index_contextual.errors import LockedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_NAME: Final = ".contextual"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below one storage folder; the docstring of this module says what each is for."""

    root: Path

    @property
    def database(self) -> Path:
        """Return the path of the database."""
        return self.root / "index.sqlite3"

    @property
    def lock(self) -> Path:
        """Return the path of the write lock."""
        return self.root / "write.lock"

    def strange(self) -> list[str]:
        """Return the names in the folder that are not an index's; what a damaged index left is one's own."""
        ours = [".gitignore", "keywords", "matrix", "index.sqlite3", "write.lock"]
        ours += [DEFAULT_NAME, "questions.jsonl"]  # of several folders, what their page writes
        return sorted(path.name for path in self.root.iterdir() if not path.name.startswith(tuple(ours)))

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each thing in the folder."""
        sizes: dict[str, int] = {}
        for path in self.root.iterdir() if self.root.is_dir() else ():
            files = (file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
            sizes[path.name] = sum(file.stat().st_size for file in files)
        return dict(sorted(sizes.items()))

    def remove(self) -> None:
        """Delete the folder; what readers of Windows have open stays."""
        shutil.rmtree(self.root, ignore_errors=True)

    def create(self) -> None:
        """Make the folder, and keep it out of version control.

        Raises:
            StorageError: The folder cannot be made.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            ignore = self.root / ".gitignore"
            if not ignore.exists():
                ignore.write_text("# Made by llama-index-contextual.\n*\n", "utf-8")
        except OSError as error:
            raise StorageError(
                f"the index cannot be kept in {self.root} ({error.strerror}). Cure: make it writable, or choose "
                "another storage folder."
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
                    "where it leads as the storage folder."
                )


def _names_its_model(fingerprint: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Refuse settings that do not say whose vectors an index holds: they are damaged."""
    if fingerprint.get("embedding") and "model" not in fingerprint["embedding"]:
        raise ValueError("the embedding has no model")
    return fingerprint


def _names_its_folders(choices: dict[str, Any]) -> dict[str, Any]:
    """Refuse several folders that are no folders; other values are checked where they are used."""
    folders = choices.get("collections", {})
    if not isinstance(folders, dict) or not all(isinstance(one, dict) for one in folders.values()):
        raise ValueError("its folders are none")
    return choices


@dataclass(frozen=True, slots=True)
class IndexState:
    """What is true of the whole index.

    Attributes:
        settings: By section, as :attr:`IndexSettings.fingerprint` has them; empty before anything was indexed.
        choices: The settings that were asked for, by their keys in ``contextual.toml``, so that they are said once.
        objects: What was an object in Python, by its argument, and its class; who does not give it again cannot write.
        folder: Of the documents.
        complete: False while a refresh is at work or was killed.
        change: Grows with every write, and is the highest number that a node ever had, or higher.
        edition: Which of its editions readers see.
        next: The settings of the edition that is to replace it; empty where there is none.
        identity: Tells it from all others.
        layout: Version of the tables.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    settings: Annotated[dict[str, dict[str, Any]], AfterValidator(_names_its_model)] = field(default_factory=dict)
    choices: Annotated[dict[str, Any], AfterValidator(_names_its_folders)] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    complete: bool = True
    change: int = 0
    edition: int = 0
    next: dict[str, dict[str, Any]] = field(default_factory=dict)
    identity: str = ""
    layout: int = LAYOUT

    @property
    def model(self) -> str:
        """Return the identity of the embedding model; "" where nothing was indexed."""
        return str((self.settings.get("embedding") or {}).get("model", ""))

    def written(self) -> dict[str, Any]:
        """Return what a writer writes down of it; the rest the database counts itself."""
        return {name: getattr(self, name) for name in ("settings", "choices", "objects", "folder", "layout")}


_ALWAYS: Final = {"layout", "identity", "change", "edition"}  # what a database says of itself from its beginning
_STATE: Final = TypeAdapter(IndexState)


def state_of(values: Mapping[str, Any]) -> IndexState:
    """Return the state that a database holds, given its table ``state``.

    Raises:
        ValueError: It makes no sense.
        TypeError: It is no JSON.
        RecursionError: It is nested too deeply.
    """
    try:
        return _STATE.validate_json(json.dumps(dict(values)))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        raise ValueError(f"{place}{': ' * bool(place)}{fault['msg']}") from error


@lru_cache(maxsize=8)  # most questions find the index as the one before found it
def state_of_rows(name: str, *rows: tuple[str, str]) -> IndexState:
    """Return the state that a database holds.

    Args:
        name: Of the database.
        *rows: Of its table ``state``: a key, and a value as JSON.

    Raises:
        DamagedError: It is of an earlier layout.
        StorageError: A newer version of this package made it.
        ValueError: It makes no sense.
        TypeError: It is no JSON.
        RecursionError: It is nested too deeply.
    """
    values = {key: json.loads(value) for key, value in rows}
    check_layout(values.get("layout"), name)
    if not values.keys() >= _ALWAYS:
        raise ValueError("it has no identity")
    return state_of(values)


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
                "until it ends, or lock_timeout=SECONDS"
            ) from None
        except OSError as error:
            raise StorageError(
                f"the index at {self._path.parent} cannot be written ({error.strerror or error}). "
                "Cure: make the folder writable, or choose another storage folder."
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

    def other_writer(self) -> str:
        """Return which other process of this machine wrote last, if it still runs; "" where none does.

        To try the lock itself would keep a writer out that comes at this moment.
        """
        try:
            owner = json.loads(self._owner.read_text(encoding="utf-8"))
            if owner["host"] != socket.gethostname() or owner["pid"] == os.getpid():
                return ""
            if os.name == "nt":  # where this would send a signal
                return ""
            os.kill(owner["pid"], 0)
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return ""
        return self._describe_owner()

    def _describe_owner(self) -> str:
        try:
            owner = json.loads(self._owner.read_text(encoding="utf-8"))
            return f"process {owner['pid']} on {owner['host']}, since {owner['since']} ({owner['command']})"
        except (OSError, ValueError, KeyError, TypeError):
            return "an unknown process"
