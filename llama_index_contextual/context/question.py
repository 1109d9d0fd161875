"""One question to a model: the part of a document that it shows, the chunks that it is about, and its length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_index_contextual.context.capacity import INSTRUCTION_TOKENS, count_tokens
from llama_index_contextual.context.prompt import describe_chunks
from llama_index_contextual.context.window import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import SourceDocument
    from llama_index_contextual.context.window import Window


@dataclass(frozen=True, slots=True)
class Question:
    """What a call sends besides its instruction; a run asks it, an estimate only counts it.

    Attributes:
        document: The document as it is shown.
        chunks: The chunks, by number.
    """

    document: str
    chunks: str

    @classmethod
    def about(
        cls,
        nodes: Sequence[BaseNode],
        document: SourceDocument,
        outline: Sequence[BaseNode],
        window: Window,
        excerpt: int | None,
    ) -> Question:
        """Ask about some chunks; see :func:`shown` and :func:`describe_chunks`."""
        return cls(shown(nodes, document, outline, window), describe_chunks(nodes, excerpt))

    @property
    def tokens(self) -> int:
        """About how long the prompt will be."""
        return count_tokens(self.document) + count_tokens(self.chunks) + INSTRUCTION_TOKENS
