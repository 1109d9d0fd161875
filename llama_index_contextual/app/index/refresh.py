"""One refresh: what changed is made again, in an order that a kill at any instant leaves whole.

New vectors and contexts are in the content cache before the chunks that they are for. Each document
is written whole in one transaction; where another embedding replaces that of the index, all of them
are. What was not finished is not there, so the next refresh does it. Ids are deterministic and
vectors are kept, so doing it again embeds nothing twice.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

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
# Chunks that get contexts together and are written together: few at first, so that something can be
# searched soon.
FIRST_CHUNKS: Final = 16
BATCH_CHUNKS: Final = 256
_MAX_DELETED_SHARE: Final = 0.5  # of the documents, without a confirmation
_MAX_PAID_SHARE: Final = 0.2  # of the chunks whose contexts are paid for again, the same
_MADE_AGAIN: Final = "made again"  # in place of the hash of the settings that made a document
_SMOOTHING: Final = 0.1  # of the speed that the progress bar shows: about the last ten steps
_dispatcher: Final = get_dispatcher(__name__)


@contextlib.contextmanager
def writing(settings: IndexSettings) -> Iterator[bool]:
    """Write alone, after a damaged database was set aside, and keep the arrays at the end.

    Yields:
        What :meth:`IndexSettings.replaces` returns.

    Raises:
        LockedError: Another process is writing.
        FingerprintError: The settings are not those of the index.
    """
    with settings.layout.hold():
        replaces = False
        try:
            settings.database.check()
            replaces = settings.replaces(settings.database.state())
        except DamagedError as error:
            _set_aside(settings, error)
        yield replaces
        with settings.database.reading() as snapshot:  # so that no query has to derive them
            settings.caches.save(snapshot)
            kept = snapshot.state.model_dump(include={"folders", "choices", "identity", "change"})
        if kept != settings.layout.remembered_settings():
            settings.layout.remember_settings(kept)


def _set_aside(settings: IndexSettings, error: DamagedError) -> None:
    logger.warning(
        "%s The file is set aside as %s and built again. "
        "Documents that were passed as objects have to be passed again.",
        error,
        settings.database.set_aside().name,
    )


@_dispatcher.span
def refresh_index(
    settings: IndexSettings, documents: Iterable[Document] | None, **options: bool
) -> RefreshReport:
    """Refresh an index; one whose damage shows on the way is set aside and made again.

    Args:
        settings: Of the index.
        documents: As :meth:`ContextualIndex.refresh` takes them.
        **options: The other arguments of :meth:`ContextualIndex.refresh`.

    Raises:
        ConfirmationError: It would delete or pay for much, and may not.
        SettingError: These are not documents, or they are passed while the index is replaced.
    """
    checked = check_documents(documents, settings.folders)
    try:
        return _refresh(settings, checked, options)
    except DamagedError as error:
        with settings.layout.hold():
            _set_aside(settings, error)
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
        settings: Of the index.
        replaces: Whether another embedding replaces that of the index.
        show_progress: As :meth:`ContextualIndex.refresh` takes it, as are the others.
        retry_contexts: The same.
        confirm: The same.
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
        self.failures: dict[str, str] = {}  # that last until a file changes, by document
        self.bar = tqdm(disable=True)
        self._replacement: Transaction | None = None

    def run(self, documents: Sequence[Document] | None) -> RefreshReport:
        """Bring the index up to date with its folder, or with documents."""
        settings = self.settings

        # Compare what is there with what is indexed.
        failed: list[Problem] = []
        reading = replace(settings.reading, converter=partial(settings.converter, keep=True))
        gathered = gather(documents, reading, self.documents, failed)
        sources = {source.id: source for source in gathered}
        hashes = {key: source.sha256 for key, source in sources.items()}
        indexed = {key: row for key, row in self.documents.items() if row.is_indexed}
        self.report = make_plan(indexed, hashes, self.made_with, failed, deletes=documents is None)
        to_index = self.report.to_index

        # Refuse what the user has to confirm.
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
        """Return the documents that are made again because contexts in them fell back."""
        paid = self.settings.paid_source
        if paid is None or not retry_contexts or not self.before:
            return {}
        query = f"SELECT DISTINCT key {JOINED} WHERE context_source != ?"
        with self.settings.database.reading() as snapshot:
            keys = [key for (key,) in snapshot.fetch(query, [paid])]
        return {key: self.before[key]._replace(made_with=_MADE_AGAIN) for key in keys}

    def _require_few_deletions(self, indexed: Mapping[str, DocumentRow], hashes: set[str]) -> None:
        """Stop where more documents would be deleted than a change of some files explains.

        Args:
            indexed: The documents that are indexed.
            hashes: The hashes of what is there now: a file that was moved is not lost.
        """
        lost = sum(indexed[key].sha256 not in hashes for key in self.report.deleted)
        if lost > len(indexed) * _MAX_DELETED_SHARE:
            raise ConfirmationError(
                f"this refresh would delete {lost} of {len(indexed)} documents, which the file "
                "rules of this process no longer find. Check that the folder is mounted, and the "
                "rules and readers; or, to delete them, call refresh(confirm=True), or index --yes."
            )

    def _require_few_payments(self) -> None:
        """Stop where many contexts of a language model would be paid for again."""
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
        """Write everything in one transaction where the embedding is another one.

        Until its end readers see the former index.
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
        """Show how many bytes of text are indexed, and how long the others take at that speed."""
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
        """Yield groups of sources with their nodes; one that cannot be read is reported."""
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
        """Report a document; remember why, unless the system may let it be read next time."""
        self.report.fail(key, str(error))
        if not isinstance(error, UnreadableError):
            self.failures[key] = storable(str(error))[0]

    def _prepared(self, group: Sequence[_Parsed]) -> list[_Prepared]:
        """Return what is to be written of sources, with contexts."""
        # Requests for several documents go to a language model together.
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
        """Embed documents and write them, each whole; one that cannot be written is reported."""
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
        """Write in one transaction, together with the settings that made what is written."""
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
        """Delete what is no longer there, and write the rows of documents whose chunks stay."""
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
        """Return the documents that are not files and that other settings would make otherwise."""
        reason = "it has to be made again, and is not a file. Pass the document again."
        problems = []
        for key, row in self.before.items():
            if row.kind == "document" and key not in sources:
                current = self.documents.get(key)
                if current is None or current.made_with != self.made_with:
                    problems.append(Problem(key, reason))
        return problems

    def _changed_rows(self, sources: Mapping[str, Source], to_index: set[str]) -> list[DocumentRow]:
        """Return the rows of documents that fail now or no longer, or have another size or time."""
        changed = []
        for key, source in sources.items():
            before = self.documents.get(key) or DocumentRow(key)
            if key in self.failures and source.stamp:
                row = before._replace(failed=self.failures[key], stamp=source.stamp)
            elif key in to_index:  # it was written, or cannot be read at this moment
                continue
            elif before.failed or before.stamp != source.stamp:  # its content is the same
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
