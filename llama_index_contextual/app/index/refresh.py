"""Refresh an index, in an order that leaves it intact if the process is killed at any moment.

New vectors and contexts are cached before the chunks that need them are written. Each document is
written in one transaction. If another embedding replaces that of the index, one transaction
contains all documents. The next refresh goes on with unfinished documents. It embeds nothing twice,
because ids are deterministic and vectors are cached.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from llama_index.core.instrumentation import get_dispatcher
from tqdm import tqdm

from llama_index_contextual.app.folder.files import UnreadableError
from llama_index_contextual.app.folder.sources import (
    Source,
    SourceContent,
    check_documents,
    gather,
    stamp_if_stable,
)
from llama_index_contextual.app.folder.walk import Problem
from llama_index_contextual.app.index.database import JOINED, Transaction
from llama_index_contextual.app.index.embedder import Chunk, Embedder, chunks_of
from llama_index_contextual.app.index.rows import DocumentRow, NodeRow
from llama_index_contextual.app.index.settings import PAID, IndexSettings, nodes_hash
from llama_index_contextual.app.index.status import RefreshReport, make_plan
from llama_index_contextual.app.settings.loading import USER_FILE, user_folder
from llama_index_contextual.utils.errors import (
    ConfirmationError,
    DamagedError,
    DocumentError,
    SettingError,
)
from llama_index_contextual.utils.text import counted, storable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from llama_index.core.schema import BaseNode, Document

    _Parsed = tuple[Source, SourceContent, list[BaseNode]]
    _Prepared = tuple[DocumentRow, list[Chunk]]

logger = logging.getLogger(__name__)
# Chunks that get contexts together and are written together. The first batches are small, so that
# searches find something soon.
FIRST_CHUNKS = 16
BATCH_CHUNKS = 256
_MAX_DELETED_SHARE = 0.5  # of the documents, without a confirmation
_MAX_PAID_SHARE = 0.2  # of the chunks whose contexts are paid for again, without a confirmation
_MADE_AGAIN = "made again"  # instead of the hash of the settings that made a document
_SMOOTHING = 0.1  # of the speed in the progress bar: about the last ten steps count
_dispatcher = get_dispatcher(__name__)


@contextlib.contextmanager
def writing(settings: IndexSettings) -> Iterator[bool]:
    """Hold the write lock, and save the arrays at the end.

    Yields:
        The result of :meth:`IndexSettings.replaces`.

    Raises:
        DamagedError: The database is damaged.
        LockedError: Another process is writing.
        FingerprintError: The settings are not those of the index.
    """
    with settings.layout.hold():
        settings.database.check()
        yield settings.replaces(settings.database.state())
        with settings.database.reading() as snapshot:  # so that queries need not derive them
            settings.caches.save(snapshot)
            kept = snapshot.state.model_dump(include={"folders", "choices", "identity", "change"})
        if kept != settings.layout.remembered_settings():
            settings.layout.remember_settings(kept)


@_dispatcher.span
def refresh_index(
    settings: IndexSettings, documents: Iterable[Document] | None, **options: bool
) -> RefreshReport:
    """Refresh an index. If it turns out to be damaged, set it aside and build it again.

    Args:
        settings: The settings of the index.
        documents: See :meth:`ContextualIndex.refresh`.
        **options: The other arguments of :meth:`ContextualIndex.refresh`.

    Raises:
        ConfirmationError: The refresh would delete or pay for much, and is not confirmed.
        SettingError: ``documents`` are not documents, or the whole index is being replaced.
    """
    checked = check_documents(documents, settings.folders)
    try:
        return _refresh(settings, checked, options)
    except DamagedError as error:
        with settings.layout.hold():
            logger.warning(
                "%s The file is set aside as %s and built again. "
                "Pass documents again that were passed as objects.",
                error,
                settings.database.set_aside().name,
            )
    return _refresh(settings, checked, options)


def _refresh(
    settings: IndexSettings, documents: Sequence[Document] | None, options: Mapping[str, bool]
) -> RefreshReport:
    with writing(settings) as replaces:
        if documents is not None and replaces:
            raise SettingError(
                "`reindex=True` replaces the whole index. Call refresh() without documents first."
            )
        report = Refresh(settings, replaces, **options).run(documents)
        settings.content_cache.prune()
    return report


class Refresh:
    """One refresh.

    Args:
        settings: The settings of the index.
        replaces: Whether another embedding replaces that of the index.
        show_progress: See :meth:`ContextualIndex.refresh`.
        retry_contexts: See there.
        confirm: See there.
    """

    def __init__(
        self,
        settings: IndexSettings,
        replaces: bool,
        *,
        show_progress: bool,
        retry_contexts: bool,
        confirm: bool,
    ) -> None:
        self.settings = settings
        self.replaces = replaces
        self.show_progress = show_progress
        self.confirm = confirm
        self.made_with = nodes_hash(settings.fingerprint)
        self.before = settings.database.documents()
        self.documents: dict[str, DocumentRow] = {}
        if not replaces:
            self.documents = {**self.before, **self._with_fallbacks(retry_contexts)}
        database = None if replaces else settings.database
        self.embedder = Embedder(settings.embedding, settings.content_cache, database)
        self.report = RefreshReport()
        self.failures: dict[str, str] = {}  # lasting until the file changes, by document
        self.bar = tqdm(disable=True)
        self._replacement: Transaction | None = None

    def run(self, documents: Sequence[Document] | None) -> RefreshReport:
        """Bring the index up to date with its folder, or add documents."""
        settings = self.settings

        # Compare the sources with the index.
        failed: list[Problem] = []
        reader = replace(settings.folder_reader, converter=partial(settings.converter, keep=True))
        gathered = gather(documents, reader, self.documents, failed)
        sources = {source.id: source for source in gathered}
        hashes = {key: source.sha256 for key, source in sources.items()}
        indexed = {key: row for key, row in self.documents.items() if row.is_indexed}
        self.report = make_plan(indexed, hashes, self.made_with, failed, deletes=documents is None)
        to_index = self.report.to_index

        # Stop if the user has to confirm the refresh.
        if not self.confirm:
            self._require_few_deletions(indexed, set(hashes.values()))
            self._require_few_payments()

        # Write.
        changed_sources = [sources[key] for key in to_index]
        with self._replacing(), self._progress_bar(changed_sources):
            for group in self._parsed(changed_sources):
                self._write(self._prepared(group))
                self.bar.update(sum(source.size for source, _, _ in group))
            self._finish(sources, to_index, is_whole=documents is None)
        return self.report

    def _with_fallbacks(self, retry_contexts: bool) -> dict[str, DocumentRow]:
        """Return the documents to index again because some of their contexts fell back."""
        paid = self.settings.paid_source
        if paid is None or not retry_contexts or not self.before:
            return {}
        query = f"SELECT DISTINCT key {JOINED} WHERE context_source != ?"
        with self.settings.database.reading() as snapshot:
            keys = [key for (key,) in snapshot.fetch(query, [paid])]
        return {key: self.before[key]._replace(made_with=_MADE_AGAIN) for key in keys}

    def _require_few_deletions(self, indexed: Mapping[str, DocumentRow], hashes: set[str]) -> None:
        """Stop if suspiciously many documents would be deleted.

        Args:
            indexed: The indexed documents.
            hashes: The hashes of the current files, because a file that was moved is not lost.
        """
        lost = sum(indexed[key].sha256 not in hashes for key in self.report.deleted)
        if lost > len(indexed) * _MAX_DELETED_SHARE:
            raise ConfirmationError(
                f"this refresh would delete {lost} of {len(indexed)} documents, which the file "
                "rules of this process no longer find. Check that the folder is mounted, and the "
                "rules and readers; or, to delete them, call refresh(confirm=True), or index --yes."
            )

    def _require_few_payments(self) -> None:
        """Stop if many contexts of a language model would be paid for again."""
        settings = self.settings
        generator = settings.database.state().settings.get("context.generator")
        if not self.report.outdated or generator == settings.contexts.fingerprint:
            return
        with settings.database.reading() as snapshot:
            sources = snapshot.context_sources()
        chunks = sum(sources.values())
        paid = sum(count for source, count in sources.items() if source.startswith(PAID))
        if paid > chunks * _MAX_PAID_SHARE:
            raise ConfirmationError(
                f"this refresh would replace the contexts of {paid} of {chunks} chunks by a "
                "language model, because settings differ from those that made them. Use the "
                f'former settings, by options or under [folders."{settings.folders.root}"] in '
                f"{user_folder() / USER_FILE}; or, to pay for contexts again, call "
                "refresh(confirm=True), or index --yes."
            )

    @contextlib.contextmanager
    def _replacing(self) -> Iterator[None]:
        """Write everything in one transaction if the embedding is replaced.

        Until it ends, readers see the former index.
        """
        if not self.replaces:
            yield
            return
        with self.settings.database.writing() as transaction:
            transaction.delete_documents(self.before)
            transaction.set_state(dimensions=0, **self.settings.written())
            self._replacement = transaction
            yield

    @contextlib.contextmanager
    def _progress_bar(self, sources: Sequence[Source]) -> Iterator[None]:
        """Show the progress in bytes of text, and the time that is left."""
        is_shown = self.show_progress and sys.stderr.isatty() and bool(sources)
        with tqdm(
            total=sum(source.size for source in sources),
            desc=f"Indexing {counted(len(sources), 'document')}",
            unit="B",
            unit_scale=True,
            smoothing=_SMOOTHING,
            disable=not is_shown,
        ) as bar:
            self.bar = bar
            yield

    def _parsed(self, sources: Iterable[Source]) -> Iterator[list[_Parsed]]:
        """Yield groups of sources with their nodes, and report sources that cannot be read."""
        group: list[_Parsed] = []
        size = 0
        enough = min(FIRST_CHUNKS, BATCH_CHUNKS)
        for source in sources:
            try:
                content = source.load()
                nodes = self.settings.parser.get_nodes_from_documents(content.documents)
            except DocumentError as error:
                self._fail(source.id, error)
                self.bar.update(source.size)
                continue
            group.append((source, content, nodes))
            size += len(nodes)
            if size >= enough:
                yield group
                group = []
                size = 0
                enough = min(2 * enough, BATCH_CHUNKS)
        if group:
            yield group

    def _fail(self, key: str, error: DocumentError) -> None:
        """Report a document. Remember the reason, unless the document may be readable next time."""
        self.report.fail(key, str(error))
        if not isinstance(error, UnreadableError):
            self.failures[key] = storable(str(error))[0]

    def _prepared(self, group: Sequence[_Parsed]) -> list[_Prepared]:
        """Return the rows and chunks of sources, with contexts."""
        # A language model gets the requests for several documents together.
        documents = [document for _, content, _ in group for document in content.documents]
        nodes = [node for *_, nodes_of_source in group for node in nodes_of_source]
        contexts = self.settings.contexts
        if nodes:
            contexts(nodes, documents, progress=self._show_calls)
        del nodes

        prepared = []
        for source, content, nodes_of_source in group:
            if content.repair:
                self.report.repaired.append(Problem(source.id, content.repair))
            try:
                chunks = chunks_of(nodes_of_source)
            except DocumentError as error:
                self._fail(source.id, error)
                continue
            row = DocumentRow(
                source.id, source.kind, content.sha256, content.stamp, self.made_with, len(chunks)
            )
            prepared.append((row, chunks))
        return prepared

    def _show_calls(self, _: object) -> None:
        if self.settings.paid_source:
            self.bar.set_postfix(calls=self.settings.contexts.usage.calls)

    @_dispatcher.span
    def _write(self, batch: Sequence[_Prepared]) -> None:
        """Embed and write documents, and report those that cannot be written."""
        chunks = [chunk for _, chunks_of_document in batch for chunk in chunks_of_document]
        result = self.embedder.embed(chunks, [document.key for document, _ in batch])
        self.report.embedded += result.sent
        with self._transaction() as transaction:
            for document, chunks_of_document in batch:
                rows = [chunk.row for chunk in chunks_of_document]
                try:
                    _refuse_unusable(rows, result.problems)
                    transaction.replace_document(document, rows, result.vectors)
                except DocumentError as error:
                    self._fail(document.key, error)
                else:
                    self.documents[document.key] = document

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Open a transaction that also writes the settings of this refresh."""
        if self._replacement is not None:
            yield self._replacement
            return
        written = self.settings.written()
        with self.settings.database.writing() as transaction:
            if any(getattr(transaction.state, name) != value for name, value in written.items()):
                transaction.set_state(**written)
            yield transaction

    def _finish(
        self, sources: Mapping[str, Source], to_index: Sequence[str], *, is_whole: bool
    ) -> None:
        """Delete lost documents, and update the rows of documents whose chunks stay."""
        report = self.report
        deleted = list(report.deleted)
        if is_whole:
            never_indexed = [key for key, row in self.documents.items() if not row.is_indexed]
            deleted += [key for key in never_indexed if key not in sources]
        changed_rows = self._changed_rows(sources, set(to_index))
        with self._transaction() as transaction:
            if deleted:
                transaction.delete_documents(deleted)
            if changed_rows:
                transaction.put_documents(changed_rows)
            report.context_sources = transaction.context_sources()
        indexed = sum(row.is_indexed for row in self.documents.values())
        report.documents = indexed - len(report.deleted)
        report.failed += self._passed_objects_to_pass_again(sources)
        report.failed.sort(key=lambda problem: problem.path)

    def _passed_objects_to_pass_again(self, sources: Mapping[str, Source]) -> list[Problem]:
        """Return the documents passed as objects that were indexed with other settings."""
        reason = "it has to be made again, and is not a file. Pass the document again."
        problems = []
        for key, row in self.before.items():
            if row.kind == "document" and key not in sources:
                current = self.documents.get(key)
                if current is None or current.made_with != self.made_with:
                    problems.append(Problem(key, reason))
        return problems

    def _changed_rows(self, sources: Mapping[str, Source], to_index: set[str]) -> list[DocumentRow]:
        """Return the rows whose failure, size or times changed although their chunks stay."""
        changed = []
        for key, source in sources.items():
            before = self.documents.get(key) or DocumentRow(key)
            if key in self.failures and source.stamp:
                row = before._replace(failed=self.failures[key], stamp=source.stamp)
            elif key in to_index:  # it was written, or cannot be read for the moment
                continue
            elif before.failed or before.stamp != source.stamp:  # its content has not changed
                row = before._replace(failed="", stamp=stamp_if_stable(source.stamp))
            else:
                continue
            if row != before:
                changed.append(row)
        return changed


def _refuse_unusable(rows: Iterable[NodeRow], problems: Mapping[str, str]) -> None:
    for row in rows:
        if row.embed_hash in problems:
            raise DocumentError(problems[row.embed_hash])
