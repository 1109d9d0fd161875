"""Where a node stands that is itself a chunk, so that chunks of it can say where *they* stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual import metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.markdown import Span


class Origin(NamedTuple):
    """What a parser adds to the places that it finds inside a node.

    Attributes:
        offset: Where the node starts in its document.
        line: On which line, 1-based; 0 where nobody has said.
        headings: Titles of the headings that it stands under, outermost first.
        level: Level of the innermost of them, 0 for none or unknown.
    """

    offset: int = 0
    line: int = 1
    headings: tuple[str, ...] = ()
    level: int = 0

    def path(self, inner: Sequence[str]) -> tuple[str, ...]:
        """The headings of a chunk that has some of its own: those that both name, once."""
        outer = self.headings
        for shared in range(min(len(outer), len(inner)), 0, -1):
            if outer[-shared:] == tuple(inner[:shared]):
                return (*outer, *inner[shared:])
        return (*outer, *inner)

    def place(self, span: Span) -> Span:
        """A span of the node, counted from the beginning of the document; line 0 where it is unknown."""
        if self == Origin():
            return span
        return span._replace(
            start=self.offset + span.start,
            end=self.offset + span.end,
            start_line=self.line and self.line + span.start_line - 1,
            end_line=self.line and self.line + span.end_line - 1,
            headings=self.path(span.headings),
            level=span.level or self.level,
        )


def origin_of(node: BaseNode) -> Origin:
    """Where a node stands in the document that it was cut from; the beginning, if it is a document.

    LlamaIndex's parsers write down at which character a chunk starts, but not on which line, and its text is all there
    is to read: so without a ``start_line`` the line is unknown, except at the beginning.
    """
    if node.source_node is None or node.source_node.node_id == node.node_id:
        return Origin()
    headings = tuple(metadata.heading_titles(node.metadata))
    level = _number(node.metadata.get(metadata.HEADING_LEVEL), 0)
    start = node.start_char_idx if isinstance(node, TextNode) else None
    end = node.end_char_idx if isinstance(node, TextNode) else None
    if start is None or end is None or end - start != len(node.get_content(metadata_mode=MetadataMode.NONE)):
        return Origin(headings=headings, level=level)  # changed since, or never placed
    return Origin(start, _number(node.metadata.get(metadata.START_LINE), 0 if start else 1), headings, level)


def _number(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and value > 0 else otherwise
