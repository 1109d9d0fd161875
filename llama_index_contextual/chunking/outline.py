"""Where a Markdown document may be cut, and the sections that its headings make.

One pass over the blocks gives marks in order: the offsets at which blocks, list items and sections start, how good a
place to cut each is, and which ranges (code fences, tables) want to stay whole. No tree is built. Sections are runs of
marks; small ones merge into groups.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from heapq import merge
from itertools import chain, pairwise, takewhile
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import pyromark

from llama_index_contextual.chunking.front_matter import read_front_matter
from llama_index_contextual.chunking.markdown import HTML_HEADING, KINDS, TAG_MARK, blocks_of, containers_of, mask
from llama_index_contextual.metadata import shortened
from llama_index_contextual.text import date_from_heading, names_in_passing

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
# A block of anchors and comments, or tags around an HTML heading: right above a heading it belongs to that, as does
# what it stands for.
_ANCHORS: Final = re.compile(
    rf"(?:\s*(?:<!--(?:(?!-->).)*-->|<a\s[^<>]*(?:/>|>\s*</a>)|{TAG_MARK}/?[a-z][^<>{TAG_MARK}]*>))+\s*", re.DOTALL
)
_LINE_END: Final = re.compile(r"\r\n?|\n")

_TITLE_PARSER: Final = pyromark.Markdown(
    options=pyromark.Options.ENABLE_STRIKETHROUGH | pyromark.Options.ENABLE_WIKILINKS
)
# What ends a heading: hashes, and attributes, {#id .class key=value}, kramdown's {: #id}, Pandoc's {-}. "{id}" is text.
_ENDING: Final = re.compile(
    r"""(?:[ \t]{1,20}\#{1,20}(?=\s{0,20}(?:\{|\Z))"""
    r"""|\s\{:?\s{0,20}(?:(?:[#.][^\s{}]{1,200}|[\w-]{1,50}=(?:"[^"{}]{0,200}"|[^\s{}]{1,200})|-)\s{0,20}){1,20}\}){1,3}"""
    r"""\s{0,20}(?=\Z|\n\s{0,20}(?:=+|-+)\s*\Z)"""
)
_REFERENCE: Final = re.compile(r"\[([^\[\]]+)\](?:\[([^\[\]]*)\])?")
_DEFINITION: Final = re.compile(r"^ {0,3}\[([^\[\]]+)\]:", re.MULTILINE)
# Hugo's {{% heading "whatsnext" %}}, {{< badge >}}: its first text in quotes is shown.
_SHORTCODE: Final = re.compile(r'\{\{[%<][^{}"\n]*(?:"([^"{}\n]*)"[^{}\n]*)?[%>]\}\}')
_NO_TITLE: Final = re.compile(r"!\[\[[^\[\]\n]+\]\]|\[[¶§#]\]\(#[^()\n]*\)")  # a file, a link to itself
_MARKED: Final = re.compile(r"(?<![\w=])==(?=\S)([^=]+)(?<=\S)==(?![\w=])")
_BLOCK_ID: Final = re.compile(r"\s\^[\w-]+$")  # Obsidian's


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
    """The marks of a document, at line starts and at most one an offset, in ascending order, as parallel lists.

    One object a mark costs more than parsing it, and a document may have millions.

    Attributes:
        offsets: Where each mark is, in characters; the last one is the end of the text.
        strengths: How good a place to cut it is: :data:`SECTION` down to :data:`GLUED`.
        kinds: What starts there: ``"heading"``, ``"text"``, ``"code"``, ``"table"``, ``"list"``, ``"quote"``,
            ``"html"``, ``"rule"``; the kind of the outermost block inside containers.
        atoms: The code block or table that each is in, if any.
        sums: The tokens before each, once they are counted.
        headings: Four numbers for each top-level heading: the index of its mark, its level (1 to 6), the offsets of
            its first character and after its last line.
        containers: Where callouts and components begin and end, by their ends.
    """

    offsets: array[int] = field(default_factory=lambda: array("q"))
    strengths: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    atoms: list[Atom | None] = field(default_factory=list)
    sums: Sequence[int] = field(default_factory=lambda: array("q"))
    headings: array[int] = field(default_factory=lambda: array("q"))
    containers: list[tuple[int, int]] = field(default_factory=list)

    def add(self, offset: int, strength: int, kind: str, atom: Atom | None = None) -> None:
        """Add a mark after the others."""
        self.offsets.append(offset)
        self.strengths.append(strength)
        self.kinds.append(kind)
        self.atoms.append(atom)

    def is_inside_atom(self, mark: int) -> bool:
        """Whether a mark is in a code block or table, and not at its start."""
        atom = self.atoms[mark]
        return atom is not None and atom.start < self.offsets[mark]


def outline_of(text: str, body: int = 0, unread: int = 0) -> Outline:
    """The marks of a document.

    Args:
        text: The document.
        body: Where the front matter ends: the first mark.
        unread: Where a block ends that looks like front matter and cannot be read.
    """
    masked = mask(text, body, unread)
    marker = _Marker(masked, body)
    for block in blocks_of(masked):
        marker.add(*block)
    marker.uncovered(len(masked))
    outline = marker.outline
    if not outline.offsets:
        marker.mark(body, BLOCK, "text")
    outline.add(len(masked), SECTION, "")
    outline.containers = containers_of(masked)
    return outline


class _Marker:
    """Writes the marks of blocks."""

    def __init__(self, masked: str, body: int) -> None:
        self.outline = Outline()
        self._masked = masked
        self._end = body  # of the last top-level block; what starts before that is inside it
        self._containers: list[tuple[int, str]] = []  # (end, tag) of the lists, items and quotes around
        self._previous = ""  # kind of the last top-level block
        self._after_rule = False

    def add(self, start: int, end: int, tag: str, value: Any) -> None:
        kind, outline, containers = KINDS[tag], self.outline, self._containers
        while containers and start >= containers[-1][0]:
            containers.pop()
        if start < self._end:
            self.mark(start, self._strength_inside(tag), self._previous)
        else:
            self.uncovered(start)
            previous = self._previous
            strength = self._strength(start, kind)
            self._end = end
            if kind != "heading" or previous not in _MARKUP or not self._joins_anchors(start):
                self.mark(start, strength, kind)
            if kind != "rule" or previous not in {"", "heading"}:  # a rule right under a heading changes nothing
                self._after_rule, self._previous = kind == "rule", kind
            if kind == "heading":
                outline.headings.extend((len(outline.offsets) - 1, int(value["level"][1]), start, end))
        if kind in {"code", "table"}:
            info = value.get("Fenced", "") if value.__class__ is dict else ""
            outline.atoms[-1] = Atom(self._masked.rfind("\n", 0, start) + 1, end, kind, info)
        if tag in _CONTAINERS:
            containers.append((end, tag))

    def _strength(self, start: int, kind: str) -> int:
        """How good a place to cut the start of a top-level block is."""
        previous = self._previous
        if previous == "heading" or kind == "rule":
            return GLUED
        if kind == "heading":
            return SECTION
        if self._after_rule:
            return RULE
        if previous == "text" and kind in _INTRODUCED:
            above = self._masked[max(0, start - 80) : start].rstrip("*_ \t\n")
            return INTRO if above.endswith(":") else BLOCK
        return BLOCK

    def _strength_inside(self, tag: str) -> int:
        if tag == "Item":
            depth = sum(outer != "Item" for _, outer in self._containers[:_DEEP])
            return max(NESTED, ITEM + 5 - 5 * depth)
        return CONTINUATION if self._containers[-1][1] == "Item" else NESTED

    def _joins_anchors(self, start: int) -> bool:
        """Move a heading's start to the anchors and comments right above it; return False where there are none."""
        marks = self.outline
        total = first = len(marks.offsets)
        while first and marks.kinds[first - 1] in _MARKUP:
            at = marks.offsets[first - 1]
            if start - at > _LONGEST_ANCHORS and self._masked[at] != TAG_MARK:
                break
            line_before = self._masked[self._masked.rfind("\n", 0, max(0, at - 1)) + 1 : at]
            if not _ANCHORS.fullmatch(self._masked, at, start) or line_before.strip():
                break  # "<!-- tocstop -->" right under a list is of the list
            first -= 1
        if first == total:
            return False
        marks.kinds[first:] = ["heading"]
        marks.strengths[first:] = [SECTION if marks.strengths[first] else GLUED]
        del marks.offsets[first + 1 :], marks.atoms[first + 1 :]
        return True

    def uncovered(self, start: int) -> None:
        """Mark text before a block that no event covers: link reference definitions."""
        between = self._masked[self._end : start] if start - self._end > 1 else ""
        if between and not between.isspace():
            offset = self._end + len(between) - len(between.lstrip())
            self.mark(offset, GLUED if self._previous == "heading" else BLOCK, "text")
            self._previous = "text"

    def mark(self, start: int, strength: int, kind: str) -> None:
        """Add a mark at the start of the line, if there is none."""
        masked, offsets = self._masked, self.outline.offsets
        if start and masked[start - 1] != "\n":
            # pyromark lets an item that a tab indents start at the end of the line before
            start = start + 1 if masked[start] == "\n" else masked.rfind("\n", 0, start) + 1
        if not offsets or start > offsets[-1]:
            self.outline.add(start, strength, kind)


class Heading(NamedTuple):
    """A heading that is open at a place: its level (1 to 6), its title, and the date in that."""

    level: int
    title: str
    day: date | None = None


Path: TypeAlias = tuple[Heading, ...]  # the headings that are open at a place, outermost first


class Section(NamedTuple):
    """A heading and what stands under it before the next heading of any level, or a part of that between two rules.

    Attributes:
        first: Index of its first mark.
        last: Index of the mark after it.
        path: The headings above it, outermost first, its own included.
        bare: Whether there is nothing but the heading.
        alone: Whether it starts a chunk, however small it is: its own title has a date, or a rule forces a cut.
    """

    first: int
    last: int
    path: Path = ()
    bare: bool = False
    alone: bool = False

    @property
    def day(self) -> date | None:
        """The date in the innermost title that has one."""
        return next((heading.day for heading in reversed(self.path) if heading.day), None)


def find_sections(text: str, outline: Outline, *, cut_at_rules: bool = False, above: Path = ()) -> Iterator[Section]:
    """The sections of a document in order; the text above its first heading is one, under what is above it.

    Args:
        text: The document.
        outline: Its marks.
        cut_at_rules: Whether a section ends at each rule (``---``) as well.
        above: Headings that are open where it begins, as they are for a page of a file.
    """
    kinds, end = outline.kinds, len(outline.offsets) - 1
    # The marks right after a rule; one at the top or right under a heading parts nothing.
    rules = [
        mark
        for mark in range(2, end if cut_at_rules else 0)
        if kinds[mark - 1] == "rule" and kinds[mark] != "rule" and kinds[mark - 2] != "heading"
    ]
    before = Section(0, 0, above)
    for section in chain(_starts(text, outline, above), [Section(end, end)]):
        first, last = before.first, section.first
        inside = rules[bisect_left(rules, first) : bisect_left(rules, last)]
        bare = before.bare and last - first == 1
        for start, stop in pairwise(sorted({first, *inside, last})):
            alone = before.alone or start > first or start in inside[:1]
            yield before._replace(first=start, last=stop, bare=bare, alone=alone)
        before = section


def _starts(text: str, outline: Outline, path: Path) -> Iterator[Section]:
    """The start of each section, with what is true of it; a container's end starts one, too.

    What follows a callout stands under what is open at its beginning. Only a title of the document stays open: a
    heading of the first level inside a container, where none stands above it.
    """
    saved: dict[int, Path] = {}
    edges = sorted((edge, number) for number, pair in enumerate(outline.containers) for edge in pair)
    places = merge(
        ((start, mark, level, title) for mark, level, start, title in titled_headings(text, outline)),
        ((edge, number, 0, "") for edge, number in edges),
        key=itemgetter(0),
    )
    for offset, mark, level, title in places:
        if level:
            depth = len(path)
            while depth and path[depth - 1].level >= level:  # also right after a jump from H1 to H3 and back to H2
                depth -= 1
            is_of_day = any(heading.day for heading in path[:depth])  # then "Plan for 2026-06-30" is of that day, too
            day = None if is_of_day and names_in_passing(title) else date_from_heading(title)
            path = (*path[:depth], Heading(level, title, day))
            yield Section(mark, mark, path, bare=True, alone=day is not None)
        elif mark not in saved:
            saved[mark] = path
        elif path != (outer := saved[mark]) and (path[0].level != 1 or (outer and outer[0].level == 1)):
            path = outer
            first = bisect_left(outline.offsets, offset)
            yield Section(first, first, path)


def common_path(sections: Sequence[Section]) -> Path:
    """The deepest headings that all sections share.

    A heading without text of its own does not count where the next section stands under it, as its title is in that
    path, nor after sections with text: they do not stand under it.
    """
    counted = [
        one
        for one, below in pairwise(sections)
        if not (one.bare and len(one.path) < len(below.path) and one.path == below.path[: len(one.path)])
    ] + [sections[-1]]
    while len(counted) > 1 and counted[-1].bare:
        counted.pop()
    levels = zip(*(one.path for one in counted), strict=False)
    shared = takewhile(lambda level: all(one == level[0] for one in level), levels)
    return tuple(level[0] for level in shared)


def group_sections(
    sections: Iterable[Section], sums: Sequence[int], min_size: int, size: int
) -> Iterator[list[Section]]:
    """Sections, merged where they have fewer than ``min_size`` tokens and a neighbour of one parent and day.

    Small sections join one another until they are large enough; one that is large enough joins nothing before it but
    bare headings, so what is inserted between two whole sections moves no boundary elsewhere. A small section that is
    followed by a large one joins what precedes. A section that is ``alone`` joins nothing but bare headings before it.

    Args:
        sections: In order.
        sums: Tokens before each mark.
        min_size: In tokens.
        size: No merge of two sections that fit this many tokens exceeds it. A section that does not fit is cut anyway,
            so a small neighbour joins it, and shares a piece with its beginning or end.
    """
    before: list[Section] = []
    group: list[Section] = []
    for section in sections:
        if group and _joins(group, section, sums, min_size, size):
            group.append(section)
            continue
        if before and _joins_backwards(before, group, sums, min_size, size):
            before += group
        else:
            if before:
                yield before
            before = group
        group = [section]
    if before and _joins_backwards(before, group, sums, min_size, size):
        before += group
        group = []
    yield from filter(None, (before, group))


def _tokens(first: Section, last: Section, sums: Sequence[int]) -> int:
    return sums[last.last] - sums[first.first]


def _joins(group: list[Section], section: Section, sums: Sequence[int], min_size: int, size: int) -> bool:
    tokens = _tokens(group[0], group[-1], sums)
    if section.alone or section.day != group[-1].day:
        return tokens < size and all(part.bare and part.day is None for part in group)
    if group[-1].bare:
        return tokens < size
    if tokens >= min_size or not _related(group[0], section):
        return False
    more = _tokens(section, section, sums)
    return more > size or (more < min_size and _tokens(group[0], section, sums) <= size)


def _joins_backwards(
    before: list[Section], group: list[Section], sums: Sequence[int], min_size: int, size: int
) -> bool:
    if group[-1].day != before[-1].day or any(section.alone for section in group):
        return False
    is_bare = all(section.bare for section in group)
    if _tokens(group[0], group[-1], sums) >= min_size and not is_bare:
        return False
    if _tokens(before[0], group[-1], sums) > size >= _tokens(before[-1], before[-1], sums):
        return False
    return is_bare or _related(before[-1], group[0])


def _related(before: Section, section: Section) -> bool:
    """Whether both are under the same parent, or the second is under the first."""
    return before.path[:-1] == section.path[:-1] or section.path[: len(before.path)] == before.path


def headings_of(text: str) -> list[tuple[str, int, int]]:
    """The title, the level (1 to 6) and the line (from 1) of each heading of a Markdown text."""
    front, ends = read_front_matter(text), line_ends(text)
    headings = titled_headings(text, outline_of(text, front.end, front.unread))
    return [(title, level, bisect_right(ends, start) + 1) for _, level, start, title in headings]


def line_ends(text: str) -> array[int]:
    """The offset after each line end: LF, CR LF or CR."""
    return array("q", (match.end() for match in _LINE_END.finditer(text)))


def titled_headings(text: str, outline: Outline) -> Iterator[tuple[int, int, int, str]]:
    """The index of the mark, the level, the offset and the title of each heading.

    A title is on one line and without marks, link targets, anchors. One of more than
    :data:`~llama_index_contextual.metadata.MOST_CHARS` characters is cut, as it is copied to every chunk below it.
    """
    defined: set[str] | None = None
    numbers = iter(outline.headings)
    for mark, level, start, end in zip(numbers, numbers, numbers, numbers, strict=True):
        source = text[start:end].replace("\r\n", "\n").replace("\r", "\n")
        source = HTML_HEADING.sub(lambda tag: f"# {' '.join(tag[3].split())}", source)
        source = _ENDING.sub("", source) if "#" in source[level:] or "}" in source else source
        source = _NO_TITLE.sub("", source) if "[" in source else source
        title = " ".join("".join(map(_shown, _TITLE_PARSER.events(source))).split())
        if "{{" in title:
            title = " ".join(_SHORTCODE.sub(r"\1", title).split())
        title = _MARKED.sub(r"\1", title) if "==" in title else title
        if "[" in title:
            if defined is None:
                defined = {label.casefold() for label in _DEFINITION.findall(text)}
            title = _without_references(title, defined)
        yield mark, level, start, shortened(_BLOCK_ID.sub("", title))


def _shown(event: Any) -> str:
    """The text of a parser's event in a heading."""
    if isinstance(event, str):
        return " "  # a line break inside a setext heading
    ((kind, value),) = event.items()
    if kind == "InlineHtml":
        return " " if str(value)[:3].lower() == "<br" else ""
    return str(value) if kind in {"Text", "Code"} else ""


def _without_references(title: str, defined: set[str]) -> str:
    """A title with the label of each reference link that the document defines, of a footnote none; others stay."""

    def label(match: re.Match[str]) -> str:
        is_defined, is_note = (match[2] or match[1]).casefold() in defined, match[1].startswith("^")
        return match[0] if not is_defined else "" if is_note else match[1]

    return _REFERENCE.sub(label, title)
