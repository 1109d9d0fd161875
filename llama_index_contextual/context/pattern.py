"""Contexts of source code: file, enclosing symbols and what a chunk defines. Other documents get their headings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import MetadataMode

from llama_index_contextual.checks import whole
from llama_index_contextual.context.base import ChunkContext, ContextGenerator, SourceDocument
from llama_index_contextual.context.documents import position, start_of
from llama_index_contextual.context.headings import HeadingContextGenerator
from llama_index_contextual.context.outline import Outline, first_sentence, outline
from llama_index_contextual.identity import short_hash
from llama_index_contextual.metadata import heading_titles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from llama_index.core.schema import BaseNode

_REVISION: Final = 4  # raise it when the same settings would give other words


class PatternContextGenerator(ContextGenerator):
    """Say ``From file: search/engine.py. In: class Engine. Defines: function search.``.

    What is embedded stays that short. The keyword arm gets, besides, what the chunk's comments say first; the chunk
    that the file begins with also gets every name that the file defines. What belongs to the file is kept once, so that
    these words take few characters a chunk (``benchmarks/context_pattern.py`` counts them).

    Other files than source code get the context of their headings, and for the keyword arm all the document's headings.

    Args:
        max_symbols: How many names a context lists at most.
        max_lexical_chars: How long the text for the keyword arm may become.
    """

    name = "pattern"

    def __init__(self, *, max_symbols: int = 12, max_lexical_chars: int = 2000) -> None:
        self.max_symbols = whole("max_symbols", max_symbols)
        self.max_lexical_chars = whole("max_lexical_chars", max_lexical_chars)
        self._headings = HeadingContextGenerator()

    @property
    def version(self) -> str:
        """Hash of the settings."""
        return short_hash([self.name, _REVISION, *self.config().values(), self._headings.version])

    def config(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return {"spec": self.name, "max_symbols": self.max_symbols, "max_lexical_chars": self.max_lexical_chars}

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        """Return one context per node."""
        code = outline(document.text, document.path)
        if code is None:
            return self._from_headings(nodes, document)
        version = self.version
        return [self._from_code(node, document, code, version) for node in nodes]

    def _from_code(self, node: BaseNode, document: SourceDocument, code: Outline, version: str) -> ChunkContext:
        start, end = position(node, document)
        if start == end:  # the chunk is not part of the text that is known: read it by itself
            text = node.get_content(metadata_mode=MetadataMode.NONE)
            code, start, end = outline(text, document.path) or code, 0, len(text)
        parts = [
            f"From file: {document.path}.",
            self._listed("In", code.enclosing(start)),
            self._listed("Defines", code.defined(start, end)),
        ]
        words = [code.purpose(start, end)]
        if end > start and not code.text[:start].strip():  # the chunk that the file begins with
            words += [code.language, *dict.fromkeys(symbol.name for symbol in code.symbols)]
        lexical = " ".join(filter(None, words))[: self.max_lexical_chars]
        return ChunkContext(" ".join(filter(None, parts)), self.name, lexical, version)

    def _listed(self, label: str, symbols: Iterable[object]) -> str:
        names = list(dict.fromkeys(map(str, symbols)))
        more = ", …" if len(names) > self.max_symbols else ""
        return f"{label}: {', '.join(names[: self.max_symbols])}{more}." if names else ""

    def _from_headings(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        titles = dict.fromkeys(title for node in nodes for title in heading_titles(node.metadata))
        # What stands before the first chunk is front matter.
        body = document.text[position(nodes[0], document)[0] if start_of(nodes[0]) > 0 else 0 :]
        lexical = " ".join(filter(None, [*titles, first_sentence(body)]))[: self.max_lexical_chars]
        version = self.version
        return [ChunkContext(self._headings.describe(node, document), self.name, lexical, version) for node in nodes]


FREE: Final[dict[str, Callable[[], ContextGenerator]]] = {
    "pattern": PatternContextGenerator,
    "headings": HeadingContextGenerator,
}
"""The generators that cost nothing, by name."""
