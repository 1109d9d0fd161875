"""Where a Markdown document may be cut, and the sections that its headings make.

One pass over the blocks gives marks in order: where blocks, items and sections start, and how good
a place to cut each is. A section is a run of marks. A section with text of its own starts a chunk;
headings alone, tags, rules and navigation links join a neighbour.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import pyromark

from llama_index_contextual.node_parser.blocks import (
    HTML_HEADING,
    Block,
    blocks_of,
    containers_of,
    mask,
)
from llama_index_contextual.utils.dates import date_from_heading, names_in_passing
from llama_index_contextual.utils.metadata import shortened

# How good a place to cut is; a packer takes the strongest mark in reach. GLUED is no place at all.
SECTION: Final = 100  # before a heading
BLOCK: Final = 80  # between top-level blocks
ITEM: Final = 60  # before a top-level list item; 5 less for each level of nesting, not under NESTED
NESTED: Final = 40  # between the blocks of a quote or of an item
INTRO: Final = 30  # between "... as follows:" and the list, fence, table or quote that follows
PIECE: Final = 20  # a blank line inside an oversized fence
LINE: Final = 15  # between code lines, table rows or link reference definitions
SENTENCE: Final = 10
SPACE: Final = 5  # white space inside an oversized sentence or line
CHARACTER: Final = 1
GLUED: Final = 0  # after a heading

_INTRODUCED: Final = frozenset({"list", "code", "table", "quote"})
_INTRO_CHARS: Final = 80  # before a block, in which a colon introduces it
_MOST_LEADING_BLOCKS: Final = 5  # comments and anchors above a heading
_TITLE_PARSER: Final = pyromark.Markdown(
    options=pyromark.Options.ENABLE_STRIKETHROUGH | pyromark.Options.ENABLE_WIKILINKS
)
# Comments, anchors and attributes above a heading.
_LEAD: Final = re.compile(
    r"(?:\s*(?:<!--(?:(?!-->)[\s\S]){0,999}-->|\{{1,2}-?\s?[/#:!][^{}]{0,999}\}{1,2}|%%[^%]*%%"
    r"|<(a|span)\s[^<>]*>\s*</\1>|\([\w-]+\)=))+\s*"
)
# What ends a heading in Pandoc, Quarto, kramdown and MDX: {#id .class key="value"}, {: #id},
# {/* id */}, {-}, also with hashes before it. "{id}" is text.
_ATTRIBUTE: Final = r"""(?:[#.][^\s{}"'=]+|[\w:-]+=(?:"[^"{}]*"|'[^'{}]*'|[^\s{}"']+)|-)"""
_ATTRIBUTES: Final = re.compile(
    rf"(?: #+)? ?\{{(?::? ?{_ATTRIBUTE}(?: {_ATTRIBUTE})* ?|/[^{{}}]*)\}}$"
)
# Hugo's {{% heading "whatsnext" %}}: its text in quotes is shown.
_SHORTCODE: Final = re.compile(r'\{\{[%<][^{}"\n]*"([^"{}\n]*)"[^{}\n]*[%>]\}\}')
# What is no text of a section: the marker of an item, HTML, links and images, the definition of a
# link, addresses, tags, and the label before any of them, as in "Tags: #a" and "Next: [[b]]".
_NO_TEXT: Final = re.compile(
    r"^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?"
    r"|<[^<>]*>"
    r"|^[^\w\n\[<#]{0,9}\w{1,30}(?: \w{1,30})?[^\w\n]{0,3}:[ *_]{0,3}(?=[\[#<!]|https?://)"
    r"|!?\[\[[^\[\]]*\]\]|!?\[[^\[\]]*\](?:\([^()\n]*\)|\[[^\[\]]*\])"
    r"|^ {0,3}\[[^\[\]\n]+\]:.*"
    r"|https?://\S+"
    r"|(?<!\w)#[\w/-]+",
    re.MULTILINE,
)
_WORD: Final = re.compile(r"\w")


class Atom(NamedTuple):
    """A code block or table, which is split only where it alone exceeds the budget."""

    start: int  # of its first line
    end: int  # after its last line
    kind: str  # "code" or "table"
    info: str = ""  # of a fence


class Mark(NamedTuple):
    """A place at a line start where a document may be cut."""

    offset: int  # in characters
    strength: int  # SECTION down to GLUED
    kind: str  # of what starts there; inside other blocks, of the outermost one
    atom: Atom | None = None  # the code block or table that it is in

    @property
    def is_inside_atom(self) -> bool:
        """Return whether it is in a code block or table, and not at its start."""
        return self.atom is not None and self.atom.start < self.offset


class HeadingPlace(NamedTuple):
    """Where a heading stands."""

    mark: int  # the offset of its mark, before the comments and anchors that lead it
    level: int  # 1 to 6
    start: int
    end: int


@dataclass(slots=True)
class Outline:
    """The marks of a document in order, at most one for each offset; the last one ends the text."""

    marks: list[Mark] = field(default_factory=list)
    headings: list[HeadingPlace] = field(default_factory=list)
    containers: list[tuple[int, int]] = field(default_factory=list)  # callouts and the like

    def mark(self, masked: str, start: int, strength: int, kind: str) -> None:
        """Add a mark at the start of the line in which a block starts, if there is none."""
        if start and masked[start - 1] != "\n":
            # pyromark lets an item that a tab indents start at the end of the line before
            start = start + 1 if masked[start] == "\n" else masked.rfind("\n", 0, start) + 1
        if not self.marks or start > self.marks[-1].offset:
            self.marks.append(Mark(start, strength, kind))


def outline_of(text: str, body: int = 0, unread: int = 0) -> Outline:
    """Return the marks of a document.

    Args:
        text: The document.
        body: The offset after the front matter.
        unread: The offset after front matter that could not be read.
    """
    masked = mask(text, body, unread)
    outline = Outline(containers=containers_of(masked))
    _add_marks(outline, masked)
    marks = outline.marks
    start = body + len(masked[body:]) - len(masked[body:].lstrip())
    if not marks or marks[0].offset > start:  # the definition of a link, which no event covers
        marks.insert(0, Mark(start, BLOCK, "text"))
    marks.append(Mark(len(masked), SECTION, ""))
    return outline


def _add_marks(outline: Outline, masked: str) -> None:
    """Add the marks of all blocks."""
    open_ends: list[int] = []  # of the lists and quotes around a block
    top_level_end = 0  # what starts before it is inside the last top-level block
    above = ""  # the kind of the last top-level block
    for block in blocks_of(masked):
        while open_ends and block.start >= open_ends[-1]:
            open_ends.pop()
        if block.start < top_level_end:
            strength = NESTED
            if block.tag == "Item":
                strength = max(NESTED, ITEM - 5 * (len(open_ends) - 1))
            outline.mark(masked, block.start, strength, above)
        else:
            top_level_end = block.end
            _mark_top_level(outline, masked, block, above)
            # A rule at the top or right under a heading changes nothing.
            if block.kind != "rule" or above not in {"", "heading"}:
                above = block.kind
        if block.kind in {"code", "table"}:
            info = block.value.get("Fenced", "") if isinstance(block.value, dict) else ""
            start = masked.rfind("\n", 0, block.start) + 1
            atom = Atom(start, block.end, block.kind, info)
            outline.marks[-1] = outline.marks[-1]._replace(atom=atom)
        if block.tag in {"List", "BlockQuote"}:
            open_ends.append(block.end)


def _mark_top_level(outline: Outline, masked: str, block: Block, above: str) -> None:
    """Add the mark of a block that is in no other one."""
    strength = _strength(masked, block, above)
    outline.mark(masked, block.start, strength, block.kind)
    if block.kind == "heading":
        _join_what_leads(masked, outline.marks, block.start)
        level = int(block.value["level"][1])
        place = HeadingPlace(outline.marks[-1].offset, level, block.start, block.end)
        outline.headings.append(place)


def _strength(masked: str, block: Block, above: str) -> int:
    """Return how good a place to cut the start of a top-level block is."""
    if above == "heading" or block.kind == "rule":
        return GLUED
    if block.kind == "heading":
        return SECTION
    if above == "text" and block.kind in _INTRODUCED:
        before = masked[max(0, block.start - _INTRO_CHARS) : block.start]
        if before.rstrip("*_ \t\n").endswith(":"):
            return INTRO
    return BLOCK


def _join_what_leads(masked: str, marks: list[Mark], start: int) -> None:
    """Let a heading begin with the comments and anchors right above it."""
    for number in range(max(0, len(marks) - _MOST_LEADING_BLOCKS), len(marks) - 1):
        mark = marks[number]
        if _LEAD.fullmatch(masked, mark.offset, start):
            strength = mark.strength and SECTION
            marks[number:] = [mark._replace(strength=strength, kind="heading")]
            return


class Heading(NamedTuple):
    """A heading that is open at a place."""

    level: int  # 1 to 6; 0 where it is not known
    title: str
    day: date | None = None  # the date in its title


Path: TypeAlias = tuple[Heading, ...]  # the headings that are open at a place, outermost first


class Section(NamedTuple):
    """A heading and what stands under it up to the next one, or a part of that between rules."""

    first: int  # index of its first mark
    last: int  # index of the mark after it
    path: Path = ()  # the headings above it, outermost first, its own included
    has_text: bool = True  # it holds more than its heading, tags, links and rules
    is_alone: bool = False  # it never merges: its own title has a date, or it follows a rule

    @property
    def day(self) -> date | None:
        """Return the date in the innermost title that has one."""
        return next((heading.day for heading in reversed(self.path) if heading.day), None)


class _BoundaryKind(IntEnum):
    """What starts a section, in the order in which several at one place count."""

    RULE = 1
    CONTAINER = 2
    HEADING = 3


class _Boundary(NamedTuple):
    """A place where a section may start."""

    offset: int
    kind: _BoundaryKind
    mark: int  # its index
    level: int = 0  # of a heading
    title: str = ""
    container: int = 0  # its number


def find_sections(
    text: str, outline: Outline, sums: Sequence[int], min_size: int, above: Path = ()
) -> list[Section]:
    """Return the sections of a document in order.

    Args:
        text: The document.
        outline: Its marks and headings.
        sums: The tokens before each mark.
        min_size: Tags and links of fewer tokens are no text.
        above: The headings that are open where the document begins, as they are for a page.
    """
    marks = outline.marks
    end = len(marks) - 1
    rules = _dividing_rules(marks)
    starts = [Section(0, 0, above), *_starts(text, outline, rules, above), Section(end, end)]
    sections: list[Section] = []
    for section, following in pairwise(starts):
        if section.first == following.first:
            continue
        section = section._replace(last=following.first)  # noqa: PLW2901
        is_alone = section.is_alone or section.first in rules
        has_text = _has_text(text, marks, section, sums, min_size)
        sections.append(section._replace(has_text=has_text, is_alone=is_alone))
    return sections


def _dividing_rules(marks: Sequence[Mark]) -> set[int]:
    """Return the marks right after a rule; one at the top or under a heading divides nothing."""
    dividing: set[int] = set()
    for number in range(2, len(marks) - 1):
        is_after_rule = marks[number - 1].kind == "rule" and marks[number].kind != "rule"
        if is_after_rule and marks[number - 2].kind != "heading":
            dividing.add(number)
    return dividing


def _has_text(
    text: str, marks: Sequence[Mark], section: Section, sums: Sequence[int], min_size: int
) -> bool:
    """Return whether a section holds more than its heading, tags, rules and navigation links."""
    first = section.first
    if marks[first].kind == "heading":
        first += 1
    if first == section.last:
        return False
    if sums[section.last] - sums[first] >= max(1, min_size):
        return True
    body = text[marks[first].offset : marks[section.last].offset]
    return _WORD.search(_NO_TEXT.sub("", body)) is not None


def _boundaries(text: str, outline: Outline, rules: set[int]) -> list[_Boundary]:
    """Return the places where sections may start, in order."""
    offsets = [mark.offset for mark in outline.marks]
    boundaries = [_Boundary(offsets[mark], _BoundaryKind.RULE, mark) for mark in rules]
    for number, container in enumerate(outline.containers):
        for edge in container:
            mark = bisect_left(offsets, edge)
            boundaries.append(_Boundary(edge, _BoundaryKind.CONTAINER, mark, container=number))
    for place, title in titled_headings(text, outline):
        mark = bisect_left(offsets, place.mark)
        heading = _Boundary(place.mark, _BoundaryKind.HEADING, mark, place.level, title)
        boundaries.append(heading)
    return sorted(boundaries)


def _starts(text: str, outline: Outline, rules: set[int], path: Path) -> Iterator[Section]:
    """Yield the start of each section: at headings, after rules, and after containers.

    What follows a callout stands under the headings that are open at its beginning.
    """
    path_before: dict[int, Path] = {}  # by the number of a container
    for boundary in _boundaries(text, outline, rules):
        mark = boundary.mark
        if boundary.kind == _BoundaryKind.RULE:
            yield Section(mark, mark, path)
        elif boundary.kind == _BoundaryKind.HEADING:
            path = _path_to(path, boundary.level, boundary.title)
            yield Section(mark, mark, path, is_alone=path[-1].day is not None)
        elif boundary.container not in path_before:
            path_before[boundary.container] = path
        elif path != path_before[boundary.container]:
            path = path_before[boundary.container]
            if outline.marks[mark].kind == "rule":  # it ends what is above it
                mark += 1
            yield Section(mark, mark, path)


def _path_to(above: Path, level: int, title: str) -> Path:
    """Return the path of a heading that follows those of a path."""
    depth = len(above)
    while depth and above[depth - 1].level >= level:  # also after a jump from H1 to H3 back to H2
        depth -= 1
    for number in range(depth):
        # A heading of unknown level, above a chunk that is cut again and repeats it.
        if above[number].level == 0 and above[number].title == title:
            depth = number
            break
    parents = above[:depth]
    # In a note of a day, "Plan for 2026-06-30" is of that day, too.
    is_of_day = any(heading.day for heading in parents)
    day = None if is_of_day and names_in_passing(title) else date_from_heading(title)
    return (*parents, Heading(level, title, day))


def common_path(sections: Sequence[Section]) -> Path:
    """Return the headings that all sections with text share."""
    paths = [section.path for section in sections if section.has_text] or [sections[-1].path]
    shared: list[Heading] = []
    for headings in zip(*paths, strict=False):
        if any(heading != headings[0] for heading in headings):
            break
        shared.append(headings[0])
    return tuple(shared)


def group_sections(
    sections: Iterable[Section], sums: Sequence[int], min_section_size: int, size: int
) -> list[list[Section]]:
    """Group the sections of a document so that each group with text begins a chunk.

    Sections without text join what follows, at the end what precedes. Sections of fewer than
    ``min_section_size`` tokens merge with a neighbour of the same parent and day. No group exceeds
    ``size`` tokens unless one of its sections does, which is cut anyway.

    Args:
        sections: The sections in order.
        sums: The tokens before each mark.
        min_section_size: 0 merges no sections with text.
        size: The tokens of a chunk.
    """

    def tokens(*parts: Section) -> int:
        return sums[parts[-1].last] - sums[parts[0].first]

    groups: list[list[Section]] = []
    for section in sections:
        group = groups[-1] if groups else []
        total = tokens(*group, section)
        joins = False
        if group and not any(part.has_text for part in group):
            is_of_one_day = all(part.day in {None, section.day} for part in group)
            joins = is_of_one_day and (
                total <= size or (section.has_text and tokens(*group) < size)
            )
        elif group and section.has_text and tokens(*group) < min_section_size:
            is_small = tokens(section) < min_section_size and total <= size
            joins = (is_small or tokens(section) > size) and _are_related(group, section)
        if joins:
            group.append(section)
        else:
            groups.append([section])
    return _join_last_small_groups(groups, tokens, min_section_size, size)


def _join_last_small_groups(
    groups: Iterable[list[Section]],
    tokens: Callable[..., int],
    min_section_size: int,
    size: int,
) -> list[list[Section]]:
    """Join groups that found nothing to join with those before them."""
    merged: list[list[Section]] = []
    for group in groups:
        before = merged[-1] if merged else []
        joins = False
        if before and not any(section.has_text for section in group):
            joins = group[0].day in {None, before[-1].day}
        elif before and tokens(*group) < min_section_size:
            joins = _are_related(before, group[0])
        if joins and (tokens(*before, *group) <= size or tokens(*before) > size):
            before += group
        else:
            merged.append(group)
    return merged


def _are_related(group: Sequence[Section], section: Section) -> bool:
    """Return whether a section has the day and the parent of a group, or is under its heading."""
    before = group[-1].path
    path = section.path
    has_same_parent = before[:-1] == path[:-1] or path[: len(before)] == before
    return has_same_parent and not section.is_alone and section.day == group[-1].day


def titled_headings(text: str, outline: Outline) -> Iterator[tuple[HeadingPlace, str]]:
    """Yield each heading and its title on one line, without markup, link targets and attributes.

    A title has a limited length, because every chunk below the heading has it.
    """
    for place in outline.headings:
        source = text[place.start : place.end].replace("\r\n", "\n").replace("\r", "\n")
        source = HTML_HEADING.sub(lambda tag: f"# {' '.join(tag['title'].split())}", source)
        title = " ".join("".join(map(_shown, _TITLE_PARSER.events(source))).split())
        if not source.rstrip("# \t\n=-").endswith("`"):  # code shows what it holds
            title = _ATTRIBUTES.sub("", title)
        title = _SHORTCODE.sub(r"\1", title)
        yield place, shortened(title)


def _shown(event: Any) -> str:
    """Return the text of a parser's event in a heading."""
    if isinstance(event, str):
        return " "  # a line break inside a setext heading
    ((kind, value),) = event.items()
    if kind == "InlineHtml":
        return " " if str(value)[:3].lower() == "<br" else ""
    return str(value) if kind in {"Text", "Code"} else ""
