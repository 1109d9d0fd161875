"""The places of indexes on disk, the folders that they index, and their write locks.

::

    DATA/                      the user's data directory, or $LLAMA_INDEX_CONTEXTUAL_STORAGE
      content.sqlite3          vectors, contexts and conversions for all folders, by content
      indexes/NAME-HASH/       the index of one folder, by its resolved path
        index.sqlite3          documents, chunks, vectors and settings
        settings.json          folders and settings, in case index.sqlite3 is lost
        cache/                 arrays derived from index.sqlite3
        write.lock             locked by the process that writes

An index is never stored inside the folder that it indexes. Otherwise a folder from somebody else
could contain a forged database.
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
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_data_path

from llama_index_contextual.app.folder.files import read_file
from llama_index_contextual.app.folder.folders import Folders
from llama_index_contextual.app.folder.walk import INDEX_FOLDER
from llama_index_contextual.app.index.database import Database
from llama_index_contextual.app.index.rows import IndexState
from llama_index_contextual.app.settings.loading import APPLICATION, folders_by_name
from llama_index_contextual.utils.errors import (
    ContextualWarning,
    DamagedError,
    DocumentError,
    LockedError,
    SettingError,
    StorageError,
)
from llama_index_contextual.utils.text import absolute_path, short_hash

DATA_VARIABLE = "LLAMA_INDEX_CONTEXTUAL_STORAGE"
_MAX_SETTINGS_BYTES = 1_000_000
ONLY_THE_USER = 0o700  # permissions of a folder
_UNUSUAL_CHARACTERS = re.compile(r"[^\w.-]+", re.ASCII)
_NAME_LENGTH = 40


def data_folder() -> Path:
    """Return the folder that contains all indexes of this user."""
    chosen = os.environ.get(DATA_VARIABLE)
    return absolute_path(chosen or user_data_path(APPLICATION, appauthor=False))


def content_file() -> Path:
    """Return the file that caches vectors, contexts and conversions for all folders."""
    return data_folder() / "content.sqlite3"


def default_storage(folder: Path) -> Path:
    """Return the storage folder that the index of a folder has by default."""
    resolved = absolute_path(folder)
    name = _UNUSUAL_CHARACTERS.sub("_", resolved.name)[:_NAME_LENGTH]
    return data_folder() / "indexes" / f"{name or 'root'}-{short_hash(os.fsencode(resolved).hex())}"


class Layout:
    """The files of one index, which the docstring of this module describes.

    Args:
        root: The storage folder.
        folder: The folder of the documents, if it is known.

    Attributes:
        is_default: Whether the storage folder is the default for the folder of the documents.
        refresh_command: The shell command that refreshes the index.
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
        """Return a hint with the command; for a first index, also that the cache saves costs."""
        run = f"Run: {self.refresh_command}"
        if self.database.exists() or not content_file().exists():
            return run
        return f"If the folder was only renamed, nothing is embedded or paid for again. {run}"

    @property
    def excluded(self) -> Path:
        """Return the folder in which no documents are searched."""
        return data_folder() if self.root.is_relative_to(data_folder()) else self.root

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each file and folder of the index."""
        sizes: dict[str, int] = {}
        for file in self.root.rglob("*"):
            name = file.relative_to(self.root).parts[0]
            size = file.stat().st_size if file.is_file() else 0
            sizes[name] = sizes.get(name, 0) + size
        return dict(sorted(sizes.items()))

    def refuse_foreign_parts(self) -> None:
        """Refuse links, pipes and devices, which could lead elsewhere, block or never end.

        Raises:
            StorageError: The storage is or contains one of them, or cannot be read.
        """
        with self._explained("read", "readable"):
            paths = [self.root, *self.root.rglob("*")]
            kinds = [_foreign_kind(path) for path in paths]
        for path, kind in zip(paths, kinds, strict=True):
            if kind:
                raise StorageError(
                    f"{path} is {kind}, which does not belong in an index. "
                    "Remove it, or choose another storage folder."
                )

    def remembered_settings(self) -> dict[str, Any]:
        """Return the contents of ``settings.json``, empty if it is missing or damaged."""
        try:
            values = json.loads(read_file(self.settings, _MAX_SETTINGS_BYTES))
        except (DocumentError, ValueError, RecursionError):
            return {}
        return values if isinstance(values, dict) else {}

    def remember_settings(self, values: Mapping[str, Any]) -> None:
        """Replace ``settings.json``.

        Raises:
            StorageError: The file cannot be written.
        """
        text = json.dumps(values)
        temporary = self.settings.with_suffix(".new")
        with self._explained():
            temporary.write_text(text, "utf-8")
            temporary.replace(self.settings)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the write lock, and create the storage folder if it does not exist.

        The operating system releases the lock when the process ends. Threads take turns.

        Raises:
            LockedError: Another process holds the lock.
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
            # Each folder gets these permissions, because others may be able to read its parent.
            for folder in (data_folder(), self.root.parent, self.root):
                folder.mkdir(mode=ONLY_THE_USER, parents=True, exist_ok=True)
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
    """Return the kind of a path that is neither a regular file nor a folder; else ""."""
    if path.is_symlink():
        return "a symbolic link"
    if path.exists() and not path.is_file() and not path.is_dir():
        return "not a regular file"
    return ""


def places(
    folder: str | Path | Mapping[str, str | Path] | None, storage: str | Path | None
) -> tuple[Folders, Layout, IndexState]:
    """Return the folders of documents, the storage, and the state of an index there.

    Raises:
        SettingError: A folder is not valid.
        StorageError: The storage belongs to another folder.
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
                f"`storage` {str(storage)!r} does not say which folder it belongs to. "
                "Name the folder, too."
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
        raise SettingError(
            "an index of several folders needs a storage folder. Add --storage PLACE."
        )
    raise SettingError(
        "neither `folder` nor `storage` is set. Run: llama-index-contextual index FOLDER"
    )


def _warn_of_index_inside(folder: Path, layout: Layout) -> None:
    inside = folder / INDEX_FOLDER
    if os.path.lexists(inside) and inside != layout.root:
        warnings.warn(
            f"Ignored {inside}: an index inside the folder of its documents is never opened, "
            f"because it may be forged. The index is in {layout.root}.",
            ContextualWarning,
            stacklevel=3,
        )


def _check(root: Path, layout: Layout, state: IndexState) -> None:
    """Refuse a folder that does not exist, and a storage that belongs to other folders."""
    storage = layout.root
    fix = "Name that folder or none, or choose another storage folder."
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
            f"the index in {storage} belongs to the folders {names}, not to {root} alone. {fix}"
        )
    former = absolute_path(state.folders.get("", root))
    # If the former folder is missing, it was moved with its index, or was on another machine.
    if former != root and former.is_dir() and not layout.is_default:
        raise StorageError(f"the index in {storage} belongs to {former}, not to {root}. {fix}")


def stored_state(layout: Layout) -> IndexState:
    """Return the state of an index, or that in ``settings.json`` if it is lost or damaged."""
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
