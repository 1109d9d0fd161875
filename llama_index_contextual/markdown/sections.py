"""Sections and the groups that small ones merge into."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.markdown.blocks import Outline


class Section(NamedTuple):
    """A heading and what stands under it before the next heading of any level.

    Attributes:
        first: Index of its first mark.
        last: Index of the mark after it.
        path: The titles of the headings above it, outermost first, its own included.
        levels: Their levels, 1 to 6.
        bare: Whether there is nothing but the heading.
    """

    first: int
    last: int
    path: tuple[str, ...] = ()
    levels: tuple[int, ...] = ()
    bare: bool = False


def find_sections(outline: Outline, titles: Sequence[str]) -> list[Section]:
    """The sections of a document in order; the text above the first heading is one with an empty path."""
    end = len(outline.offsets) - 1
    headings = outline.headings
    sections = []
    first = headings[0].mark if headings else end
    if first > 0:
        sections.append(Section(0, first))
    path: tuple[str, ...] = ()
    levels: tuple[int, ...] = ()
    for number, (heading, title) in enumerate(zip(headings, titles, strict=True)):
        depth = len(levels)
        while depth and levels[depth - 1] >= heading.level:  # also right after a jump from H1 to H3 and back to H2
            depth -= 1
        path = (*path[:depth], title)
        levels = (*levels[:depth], heading.level)
        last = headings[number + 1].mark if number + 1 < len(headings) else end
        bare = last - heading.mark == 1
        sections.append(Section(heading.mark, last, path, levels, bare))
    return sections


def common_path(sections: Sequence[Section]) -> tuple[tuple[str, ...], int]:
    """The deepest header path that all sections share and the level of its last heading (0 for none).

    A section without text of its own (its title is in the paths of those under it) and the text above the first
    heading contradict nobody, so they do not count unless they are alone.
    """
    counted = [s for s in sections if s.path and not s.bare] or [s for s in sections if s.path][-1:]
    if not counted:
        return (), 0
    first = counted[0]
    depth = len(first.path)
    for other in counted[1:]:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(first.path[:depth], other.path, strict=False))
        depth = sum(1 for _ in same)
    return first.path[:depth], first.levels[depth - 1] if depth else 0


def group_sections(
    sections: Sequence[Section], cumulative: Sequence[int], min_size: int, size: int
) -> list[list[Section]]:
    """Merge sections of fewer than ``min_size`` tokens with a neighbour under the same parent.

    A section joins the ones before it only while they are too small, so what is inserted between two whole sections
    moves no boundary elsewhere. A bare heading joins what follows, whatever that is; a small last one joins what
    precedes.

    Args:
        sections: In order.
        cumulative: Tokens before each mark.
        min_size: In tokens.
        size: No merge of two sections that fit this many tokens exceeds it. A section that does not fit is cut anyway,
            so a small neighbour joins it, and shares a piece with its beginning or end.
    """
    groups: list[list[Section]] = []
    for section in sections:
        if groups and _joins(groups[-1], section, cumulative, min_size, size):
            groups[-1].append(section)
            continue
        if len(groups) > 1 and _joins_backwards(groups, cumulative, min_size, size):
            groups[-2].extend(groups.pop())
            if _joins(groups[-1], section, cumulative, min_size, size):
                groups[-1].append(section)
                continue
        groups.append([section])
    if len(groups) > 1 and _joins_backwards(groups, cumulative, min_size, size):
        groups[-2].extend(groups.pop())
    return groups


def _tokens(group: Sequence[Section], cumulative: Sequence[int]) -> int:
    return cumulative[group[-1].last] - cumulative[group[0].first]


def _joins(group: list[Section], section: Section, cumulative: Sequence[int], min_size: int, size: int) -> bool:
    tokens = _tokens(group, cumulative)
    if group[-1].bare:
        return tokens < size
    if tokens >= min_size or not _related(group[0], section):
        return False
    own = cumulative[section.last] - cumulative[section.first]
    return tokens + own <= size or own > size


def _joins_backwards(groups: list[list[Section]], cumulative: Sequence[int], min_size: int, size: int) -> bool:
    before, group = groups[-2], groups[-1]
    tokens = _tokens(group, cumulative)
    bare = group[-1].bare and all(s.bare for s in group)
    if tokens >= min_size and not bare:
        return False
    if tokens + _tokens(before, cumulative) > size and _tokens(before[-1:], cumulative) <= size:
        return False
    return bare or _related(before[-1], group[0])


def _related(before: Section, section: Section) -> bool:
    """Whether both are under the same parent, or the second is under the first."""
    return before.path[:-1] == section.path[:-1] or section.path[: len(before.path)] == before.path
