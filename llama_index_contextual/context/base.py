"""What a context is, what a document is, and what a generator of contexts must do."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from llama_index_contextual.context.usage import ContextEstimate, ContextUsage, Prices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_index.core.schema import BaseNode

Progress: TypeAlias = "Callable[[ContextProgress], None]"
Contexts: TypeAlias = "list[list[ChunkContext | None]]"  # of documents, by chunk
MAX_CHARS: Final = 600  # of a context from a language model, about 150 tokens; its prompt asks for two sentences


@dataclass(frozen=True, slots=True)
class ChunkContext:
    """The context of one chunk.

    Attributes:
        text: What is embedded and keyword-indexed beside the chunk; may be empty.
        source: The generator that made it: ``"headings"``, ``"pattern"``, ``"llm:<model>"``.
        lexical: More words, for the keyword arm alone.
        version: The generator's :attr:`ContextGenerator.version` at that time.
    """

    text: str
    source: str
    lexical: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A document as its chunks' generator sees it.

    Attributes:
        id: LlamaIndex's id of the document, or the chunk's own where it has no document.
        path: What a citation would show; empty where unknown.
        text: Its text, as far as known.
        metadata: What the document's chunks share (title, date, ...).
        is_joined: Whether the text is put together from chunks, with empty lines for what none of them holds.
    """

    id: str
    path: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    is_joined: bool = False


@dataclass(frozen=True, slots=True)
class DocumentChunks:
    """Some chunks of one document: the unit that generators work on."""

    document: SourceDocument
    nodes: tuple[BaseNode, ...]


@dataclass(frozen=True, slots=True)
class ContextProgress:
    """How far a run is, counted in chunks across all documents."""

    done: int
    total: int
    cached: int = 0
    fallbacks: int = 0


class ContextGenerator(ABC):
    """Makes the contexts of chunks.

    A subclass has a name, a version and :meth:`generate`. If it works on several documents at once, it overrides
    :meth:`generate_all` and :meth:`agenerate_all`, too. A chunk that it cannot make a context for gets ``None``,
    and the step that writes contexts then raises a ContextError.
    """

    name: str
    """What made a context; stored with it as its provenance."""
    free: ClassVar[bool] = True
    """Whether it costs neither money nor noticeable time, so that it may run while a query waits."""

    @property
    def model_name(self) -> str:
        """The language model that it asks; empty where it asks none."""
        return ""

    def available(self) -> bool:
        """Whether it can make contexts now; a check that costs nothing."""
        return True

    @property
    @abstractmethod
    def version(self) -> str:
        """Hash of everything that its contexts depend on, apart from the chunk and its document."""

    @abstractmethod
    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        """Return one context per node, in their order; None where there is none."""

    def generate_all(self, batches: Sequence[DocumentChunks], progress: Progress | None = None) -> Contexts:
        """Return the contexts of several documents: one list per document, in their order.

        Args:
            batches: The documents with their chunks.
            progress: Called whenever chunks are done.
        """
        results, done, total = [], 0, sum(len(batch.nodes) for batch in batches)
        for batch in batches:
            results.append(self.generate(batch.nodes, batch.document))
            done += len(batch.nodes)
            if progress is not None:
                progress(ContextProgress(done, total))
        return results

    async def agenerate_all(self, batches: Sequence[DocumentChunks], progress: Progress | None = None) -> Contexts:
        """Generate contexts as :meth:`generate_all` does, without blocking the event loop."""
        return await asyncio.to_thread(self.generate_all, batches, progress)

    @property
    def usage(self) -> ContextUsage:
        """What it has done and used so far; nothing for a free generator."""
        return ContextUsage()

    def estimate(self, batches: Sequence[DocumentChunks], prices: Prices | None = None) -> ContextEstimate:
        """Return the cost of a run over these chunks: nothing for a free generator."""
        chunks = sum(len(batch.nodes) for batch in batches)
        return ContextEstimate(chunks, price=None if prices is None else 0.0)

    def at_query_time(self) -> ContextGenerator | None:
        """Return the generator that may run while a query waits, if there is one."""
        return self if self.free else None

    def config(self) -> dict[str, Any]:
        """Return the settings for :func:`resolve_generator`: plain data, never a model object or a key."""
        return {"spec": self.name}

    def state(self) -> str:
        """Return a mark that changes when the same nodes deserve another run, because the last one fell back."""
        return ""

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Close files, connections and threads; it may be used again afterwards."""
