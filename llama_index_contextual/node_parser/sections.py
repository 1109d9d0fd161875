"""Where a Markdown document may be cut, and the sections that its headings make.

One pass over the blocks gives marks in order: where blocks, items and sections start, and how good a cut each is.
Sections are runs of marks; small ones merge into groups.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import chain, pairwise, takewhile
from typing import Any, Final, NamedTuple, TypeAlias

import pyromark

from llama_index_contextual.node_parser.blocks import (
    HTML_HEADING,
    KINDS,
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
_TITLE_PARSER: Final = pyromark.Markdown(
    options=pyromark.Options.ENABLE_STRIKETHROUGH | pyromark.Options.ENABLE_WIKILINKS
)
# Comments, anchors and attributes above a heading.
_LEAD: Final = re.compile(
    r"(?:\s*(?:<!--(?:(?!-->)[\s\S]){0,999}-->|\{{1,2}-?\s?[/#:!][^{}]{0,999}\}{1,2}|%%[^%]*%%|<(a|span)\s[^<>]*>\s*</\1>"
    r"|\([\w-]+\)=))+\s*"
)
# What ends a heading: {#id .class}, {: #id}, MDX's {/* id */}, also after hashes. "{id}" is text.
_ATTRIBUTES: Final = re.compile(r"(?: #+)? ?\{(?::? ?[#./][^{}]*|-)\}$")
# Hugo's {{% heading "whatsnext" %}}: its text in quotes is shown.
_SHORTCODE: Final = re.compile(r'\{\{[%<][^{}"\n]*"([^"{}\n]*)"[^{}\n]*[%>]\}\}')


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
    kind: str  # of what starts there; inside of others, of the outermost block
    atom: Atom | None = None  # the code block or table that it is in

    @property
    def is_inside_atom(self) -> bool:
        """Whether it is in a code block or table, and not at its start."""
        return self.atom is not None and self.atom.start < self.offset


@dataclass(slots=True)
class Outline:
    """The marks of a document in order, one an offset at most; the last one ends the text."""

    marks: list[Mark] = field(default_factory=list)
    headings: list[tuple[int, int, int, int]] = field(
        default_factory=list
    )  # where its mark is, level, start, end
    containers: list[tuple[int, int]] = field(
        default_factory=list
    )  # callouts and components, by their ends

    def mark(self, masked: str, start: int, strength: int, kind: str) -> None:
        """Add a mark at the start of the line in which a block starts, if there is none."""
        if start and masked[start - 1] != "\n":
            # pyromark lets an item that a tab indents start at the end of the line before
            start = start + 1 if masked[start] == "\n" else masked.rfind("\n", 0, start) + 1
        if not self.marks or start > self.marks[-1].offset:
            self.marks.append(Mark(start, strength, kind))


def outline_of(text: str, body: int = 0, unread: int = 0) -> Outline:
    """The marks of a document from ``body`` on; a block up to ``unread`` is front matter that cannot be read."""
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
    around: list[int] = []  # the ends of lists and quotes
    end = 0  # of the last top-level block; what starts before that is inside it
    above = ""  # kind of that block
    for start, stop, tag, value in blocks_of(masked):
        kind = KINDS[tag]
        while around and start >= around[-1]:
            around.pop()
        if start < end:
            strength = max(NESTED, ITEM + 5 - 5 * len(around)) if tag == "Item" else NESTED
            outline.mark(masked, start, strength, above)
        else:
            end = stop
            outline.mark(masked, start, _strength(masked, start, kind, above), kind)
            if kind != "rule" or above not in {
                "",
                "heading",
            }:  # a rule right under a heading changes nothing
                above = kind
            if kind == "heading":
                _join_what_leads(masked, outline.marks, start)
                outline.headings.append(
                    (outline.marks[-1].offset, int(value["level"][1]), start, stop)
                )
        if kind in {"code", "table"}:
            info = value.get("Fenced", "") if value.__class__ is dict else ""
            atom = Atom(masked.rfind("\n", 0, start) + 1, stop, kind, info)
            outline.marks[-1] = outline.marks[-1]._replace(atom=atom)
        if tag in {"List", "BlockQuote"}:
            around.append(stop)


def _join_what_leads(masked: str, marks: list[Mark], start: int) -> None:
    """Let a heading begin with the comments and anchors right above it."""
    near = range(max(0, len(marks) - 5), len(marks) - 1)
    first = next(
        (number for number in near if _LEAD.fullmatch(masked, marks[number].offset, start)), None
    )
    if first is not None:
        marks[first:] = [
            marks[first]._replace(strength=marks[first].strength and SECTION, kind="heading")
        ]


def _strength(masked: str, start: int, kind: str, above: str) -> int:
    """How good a place to cut the start of a block is."""
    if above == "heading" or kind == "rule":
        return GLUED
    before = (
        masked[max(0, start - 80) : start].rstrip("*_ \t\n")
        if above == "text" and kind in _INTRODUCED
        else ""
    )
    return SECTION if kind == "heading" else INTRO if before.endswith(":") else BLOCK


class Heading(NamedTuple):
    """A heading that is open at a place: its level (1 to 6), its title, and the date in that."""

    level: int
    title: str
    day: date | None = None


Path: TypeAlias = tuple[Heading, ...]  # the headings that are open at a place, outermost first


class Section(NamedTuple):
    """A heading and what stands under it before the next heading of any level, or a part of that between two rules."""

    first: int  # index of its first mark
    last: int  # index of the mark after it
    path: Path = ()  # the headings above it, outermost first, its own included
    bare: bool = False  # nothing but the heading
    alone: bool = False  # it starts a chunk, however small it is: its own title has a date, or it follows a rule

    @property
    def day(self) -> date | None:
        """The date in the innermost title that has one."""
        return next((heading.day for heading in reversed(self.path) if heading.day), None)


def find_sections(text: str, outline: Outline, above: Path = ()) -> Iterator[Section]:
    """The sections of a document in order; ``above`` are the headings that are open where it begins, as for a page."""
    kinds = [mark.kind for mark in outline.marks]
    end = len(kinds) - 1
    # The marks right after a rule; one at the top or right under a heading parts nothing.
    rules = {
        m for m in range(2, end) if kinds[m - 1] == "rule" != kinds[m] and kinds[m - 2] != "heading"
    }
    starts = chain(
        [Section(0, 0, above)], _starts(text, outline, rules, above), [Section(end, end)]
    )
    for section, following in pairwise(starts):
        first, last = section.first, following.first
        if first < last:
            bare = section.bare and last - first == 1
            yield section._replace(last=last, bare=bare, alone=section.alone or first in rules)


def _starts(text: str, outline: Outline, rules: set[int], path: Path) -> Iterator[Section]:
    """The start of each section, with what is true of it; a rule and a container's end start one, too.

    What follows a callout stands under what is open at its beginning.
    """
    offsets = [mark.offset for mark in outline.marks]
    saved: dict[int, Path] = {}
    places = [(offsets[mark], -1, mark, "") for mark in rules]
    places += [
        (at, level, bisect_left(offsets, at), title)
        for at, level, _, title in titled_headings(text, outline)
    ]
    places += [
        (edge, 0, number, "") for number, pair in enumerate(outline.containers) for edge in pair
    ]
    for offset, level, mark, title in sorted(places):
        if level > 0:
            depth = len(path)
            while (
                depth and path[depth - 1].level >= level
            ):  # also right after a jump from H1 to H3 and back to H2
                depth -= 1
            # One of unknown level, above a chunk that is cut again and repeats it.
            depth = next((at for at in range(depth) if path[at][:2] == (0, title)), depth)
            is_of_day = any(
                heading.day for heading in path[:depth]
            )  # then "Plan for 2026-06-30" is of that day, too
            day = None if is_of_day and names_in_passing(title) else date_from_heading(title)
            path = (*path[:depth], Heading(level, title, day))
            yield Section(mark, mark, path, bare=True, alone=day is not None)
        elif level < 0:
            yield Section(mark, mark, path)
        elif mark not in saved:
            saved[mark] = path
        elif path != saved[mark]:
            path = saved[mark]
            first = bisect_left(offsets, offset)
            first += outline.marks[first].kind == "rule"  # which ends what is above it
            yield Section(first, first, path)


def common_path(sections: Sequence[Section]) -> Path:
    """The deepest headings that all sections with text share."""
    counted = [section.path for section in sections if not section.bare] or [sections[-1].path]
    shared = takewhile(
        lambda level: all(one == level[0] for one in level), zip(*counted, strict=False)
    )
    return tuple(level[0] for level in shared)


def group_sections(
    sections: Iterable[Section], sums: Sequence[int], min_size: int, size: int
) -> list[list[Section]]:
    """Sections, merged where they have fewer than ``min_size`` tokens and a neighbour of one parent and day.

    Small sections join one another until they are large enough, and what is left joins what precedes. A heading
    without text joins what follows. No merge exceeds ``size`` tokens, unless a section does, which is cut anyway.
    ``sums`` are the tokens before each mark.
    """

    def tokens(*parts: Section) -> int:
        return sums[parts[-1].last] - sums[parts[0].first]

    groups: list[list[Section]] = []
    for section in sections:
        group, more = groups[-1] if groups else [], tokens(section)
        if group and all(part.bare and part.day in {None, section.day} for part in group):
            joins = tokens(*group) < size if not section.bare else tokens(*group, section) <= size
        elif (
            group
            and not section.bare
            and tokens(*group) < min_size
            and _are_related(group, section)
        ):
            joins = more > size or (more < min_size and tokens(*group, section) <= size)
        else:
            joins = False
        groups[-1:] = [[*group, section]] if joins else [*groups[-1:], [section]]
    merged: list[list[Section]] = []
    for group in groups:
        before = merged[-1] if merged else []
        is_small = before and tokens(*group) < min_size and _are_related(before, group[0])
        if is_small and (tokens(*before, *group) <= size or tokens(*before) > size):
            before += group
        else:
            merged.append(group)
    return merged


def _are_related(group: Sequence[Section], section: Section) -> bool:
    """Whether a section is of the same day as a group, and under the same parent or under the group's last heading."""
    before, path = group[-1].path, section.path
    is_near = before[:-1] == path[:-1] or path[: len(before)] == before
    return is_near and not section.alone and section.day == group[-1].day


def titled_headings(text: str, outline: Outline) -> Iterator[tuple[int, int, int, str]]:
    """The offset of the mark, the level, the offset and the title of each heading.

    A title is on one line and without marks, link targets, anchors. It is bounded, as every chunk below it has it.
    """
    for at, level, start, end in outline.headings:
        source = text[start:end].replace("\r\n", "\n").replace("\r", "\n")
        source = HTML_HEADING.sub(lambda tag: f"# {' '.join(tag['title'].split())}", source)
        title = " ".join("".join(map(_shown, _TITLE_PARSER.events(source))).split())
        yield at, level, start, shortened(_ATTRIBUTES.sub("", _SHORTCODE.sub(r"\1", title)))


def _shown(event: Any) -> str:
    """The text of a parser's event in a heading."""
    if isinstance(event, str):
        return " "  # a line break inside a setext heading
    ((kind, value),) = event.items()
    if kind == "InlineHtml":
        return " " if str(value)[:3].lower() == "<br" else ""
    return str(value) if kind in {"Text", "Code"} else ""
