"""What a context, a document and the costs of contexts are, and what a generator of contexts must do."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

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


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of calls; ``cached`` are those of ``prompt`` that a server had read before."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        cached = self.cached + other.cached
        return Tokens(self.prompt + other.prompt, cached, self.completion + other.completion)


@dataclass(slots=True)
class ContextUsage:
    """What a generator has done since it was made.

    Attributes:
        chunks: Chunks of the call.
        from_cache: Those whose context was in the cache.
        generated: Those whose context the model gave.
        failed: Those that got none from it, by reason; those that were left alone by the last reason and "3 times".
        calls: Requests that were sent, repeated ones included.
        tokens: As the server counted them; by LlamaIndex's tokenizer where it does not count.
    """

    chunks: int = 0
    from_cache: int = 0
    generated: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    tokens: Tokens = field(default_factory=Tokens)


@dataclass(frozen=True, slots=True)
class ContextEstimate:
    """What a run would cost, if nothing fails.

    Attributes:
        chunks: Chunks without a context of this model and prompt.
        from_cache: Those whose context is in the cache and costs nothing.
        calls: Requests.
        tokens: By LlamaIndex's tokenizer, which is not the model's own; ``cached`` counts what a server with a prefix
            cache reads only once. ``completion`` counts contexts of a usual length.
        seconds: At a usual speed of such a server.
        model: The model's name; empty where none is needed.
        local: Whether its server is on this machine.
    """

    chunks: int
    from_cache: int = 0
    calls: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    seconds: float = 0.0
    model: str = ""
    local: bool = False


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

    version: str
    """A hash of everything that its contexts depend on, apart from the chunk and its document."""
    model_name: str = ""
    """The language model that it asks; empty where it asks none."""
    usage: ContextUsage = ContextUsage()
    """What it has done since it was made; of a free generator nothing."""

    def available(self) -> bool:
        """Whether it can make contexts now; a check that costs nothing."""
        return True

    @abstractmethod
    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        """One context per node, in their order; None where there is none."""

    def generate_all(self, batches: Sequence[DocumentChunks], progress: Progress | None = None) -> Contexts:
        """The contexts of several documents: one list per document, in their order.

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
        """The contexts of several documents, without blocking the event loop."""
        return await asyncio.to_thread(self.generate_all, batches, progress)

    def estimate(self, batches: Sequence[DocumentChunks]) -> ContextEstimate:
        """The cost of a run over these chunks: nothing for a free generator."""
        return ContextEstimate(sum(len(batch.nodes) for batch in batches))

    def at_query_time(self) -> ContextGenerator | None:
        """The generator that may run while a query waits, if there is one."""
        return self if self.free else None

    def config(self) -> dict[str, Any]:
        """The settings for :func:`resolve_generator`: plain data, never a model object or a key."""
        return {"spec": self.name}

    def state(self) -> str:
        """A mark that changes when the same nodes deserve another run, because the last one fell back."""
        return ""

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Close files, connections and threads; it may be used again afterwards."""
