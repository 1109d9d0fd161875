"""One refresh: what changed is made again, in an order that a kill at any instant leaves repairable.

Per batch of documents: new vectors into the cache, new nodes into Chroma, then the stale ones out of it, and last the
manifest. Whatever was not finished is not in the manifest, so the next refresh does it again; ids are deterministic and
vectors cached, so doing it again embeds nothing twice.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import MetadataMode

from llama_index_contextual.errors import DocumentError, EmbeddingError
from llama_index_contextual.index.report import RefreshReport
from llama_index_contextual.metadata import CONTEXT_SOURCE
from llama_index_contextual.storage.chroma import Stored, embed_hash, store_metadata
from llama_index_contextual.storage.files import Problem
from llama_index_contextual.storage.manifest import Entry, Manifest
from llama_index_contextual.storage.plan import Plan, Seen, make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.index.pipeline import NodePipeline
    from llama_index_contextual.index.sources import Source
    from llama_index_contextual.storage.chroma import NodeStore
    from llama_index_contextual.storage.vectors import VectorCache

BATCH_CHUNKS: Final = 256  # new chunks per batch: some seconds of the local model, which is what a kill may cost
CHECKPOINT_SECONDS: Final = 5.0  # between two manifests: at 100,000 documents one takes a second


@dataclass(slots=True)
class _Work:
    """One document on its way into the store."""

    source: Source
    nodes: list[BaseNode]
    hashes: dict[str, str]
    stored: dict[str, Stored]

    @property
    def fresh(self) -> list[BaseNode]:
        """Nodes whose id is new or whose embedded text changed."""
        return [
            node
            for node in self.nodes
            if (known := self.stored.get(node.node_id)) is None or known.embed_hash != self.hashes[node.node_id]
        ]


@dataclass(slots=True)
class Refresh:
    """The working parts of one refresh.

    Attributes:
        store: Where nodes go.
        cache: Vectors that are known.
        pipeline: Documents to nodes.
        embedding: What embeds.
        settings: Hash of what shapes nodes.
        save: Called with a manifest when a batch is finished; ``final`` forces it to disk.
        progress: Called with a number of documents that are done.
    """

    store: NodeStore
    cache: VectorCache
    pipeline: NodePipeline
    embedding: BaseEmbedding
    settings: str
    manifest: Manifest
    save: Callable[[Manifest], None]
    progress: Callable[[int], None]
    report: RefreshReport = field(default_factory=RefreshReport)
    _saved_at: float = field(default_factory=time.monotonic)
    _documents: dict[str, Entry] = field(default_factory=dict)

    def run(self, sources: Sequence[Source], *, covered: str | None, blocked: Iterable[str]) -> Manifest:
        """Bring the store up to date with some sources; see :func:`make_plan` for ``covered`` and ``blocked``."""
        self._documents = dict(self.manifest.documents)
        seen = [Seen(source.id, source.sha256, source.size, source.kind) for source in sources]
        plan = make_plan(self._documents, seen, settings=self.settings, covered=covered, blocked=blocked)
        by_id = {source.id: source for source in sources}
        self._note(plan)
        if plan.to_index or plan.deleted:
            self._checkpoint(complete=False, force=True)
            self._index([by_id[key] for key in plan.to_index])
            self._delete(plan.deleted)
        self.progress(len(plan.unchanged))
        return self._checkpoint(complete=True, force=bool(plan.to_index or plan.deleted or not self.manifest.complete))

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
        for group in _groups(sources, 64):
            stored = self.store.of_entries([source.id for source in group])
            for source in group:
                work = self._prepare(source, stored.get(source.id, []))
                if work is None:
                    continue
                batch.append(work)
                waiting += len(work.fresh)
                if waiting >= BATCH_CHUNKS:
                    self._write(batch)
                    batch, waiting = [], 0
        self._write(batch)

    def _prepare(self, source: Source, stored: list[Stored]) -> _Work | None:
        """Read and parse one source; what goes wrong concerns it alone and is reported."""
        known = {item.id: item for item in stored}
        try:
            documents, repair = source.load()
            nodes = self.pipeline.nodes(documents, known)
        except DocumentError as error:
            self._failed(source, str(error))
            return None
        if repair:
            self.report.repaired.append(Problem(source.id, repair))
        return _Work(source, nodes, {node.node_id: embed_hash(node) for node in nodes}, known)

    def _failed(self, source: Source, reason: str) -> None:
        self.report.failed.append(Problem(source.id, reason))
        for names in (self.report.added, self.report.changed, self.report.outdated):
            if source.id in names:
                names.remove(source.id)
        self.progress(1)

    def _write(self, batch: Sequence[_Work]) -> None:
        if not batch:
            return
        fresh = [(work, node) for work in batch for node in work.fresh]
        self._embed(fresh)
        self.store.upsert({node.node_id: work.source.id for work, node in fresh}, [node for _, node in fresh])
        for work in batch:
            self._update(work)
        gone = [id_ for work in batch for id_ in work.stored if id_ not in work.hashes]
        self.store.delete(gone)
        self.report.removed += len(gone)
        for work in batch:
            self._documents[work.source.id] = self._entry(work)
        self.progress(len(batch))
        self._checkpoint(complete=False)

    def _embed(self, fresh: Sequence[tuple[_Work, BaseNode]]) -> None:
        """Give nodes their vectors: from the cache where the same text was embedded before."""
        hashes = [work.hashes[node.node_id] for work, node in fresh]
        vectors: dict[str, Sequence[float]] = dict(self.cache.get(list(dict.fromkeys(hashes))))
        texts = {
            key: node.get_content(metadata_mode=MetadataMode.EMBED)
            for key, (_, node) in zip(hashes, fresh, strict=True)
            if key not in vectors
        }
        if texts:
            computed = dict(zip(texts, embed_texts(self.embedding, list(texts.values())), strict=True))
            self.cache.put(computed)
            vectors |= computed
        self.report.embedded += len(texts)
        self.report.reused += len(fresh) - len(texts)
        for key, (_, node) in zip(hashes, fresh, strict=True):
            node.embedding = list(vectors[key])

    def _update(self, work: _Work) -> None:
        """Tell stored nodes their new lines, neighbours and the like; their vectors stay."""
        new = {node.node_id for node in work.fresh}
        changes: list[tuple[Stored, dict[str, Any]]] = []
        for node in work.nodes:
            known = work.stored.get(node.node_id)
            if known is not None and node.node_id not in new:
                metadata = store_metadata(node, work.source.id)
                if metadata != known.metadata:
                    changes.append((known, metadata))
        self.store.update_metadata(changes)
        self.report.relocated += len(changes)

    def _entry(self, work: _Work) -> Entry:
        return Entry(
            sha256=work.source.sha256,
            settings=self.settings,
            kind=work.source.kind,
            size=work.source.size,
            nodes=len(work.nodes),
            digest=nodes_digest(work.hashes),
            contexts=dict(Counter(str(node.metadata.get(CONTEXT_SOURCE, "")) for node in work.nodes)),
        )

    def _delete(self, entries: Sequence[str]) -> None:
        for group in _groups(entries, 500):
            ids = [item.id for items in self.store.of_entries(group).values() for item in items]
            self.store.delete(ids)
            self.report.removed += len(ids)
            for entry in group:
                self._documents.pop(entry, None)
            self._checkpoint(complete=False)

    def _checkpoint(self, *, complete: bool, force: bool = False) -> Manifest:
        due = time.monotonic() - self._saved_at >= CHECKPOINT_SECONDS
        if force or due:
            self.manifest = replace(self.manifest.next_generation(), complete=complete, documents=dict(self._documents))
            self.save(self.manifest)
            self._saved_at = time.monotonic()
        return self.manifest


def embed_texts(embedding: BaseEmbedding, texts: list[str]) -> list[list[float]]:
    """Vectors of texts; :class:`EmbeddingError` where the model fails or gives something that is no vector."""
    try:
        vectors = embedding.get_text_embedding_batch(texts)
    except EmbeddingError:
        raise
    except Exception as error:
        raise EmbeddingError(
            f"{embedding.model_name} could not embed {len(texts)} texts ({type(error).__name__}: {error}). "
            "What was finished is kept. Cure: see to the model, then refresh."
        ) from error
    if len(vectors) != len(texts) or len({len(vector) for vector in vectors}) != 1:
        raise EmbeddingError(
            f"{embedding.model_name} gave {len(vectors)} vectors for {len(texts)} texts, or of unequal length."
        )
    return vectors


def nodes_digest(hashes: Mapping[str, str]) -> str:
    """Hash of a document's node ids and their embedded texts, independent of order."""
    lines = "\n".join(f"{id_} {hashes[id_]}" for id_ in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def _groups(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
