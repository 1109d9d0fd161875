"""One refresh: what changed is made again, in an order that a kill at any instant leaves repairable.

Per batch of documents: new vectors into the cache, new nodes into Chroma, then the stale ones out of it, and last the
manifest. What was not finished is not in the manifest, so the next refresh does it again; ids are deterministic and
vectors cached, so doing it again embeds nothing twice.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tqdm import tqdm

from llama_index_contextual.errors import DocumentError, SettingError
from llama_index_contextual.index.chroma import Row, Stored, refused_key, store_metadata
from llama_index_contextual.index.files import Problem
from llama_index_contextual.index.plan import Plan, RefreshReport, Seen, make_plan
from llama_index_contextual.index.sources import check_source, gather
from llama_index_contextual.index.state import Entry
from llama_index_contextual.metadata import CONTEXT_SOURCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.index.pipeline import NodePipeline
    from llama_index_contextual.index.sources import Source
    from llama_index_contextual.index.storage import Storage
    from llama_index_contextual.index.writer import Writer

GROUP: Final = 16  # documents whose contexts are asked for together; progress is shown between groups
BATCH_CHUNKS: Final = 256  # new chunks per batch: some seconds of the local model, which is what a kill may cost


def refresh_index(
    storage: Storage, source: str | Path | Iterable[Document] | None, *, show_progress: bool
) -> RefreshReport:
    """Refresh an index, or its successor where another embedding model is to replace it.

    Args:
        storage: The index's storage.
        source: As :meth:`ContextualIndex.refresh` takes it.
        show_progress: Whether to draw a progress bar that counts documents.

    Raises:
        SettingError: There is no such source, or the index is to be replaced, and there is a source.
    """
    started, report, settings = time.monotonic(), RefreshReport(), storage.settings
    source = check_source(source, settings.folder)
    replacing = storage.replaces()
    if replacing and source is not None:
        raise SettingError("reindex='all' replaces the whole index. Cure: refresh() without a source first.")
    with storage.writing(replacing=replacing) as writer:
        sources, covered = gather(source, settings, report.failed)
        report.differences = settings.differences(writer.manifest)
        fingerprint, choices = settings.fingerprint, dict(settings.choices)
        writer.manifest = replace(writer.manifest, fingerprint=fingerprint.as_dict(), choices=choices)
        with tqdm(total=len(sources), desc="Indexing", unit="doc", disable=not show_progress, leave=False) as bar:
            Refresh(
                writer=writer,
                pipeline=settings.pipeline,
                settings=fingerprint.nodes_hash,
                keep_outdated=settings.reindex == "ignore",
                progress=bar.update,
                report=report,
            ).run(sources, covered=covered, blocked=[problem.path for problem in report.failed])
        if replacing:
            storage.promote(writer)
        report.chunks = writer.store.count()
        report.context_sources = writer.manifest.context_sources()
    report.seconds = time.monotonic() - started
    return report


@dataclass(slots=True)
class _Work:
    """One document on its way into the store: its rows, and what the store has of it now."""

    source: Source
    rows: list[Row]
    stored: Mapping[str, Stored]

    @property
    def fresh(self) -> list[Row]:
        return [row for row in self.rows if row.is_fresh]

    @property
    def gone(self) -> list[str]:
        kept = {row.node.node_id for row in self.rows}
        return [id_ for id_ in self.stored if id_ not in kept]


@dataclass(slots=True)
class Refresh:
    """The working parts of one refresh.

    Attributes:
        writer: Store, vectors and manifest.
        pipeline: Documents to nodes.
        settings: Hash of what shapes nodes.
        keep_outdated: Whether documents made with other settings stay as they are.
        progress: Called with a number of documents that are done.
        report: Is filled.
    """

    writer: Writer
    pipeline: NodePipeline
    settings: str
    keep_outdated: bool
    progress: Callable[[int], object]
    report: RefreshReport

    def run(self, sources: Sequence[Source], *, covered: str | None, blocked: Iterable[str]) -> None:
        """Bring the store up to date with some sources; see :func:`make_plan` for ``covered`` and ``blocked``."""
        seen = [Seen(source.id, source.sha256, source.size, source.kind) for source in sources]
        settings = None if self.keep_outdated else self.settings
        known = self._doubted(self._known(), [source.id for source in sources])
        plan = make_plan(known, seen, settings=settings, covered=covered, blocked=blocked)
        by_id = {source.id: source for source in sources}
        self._note(plan)
        if plan.to_index or plan.deleted:
            self.writer.commit(complete=False)
            self._index([by_id[key] for key in plan.to_index])
            self._delete(plan.deleted)
        self.progress(len(plan.unchanged))
        if plan.to_index or plan.deleted or not self.writer.manifest.complete:
            self.writer.commit(complete=True)
        if covered == "" and not self.writer.shared:
            self.writer.prune()

    def _known(self) -> dict[str, Entry]:
        """What the manifest remembers; documents in which a fallback stood in for a paid generator count as outdated.

        Only their missing contexts are asked for again: the others are in the cache.
        """
        documents = self.writer.manifest.documents
        wanted = self.pipeline.paid_source
        if wanted is None:
            return dict(documents)
        return {
            key: replace(entry, settings="") if set(entry.contexts) - {wanted} else entry
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
        for group in _groups([key for key in ids if key in known], 500):
            stored = store.of_entries(group)
            for key in group:
                if nodes_digest({item.id: item.embed_hash for item in stored.get(key, [])}) != known[key].digest:
                    known[key] = replace(known[key], sha256="")
        return known

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
        batch: list[_Work] = []
        waiting = 0
        for group in _groups(sources, GROUP):
            stored = self.writer.store.of_entries([source.id for source in group])
            for work in self._prepare(group, stored):
                batch.append(work)
                waiting += len(work.fresh)
                if waiting >= BATCH_CHUNKS:
                    self._write(batch)
                    batch, waiting = [], 0
        self._write(batch)

    def _prepare(self, group: Sequence[Source], stored: Mapping[str, Sequence[Stored]]) -> list[_Work]:
        """Read, parse and contextualize some sources; one that cannot be read is reported, and concerns it alone."""
        parsed: list[tuple[Source, list[BaseNode], dict[str, Stored]]] = []
        read: list[Document] = []
        for source in group:
            known = {item.id: item for item in stored.get(source.id, [])}
            try:
                documents, repair = source.load()
                nodes = self.pipeline.parse(documents, known)
                _check_keys(nodes)
                parsed.append((source, nodes, known))
                read.extend(documents)
            except DocumentError as error:
                self._failed(source, str(error))
                continue
            if repair:
                self.report.repaired.append(Problem(source.id, repair))
        self.pipeline.contextualize([node for _, nodes, _ in parsed for node in nodes], read)
        return [
            _Work(
                source,
                [Row(node, store_metadata(node, source.id, source.kind), known.get(node.node_id)) for node in nodes],
                known,
            )
            for source, nodes, known in parsed
        ]

    def _failed(self, source: Source, reason: str) -> None:
        self.report.failed.append(Problem(source.id, reason))
        for names in (self.report.added, self.report.changed, self.report.outdated):
            if source.id in names:
                names.remove(source.id)
        self.progress(1)

    def _write(self, batch: Sequence[_Work]) -> None:
        if not batch:
            return
        fresh = [row for work in batch for row in work.fresh]
        relocated = [row for work in batch for row in work.rows if row.is_relocated]
        gone = [id_ for work in batch for id_ in work.gone]
        embedded = self.writer.give_vectors.embed(fresh)
        moved = {new for _, new in self.report.moved}
        self.writer.write(fresh, relocated, gone)
        self.writer.record({work.source.id: self._entry(work) for work in batch})
        self.report.embedded += len(embedded)
        self.report.embedded_for_moves += sum(
            row.embed_hash in embedded for work in batch if work.source.id in moved for row in work.fresh
        )
        self.report.reused += len(fresh) - len(embedded)
        self.report.relocated += len(relocated)
        self.report.removed += len(gone)
        self.progress(len(batch))

    def _entry(self, work: _Work) -> Entry:
        return Entry(
            sha256=work.source.sha256,
            settings=self.settings,
            kind=work.source.kind,
            size=work.source.size,
            nodes=len(work.rows),
            digest=nodes_digest({row.node.node_id: row.embed_hash for row in work.rows}),
            contexts=count_contexts(row.metadata for row in work.rows),
        )

    def _delete(self, entries: Sequence[str]) -> None:
        for group in _groups(entries, 500):
            ids = [item.id for items in self.writer.store.of_entries(group).values() for item in items]
            self.writer.write(gone=ids)
            self.writer.record(dict.fromkeys(group))
            self.report.removed += len(ids)


def _check_keys(nodes: Sequence[BaseNode]) -> None:
    for key in map(refused_key, (node.metadata for node in nodes)):
        if key is not None:
            raise DocumentError(
                f"its metadata key {key!r} is none that Chroma takes. Cure: rename it; a key is not empty, does not "
                "start with '$' or '#', and is not 'chroma:document'."
            )


def nodes_digest(hashes: Mapping[str, str]) -> str:
    """Hash of a document's node ids and their embedded texts, independent of order."""
    lines = "\n".join(f"{id_} {hashes[id_]}" for id_ in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def count_contexts(metadatas: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many nodes have a context from each source; "" counts those without."""
    return dict(Counter(str(metadata.get(CONTEXT_SOURCE, "")) for metadata in metadatas))


def _groups(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
