"""What a kill, a full disk or a stray deletion can damage, made again from what is left."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from llama_index_contextual.index.chroma import (
    KIND,
    MODEL,
    DamagedError,
    NodeStore,
    Row,
    drop_collection,
    open_client,
    to_node,
    vector_segment,
)
from llama_index_contextual.index.state import (
    Entry,
    Manifest,
    count_contexts,
    load_manifest,
    nodes_digest,
    save_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from chromadb.api import ClientAPI

    from llama_index_contextual.index.chroma import Stored
    from llama_index_contextual.index.pipeline import Fingerprint
    from llama_index_contextual.index.state import Layout
    from llama_index_contextual.index.vectors import Vectorizer
    from llama_index_contextual.index.writer import Writer

logger = logging.getLogger(__name__)

DEFAULT_COLLECTION: Final = "contextual"
_BATCH: Final = 256


def next_name(collection: str) -> str:
    """The name of a collection that replaces another: ``contextual``, ``contextual-2``, ``contextual-3``."""
    base, _, number = collection.rpartition("-")
    return f"{base}-{int(number) + 1}" if base and number.isdigit() else f"{collection}-2"


def recovered_manifest(folder: Path) -> Manifest | None:
    """What Chroma's folder says about an index whose manifest is lost; None where it holds none.

    Content hashes are unknown, so the next refresh reads every file again; ids are the same, so it embeds nothing.
    """
    client = open_client(folder)
    try:
        return _manifest_of(client)
    finally:
        cast("Any", client).close()


def _manifest_of(client: ClientAPI) -> Manifest | None:
    names = [collection.name for collection in client.list_collections()]
    stores = [NodeStore(client, name) for name in names if name.startswith(DEFAULT_COLLECTION)]
    if not stores:
        return None
    store = max(stores, key=lambda store: (store.count(), store.name))
    entries: dict[str, list[Stored]] = {}
    for stored in store.all():
        entries.setdefault(stored.entry, []).append(stored)
    model = (store.collection.metadata or {}).get(MODEL)
    return Manifest(
        collection=store.name,
        fingerprint={"embedding": {"model": model}} if model else {},
        complete=False,
        documents={entry: entry_of(nodes) for entry, nodes in entries.items()},
    )


def entry_of(nodes: Sequence[Stored], made_with: str = "") -> Entry:
    """The manifest's entry of a document of which only the stored nodes are known."""
    return Entry(
        sha256="",
        made_with=made_with,
        kind=str(nodes[0].metadata.get(KIND, "document")) if nodes else "file",
        nodes=len(nodes),
        digest=nodes_digest({node.id: node.embed_hash for node in nodes}),
        contexts=count_contexts(node.metadata for node in nodes),
    )


def reconcile(manifest: Manifest, store: NodeStore) -> Manifest:
    """A manifest that fits the store after a kill: what was written and not recorded, or deleted and still recorded.

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
) -> Manifest:
    """Make a collection anew whose vector files are damaged: its texts are in SQLite, its vectors in our cache.

    The manifest is changed last; a kill before that leaves the old state, which is found damaged and rebuilt again.

    Args:
        layout: The storage.
        manifest: Of the index.
        vectors: Gives rows their vectors.
        changing: Keeps readers from opening Chroma's files for the time of a change; not for the time of all, in which
            every text may have to be embedded.
    """
    try:
        client = open_client(layout.chroma)
    except DamagedError as error:
        return _start_afresh(layout, manifest, error)
    segment = vector_segment(layout.chroma, client, manifest.collection)
    if segment is not None:
        cast("Any", client).close()
        with changing():
            shutil.rmtree(segment)  # without it Chroma reads the rest; what it held cannot be read any more
        client = open_client(layout.chroma)
    try:
        old = NodeStore(client, manifest.collection)
        name = next_name(manifest.collection)
        drop_collection(client, name)  # of a rebuild that was killed
        new = NodeStore(client, name, str((old.collection.metadata or {}).get(MODEL, "")))
        embedded = 0
        for batch in _batches(old.all_with_text()):
            rows = _rows(batch)
            embedded += vectors.embed_all(rows)
            with changing():
                new.upsert(rows)
        rebuilt = replace(manifest, collection=name, complete=False)
        save_manifest(layout.manifest, rebuilt)
        with changing():  # a reader may just be opening it
            drop_collection(client, old.name)
    finally:
        cast("Any", client).close()
    logger.warning("Chroma's vector files were damaged and have been rebuilt; %d texts were embedded again.", embedded)
    return rebuilt


def _start_afresh(layout: Layout, manifest: Manifest, error: DamagedError) -> Manifest:
    """Set a Chroma folder aside that cannot be opened at all; files are indexed again, their vectors are cached."""
    aside = layout.root / f"chroma.damaged-{manifest.generation}"
    shutil.rmtree(aside, ignore_errors=True)
    layout.chroma.rename(aside)
    lost = sorted(key for key, entry in manifest.documents.items() if entry.kind == "document")
    logger.warning(
        "%s It has been set aside as %s; the next refresh indexes every file again, with cached vectors.%s",
        error,
        aside.name,
        f" These documents were given by hand and have to be given again: {', '.join(lost)}." if lost else "",
    )
    fresh = replace(manifest, collection=DEFAULT_COLLECTION, complete=False, documents={})
    save_manifest(layout.manifest, fresh)
    return fresh


def _rows(batch: Sequence[tuple[Stored, str]]) -> list[Row]:
    """Stored nodes on their way into another collection."""
    return [Row(to_node(item, text), dict(item.metadata)) for item, text in batch]


def _batches(items: Iterable[tuple[Stored, str]]) -> Iterator[list[tuple[Stored, str]]]:
    iterator = iter(items)
    while batch := list(islice(iterator, _BATCH)):
        yield batch


def start_successor(
    layout: Layout, client: ClientAPI, manifest: Manifest, fingerprint: Fingerprint
) -> tuple[Manifest, NodeStore]:
    """Manifest and collection of an index that is to replace another; those of one that was begun go on."""
    begun = load_manifest(layout.building)
    if begun is not None and begun.fingerprint.get("embedding") != fingerprint.embedding:
        drop_collection(client, begun.collection)
        begun = None
    if begun is None:
        name = next_name(manifest.collection)
        drop_collection(client, name)
        begun = Manifest(collection=name, fingerprint=fingerprint.as_dict(), complete=False)
        save_manifest(layout.building, begun)
    return begun, NodeStore(client, begun.collection, str(fingerprint.embedding["model"]))


def complete_successor(layout: Layout, client: ClientAPI, manifest: Manifest, writer: Writer) -> None:
    """Bring what was given by hand into a finished successor, and let it take the index's place."""
    old = NodeStore(client, manifest.collection)
    missing = {
        key: entry
        for key, entry in manifest.documents.items()
        if entry.kind == "document" and key not in writer.manifest.documents
    }
    wanted = ((stored, text) for stored, text in old.all_with_text() if stored.entry in missing)
    for batch in _batches(wanted):
        rows = _rows(batch)
        writer.vectors.embed_all(rows)
        writer.write(rows)  # as every other node of the successor: while no reader opens Chroma's files
    writer.record(dict(missing))
    writer.commit(complete=True)
    save_manifest(layout.manifest, writer.manifest)
    layout.building.unlink(missing_ok=True)
