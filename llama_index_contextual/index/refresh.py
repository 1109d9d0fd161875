"""One refresh: what changed is made again, in an order that a kill at any instant leaves repairable.

Per batch of documents: new vectors into the cache, new nodes into the store, then the stale ones out of it, and last
the manifest. What was not finished is not in the manifest, so the next refresh does it again; ids are deterministic and
vectors cached, so doing it again embeds nothing twice.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from llama_index.core.utils import iter_batch

from llama_index_contextual.document_services import VendorEmbedding
from llama_index_contextual.errors import ConfirmationError, SettingError
from llama_index_contextual.index.batches import Batch, Batches, Work
from llama_index_contextual.index.files import Problem
from llama_index_contextual.index.manifest import PAID, Entry, count_contexts, nodes_digest
from llama_index_contextual.index.plan import Plan, RefreshReport, make_plan
from llama_index_contextual.index.progress import RefreshProgress
from llama_index_contextual.index.ray_workers import resolve_workers
from llama_index_contextual.index.sources import UNREAD, check_source, gather, settled
from llama_index_contextual.index.store import DamagedError, Stored
from llama_index_contextual.index.workers import Here
from llama_index_contextual.watching import in_thread, step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from llama_index.core.schema import Document

    from llama_index_contextual.index.pipeline import NodePipeline
    from llama_index_contextual.index.sources import Source
    from llama_index_contextual.index.storage import Storage
    from llama_index_contextual.index.workers import Hiring, Workers
    from llama_index_contextual.index.writer import Writer

logger = logging.getLogger(__name__)

_MOST_DELETED: Final = 0.5  # share of the documents that a refresh deletes without being told so
_MOST_PAID: Final = 0.2  # share of the chunks whose contexts it pays for again
_ENDING: Final = 5.0  # seconds that Ctrl-C leaves to an embedding; a server may take longer, and is not waited for


def refresh_index(
    storage: Storage,
    source: str | Path | Iterable[Document] | None,
    *,
    show_progress: bool = False,
    retry_contexts: bool = True,
    confirm: bool = False,
    workers: str | Hiring | None = None,
) -> RefreshReport:
    """Refresh an index, or its successor where another embedding model is to replace it.

    Args:
        storage: The index's storage.
        source: As :meth:`ContextualIndex.refresh` takes it.
        show_progress: Whether to show how far it is: bars in a terminal, a line every few seconds elsewhere.
        retry_contexts: Whether contexts that fell back are asked for again.
        confirm: Whether it may delete most documents, and pay a language model again.
        workers: As :meth:`ContextualIndex.refresh` takes it.

    Raises:
        ConfirmationError: It would, and may not.
        SettingError: There is no such source, or the index is to be replaced, and there is a source.
    """
    source = check_source(source, storage.settings.folder)
    refreshed = partial(
        _refreshed,
        storage,
        source,
        show_progress=show_progress,
        retry_contexts=retry_contexts,
        confirm=confirm,
        hiring=resolve_workers(workers, storage.settings.configuration),
    )
    with step("refresh") as facts:
        try:
            report = refreshed()
        except DamagedError as error:  # deeper than opening looks
            logger.info("%s", error)  # the repair warns of it
            storage.repair()
            report = refreshed()
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
    hiring: Hiring | None,
) -> RefreshReport:
    started, report, settings = time.monotonic(), RefreshReport(), storage.settings
    if not storage.exists and settings.shared_cache is None and isinstance(settings.embedding, VendorEmbedding):
        settings.embedding.require_key()  # before files are read, and a language model is paid
    replacing = storage.replaces()
    if replacing and source is not None:
        raise SettingError("reindex='all' replaces the whole index. Cure: refresh() without a source first.")
    with storage.writing(replacing=replacing) as writer:
        sources, covered = gather(source, settings, writer.manifest.documents, report.failed)
        report.differences = settings.differences(writer.manifest)
        before = writer.manifest
        if settings.remembered.lost and before.documents:
            logger.warning("%s", settings.assumed())
        settings.remembered.lost = False
        writer.manifest = settings.written_in(before)
        with RefreshProgress(lambda: settings.pipeline.contexts.usage, show=show_progress) as progress:
            Refresh(
                writer=writer,
                pipeline=settings.pipeline,
                made_with=settings.fingerprint.nodes_hash,
                confirmed=confirm,
                pays_again=settings.pays_again(before),
                hire=None if hiring is None else partial(hiring.hired, settings),
                workers=Here(settings.pipeline, writer.vectors.ask),
                keep_outdated=settings.reindex == "ignore",
                retry_contexts=retry_contexts,
                progress=progress,
                report=report,
            ).run(sources, covered=covered, blocked=[problem.path for problem in report.failed])
        if replacing:
            storage.promote(writer)
        report.chunks = writer.store.count()
        report.context_sources = writer.manifest.context_sources()
    report.seconds = time.monotonic() - started
    return report


@dataclass(slots=True)
class Refresh:
    """The working parts of one refresh.

    Attributes:
        writer: Store, vectors and manifest.
        pipeline: Documents to nodes.
        made_with: Hash of the settings that shape nodes.
        keep_outdated: Whether documents made with other settings stay as they are.
        retry_contexts: Whether contexts that fell back are asked for again.
        confirmed: Whether it may delete most documents, and pay a language model again.
        pays_again: Whether contexts that were paid for are outdated, as another model or prompt is to make them.
        hire: Gives the workers that cut and embed, where there is something to index; None for those that are here.
        workers: Those at work.
        progress: Is told how far it is.
        report: Is filled.
    """

    writer: Writer
    pipeline: NodePipeline
    made_with: str
    keep_outdated: bool
    retry_contexts: bool
    confirmed: bool
    pays_again: bool
    hire: Callable[[], AbstractContextManager[Workers]] | None
    workers: Workers
    progress: RefreshProgress
    report: RefreshReport
    _store: threading.Lock = field(default_factory=threading.Lock)  # one thread at a time asks it or writes
    _stopped: bool = False

    def run(self, sources: Sequence[Source], *, covered: str | None, blocked: Iterable[str]) -> None:
        """Bring the store up to date with some sources; see :func:`make_plan` for ``covered`` and ``blocked``."""
        by_id = {source.id: source for source in sources}
        known = self._doubted(self._known(), list(by_id))
        plan = make_plan(
            known,
            {key: source.sha256 for key, source in by_id.items()},
            made_with=None if self.keep_outdated else self.made_with,
            covered=covered,
            blocked=blocked,
        )
        if not self.confirmed:
            self._ask(plan)
        self._note(plan)
        if plan.to_index or plan.deleted:
            with self._hired(plan):
                self.writer.begin()
                self.progress.begin(len(plan.to_index))
                self._index([by_id[key] for key in plan.to_index])
            self._delete(plan.deleted)
        stamps = self._stamps(by_id[key] for key in plan.unchanged)
        others_failed = self._remember_failed(by_id, covered)
        if plan.to_index or plan.deleted or stamps or others_failed or not self.writer.manifest.complete:
            self.writer.record(stamps)
            self.writer.end()
        elif not self.writer.hidden:
            self.writer.reader.save_keywords()  # where it was lost, or a kill came before it was kept
        if covered == "" and not self.writer.shared:
            self.writer.prune()

    @contextlib.contextmanager
    def _hired(self, plan: Plan) -> Iterator[None]:
        if self.hire is None or not plan.to_index:
            yield
            return
        here, vectors = self.workers, self.writer.vectors
        own = vectors.ask
        try:
            with self.hire() as self.workers:
                vectors.ask = self.workers.embed
                yield
        finally:  # what comes after the workers, such as promoting a successor, is done here
            self.workers, vectors.ask = here, own

    def _ask(self, plan: Plan) -> None:
        """Stop where more would be lost or paid than a change of some files explains."""
        documents = self.writer.manifest.documents
        gone = len(plan.deleted) - len(plan.renamed)
        if gone > len(documents) * _MOST_DELETED:
            raise ConfirmationError(
                f"this refresh would delete {gone} of {len(documents)} documents, because the file rules of this "
                "process no longer find them. Cure: check that the folder is mounted, and that rules and readers are "
                "those of the index. To delete these documents: refresh(confirm=True), or index --yes."
            )
        chunks = sum(entry.nodes for entry in documents.values())
        paid = sum(
            number
            for key in (plan.outdated if self.pays_again else ())
            for source, number in documents[key].contexts.items()
            if source.startswith(PAID)
        )
        if paid > chunks * _MOST_PAID:
            raise ConfirmationError(
                f"this refresh would ask a language model again for the contexts of {paid} of {chunks} chunks, because "
                "model, prompt or settings differ from those that made them. Cure: use the former settings. To pay for "
                "these contexts again: refresh(confirm=True), or index --yes."
            )

    def _known(self) -> dict[str, Entry]:
        """Return what the manifest remembers; documents in which a fallback stood in count as outdated.

        Only their missing contexts are asked for again: the others are in the cache.
        """
        documents = self.writer.manifest.documents
        wanted = self.pipeline.paid_source
        if wanted is None or not self.retry_contexts:
            return dict(documents)
        return {
            key: replace(entry, made_with="") if set(entry.contexts) - {wanted} else entry
            for key, entry in documents.items()
        }

    def _doubted(self, known: dict[str, Entry], ids: Sequence[str]) -> dict[str, Entry]:
        """Let documents count as changed whose nodes on a server are not those that were recorded.

        Two processes that write one document at the same instant leave the chunks of both, as neither knows the other's
        to be stale. (A store of our own has one writer, and what a kill left of it is reconciled when it is opened.)
        """
        store = self.writer.store
        if not self.writer.shared or store.count() == sum(entry.nodes for entry in known.values()):
            return known  # looking costs a second for 20,000 chunks
        for group in iter_batch([key for key in ids if key in known], 500):
            stored = store.of_entries(group)
            for key in group:
                if nodes_digest({item.id: item.embed_hash for item in stored.get(key, [])}) != known[key].digest:
                    known[key] = replace(known[key], sha256="")
        return known

    def _stamps(self, unchanged: Iterable[Source]) -> dict[str, Entry | None]:
        """Return entries of files that were read in vain, with today's size and times, so that they are not again."""
        documents = self.writer.manifest.documents
        return {
            source.id: replace(documents[source.id], stamp=settled(source.stamp))
            for source in unchanged
            if source.stamp and settled(source.stamp) not in ("", documents[source.id].stamp)
        }

    def _remember_failed(self, sources: Mapping[str, Source], covered: str | None) -> bool:
        """Note which files could not be indexed for what they hold; return whether these are others than before."""
        before = self.writer.manifest.failed
        kept = {} if covered == "" else {key: stamp for key, stamp in before.items() if key not in sources}
        now = {
            problem.path: sources[problem.path].stamp
            for problem in self.report.failed
            if problem.path in sources and not problem.reason.startswith(UNREAD)
        }
        self.writer.manifest = replace(self.writer.manifest, failed={**kept, **{k: s for k, s in now.items() if s}})
        return self.writer.manifest.failed != before

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
            report = self.report
            batches = Batches(
                self.pipeline, self.workers, self.writer.vectors, self._stored, self.progress, report.repaired
            )
            for batch in batches.of(sources):
                if written is not None:
                    written.result()
                written = in_thread(self._write, batch)
            if written is not None:
                written.result()
        except BaseException as error:  # before the store is closed nothing may be writing any more
            self._stopped = not isinstance(error, Exception)  # the user's Ctrl-C
            wait([] if written is None else [written], timeout=_ENDING if self._stopped else None)
            with self._store:
                raise

    def _stored(self, ids: list[str]) -> Mapping[str, Sequence[Stored]]:
        with self._store:
            return self.writer.store.of_entries(ids)

    def _failed(self, source: Source, reason: str) -> None:
        self.report.failed.append(Problem(source.id, reason))
        for names in (self.report.added, self.report.changed, self.report.outdated):
            if source.id in names:
                names.remove(source.id)

    def _write(self, batch: Batch) -> None:
        """Embed a batch and write it; called in a thread of its own, which alone changes the report meanwhile."""
        for source, why in batch.failed:
            self._failed(source, why)
        if not batch.works:
            return
        embedded = self.writer.vectors.embed([row for work in batch.works for row in work.fresh], self._embedded)
        sound = []
        for work in batch.works:
            reasons = [reason for row in work.fresh if (reason := embedded.failed.get(row.embed_hash))]
            if reasons:
                self._failed(work.source, reasons[0])
            else:
                sound.append(work)
        if not sound:
            return
        fresh = [row for work in sound for row in work.fresh]
        relocated = [row for work in sound for row in work.rows if row.is_relocated]
        gone = [id_ for work in sound for id_ in work.gone]
        moved = {new for _, new in self.report.moved}
        with self._store:
            self._check_stopped()
            self.writer.write(fresh, relocated, gone)
            self.writer.record({work.source.id: self._entry(work) for work in sound})
        self.report.embedded += len(embedded.fresh)
        self.report.embedded_for_moves += sum(
            row.embed_hash in embedded.fresh for work in sound if work.source.id in moved for row in work.fresh
        )
        self.report.reused += len(fresh) - len(embedded.fresh) if self.writer.vectors.embeds else 0
        self.report.relocated += len(relocated)
        self.report.removed += len(gone)
        self.progress.batch_done(sum(len(work.rows) for work in batch.works))

    def _embedded(self, texts: int) -> None:
        self.progress.embedded(texts)
        self._check_stopped()

    def _check_stopped(self) -> None:
        if self._stopped:
            raise CancelledError

    def _entry(self, work: Work) -> Entry:
        return Entry(
            sha256=work.loaded.sha256,
            made_with=self.made_with,
            kind=work.source.kind,
            size=work.loaded.size,
            nodes=len(work.rows),
            digest=nodes_digest({row.node.node_id: row.embed_hash for row in work.rows}),
            contexts=count_contexts(row.metadata for row in work.rows),
            stamp=work.loaded.stamp,
        )

    def _delete(self, entries: Sequence[str]) -> None:
        for group in iter_batch(entries, 500):
            ids = [item.id for items in self.writer.store.of_entries(group).values() for item in items]
            self.writer.write(gone=ids)
            self.writer.record(dict.fromkeys(group))
            self.report.removed += len(ids)
