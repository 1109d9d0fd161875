"""The sentences of a chunk that a query is about.

What is shown is a slice of the chunk. Chunks are untrusted and may be long, so every step takes time in proportion to
the chunk.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.common import dates, sentence_starts, tell_language

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import date

# A heading; or a line with those after it that are not blank and begin no item, heading, quotation, row or fence.
_BLOCK: Final = re.compile(
    r"^[^\S\n]*(?P<marks>#{1,6})[^\S\n].*"
    r"|^[^\S\n]*\S.*(?:\n(?!\s|\Z|[-*+•]\s|\d{1,9}[.)]\s|#{1,6}\s|[>|]|`{3}|~{3}).+)*",
    re.MULTILINE,
)
_MOST: Final = 10_000  # characters of a sentence; a longer one is cut


class Sentence(NamedTuple):
    """One sentence of a chunk, or a heading.

    Args:
        start: Where it begins in the chunk.
        end: Where it ends.
        day: Of the nearest heading above it that has one.
        title: The nearest heading above it.
        is_heading: Whether it is a heading.
    """

    start: int
    end: int
    day: date | None
    title: str
    is_heading: bool


def split_sentences(text: str, most: int = _MOST) -> list[Sentence]:
    """Sentences of a chunk; a list item or a heading ends one, a line break inside a paragraph does not.

    Args:
        text: The chunk.
        most: Characters; a longer sentence is cut at white space where it has some.
    """
    language, sentences = tell_language(text), list[Sentence]()
    piece = re.compile(rf"\S.{{0,{most - 1}}}(?!\S)|\S.{{0,{most - 1}}}", re.DOTALL)
    day, level, title = None, 0, ""
    for block in _BLOCK.finditer(text):
        start, end, marks = *block.span(), block["marks"]
        if marks:
            dated = dates.date_from_heading(block[0])
            if dated or len(marks) <= level:
                day, level = dated, len(marks) if dated else 0
        starts = [start] if marks else [start, *sentence_starts(text, start, end, language)]
        for first, after in pairwise([*starts, end]):
            last = first + len(text[first:after].rstrip())
            sentences += (Sentence(*one.span(), day, title, bool(marks)) for one in piece.finditer(text, first, last))
        if marks:
            title = block[0].strip("# \t\r")
    return sentences


def choose_snippet(
    text: str, weights: Mapping[str, float], terms: Callable[[str], Collection[str]], *, limit: int
) -> tuple[str, date | None]:
    """The sentences next to each other that hold the most of a query's terms, with what follows them.

    Args:
        text: The chunk.
        weights: Query terms, as ``terms`` gives them, and what each is worth, such as its rarity.
        terms: Cuts a text into terms.
        limit: Characters.

    Returns:
        A slice of the chunk, and the day of the headings above it where one has a date. All of it is of one day.
    """
    sentences = split_sentences(text, min(limit, _MOST))
    if not sentences:
        return "", None

    def fits(first: int, last: int) -> bool:
        one, other = sentences[first], sentences[last]
        return other.end - one.start <= limit and one.day == other.day

    def is_idle(place: int) -> bool:
        """Whether it is a heading without words of the query, and names no day that others differ from."""
        return sentences[place].is_heading and not (held[place] or (sentences[place].day and has_days))

    has_days = any(one.day != sentences[0].day for one in sentences)
    held = [weights.keys() & set(terms(text[one.start : one.end])) for one in sentences]
    counts, best, stop = Counter[str](), (-1.0, 0, 0), 0
    for start, of_first in enumerate(held):
        while stop < len(sentences) and fits(start, stop):
            counts.update(held[stop])
            stop += 1
        worth = math.fsum(weights[term] for term, count in counts.items() if count)
        # Of those that hold the same the first; without sentences before it that hold nothing.
        if worth > best[0] or (worth == best[0] > 0 and start == best[1] + 1 and not held[start - 1]):
            best = worth, start, stop
        counts.subtract(of_first)
    first, last = best[1], best[2] - 1
    while last > first and sentences[last].is_heading:  # without its first line it tells nothing
        last -= 1
    while first < last and is_idle(first):
        first += 1
    while first and not is_idle(first - 1) and fits(first - 1, last):
        first -= 1
    return text[sentences[first].start : sentences[last].end], sentences[first].day
