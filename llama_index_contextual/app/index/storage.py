"""The storage folder of an index: of which documents it is, what is remembered there, and who may write in it.

::

    .contextual/
      index.sqlite3   documents, chunks, settings, revision            rebuilt from the files for nothing
      paid.sqlite3    vectors, contexts, conversions by hash           what cost money or minutes; never deleted by us
      cache/          arrays of BM25 and vectors, and their revision   may be deleted at any time
      write.lock      held by the process that writes, for as long as it does
      .gitignore      keeps the folder out of version control
"""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from llama_index_contextual.app.folder import Folders
from llama_index_contextual.app.index.database import Database
from llama_index_contextual.app.index.rows import IndexState
from llama_index_contextual.app.settings.loading import collections_of
from llama_index_contextual.app.settings.registry import Collection
from llama_index_contextual.utils.errors import (
    DamagedError,
    LockedError,
    SettingError,
    StorageError,
)
from llama_index_contextual.utils.text import absolute_path

DEFAULT_NAME: Final = ".contextual"


class Layout:
    """Paths below one storage folder; the docstring of this module says what each is for.

    Args:
        root: The storage folder.
        folder: The documents, where they are known.

    Attributes:
        cure: The command that refreshes the index, to be pasted into a shell.
    """

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        self.root, self.cache = root, root / "cache"
        self.database, self.paid = root / "index.sqlite3", root / "paid.sqlite3"
        self._threads, self._file = (
            threading.Lock(),
            FileLock(root / "write.lock", thread_local=False),
        )
        named = [] if folder is None else [str(folder)]
        where = (
            [] if folder is not None and root == folder / DEFAULT_NAME else ["--storage", str(root)]
        )
        self.cure = shlex.join(["llama-index-contextual", "index", *named, *where])

    def sizes(self) -> dict[str, int]:
        """The bytes of each thing in the folder."""
        sizes: dict[str, int] = {}
        for file in self.root.rglob("*"):
            name = file.relative_to(self.root).parts[0]
            sizes[name] = sizes.get(name, 0) + (file.stat().st_size if file.is_file() else 0)
        return dict(sorted(sizes.items()))

    def refuse_foreign_parts(self) -> None:
        """Refuse links, pipes and devices: somebody else's folder would lead out of it, hang, or never end.

        Raises:
            StorageError: The folder is one, or one is in it.
        """
        for path in (self.root, *self.root.rglob("*")):
            if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
                what = "a symbolic link" if path.is_symlink() else "no regular file"
                raise StorageError(
                    f"{path} is {what}, and no part of an index. Cure: remove it, or another storage"
                )

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Take the write lock, and release it at the end; the folder is made, and kept out of version control.

        It is a lock of the operating system, which frees it when its owner dies. Threads of this process take turns.

        Raises:
            LockedError: Another process has it.
            StorageError: The lock file cannot be written.
        """
        with self._threads:
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                if not (ignore := self.root / ".gitignore").exists():
                    ignore.write_text("# Made by llama-index-contextual.\n*\n", "utf-8")
                self._file.acquire(blocking=False)
            except Timeout:
                raise LockedError(
                    f"another process is writing the index at {self.root}. Cure: wait until it ends"
                ) from None
            except OSError as error:
                raise StorageError(
                    f"the index at {self.root} cannot be written ({error.strerror or error}). "
                    "Cure: make the folder writable, or choose another storage folder."
                ) from error
            try:
                yield
            finally:
                self._file.release()


def places(
    folder: str | Path | Mapping[str, Any] | None, storage: str | Path | None
) -> tuple[Folders, Layout, IndexState]:
    """Where the documents are, the storage, and what an index there remembers.

    Raises:
        SettingError: A place is wrong.
        StorageError: The storage is of another folder.
    """
    root = None if folder is None or isinstance(folder, Mapping) else absolute_path(folder)
    if storage is not None:
        layout = Layout(absolute_path(storage), root)
    elif root is not None:
        layout = Layout(root / DEFAULT_NAME, root)
    else:
        several = "an index of several folders is in none of them. Cure: --storage PLACE"
        none = "no folder is named, and no storage. Cure: llama-index-contextual index FOLDER"
        raise SettingError(none if folder is None else several)
    layout.refuse_foreign_parts()
    state = stored_state(layout)
    if root is None:
        known = {**state.folders, **(folder if isinstance(folder, Mapping) else {})}
        if not known:
            raise SettingError(
                f"`storage` {str(storage)!r} does not say of which folder it is. Name the folder too."
            )
        if collections := collections_of({name: one for name, one in known.items() if name}):
            return Folders(layout.root, collections), layout, state
        root = Path(known[""].get("path", layout.root))
    _check(root, layout.root, state)
    return Folders(root, {"": Collection(path=root)}), layout, state


def _check(root: Path, storage: Path, state: IndexState) -> None:
    """Refuse a folder that is none, and a storage that cannot be of this folder alone."""
    cure = "Cure: name that folder or none, or choose another storage folder for this one."
    if not root.is_dir():
        what = "a file" if root.is_file() else "no folder"
        raise SettingError(f"`folder` must be a folder that exists ({str(root)!r} is {what}).")
    if storage == root:
        raise SettingError(
            f"`storage` must not be the folder of the documents (got {str(storage)!r})."
        )
    if state.folders and "" not in state.folders:
        of = f"several folders ({', '.join(state.folders)}), and not of {root} alone"
        raise StorageError(f"the index in {storage} is of {of}. {cure}")
    former = Path(str(state.folders.get("", {}).get("path", root)))
    # A folder that is not there was moved together with its index, or is of another machine.
    if former != root and former.is_dir() and storage != root / DEFAULT_NAME:
        raise StorageError(
            f"the index in {storage} is of the folder {former}, not of {root}. {cure}"
        )


def stored_state(layout: Layout) -> IndexState:
    """State of an index; of a lost or damaged one the settings that are kept beside it."""
    with (
        contextlib.suppress(DamagedError),
        contextlib.closing(Database(layout.database, layout.cure)) as database,
    ):
        state = database.state()
        if state.settings:
            return state
    if layout.paid.is_file():
        from llama_index_contextual.app.index.caches import (
            SETTINGS,
            PaidStore,
        )  # slow: a LlamaIndex store

        with (
            contextlib.suppress(StorageError, ValueError),
            contextlib.closing(PaidStore(layout.paid, layout.cure)) as paid,
        ):
            return IndexState(**paid.get("index", SETTINGS) or {})
    return IndexState()
