"""Writing an index: who may, what is set aside first, vectors of new texts, and what goes into one transaction."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.utils import iter_batch

from llama_index_contextual.app.settings.embeddings import UNNAMED, NoEmbedding, model_id
from llama_index_contextual.app.settings.late_chunking import DocumentEmbedding
from llama_index_contextual.app.store.database import (
    MISCOUNTED,
    Chunk,
    Database,
    DocumentRow,
    IndexState,
    text_of,
    to_node,
)
from llama_index_contextual.app.store.paid import DOCUMENTS, SETTINGS
from llama_index_contextual.errors import (
    DamagedError,
    EmbeddingError,
    FingerprintError,
    MissingExtraError,
    SettingError,
)
from llama_index_contextual.text import counted, short_hash
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_contextual.app.index.plan import RefreshReport
    from llama_index_contextual.app.index.query import IndexReader
    from llama_index_contextual.app.store.database import Indexed, Snapshot, Transaction
    from llama_index_contextual.app.store.paid import PaidStore

logger = logging.getLogger(__name__)
_AT_ONCE: Final = 256  # chunks that are read, embedded and written together
BATCH_TEXTS: Final = 64  # texts that a kill or a failing server can cost
_HOPELESS: Final = 8  # so many texts without one usable vector among them: the model is broken, not a text
_ABSENT: Final = 404  # what Ollama answers for a model that was not pulled
_SAME: Final = 0.99  # cosine of two vectors of one text by one model; machines round differently
_SHOWN: Final = 60  # characters of a text in a message


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
        settings.check_writing()
        writer = Writer(reader, _target(reader))
        if reader.is_first_write or not writer.state.complete:
            writer.make_lost_again()
            reader.is_first_write = False
        yield writer


def set_index_aside(reader: IndexReader) -> None:
    """Set a damaged index aside, alone; a refresh fills another one from the files."""
    settings = reader.settings
    reader.caches.forget()
    aside = settings.database.set_aside()
    kept = settings.paid.get("index", SETTINGS) if settings.paid.exists else None
    lost = "" if kept else " The settings that made it are lost. Cure: give those again that are not the usual ones."
    logger.warning(
        "%s was damaged or of another layout, and is set aside as %s. It is built again from the files; what was paid "
        "for is kept.%s",
        settings.database.path,
        aside.name,
        lost,
    )


def _target(reader: IndexReader) -> Database:
    """The index, or the file that another embedding model builds, begun anew where other settings had begun it."""
    settings = reader.settings
    successor = Database(settings.layout.successor, settings.database.cure)
    if not reader.replaces:
        if successor.exists:
            successor.remove()
        return settings.database
    with contextlib.suppress(DamagedError):
        if successor.state().settings in ({}, settings.fingerprint):
            return successor
    successor.remove()
    return successor


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
        kept = {"index": {name: written[name] for name in ("choices", "objects", "folder")}}
        if not self._has_begun and self.settings.paid.get_all(SETTINGS) != kept:
            self.settings.paid.put("index", kept["index"], SETTINGS)
        with self.database.writing() as transaction:
            if not self._has_begun:
                transaction.set_state(**written, complete=False)
            yield transaction
        self._has_begun = True

    def make_lost_again(self) -> None:
        """Embed the texts whose vector is lost, and have documents indexed again that lack chunks."""
        if not self.database.exists:
            return
        settings, lost = self.settings, list[int]()
        with self.database.reading() as snapshot:
            for key, *_ in snapshot.fetch(MISCOUNTED):
                self.documents[key] = self.documents[key]._replace(sha256="", stamp="")
            rows = snapshot.rows()
            if not isinstance(settings.embedding, NoEmbedding):
                hashes = snapshot.column("embed_hash", rows)
                known = settings.paid.with_vectors(self.reader.caches.model, dict.fromkeys(hashes))
                lost = [row for row, key in zip(rows.tolist(), hashes, strict=True) if key not in known]
        for part in iter_batch(lost, _AT_ONCE):
            with self.database.reading() as snapshot:
                nodes = list(snapshot.nodes(part))
            chunks = [Chunk(text_of(to_node(node)), node) for node in nodes]
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
        failing = [(one.key, faults.get(chunk.embed_hash)) for one, chunks in documents for chunk in reversed(chunks)]
        documents = _sound(documents, {key: fault for key, fault in failing if fault}, report)
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


# Vectors of texts: kept ones, else from the model; checked, and on disk before anything else happens.


def check_vectors(snapshot: Snapshot, paid: PaidStore, embedding: BaseEmbedding) -> None:
    """Refuse an embedding without a name of its own whose vectors are not those of an index.

    The name of an embedding's class is the same for all of its objects, so a text of the index is embedded once more.

    Raises:
        FingerprintError: Its vector is another one than the index has.
    """
    model = model_id(embedding)
    if embedding.model_name != UNNAMED or snapshot.state.model != model:
        return
    for row in snapshot.nodes(snapshot.rows()[:1]):
        text, kept = text_of(to_node(row)), dict(paid.vectors(model, [row.embed_hash])).get(row.embed_hash)
        if kept is None or isinstance(embedding, DocumentEmbedding):
            continue
        now = np.asarray(embed_texts(embedding, [text])[0], np.float32)
        lengths = float(np.linalg.norm(now) * np.linalg.norm(kept))
        if len(now) != len(kept) or float(now @ kept) < _SAME * lengths:
            name = type(embedding).__name__
            raise FingerprintError(
                f"the vectors of this {name} are not those of the index: {text[:_SHOWN]!r} has another one, and both "
                f"have the model_name {UNNAMED!r}. Cure: the former embedding; or {name}(model_name='…') with a name "
                "for each model, and reindex=True."
            )


def embed_missing(
    paid: PaidStore, embedding: BaseEmbedding, chunks: Sequence[Chunk], progress: Callable[[int], object]
) -> tuple[set[str], dict[str, str]]:
    """Keep the vectors of chunks; those of texts that are kept already are not made again.

    New vectors are kept after every :data:`BATCH_TEXTS` texts, or after each window of a document, so that an
    interruption costs no more than those that are being made.

    Args:
        paid: Where vectors are kept.
        embedding: Makes those that are not known.
        chunks: The chunks.
        progress: Called with how many texts were embedded so far.

    Returns:
        Which texts were sent to the model, by their hashes, and why there is no usable vector of some of them.

    Raises:
        EmbeddingError: The model failed, or gave nothing that can be used.
        StorageError: The file of what was paid cannot be written.
    """
    if isinstance(embedding, NoEmbedding):
        return set(), {}
    model, faults, done = model_id(embedding), dict[str, str](), 0
    with step("embed", model=embedding.model_name, rows=len(chunks)) as facts:
        known, dimensions = paid.with_vectors(model, {chunk.embed_hash for chunk in chunks}), 0
        missing = {chunk.embed_hash: chunk for chunk in chunks if chunk.embed_hash not in known}
        if isinstance(embedding, DocumentEmbedding):  # a chunk that came alone is embedded alone
            for chunk in missing.values():
                chunk.window = chunk.window or ((chunk.text,), 0)
        for texts, places in _requests(missing):
            answers = embed_texts(embedding, texts)
            dimensions = (
                dimensions
                or paid.dimensions(model)
                or len(_answer(embedding, "a query", embedding.get_query_embedding, "length"))
            )
            vectors = {key: answers[place] for key, place in places.items()}
            problems = {key: fault for key, one in vectors.items() if (fault := vector_problem(one, dimensions))}
            for key in problems:  # once more, alone: a server may have been wrong
                vectors[key] = _embedded_alone(embedding, missing[key])
            problems = {key: fault for key in problems if (fault := vector_problem(vectors[key], dimensions))}
            if len(problems) == len(places) >= _HOPELESS:
                raise EmbeddingError(
                    f"{embedding.model_name} gave no usable vector for any of {counted(len(places), 'text')}: "
                    f"{next(iter(problems.values()))}. What was finished is kept. Cure: see to the model, then refresh."
                )
            paid.put_vectors(model, {key: one for key, one in vectors.items() if key not in problems})
            faults |= {
                key: f"the vector of its text {missing[key].text[:_SHOWN]!r} cannot be used: {fault}."
                for key, fault in problems.items()
            }
            done += len(places)
            progress(done)
        facts |= {"embedded": len(missing), "failed": len(faults)}
    return set(missing), faults


def _embedded_alone(embedding: BaseEmbedding, chunk: Chunk) -> list[float]:
    texts, place = chunk.window or ((chunk.text,), 0)
    return embed_texts(embedding, list(texts))[place]


def vector_problem(vector: Sequence[float], dimensions: int = 0) -> str:
    """Why a vector cannot be used; "" where it can.

    Args:
        vector: Of any length.
        dimensions: How long it should be; 0 where that is not known.
    """
    if not len(vector):
        return "it is empty"
    if dimensions and len(vector) != dimensions:
        return f"it has {len(vector)} dimensions instead of {dimensions}"
    with np.errstate(over="ignore"):
        values = np.asarray(vector, np.float32)  # as it is kept
        square = float(values @ values)
    if not np.isfinite(values).all() or not np.isfinite(square):
        return "its numbers are too large or no numbers"
    return "" if square > 0 else "all its numbers are 0"


def attach_document_windows(embedding: BaseEmbedding, chunks: Sequence[Chunk]) -> None:
    """Give the chunks of one document the texts that they are embedded with, if the embedding reads chunks together.

    The hash of a chunk is then that of its window and its place, so that an edit embeds its whole window anew.

    Raises:
        EmbeddingError: A chunk is longer than what the model reads.
    """
    if not isinstance(embedding, DocumentEmbedding):
        return
    texts = [chunk.text for chunk in chunks]
    for window in embedding.windows(texts):
        together = tuple(texts[window.start : window.end])
        name = short_hash(together)
        for at in range(window.first, window.last):
            place = at - window.start
            chunks[at].window = together, place
            chunks[at].row = chunks[at].row._replace(embed_hash=short_hash([name, place]))


def _requests(chunks: Mapping[str, Chunk]) -> Iterator[tuple[list[str], dict[str, int]]]:
    """The texts that are sent to the model together, and the places of chunks among them, by hash."""
    for window, group in groupby(chunks.items(), lambda one: one[1].window and one[1].window[0]):
        if window:
            yield list(window), {key: chunk.window[1] for key, chunk in group if chunk.window}
        else:
            for part in iter_batch(group, BATCH_TEXTS):
                yield [chunk.text for _, chunk in part], {key: place for place, (key, _) in enumerate(part)}


def embed_texts(embedding: BaseEmbedding, texts: list[str]) -> list[list[float]]:
    """Vectors of texts, unchecked but for their number; a model that reads chunks together gets all at once.

    Raises:
        EmbeddingError: The model failed, or gave another number of vectors.
    """
    embed: Any = embedding.get_text_embedding_batch
    if isinstance(embedding, DocumentEmbedding):
        embed = embedding.embed_window
    vectors: list[list[float]] = _answer(embedding, counted(len(texts), "text"), embed, texts)
    if len(vectors) != len(texts):
        raise EmbeddingError(
            f"{embedding.model_name} gave {counted(len(vectors), 'vector')} for {counted(len(texts), 'text')}. "
            "Cure: see to the server"
        )
    return vectors


def _answer(embedding: BaseEmbedding, what: str, embed: Callable[[Any], Any], text: Any) -> Any:
    """The answer of an embedding; its error names the model and a cure."""
    try:
        return embed(text)
    except (EmbeddingError, MissingExtraError, SettingError):  # its message is clear
        raise
    except Exception as error:
        name, is_absent = embedding.model_name, getattr(error, "status_code", None) == _ABSENT
        is_ollama = type(error).__module__.partition(".")[0] == "ollama"
        cure = f"ollama pull {name}" if is_ollama and is_absent else "see to the model"
        raise EmbeddingError(
            f"{name} could not embed {what} ({type(error).__name__}: {error}). "
            f"What was finished is kept. Cure: {cure}, then refresh."
        ) from error
