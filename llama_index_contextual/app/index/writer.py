"""Writing an index: who may, what is set aside first, and what goes into one transaction."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from llama_index.core.utils import iter_batch

from llama_index_contextual.app.index.caches import SETTINGS
from llama_index_contextual.app.index.database import MISCOUNTED, Database
from llama_index_contextual.app.index.embedder import (
    Chunk,
    check_vectors,
    embed_missing,
    embedded_text,
    rows_without_vector,
)
from llama_index_contextual.app.index.rows import DocumentRow, IndexState, to_node
from llama_index_contextual.errors import DamagedError, DocumentError, EmbeddingError
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from llama_index_contextual.app.index.database import Transaction
    from llama_index_contextual.app.index.query import IndexReader

    Indexed = tuple[DocumentRow, list[Chunk]]  # a document as it is to be written

logger = logging.getLogger(__name__)
_AT_ONCE: Final = 256  # chunks that are read and embedded together


@contextlib.contextmanager
def writing(reader: IndexReader) -> Iterator[Writer]:
    """Write alone, after what is damaged was set aside.

    Raises:
        LockedError: Another process is writing.
        FingerprintError: The settings are not those of the index.
    """
    settings = reader.settings
    with reader.lock.hold():
        try:
            settings.database.check()
            settings.check(settings.database.state())
        except DamagedError as error:
            set_index_aside(reader, error)
        if message := settings.paid.repair():
            logger.warning("%s", message)
        writer = Writer(reader, _target(reader))
        if reader.is_first_write or not writer.state.complete:
            writer.make_lost_again()
            reader.is_first_write = False
        yield writer


def set_index_aside(reader: IndexReader, error: DamagedError) -> None:
    """Set a damaged index aside, alone; a refresh fills another one from the files."""
    logger.warning(
        "%s The file is set aside as %s and built again; what was paid for is kept. Documents that were passed as "
        "objects have to be passed again.",
        error,
        reader.settings.database.set_aside().name,
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
        embedded_again: How many texts were embedded whose vector was lost.
    """

    def __init__(self, reader: IndexReader, database: Database) -> None:
        self.reader, self.settings, self.database = reader, reader.settings, database
        self.state, self.documents = IndexState(), dict[str, DocumentRow]()
        self.embedded_again = 0
        self._has_begun = False
        if database.exists:
            with database.reading() as snapshot:
                self.state, self.documents = snapshot.state, snapshot.documents()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Write in one transaction. The first one writes down the settings, and that the index is being changed."""
        written = self.settings.written()
        kept = {name: written[name] for name in ("choices", "folders")}  # which outlive an index that is lost
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
                chunks = [Chunk(embedded_text(to_node(node)), node) for node in snapshot.nodes(part)]
            _, faults = embed_missing(settings.paid, settings.embedding, chunks, lambda: None)
            if faults:
                raise EmbeddingError(next(iter(faults.values())))
            self.embedded_again += len(part)
        if lost:
            with self.transaction() as transaction:
                transaction.count_change()  # caches take the vectors that they lack

    def write(self, documents: Sequence[Indexed], proceed: Callable[[], object]) -> tuple[int, dict[str, str]]:
        """Embed documents and write them, each whole.

        Args:
            documents: The documents.
            proceed: Called between texts; its error ends the work.

        Returns:
            How many texts were embedded, and why documents cannot be written.
        """
        settings, chunks = self.settings, [chunk for _, chunks in documents for chunk in chunks]
        if not self._has_begun and self.database.exists:
            with self.database.reading() as snapshot:
                check_vectors(snapshot, settings.paid, settings.embedding)
        embedded, faults = embed_missing(settings.paid, settings.embedding, chunks, proceed)
        proceed()
        refused, total = dict[str, str](), Counter[str]()
        with step("store") as facts, self.transaction() as transaction:
            for document, parts in documents:
                try:
                    if fault := next((faults[one.row.embed_hash] for one in parts if one.row.embed_hash in faults), ""):
                        refused[document.key] = fault
                        continue
                    total.update(transaction.replace_document(document, [one.row for one in parts]))
                    self.documents[document.key] = document
                except DocumentError as error:
                    refused[document.key] = str(error)
            facts.update(total)
        return embedded, refused

    def delete(self, keys: Sequence[str]) -> int:
        """Take documents out of the index; return how many chunks they had."""
        with step("store", added=0, changed=0) as facts, self.transaction() as transaction:
            count = transaction.delete_documents(keys)
            facts["deleted"] = count
        for key in keys:
            self.documents.pop(key, None)
        return count

    def record(self, documents: Sequence[DocumentRow]) -> None:
        """Write what is known of documents whose chunks stay."""
        if documents:
            with self.transaction() as transaction:
                transaction.put_documents(documents)

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
            self.reader.caches.save(snapshot)
