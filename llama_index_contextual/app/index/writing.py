"""Writing an index: who may, what is mended first, and what goes into one transaction."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from llama_index.core.utils import iter_batch

from llama_index_contextual.app.index.plan import RefreshReport
from llama_index_contextual.app.index.rescue import finish_salvage, is_former, salvage, take_over_former
from llama_index_contextual.app.index.state import IndexState, WriteLock
from llama_index_contextual.app.index.tables import Chunk, text_of, to_node
from llama_index_contextual.app.index.vectors import Vectorizer
from llama_index_contextual.app.index.view import Reader
from llama_index_contextual.errors import DamagedError, EmbeddingError, FingerprintError, StorageError
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from llama_index_contextual.app.index.settings import IndexSettings
    from llama_index_contextual.app.index.snapshot import Snapshot, Transaction
    from llama_index_contextual.app.index.tables import DocumentRow, Indexed, NodeRow

logger = logging.getLogger(__name__)
_SPARE_VECTORS: Final = 1000  # kept whatever the size: 1.5 MB of the local model's
_AT_ONCE: Final = 256  # chunks that are read, embedded and written together


class Storage:
    """What the methods of an index share: its database, its readers, and writes."""

    def __init__(self, settings: IndexSettings) -> None:
        self.settings = settings
        self.lock = WriteLock(settings.layout.lock, settings.lock_timeout)
        self.reader = Reader(settings)
        self._documents: tuple[object, dict[str, DocumentRow]] = None, {}

    def documents(self) -> dict[str, DocumentRow]:
        """Return every document, those that failed at their first time too; nobody changes what is returned.

        Raises:
            DamagedError: The database cannot be read.
        """
        if not self.settings.database.exists:
            return {}
        with self.settings.database.reading() as snapshot:
            state = snapshot.state
            moment = state.identity, state.edition, state.change
            if self._documents[0] != moment:  # those of 100,000 files take a third of a second
                self._documents = moment, snapshot.documents()
            return self._documents[1]

    def replaces(self, state: IndexState | None = None) -> bool:
        """Return whether a refresh makes another edition: another embedding model, and ``reindex="all"``."""
        settings = self.settings
        return settings.reindex == "all" and settings.other_model(state or settings.state())

    @contextlib.contextmanager
    def writing(self) -> Iterator[Writer]:
        """Write: alone, unless a server has the database."""
        settings = self.settings
        settings.layout.create()
        with contextlib.nullcontext() if settings.database.shared else self.lock.hold():
            looked = self._mend()
            state = settings.state()
            settings.check(state)
            settings.check_writing(state)
            yield self._writer(state, looked=looked)

    def drop(self) -> None:
        """Delete the index for good: see :meth:`ContextualIndex.drop`."""
        settings = self.settings
        if settings.database.shared:
            raise StorageError(f"the index in {settings.database.name} is shared. Cure: DROP SCHEMA in PostgreSQL.")
        settings.require_index()
        if strange := settings.layout.strange():
            raise StorageError(f"{settings.layout.root / strange[0]} is no part of an index. Cure: move it elsewhere.")
        with self.lock.hold():
            self.reader.close()
            settings.database.close()
        settings.layout.remove()

    def _writer(self, state: IndexState, *, looked: bool) -> Writer:
        settings, edition = self.settings, state.edition
        if self.replaces(state):
            edition += 1
            if state.next != settings.fingerprint:  # nothing was begun, or with other settings
                with settings.database.writing() as transaction:
                    transaction.edition = edition
                    transaction.delete_documents(transaction.documents())
                    transaction.set_state(next=settings.fingerprint)
        vectors = Vectorizer(settings.database, settings.embedding)
        with settings.database.reading() as snapshot:
            snapshot.edition = edition
            writer = Writer(self, state, vectors, edition, snapshot.documents())
        if not state.complete or settings.reindex == "all":  # of a complete one a look counts the nodes, too
            writer.doubt_incomplete()
        if looked or not state.complete or settings.reindex == "all":
            writer.embed_lost()
        return writer

    def _mend(self) -> bool:
        """Make the database where there is none, and again where it is damaged; return whether it was looked at."""
        settings = self.settings
        database = settings.database
        finish_salvage(database)
        if not database.exists:
            database.create()
        try:
            settings.state()
            looked = database.check()
        except DamagedError as error:
            logger.info("%s", error)  # the salvage warns of it
            self.salvage()
            looked = True
        if is_former(settings.layout.root):
            take_over_former(settings.layout.root, database)
        return looked

    def salvage(self) -> None:
        """Make the database again of what can be read of it, alone."""
        with self.lock.hold():
            self.reader.engines.forget()
            salvage(self.settings.database)


@dataclass(slots=True)
class Writer:
    """What one write needs, under the lock.

    Attributes:
        storage: Of the index.
        state: Of the index when the write began.
        vectors: Gives chunks their vectors.
        edition: That is written.
        documents: What it holds, kept up to date.
        leaving: Keys of documents that are to be deleted: another one may take over their nodes' ids.
        busy: Held while documents are put into the database.
    """

    storage: Storage
    state: IndexState
    vectors: Vectorizer
    edition: int
    documents: dict[str, DocumentRow]
    leaving: set[str] = field(default_factory=set)
    busy: threading.Lock = field(default_factory=threading.Lock)
    _began: bool = False

    @property
    def hidden(self) -> bool:
        """Return whether no reader sees what is written yet."""
        return self.edition != self.state.edition

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Write in one transaction. The first one says with which settings, and that the index is being changed.

        Raises:
            FingerprintError: Another process made the index with another embedding model meanwhile.
        """
        settings = self.storage.settings
        with settings.database.writing() as transaction:
            state = transaction.state
            whose = state.next if self.hidden and state.edition != self.edition else state.settings
            if state.edition not in (self.edition, self.state.edition) or settings.other_model(
                replace(state, settings=whose)
            ):
                raise FingerprintError(
                    f"another process makes the index in {settings.database.name} with another embedding, "
                    f"{replace(state, settings=whose).model}. Cure: open it again, with that one."
                )
            if not self._began and not self.hidden:
                transaction.set_state(**settings.written_in(self.state).written(), complete=False)
            transaction.edition = self.edition
            yield transaction
        self._began = True

    @contextlib.contextmanager
    def reading(self) -> Iterator[Snapshot]:
        """Read what has been written."""
        with self.storage.settings.database.reading() as snapshot:
            snapshot.edition = self.edition
            yield snapshot

    def write(
        self, documents: Sequence[Indexed], report: RefreshReport, progress: Callable[[int], object] = lambda _: None
    ) -> Sequence[Indexed]:
        """Embed documents and write them, each whole. Nodes of which nothing changed stay as they are.

        Args:
            documents: The documents.
            report: Counts what became of their nodes, and gets the documents that cannot be written.
            progress: Called with how many texts were embedded so far. What it raises ends the work.

        Returns:
            Those that were written.
        """
        embedded, faults = self.vectors.embed([chunk for _, chunks in documents for chunk in chunks], progress)
        failing = [(one.key, faults.get(chunk.embed_hash)) for one, chunks in documents for chunk in reversed(chunks)]
        documents = _sound(documents, {key: fault for key, fault in failing if fault}, report)
        report.embedded += len(embedded)
        with self.busy, step("store") as facts:
            progress(len(embedded))
            while documents:
                with self.transaction() as transaction:
                    lost = self._forgotten(transaction, documents)
                    if not lost:
                        documents = _sound(documents, self._conflicts(transaction, documents), report)
                        facts.update(self._put(transaction, documents, embedded, report))
                        break
                self.vectors.embed_all(lost)
        self.documents.update((one.key, one) for one, _ in documents)
        return documents

    def _forgotten(self, transaction: Transaction, documents: Sequence[Indexed]) -> list[Chunk]:
        """Return the chunks whose vectors another process forgot, as no node had them yet."""
        if not (self.storage.settings.database.shared and self.vectors.embeds):
            return []
        chunks = [chunk for _, its_chunks in documents for chunk in its_chunks]
        known = transaction.with_vectors(self.vectors.model, {chunk.embed_hash for chunk in chunks})
        return [chunk for chunk in chunks if chunk.embed_hash not in known]

    def _put(
        self, transaction: Transaction, documents: Sequence[Indexed], embedded: set[str], report: RefreshReport
    ) -> dict[str, int]:
        """Write documents; return how many nodes are new, changed and gone."""
        numbers = transaction.put_documents(one for one, _ in documents)
        stored, moved = transaction.nodes_of(list(numbers)), {key for _, key in report.moved}
        gone: list[int] = []
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
                    gone.append(known.row)
                if known is not None and known.embed_hash == chunk.embed_hash:
                    report.relocated += 1
                elif chunk.embed_hash in embedded:
                    report.embedded_for_moves += document.key in moved
                elif self.vectors.embeds:
                    report.reused += 1
                new.append((numbers[document.key], chunk.row))
            gone += [node.row for node in before.values()]
            removed += len(before)
        transaction.delete_nodes(gone)
        transaction.put_nodes(new)
        report.removed += removed
        return {"added": added, "changed": len(new) - added, "deleted": removed}

    def _conflicts(self, transaction: Transaction, documents: Sequence[Indexed]) -> dict[str, str]:
        """Return why documents cannot be written: a node of another document has the id of one of theirs."""
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
        """Take documents out of the index; return how many nodes went."""
        with step("store", added=0, changed=0) as facts, self.transaction() as transaction:
            count = transaction.delete_documents(keys)
            facts["deleted"] = count
        for key in keys:
            self.documents.pop(key, None)
        return count

    def record(self, documents: Mapping[str, DocumentRow | None]) -> None:
        """Note what is known of documents whose nodes stay; None forgets one that has no nodes.

        What another process wrote meanwhile stays as that one wrote it.
        """
        if not documents:
            return
        with self.transaction() as transaction:
            now = transaction.documents(documents)
            documents = {key: one for key, one in documents.items() if now.get(key) == self.documents.get(key)}
            transaction.put_documents(one for one in documents.values() if one is not None)
            transaction.delete_documents([key for key, one in documents.items() if one is None])
        for key, one in documents.items():
            if one is None:
                self.documents.pop(key, None)
            else:
                self.documents[key] = one

    def doubt_incomplete(self) -> None:
        """Have files indexed again that do not have as many nodes as they should."""
        with self.reading() as snapshot:
            doubtful = {key for key, *_ in snapshot.miscounted()}
        for key, one in self.documents.items():
            if one.kind == "file" and key in doubtful:
                self.documents[key] = one._replace(sha256="", stamp="")

    def embed_lost(self) -> int:
        """Embed the texts of nodes whose vector is lost; return how many there were."""
        if not self.vectors.embeds:
            return 0
        with self.reading() as snapshot:
            rows = sorted(snapshot.rows_of(snapshot.without_vectors(self.vectors.model)).values())
        for part in iter_batch(rows, _AT_ONCE):
            with self.reading() as snapshot:
                nodes = list(snapshot.nodes(part))
            self.vectors.embed_all([Chunk(text_of(to_node(node)), node) for node in nodes])
        if rows:
            with self.transaction() as transaction:
                transaction.count_change()  # engines take the vectors that they lack
        return len(rows)

    def finish(self, *, whole: bool) -> None:
        """Say that the index is whole again, forget what nobody needs, and keep the engines on disk.

        Args:
            whole: Whether all of the folder was looked at.
        """
        if self.hidden:
            self._promote()
        settings = self.storage.settings
        if self._began or not self.state.complete or self.state.written() != settings.written_in(self.state).written():
            with self.transaction() as transaction:
                if whole and not self.hidden:
                    transaction.forget_vectors(_SPARE_VECTORS)
                transaction.set_state(complete=True)
        with settings.database.reading() as snapshot:  # so that no question has to derive them
            self.storage.reader.engines.save(snapshot, embeds=self.vectors.embeds)

    def _promote(self) -> None:
        """Let a finished edition take the place of the one that readers see, with what was given by hand."""
        with self.storage.settings.database.reading() as snapshot:
            former = snapshot.documents()
            missing = [key for key, one in former.items() if one.kind == "document" and key not in self.documents]
            nodes = snapshot.nodes_of(missing)
        for key in missing:
            report = RefreshReport()
            self.write([(former[key], [Chunk(text_of(to_node(node)), node) for node in nodes.get(key, [])])], report)
            if report.failed:
                raise EmbeddingError(f"{report.failed[0]} Cure: see to the model, then try again.")
        written = replace(self.storage.settings.written_in(self.state), next={})
        with self.transaction() as transaction:
            transaction.switch_edition(self.edition)
            transaction.set_state(**written.written(), next={})
        self.state = replace(written, edition=self.edition)


def _sound(documents: Sequence[Indexed], faults: Mapping[str, str], report: RefreshReport) -> Sequence[Indexed]:
    """Return the documents without a fault; a report gets the others."""
    for key, reason in faults.items():
        report.fail(key, reason)
    return [one for one in documents if one[0].key not in faults]
