"""The interface of context generators, and the types that it uses.

Importing this module does not import LlamaIndex, because the settings and the command line list the
generators at startup.
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
        id: The document's LlamaIndex id. If the chunks name no document, it is their path, or else
            the id of the chunk.
        path: The path that citations show; "" if it is unknown.
        text: The text, or as much of it as is known.
        metadata: The metadata that all chunks of the document share.
    """

    id: str
    path: str
    text: str
    metadata: Mapping[str, Any] = MappingProxyType({})


class DocumentChunks(NamedTuple):
    """Chunks of one document, in document order."""

    document: SourceDocument
    nodes: tuple[BaseNode, ...]


class ChunkContext(NamedTuple):
    """The context of one chunk.

    Attributes:
        text: Embedded and indexed for keywords together with the chunk. It can be empty.
        lexical: Extra words that only keyword search reads.
        made_by: The generator whose name and version are recorded, if it is not the one that was
            called. A context from a fallback is replaced as soon as the generator that was called
            produces one.
    """

    text: str
    lexical: str = ""
    made_by: ContextGenerator | None = None


Contexts: TypeAlias = "list[Sequence[str | ChunkContext | None]]"
"""One list per document, with one context per chunk."""


class ContextProgress(NamedTuple):
    """The number of chunks of a run that are done, including those from a cache."""

    done: int
    total: int


Progress: TypeAlias = Callable[[ContextProgress], None]


class Tokens(NamedTuple):
    """Token counts of calls. ``cached`` is the part of ``prompt`` that the server had cached."""

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
    """Statistics of a generator since it was created.

    Attributes:
        generated: The number of contexts that the model wrote.
        failed: The number of chunks that got no context, by reason.
        calls: The number of requests, including retries.
        tokens: Counted by the server, or by LlamaIndex's tokenizer if the server reports none.
    """

    generated: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    tokens: Tokens = field(default_factory=Tokens)


class ContextEstimate(NamedTuple):
    """The cost of a run in which nothing fails.

    Attributes:
        chunks: The number of chunks without a context from this model and prompt.
        from_cache: The number of chunks whose context is in the cache.
        calls: The number of requests.
        tokens: Counted by LlamaIndex's tokenizer, for contexts of the usual length.
        local: Whether the model's server is on this machine.
    """

    chunks: int
    from_cache: int = 0
    calls: int = 0
    tokens: Tokens = Tokens()
    local: bool = False


def in_words(counts: Counter[str]) -> str:
    """Return counts as text, largest first: ``3 timeout, 1 empty``."""
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common())


class ContextGenerator(ABC):
    """Base class of context generators.

    A subclass defines a ``name`` and a :meth:`generate` that returns one context per chunk. To
    process several documents at once, also override :meth:`generate_all` and :meth:`agenerate_all`.

    Attributes:
        name: The name by which users select it in Python, on the command line, in settings and in
            evaluations. This package keeps its generators in ``context/generators/NAME.py``.
        version: Recorded as ``context_version``. Change it whenever the same chunk would get a
            different context. A generator that is not free skips chunks that already have a context
            of this version.
        description: One line for lists of generators.
        free: Whether it costs neither money nor noticeable time, so that it can run at query time.
        embeds_metadata: Whether a chunk's other metadata is embedded along with its context.
        model_name: The language model that it calls; "" if it calls none.
        usage: Statistics of its runs so far.
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
        """Return the value to record as ``context_source``."""
        return self.name

    def available(self) -> bool:
        """Return False if the generator is known to be unable to work now."""
        return True

    @abstractmethod
    def generate(
        self, nodes: Sequence[BaseNode], document: SourceDocument
    ) -> Sequence[str | ChunkContext | None]:
        """Return one context per node, in the same order; None for a node without a context."""

    def generate_all(
        self, batches: Sequence[DocumentChunks], progress: Progress | None = None
    ) -> Contexts:
        """Return the contexts of several documents.

        Args:
            batches: The documents with their chunks.
            progress: Called each time more chunks are done.
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
        """Run :meth:`generate_all` without blocking the event loop."""
        return await asyncio.to_thread(self.generate_all, batches, progress)

    def estimate(self, batches: Sequence[DocumentChunks]) -> ContextEstimate:
        """Return what a run over these chunks would cost."""
        return ContextEstimate(sum(len(batch.nodes) for batch in batches))

    def at_query_time(self) -> ContextGenerator | None:
        """Return the generator to use at query time, or None."""
        return self if self.free else None

    def options(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain data, read from attributes of the same names.

        An argument is left out if it has no such attribute or if its value is not plain data. Pass
        it again when you restore the generator.
        """
        arguments = {}
        for name in inspect.signature(type(self)).parameters:
            value = getattr(self, name, None)
            if value is not None and _is_plain(value):
                arguments[name] = value
        return arguments

    def state(self) -> str:
        """Return a token that changes when the same nodes should run again, as after a fallback."""
        return ""

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Close files and connections. The generator can still be used afterwards."""


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
