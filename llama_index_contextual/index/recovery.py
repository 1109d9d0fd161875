"""What a kill, a full disk or a stray deletion can damage, made again from what is left."""

from __future__ import annotations

import contextlib
import logging
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from llama_index.core.utils import iter_batch

from llama_index_contextual.index.chroma_files import is_damage
from llama_index_contextual.index.manifest import (
    Entry,
    Manifest,
    count_contexts,
    load_manifest,
    nodes_digest,
    save_manifest,
)
from llama_index_contextual.index.places import EMBEDDED
from llama_index_contextual.index.state import DEFAULT_COLLECTION
from llama_index_contextual.index.store import KIND, DamagedError, Row, to_node
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from llama_index_contextual.index.pipeline import Fingerprint
    from llama_index_contextual.index.state import Layout
    from llama_index_contextual.index.store import Database, NodeStore, Place, Stored
    from llama_index_contextual.index.vectors import Vectorizer
    from llama_index_contextual.index.writer import Writer

logger = logging.getLogger(__name__)

_BATCH: Final = 256


def next_name(collection: str) -> str:
    """Return the name of a collection that replaces another: ``contextual``, ``contextual-2``, ``contextual-3``."""
    base, _, number = collection.rpartition("-")
    return f"{base}-{int(number) + 1}" if base and number.isdigit() else f"{collection}-2"


def recovered_manifest(place: Place) -> Manifest | None:
    """Return what a store says about an index whose manifest is lost; None where it holds none.

    Content hashes are unknown, so the next refresh reads every file again; ids are the same, so it embeds nothing.
    """
    database = place.open()
    try:
        name = newest(place, database.names(), database)
        return _manifest_of(place, database.collection(name, create=False)) if name else None
    finally:
        database.close()


def adopted(place: Place, manifest: Manifest) -> Manifest | None:
    """Return what other machines have put on a server, where a manifest knows nothing of it; None where it knows.

    That is so where this machine writes for the first time, and where another one has replaced the collection.
    """
    names = place.among(place.open().names())
    unknown = not manifest.fingerprint or manifest.collection not in names
    return recovered_manifest(place) if names and unknown else None


def newest(place: Place, names: Sequence[str], database: Database | None = None) -> str:
    """Return the collection of an index that holds the most, "" where there is none: a successor may be half made."""
    own = place.among(names)
    if len(own) < 2:  # noqa: PLR2004
        return own[0] if own else ""
    database = database or place.open()
    return max(own, key=lambda name: (database.collection(name, create=False).count(), name))


def _manifest_of(place: Place, store: NodeStore) -> Manifest:
    entries: dict[str, list[Stored]] = {}
    for stored in store.all():
        entries.setdefault(stored.entry, []).append(stored)
    return Manifest(
        collection=store.name,
        fingerprint={"embedding": {"model": store.model}} if store.model else {},
        complete=False,
        documents={entry: entry_of(nodes) for entry, nodes in entries.items()},
        choices={} if place.name in ("", EMBEDDED) else {"vector_store": place.name},
        unremembered=[] if place.name else ["vector_store"],
    )


def entry_of(nodes: Sequence[Stored], made_with: str = "") -> Entry:
    """Return the manifest's entry of a document of which only the stored nodes are known."""
    return Entry(
        sha256="",
        made_with=made_with,
        kind=str(nodes[0].metadata.get(KIND, "document")) if nodes else "file",
        nodes=len(nodes),
        digest=nodes_digest({node.id: node.embed_hash for node in nodes}),
        contexts=count_contexts(node.metadata for node in nodes),
    )


def reconcile(manifest: Manifest, store: NodeStore) -> Manifest:
    """Return a manifest that fits the store after a kill between a write to the store and one to the manifest.

    A document whose nodes are not those that were recorded loses its content hash, so that the next refresh makes it
    again; one given by hand whose nodes are gone was being deleted, and goes.
    """
    nodes: dict[str, list[Stored]] = {}
    for stored in store.all():
        nodes.setdefault(stored.entry, []).append(stored)
    documents = dict(manifest.documents)
    for key, entry in manifest.documents.items():
        held = nodes.get(key, [])
        if nodes_digest({node.id: node.embed_hash for node in held}) == entry.digest:
            continue
        if held or entry.kind == "file":
            documents[key] = replace(entry_of(held), kind=entry.kind)
        else:
            del documents[key]
    documents |= {key: entry_of(held) for key, held in nodes.items() if key not in documents}
    return replace(manifest, documents=documents)


def rebuild(
    layout: Layout,
    manifest: Manifest,
    vectors: Vectorizer,
    changing: Callable[[], AbstractContextManager[None]],
) -> None:
    """Make a collection anew whose vector files are damaged: its texts are in SQLite, its vectors in our cache.

    The manifest is changed last; a kill before that leaves the old state, which is found damaged and rebuilt again.
    Where the texts cannot be read either, Chroma's folder is set aside, and every file is indexed again.

    Args:
        layout: The storage.
        manifest: Of the index.
        vectors: Gives rows their vectors.
        changing: Keeps readers from opening Chroma's files for the time of a change; not for the time of all, in which
            every text may have to be embedded.
    """
    try:
        with changing():
            from llama_index_contextual.index.chroma import without_vector_files

            database = without_vector_files(layout.chroma, manifest.collection)
        with contextlib.closing(database):
            _copy(database, layout, manifest, vectors, changing)
    except Exception as error:
        if not isinstance(error, DamagedError) and not is_damage(error):
            raise
        _start_afresh(layout, manifest, error)


def _copy(
    database: Database,
    layout: Layout,
    manifest: Manifest,
    vectors: Vectorizer,
    changing: Callable[[], AbstractContextManager[None]],
) -> None:
    old = database.collection(manifest.collection, create=False)
    name = next_name(manifest.collection)
    database.drop(name)  # of a rebuild that was killed
    new = database.collection(name, old.model)
    embedded = 0
    for batch in iter_batch(old.all_with_text(), _BATCH):
        rows = _rows(batch)
        embedded += vectors.embed_all(rows)
        with changing():
            new.upsert(rows)
    save_manifest(layout.manifest, replace(manifest, collection=name, complete=False))
    with changing():  # a reader may just be opening it
        database.drop(old.name)
    again = f"{counted(embedded, 'text')} {'was' if embedded == 1 else 'were'} embedded again"
    logger.warning("Chroma's vector files were damaged and have been rebuilt; %s.", again)


def _start_afresh(layout: Layout, manifest: Manifest, error: Exception) -> None:
    """Set a Chroma folder aside that cannot be read at all; files are indexed again, their vectors are cached."""
    aside = layout.root / f"chroma.damaged-{manifest.generation}"
    shutil.rmtree(aside, ignore_errors=True)
    layout.chroma.rename(aside)
    logger.warning(
        "%s It has been set aside as %s; files are indexed again, with cached vectors.%s",
        error,
        aside.name,
        given_by_hand(manifest),
    )
    save_manifest(layout.manifest, replace(manifest, collection=DEFAULT_COLLECTION, complete=False, documents={}))


def given_by_hand(manifest: Manifest) -> str:
    """Return a sentence that names the documents which no file can replace, or ""."""
    lost = sorted(key for key, entry in manifest.documents.items() if entry.kind == "document")
    return f" These documents were given by hand and have to be given again: {', '.join(lost)}." if lost else ""


def _rows(batch: Sequence[tuple[Stored, str]]) -> list[Row]:
    """Return stored nodes as rows on their way into another collection."""
    return [Row(to_node(item, text), dict(item.metadata)) for item, text in batch]


def start_successor(
    layout: Layout, database: Database, manifest: Manifest, fingerprint: Fingerprint
) -> tuple[Manifest, NodeStore]:
    """Return manifest and collection of an index that is to replace another; those of one that was begun go on."""
    begun = load_manifest(layout.building)
    if begun is not None and begun.fingerprint.get("embedding") != fingerprint.embedding:
        database.drop(begun.collection)
        begun = None
    if begun is None:
        name = next_name(manifest.collection)
        database.drop(name)
        begun = Manifest(collection=name, fingerprint=fingerprint.to_dict(), complete=False)
        save_manifest(layout.building, begun)
    return begun, database.collection(begun.collection, str(fingerprint.embedding["model"]))


def complete_successor(layout: Layout, database: Database, manifest: Manifest, writer: Writer) -> None:
    """Bring what was given by hand into a finished successor, and let it take the index's place."""
    old = database.collection(manifest.collection, create=False)
    missing = {
        key: entry
        for key, entry in manifest.documents.items()
        if entry.kind == "document" and key not in writer.manifest.documents
    }
    wanted = ((stored, text) for stored, text in old.all_with_text() if stored.entry in missing)
    for batch in iter_batch(wanted, _BATCH):
        rows = _rows(batch)
        writer.vectors.embed_all(rows)
        writer.write(rows)  # as every other node of the successor: while no reader opens Chroma's files
    writer.record(dict(missing))
    writer.commit(complete=True)
    save_manifest(layout.manifest, writer.manifest)
    layout.building.unlink(missing_ok=True)
