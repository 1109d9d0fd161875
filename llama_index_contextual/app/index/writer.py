"""Writing an index: who may, what is set aside first, and what goes into one transaction."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from llama_index.core.utils import iter_batch

from llama_index_contextual.app.index.vectors import check_vectors, embed_missing, rows_without_vector
from llama_index_contextual.app.settings.embeddings import NoEmbedding
from llama_index_contextual.app.store.database import MISCOUNTED, Database, IndexState
from llama_index_contextual.app.store.paid import DOCUMENTS, SETTINGS
from llama_index_contextual.app.store.rows import Chunk, DocumentRow, text_of, to_node
from llama_index_contextual.errors import DamagedError, EmbeddingError
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from llama_index_contextual.app.index.plan import RefreshReport
    from llama_index_contextual.app.index.query import IndexReader
    from llama_index_contextual.app.store.database import Transaction
    from llama_index_contextual.app.store.rows import Indexed

logger = logging.getLogger(__name__)
_AT_ONCE: Final = 256  # chunks that are read, embedded and written together


@contextlib.contextmanager
def writing(reader: IndexReader) -> Iterator[Writer]:
    """Write alone, after what is damaged was set aside.

    Raises:
        LockedError: Another process is writing.
        FingerprintError: The settings are not those of the index.
    """
    settings = reader.settings
    settings.layout.create()
    with reader.lock.hold():
        try:
            settings.database.check()
            state = settings.state()
        except DamagedError as error:
            logger.info("%s", error)
            set_index_aside(reader)
            state = IndexState()
        if message := settings.paid.repair():
            lost = {key for key, one in reader.documents().items() if one.kind == "document"}
            lost -= settings.paid.get_all(DOCUMENTS).keys()
            again = f" These documents have to be passed again: {', '.join(sorted(lost))}." if lost else ""
            logger.warning("%s%s", message, again)
        settings.check(state)
        writer = Writer(reader, _target(reader))
        if reader.is_first_write or not writer.state.complete:
            writer.make_lost_again()
            reader.is_first_write = False
        yield writer


def set_index_aside(reader: IndexReader) -> None:
    """Set a damaged index aside, alone; a refresh fills another one from the files."""
    database = reader.settings.database
    reader.caches.forget()
    logger.warning(
        "%s was damaged or of another layout, and is set aside as %s. It is built again from the files; what was paid "
        "for is kept.",
        database.path,
        database.set_aside().name,
    )


def _target(reader: IndexReader) -> Database:
    """The index, or the file that another embedding model builds, begun anew where other settings had begun it."""
    settings = reader.settings
    successor = Database(settings.layout.successor, settings.database.cure)
    with contextlib.suppress(DamagedError):
        if reader.replaces and successor.state().settings in ({}, settings.fingerprint):
            return successor
    successor.remove()
    return successor if reader.replaces else settings.database


class Writer:
    """What one write needs, under the lock.

    Args:
        reader: Of the index.
        database: The file that is written: the index, or the one that is to replace it.

    Attributes:
        state: Of that file when the write began.
        documents: What it holds, kept up to date.
        leaving: Keys of documents that are to be deleted: another one may take over their chunks' ids.
        embedded_again: How many texts were embedded whose vector was lost.
    """

    def __init__(self, reader: IndexReader, database: Database) -> None:
        self.reader, self.settings, self.database = reader, reader.settings, database
        self.state, self.documents = IndexState(), dict[str, DocumentRow]()
        self.leaving: set[str] = set()
        self.embedded_again = 0
        self._has_begun = self._is_checked = False
        if database.exists:
            with database.reading() as snapshot:
                self.state, self.documents = snapshot.state, snapshot.documents()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Write in one transaction. The first one writes down the settings, and that the index is being changed."""
        written = self.settings.written()
        kept = {name: written[name] for name in ("choices", "folders")}
        if not self._has_begun and self.settings.paid.get("index", SETTINGS) != kept:
            self.settings.paid.put("index", kept, SETTINGS)
        with self.database.writing() as transaction:
            if not self._has_begun:
                transaction.set_state(**written, complete=False)
            yield transaction
        self._has_begun = True

    def make_lost_again(self) -> None:
        """Embed the texts whose vector is lost, and have documents indexed again that lack chunks."""
        settings = self.settings
        if not self.documents:
            return
        with self.database.reading() as snapshot:
            for key, *_ in snapshot.fetch(MISCOUNTED):
                self.documents[key] = self.documents[key]._replace(sha256="", stamp="")
            lost = rows_without_vector(snapshot, settings.paid, settings.embedding)
        for part in iter_batch(lost, _AT_ONCE):
            with self.database.reading() as snapshot:
                chunks = [Chunk(text_of(to_node(node)), node) for node in snapshot.nodes(part)]
            _, faults = embed_missing(settings.paid, settings.embedding, chunks, lambda _: None)
            if faults:
                raise EmbeddingError(next(iter(faults.values())))
            self.embedded_again += len(part)
        if lost:
            with self.transaction() as transaction:
                transaction.count_change()  # caches take the vectors that they lack

    def write(self, documents: Sequence[Indexed], report: RefreshReport, progress: Callable[[int], object]) -> None:
        """Embed documents and write them, each whole. Chunks of which nothing changed stay as they are.

        Args:
            documents: The documents.
            report: Counts texts that were embedded, and gets the documents that cannot be written.
            progress: Called with how many texts were embedded so far. Its error ends the work.
        """
        settings = self.settings
        if not self._is_checked and self.state.settings:
            with self.database.reading() as snapshot:
                check_vectors(snapshot, settings.paid, settings.embedding)
        self._is_checked = True
        chunks = [chunk for _, chunks in documents for chunk in chunks]
        embedded, faults = embed_missing(settings.paid, settings.embedding, chunks, progress)
        report.embedded += len(embedded)
        failing = {
            one.key: faults[chunk.embed_hash]
            for one, chunks in documents
            for chunk in reversed(chunks)
            if chunk.embed_hash in faults
        }
        documents = _sound(documents, failing, report)
        progress(0)
        if documents:
            with step("store") as facts, self.transaction() as transaction:
                documents = _sound(documents, self._conflicts(transaction, documents), report)
                facts.update(_put(transaction, documents))
        self.documents.update((one.key, one) for one, _ in documents)

    def _conflicts(self, transaction: Transaction, documents: Sequence[Indexed]) -> dict[str, str]:
        """Why documents cannot be written: a chunk of another document has the id of one of theirs."""
        owners = {chunk.row.node_id: one.key for one, chunks in documents for chunk in chunks}
        twice = Counter(chunk.row.node_id for _, chunks in documents for chunk in chunks)
        refused = {owners[node_id]: node_id for node_id, count in twice.items() if count > 1}
        query = (
            "SELECT node_id, chunks.id, key FROM chunks JOIN documents ON documents.id = document WHERE node_id IN ({})"
        )
        for node_id, row, key in transaction.among(query, owners):
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
        """Take documents out of the index; return how many chunks they had."""
        with step("store", added=0, changed=0) as facts, self.transaction() as transaction:
            count = transaction.delete_documents(keys)
            facts["deleted"] = count
        for key in keys:
            one = self.documents.pop(key, None)
            if one is not None and one.kind == "document":
                self.settings.paid.delete(key, DOCUMENTS)
        return count

    def record(self, documents: Mapping[str, DocumentRow | None]) -> None:
        """Note what is known of documents whose chunks stay; None forgets one that has no chunks."""
        if not documents:
            return
        with self.transaction() as transaction:
            transaction.put_documents(one for one in documents.values() if one is not None)
            transaction.delete_documents([key for key, one in documents.items() if one is None])

    def finish(self) -> None:
        """Write down that the index is whole again, put a successor in its place, and keep the caches on disk."""
        written, index = self.settings.written(), self.settings.database
        is_known = all(getattr(self.state, name) == value for name, value in written.items())
        if self._has_begun or not self.state.complete or not is_known:
            with self.transaction() as transaction:
                transaction.set_state(complete=True)
        if self.database is not index:
            index.replace_content(self.database)
            self.database.remove()
            self.database = index
        with index.reading() as snapshot:  # so that no question has to derive them
            self.reader.caches.save(snapshot, embeds=not isinstance(self.settings.embedding, NoEmbedding))


def _put(transaction: Transaction, documents: Sequence[Indexed]) -> dict[str, int]:
    """Write documents; return how many chunks are new, changed and deleted."""
    numbers = transaction.put_documents(one for one, _ in documents)
    before = {node.node_id: node for node in transaction.nodes(transaction.rows_of_documents(numbers))}
    rows = [(numbers[document.key], chunk.row) for document, chunks in documents for chunk in chunks]
    known = {row.node_id: before.pop(row.node_id) for _, row in rows if row.node_id in before}
    new = [(number, row) for number, row in rows if row.node_id not in known or known[row.node_id][1:] != row[1:]]
    changed = [known[row.node_id].row for _, row in new if row.node_id in known]
    transaction.delete_nodes([*changed, *(node.row for node in before.values())])
    transaction.put_nodes(new)
    return {"added": len(new) - len(changed), "changed": len(changed), "deleted": len(before)}


def _sound(documents: Sequence[Indexed], faults: Mapping[str, str], report: RefreshReport) -> Sequence[Indexed]:
    """Documents without a fault; a report gets the others."""
    for key, reason in faults.items():
        report.fail(key, reason)
    return [one for one in documents if one[0].key not in faults]
