"""The folders of an index, its storage, and what its state has of its settings; without LlamaIndex, which is slow."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index_contextual.app.folder import Folders
from llama_index_contextual.app.settings import loading
from llama_index_contextual.app.store import DEFAULT_NAME, Layout
from llama_index_contextual.app.store.database import Database
from llama_index_contextual.app.store.rows import IndexState, state_of
from llama_index_contextual.errors import DamagedError, SettingError, StorageError

if TYPE_CHECKING:
    from llama_index_contextual.app.settings.schema import Configuration


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
        raise SettingError("is no folder. Cure: name one that exists.", folder=str(folder or folders.root))
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
    from llama_index_contextual.app.store.paid import SETTINGS, PaidStore  # slow: a LlamaIndex store

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


def configuration_of(folder: Path | None, storage: Path | None, read: Callable[[Path], Configuration]) -> Configuration:
    """The configuration of a folder, with the settings that its index remembers."""
    folders, layout = places(folder, storage)
    database = Database(layout.database, command_line(folders, layout))
    with contextlib.closing(database):
        return loading.with_remembered(read(folders.root), remembered(folders, layout, database))
