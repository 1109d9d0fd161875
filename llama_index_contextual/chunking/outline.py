"""Where a Markdown document may be cut, and what stands there.

One pass over the blocks gives a *ruler*: the offsets at which blocks, list items and sections start, how good a
place to cut each is, and which ranges (code fences, tables) want to stay whole. No tree is built: what the packer
needs is marks in order.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from llama_index_contextual.chunking.markdown import KINDS, blocks_of, containers_of, mask

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

_CONTAINERS: Final = frozenset({"List", "Item", "BlockQuote"})
_DEEP: Final = 10  # containers, every second one a list: any deeper, and an item is as weak as NESTED
# Kinds that a paragraph ending in a colon introduces.
_INTRODUCED: Final = frozenset({"list", "code", "table", "quote"})
_MARKUP: Final = frozenset({"text", "html"})  # kinds that may be no more than anchors, comments, closing tags
_LONGEST_ANCHORS: Final = 200  # characters; a longer comment is text that somebody has taken out

# A block of anchors and comments: right above a heading it belongs to that, as does what it stands for.
_ANCHORS: Final = re.compile(r"(?:\s*(?:<!--(?:(?!-->).)*-->|<a\s[^<>]*(?:/>|>\s*</a>)))+\s*", re.DOTALL)

# A top-level heading: the index of its mark, its level (1 to 6), the offsets of its first character and after its last
# line.
Heading: TypeAlias = tuple[int, int, int, int]


class Atom(NamedTuple):
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
    """The marks of one document, in ascending order, as parallel lists.

    One object a mark costs more than parsing it, and a document may have millions.

    Attributes:
        offsets: Where each mark is, in characters; the last one is the end of the text.
        strengths: How good a place to cut it is: :data:`SECTION` down to :data:`GLUED`.
        kinds: What starts there: ``"heading"``, ``"text"``, ``"code"``, ``"table"``, ``"list"``, ``"quote"``,
            ``"html"``, ``"rule"``; the kind of the outermost block inside containers.
        atoms: Code blocks and tables by the index of the mark that they start at.
        containers: Where callouts and components begin and end, by their ends.
    """

    offsets: array[int] = field(default_factory=lambda: array("q"))
    strengths: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    atoms: dict[int, Atom] = field(default_factory=dict)
    containers: list[tuple[int, int]] = field(default_factory=list)
    _headings: array[int] = field(default_factory=lambda: array("q"))  # the four numbers of each

    @property
    def headings(self) -> Iterator[Heading]:
        """Return the document's headings, in order."""
        numbers = iter(self._headings)
        return zip(numbers, numbers, numbers, numbers, strict=True)

    def add_heading(self, *heading: int) -> None:
        """Add the numbers of a heading."""
        self._headings.extend(heading)


def outline_of(text: str, body: int = 0, unread: int = 0) -> Outline:
    """Find the marks of a document.

    Args:
        text: The document.
        body: Where the front matter ends: the first mark.
        unread: Where a block ends that looks like front matter and cannot be read.
    """
    masked = mask(text, body, unread)
    marks = _Marker(masked, body)
    for start, end, tag, value in blocks_of(masked):
        if start < marks.top_end:
            marks.nested(start, end, tag, value)
        else:
            marks.top(start, end, tag, value)
    marks.close()
    marks.outline.containers = containers_of(masked)
    return marks.outline


class _Marker:
    """Writes marks, at line starts and at most one an offset."""

    def __init__(self, masked: str, body: int) -> None:
        self.outline = Outline()
        self.top_end = body  # where the last top-level block ends; what starts before that is inside it
        self._masked = masked
        self._containers: list[tuple[int, str]] = []  # (end, tag) of the lists, items and quotes around
        self._last = -1  # offset of the last mark
        self._line = (0, 0)  # an offset, and where its line starts
        self._previous = ""  # kind of the last top-level block
        self._after_rule = False

    def top(self, start: int, end: int, tag: str, value: Any) -> None:
        kind = KINDS[tag]
        if start - self.top_end > 1:
            self._uncovered(start)
        previous = self._previous
        strength = self._strength(start, kind)
        self.top_end = end
        if kind != "heading" or previous not in _MARKUP or not self._anchored(start):
            self._mark(start, strength, kind)
        if kind != "rule" or previous not in {"", "heading"}:  # a rule right under a heading changes nothing
            self._after_rule = kind == "rule"
            self._previous = kind
        if kind == "heading":
            marks = self.outline
            marks.add_heading(len(marks.offsets) - 1, int(value["level"][1]), start, end)
        elif value is not None:
            self._detail(start, end, kind, value)
        if tag in _CONTAINERS:
            self._containers = [(end, tag)]

    def _strength(self, start: int, kind: str) -> int:
        """Return how good a place to cut the start of a top-level block is."""
        masked, previous = self._masked, self._previous
        if previous == "heading" or kind == "rule":
            return GLUED
        if kind == "heading":
            return SECTION
        if self._after_rule:
            return RULE
        if (
            previous == "text"
            and kind in _INTRODUCED
            and masked[max(0, start - 80) : start].rstrip("*_ \t\n")[-1:] == ":"
        ):
            return INTRO
        return BLOCK

    def nested(self, start: int, end: int, tag: str, value: Any) -> None:
        containers = self._containers
        while start >= containers[-1][0]:
            containers.pop()
        if tag == "Item":
            depth = sum(1 for _, outer in containers[:_DEEP] if outer != "Item")
            strength = max(NESTED, ITEM + 5 - 5 * depth)
        else:
            strength = CONTINUATION if containers[-1][1] == "Item" else NESTED
        self._mark(start, strength, self._previous)
        if value is not None:
            self._detail(start, end, KINDS[tag], value)
        if tag in _CONTAINERS:
            containers.append((end, tag))

    def close(self) -> None:
        marks = self.outline
        self._uncovered(len(self._masked))
        if not marks.offsets:
            self._mark(self.top_end, BLOCK, "text")
        marks.offsets.append(len(self._masked))
        marks.strengths.append(SECTION)
        marks.kinds.append("")

    def _anchored(self, start: int) -> bool:
        """Move a heading's start to the anchors and comments right above it; return False where there are none."""
        marks = self.outline
        total = first = len(marks.offsets)
        while first and marks.kinds[first - 1] in _MARKUP and start - marks.offsets[first - 1] <= _LONGEST_ANCHORS:
            at = marks.offsets[first - 1]
            line_before = self._masked[self._masked.rfind("\n", 0, max(0, at - 1)) + 1 : at]
            if not _ANCHORS.fullmatch(self._masked, at, start) or line_before.strip():
                break  # "<!-- tocstop -->" right under a list is of the list
            first -= 1
        if first == total:
            return False
        marks.kinds[first:] = ["heading"]
        marks.strengths[first:] = [SECTION if marks.strengths[first] else GLUED]
        del marks.offsets[first + 1 :]
        return True

    def _detail(self, start: int, end: int, kind: str, value: Any) -> None:
        """Note a fence or table, to be kept whole."""
        if kind in {"code", "table"}:
            info = value.get("Fenced", "") if value.__class__ is dict else ""
            first = self._line_of(start)
            self.outline.atoms[len(self.outline.offsets) - 1] = Atom(first, end, kind, info)

    def _uncovered(self, start: int) -> None:
        """Mark text that no event covers: link reference definitions."""
        between = self._masked[self.top_end : start]
        if between and not between.isspace():
            offset = self.top_end + len(between) - len(between.lstrip())
            self._mark(offset, GLUED if self._previous == "heading" else BLOCK, "text")
            self._previous = "text"

    def _line_of(self, offset: int) -> int:
        """Return where the line of an offset starts; of a line with a million marks no part is looked at twice."""
        seen, line = self._line if offset >= self._line[0] else (0, 0)
        line = self._masked.rfind("\n", seen, offset) + 1 or line
        self._line = offset, line
        return line

    def _mark(self, start: int, strength: int, kind: str) -> None:
        masked = self._masked
        if start and masked[start - 1] != "\n":
            # pyromark lets an item that a tab indents start at the end of the line before
            start = start + 1 if masked[start] == "\n" else self._line_of(start)
        if start > self._last:
            self._last = start
            marks = self.outline
            marks.offsets.append(start)
            marks.strengths.append(strength)
            marks.kinds.append(kind)
