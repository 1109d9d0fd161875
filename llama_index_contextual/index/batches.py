"""What is to be written: documents are read, parsed and given contexts, and gathered until a write is worth it.

A document that cannot be read, parsed or stored is reported, and concerns itself alone.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from llama_index.core.utils import iter_batch

from llama_index_contextual.errors import DocumentError, EmbeddingError
from llama_index_contextual.index.chroma import refused_key
from llama_index_contextual.index.files import Problem
from llama_index_contextual.index.sources import Loaded
from llama_index_contextual.index.store import Row, store_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.index.pipeline import NodePipeline
    from llama_index_contextual.index.progress import RefreshProgress
    from llama_index_contextual.index.sources import Source
    from llama_index_contextual.index.store import Stored
    from llama_index_contextual.index.vectors import Vectorizer
    from llama_index_contextual.index.workers import Workers

GROUP: Final = 16  # documents whose contexts are asked for together; progress is shown between groups
BATCH_CHUNKS: Final = 256  # new chunks that are written together


@dataclass(slots=True)
class _Cut:
    """A source that was read and parsed, or why it could not be."""

    source: Source
    loaded: Loaded = field(default_factory=lambda: Loaded([], "", 0))
    nodes: list[BaseNode] = field(default_factory=list)
    problem: str = ""


@dataclass(slots=True)
class Work:
    """One document on its way into the store: its rows, and what the store has of it now."""

    source: Source
    loaded: Loaded
    rows: list[Row]
    stored: Mapping[str, Stored]

    @property
    def fresh(self) -> list[Row]:
        """Return the rows that need a vector."""
        return [row for row in self.rows if row.is_fresh]

    @property
    def gone(self) -> list[str]:
        """Return the ids of nodes that the document no longer has."""
        kept = {row.node.node_id for row in self.rows}
        return [id_ for id_ in self.stored if id_ not in kept]


@dataclass(slots=True)
class Batch:
    """Documents that are written together, and those that cannot be, with the reason."""

    works: list[Work] = field(default_factory=list)
    failed: list[tuple[Source, str]] = field(default_factory=list)


@dataclass(slots=True)
class Batches:
    """Makes the batches of one refresh.

    Attributes:
        pipeline: Documents to nodes.
        workers: Who parses.
        vectors: Is shown documents, for embeddings that see them whole.
        stored: Gives what the store has of some documents.
        progress: Is told how far it is.
        repaired: Gets the files whose text was repaired.
    """

    pipeline: NodePipeline
    workers: Workers
    vectors: Vectorizer
    stored: Callable[[list[str]], Mapping[str, Sequence[Stored]]]
    progress: RefreshProgress
    repaired: list[Problem]
    _taken: set[str] = field(default_factory=set)  # ids of the nodes of the batch that is being prepared

    def of(self, sources: Sequence[Source]) -> Iterator[Batch]:
        """Read, parse and give contexts; yield what is to be written together, in the order of the sources."""
        batch, waiting = Batch(), 0
        for group in iter_batch(self._cut(sources), GROUP):
            stored = self.stored([cut.source.id for cut in group])
            for work in self._prepare(group, stored, batch):
                batch.works.append(work)
                waiting += len(work.fresh)
                if waiting >= BATCH_CHUNKS * self.workers.embedders:
                    yield batch
                    batch, waiting = Batch(), 0
                    self._taken.clear()
        yield batch

    def _cut(self, sources: Iterable[Source]) -> Iterator[_Cut]:
        """Read and parse sources, in their order; how many are read ahead of those that are parsed, workers decide."""
        begun: deque[_Cut] = deque()

        def documents() -> Iterator[list[Document]]:
            for source in sources:
                cut = _Cut(source)
                begun.append(cut)
                try:
                    cut.loaded = source.load()
                except DocumentError as error:
                    cut.problem = str(error)
                yield cut.loaded.documents

        for nodes in self.workers.cut(documents()):
            cut = begun.popleft()
            if isinstance(nodes, DocumentError):
                cut.problem = str(nodes)
            else:
                cut.nodes = nodes
            self.progress.read(len(cut.nodes))
            yield cut

    def _prepare(self, group: Sequence[_Cut], stored: Mapping[str, Sequence[Stored]], batch: Batch) -> list[Work]:
        """Give some sources contexts; one that cannot be read or parsed is reported, and concerns it alone."""
        parsed: list[tuple[Source, Loaded, list[BaseNode], dict[str, Stored]]] = []
        for cut in group:
            source, loaded, nodes = cut.source, cut.loaded, cut.nodes
            known = {item.id: item for item in stored.get(source.id, [])}
            problem = cut.problem or self._refusal(nodes)
            if problem:
                batch.failed.append((source, problem))
                continue
            self.pipeline.take_over(nodes, known)
            parsed.append((source, loaded, nodes, known))
            if loaded.repair:
                self.repaired.append(Problem(source.id, loaded.repair))
        read = [document for _, loaded, _, _ in parsed for document in loaded.documents]
        chunks = [node for _, _, nodes, _ in parsed for node in nodes]
        if not self.workers.write_contexts:
            self.pipeline.contextualize(chunks, read, self.progress.contexts)
        self.progress.group_done(len(chunks))
        works = []
        for source, loaded, nodes, known in parsed:
            rows = [Row(node, store_metadata(node, source.id, source.kind), known.get(node.node_id)) for node in nodes]
            try:
                self.vectors.see_documents(rows)
            except EmbeddingError as error:  # one of its chunks is too long for the model
                batch.failed.append((source, str(error)))
                continue
            works.append(Work(source, loaded, rows, known))
        return works

    def _refusal(self, nodes: Sequence[BaseNode]) -> str:
        """Return why nodes cannot be stored, or "": their ids have to be their own, or a whole write would fail."""
        for key in map(refused_key, (node.metadata for node in nodes)):
            if key is not None:
                return (
                    f"its metadata key {key!r} is none that Chroma takes. Cure: rename it; a key is not empty, does "
                    "not start with '$' or '#', and is not 'chroma:document'."
                )
        ids = [node.node_id for node in nodes]
        twice = next((id_ for id_, count in Counter(ids).items() if count > 1 or id_ in self._taken), None)
        if twice is not None:
            return (
                f"two of its chunks, or one of another document, have the id {twice!r}. Cure: a node parser whose "
                "id_func gives each chunk an id of its own."
            )
        self._taken.update(ids)
        return ""
