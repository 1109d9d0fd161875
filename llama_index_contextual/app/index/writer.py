"""Writing an index: who may, what is repaired first, and what goes into one transaction."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from llama_index.core.utils import iter_batch

from llama_index_contextual.app.index.embedder import Embedder, check_vectors, lost_rows
from llama_index_contextual.app.index.query import IndexReader
from llama_index_contextual.app.store.locking import WriteLock
from llama_index_contextual.app.store.nodes import Chunk, text_of, to_node
from llama_index_contextual.app.store.paid import DOCUMENTS, SETTINGS
from llama_index_contextual.errors import DamagedError
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from llama_index_contextual.app.index.plan import RefreshReport
    from llama_index_contextual.app.index.settings import IndexSettings
    from llama_index_contextual.app.store.database import Database
    from llama_index_contextual.app.store.nodes import Indexed
    from llama_index_contextual.app.store.schema import DocumentRow, IndexState, NodeRow
    from llama_index_contextual.app.store.snapshot import Transaction

logger = logging.getLogger(__name__)
_AT_ONCE: Final = 256  # chunks that are read, embedded and written together


class Storage:
    """What the methods of an index share: its files, its readers, and writes."""

    def __init__(self, settings: IndexSettings) -> None:
        self.settings = settings
        self.lock = WriteLock(settings.layout.lock, settings.lock_timeout)
        self.reader = IndexReader(settings)
        self._documents: tuple[object, dict[str, DocumentRow]] = None, {}

    def documents(self) -> dict[str, DocumentRow]:
        """Every document, those that failed at their first time too; nobody changes what is returned.

        Raises:
            DamagedError: The index cannot be read.
        """
        if not self.settings.database.exists:
            return {}
        with self.settings.database.reading() as snapshot:
            moment = snapshot.state.identity, snapshot.state.change
            if self._documents[0] != moment:  # those of 100,000 files take a third of a second
                self._documents = moment, snapshot.documents()
            return self._documents[1]

    def replaces(self, state: IndexState | None = None) -> bool:
        """Whether a refresh builds another file: another embedding model, and ``reindex="all"``."""
        settings = self.settings
        return settings.reindex == "all" and settings.other_model(state or settings.state())

    @contextlib.contextmanager
    def writing(self) -> Iterator[Writer]:
        """Write alone, after what is damaged was repaired."""
        settings = self.settings
        settings.layout.create()
        with self.lock.hold():
            was_read = self._repair()
            state = settings.state()
            settings.check(state)
            settings.check_writing(state)
            database = settings.database
            if self.replaces(state):
                database = self._successor()
            elif settings.layout.successor.exists():
                database.beside(settings.layout.successor).remove()
            with database.reading() as snapshot:
                writer = Writer(self, database, snapshot.state, snapshot.documents())
            if not writer.state.complete or settings.reindex == "all":
                writer.mark_incomplete_for_reindex()
            if was_read or not writer.state.complete or settings.reindex == "all":
                writer.embed_lost()
            yield writer

    def _successor(self) -> Database:
        """The file that another embedding model builds; what was begun with other settings is not continued."""
        successor = self.settings.database.beside(self.settings.layout.successor)
        with contextlib.suppress(DamagedError):
            if successor.state().settings in ({}, self.settings.fingerprint):
                successor.create()
                return successor
        successor.remove()
        successor.create()
        return successor

    def _repair(self) -> bool:
        """Make the files where there are none, and set damaged ones aside; return whether all of them was read."""
        settings = self.settings
        settings.database.create()
        was_read = False
        try:
            settings.state()
            was_read = settings.database.check()
        except DamagedError as error:
            logger.info("%s", error)
            self.rebuild()
            was_read = True
        try:
            was_read |= settings.paid.database.check()
        except DamagedError as error:
            logger.info("%s", error)
            self._set_paid_aside()
            was_read = True
        return was_read

    def rebuild(self) -> None:
        """Set a damaged index aside, alone, and begin another one, which a refresh fills from the files."""
        with self.lock.hold():
            self.reader.caches.forget()
            aside = self.settings.database.set_aside()
            self.settings.database.create()
        kept = self.settings.paid.get_many(None, SETTINGS) if self.settings.paid.database.exists else {}
        lost = (
            "" if kept else " The settings that made it are lost. Cure: give those again that are not the usual ones."
        )
        logger.warning(
            "%s was damaged or of another layout, and is set aside as %s. It is built again from the files; what was "
            "paid for is kept.%s",
            self.settings.database.name,
            aside.name,
            lost,
        )

    def _set_paid_aside(self) -> None:
        """Begin another file of what was paid; of vectors the cache has a copy."""
        settings, lost = self.settings, ""
        aside = settings.paid.database.set_aside()
        with settings.database.reading() as snapshot:
            rows = snapshot.rows()
            hashes = dict(zip(rows.tolist(), snapshot.embed_hashes(rows), strict=True))
            known = self.reader.caches.saved_vectors(rows)
            by_hand = [key for key, one in snapshot.documents().items() if one.kind == "document"]
        settings.paid.put_vectors(self.reader.caches.model, {hashes[row]: vector for row, vector in known.items()})
        if by_hand:
            lost = f" These documents were given by hand and have to be given again: {', '.join(by_hand)}."
        logger.warning(
            "%s was damaged, and is set aside as %s. %d vectors were taken from the cache.%s",
            settings.paid.database.name,
            aside.name,
            len(known),
            lost,
        )


@dataclass(slots=True)
class Writer:
    """What one write needs, under the lock.

    Attributes:
        storage: Of the index.
        database: The file that is written: the index, or the one that is to replace it.
        state: Of that file when the write began.
        documents: What it holds, kept up to date.
        leaving: Keys of documents that are to be deleted: another one may take over their chunks' ids.
        busy: Held while documents are put into the file.
    """

    storage: Storage
    database: Database
    state: IndexState
    documents: dict[str, DocumentRow]
    leaving: set[str] = field(default_factory=set)
    busy: threading.Lock = field(default_factory=threading.Lock)
    embedder: Embedder = field(init=False)
    _has_begun: bool = False

    def __post_init__(self) -> None:
        settings = self.storage.settings
        self.embedder = Embedder(settings.paid, settings.embedding, self._check_vectors)

    def _check_vectors(self) -> None:
        settings = self.storage.settings
        if settings.reindex != "all":
            with settings.database.reading() as snapshot:
                check_vectors(snapshot, settings.paid, settings.embedding)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Write in one transaction. The first one writes down the settings, and that the index is being changed."""
        settings = self.storage.settings
        written = settings.written_in(self.state).written()
        if not self._has_begun:
            chosen = {name: written[name] for name in ("choices", "objects", "folder")}
            if settings.paid.get_many(["index"], SETTINGS) != {"index": chosen}:
                settings.paid.write({"index": chosen}, SETTINGS)
        with self.database.writing() as transaction:
            if not self._has_begun:
                transaction.set_state(**written, complete=False)
            yield transaction
        self._has_begun = True

    def write(
        self, documents: Sequence[Indexed], report: RefreshReport, progress: Callable[[int], object] = lambda _: None
    ) -> None:
        """Embed documents and write them, each whole. Chunks of which nothing changed stay as they are.

        Args:
            documents: The documents.
            report: Counts what became of their chunks, and gets the documents that cannot be written.
            progress: Called with how many texts were embedded so far. What it raises ends the work.
        """
        embedded, faults = self.embedder.embed([chunk for _, chunks in documents for chunk in chunks], progress)
        failing = [(one.key, faults.get(chunk.embed_hash)) for one, chunks in documents for chunk in reversed(chunks)]
        documents = _sound(documents, {key: fault for key, fault in failing if fault}, report)
        report.work.embedded += len(embedded)
        with self.busy, step("store") as facts:
            progress(len(embedded))
            if documents:
                with self.transaction() as transaction:
                    documents = _sound(documents, self._conflicts(transaction, documents), report)
                    facts.update(self._put(transaction, documents, embedded, report))
        self.documents.update((one.key, one) for one, _ in documents)

    def _put(
        self, transaction: Transaction, documents: Sequence[Indexed], embedded: set[str], report: RefreshReport
    ) -> dict[str, int]:
        """Write documents; return how many chunks are new, changed and deleted."""
        numbers = transaction.put_documents(one for one, _ in documents)
        stored, moved = transaction.nodes_of(list(numbers)), {key for _, key in report.moved}
        surplus: list[int] = []
        new: list[tuple[int, NodeRow]] = []
        added = removed = 0
        for document, chunks in documents:
            before = {node.node_id: node for node in stored.get(document.key, [])}
            for chunk in chunks:
                known = before.pop(chunk.row.node_id, None)
                if known is not None and known[1:] == chunk.row[1:]:
                    continue
                if known is None:
                    added += 1
                else:
                    surplus.append(known.row)
                if known is not None and known.embed_hash == chunk.embed_hash:
                    report.work.relocated += 1
                elif chunk.embed_hash in embedded:
                    report.work.embedded_for_moves += document.key in moved
                elif self.embedder.embeds:
                    report.work.reused += 1
                new.append((numbers[document.key], chunk.row))
            surplus += [node.row for node in before.values()]
            removed += len(before)
        transaction.delete_nodes(surplus)
        transaction.put_nodes(new)
        report.work.removed += removed
        return {"added": added, "changed": len(new) - added, "deleted": removed}

    def _conflicts(self, transaction: Transaction, documents: Sequence[Indexed]) -> dict[str, str]:
        """Why documents cannot be written: a chunk of another document has the id of one of theirs."""
        owners = {chunk.row.node_id: one.key for one, chunks in documents for chunk in chunks}
        twice = Counter(chunk.row.node_id for _, chunks in documents for chunk in chunks)
        refused = {owners[node_id]: node_id for node_id, count in twice.items() if count > 1}
        for node_id, row, key in transaction.owners(owners):
            if key in self.leaving:
                transaction.delete_nodes([row])
            elif key != owners[node_id]:
                refused[owners[node_id]] = node_id
        return {
            key: f"two of its chunks, or one of another document, have the id {node_id!r}. Cure: a node parser whose "
            "id_func gives each chunk an id of its own."
            for key, node_id in refused.items()
        }

    def delete(self, keys: Sequence[str]) -> int:
        """Take documents out of the index; return how many chunks went."""
        with step("store", added=0, changed=0) as facts, self.transaction() as transaction:
            count = transaction.delete_documents(keys)
            facts["deleted"] = count
        for key in keys:
            one = self.documents.pop(key, None)
            if one is not None and one.kind == "document":
                self.storage.settings.paid.delete(key, DOCUMENTS)
        return count

    def record(self, documents: Mapping[str, DocumentRow | None]) -> None:
        """Note what is known of documents whose chunks stay; None forgets one that has no chunks."""
        if not documents:
            return
        with self.transaction() as transaction:
            transaction.put_documents(one for one in documents.values() if one is not None)
            transaction.delete_documents([key for key, one in documents.items() if one is None])
        for key, one in documents.items():
            if one is None:
                self.documents.pop(key, None)
            else:
                self.documents[key] = one

    def mark_incomplete_for_reindex(self) -> None:
        """Have documents indexed again that do not have as many chunks as they should."""
        with self.database.reading() as snapshot:
            doubtful = {key for key, *_ in snapshot.miscounted()}
        for key, one in self.documents.items():
            if key in doubtful:
                self.documents[key] = one._replace(sha256="", stamp="")

    def embed_lost(self) -> None:
        """Embed the texts of chunks whose vector is lost."""
        if not self.embedder.embeds:
            return
        with self.database.reading() as snapshot:
            lost = lost_rows(snapshot.rows(), snapshot.embed_hashes, self.embedder)
        for part in iter_batch(lost, _AT_ONCE):
            with self.database.reading() as snapshot:
                nodes = list(snapshot.nodes(part))
            self.embedder.embed_all([Chunk(text_of(to_node(node)), node) for node in nodes])
        if lost:
            with self.transaction() as transaction:
                transaction.count_change()  # caches take the vectors that they lack

    def finish(self) -> None:
        """Write down that the index is whole again, put a successor in its place, and keep the caches on disk."""
        settings = self.storage.settings
        is_successor = self.database is not settings.database
        written = settings.written_in(self.state).written()
        if self._has_begun or not self.state.complete or self.state.written() != written or is_successor:
            with self.transaction() as transaction:
                transaction.set_state(complete=True)
        if is_successor:
            settings.database.replace_content(self.database)
            self.database.remove()
            self.database = settings.database
        with settings.database.reading() as snapshot:  # so that no question has to derive them
            self.storage.reader.caches.save(snapshot, embeds=self.embedder.embeds)


def _sound(documents: Sequence[Indexed], faults: Mapping[str, str], report: RefreshReport) -> Sequence[Indexed]:
    """Documents without a fault; a report gets the others."""
    for key, reason in faults.items():
        report.fail(key, reason)
    return [one for one in documents if one[0].key not in faults]
