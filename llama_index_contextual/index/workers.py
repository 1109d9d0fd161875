"""Where a refresh has its work done: in this process, or by worker processes on Ray.

One process reads the files, looks up vectors and contexts in the caches, keeps new ones there, and writes to the store.
What takes long between these steps is what workers do: parse (and make free contexts), ask a language model, embed.
Each of the three has processes of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from llama_index_contextual.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.index.pipeline import NodePipeline
    from llama_index_contextual.index.settings import IndexSettings
    from llama_index_contextual.index.vectors import Vectors


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


class Hiring(Protocol):
    """What gives a refresh its workers."""

    def hired(self, settings: IndexSettings) -> AbstractContextManager[Workers]:
        """Return workers for one refresh of an index with these settings."""


@dataclass(slots=True)
class Here:
    """This process: documents are parsed one after the other; the index's vectors come from its own embedding."""

    pipeline: NodePipeline
    embed: Callable[[Iterable[list[str]]], Iterator[tuple[int, Vectors]]]
    embedders: int = 1
    write_contexts: bool = False

    def cut(self, documents: Iterable[Sequence[Document]]) -> Iterator[list[BaseNode] | DocumentError]:
        """Parse one source after the other; see :meth:`Workers.cut`."""
        for some in documents:
            try:
                yield self.pipeline.parse(some)
            except DocumentError as error:  # noqa: PERF203  of one document
                yield error
