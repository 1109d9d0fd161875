"""The interface of a context generator, and what it takes and returns.

Nothing of LlamaIndex is imported when this file is: settings and command line read the names of
generators at a start.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode


class SourceDocument(NamedTuple):
    """A document as a generator sees it.

    Attributes:
        id: LlamaIndex's id of the document, or that of the chunk where it has no document.
        path: The path that a citation would show, or "".
        text: The text, as far as it is known.
        metadata: What all chunks of the document share.
    """

    id: str
    path: str
    text: str
    metadata: Mapping[str, Any] = MappingProxyType({})


class DocumentChunks(NamedTuple):
    """Chunks of one document, in its order."""

    document: SourceDocument
    nodes: tuple[BaseNode, ...]


class ChunkContext(NamedTuple):
    """The context of one chunk.

    Attributes:
        text: What is embedded and keyword-indexed beside the chunk; may be empty.
        lexical: More words, which only keyword search reads.
        made_by: The generator whose name and version are recorded, where that is not the one that
            was called: a fallback is replaced as soon as the generator that was called has a
            context.
    """

    text: str
    lexical: str = ""
    made_by: ContextGenerator | None = None


Contexts: TypeAlias = "list[Sequence[str | ChunkContext | None]]"
"""One list per document, one context per chunk."""


class ContextProgress(NamedTuple):
    """How many chunks of a run are done, those from a cache included."""

    done: int
    total: int


Progress: TypeAlias = Callable[[ContextProgress], None]


class Tokens(NamedTuple):
    """Token counts of calls; ``cached`` is the part of ``prompt`` that a server had read before."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, other: Tokens) -> Tokens:  # type: ignore[override]
        """Return the sums."""
        return Tokens(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
        )


@dataclass(slots=True)
class ContextUsage:
    """What a generator has done since it was created.

    Attributes:
        generated: Contexts that the model wrote.
        failed: Chunks without a context, by reason.
        calls: Requests, repeated ones included.
        tokens: As the server counted them, or by LlamaIndex's tokenizer where it did not.
    """

    generated: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    tokens: Tokens = field(default_factory=Tokens)


class ContextEstimate(NamedTuple):
    """What a run would cost if nothing failed.

    Attributes:
        chunks: Chunks that have no context of this model and prompt yet.
        from_cache: Chunks whose context is in the cache.
        calls: Requests.
        tokens: By LlamaIndex's tokenizer, with contexts of the usual length.
        local: Whether the model's server is on this machine.
    """

    chunks: int
    from_cache: int = 0
    calls: int = 0
    tokens: Tokens = Tokens()
    local: bool = False


def in_words(counts: Counter[str]) -> str:
    """Return counts as text, the largest first: ``3 timeout, 1 empty``."""
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common())


class ContextGenerator(ABC):
    """Base class of context generators.

    A subclass has a ``name`` and a :meth:`generate` that returns one text per chunk. To work on
    several documents at a time, override :meth:`generate_all` and :meth:`agenerate_all`, too.

    Attributes:
        name: What users call it. A class in ``context/generators/NAME.py`` is chosen by its name in
            Python, on the command line, in settings and in evaluations.
        version: Recorded as ``context_version``. Change it whenever the same chunk would get
            another context. Unless the generator is free, chunks with a context of the same
            version are not generated again.
        description: One line for lists of generators.
        free: Whether it costs neither money nor noticeable time, so that it may run while a query
            waits.
        embeds_metadata: Whether a chunk's other metadata is embedded beside its context.
        model_name: The language model that it calls; "" if it calls none.
        usage: What it has done so far.
    """

    name: str
    version: str = "1"
    description: ClassVar[str] = ""
    free: ClassVar[bool] = True
    embeds_metadata: ClassVar[bool] = True
    model_name: str = ""
    usage: ContextUsage = ContextUsage()

    @property
    def source(self) -> str:
        """Return what is recorded as ``context_source``."""
        return self.name

    def available(self) -> bool:
        """Return whether it can make contexts now, as far as is known."""
        return True

    @abstractmethod
    def generate(
        self, nodes: Sequence[BaseNode], document: SourceDocument
    ) -> Sequence[str | ChunkContext | None]:
        """Return one context per node, in their order; None for a node that gets none."""

    def generate_all(
        self, batches: Sequence[DocumentChunks], progress: Progress | None = None
    ) -> Contexts:
        """Return the contexts of several documents.

        Args:
            batches: The documents with their chunks.
            progress: Called whenever chunks are done.
        """
        total = sum(len(batch.nodes) for batch in batches)
        done = 0
        contexts: Contexts = []
        for batch in batches:
            contexts.append(self.generate(batch.nodes, batch.document))
            done += len(batch.nodes)
            if progress is not None:
                progress(ContextProgress(done, total))
        return contexts

    async def agenerate_all(
        self, batches: Sequence[DocumentChunks], progress: Progress | None = None
    ) -> Contexts:
        """Return the contexts of several documents without blocking the event loop."""
        return await asyncio.to_thread(self.generate_all, batches, progress)

    def estimate(self, batches: Sequence[DocumentChunks]) -> ContextEstimate:
        """Return what a run over these chunks would cost."""
        return ContextEstimate(sum(len(batch.nodes) for batch in batches))

    def at_query_time(self) -> ContextGenerator | None:
        """Return the generator that may run while a query waits, or None."""
        return self if self.free else None

    def options(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain data, from the attributes of the same names.

        An argument without such an attribute, or whose value is no plain data, is left out: whoever
        restores the generator passes it again.
        """
        arguments = {}
        for name in inspect.signature(type(self)).parameters:
            value = getattr(self, name, None)
            if value is not None and _is_plain(value):
                arguments[name] = value
        return arguments

    def state(self) -> str:
        """Return a mark that changes when the same nodes deserve another run, after a fallback."""
        return ""

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Close files and connections; the generator may be used again afterwards."""


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
