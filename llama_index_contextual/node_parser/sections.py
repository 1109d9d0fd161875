"""The places where a Markdown document can be split, and the sections under its headings.

One pass over the blocks gives marks, in order. A mark is the start of a block, list item or
section, and its strength says how good a place to split it is. A section is a sequence of marks. A
section with text of its own starts a chunk. Headings without text, tags, rules and navigation links
join a neighbour.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import pyromark

from llama_index_contextual.node_parser.blocks import (
    HTML_HEADING,
    Block,
    Container,
    blocks_of,
    containers_of,
    mask,
)
from llama_index_contextual.utils.dates import date_from_heading, mentions_date_in_passing
from llama_index_contextual.utils.metadata import shortened

# The strengths of marks. The packer splits at the strongest mark in reach, and never at GLUED.
SECTION = 100  # before a heading
BLOCK = 80  # between top-level blocks
ITEM = 60  # before a top-level list item; 5 less per level of nesting, but at least NESTED
NESTED = 40  # between the blocks of a quote or of an item
INTRO = 30  # between "... as follows:" and the list, fence, table or quote that follows
PIECE = 20  # a blank line inside an oversized fence
LINE = 15  # between code lines, table rows, link definitions or unwrapped lines of text
SENTENCE = 10
SPACE = 5  # white space inside an oversized sentence or line
CHARACTER = 1
GLUED = 0  # after a heading

_INTRODUCED = frozenset({"list", "code", "table", "quote"})
_INTRO_CHARS = 80  # before a block that are searched for an introducing colon
_MOST_LEADING_BLOCKS = 5  # comments and anchors above a heading
_TITLE_PARSER = pyromark.Markdown(
    options=pyromark.Options.ENABLE_STRIKETHROUGH | pyromark.Options.ENABLE_WIKILINKS
)
# Comments, anchors and attributes above a heading.
_LEAD = re.compile(
    r"(?:\s*(?:<!--(?:(?!-->)[\s\S]){0,999}-->|\{{1,2}-?\s?[/#:!][^{}]{0,999}\}{1,2}|%%[^%]*%%"
    r"|<(a|span)\s[^<>]*>\s*</\1>|\([\w-]+\)=))+\s*"
)
# Attributes at the end of a heading in Pandoc, Quarto, kramdown and MDX: {#id .class key="value"},
# {: #id}, {tabset .wide}, {/* id */}, {-}, {#id}{.class}, also after hashes. "{id}" is text.
_VALUE = r"""(?:"[^"]{0,99}"|'[^']{0,99}'|[^\s{}"']+)"""
_ATTRIBUTE = rf"""(?:[#.][^\s{{}}"'=]+|[\w:-]+={_VALUE}|-)"""
_FLAG = r"\w[\w-]*"
_LIST = rf"(?:{_FLAG} ){{0,9}}{_ATTRIBUTE}(?: (?:{_ATTRIBUTE}|{_FLAG}))*"
_ATTRIBUTES = re.compile(rf"(?: #+)?(?: ?\{{(?::? ?{_LIST} ?|/[^{{}}]*)\}}){{1,3}}$")
# Hugo's {{% heading "whatsnext" %}}, of which the text in quotes is shown.
_SHORTCODE = re.compile(r'\{\{[%<][^{}"\n]*"([^"{}\n]*)"[^{}\n]*[%>]\}\}')
# Parts of a section that do not count as text: list markers, HTML, links, images, link definitions,
# URLs, tags, and the label before any of these, as in "Tags: #a" and "Next: [[b]]".
_NO_TEXT = re.compile(
    r"^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?"
    r"|<[^<>]*>"
    r"|^[^\w\n\[<#]{0,9}\w{1,30}(?: \w{1,30})?[^\w\n]{0,3}:[ *_]{0,3}(?=[\[#<!]|https?://)"
    r"|!?\[\[[^\[\]]*\]\]|!?\[[^\[\]]*\](?:\([^()\n]*\)|\[[^\[\]]*\])"
    r"|^ {0,3}\[[^\[\]\n]+\]:.*"
    r"|https?://\S+"
    r"|(?<!\w)#[\w/-]+",
    re.MULTILINE,
)
_WORD = re.compile(r"\w")


class Atom(NamedTuple):
    """A code block or table, which is only split if it alone exceeds the budget."""

    start: int  # of its first line
    end: int  # after its last line
    kind: str  # "code" or "table"
    info: str = ""  # of a fence


class Mark(NamedTuple):
    """A place where a document can be split."""

    offset: int  # in characters
    strength: int  # from SECTION down to GLUED
    kind: str  # of the block that starts there, or of the outermost block around it
    atom: Atom | None = None  # the code block or table that contains it

    @property
    def is_inside_atom(self) -> bool:
        """Return whether the mark is inside a code block or table, and not at its start."""
        return self.atom is not None and self.atom.start < self.offset


class HeadingPlace(NamedTuple):
    """A heading of a document, with its position."""

    mark: int  # the offset of its mark, before any comments and anchors right above it
    level: int  # 1 to 6
    start: int
    end: int
    title: str


@dataclass(slots=True)
class Outline:
    """The marks of a document, in order and with distinct offsets. The last one ends the text."""

    marks: list[Mark] = field(default_factory=list)
    headings: list[HeadingPlace] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)

    def mark(self, masked: str, start: int, strength: int, kind: str) -> None:
        """Add a mark at the start of a block's first line, unless there is one already."""
        if start and masked[start - 1] != "\n":
            # In pyromark, a tab-indented item starts at the end of the line before.
            if masked[start] == "\n":
                start += 1
            else:
                start = masked.rfind("\n", 0, start) + 1
        if not self.marks or start > self.marks[-1].offset:
            self.marks.append(Mark(start, strength, kind))


def outline_of(text: str, body: int = 0, unread: int = 0) -> Outline:
    """Return the marks and headings of a document.

    Args:
        text: The document.
        body: The offset after the front matter.
        unread: The offset after front matter that could not be read.
    """
    masked = mask(text, body, unread)
    outline = Outline(containers=containers_of(masked))
    _add_marks(outline, text, masked)
    marks = outline.marks
    start = len(masked) - len(masked[body:].lstrip())
    if not marks or marks[0].offset > start:  # link definitions cause no event
        marks.insert(0, Mark(start, BLOCK, "text"))
    marks.append(Mark(len(masked), SECTION, ""))
    return outline


def _add_marks(outline: Outline, text: str, masked: str) -> None:
    """Add the marks of all blocks, and the headings."""
    open_ends: list[int] = []  # of the lists and quotes around a block
    top_level_end = 0  # blocks that start before it are inside the last top-level block
    above = ""  # the kind of the last top-level block
    for block in blocks_of(masked):
        while open_ends and block.start >= open_ends[-1]:
            open_ends.pop()
        if block.start < top_level_end:
            strength = NESTED
            if block.tag == "Item":
                depth = len(open_ends) - 1
                strength = max(NESTED, ITEM - 5 * depth)
            outline.mark(masked, block.start, strength, above)
        else:
            top_level_end = block.end
            strength = _strength(masked, block, above)
            outline.mark(masked, block.start, strength, block.kind)
            # A rule at the top or right under a heading has no effect.
            if block.kind != "rule" or above not in {"", "heading"}:
                above = block.kind
            if block.kind == "heading":
                _add_heading(outline, text, masked, block)
        if block.kind in {"code", "table"}:
            info = block.value.get("Fenced", "") if isinstance(block.value, dict) else ""
            start = masked.rfind("\n", 0, block.start) + 1
            last_mark = outline.marks[-1]
            atom = Atom(start, block.end, block.kind, info)
            outline.marks[-1] = last_mark._replace(atom=atom)
        if block.tag in {"List", "BlockQuote"}:
            open_ends.append(block.end)


def _strength(masked: str, block: Block, above: str) -> int:
    """Return the strength of the mark at the start of a top-level block."""
    if above == "heading" or block.kind == "rule":
        return GLUED
    if block.kind == "heading":
        return SECTION
    if above == "text" and block.kind in _INTRODUCED:
        intro_start = max(0, block.start - _INTRO_CHARS)
        intro = masked[intro_start : block.start].rstrip("*_ \t\n")
        if intro.endswith(":"):
            return INTRO
    return BLOCK


def _add_heading(outline: Outline, text: str, masked: str, block: Block) -> None:
    """Add a heading, whose mark is above the comments and anchors right before it."""
    marks = outline.marks
    first = max(0, len(marks) - _MOST_LEADING_BLOCKS)
    for number in range(first, len(marks) - 1):
        mark = marks[number]
        if _LEAD.fullmatch(masked, mark.offset, block.start):
            strength = SECTION if mark.strength else GLUED
            marks[number:] = [mark._replace(strength=strength, kind="heading")]
            break
    level = int(block.value["level"][1])
    title = title_of(text[block.start : block.end])
    place = HeadingPlace(marks[-1].offset, level, block.start, block.end, title)
    outline.headings.append(place)


def title_of(source: str) -> str:
    """Return the title of a heading on one line, without markup, link targets and attributes.

    Its length is limited, because every chunk below the heading contains it.
    """
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    source = HTML_HEADING.sub(lambda tag: f"# {' '.join(tag['title'].split())}", source)
    shown = "".join(map(_shown, _TITLE_PARSER.events(source)))
    title = " ".join(shown.split())
    is_text = "\\{" in source or source.rstrip("# \t\n=-").endswith("`")  # escaped, or code
    if not is_text:
        title = _ATTRIBUTES.sub("", title)
    return shortened(_SHORTCODE.sub(r"\1", title))


def _shown(event: Any) -> str:
    """Return the text of a parser event in a heading."""
    if isinstance(event, str):
        return " "  # a line break inside a setext heading
    [(kind, value)] = event.items()
    text = str(value)
    if kind == "InlineHtml":
        return " " if text.lower().startswith("<br") else ""
    return text if kind in {"Text", "Code"} else ""


class Heading(NamedTuple):
    """A heading above a place in a document."""

    level: int  # 1 to 6; 0 if it is unknown
    title: str
    day: date | None = None  # the date in its title


Path: TypeAlias = tuple[Heading, ...]  # the headings above a place, outermost first


class Section(NamedTuple):
    """A heading with the text up to the next one, or a part of that text between two rules."""

    first: int  # index of its first mark
    last: int  # index of the mark after it
    path: Path  # the headings above it and its own, outermost first
    tokens: int
    has_text: bool  # whether it contains more than its heading, tags, links and rules
    is_alone: bool  # whether it never merges, because its title has a date or it follows a rule

    @property
    def day(self) -> date | None:
        """Return the date in the innermost title that has one."""
        days = (heading.day for heading in reversed(self.path))
        return next(filter(None, days), None)


class _Boundary(NamedTuple):
    """A place at which a section starts."""

    offset: int
    cause: HeadingPlace | Container | None  # None for a rule


def find_sections(
    text: str, outline: Outline, sums: Sequence[int], min_size: int, above: Path = ()
) -> list[Section]:
    """Return the sections of a document in order.

    Args:
        text: The document.
        outline: The marks and headings of the document.
        sums: The number of tokens before each mark.
        min_size: Tags and links with fewer tokens do not count as text.
        above: The headings that are already open at the beginning of the document, which can be a
            page.
    """
    marks = outline.marks
    rules = _dividing_rules(marks)
    paths = _paths(outline, rules, above)
    paths[len(marks) - 1] = ()  # the end
    sections: list[Section] = []
    for first, last in pairwise(paths):
        path = paths[first]
        begins_with_heading = marks[first].kind == "heading"
        body = first + 1 if begins_with_heading else first
        has_text = sums[last] - sums[body] >= max(1, min_size)
        if body < last and not has_text:
            source = text[marks[body].offset : marks[last].offset]
            has_text = _WORD.search(_NO_TEXT.sub("", source)) is not None
        has_dated_title = begins_with_heading and path[-1].day is not None
        is_alone = has_dated_title or first in rules
        tokens = sums[last] - sums[first]
        sections.append(Section(first, last, path, tokens, has_text, is_alone))
    return sections


def _dividing_rules(marks: Sequence[Mark]) -> set[int]:
    """Return the marks right after rules, except rules at the top or right under a heading."""
    dividing: set[int] = set()
    for number in range(2, len(marks) - 1):
        two_above, above, mark = marks[number - 2 : number + 1]
        is_after_rule = above.kind == "rule" and mark.kind != "rule"
        if is_after_rule and two_above.kind != "heading":
            dividing.add(number)
    return dividing


def _paths(outline: Outline, rules: Iterable[int], path: Path) -> dict[int, Path]:
    """Return the headings above each section by the index of its first mark, in order.

    Sections start at the top, at headings, after rules, and after containers. The text after a
    callout belongs to the headings that were open at its start.
    """
    offsets = [mark.offset for mark in outline.marks]
    boundaries = [_Boundary(offsets[index], None) for index in rules]
    for container in outline.containers:
        boundaries.append(_Boundary(container.start, container))
        boundaries.append(_Boundary(container.end, container))
    boundaries += [_Boundary(heading.mark, heading) for heading in outline.headings]
    boundaries.sort(key=attrgetter("offset"))

    paths = {0: path}
    path_before: dict[Container, Path] = {}
    for offset, cause in boundaries:
        mark_index = bisect_left(offsets, offset)
        if isinstance(cause, HeadingPlace):
            path = _path_to(path, cause)
        elif cause is not None:
            # At the end of a container, return to the path at its start.
            before = path_before.setdefault(cause, path)
            if path == before:
                continue
            path = before
            if outline.marks[mark_index].kind == "rule":  # the rule ends the section above it
                mark_index += 1
        paths[mark_index] = path
    return paths


def _path_to(above: Path, heading: HeadingPlace) -> Path:
    """Return the path of a new heading, given the path above it."""
    depth = len(above)
    # This also handles a jump from H1 to H3 and back to H2.
    while depth and above[depth - 1].level >= heading.level:
        depth -= 1
    for number, parent in enumerate(above[:depth]):
        # The heading above a chunk that is split again has an unknown level, and the chunk repeats
        # it.
        if parent.level == 0 and parent.title == heading.title:
            depth = number
            break
    parents = above[:depth]
    # In a dated section, "Plan for 2026-06-30" keeps the date of the section.
    is_dated = any(parent.day for parent in parents)
    is_in_passing = is_dated and mentions_date_in_passing(heading.title)
    day = None if is_in_passing else date_from_heading(heading.title)
    return (*parents, Heading(heading.level, heading.title, day))


def common_path(sections: Sequence[Section]) -> Path:
    """Return the outer headings that all sections with text share."""
    paths = [section.path for section in sections if section.has_text]
    if not paths:
        return sections[-1].path
    depth = 0
    for headings in zip(*paths, strict=False):
        if len(set(headings)) > 1:
            break
        depth += 1
    return paths[0][:depth]


def group_sections(
    sections: Iterable[Section], min_section_size: int, size: int
) -> list[list[Section]]:
    """Group the sections of a document so that each group with text begins a chunk.

    Sections without text join the next section, or at the end of the document the previous one.
    Sections with fewer than ``min_section_size`` tokens merge with a neighbour that has the same
    parent and date. No group exceeds ``size`` tokens unless one of its sections does, which must be
    split anyway.

    Args:
        sections: The sections in order.
        min_section_size: With 0, no sections with text are merged.
        size: The maximum number of tokens in a chunk.
    """
    groups: list[list[Section]] = []
    for section in sections:
        if groups and _extends_group(groups[-1], section, min_section_size, size):
            groups[-1].append(section)
        else:
            groups.append([section])
    merged: list[list[Section]] = []
    for group in groups:
        if merged and _joins_previous_group(merged[-1], group, min_section_size, size):
            merged[-1] += group
        else:
            merged.append(group)
    return merged


def _extends_group(
    group: Sequence[Section], section: Section, min_section_size: int, size: int
) -> bool:
    """Return whether a section joins the group before it, which has no text yet or is small."""
    tokens = _tokens(group)
    fits = tokens + section.tokens <= size
    if not _has_text(group):
        days = {part.day for part in group}
        has_same_day = days <= {None, section.day}
        has_space = fits or (section.has_text and tokens < size)
        return has_same_day and has_space
    if not section.has_text or tokens >= min_section_size:
        return False
    is_small = section.tokens < min_section_size and fits
    return (is_small or section.tokens > size) and _are_related(group, section)


def _joins_previous_group(
    before: Sequence[Section], group: Sequence[Section], min_section_size: int, size: int
) -> bool:
    """Return whether a group that joined no section after it joins the group before it."""
    tokens = _tokens(before)
    added = _tokens(group)
    if tokens <= size < tokens + added:
        return False
    first = group[0]
    if not _has_text(group):
        return first.day in {None, before[-1].day}
    return added < min_section_size and _are_related(before, first)


def _tokens(group: Iterable[Section]) -> int:
    return sum(section.tokens for section in group)


def _has_text(group: Iterable[Section]) -> bool:
    return any(section.has_text for section in group)


def _are_related(group: Sequence[Section], section: Section) -> bool:
    """Return whether a section has the date of a group, and shares its parent or is below it."""
    last = group[-1]
    if section.is_alone or section.day != last.day:
        return False
    has_same_parent = section.path[:-1] == last.path[:-1]
    is_under_its_heading = section.path[: len(last.path)] == last.path
    return has_same_parent or is_under_its_heading
