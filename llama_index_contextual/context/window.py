"""Which part of a document a model is shown: all where it fits, else its outline and what surrounds the chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual.metadata import HEADER_PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import SourceDocument

_OUTLINE_SHARE: Final = 0.25  # of the room for the document
_SPAN_SHARE: Final = 0.5  # of it for the chunks of one call; the rest is what surrounds them
_MAX_CHARS_PER_TOKEN: Final = 12  # a text this much longer than the room need not be counted
_LEFT_OUT: Final = "[…]"


@dataclass(frozen=True, slots=True)
class Window:
    """How much of a document may be shown, in tokens, and how tokens are counted."""

    tokens: int
    count: Callable[[str], int]

    def fits(self, text: str) -> bool:
        """Whether a text may be shown as a whole."""
        return len(text) <= self.tokens * _MAX_CHARS_PER_TOKEN and self.count(text) <= self.tokens

    def chars(self, text: str) -> int:
        """About how many of a text's characters may be shown."""
        sample = text[:20_000]
        return int(self.tokens * len(sample) / max(1, self.count(sample)))


def batches(nodes: Sequence[BaseNode], document: SourceDocument, size: int, window: Window) -> list[list[BaseNode]]:
    """Split chunks into calls of at most ``size``; chunks of one call lie together where the document does not fit."""
    if window.fits(document.text):
        return [list(nodes[start : start + size]) for start in range(0, len(nodes), size)]
    room = int(window.chars(document.text) * _SPAN_SHARE)
    result: list[list[BaseNode]] = []
    first = 0
    for node in nodes:
        start, end = position(node, document)
        if result and len(result[-1]) < size and end - first <= room:
            result[-1].append(node)
        else:
            result.append([node])
            first = start
    return result


def shown(nodes: Sequence[BaseNode], document: SourceDocument, outline: Sequence[BaseNode], window: Window) -> str:
    """Give what a call for some chunks shows of their document; what is left out is marked.

    Args:
        nodes: The chunks that the call is about.
        document: Their document.
        outline: All known chunks of it, whose header paths are its outline.
        window: The room there is.
    """
    if window.fits(document.text):
        return document.text
    room = window.chars(document.text)
    headings = _outline(outline, int(room * _OUTLINE_SHARE))
    around = _neighbourhood(nodes, document, room - len(headings))
    note = "(The document is longer than what is shown here.)"
    return "\n\n".join(filter(None, [note, headings and f"Its outline:\n{headings}", around]))


def position(node: BaseNode, document: SourceDocument) -> tuple[int, int]:
    """Where a chunk starts and ends in its document's text; (0, 0) where it cannot be found."""
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    start = node.start_char_idx if isinstance(node, TextNode) else None
    if start is None or not document.text.startswith(text, start):
        start = document.text.find(text)
    return (start, start + len(text)) if start >= 0 else (0, 0)


def _outline(nodes: Sequence[BaseNode], room: int) -> str:
    paths = list(dict.fromkeys(str(node.metadata.get(HEADER_PATH) or "") for node in nodes))
    lines = [path for path in paths if path.strip("/ ")]
    depth = max((line.count(" > ") for line in lines), default=0)
    while lines and sum(len(line) + 1 for line in lines) > room:
        if depth == 0:
            kept = max(1, len(lines) // 2)
            lines = [*lines[:kept], _LEFT_OUT] if kept < len(lines) - 1 else []
        else:
            lines = list(dict.fromkeys(" > ".join(line.split(" > ")[:depth]) for line in lines))
            depth -= 1
    return "\n".join(lines)


def _neighbourhood(nodes: Sequence[BaseNode], document: SourceDocument, room: int) -> str:
    spans = [position(node, document) for node in nodes]
    start, end = min(span[0] for span in spans), max(span[1] for span in spans)
    spare = max(0, room - (end - start)) // 2
    text = document.text
    left, right = max(0, start - spare), min(len(text), end + spare)
    if left:
        left = text.find("\n", left, start) + 1 or left
    if right < len(text):
        cut = text.rfind("\n", end, right)
        right = cut if cut > 0 else right
    body = text[left:right]
    if len(body) > room:  # one chunk longer than the room: its ends say most
        body = f"{body[: room // 2]}\n{_LEFT_OUT}\n{body[-(room // 2) :]}"
    return f"{_LEFT_OUT if left else ''}\n{body}\n{_LEFT_OUT if right < len(text) else ''}".strip("\n")
