"""Where a refresh has its work done: in this process, or by worker processes on Ray.

One process reads the files, looks up vectors and contexts in the caches, keeps new ones there, and writes to the store.
What takes long between these steps is what workers do: parse (and make free contexts), ask a language model, embed.
Each of the three has processes of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from llama_index_contextual.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.context.llm.generator import LLMContextGenerator
    from llama_index_contextual.distributed.ray_pool import Worker

    Vectors = Sequence[Sequence[float]]


class Workers(Protocol):
    """What does the work between reading and writing.

    Attributes:
        embedders: How many lists of texts can be embedded at once.
        write_contexts: Whether nodes come from :meth:`cut` with their contexts.
    """

    embedders: int
    write_contexts: bool

    def cut(self, documents: Iterable[Sequence[Document]]) -> Iterator[list[BaseNode] | DocumentError]:
        """Yield the nodes of each source's documents, in their order, or why it cannot be parsed."""

    def embed(self, lists: Iterable[list[str]]) -> Iterator[tuple[int, Vectors]]:
        """Yield the number of each list of texts and their vectors, as soon as they are made.

        Raises:
            EmbeddingError: The model failed.
        """


@dataclass(frozen=True, slots=True)
class Jobs:
    """What workers of other processes are to do in one refresh.

    Attributes:
        recipe: What they make their parts from; it is sent to each of them.
        parse: The class of those that parse documents.
        embed: The class of those that embed, or None where nothing is embedded.
        ask: The class of those that ask a language model, or None where none is asked.
        generator: Whose requests they send.
        write_contexts: Whether those that parse make contexts, too.
    """

    recipe: Any
    parse: type[Worker]
    embed: type[Worker] | None
    ask: type[Worker] | None
    generator: LLMContextGenerator | None
    write_contexts: bool


class Hiring(Protocol):
    """What gives a refresh its workers."""

    def hired(self, jobs: Jobs) -> AbstractContextManager[Workers]:
        """Return workers for one refresh."""


@dataclass(slots=True)
class Here:
    """This process: documents are parsed one after the other; the index's vectors come from its own embedding."""

    parse: Callable[[Sequence[Document]], list[BaseNode]]
    embed: Callable[[Iterable[list[str]]], Iterator[tuple[int, Vectors]]]
    embedders: int = 1
    write_contexts: bool = False

    def cut(self, documents: Iterable[Sequence[Document]]) -> Iterator[list[BaseNode] | DocumentError]:
        """Parse one source after the other; see :meth:`Workers.cut`."""
        for some in documents:
            try:
                yield self.parse(some)
            except DocumentError as error:  # noqa: PERF203  of one document
                yield error
