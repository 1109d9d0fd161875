"""Show a file's chunks in the terminal or as a page, so that a person can judge them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index.core.schema import TextNode
from rich.console import Group
from rich.text import Text

from llama_index_contextual import metadata
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.report.pages import chunk_panel, chunk_views, chunks_page, framed
from llama_index_contextual.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.node_parser import NodeParser
    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.postprocessor import ContextualNodePostprocessor

_FEW: Final = 3  # chunks: a word that so few have is rare, however small the index
_SAMPLE: Final = 2000  # chunks that are looked at


class Lacking(NamedTuple):
    """How many chunks do not say what they are about.

    Attributes:
        chunks: Those whose text holds no rare word of their own path and headings.
        of: All chunks with a rare word in path or headings.
    """

    chunks: int
    of: int

    def __str__(self) -> str:
        if not self.of:
            return "no chunk has a rare word in its path or headings"
        share = f"{self.chunks} of {self.of} chunks with a rare word in path or headings"
        lacks = "lacks it in its text" if self.chunks == 1 else "lack it in their text"
        return f"{share} {lacks} ({self.chunks / self.of:.0%}): there a context helps"


def lacking(nodes: Sequence[BaseNode]) -> Lacking:
    """Count the chunks whose text holds no rare word of their own path and headings.

    A word is rare when at most a tenth of the chunks, or three, have it in text, path or headings. Of more than 2,000
    chunks 2,000 are looked at.

    Args:
        nodes: The chunks of an index or of a file; contexts are not read.
    """
    analyzer = Analyzer()
    ordered = sorted(nodes, key=lambda node: node.node_id)  # ids are hashes, so the first are a fair sample
    sample = [
        (set(analyzer.tokens(node.get_content())), set(analyzer.tokens(metadata.place_of(node.metadata))))
        for node in ordered[:_SAMPLE]
    ]
    counts = Counter(word for text, place in sample for word in text | place)
    most = max(_FEW, len(sample) / 10)
    rare = [({word for word in place if counts[word] <= most}, text) for text, place in sample]
    of = [not words & text for words, text in rare if words]
    return Lacking(sum(of), len(of))


@dataclass(frozen=True)
class Preview:
    """The chunks of one file. A notebook draws them as a page, and ``rich`` draws them in a terminal.

    Attributes:
        name: The file's path.
        nodes: Its chunks in order, with their contexts.
        budget: The most tokens of a chunk, or None where the parser has no such setting.
    """

    name: str
    nodes: tuple[TextNode, ...] = field(repr=False)
    budget: int | None

    @property
    def lacking(self) -> Lacking:
        """How many of the chunks hold no rare word of their own path and headings."""
        return lacking(self.nodes)

    def to_html(self) -> str:
        """Return a self-contained page: boundaries, overlaps, and four views of each chunk."""
        return chunks_page(self.nodes, title=self.name, budget=self.budget, remark=str(self.lacking))

    def _repr_html_(self) -> str:
        return framed(self.to_html())

    def __rich__(self) -> Group:
        chunks = list(chunk_views(self.nodes))
        tokens = [chunk.tokens for chunk in chunks]
        sizes = (
            f"{min(tokens)} to {max(tokens)} tokens, {sum(tokens)} in all" if tokens[1:] else f"{sum(tokens)} tokens"
        )
        summary = f"{counted(len(chunks), 'chunk')}, {sizes}; {self.lacking}" if chunks else "no text, no chunks"
        heading = Text(printable(self.name, one_line=True), style="bold").append(f": {summary}", style="dim")
        return Group(heading, *map(chunk_panel, chunks))


def preview_of(
    name: str, documents: Sequence[Document], parser: NodeParser, contexts: ContextualNodePostprocessor | None = None
) -> Preview:
    """Return the chunks of a file, as an index of these settings would have them.

    Args:
        name: Of the file.
        documents: What it is read as: the pages of a PDF.
        parser: Cuts them.
        contexts: The step that writes contexts, or None for chunks alone. A context that costs something is replaced by
            a free one, because a preview pays for nothing.
    """
    nodes = [node for node in parser.get_nodes_from_documents(documents) if isinstance(node, TextNode)]
    if contexts is not None and contexts.generator is not None and nodes:
        contexts.model_copy(update={"generator": contexts.generator.at_query_time(), "documents": documents})(nodes)
    return Preview(name, tuple(nodes), getattr(parser, "chunk_size", None))
