"""The storage folder of an index: of which documents it is, what is remembered there, and who may write in it.

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
import json
import os
import shlex
import socket
import sys
import threading
import warnings
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filelock import FileLock, Timeout

from llama_index_contextual.app.folder import Folders
from llama_index_contextual.app.index.database import Database
from llama_index_contextual.app.index.rows import IndexState, state_of
from llama_index_contextual.app.settings import loading
from llama_index_contextual.errors import ContextualWarning, DamagedError, LockedError, SettingError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_NAME: Final = ".contextual"
_OF_SEVERAL: Final = {"files.include", "files.exclude", "descriptions"}  # settings of each of several folders


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


def places(folder: str | Path | Mapping[str, Any] | None, storage: str | Path | None) -> tuple[Folders, Layout]:
    """Where the documents are, and the storage."""
    if folder is None and storage is None:
        storage = loading.user_storage()
        named = loading.load_configuration(storage)["collections"]  # of the user's own file and the environment
        if not named:
            raise SettingError("no folder is named, and no storage. Cure: llama-index-contextual index FOLDER")
        return Folders(storage, loading.collections_of(named)), Layout(storage)
    root = None if folder is None or isinstance(folder, Mapping) else Path(folder).expanduser().resolve()
    if storage is not None:
        layout = Layout(Path(storage).expanduser().resolve())
    elif root is not None:
        layout = Layout(root / DEFAULT_NAME)
    else:
        cure = "--storage PLACE, or [collections] in your own config.toml"
        raise SettingError(f"an index of several folders is in none of them. Cure: {cure}")
    layout.refuse_links()
    if root is not None:
        folders = Folders(root)
    else:
        known = {**stored_folders(layout), **(folder if isinstance(folder, Mapping) else {})}
        if not known:
            raise SettingError("does not say of which folder it is. Cure: name the folder too.", storage=str(storage))
        several = loading.collections_of({name: one for name, one in known.items() if name})
        folders = Folders(layout.root if several else Path(known[""].get("path", layout.root)), several)
    if not folders.collections and not folders.root.is_dir():
        what = "a file" if folders.root.is_file() else "no folder"
        raise SettingError(f"is {what}. Cure: name a folder that exists.", folder=str(folder or folders.root))
    if not folders.collections and layout.root == folders.root:
        raise SettingError("is the folder of the documents. Cure: another one, or none.", storage=str(storage))
    return folders, layout


def stored_folders(layout: Layout) -> dict[str, dict[str, Any]]:
    """The folders of an index by its own state; see :attr:`IndexState.folders`."""
    return _stored_state(Database(layout.database, command_line(Folders(layout.root), layout))).folders


def _stored_state(database: Database) -> IndexState:
    """State of an index; of a lost or damaged one the settings that are kept beside it."""
    with contextlib.suppress(DamagedError):
        state = database.state()
        if state.settings:
            return state
    paid = Layout(database.path.parent).paid
    if not paid.is_file():
        return IndexState()
    from llama_index_contextual.app.index.caches import SETTINGS, PaidStore  # slow: a LlamaIndex store

    with contextlib.suppress(StorageError, ValueError):  # of an index that was lost
        kept = PaidStore(paid, database.cure).get("index", SETTINGS)
        return state_of(json.dumps(kept or {}))
    return IndexState()


def remembered(folders: Folders, layout: Layout, database: Database) -> dict[str, Any]:
    """The harmless settings that an index remembers, by key.

    Raises:
        StorageError: It is of another folder.
    """
    state, root = _stored_state(database), folders.root
    cure = "Cure: name that folder or none, or choose another storage folder for this one."
    if state.folders and "" not in state.folders and not folders.collections:
        of = f"several folders ({', '.join(state.folders)}), and not of {root} alone"
        raise StorageError(f"the index in {layout.database} is of {of}. {cure}")
    former = Path(str(state.folders.get("", {}).get("path", root)))
    # A folder that is not there was moved together with its index, or is of another machine.
    if former != root and former.is_dir() and layout.root != root / DEFAULT_NAME:
        raise StorageError(f"the index in {layout.root} is of the folder {former}, not of {root}. {cure}")
    return {key: value for key, value in state.choices.items() if loading.is_harmless(key, value)}


def command_line(folders: Folders, layout: Layout) -> str:
    """The command that refreshes an index, to be pasted into a shell."""
    folder = [] if folders.collections else [str(folders.root)]
    storage = [] if layout.root == folders.root / DEFAULT_NAME else ["--storage", str(layout.root)]
    return shlex.join(["llama-index-contextual", "index", *folder, *storage])


def described(folders: Folders) -> tuple[Folders, dict[str, str]]:
    """Several folders with the file rules of their own configuration, and their descriptions by path."""
    collections = {}
    descriptions: dict[str, str] = {}
    for name, collection in folders.collections.items():
        config = loading.load_configuration(collection.folder)
        values = {key: value for key, value in config.values.items() if config.origins[key] == str(config.file)}
        if others := sorted(values.keys() - _OF_SEVERAL):
            cure = "say it by options or in your own settings"
            text = f"{config.file}: {', '.join(others)} not obeyed in an index of several folders. Cure: {cure}."
            warnings.warn(text, ContextualWarning, stacklevel=4)
        descriptions |= {f"{name}/{key.lstrip('/.')}": text for key, text in values.get("descriptions", {}).items()}
        if collection.description:
            descriptions[f"{name}/"] = collection.description
        include = collection.include or values.get("files.include", ())
        exclude = (*values.get("files.exclude", ()), *collection.exclude)
        collections[name] = collection.model_copy(update={"include": include, "exclude": exclude})
    return replace(folders, collections=collections), descriptions
