"""Show the sentences of a chunk that a query is about, and what they introduce, in so many characters.

What is shown is slices of the chunk. Chunks are untrusted and may be long, so every step takes time in proportion to
the chunk.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.text import date_from_heading, sentence_starts, tell_language

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import date

_ITEM: Final = re.compile(r"[-*+•]\s|\d{1,9}[.)]\s")
_OPENS_A_BLOCK: Final = re.compile(r"[-*+•]\s|\d{1,9}[.)]\s|#{1,6}\s|>|\||`{3}|~{3}")
_HEADING: Final = re.compile(r"#{1,6}\s")
_RULE: Final = frozenset("-=*_|: \t")  # rules, underlines, and the line below a table's head are made of these
_COLONS: Final = (":", "：")  # noqa: RUF001  full width is meant
_INTRODUCES: Final = (*_COLONS, "?", "？")
_GAP: Final = " … "
_LINES_GAP: Final = "\n…\n"
_A_LINE: Final = 4  # characters that a digest puts before each line of a note
_APART: Final = 40  # characters of white space or marks; two sentences with more between them are shown with a gap
_HEADING_SHARE: Final = 0.5  # a heading names what follows; the text itself says more
_INTRODUCED: Final = 0.6  # what a sentence gets of the worth of what introduces it
_FADES: Final = 0.2  # with each sentence that stands between
_AFTERWARDS: Final = 0.3  # what a sentence gets of the worth of the one before it in its paragraph
_MOST_PICKED: Final = 12
_MIN_CUT: Final = 12  # characters; less of a sentence tells nothing


class Sentence(NamedTuple):
    """One sentence of a chunk, or a heading, a rule or a fence.

    Args:
        start: Where it begins in the chunk.
        end: Where it ends.
        text: Its words, on one line.
        block: Number of the paragraph, list item or heading that holds it.
        kind: ``"text"``, ``"heading"``, or ``"mark"`` for a rule or a fence.
        day: Of the nearest heading above it that has one.
        title: The place of the nearest heading above it.
    """

    start: int
    end: int
    text: str
    block: int
    kind: str
    day: date | None
    title: int | None


def split_sentences(text: str) -> list[Sentence]:
    """Sentences of a chunk; a list item or a heading ends one, a line break inside a paragraph does not."""
    language = tell_language(text)
    sentences: list[Sentence] = []
    day, level, title = None, 0, None
    for block, (begin, stop) in enumerate(_blocks(text)):
        paragraph = text[begin:stop]
        kind = _kind(paragraph)
        if kind == "heading":
            heading_level = len(paragraph) - len(paragraph.lstrip("#"))
            dated = date_from_heading(paragraph)
            if dated or heading_level <= level:
                day, level = dated, heading_level if dated else 0
        starts = [0] if kind != "text" else [0, *sentence_starts(paragraph, 0, len(paragraph), language)]
        for start, end in pairwise([*starts, len(paragraph)]):
            if sentence := " ".join(paragraph[start:end].split()):
                last = begin + start + len(paragraph[start:end].rstrip())
                sentences.append(Sentence(begin + start, last, sentence, block, kind, day, title))
        if kind == "heading":
            title = len(sentences) - 1
    return sentences


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Places where paragraphs, list items, headings and other lines of a chunk start and end."""
    start, end, kind, at = None, 0, "", 0
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if start is not None and (not bare or _OPENS_A_BLOCK.match(bare) or kind != "text"):
            yield start, end
            start = None
        if bare:
            begin = at + len(line) - len(line.lstrip())
            start, end, kind = begin if start is None else start, begin + len(bare), _kind(bare)
        at += len(line)
    if start is not None:
        yield start, end


def _kind(line: str) -> str:
    if _HEADING.match(line):
        return "heading"
    return "mark" if line.startswith(("```", "~~~")) or _RULE.issuperset(line) else "text"


def choose_snippet(
    text: str, weights: Mapping[str, float], terms: Callable[[str], Collection[str]], *, limit: int
) -> tuple[str, date | None]:
    """The sentences that hold the query's terms or are introduced by them, then what stands next to these.

    Args:
        text: The chunk.
        weights: Query terms, as ``terms`` gives them, and what each is worth, such as its rarity.
        terms: Cuts a text into terms.
        limit: Characters, ellipses included.

    Returns:
        Slices of the chunk, and the day of the headings above them where one has a date. All are of one day.
    """
    sentences = split_sentences(text)
    if not sentences:
        return "", None
    held = [weights.keys() & set(terms(one.text)) for one in sentences]
    led = _introduced(sentences, [math.fsum(weights[term] for term in of_one) for of_one in held])

    def gain(index: int, known: Collection[str] = ()) -> tuple[float, int]:
        worth = math.fsum(weights[term] for term in held[index].difference(known))
        return worth * (1 if sentences[index].kind == "text" else _HEADING_SHARE) + led[index], -index

    first = max((at for at, one in enumerate(sentences) if one.kind == "text"), key=gain, default=0)
    selection, title = _Selection(text, sentences, first, limit), sentences[first].title
    if title is not None:  # the heading above, if it holds query terms of its own, or names the day
        names_the_day = len({one.day for one in sentences}) > 1 and date_from_heading(sentences[title].text)
        if names_the_day or held[title] - held[first]:
            selection.take(title)
    known, left = set(held[first]), {at for at, of_one in enumerate(held) if of_one or led[at]} - {first}
    for _ in range(min(_MOST_PICKED, len(left))):
        best = max(left, key=lambda at: gain(at, known))
        left.remove(best)
        if gain(best, known)[0] > 0:
            known |= held[best]
            # a heading without its first line tells nothing
            is_text = (at for at in range(best, len(sentences)) if sentences[at].kind == "text")
            selection.take(best, next(is_text, best))
    selection.fill()
    shown = selection.shown()
    return (shown if _size(shown) <= limit else _window(shown, held[first], terms, limit)), sentences[first].day


class _Selection:
    """Some sentences of a chunk, all of one day, and the room that is left for more."""

    def __init__(self, text: str, sentences: Sequence[Sentence], first: int, limit: int) -> None:
        self._text, self._sentences, self._chosen = text, sentences, {first}
        self._room = limit - _size(text[sentences[first].start : sentences[first].end])

    def take(self, *indexes: int) -> bool:
        """Take sentences of the same day if there is room for all of them."""
        wanted, days = {*indexes} - self._chosen, {self._sentences[at].day for at in self._chosen}
        cost = sum(self._cost(at, self._chosen | wanted) for at in wanted)
        if cost > self._room or not days.issuperset(self._sentences[at].day for at in wanted):
            return False
        self._chosen |= wanted
        self._room -= cost
        return True

    def fill(self) -> None:
        """Take what follows the chosen sentences, then what comes before them."""
        sentences = self._sentences
        for step in (1, -1):
            for at in sorted(self._chosen):
                near = at + step
                while 0 <= near < len(sentences) and sentences[near].kind == "text" and near not in self._chosen:
                    if not self.take(near):
                        break
                    near += step

    def shown(self) -> str:
        """The slices of the chunk that hold the chosen sentences."""
        sentences, chosen = self._sentences, sorted(self._chosen)
        parts = [self._text[sentences[chosen[0]].start : sentences[chosen[0]].end]]
        for left, right in pairwise(chosen):
            between = self._text[sentences[left].end : sentences[right].start]
            if not self._adjoin(left, right):
                between = _LINES_GAP if "\n" in between else _GAP
            parts += [between, self._text[sentences[right].start : sentences[right].end]]
        return "".join(parts)

    def _cost(self, index: int, chosen: set[int]) -> int:
        """Size of a sentence with what is shown between it and the chosen ones beside it, at most."""
        one, sentences = self._sentences[index], self._sentences
        sizes = [
            _size(self._text[sentences[left].end : sentences[right].start])
            for left, right in ((index - 1, index), (index, index + 1))
            if {left, right} - {index} <= chosen and self._adjoin(left, right)
        ]
        return _size(self._text[one.start : one.end]) + (sum(sizes) if sizes else _size(_LINES_GAP))

    def _adjoin(self, left: int, right: int) -> bool:
        """Whether next to nothing stands between two sentences, so that it is shown, too."""
        sentences = self._sentences
        is_near = sentences[right].start - sentences[left].end <= _APART
        return is_near and all(one.kind == "mark" for one in sentences[left + 1 : right])


def _introduced(sentences: Sequence[Sentence], worth: Sequence[float]) -> list[float]:
    """Share of each sentence in the worth of the heading, question or colon above it, and of the sentence before it."""
    led: list[float] = []
    lead: int | None = None  # the sentence that introduces; all items of a list have the same
    for index, one in enumerate(sentences):
        before = sentences[index - 1] if index else None
        if before is None or before.kind != "text":
            lead = None
        elif not (lead is not None and _ITEM.match(one.text) and sentences[lead].text.endswith(_COLONS)):
            lead = index - 1 if before.text.rstrip("*_\"'”»)").endswith(_INTRODUCES) else None
        sources = [at for at in (one.title, lead) if at is not None and one.kind == "text"]
        shares = [worth[at] * _INTRODUCED / (1 + _FADES * (index - at - 1)) for at in sources]
        if before is not None and before.block == one.block:
            shares.append(worth[index - 1] * _AFTERWARDS)
        led.append(max(shares, default=0.0))
    return led


def _size(text: str) -> int:
    return len(text) + _A_LINE * text.count("\n")


def _window(text: str, wanted: set[str], terms: Callable[[str], Collection[str]], limit: int) -> str:
    """A sentence that is too long, cut around its first query term at white space."""
    words = re.finditer(r"\S+", text) if wanted else ()
    first = next((match.start() for match in words if wanted & set(terms(match[0]))), 0)
    start = max(0, min(first - limit // 4, len(text) - limit))
    if start and (space := re.compile(r"\s+").search(text, start, start + limit // 4)):
        start = space.end()
    room = limit - 2 * (start > 0)
    head = text[start : start + room + 1]
    if _size(head) > room:
        while (excess := _size(head) - (room - 2)) > 0:
            head = head[: -max(1, excess // (1 + _A_LINE))]
        whole = head.rsplit(None, 1)[0] if head else ""
        head = (whole if len(whole) >= _MIN_CUT else head) + " …"
    return ("… " if start else "") + head
