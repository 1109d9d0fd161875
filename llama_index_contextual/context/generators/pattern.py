"""Contexts of source code: the file, the enclosing definitions, and those in the chunk."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from llama_index_contextual.context.base import ChunkContext, SourceDocument
from llama_index_contextual.context.generators.headings import HeadingContextGenerator
from llama_index_contextual.context.source_code import (
    Definition,
    enclosing_definitions,
    is_code,
    listable_definitions,
)

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

_MOST_NAMES = 12  # in a context
_LONGEST_LEXICAL = 2000  # characters


class PatternContextGenerator(HeadingContextGenerator):
    """Write ``From file: engine.py. In: class Engine. Defines: function search.`` for code.

    The embedded text stays this short. For the first chunk of a file, keyword search also gets all
    names that the file defines. Files that are not source code get the contexts of
    :class:`HeadingContextGenerator`.
    """

    name = "pattern"
    description = (
        "the file, the enclosing definitions and those in the chunk; for other files, the headings"
    )
    # Increase it when the same code would get a different text.
    version = f"8+{HeadingContextGenerator.version}"

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext]:
        """Return one context per node."""
        if not is_code(document.path):
            return super().generate(nodes, document)
        definitions = listable_definitions(document.text, document.path)
        return [self._describe(node, document, definitions) for node in nodes]

    def _describe(
        self, node: BaseNode, document: SourceDocument, definitions: Sequence[Definition]
    ) -> ChunkContext:
        from llama_index_contextual.context import documents  # imports LlamaIndex

        text = document.text
        start, end = documents.position(node, document)
        if start == end:  # the known text does not contain the chunk: read the chunk alone
            text = documents.text_of(node)
            definitions = listable_definitions(text, document.path)
            end = len(text)
        start_of = attrgetter("start")
        first = bisect_left(definitions, start, key=start_of)
        last = bisect_left(definitions, end, key=start_of)
        parts = [
            f"From file: {document.path}.",
            _listed("In", enclosing_definitions(text, start, definitions[:first])),
            _listed("Defines", definitions[first:last]),
        ]
        is_first_chunk = end > start and not text[:start].strip()
        names = dict.fromkeys(item.name for item in definitions) if is_first_chunk else {}
        return ChunkContext(" ".join(filter(None, parts)), " ".join(names)[:_LONGEST_LEXICAL])


def _listed(label: str, definitions: Iterable[Definition]) -> str:
    """Return the distinct definitions as a sentence; "" if there are none."""
    names = list(dict.fromkeys(map(str, definitions)))
    more = ", …" if len(names) > _MOST_NAMES else ""
    return f"{label}: {', '.join(names[:_MOST_NAMES])}{more}." if names else ""
