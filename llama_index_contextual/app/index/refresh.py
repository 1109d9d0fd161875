"""One refresh: what changed is made again, in an order that a kill at any instant leaves whole.

New vectors and contexts are in ``paid.sqlite3`` before the chunks that they are for. Each document is written whole in
one transaction. What was not finished is not there, so the next refresh does it. Ids are deterministic and vectors
kept, so doing it again embeds nothing twice.
"""

from __future__ import annotations

import sys
from concurrent.futures import CancelledError, Future, wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from llama_index.core.utils import iter_batch
from tqdm import tqdm

from llama_index_contextual.app.folder import UNREAD
from llama_index_contextual.app.folder.sources import Source, SourceContent, check_source, gather, stamp_if_stable
from llama_index_contextual.app.folder.walk import Problem
from llama_index_contextual.app.index.embedder import chunks_of
from llama_index_contextual.app.index.rows import DocumentRow
from llama_index_contextual.app.index.settings import PAID
from llama_index_contextual.app.index.status import RefreshReport, make_plan
from llama_index_contextual.app.index.writer import set_index_aside, writing
from llama_index_contextual.app.settings.loading import USER_FILE, user_folder
from llama_index_contextual.errors import ConfirmationError, DamagedError, DocumentError, EmbeddingError, SettingError
from llama_index_contextual.text import storable
from llama_index_contextual.watching import in_thread, step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.app.index.query import IndexReader
    from llama_index_contextual.app.index.settings import IndexSettings
    from llama_index_contextual.app.index.writer import Indexed, Writer

    _Parsed = tuple[Source, SourceContent, list[BaseNode]]

BATCH_CHUNKS: Final = 256  # chunks whose contexts are asked for together, and that are written together
_MOST_DELETED: Final = 0.5  # share of the documents that a refresh deletes without a confirmation
_MOST_PAID: Final = 0.2  # share of the chunks whose contexts it pays for again
_ENDING: Final = 5.0  # seconds that Ctrl-C leaves to an embedding; a server may take longer, and is not waited for
_OTHER_SETTINGS: Final = "it was indexed with other settings, and is no file. Cure: pass the document again."


def refresh_index(
    reader: IndexReader, source: str | Path | Iterable[Document] | None, **options: bool
) -> RefreshReport:
    """Refresh an index, or its successor where another embedding model is to replace it.

    Args:
        reader: Of the index.
        source: As :meth:`ContextualIndex.refresh` takes it.
        **options: The others of :meth:`ContextualIndex.refresh`.

    Raises:
        ConfirmationError: It would delete or pay for much, and may not.
        SettingError: There is no such source, or the index is to be replaced, and there is a source.
    """
    settings, checked = reader.settings, check_source(source, reader.settings.folders)

    def refreshed() -> RefreshReport:
        with writing(reader) as writer:
            if checked is not None and writer.database is not settings.database:
                raise SettingError("replaces the whole index. Cure: refresh() without a source first.", reindex=True)
            return Refresh(settings, writer, **options).run(checked)

    with step("refresh") as facts:
        try:
            report = refreshed()
        except DamagedError as error:  # deeper than the first look
            if str(error).startswith(str(settings.database.path)):
                with reader.lock.hold():
                    set_index_aside(reader, error)
            report = refreshed()
        facts |= {**report.counts, "chunks": report.chunks, "embedded": report.embedded}
    return report


class Refresh:
    """One refresh.

    Args:
        settings: Of the index.
        writer: Documents and vectors.
        show_progress: As :meth:`ContextualIndex.refresh` takes it, as are the others.
        retry_contexts: The same.
        confirm: The same.
    """

    def __init__(
        self, settings: IndexSettings, writer: Writer, *, show_progress: bool, retry_contexts: bool, confirm: bool
    ) -> None:
        self.settings, self.writer = settings, writer
        self.show_progress, self.retry_contexts, self.confirm = show_progress, retry_contexts, confirm
        self.report, self.bar = RefreshReport(), tqdm(disable=True)
        self._is_stopped = False

    def run(self, source: str | Path | Sequence[Document] | None) -> RefreshReport:
        """Bring the index up to date with a source."""
        settings, writer, failed = self.settings, self.writer, list[Problem]()
        reading = replace(settings.reading, converter=partial(settings.converter, keep=True))
        found, covered = gather(source, reading, writer.documents, failed)
        sources, made_with = {one.id: one for one in found}, settings.made_with(settings.fingerprint)
        now = {key: one.sha256 for key, one in sources.items()}
        self.report = make_plan(self._indexed(), now, made_with, covered, failed)
        self.report.embedded = writer.embedded_again
        if not self.confirm:
            self._ask({*now.values()})
        to_index = self.report.to_index
        is_hidden = not (self.show_progress and sys.stderr.isatty() and to_index)
        with tqdm(total=len(to_index), desc="Indexing", unit=" documents", disable=is_hidden) as self.bar:
            self._index([sources[key] for key in to_index])
        forgotten = [key for key, row in writer.documents.items() if not row.is_indexed and key not in sources]
        for group in iter_batch([*self.report.deleted, *(forgotten if covered == "" else [])], 500):
            writer.delete(group)
        writer.record(self._noted(sources, sources.keys() - set(to_index)))
        rows = {**self.settings.database.documents(), **writer.documents}
        passed = [key for key, row in rows.items() if row.kind == "document" and key not in sources]
        made = {key: row.made_with for key, row in writer.documents.items()}
        writer.finish()
        self.report.documents = sum(one.is_indexed for one in writer.documents.values())
        with writer.database.reading() as snapshot:
            self.report.context_sources = snapshot.context_sources()
        self.report.failed += [Problem(key, _OTHER_SETTINGS) for key in passed if made.get(key) != made_with(key)]
        self.report.failed.sort(key=lambda problem: problem.path)  # files were read while others were written
        return self.report

    def _ask(self, hashes: set[str]) -> None:
        """Stop where more would be lost or paid than a change of some files explains.

        Args:
            hashes: Of what is there now: a file that was moved is not lost.
        """
        settings, state, rows = self.settings, self.writer.state, self.writer.documents
        documents = sum(one.is_indexed for one in rows.values())
        lost = sum(rows[key].sha256 not in hashes for key in self.report.deleted)
        if lost > documents * _MOST_DELETED:
            raise ConfirmationError(
                f"this refresh would delete {lost} of {documents} documents, which the file rules of this process no "
                "longer find. Cure: check that the folder is mounted, and the rules and readers; or, to delete them, "
                "refresh(confirm=True), or index --yes."
            )
        former = str(state.settings.get("context.generator", ""))
        if not self.report.outdated or not former.startswith(PAID) or former == settings.contexts.fingerprint:
            return
        with self.writer.database.reading() as snapshot:
            sources = snapshot.context_sources()
        chunks, paid = sum(sources.values()), sum(n for source, n in sources.items() if source.startswith(PAID))
        if paid > chunks * _MOST_PAID:
            raise ConfirmationError(
                f"this refresh would replace the contexts of {paid} of {chunks} chunks by a language model, because "
                "settings differ from those that made them. Cure: the former settings, by options or under "
                f'[folders."{settings.folders.root}"] in {user_folder() / USER_FILE}; or, to pay for contexts again, '
                "refresh(confirm=True), or index --yes."
            )

    def _indexed(self) -> dict[str, DocumentRow]:
        """Indexed documents; those in which a fallback stood in count as outdated.

        Only their missing contexts are asked for again: the others are kept.
        """
        documents = {key: one for key, one in self.writer.documents.items() if one.is_indexed}
        wanted = self.settings.paid_source
        if wanted is None or not self.retry_contexts or not documents:
            return documents
        query = "SELECT key FROM documents WHERE id IN (SELECT document FROM chunks WHERE context_source != ?)"
        with self.writer.database.reading() as snapshot:
            incomplete = {key for (key,) in snapshot.fetch(query, (wanted,))}
        return {key: one._replace(made_with="") if key in incomplete else one for key, one in documents.items()}

    def _noted(self, sources: Mapping[str, Source], unchanged: set[str]) -> list[DocumentRow]:
        """Documents that cannot be indexed, those that no longer fail, and today's size and times."""
        documents, noted = self.writer.documents, []
        failed = {one.path: one.reason for one in self.report.failed if not one.reason.startswith(UNREAD)}
        for key, source in sources.items():
            row = new = documents.get(key, DocumentRow(key))
            if key in failed and source.stamp:
                new = row._replace(failed=storable(failed[key])[0], stamp=source.stamp)
            elif key in unchanged:
                new = row._replace(failed="", stamp=stamp_if_stable(source.stamp))
            if new != row:
                noted.append(new)
        return noted

    def _index(self, sources: Sequence[Source]) -> None:
        """Embed and write each batch in a thread of its own, while the next one is read, parsed and put into context.

        A language model, an embedding and the disk so work at the same time. Batches are those that would be made one
        after the other; they are written in order, and no more than two are in memory.
        """
        written: Future[None] | None = None
        try:
            for group in self._parsed(sources):
                batch = self._prepared(group)
                _finish(written)
                written = in_thread(self._write, batch)
            _finish(written)
        except BaseException as error:  # before the index is closed nothing may be writing any more
            self._is_stopped = not isinstance(error, Exception)  # the user's Ctrl-C
            wait([] if written is None else [written], timeout=_ENDING if self._is_stopped else None)
            raise

    def _parsed(self, sources: Iterable[Source]) -> Iterator[list[_Parsed]]:
        """Sources with their nodes, in their order, some together; one that cannot be read is reported, alone."""
        group: list[_Parsed] = []
        for source in sources:
            try:
                content = source.load()
                nodes = self.settings.parser.get_nodes_from_documents(content.documents)
            except DocumentError as error:
                self.report.fail(source.id, str(error))
                self.bar.update()
                continue
            group.append((source, content, nodes))
            if sum(len(nodes) for *_, nodes in group) >= BATCH_CHUNKS:
                yield group
                group = []
        if group:
            yield group

    def _prepared(self, group: Sequence[_Parsed]) -> list[Indexed]:
        """What is to be written of sources, with contexts."""
        contexts, prepared = self.settings.contexts, []
        made_with = self.settings.made_with(self.settings.fingerprint)
        documents = [document for _, content, _ in group for document in content.documents]
        nodes = [node for *_, nodes_of in group for node in nodes_of]
        if nodes:  # calls for several documents go to a model together
            with step("context", source=contexts.fingerprint, documents=len(documents), chunks=len(nodes)):
                contexts(nodes, documents, progress=self._proceed)
        del nodes
        for source, content, nodes_of in group:
            if content.repair:
                self.report.repaired.append(Problem(source.id, content.repair))
            try:
                chunks = chunks_of(nodes_of, self.settings.embedding)
            except EmbeddingError as error:  # one of its chunks is too long for the model
                self.report.fail(source.id, str(error))
                continue
            state = content.sha256, content.stamp, made_with(source.id), len(chunks)
            prepared.append((DocumentRow(source.id, source.kind, *state), chunks))
        return prepared

    def _write(self, batch: Sequence[Indexed]) -> None:
        """Embed a batch and write it."""
        embedded, refused = self.writer.write(batch, self._proceed)
        self.report.embedded += embedded
        for key, reason in refused.items():
            self.report.fail(key, reason)
        self.bar.update(len(batch))

    def _proceed(self, *_: object) -> None:
        """Show how many calls a model has had; end where the user wants that."""
        if calls := self.settings.contexts.usage.calls:
            self.bar.set_postfix(calls=calls)
        if self._is_stopped:
            raise CancelledError


def _finish(written: Future[None] | None) -> None:
    """Wait until a batch is written, a second at a time: Python can miss a Ctrl-C that comes as a wait begins."""
    if written is not None:
        while not wait([written], timeout=1.0).done:
            pass
        written.result()
