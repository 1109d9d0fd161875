"""What is to be written: documents are read, parsed and given contexts, and gathered until a write is worth it.

A document that cannot be read, parsed or stored is reported, and concerns itself alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from llama_index.core.utils import iter_batch

from llama_index_contextual.documents.files import Problem
from llama_index_contextual.documents.sources import Loaded
from llama_index_contextual.errors import DocumentError, EmbeddingError
from llama_index_contextual.index.nodes import Chunk, Indexed
from llama_index_contextual.index.tables import DocumentRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.distributed.workers import Workers
    from llama_index_contextual.documents.sources import Source
    from llama_index_contextual.index.pipeline import NodePipeline
    from llama_index_contextual.index.progress import RefreshProgress
    from llama_index_contextual.index.tables import NodeRow
    from llama_index_contextual.index.vectors import Vectorizer

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
class Batch:
    """Documents that are written together, and why others cannot be, by key."""

    documents: list[Indexed] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Batches:
    """Makes the batches of one refresh.

    Attributes:
        pipeline: Documents to nodes.
        made_with: Gives the hash of what shapes the nodes of a document.
        workers: Who parses.
        vectors: Is shown documents, for embeddings that see them whole.
        stored: Gives the nodes that the database has of some documents.
        progress: Is told how far it is.
        repaired: Gets the files whose text was repaired.
    """

    pipeline: NodePipeline
    made_with: Callable[[str], str]
    workers: Workers
    vectors: Vectorizer
    stored: Callable[[list[str]], Mapping[str, Sequence[NodeRow]]]
    progress: RefreshProgress
    repaired: list[Problem]

    def of(self, sources: Sequence[Source]) -> Iterator[Batch]:
        """Read, parse and give contexts; yield what is to be written together, in the order of the sources."""
        batch, waiting = Batch(), 0
        for group in iter_batch(self._cut(sources), GROUP):
            stored = self.stored([cut.source.id for cut in group])
            for document in self._prepare(group, stored, batch):
                batch.documents.append(document)
                waiting += len(document.fresh)
                if waiting >= BATCH_CHUNKS * self.workers.embedders:
                    yield batch
                    batch, waiting = Batch(), 0
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

    def _prepare(self, group: Sequence[_Cut], stored: Mapping[str, Sequence[NodeRow]], batch: Batch) -> list[Indexed]:
        """Give some sources contexts; one that cannot be read or parsed is reported, and concerns it alone."""
        parsed: list[tuple[_Cut, dict[str, NodeRow]]] = []
        for cut in group:
            known = {node.node_id: node for node in stored.get(cut.source.id, [])}
            if cut.problem:
                batch.failed[cut.source.id] = cut.problem
                continue
            self.pipeline.take_over(cut.nodes, known)
            parsed.append((cut, known))
            if cut.loaded.repair:
                self.repaired.append(Problem(cut.source.id, cut.loaded.repair))
        documents = [document for cut, _ in parsed for document in cut.loaded.documents]
        nodes = [node for cut, _ in parsed for node in cut.nodes]
        if not self.workers.write_contexts:
            self.pipeline.contextualize(nodes, documents, self.progress.contexts)
        self.progress.group_done(len(nodes))
        indexed = []
        for cut, known in parsed:
            chunks = [Chunk.of(node, known.get(node.node_id)) for node in cut.nodes]
            try:
                self.vectors.see_documents(chunks)
            except EmbeddingError as error:  # one of its chunks is too long for the model
                batch.failed[cut.source.id] = str(error)
                continue
            source, loaded = cut.source, cut.loaded
            document = DocumentRow(
                source.id,
                source.kind,
                loaded.sha256,
                loaded.size,
                loaded.stamp,
                self.made_with(source.id),
                len(chunks),
            )
            indexed.append(Indexed(document, chunks))
        return indexed
