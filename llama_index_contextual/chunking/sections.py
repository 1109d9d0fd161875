"""Sections: their titles as a reader sees them, and the groups that small sections merge into."""

from __future__ import annotations

import re
from bisect import bisect_left
from heapq import merge
from itertools import pairwise, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyromark

from llama_index_contextual.chunking.markdown import HTML_HEADING
from llama_index_contextual.metadata import shortened
from llama_index_contextual.text import date_from_heading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import date

    from llama_index_contextual.chunking.outline import Outline

_OPTIONS: Final = (
    pyromark.Options.ENABLE_HEADING_ATTRIBUTES
    | pyromark.Options.ENABLE_STRIKETHROUGH
    | pyromark.Options.ENABLE_WIKILINKS
)
_PARSER: Final = pyromark.Markdown(options=_OPTIONS)
# An ATX heading without inline markup but code and an {#id} at its end: most of them, so most need no second parse.
_PLAIN_ATX: Final = re.compile(
    r" {0,3}#{1,6}(?:[ \t]([^\\*_\[\]<>&~{}^#\r\n]*))?"
    r"(?:(?<=[ \t])(?:\{[ \t]*#[\w-]+[ \t]*\}|#+)[ \t]*)?(?:\r\n?|\n|\Z)"
)
_CODE: Final = re.compile(r"[^`]*(?:`[^`\s](?:[^`]*[^`\s])?`(?!`)[^`]*)*")  # in single backticks
_REFERENCE: Final = re.compile(r"\[([^\[\]]+)\](?:\[([^\[\]]*)\])?")
_DEFINITION: Final = re.compile(r"^ {0,3}\[([^\[\]]+)\]:", re.MULTILINE)
_SHORTCODE: Final = re.compile(r'\{\{[%<]\s*\w+\s+"([^"]*)"\s*[%>]\}\}')  # Hugo's {{% heading "whatsnext" %}}
_BLOCK_ID: Final = re.compile(r"\s\^[\w-]+$")  # Obsidian's


class Open(NamedTuple):
    """The headings that are open at a place in a document.

    Attributes:
        titles: Outermost first.
        levels: Their levels, 1 to 6.
    """

    titles: tuple[str, ...] = ()
    levels: tuple[int, ...] = ()


TOP: Final = Open()  # above the first heading
_Days: TypeAlias = "tuple[date | None, ...]"  # of the headings that are open, after None


class Section(NamedTuple):
    """A heading and what stands under it before the next heading of any level, or a part of that between two rules.

    Attributes:
        first: Index of its first mark.
        last: Index of the mark after it.
        path: The titles of the headings above it, outermost first, its own included.
        levels: Their levels, 1 to 6.
        bare: Whether there is nothing but the heading.
        day: The date in the innermost of these titles that has one.
        alone: Whether it starts a chunk, however small it is: its own title has a date, or a rule forces a cut.
    """

    first: int
    last: int
    path: tuple[str, ...] = ()
    levels: tuple[int, ...] = ()
    bare: bool = False
    day: date | None = None
    alone: bool = False


def find_sections(
    outline: Outline, titles: Iterable[str], *, cut_at_rules: bool = False, above: Open = TOP
) -> Iterator[Section]:
    """Yield the sections of a document in order; the text above its first heading is one, under what is above it.

    Args:
        outline: The document's marks.
        titles: Of its headings.
        cut_at_rules: Whether a section ends at each rule (``---``) as well.
        above: Headings that are open where it begins, as they are for a page of a file.
    """
    rules = _marks_after_rules(outline) if cut_at_rules else []
    days: tuple[date | None, ...] = (None,)
    for title in above.titles:
        days = (*days, date_from_heading(title) or days[-1])
    state = Section(0, 0, *above, day=days[-1]), days
    for mark, section, days in _starts(outline, titles, state):
        before, _ = state
        if mark > before.first:
            bare = before.bare and mark - before.first == 1
            yield from _cut(before._replace(last=mark, bare=bare), rules)
        state = section._replace(first=mark), days
    end = len(outline.offsets) - 1
    last, _ = state
    if end > last.first:
        yield from _cut(last._replace(last=end, bare=last.bare and end - last.first == 1), rules)


def _starts(
    outline: Outline, titles: Iterable[str], state: tuple[Section, _Days]
) -> Iterator[tuple[int, Section, _Days]]:
    """Yield the mark at which each section starts, with what is true of it; a container's end starts one, too.

    What follows a callout stands under what is open at its beginning. Only a title of the document stays open: a
    heading of the first level inside a container, where none stands above it.
    """
    saved: dict[int, tuple[Section, _Days]] = {}
    edges = sorted((edge, number) for number, pair in enumerate(outline.containers) for edge in pair)
    headings = zip(outline.headings, titles, strict=True)
    places = merge(
        ((start, mark, level, title) for (mark, level, start, _), title in headings),
        ((edge, number, 0, "") for edge, number in edges),
        key=itemgetter(0),
    )
    for offset, mark, level, title in places:
        section, days = state
        path, levels = section.path, section.levels
        if level:
            depth = len(levels)
            while depth and levels[depth - 1] >= level:  # also right after a jump from H1 to H3 and back to H2
                depth -= 1
            day = date_from_heading(title)
            days = (*days[: depth + 1], day or days[depth])
            path, levels = (*path[:depth], title), (*levels[:depth], level)
            state = Section(0, 0, path, levels, bare=True, day=days[-1], alone=day is not None), days
            yield mark, *state
        elif mark not in saved:
            saved[mark] = state
        else:
            outer, _ = saved[mark]
            is_title = levels[:1] == (1,) and outer.levels[:1] != (1,)
            if path != outer.path and not is_title:
                state = outer._replace(bare=False, alone=False), saved[mark][1]
                yield bisect_left(outline.offsets, offset), *state


def _marks_after_rules(outline: Outline) -> list[int]:
    """Return the marks right after a rule; one at the top or right under a heading parts nothing."""
    kinds = outline.kinds
    return [
        mark
        for mark in range(2, len(kinds) - 1)
        if kinds[mark - 1] == "rule" and kinds[mark] != "rule" and kinds[mark - 2] != "heading"
    ]


def _cut(section: Section, rules: Sequence[int]) -> Iterator[Section]:
    """Yield the parts of a section between rules."""
    inside = rules[bisect_left(rules, section.first) : bisect_left(rules, section.last)]
    if not inside:
        yield section
        return
    edges = [section.first, *(mark for mark in inside if mark > section.first), section.last]
    for number, (first, last) in enumerate(pairwise(edges)):
        alone = number > 0 or section.alone or section.first in inside
        yield section._replace(first=first, last=last, alone=alone)


def common_path(sections: Sequence[Section]) -> tuple[tuple[str, ...], int]:
    """Return the deepest header path that all sections share, and the level of its last heading (0 for none).

    A heading without text of its own does not count where the next section stands under it, as its title is in that
    path, nor after sections with text: they do not stand under it.
    """
    counted = [one for one, below in pairwise(sections) if not (one.bare and _is_above(one, below))] + [sections[-1]]
    while len(counted) > 1 and counted[-1].bare:
        counted.pop()
    first = counted[0]
    depth = len(first.path)
    for other in counted[1:]:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(first.path[:depth], other.path, strict=False))
        depth = sum(1 for _ in same)
    return first.path[:depth], first.levels[depth - 1] if depth else 0


def _is_above(section: Section, below: Section) -> bool:
    return len(section.path) < len(below.path) and section.path == below.path[: len(section.path)]


def group_sections(
    sections: Iterable[Section], cumulative: Sequence[int], min_size: int, size: int
) -> Iterator[list[Section]]:
    """Merge sections of fewer than ``min_size`` tokens with a neighbour under the same parent and of the same day.

    Small sections join one another until they are large enough; one that is large enough joins nothing before it but
    bare headings, so what is inserted between two whole sections moves no boundary elsewhere. A small section that is
    followed by a large one joins what precedes. A section that is ``alone`` joins nothing but bare headings before it.

    Args:
        sections: In order.
        cumulative: Tokens before each mark.
        min_size: In tokens.
        size: No merge of two sections that fit this many tokens exceeds it. A section that does not fit is cut anyway,
            so a small neighbour joins it, and shares a piece with its beginning or end.
    """
    groups: list[list[Section]] = []  # the last two; what is before them is final
    for section in sections:
        if groups and _joins(groups[-1], section, cumulative, min_size, size):
            groups[-1].append(section)
            continue
        if len(groups) > 1 and _joins_backwards(groups, cumulative, min_size, size):
            groups[-2].extend(groups.pop())
        if len(groups) > 1:
            yield groups.pop(0)
        groups.append([section])
    if len(groups) > 1 and _joins_backwards(groups, cumulative, min_size, size):
        groups[-2].extend(groups.pop())
    yield from groups


def _tokens(group: Sequence[Section], cumulative: Sequence[int]) -> int:
    return cumulative[group[-1].last] - cumulative[group[0].first]


def _joins(group: list[Section], section: Section, cumulative: Sequence[int], min_size: int, size: int) -> bool:
    tokens = _tokens(group, cumulative)
    if section.alone or section.day != group[-1].day:
        return tokens < size and all(part.bare and part.day is None for part in group)
    if group[-1].bare:
        return tokens < size
    if tokens >= min_size or not _related(group[0], section):
        return False
    more = cumulative[section.last] - cumulative[section.first]
    return more < min_size and tokens + more <= size


def _joins_backwards(groups: list[list[Section]], cumulative: Sequence[int], min_size: int, size: int) -> bool:
    before, group = groups[-2], groups[-1]
    if group[-1].day != before[-1].day or any(section.alone for section in group):
        return False
    tokens = _tokens(group, cumulative)
    bare = group[-1].bare and all(s.bare for s in group)
    if tokens >= min_size and not bare:
        return False
    if tokens + _tokens(before, cumulative) > size and _tokens(before[-1:], cumulative) <= size:
        return False
    return bare or _related(before[-1], group[0])


def _related(before: Section, section: Section) -> bool:
    """Return whether both are under the same parent, or the second is under the first."""
    return before.path[:-1] == section.path[:-1] or section.path[: len(before.path)] == before.path


def titles_of_headings(text: str, ranges: Iterable[tuple[int, int]]) -> Iterator[str]:
    """Yield the title of each heading at ``text[start:end]``, on one line and without marks, link targets, anchors.

    A title of more than :data:`~llama_index_contextual.metadata.MOST_CHARS` characters is cut, as it is copied to every
    chunk below it.
    """
    defined: set[str] | None = None
    for start, end in ranges:
        plain = _PLAIN_ATX.match(text, start, end)
        if plain and ("`" not in plain[0] or _CODE.fullmatch(plain[1] or "")):
            yield shortened(" ".join((plain[1] or "").replace("`", "").split()))
            continue
        source = text[start:end].replace("\r\n", "\n").replace("\r", "\n")
        title = _render(HTML_HEADING.sub(r"# \3", source))
        if "[" in title:
            if defined is None:
                defined = {label.casefold() for label in _DEFINITION.findall(text)}
            title = _resolve(title, defined)
        yield shortened(_BLOCK_ID.sub("", title))


def _render(source: str) -> str:
    parts: list[str] = []
    for event in _PARSER.events(source):
        if isinstance(event, str):
            parts.append(" ")  # a line break inside a setext heading
        else:
            ((kind, value),) = event.items()
            if kind in {"Text", "Code"}:
                parts.append(str(value))
            elif kind == "InlineHtml" and str(value)[:3].lower() == "<br":
                parts.append(" ")
    title = " ".join("".join(parts).split())
    return _SHORTCODE.sub(r"\1", title) if "{{" in title else title


def _resolve(title: str, defined: set[str]) -> str:
    """Show the label of each reference link that the document defines elsewhere, of a footnote none; others stay."""

    def label(match: re.Match[str]) -> str:
        if match[1].startswith("^") and match[1].casefold() in defined:
            return ""
        return match[1] if (match[2] or match[1]).casefold() in defined else match[0]

    return _REFERENCE.sub(label, title)
