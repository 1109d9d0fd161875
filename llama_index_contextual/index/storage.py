"""The storage of one index: who reads it, who writes it, and what is mended before a write."""

from __future__ import annotations

import contextlib
import logging
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from llama_index_contextual.embedding import model_id
from llama_index_contextual.errors import ContextualError, FingerprintError, LockedError, StorageError
from llama_index_contextual.index.manifest import Manifest, ManifestDamagedError, load_manifest, save_manifest
from llama_index_contextual.index.reader import Reader
from llama_index_contextual.index.recovery import (
    adopted,
    complete_successor,
    given_by_hand,
    newest,
    rebuild,
    reconcile,
    recovered_manifest,
    start_successor,
)
from llama_index_contextual.index.settings import SHARED_LOCK_SECONDS, IndexSettings
from llama_index_contextual.index.state import WriteLock
from llama_index_contextual.index.store import DamagedError, Held
from llama_index_contextual.index.vector_cache import VectorCache
from llama_index_contextual.index.vectors import Vectorizer
from llama_index_contextual.index.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)
_SHARED_SWEEP_SECONDS: Final = 3600.0


class Storage:
    """What the methods of an index share: its manifest, its readers, and writes."""

    def __init__(self, settings: IndexSettings) -> None:
        self.settings = settings
        timeout = max(settings.lock_timeout, SHARED_LOCK_SECONDS) if settings.shared else settings.lock_timeout
        self.lock = WriteLock(settings.layout.lock, timeout)
        cure = f"{settings.command()}, which makes it again from what is kept here and embeds no text twice."
        if settings.shared:
            cure = f"{settings.command()}, which fills it again from what is kept here; or restore the server's data."
        self.reader = Reader(
            settings.layout,
            settings.place,
            self._collection,
            model_id(settings.embedding),
            settings.require_index,
            cure,
            settings.exact_limit,
        )

    @property
    def exists(self) -> bool:
        """Return whether anything has been indexed yet."""
        return self.settings.exists

    def manifest(self) -> Manifest:
        """Return what is indexed; a lost or damaged manifest is made again from the store."""
        place, head = self.settings.place, None
        try:
            found = load_manifest(self.settings.layout.manifest)
        except ManifestDamagedError as error:
            kept = "" if error.head is None else "; its settings can still be read"
            logger.warning("%s. It is made again from the store%s.", error.what, kept)
            found, head = None, error.head
        if found is None and not place.shared and place.exists():
            # A first write that failed may be taken back just now: opening would make the files again.
            with self.reader.held(), contextlib.suppress(DamagedError):  # damaged: a reader of the store is told
                found = recovered_manifest(place) if place.exists() else None
        if found is not None and head is not None:  # whose vectors they are the store itself says
            found = replace(
                found,
                fingerprint={**head.fingerprint, **found.fingerprint},
                choices=head.choices,
                unremembered=head.unremembered,
                folder=head.folder,
                seal=head.seal,
            )
        return found or Manifest(collection=place.collection)

    def _collection(self) -> Held:
        """Return what holds the nodes today.

        Raises:
            FingerprintError: It is in another place by now.
        """
        manifest, place = self.manifest(), self.settings.place
        self.settings.check_place(manifest)
        if not place.shared or self.settings.layout.manifest.exists():
            chunks = sum(entry.nodes for entry in manifest.documents.values()) if manifest.complete else 0
            model = (manifest.fingerprint.get("embedding") or {}).get("model", "")
            return Held(manifest.collection, chunks, model)
        # Another machine made it: its newest collection, which may have replaced the first.
        return Held(newest(place, place.open().names()) or place.collection, 0)

    @contextlib.contextmanager
    def writing(self, *, replacing: bool = False) -> Iterator[Writer]:
        """Write: alone, unless a server keeps the nodes; ``replacing`` works on the index's successor."""
        self.settings.layout.create()
        with contextlib.nullcontext() if self.settings.shared else self.lock.hold():
            # Where a server keeps the nodes, another process may be writing here now.
            self.settings.layout.sweep(_SHARED_SWEEP_SECONDS if self.settings.shared else 0)
            made_now = not self.settings.layout.manifest.exists() and not self.settings.shared
            try:
                with self._writer(replacing=replacing) as writer:
                    yield writer
            except BaseException:
                if made_now:
                    self._take_back()
                raise

    @contextlib.contextmanager
    def _writer(self, *, replacing: bool) -> Iterator[Writer]:
        layout, shared = self.settings.layout, self.settings.shared
        if not layout.manifest.exists():  # the keyword index may be of an index that is lost
            self.reader.keywords.discard()
        manifest = self._mended()
        if layout.moving.exists() and self.settings.place.folder is None and layout.chroma.exists():
            shutil.rmtree(layout.chroma)  # left by a move that was killed when the index had arrived
            layout.moving.unlink()
        with self._vectors() as vectors, self.reader.reading(create=True) as view:
            store = view.store
            if replacing:
                manifest, store = start_successor(layout, view.database, manifest, self.settings.fingerprint)
            if not shared and self._is_doubtful(manifest, store.count()):
                manifest = reconcile(manifest, store)
            if self.settings.reindex == "all" and not replacing:  # a successor gets a new one when it takes over
                self.reader.keywords.discard()
            yield Writer(
                store=store,
                vectors=vectors,
                reader=self.reader,
                path=layout.building if replacing else layout.manifest,
                manifest=manifest,
                lock=self.lock,
                shared=shared,
                hidden=replacing,
            )

    def _mended(self) -> Manifest:
        """Return the manifest of a store that can be written, after making again what is lost of it."""
        if self.settings.shared:
            self._adopt()
        try:
            with self.reader.reading(create=True) as view:
                manifest, shared = self.manifest(), self.settings.shared
                self.settings.check(manifest)
                self.settings.check_writing(manifest)
                thorough = not shared and (not manifest.complete or self.settings.reindex == "all")
                damaged = bool(thorough and view.store.without_vectors())
                self._check_model(view.store.model)
                lost = not view.store.count() and any(e.nodes for e in manifest.documents.values())
            if lost and manifest.complete:
                logger.warning("The nodes in the store are lost; files are indexed again.%s", given_by_hand(manifest))
                self.reader.announce(complete=False)  # or the keyword index would still show what it held
        except DamagedError as error:
            logger.info("%s", error)  # the repair warns of it
            damaged = True
        if damaged:
            self.repair()
            manifest = self.manifest()
            self.settings.check(manifest)
        return manifest

    def _adopt(self) -> None:
        """Take over what other machines have put on a server, where this storage folder knows nothing of it."""
        with self.lock.hold():
            found = adopted(self.settings.place, self.manifest())
            if found is not None:
                self.settings.check(found)
                save_manifest(self.settings.layout.manifest, self.settings.written_in(found))

    def _check_model(self, stored: str) -> None:
        """Refuse to write beside the vectors of another model, which another machine may have put on a server.

        Raises:
            FingerprintError: They are another's.
        """
        own = model_id(self.settings.embedding)
        if stored and stored != own and not self.replaces():
            raise FingerprintError(
                f"{self.settings.place.name or 'the store'} holds vectors of the embedding {stored}, not of {own}, and "
                "they do not compare. Cure: choose the former, or another collection: an address that ends in #NAME."
            )

    def _take_back(self) -> None:
        """Leave no index where a first write failed before it kept anything: one would insist on its settings."""
        layout = self.settings.layout
        with contextlib.suppress(Exception):  # what made the write fail is what the caller has to hear of
            with self.reader.reading(create=True) as view:
                if view.store.count():
                    return
            with self.reader.held(), self.reader.changing_files():
                self.reader.close()
                for file in (layout.manifest, layout.generation):
                    file.unlink(missing_ok=True)
                if self.settings.place.folder is not None:
                    shutil.rmtree(self.settings.place.folder)

    def _is_doubtful(self, manifest: Manifest, chunks: int) -> bool:
        """Return whether store and manifest may disagree; comparing all of it takes a second for 20,000 chunks."""
        recorded = sum(entry.nodes for entry in manifest.documents.values())
        return not manifest.complete or recorded != chunks or self.settings.reindex == "all"

    def replaces(self) -> bool:
        """Return whether a refresh makes a successor: another embedding model, and ``reindex="all"``."""
        return self.settings.reindex == "all" and self.settings.other_model(self.manifest())

    def promote(self, writer: Writer) -> None:
        """Let a finished successor take the index's place."""
        with self.reader.reading() as view:
            before = self.manifest()
            complete_successor(self.settings.layout, view.database, before, writer)
            self.reader.announce(complete=True)  # before the old one goes, so that readers leave it
            with self.reader.changing_files():  # a reader may just be opening it
                view.database.drop(before.collection)
        self.reader.compact()

    @contextlib.contextmanager
    def _vectors(self) -> Iterator[Vectorizer]:
        layout, embedding = self.settings.layout, self.settings.embedding
        cache = VectorCache(layout.cache, model_id(embedding), layout.former_caches, self.settings.shared_cache)
        with contextlib.closing(cache):
            yield Vectorizer(cache, embedding)

    def repair(self) -> None:
        """Make Chroma's files anew; only for a local store, as a server looks after its own.

        Raises:
            StorageError: That is not possible now.
        """
        if self.settings.shared:
            raise StorageError("the server cannot read its vectors. Cure: restore or rebuild the server's data.")
        try:
            with self.lock.hold(), self._vectors() as vectors:
                self.reader.close()
                rebuild(self.settings.layout, self.manifest(), vectors, self.reader.changing_files)
                self.reader.announce(complete=False)
        except LockedError as error:
            raise StorageError(f"Chroma's files in {self.settings.layout.chroma} are damaged, and {error}") from error
        except ContextualError:
            raise
        except Exception as error:  # Chroma's InternalError, sqlite3's: on a full disk not even reading works
            raise StorageError(
                f"Chroma's files in {self.settings.layout.chroma} can neither be read nor made anew ({error}). "
                "Cure: see that the disk has room and the folder is writable, then try again; nothing is lost."
            ) from error
