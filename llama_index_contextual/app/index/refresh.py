"""One refresh: what changed is made again, in an order that a kill at any instant leaves whole.

New vectors and contexts are in the content cache before the chunks that they are for. Each document is written whole in
one transaction; where another embedding replaces that of the index, all of them are. What was not finished is not
there, so the next refresh does it. Ids are deterministic and vectors kept, so doing it again embeds nothing twice.
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

from llama_index_contextual.app.folder import UNREAD
from llama_index_contextual.app.folder.sources import (
    Source,
    SourceContent,
    check_documents,
    gather,
    stamp_if_stable,
)
from llama_index_contextual.app.folder.walk import Problem
from llama_index_contextual.app.index.database import JOINED, Transaction
from llama_index_contextual.app.index.embedder import (
    Chunk,
    Embedder,
    check_identity,
    chunks_of,
)
from llama_index_contextual.app.index.rows import DocumentRow, IndexState
from llama_index_contextual.app.index.settings import PAID, IndexSettings, nodes_hash
from llama_index_contextual.app.index.status import RefreshReport, make_plan
from llama_index_contextual.app.settings.loading import USER_FILE, user_folder
from llama_index_contextual.utils.errors import (
    ConfirmationError,
    DamagedError,
    DocumentError,
    SettingError,
)
from llama_index_contextual.utils.text import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.schema import BaseNode, Document

    _Parsed = tuple[Source, SourceContent, list[BaseNode]]
    _Prepared = tuple[DocumentRow, list[Chunk]]

logger = logging.getLogger(__name__)
_dispatcher: Final = get_dispatcher(__name__)
FIRST_CHUNKS: Final = (
    16  # chunks that are written together at first, so that something can be searched soon
)
BATCH_CHUNKS: Final = (
    256  # chunks whose contexts are asked for together, and that are written together
)
_MOST_DELETED: Final = 0.5  # share of the documents that a refresh deletes without a confirmation
_MOST_PAID: Final = 0.2  # share of the chunks whose contexts it pays for again
_LACKING: Final = (
    "lacking"  # in place of the hash of the settings that made a document: it is made again
)


@contextlib.contextmanager
def writing(settings: IndexSettings) -> Iterator[bool]:
    """Write alone, after what is damaged was set aside, and keep the caches; yields :meth:`IndexSettings.replaces`.

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
            logger.warning(
                "%s The file is set aside as %s and built again; what was paid for is kept. Documents that were passed "
                "as objects have to be passed again.",
                error,
                settings.database.set_aside().name,
            )
        yield replaces
        with settings.database.reading() as snapshot:  # so that no question has to derive them
            settings.caches.save(snapshot)
            remember(settings, snapshot.state)


def remember(settings: IndexSettings, state: IndexState) -> None:
    """Keep beside the index what outlives it, and the number of its last change."""
    values = state.model_dump(include={"folders", "choices", "identity", "change"})
    if values != settings.layout.remembered_settings():
        settings.layout.remember_settings(values)


@_dispatcher.span
def refresh_index(
    settings: IndexSettings, documents: Iterable[Document] | None, **options: bool
) -> RefreshReport:
    """Refresh an index.

    Args:
        settings: Of the index.
        documents: As :meth:`ContextualIndex.refresh` takes them.
        **options: The others of :meth:`ContextualIndex.refresh`.

    Raises:
        ConfirmationError: It would delete or pay for much, and may not.
        SettingError: They are no documents, or the index is to be replaced, and there are documents.
    """
    checked = check_documents(documents, settings.folders)
    with writing(settings) as replaces:
        if checked is not None and replaces:
            raise SettingError(
                "`reindex=True` replaces the whole index. Call refresh() without documents first."
            )
        report = Refresh(settings, replaces, **options).run(checked)
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
        self.settings, self.show_progress, self.confirm = settings, show_progress, confirm
        self.before = settings.database.documents()
        self.documents = {} if replaces else {**self.before, **self._lacking(retry_contexts)}
        self.embedder = Embedder(
            settings.embedding, settings.content_cache, None if replaces else settings.database
        )
        self.replaces, self.made_with = replaces, nodes_hash(settings.fingerprint)
        self.report, self.bar = RefreshReport(), tqdm(disable=True)
        self._begin: Callable[[], contextlib.AbstractContextManager[Transaction]] = (
            settings.database.writing
        )

    def run(self, documents: Sequence[Document] | None) -> RefreshReport:
        """Bring the index up to date with its folder, or with documents."""
        settings, failed = self.settings, list[Problem]()
        reading = replace(settings.reading, converter=partial(settings.converter, keep=True))
        sources = {one.id: one for one in gather(documents, reading, self.documents, failed)}
        now = {key: one.sha256 for key, one in sources.items()}
        indexed = {key: one for key, one in self.documents.items() if one.is_indexed}
        self.report = report = make_plan(
            indexed, now, self.made_with, failed, deletes=documents is None
        )
        if report.to_index and indexed:
            with settings.database.reading() as snapshot:
                check_identity(snapshot, settings.embedding)
        if not self.confirm:
            self._ask(indexed, {*now.values()})
        with contextlib.ExitStack() as stack:
            if (
                self.replaces
            ):  # whoever reads sees the former index until all of the new one is there
                whole = stack.enter_context(settings.database.writing())
                whole.delete_documents(self.before)
                whole.set_state(dimensions=0)
                self._begin = lambda: contextlib.nullcontext(whole)
            to_index = report.to_index
            is_hidden = not (self.show_progress and sys.stderr.isatty() and to_index)
            self.bar = stack.enter_context(
                tqdm(total=len(to_index), desc="Indexing", unit=" documents", disable=is_hidden)
            )
            for group in self._parsed([sources[key] for key in to_index]):
                self._write(self._prepared(group))
            self._finish(sources, to_index, is_whole=documents is None)
        return report

    def _lacking(self, retry_contexts: bool) -> dict[str, DocumentRow]:
        """The documents that are made again although nothing changed.

        They lack contexts in whose place others stood in. What they have is kept.
        """
        if not any(one.is_indexed for one in self.before.values()):
            return {}
        paid = self.settings.paid_source
        if paid is None or not retry_contexts:
            return {}
        query = f"SELECT DISTINCT key {JOINED} WHERE context_source != ?"
        with self.settings.database.reading() as snapshot:
            keys = [key for (key,) in snapshot.fetch(query, [paid])]
        return {key: self.before[key]._replace(made_with=_LACKING) for key in keys}

    def _ask(self, indexed: Mapping[str, DocumentRow], hashes: set[str]) -> None:
        """Stop where more would be lost or paid than a change of some files explains.

        Args:
            indexed: The documents that are indexed.
            hashes: Of what is there now: a file that was moved is not lost.
        """
        lost = sum(indexed[key].sha256 not in hashes for key in self.report.deleted)
        if lost > len(indexed) * _MOST_DELETED:
            raise ConfirmationError(
                f"this refresh would delete {lost} of {len(indexed)} documents, which the file rules of this process "
                "no longer find. Cure: check that the folder is mounted, and the rules and readers; or, to delete "
                "them, refresh(confirm=True), or index --yes."
            )
        settings, state = self.settings, self.settings.database.state()
        if (
            not self.report.outdated
            or state.settings.get("context.generator") == settings.contexts.fingerprint
        ):
            return
        with settings.database.reading() as snapshot:
            sources = snapshot.context_sources()
        chunks, paid = (
            sum(sources.values()),
            sum(n for source, n in sources.items() if source.startswith(PAID)),
        )
        if paid > chunks * _MOST_PAID:
            raise ConfirmationError(
                f"this refresh would replace the contexts of {paid} of {chunks} chunks by a language model, because "
                "settings differ from those that made them. Cure: the former settings, by options or under "
                f'[folders."{settings.folders.root}"] in {user_folder() / USER_FILE}; or, to pay for contexts again, '
                "refresh(confirm=True), or index --yes."
            )

    def _parsed(self, sources: Iterable[Source]) -> Iterator[list[_Parsed]]:
        """Sources with their nodes, in their order, some together; one that cannot be read is reported, alone."""
        group: list[_Parsed] = []
        most = min(FIRST_CHUNKS, BATCH_CHUNKS)
        for source in sources:
            try:
                content = source.load()
                nodes = self.settings.parser.get_nodes_from_documents(content.documents)
            except DocumentError as error:
                self.report.fail(source.id, str(error))
                self.bar.update()
                continue
            group.append((source, content, nodes))
            if sum(len(nodes) for *_, nodes in group) >= most:
                yield group
                group, most = [], min(2 * most, BATCH_CHUNKS)
        if group:
            yield group

    def _prepared(self, group: Sequence[_Parsed]) -> list[_Prepared]:
        """What is to be written of sources, with contexts."""
        contexts, prepared = self.settings.contexts, []
        documents = [document for _, content, _ in group for document in content.documents]
        nodes = [node for *_, nodes_of in group for node in nodes_of]
        if nodes:  # calls for several documents go to a model together
            contexts(
                nodes,
                documents,
                progress=lambda _: self.bar.set_postfix(calls=contexts.usage.calls),
            )
        del nodes
        for source, content, nodes_of in group:
            if content.repair:
                self.report.repaired.append(Problem(source.id, content.repair))
            chunks = chunks_of(nodes_of)
            state = content.sha256, content.stamp, self.made_with, len(chunks)
            prepared.append((DocumentRow(source.id, source.kind, *state), chunks))
        return prepared

    @_dispatcher.span
    def _write(self, batch: Sequence[_Prepared]) -> None:
        """Embed documents and write them, each whole; one that cannot be written is reported."""
        chunks = [chunk for _, chunks in batch for chunk in chunks]
        result = self.embedder.embed(chunks, [document.key for document, _ in batch])
        faults = result.problems
        self.report.embedded += result.sent
        with self._transaction() as transaction:
            for document, parts in batch:
                try:
                    if fault := next(
                        (
                            faults[one.row.embed_hash]
                            for one in parts
                            if one.row.embed_hash in faults
                        ),
                        "",
                    ):
                        raise DocumentError(fault)  # noqa: TRY301  as one of its ids does
                    transaction.replace_document(
                        document, [one.row for one in parts], result.vectors
                    )
                    self.documents[document.key] = document
                except DocumentError as error:  # noqa: PERF203  each document by itself
                    self.report.fail(document.key, str(error))
        self.bar.update(len(batch))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Write in one transaction, and the settings in the first one."""
        written = self.settings.written()
        with self._begin() as transaction:
            if any(getattr(transaction.state, name) != value for name, value in written.items()):
                transaction.set_state(**written)
                kept = transaction.state.model_dump(include={"folders", "choices"})
                self.settings.layout.remember_settings(kept)
            yield transaction

    def _finish(
        self, sources: Mapping[str, Source], to_index: Sequence[str], *, is_whole: bool
    ) -> None:
        """Delete what is no longer there, and note what is known of documents whose chunks stay."""
        report, noted = self.report, self._noted(sources, sources.keys() - set(to_index))
        forgotten = [
            key for key, row in self.documents.items() if not row.is_indexed and key not in sources
        ]
        deleted = [*report.deleted, *(forgotten if is_whole else [])]
        with self._transaction() as transaction:
            if deleted:
                transaction.delete_documents(deleted)
            if noted:
                transaction.put_documents(noted)
            report.context_sources = transaction.context_sources()
        report.documents = sum(one.is_indexed for one in self.documents.values()) - len(
            report.deleted
        )
        passed = [
            key for key, row in self.before.items() if row.kind == "document" and key not in sources
        ]
        made = {key: row.made_with for key, row in self.documents.items()}
        reason = "it has to be made again, and is no file. Cure: pass the document again."
        report.failed += [Problem(key, reason) for key in passed if made.get(key) != self.made_with]
        report.failed.sort(key=lambda problem: problem.path)

    def _noted(self, sources: Mapping[str, Source], unchanged: set[str]) -> list[DocumentRow]:
        """Documents that cannot be indexed, those that no longer fail, and today's size and times."""
        noted = []
        failed = {
            one.path: one.reason for one in self.report.failed if not one.reason.startswith(UNREAD)
        }
        for key, source in sources.items():
            row = new = self.documents.get(key, DocumentRow(key))
            if key in failed and source.stamp:
                new = row._replace(failed=storable(failed[key])[0], stamp=source.stamp)
            elif key in unchanged:
                new = row._replace(failed="", stamp=stamp_if_stable(source.stamp))
            if new != row:
                noted.append(new)
        return noted
