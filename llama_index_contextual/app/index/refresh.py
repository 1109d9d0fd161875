"""One refresh: what changed is made again, in an order that a kill at any instant leaves whole.

New vectors and contexts are in ``paid.sqlite3`` before the chunks that they are for. Each document is written whole in
one transaction. What was not finished is not there, so the next refresh does it. Ids are deterministic and vectors
kept, so doing it again embeds nothing twice.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from llama_index.core.utils import iter_batch

from llama_index_contextual.app.folder.files import UNREAD
from llama_index_contextual.app.folder.sources import check_source, gather, stamp_if_stable
from llama_index_contextual.app.folder.walk import Problem
from llama_index_contextual.app.index.by_hand import keep_documents, missing_documents
from llama_index_contextual.app.index.embedder import attach_document_windows
from llama_index_contextual.app.index.plan import Plan, RefreshReport, make_plan
from llama_index_contextual.app.index.progress import RefreshProgress
from llama_index_contextual.app.index.settings import PAID
from llama_index_contextual.app.settings.late_chunking import VendorEmbedding
from llama_index_contextual.app.store.nodes import Chunk
from llama_index_contextual.app.store.schema import DocumentRow
from llama_index_contextual.errors import (
    ConfirmationError,
    DamagedError,
    DocumentError,
    EmbeddingError,
    SettingError,
)
from llama_index_contextual.text import storable
from llama_index_contextual.watching import in_thread, step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.app.folder.sources import Source, SourceContent
    from llama_index_contextual.app.index.settings import IndexSettings
    from llama_index_contextual.app.index.writer import Storage, Writer
    from llama_index_contextual.app.store.nodes import Indexed

    _Parsed = tuple[Source, SourceContent, list[BaseNode]]

logger = logging.getLogger(__name__)

GROUP: Final = 16  # documents whose contexts are asked for together; progress is shown between groups
BATCH_CHUNKS: Final = 256  # chunks that are written together
_MOST_DELETED: Final = 0.5  # share of the documents that a refresh deletes without a confirmation
_MOST_PAID: Final = 0.2  # share of the chunks whose contexts it pays for again
_ENDING: Final = 5.0  # seconds that Ctrl-C leaves to an embedding; a server may take longer, and is not waited for


def refresh_index(
    storage: Storage,
    source: str | Path | Iterable[Document] | None,
    **options: bool,
) -> RefreshReport:
    """Refresh an index, or its successor where another embedding model is to replace it.

    Args:
        storage: The index's storage.
        source: As :meth:`ContextualIndex.refresh` takes it, which has the other arguments, too.
        **options: The same.

    Raises:
        ConfirmationError: It would delete or pay for much, and may not.
        SettingError: There is no such source, or the index is to be replaced, and there is a source.
    """
    source = check_source(source, storage.settings.folders)
    with step("refresh") as facts:
        try:
            report = _refreshed(storage, source, **options)
        except DamagedError as error:  # deeper than opening looks
            logger.info("%s", error)  # the repair warns of it
            if str(error).startswith(storage.settings.database.name):
                storage.rebuild()
            report = _refreshed(storage, source, **options)
        facts |= {
            name: len(getattr(report, name)) for name in ("added", "changed", "outdated", "moved", "deleted", "failed")
        }
        facts |= {"chunks": report.chunks, "embedded": report.embedded}
    return report


def _refreshed(
    storage: Storage,
    source: str | Path | Sequence[Document] | None,
    *,
    show_progress: bool,
    retry_contexts: bool,
    confirm: bool,
) -> RefreshReport:
    started, report, settings = time.monotonic(), RefreshReport(), storage.settings
    if not settings.exists and isinstance(settings.embedding, VendorEmbedding):
        settings.embedding.require_key()  # before files are read, and a language model is paid
    if source is not None and settings.exists and storage.replaces():
        raise SettingError("replaces the whole index. Cure: refresh() without a source first.", reindex="all")
    with storage.writing() as writer:
        reading = replace(settings.reading, converter=settings.reading.converter.keeping())
        sources, covered = gather(source, reading, writer.documents, report.failed)
        if covered == "":
            sources += missing_documents(settings, writer.documents, {one.id for one in sources})
        report.differences = settings.differences(writer.state)
        with RefreshProgress(lambda: settings.pipeline.contexts.usage, show=show_progress) as progress:
            Refresh(settings, writer, retry_contexts, confirm, progress, report).run(sources, covered)
        with writer.database.reading() as snapshot:
            report.work.chunks, report.work.context_sources = snapshot.count(), snapshot.context_sources()
    report.failed.sort(key=lambda problem: problem.path)  # files were read while others were written
    report.work.seconds = time.monotonic() - started
    return report


@dataclass(slots=True)
class Refresh:
    """The working parts of one refresh.

    Attributes:
        settings: Of the index.
        writer: Documents and vectors.
        retry_contexts: Whether contexts that fell back are asked for again.
        confirmed: Whether it may delete most documents, and pay a language model again.
        progress: Shows how far it is.
        report: Is filled.
    """

    settings: IndexSettings
    writer: Writer
    retry_contexts: bool
    confirmed: bool
    progress: RefreshProgress
    report: RefreshReport
    _stopped: bool = False

    def run(self, sources: Sequence[Source], covered: str | None) -> None:
        """Bring the index up to date with some sources; see :func:`make_plan` for ``covered``."""
        by_id = {source.id: source for source in sources}
        plan = make_plan(
            self._indexed(),
            {key: source.sha256 for key, source in by_id.items()},
            made_with=None if self.settings.reindex == "ignore" else self.settings.made_with,
            covered=covered,
            blocked=[problem.path for problem in self.report.failed],
        )
        if not self.confirmed:
            self._ask(plan)
        self._note(plan)
        self.writer.leaving = set(plan.deleted)
        if plan.to_index or plan.deleted:
            changed = [by_id[key] for key in plan.to_index]
            self.progress.begin(len(changed), sum(source.size for source in changed))
            self._index(changed)
            for group in iter_batch(plan.deleted, 500):
                self.report.work.removed += self.writer.delete(group)
        self.writer.record({**self._stamps(by_id[key] for key in plan.unchanged), **self._failures(by_id, covered)})
        self.writer.finish()

    def _ask(self, plan: Plan) -> None:
        """Stop where more would be lost or paid than a change of some files explains."""
        documents = {key: one for key, one in self.writer.documents.items() if one.is_indexed}
        lost = len(plan.deleted) - len(plan.renamed)
        if lost > len(documents) * _MOST_DELETED:
            raise ConfirmationError(
                f"this refresh would delete {lost} of {len(documents)} documents, because the file rules of this "
                "process no longer find them. Cure: check that the folder is mounted, and that rules and readers are "
                "those of the index. To delete these documents: refresh(confirm=True), or index --yes."
            )
        chunks, paid = sum(one.nodes for one in documents.values()), 0
        if self.settings.pays_again(self.writer.state):
            outdated = set(plan.outdated)
            with self.writer.database.reading() as snapshot:
                by_document = snapshot.by_document()
            paid = sum(count for key, source, count in by_document if key in outdated and source.startswith(PAID))
        if paid > chunks * _MOST_PAID:
            raise ConfirmationError(
                f"this refresh would ask a language model again for the contexts of {paid} of {chunks} chunks, because "
                "model, prompt or settings differ from those that made them. Cure: use the former settings. To pay for "
                "these contexts again: refresh(confirm=True), or index --yes."
            )

    def _indexed(self) -> dict[str, DocumentRow]:
        """Indexed documents; those in which a fallback stood in count as outdated.

        Only their missing contexts are asked for again: the others are kept.
        """
        documents = {key: one for key, one in self.writer.documents.items() if one.is_indexed}
        wanted = self.settings.pipeline.paid_source
        if wanted is None or not self.retry_contexts:
            return documents
        with self.writer.database.reading() as snapshot:
            incomplete = {key for key, source, *_ in snapshot.by_document() if source != wanted}
        return {key: one._replace(made_with="") if key in incomplete else one for key, one in documents.items()}

    def _stamps(self, unchanged: Iterable[Source]) -> dict[str, DocumentRow | None]:
        """Return documents that were read in vain, with today's size and times, so that they are not again."""
        documents = self.writer.documents
        return {
            source.id: documents[source.id]._replace(stamp=stamp)
            for source in unchanged
            if source.stamp != documents[source.id].stamp and (stamp := stamp_if_stable(source.stamp))
        }

    def _failures(self, sources: Mapping[str, Source], covered: str | None) -> dict[str, DocumentRow | None]:
        """Return documents that cannot be indexed for what they hold, and those that no longer fail."""
        failed = {
            problem.path: storable(problem.reason)[0]
            for problem in self.report.failed
            if problem.path in sources and sources[problem.path].stamp and not problem.reason.startswith(UNREAD)
        }
        changes: dict[str, DocumentRow | None] = {}
        for key, reason in failed.items():
            before = self.writer.documents.get(key) or DocumentRow(key)
            now = before._replace(failed=reason, failed_stamp=sources[key].stamp)
            if now != before:
                changes[key] = now
        for key, one in self.writer.documents.items():
            if one.failed and key not in failed and (covered == "" or key in sources):
                changes[key] = one._replace(failed="", failed_stamp="") if one.is_indexed else None
        return changes

    def _note(self, plan: Plan) -> None:
        report = self.report
        new = {new for new, _ in plan.renamed}
        old = {old for _, old in plan.renamed}
        report.added = [key for key in plan.added if key not in new]
        report.changed, report.outdated = list(plan.changed), list(plan.outdated)
        report.moved = [(before, after) for after, before in plan.renamed]
        report.deleted = [key for key in plan.deleted if key not in old]
        report.unchanged = list(plan.unchanged)

    def _index(self, sources: Sequence[Source]) -> None:
        """Embed and write each batch in a thread of its own, while the next one is read, parsed and given contexts.

        A language model, an embedding and the disk so work at the same time. Batches are those that would be made one
        after the other; they are written in order, and no more than two are in memory.
        """
        written: Future[None] | None = None
        try:
            for batch in self._batches(sources):
                _finish(written)
                written = in_thread(self._write, batch)
            _finish(written)
        except BaseException as error:  # before the index is closed nothing may be writing any more
            self._stopped = not isinstance(error, Exception)  # the user's Ctrl-C
            wait([] if written is None else [written], timeout=_ENDING if self._stopped else None)
            with self.writer.busy:
                raise

    def _batches(self, sources: Sequence[Source]) -> Iterator[list[Indexed]]:
        """Read, parse and give contexts; yield what is to be written together, in the order of the sources."""
        batch: list[Indexed] = []
        waiting = 0
        for group in iter_batch(self._parsed(sources), GROUP):
            for document in self._prepared(group):
                batch.append(document)
                waiting += len(document[1])
                if waiting >= BATCH_CHUNKS:
                    yield batch
                    batch, waiting = [], 0
        if batch:
            yield batch

    def _parsed(self, sources: Iterable[Source]) -> Iterator[_Parsed]:
        """Read and parse sources, in their order; one that cannot be is reported, and concerns it alone."""
        for source in sources:
            try:
                content = source.load()
                nodes = self.settings.pipeline.parse(content.documents)
            except DocumentError as error:  # noqa: PERF203  the next one may be read
                self.report.fail(source.id, str(error))
                self.progress.read(source.size, 0)
            else:
                self.progress.read(source.size, len(nodes))
                yield source, content, nodes

    def _prepared(self, group: Sequence[_Parsed]) -> list[Indexed]:
        """Give the nodes of some sources contexts, and return what is to be written of each."""
        pipeline, made_with = self.settings.pipeline, self.settings.made_with
        if pipeline.paid_source:
            with self.writer.database.reading() as snapshot:
                stored = snapshot.nodes_of([source.id for source, *_ in group])
            for source, _, nodes in group:
                pipeline.take_over(nodes, {row.node_id: row for row in stored.get(source.id, ())})
        documents = [document for _, content, _ in group for document in content.documents]
        every = [node for *_, nodes in group for node in nodes]
        pipeline.contextualize(every, documents, lambda now: self.progress.at_work("contexts", now.done))
        del every
        self.progress.finished("contexts", sum(len(nodes) for *_, nodes in group))
        keep_documents(self.settings.paid, group)
        indexed: list[Indexed] = []
        for source, content, nodes in group:
            if content.repair:
                self.report.repaired.append(Problem(source.id, content.repair))
            nodes.reverse()
            chunks = []
            while nodes:  # of a large document nodes and rows do not fit into memory together
                chunks.append(Chunk.of(nodes.pop()))
            try:
                attach_document_windows(self.settings.embedding, chunks)
            except EmbeddingError as error:  # one of its chunks is too long for the model
                self.report.fail(source.id, str(error))
                continue
            state = (content.sha256, content.size, content.stamp, made_with(source.id), len(chunks))
            indexed.append((DocumentRow(source.id, source.kind, *state), chunks))
        return indexed

    def _write(self, batch: Sequence[Indexed]) -> None:
        """Embed a batch and write it; called in a thread of its own, which alone counts chunks meanwhile."""
        self.writer.write(batch, self.report, self._embedded)
        self.progress.finished("indexed", sum(len(chunks) for _, chunks in batch))

    def _embedded(self, texts: int) -> None:
        self.progress.at_work("indexed", texts)
        if self._stopped:
            raise CancelledError


def _finish(written: Future[None] | None) -> None:
    """Wait until a batch is written, a second at a time: Python can miss a Ctrl-C that comes as a wait begins."""
    if written is not None:
        while not wait([written], timeout=1.0).done:
            pass
        written.result()
