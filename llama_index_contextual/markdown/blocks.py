"""Where a Markdown document may be cut, and what stands there.

One pass over pyromark's events gives a *ruler*: the offsets at which blocks, list items and sections start, how good a
place to cut each is, and which ranges (code fences, tables) want to stay whole. No tree is built: what the packer
needs is marks in order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import pyromark

# How good a place to cut is; a packer takes the strongest mark in reach. GLUED is no place at all.
SECTION: Final = 100  # before a heading
RULE: Final = 90  # after a horizontal rule
BLOCK: Final = 80  # between top-level blocks
ITEM: Final = 60  # before a top-level list item; 5 less for each level of nesting, not under NESTED
NESTED: Final = 40  # between the blocks of a quote or of a deeply nested item
CONTINUATION: Final = 35  # inside a list item: before its second paragraph, fence, ...
INTRO: Final = 30  # between "... as follows:" and the list, fence or table that follows
PIECE: Final = 20  # a blank line inside an oversized fence
LINE: Final = 15  # between code lines or table rows
SENTENCE: Final = 10
SPACE: Final = 5  # white space inside an oversized sentence or line
CHARACTER: Final = 1
GLUED: Final = 0  # after a heading

_PARSER: Final = pyromark.Markdown(options=pyromark.Options.ENABLE_TABLES)
_CONTAINERS: Final = frozenset({"List", "Item", "BlockQuote"})
_LEAVES: Final = {
    "Paragraph": "text",
    "HtmlBlock": "html",
    "Heading": "heading",
    "CodeBlock": "code",
    "Table": "table",
    "Rule": "rule",
}
# Kinds that a paragraph ending in a colon introduces.
_INTRODUCED: Final = frozenset({"list", "code", "table", "quote"})
_NON_ASCII: Final = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True, slots=True)
class Heading:
    """One top-level heading.

    Attributes:
        mark: Its index in the outline's marks.
        level: 1 to 6.
        start: Offset of its first character.
        end: Offset after its last line.
    """

    mark: int
    level: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Atom:
    """A code block or table, which is split only where it alone exceeds the budget.

    Attributes:
        start: Offset of its first line.
        end: Offset after its last line.
        kind: ``"code"`` or ``"table"``.
        info: The info string of a fence.
    """

    start: int
    end: int
    kind: str
    info: str = ""


@dataclass(slots=True)
class Outline:
    """The marks of one document, in ascending order, as parallel lists (one object a mark costs more than parsing it).

    Attributes:
        offsets: Where each mark is, in characters; the last one is the end of the text.
        strengths: How good a place to cut it is: :data:`SECTION` down to :data:`GLUED`.
        kinds: What starts there: ``"heading"``, ``"text"``, ``"code"``, ``"table"``, ``"list"``, ``"quote"``,
            ``"html"``, ``"rule"``; the kind of the outermost block inside containers.
        headings: The document's headings, in order.
        atoms: Code blocks and tables by the index of the mark that they start at.
    """

    offsets: list[int] = field(default_factory=list)
    strengths: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    headings: list[Heading] = field(default_factory=list)
    atoms: dict[int, Atom] = field(default_factory=dict)


def mask(text: str, body: int = 0) -> str:
    """A copy of the same length that parses alike, in which one character is one byte.

    pyromark counts UTF-8 bytes. No character beyond ASCII means anything to Markdown's blocks, so replacing each by a
    ``?`` makes its offsets those of the text: no conversion. Front matter becomes blank lines, a byte order mark
    (which hides a heading) a space, and a lone CR, which ends a line for Markdown but not for ``find``, a line feed.

    Args:
        text: The document.
        body: Where the front matter ends.
    """
    if not text.isascii():
        original, text = text, text.encode("ascii", "replace").decode("ascii")
        if "<?" in text:  # "<é" must not turn into the start of a processing instruction
            text = _NON_ASCII.sub("x", original)
        if original[0] == "\ufeff":
            text = " " + text[1:]
    if "\r" in text:
        text = text.replace("\r\n", " \n").replace("\r", "\n")
    return "\n" * body + text[body:] if body else text


def outline(masked: str, body: int = 0) -> Outline:
    """Find the marks of a document.

    Args:
        masked: What :func:`mask` returned.
        body: Where the front matter ends: the first mark.
    """
    builder = _Builder(masked, body)
    containers: list[tuple[int, str]] = []  # (end, kind) of the lists, items and quotes around
    skip = 0  # inside a leaf every event (inline markup, rows, text) is passed over unseen
    for event, span in _PARSER.events_with_range(masked):
        start = span["start"]
        if start < skip:
            continue
        tag: Any = "Rule" if event == "Rule" else "" if isinstance(event, str) else event.get("Start")
        if not tag:
            continue
        value: Any = None
        if not isinstance(tag, str):
            ((tag, value),) = tag.items()
        kind = _LEAVES.get(tag)
        while containers and start >= containers[-1][0]:
            containers.pop()
        end = span["end"]
        if tag in _CONTAINERS:
            builder.container(start, end, tag, containers)
            containers.append((end, tag))
        elif kind:
            skip = end
            builder.leaf(start, end, kind, value, containers)
    builder.close()
    return builder.outline


class _Builder:
    """Appends marks at line starts, each offset once."""

    def __init__(self, masked: str, body: int) -> None:
        self.masked = masked
        self.outline = Outline()
        self.top_end = body  # where the last top-level block ended
        self.previous = ""  # its kind
        self.after_rule = False
        self.last_offset = -1
        self.body = body

    def container(self, start: int, end: int, kind: str, containers: list[tuple[int, str]]) -> None:
        if not containers:
            self._top(start, end, "list" if kind == "List" else "quote")
            return
        if kind == "Item":
            depth = sum(1 for _, outer in containers if outer == "List")
            if containers[0][1] == "BlockQuote":
                depth += 1
            self._mark(start, max(NESTED, ITEM - 5 * (depth - 1)), self.previous)
        else:
            self._nested(start, containers)

    def leaf(self, start: int, end: int, kind: str, value: Any, containers: list[tuple[int, str]]) -> None:
        if containers:
            self._nested(start, containers)
        else:
            self._top(start, end, kind)
        marks = self.outline
        if kind in {"code", "table"}:
            info = value.get("Fenced", "") if kind == "code" and isinstance(value, dict) else ""
            first = self._line_start(start)
            marks.atoms[len(marks.offsets) - 1] = Atom(first, end, kind, info)
        elif kind == "heading" and not containers:
            level = int(value["level"][1])
            marks.headings.append(Heading(len(marks.offsets) - 1, level, start, end))

    def close(self) -> None:
        marks = self.outline
        self._uncovered(len(self.masked))
        if not marks.offsets:
            marks.offsets.append(self.body)
            marks.strengths.append(BLOCK)
            marks.kinds.append("text")
        marks.offsets.append(len(self.masked))
        marks.strengths.append(SECTION)
        marks.kinds.append("")

    def _line_start(self, start: int) -> int:
        return self.masked.rfind("\n", 0, start) + 1

    def _top(self, start: int, end: int, kind: str) -> None:
        self._uncovered(start)
        self.top_end = end
        previous = self.previous
        if kind == "heading":
            strength = SECTION
        elif previous == "heading" or kind == "rule":
            strength = GLUED
        elif self.after_rule:
            strength = RULE
        elif previous == "text" and kind in _INTRODUCED and self._introduces(start):
            strength = INTRO
        else:
            strength = BLOCK
        self._mark(start, strength, kind)
        if kind == "rule" and previous in {"", "heading"}:
            return  # a rule right under a heading is still glued to what follows
        self.after_rule = kind == "rule"
        self.previous = kind

    def _introduces(self, start: int) -> bool:
        return self.masked[max(0, start - 80) : start].rstrip()[-1:] == ":"

    def _nested(self, start: int, containers: list[tuple[int, str]]) -> None:
        in_item = containers[-1][1] == "Item"
        self._mark(start, CONTINUATION if in_item else NESTED, self.previous)

    def _uncovered(self, start: int) -> None:
        """Mark text that no event covers: link reference definitions."""
        between = self.masked[self.top_end : start]
        if between and not between.isspace():
            offset = self.top_end + len(between) - len(between.lstrip())
            self._mark(offset, GLUED if self.previous == "heading" else BLOCK, "text")
            self.previous = "text"

    def _mark(self, start: int, strength: int, kind: str) -> None:
        offset = self._line_start(start)
        if offset <= self.last_offset:
            return
        self.last_offset = offset
        marks = self.outline
        marks.offsets.append(offset)
        marks.strengths.append(strength)
        marks.kinds.append(kind)
