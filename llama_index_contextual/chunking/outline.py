"""Where a Markdown document may be cut, and the sections that its headings make.

One pass over the blocks gives marks in order: where blocks, items and sections start, and how good a cut each is.
Sections are runs of marks; small ones merge into groups.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from heapq import merge
from itertools import chain, pairwise, takewhile
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import pyromark

from llama_index_contextual.chunking.markdown import (
    HTML_HEADING,
    KINDS,
    Block,
    blocks_of,
    containers_of,
    mask,
)
from llama_index_contextual.metadata import shortened
from llama_index_contextual.text import date_from_heading, names_in_passing

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

_CONTAINERS: Final = frozenset({"List", "Item", "BlockQuote"})
_INTRODUCED: Final = frozenset({"list", "code", "table", "quote"})
_NON_BLANK: Final = re.compile(r"^[ \t]*\S", re.MULTILINE)
_TITLE_PARSER: Final = pyromark.Markdown(
    options=pyromark.Options.ENABLE_STRIKETHROUGH | pyromark.Options.ENABLE_WIKILINKS
)
# What ends a heading: hashes, and attributes, {#id .class key=value}, kramdown's {: #id}, Pandoc's {-}, MDX's comment
# {/* id */}. "{id}" is text.
_ENDING: Final = re.compile(
    r"""(?:[ \t]{1,20}\#{1,20}(?=\s{0,20}(?:\{|\Z))"""
    r"""|\s\{:?\s{0,20}(?:(?:[#.][^\s{}]{1,200}|[\w-]{1,50}=(?:"[^"{}]{0,200}"|[^\s{}]{1,200})|-)\s{0,20}){1,20}\}|\s\{/\*[^*{}]{0,200}\*/\}){1,3}"""
    r"""\s{0,20}(?=\Z|\n\s{0,20}(?:=+|-+)\s*\Z)"""
)
# Hugo's {{% heading "whatsnext" %}}, {{< badge >}}: its first text in quotes is shown.
_SHORTCODE: Final = re.compile(r'\{\{[%<][^{}"\n]*(?:"([^"{}\n]*)"[^{}\n]*)?[%>]\}\}')
_BLOCK_ID: Final = re.compile(r"\s\^[\w-]+$")  # Obsidian's


class Atom(NamedTuple):
    """A code block or table, which is split only where it alone exceeds the budget."""

    start: int  # of its first line
    end: int  # after its last line
    kind: str  # "code" or "table"
    info: str = ""  # of a fence


@dataclass(slots=True)
class Outline:
    """The marks of a document, at line starts, one an offset at most, as parallel lists: objects cost too much."""

    offsets: array[int] = field(default_factory=lambda: array("q"))  # in characters; the last one ends the text
    strengths: list[int] = field(default_factory=list)  # SECTION down to GLUED
    kinds: list[str] = field(default_factory=list)  # of what starts there; inside of others, of the outermost block
    atoms: list[Atom | None] = field(default_factory=list)  # the code block or table that each is in
    sums: Sequence[int] = field(default_factory=lambda: array("q"))  # the tokens before each, once they are counted
    # Four numbers for each top-level heading: the index of its mark, its level, where it starts and ends.
    headings: array[int] = field(default_factory=lambda: array("q"))
    containers: list[tuple[int, int]] = field(default_factory=list)  # callouts and components, by their ends

    def mark(self, masked: str, start: int, strength: int, kind: str, atom: Atom | None = None) -> None:
        """Add a mark at the start of the line in which a block starts, if there is none."""
        if start and masked[start - 1] != "\n":
            # pyromark lets an item that a tab indents start at the end of the line before
            start = start + 1 if masked[start] == "\n" else masked.rfind("\n", 0, start) + 1
        if not self.offsets or start > self.offsets[-1]:
            self.add(start, strength, kind, atom)

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
    """The marks of a document from ``body`` on; a block up to ``unread`` is front matter that cannot be read."""
    masked = mask(text, body, unread)
    outline = Outline(containers=containers_of(masked))
    _add_marks(outline, masked, body)
    if not outline.offsets:
        outline.add(body, BLOCK, "text")
    outline.add(len(masked), SECTION, "")
    return outline


def _add_marks(outline: Outline, masked: str, body: int) -> None:
    """Add the marks of all blocks."""
    around: list[tuple[int, str]] = []  # (end, tag) of lists, items and quotes
    end = body  # of the last top-level block; what starts before that is inside it
    above = ""  # kind of that block
    for block in chain(blocks_of(masked), [(len(masked), len(masked), "", None)]):
        start, stop, tag, value = block
        kind = KINDS.get(tag, "")
        while around and start >= around[-1][0]:
            around.pop()
        if start < end:
            _mark_inside(outline, masked, block, around, above)
        else:
            above = _mark_definitions(outline, masked, (end, start), above)
            end = stop
            if not kind:
                return
            outline.mark(masked, start, _strength(masked, start, kind, above), kind)
            if kind != "rule" or above not in {"", "heading"}:  # a rule right under a heading changes nothing
                above = kind
            if kind == "heading":
                outline.headings.extend((len(outline.offsets) - 1, int(value["level"][1]), start, stop))
        if kind in {"code", "table"}:
            info = value.get("Fenced", "") if value.__class__ is dict else ""
            outline.atoms[-1] = Atom(masked.rfind("\n", 0, start) + 1, stop, kind, info)
        if tag in _CONTAINERS:
            around.append((stop, tag))


def _mark_definitions(outline: Outline, masked: str, between: tuple[int, int], above: str) -> str:
    """Add the marks of link reference definitions, which no event covers; the kind of what now stands above."""
    strength = GLUED if above == "heading" else BLOCK
    for line in _NON_BLANK.finditer(masked, *between):
        outline.mark(masked, line.start(), strength, "text")
        strength, above = LINE, "text"
    return above


def _mark_inside(outline: Outline, masked: str, block: Block, around: list[tuple[int, str]], above: str) -> None:
    """Add the mark of a block inside of a list or a quote.

    An item of a top-level list that begins with a heading, as Logseq writes all of them, is a section of that list.
    """
    start, stop, tag, value = block
    depth = sum(outer != "Item" for _, outer in around)
    outline.mark(masked, start, max(NESTED, ITEM + 5 - 5 * depth) if tag == "Item" else NESTED, above)
    if tag == "Heading" and len(around) == 2 and masked[outline.offsets[-1] : start].strip() in {"-", "*", "+"}:  # noqa: PLR2004
        mark, end = len(outline.offsets) - 1, around[0][0]
        outline.strengths[mark], outline.kinds[mark] = SECTION, "heading"
        outline.headings.extend((mark, int(value["level"][1]), start, stop))
        if not outline.containers or outline.containers[-1][1] != end:
            outline.containers.append((outline.offsets[mark], end))


def _strength(masked: str, start: int, kind: str, above: str) -> int:
    """How good a place to cut the start of a block is."""
    if above == "heading" or kind == "rule":
        return GLUED
    before = masked[max(0, start - 80) : start].rstrip("*_ \t\n") if above == "text" and kind in _INTRODUCED else ""
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
    kinds, end = outline.kinds, len(outline.offsets) - 1
    # The marks right after a rule; one at the top or right under a heading parts nothing.
    rules = {m for m in range(2, end) if kinds[m - 1] == "rule" != kinds[m] and kinds[m - 2] != "heading"}
    starts = chain([Section(0, 0, above)], _starts(text, outline, rules, above), [Section(end, end)])
    for section, following in pairwise(starts):
        first, last = section.first, following.first
        if first < last:
            bare = section.bare and last - first == 1
            yield section._replace(last=last, bare=bare, alone=section.alone or first in rules)


def _starts(text: str, outline: Outline, rules: set[int], path: Path) -> Iterator[Section]:
    """The start of each section, with what is true of it; a rule and a container's end start one, too.

    What follows a callout stands under what is open at its beginning. Only a title of the document stays open: a
    heading of the first level inside a container, where none stands above it.
    """
    saved: dict[int, Path] = {}
    edges = sorted((edge, number) for number, pair in enumerate(outline.containers) for edge in pair)
    places = merge(
        ((outline.offsets[mark], mark, -1, "") for mark in sorted(rules)),
        ((start, mark, level, title) for mark, level, start, title in titled_headings(text, outline)),
        ((edge, number, 0, "") for edge, number in edges),
        key=itemgetter(0),
    )
    for offset, mark, level, title in places:
        if level > 0:
            depth = len(path)
            while depth and path[depth - 1].level >= level:  # also right after a jump from H1 to H3 and back to H2
                depth -= 1
            is_of_day = any(heading.day for heading in path[:depth])  # then "Plan for 2026-06-30" is of that day, too
            day = None if is_of_day and names_in_passing(title) else date_from_heading(title)
            path = (*path[:depth], Heading(level, title, day))
            yield Section(mark, mark, path, bare=True, alone=day is not None)
        elif level < 0:
            yield Section(mark, mark, path)
        elif mark not in saved:
            saved[mark] = path
        elif path != (outer := saved[mark]) and (path[0].level != 1 or (outer and outer[0].level == 1)):
            path = outer
            first = bisect_left(outline.offsets, offset)
            first += outline.kinds[first] == "rule"  # which ends what is above it
            yield Section(first, first, path)


def common_path(sections: Sequence[Section]) -> Path:
    """The deepest headings that all sections share.

    A heading without text does not count where the next section stands under it, where the text is of another day, or
    after sections with text.
    """
    day = next((one.day for one in sections if not one.bare), None)
    counted = [
        one
        for one, below in pairwise(sections)
        if not (one.bare and (day not in (None, one.day) or one.path == below.path[: len(one.path)]))
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

    Small sections join one another until they are large enough; a large one, and one that is ``alone``, joins bare
    headings before it alone. A small section before a large one joins what precedes. No merge of sections that fit
    ``size`` tokens exceeds it; one that does not fit is cut anyway, so a small neighbour joins it. ``sums`` are the
    tokens before each mark.
    """
    groups: list[list[Section]] = []  # the last two, which may become one
    for section in sections:
        if groups and _joins(groups[-1], section, sums, min_size, size):
            groups[-1].append(section)
            continue
        groups = _joined_backwards(groups, sums, min_size, size)
        yield from groups[:-1]
        groups = [*groups[-1:], [section]]
    yield from _joined_backwards(groups, sums, min_size, size)


def _tokens(sections: Sequence[Section], sums: Sequence[int]) -> int:
    return sums[sections[-1].last] - sums[sections[0].first]


def _joins(group: list[Section], section: Section, sums: Sequence[int], min_size: int, size: int) -> bool:
    tokens = _tokens(group, sums)
    if section.alone or section.day != group[-1].day:
        return tokens < size and all(part.bare and part.day is None for part in group)
    if group[-1].bare:
        return tokens < size
    if tokens >= min_size or not _are_related(group[0], section):
        return False
    more = _tokens([section], sums)
    return more > size or (more < min_size and tokens + more <= size)


def _joined_backwards(
    groups: list[list[Section]], sums: Sequence[int], min_size: int, size: int
) -> list[list[Section]]:
    """Two groups as one, where the second is small and belongs to the first; else as they are."""
    if len(groups) < 2 or groups[1][-1].day != groups[0][-1].day or any(section.alone for section in groups[1]):  # noqa: PLR2004
        return groups
    both, last = [*groups[0], *groups[1]], groups[0][-1]
    is_bare = all(section.bare for section in groups[1])
    is_small = is_bare or (_tokens(groups[1], sums) < min_size and _are_related(last, groups[1][0]))
    return [both] if is_small and (_tokens(both, sums) <= size or _tokens([last], sums) > size) else groups


def _are_related(before: Section, section: Section) -> bool:
    """Whether both are under the same parent, or the second is under the first."""
    return before.path[:-1] == section.path[:-1] or section.path[: len(before.path)] == before.path


def titled_headings(text: str, outline: Outline) -> Iterator[tuple[int, int, int, str]]:
    """The index of the mark, the level, the offset and the title of each heading.

    A title is on one line and without marks, link targets, anchors. It is bounded, as every chunk below it has it.
    """
    numbers = iter(outline.headings)
    for mark, level, start, end in zip(numbers, numbers, numbers, numbers, strict=True):
        source = text[start:end].replace("\r\n", "\n").replace("\r", "\n")
        source = HTML_HEADING.sub(lambda tag: f"# {' '.join(tag[3].split())}", source)
        source = _ENDING.sub("", source) if "#" in source[level:] or "}" in source else source
        title = " ".join("".join(map(_shown, _TITLE_PARSER.events(source))).split())
        if "{{" in title:
            title = " ".join(_SHORTCODE.sub(r"\1", title).split())
        yield mark, level, start, shortened(_BLOCK_ID.sub("", title))


def _shown(event: Any) -> str:
    """The text of a parser's event in a heading."""
    if isinstance(event, str):
        return " "  # a line break inside a setext heading
    ((kind, value),) = event.items()
    if kind == "InlineHtml":
        return " " if str(value)[:3].lower() == "<br" else ""
    return str(value) if kind in {"Text", "Code"} else ""
