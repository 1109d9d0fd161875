"""An index brought to another store: nodes and vectors are read from the one and written to the other."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from llama_index_contextual.errors import ContextualWarning, SettingError, StorageError
from llama_index_contextual.index.manifest import save_manifest
from llama_index_contextual.index.recipe import sealed, trusted_choices
from llama_index_contextual.index.settings import IndexSettings, Remembered
from llama_index_contextual.index.state import write_atomically

if TYPE_CHECKING:
    from llama_index_contextual.index.manifest import Manifest
    from llama_index_contextual.index.state import Layout
    from llama_index_contextual.index.storage import Storage
    from llama_index_contextual.index.store import Database, NodeStore, Place
    from llama_index_contextual.index.writer import Writer


def move_index(storage: Storage, place: Place) -> int:
    """Copy every node with its vector to another place, and then keep the index there; return how many there are.

    Nothing is embedded. The manifest is changed after the last node is written, and the old nodes are deleted after
    that: until then the index is where it was, and a kill leaves it there. A marker names both places until all is
    done: what a kill leaves in either is known to be of this index, and goes.

    Raises:
        SettingError: It is there already.
        StorageError: Another index is there, or one of the stores cannot be read or written.
    """
    settings, layout = storage.settings, storage.settings.layout
    if place.name == settings.place.name:
        raise SettingError(f"to={place.name!r} is where the index is. Cure: another place.")
    with storage.lock.hold(), storage.writing() as writer:
        database = place.open()
        try:
            moved = _copy(writer, _target(database, place, layout, writer.store.model))
        finally:
            database.close()
        before = writer.manifest.collection
        _mark(layout, place, settings.place)
        save_manifest(layout.manifest, _kept_in(place, writer.manifest, storage.settings))
        storage.reader.announce(complete=writer.manifest.complete)
        storage.reader.close()
    try:
        _leave(storage, before)
        layout.moving.unlink(missing_ok=True)
    except StorageError as error:  # the index has moved all the same
        message = f"the index has moved, and what it left in the old place could not be deleted: {error}"
        warnings.warn(message, ContextualWarning, stacklevel=3)
    return moved


def _target(database: Database, place: Place, layout: Layout, model: str) -> NodeStore:
    """Return an empty collection; what an earlier move that was killed has left in it goes.

    Raises:
        StorageError: It has nodes that no move of this index has written.
    """
    held = place.among(database.names())
    begun = [place.name, place.collection] in _begun(layout)
    if held and not begun and place.folder is None:
        raise StorageError(
            f"{place.name or 'the store'} has a collection {held[0]!r} already. It is unharmed. Cure: another name, by "
            "an address that ends in #NAME."
        )
    _mark(layout, place)
    for name in held:
        database.drop(name)
    return database.collection(place.collection, model)


def _copy(writer: Writer, target: NodeStore) -> int:
    moved = 0
    for rows in writer.store.rows():
        target.upsert(rows)
        moved += len(rows)
    found, wanted = target.count(), writer.store.count()
    if not found == moved == wanted:
        raise StorageError(
            f"{found} of {wanted} chunks arrived, so the index stays where it was. Cure: refresh, then move again."
        )
    return moved


def _kept_in(place: Place, manifest: Manifest, settings: IndexSettings) -> Manifest:
    remembered = Remembered(manifest.choices.copy(), list(manifest.unremembered))
    remembered.remember_place(place)
    choices, unremembered = remembered.choices, remembered.unremembered
    moved = replace(manifest, collection=place.collection, choices=choices, unremembered=unremembered)
    return moved if trusted_choices(manifest, settings.folder)[1] else sealed(moved, settings.layout.root)


def _leave(storage: Storage, collection: str) -> None:
    """Delete what is left in the old place, when no reader of this process uses it."""
    old, layout = storage.settings.place, storage.settings.layout
    if old.folder is not None:
        with storage.lock.hold(), storage.reader.changing_files():
            shutil.rmtree(old.folder, ignore_errors=True)
    else:
        database = old.open()
        database.drop(collection)
        database.close()
    shutil.rmtree(layout.bm25, ignore_errors=True)  # the next refresh makes it again, where the new store needs it


def _mark(layout: Layout, *places: Place) -> None:
    write_atomically(layout.moving, json.dumps([[place.name, place.collection] for place in places]).encode())


def _begun(layout: Layout) -> list[object]:
    """Return the places, as name and collection, in which a move that was killed may have left nodes of this index."""
    try:
        found = json.loads(layout.moving.read_bytes())
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []
