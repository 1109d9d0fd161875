"""The places of indexes on disk, the folders that they are of, and the lock of whoever writes.

::

    DATA/                      the user's data directory, or $LLAMA_INDEX_CONTEXTUAL_STORAGE
      content.sqlite3          vectors, contexts and conversions of all folders, by content
      indexes/NAME-HASH/       the index of one folder, by the resolved path of the folder
        index.sqlite3          documents, chunks, vectors and settings
        settings.json          folders and settings, for the case that index.sqlite3 is lost
        cache/                 arrays that are derived from index.sqlite3
        write.lock             locked by the process that writes

An index is never inside the folder that it is of, so a folder that somebody else made brings no
database.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout
from platformdirs import user_data_path

from llama_index_contextual.app.folder.files import read_file
from llama_index_contextual.app.folder.folders import Folders
from llama_index_contextual.app.index.database import Database
from llama_index_contextual.app.index.rows import IndexState
from llama_index_contextual.app.settings.loading import folders_by_name
from llama_index_contextual.utils.errors import (
    ContextualWarning,
    DamagedError,
    DocumentError,
    LockedError,
    SettingError,
    StorageError,
)
from llama_index_contextual.utils.text import absolute_path, short_hash

DATA_VARIABLE: Final = "LLAMA_INDEX_CONTEXTUAL_STORAGE"
IGNORED_NAME: Final = ".contextual"
_PACKAGE: Final = "llama-index-contextual"
_MAX_SETTINGS_BYTES: Final = 1_000_000
_ONLY_THE_USER: Final = 0o700
_UNUSUAL_CHARACTERS: Final = re.compile(r"[^\w.-]+", re.ASCII)
_NAME_LENGTH: Final = 40


def data_folder() -> Path:
    """Return the folder of all indexes of this user."""
    chosen = os.environ.get(DATA_VARIABLE)
    return absolute_path(chosen or user_data_path(_PACKAGE, appauthor=False))


def content_file() -> Path:
    """Return the file that keeps vectors, contexts and conversions of all folders."""
    return data_folder() / "content.sqlite3"


def default_storage(folder: Path) -> Path:
    """Return the place of the index of a folder, unless another one is chosen."""
    resolved = absolute_path(folder)
    name = _UNUSUAL_CHARACTERS.sub("_", resolved.name)[:_NAME_LENGTH]
    return data_folder() / "indexes" / f"{name or 'root'}-{short_hash(os.fsencode(resolved).hex())}"


class Layout:
    """The files of one index; the docstring of this module says what each is for.

    Args:
        root: The storage folder.
        folder: The documents, where they are known.

    Attributes:
        is_default: Whether the storage was not chosen by the user.
        refresh_command: The command that refreshes the index, to be pasted into a shell.
    """

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        self.root = root
        self.cache = root / "cache"
        self.database = root / "index.sqlite3"
        self.settings = root / "settings.json"
        self.is_default = folder is not None and root == default_storage(folder)
        self._threads = threading.Lock()
        self._lock = FileLock(root / "write.lock", thread_local=False)
        command = ["llama-index-contextual", "index"]
        if folder is not None:
            command.append(str(folder))
        if not self.is_default:
            command += ["--storage", str(root)]
        self.refresh_command = shlex.join(command)

    @property
    def fix(self) -> str:
        """Return the command as a sentence; of a first index also what it need not make."""
        run = f"Run: {self.refresh_command}"
        if self.database.exists() or not content_file().exists():
            return run
        return f"If the folder was only renamed, nothing is embedded or paid for again. {run}"

    @property
    def excluded(self) -> Path:
        """Return the folder that is never searched for documents."""
        return data_folder() if self.root.is_relative_to(data_folder()) else self.root

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file and folder of the index."""
        sizes: dict[str, int] = {}
        for file in self.root.rglob("*"):
            name = file.relative_to(self.root).parts[0]
            size = file.stat().st_size if file.is_file() else 0
            sizes[name] = sizes.get(name, 0) + size
        return dict(sorted(sizes.items()))

    def refuse_foreign_parts(self) -> None:
        """Refuse links, pipes and devices, which lead out of the storage, hang or never end.

        Raises:
            StorageError: The storage is one, or contains one, or cannot be read.
        """
        with self._explained("read", "readable"):
            paths = [self.root, *self.root.rglob("*")]
            kinds = [_foreign_kind(path) for path in paths]
        for path, kind in zip(paths, kinds, strict=True):
            if kind:
                raise StorageError(
                    f"{path} is {kind}, which no index contains. "
                    "Remove it, or choose another storage folder."
                )

    def remembered_settings(self) -> dict[str, Any]:
        """Return what ``settings.json`` says; nothing where it is absent or damaged."""
        try:
            values = json.loads(read_file(self.settings, _MAX_SETTINGS_BYTES))
        except (DocumentError, ValueError, RecursionError):
            return {}
        return values if isinstance(values, dict) else {}

    def remember_settings(self, values: Mapping[str, Any]) -> None:
        """Replace ``settings.json``.

        Raises:
            StorageError: It cannot be written.
        """
        text = json.dumps(values)
        temporary = self.settings.with_suffix(".new")
        with self._explained():
            temporary.write_text(text, "utf-8")
            temporary.replace(self.settings)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the write lock, and make the storage folder if there is none.

        The operating system releases the lock when its owner dies. Threads take turns.

        Raises:
            LockedError: Another process holds it.
            StorageError: The lock file cannot be written.
        """
        with self._threads:
            with self._explained():
                self._make_folder()
                try:
                    self._lock.acquire(blocking=False)
                except Timeout:
                    raise LockedError(
                        f"another process is writing the index at {self.root}. Wait until it ends."
                    ) from None
            try:
                yield
            finally:
                self._lock.release()

    def _make_folder(self) -> None:
        if self.is_default:
            # The data folder may have been made by somebody who lets others read it.
            for folder in (data_folder(), self.root.parent, self.root):
                folder.mkdir(mode=_ONLY_THE_USER, parents=True, exist_ok=True)
        self.root.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def _explained(self, action: str = "written", fix: str = "writable") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"the index at {self.root} cannot be {action} ({error.strerror or error}). "
                f"Make the folder {fix}, or choose another storage folder."
            ) from error


def _foreign_kind(path: Path) -> str:
    """Return what a file is that no index contains; "" for a file or a folder."""
    if path.is_symlink():
        return "a symbolic link"
    if path.exists() and not path.is_file() and not path.is_dir():
        return "not a regular file"
    return ""


def places(
    folder: str | Path | Mapping[str, str | Path] | None, storage: str | Path | None
) -> tuple[Folders, Layout, IndexState]:
    """Return the folders of documents, the storage, and what an index there remembers.

    Raises:
        SettingError: A place is wrong.
        StorageError: The storage is of another folder.
    """
    root = None if folder is None or isinstance(folder, Mapping) else absolute_path(folder)
    layout = _layout(root, storage, several=isinstance(folder, Mapping))
    layout.refuse_foreign_parts()
    state = stored_state(layout)
    if root is None:
        named = folder if isinstance(folder, Mapping) else {}
        known = {**state.folders, **named}
        if not known:
            raise SettingError(
                f"`storage` {str(storage)!r} does not say of which folder it is. "
                "Name the folder too."
            )
        by_name = folders_by_name({name: path for name, path in known.items() if name})
        if by_name:
            for named_folder in by_name.values():
                _warn_of_index_inside(named_folder, layout)
            return Folders(layout.root, by_name), layout, state
        root = absolute_path(known[""])
    _check(root, layout, state)
    _warn_of_index_inside(root, layout)
    return Folders(root, {"": root}), layout, state


def _layout(root: Path | None, storage: str | Path | None, *, several: bool) -> Layout:
    if storage is not None:
        return Layout(absolute_path(storage), root)
    if root is not None:
        return Layout(default_storage(root), root)
    if several:
        raise SettingError("an index of several folders needs a place. Add --storage PLACE.")
    raise SettingError(
        "neither a folder nor a storage is named. Run: llama-index-contextual index FOLDER"
    )


def _warn_of_index_inside(folder: Path, layout: Layout) -> None:
    inside = folder / IGNORED_NAME
    if os.path.lexists(inside) and inside != layout.root:
        warnings.warn(
            f"Ignored {inside}: an index inside the folder of its documents is never opened, "
            f"since whoever made the folder may have made it. The index is in {layout.root}.",
            ContextualWarning,
            stacklevel=3,
        )


def _check(root: Path, layout: Layout, state: IndexState) -> None:
    """Refuse a folder that does not exist, and a storage of other folders."""
    storage = layout.root
    fix = "Name that folder or none, or choose another storage folder for this one."
    if not root.is_dir():
        fault = "is not a folder" if root.exists() else "does not exist"
        raise SettingError(f"`folder` must be a folder that exists ({str(root)!r} {fault}).")
    if storage == root:
        raise SettingError(
            f"`storage` must not be the folder of the documents (got {str(storage)!r})."
        )
    if state.folders and "" not in state.folders:
        names = ", ".join(state.folders)
        raise StorageError(
            f"the index in {storage} is of several folders ({names}), not of {root} alone. {fix}"
        )
    former = absolute_path(state.folders.get("", root))
    # A folder that does not exist was moved together with its index, or is of another machine.
    if former != root and former.is_dir() and not layout.is_default:
        raise StorageError(f"the index in {storage} is of {former}, not of {root}. {fix}")


def stored_state(layout: Layout) -> IndexState:
    """Return the state of an index; of a lost or damaged one what ``settings.json`` says."""
    with (
        contextlib.suppress(DamagedError),
        contextlib.closing(Database(layout.database, layout.fix)) as database,
    ):
        state = database.state()
        if state.settings:
            return state
    remembered = layout.remembered_settings()
    with contextlib.suppress(ValueError):
        return IndexState(
            folders=remembered.get("folders", {}), choices=remembered.get("choices", {})
        )
    return IndexState()
