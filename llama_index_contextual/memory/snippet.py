"""Show the sentences of a chunk that a query is about, and what they introduce, in so many characters.

What is shown is slices of the chunk. Chunks are untrusted and may be long, so every step takes time in proportion to
the chunk.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache, wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

from llama_index_contextual.text import date_from_heading, sentence_starts, tell_language

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import date

_ITEM: Final = re.compile(r"[-*+•]\s|\d{1,9}[.)]\s")
_OPENS_A_BLOCK: Final = re.compile(r"[-*+•]\s|\d{1,9}[.)]\s|#{1,6}\s|>|\||`{3}|~{3}")
_HEADING: Final = re.compile(r"#{1,6}\s")
_FENCE: Final = ("```", "~~~")
_RULE: Final = frozenset("-=*_|: \t")  # rules, underlines, and the line below a table's head are made of these
_COLONS: Final = (":", "：")  # noqa: RUF001  full width is meant
_INTRODUCES: Final = (*_COLONS, "?", "？")
_GAP: Final = " … "
_LINES_GAP: Final = "\n…\n"
_A_LINE: Final = 4  # characters that a digest puts before each line of a note
_APART: Final = 40  # characters of white space or marks; two sentences with more between them are shown with a gap
_HEADING_SHARE: Final = 0.5  # a heading says what follows is about; the text itself says more
_INTRODUCED: Final = 0.6  # what a sentence gets of the worth of what introduces it
_FADES: Final = 0.2  # with each sentence that stands between
_AFTERWARDS: Final = 0.3  # what a sentence gets of the worth of the one before it in its paragraph
_MOST_PICKED: Final = 12
_SPACE: Final = re.compile(r"\s+")
_MIN_CUT: Final = 12  # characters; less of a sentence tells nothing
_REMEMBERED: Final = 512  # chunks
_LONGEST_REMEMBERED: Final = 8_000  # characters of a chunk

_T = TypeVar("_T")


def remembering(read: Callable[..., _T]) -> Callable[..., _T]:
    """Remember what is read of the last chunks, because many messages find the same ones; long chunks are read anew."""
    cached = lru_cache(maxsize=_REMEMBERED)(read)

    @wraps(read)
    def read_once(text: str, *more: Any) -> _T:
        return (cached if len(text) <= _LONGEST_REMEMBERED else read)(text, *more)

    return read_once


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a chunk, or a heading, a rule or a fence."""

    start: int
    """Where it begins in the chunk."""
    end: int
    text: str
    """Its words, on one line."""
    block: int
    """Number of the paragraph, list item or heading that holds it."""
    kind: str
    """``"text"``, ``"heading"``, or ``"mark"`` for what says nothing."""
    day: date | None
    """Of the nearest heading above it that has one."""
    title: int | None
    """The nearest heading above it."""
    lead: int | None
    """The sentence that introduces it: a question, or what ends in a colon."""


@remembering
def split_sentences(text: str) -> tuple[Sentence, ...]:
    """Split a chunk into sentences; a list item or a heading ends one, a line break inside a paragraph does not."""
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
        for start, end in zip(starts, [*starts[1:], len(paragraph)], strict=True):
            if sentence := " ".join(paragraph[start:end].split()):
                last = begin + start + len(paragraph[start:end].rstrip())
                lead = _lead(sentences, sentence)
                sentences.append(Sentence(begin + start, last, sentence, block, kind, day, title, lead))
        if kind == "heading":
            title = len(sentences) - 1
    return tuple(sentences)


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield the places where paragraphs, list items, headings and other lines of a chunk start and end."""
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
    return "mark" if line.startswith(_FENCE) or _RULE.issuperset(line) else "text"


def _lead(sentences: list[Sentence], text: str) -> int | None:
    """Find what introduces the next sentence; all items of a list are introduced by the same."""
    if not sentences or sentences[-1].kind != "text":
        return None
    before = sentences[-1]
    if _ITEM.match(text) and before.lead is not None and sentences[before.lead].text.endswith(_COLONS):
        return before.lead
    return len(sentences) - 1 if before.text.rstrip("*_\"'”»)").endswith(_INTRODUCES) else None


def choose_snippet(
    text: str, weights: Mapping[str, float], terms: Callable[[str], Collection[str]], *, limit: int
) -> tuple[str, date | None]:
    """Take the sentences that hold the query's terms or are introduced by them, then what stands next to these.

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
    led = _introduced(sentences, held, weights)
    texts = [index for index, one in enumerate(sentences) if one.kind == "text"] or [0]
    first = max(texts, key=lambda index: (math.fsum(weights[term] for term in held[index]) + led[index], -index))
    day = sentences[first].day
    chosen = {first}
    room = limit - _size(text, sentences[first])
    room -= _take_title(text, sentences, chosen, held, room)
    for index in _by_gain(sentences, held, weights, led, first):
        # a heading without its first line says nothing
        below = next((at for at in range(index + 1, len(sentences)) if sentences[at].kind == "text"), index)
        wanted = {index, below} - chosen if sentences[index].kind == "heading" else {index}
        cost = sum(_size(text, sentences[at]) + _between(text, sentences, at, chosen | wanted) for at in wanted)
        if sentences[index].day == day and cost <= room:
            chosen |= wanted
            room -= cost
    _fill(text, sentences, chosen, room)
    joined = _join(text, sentences, sorted(chosen))
    return (joined if _shown_size(joined) <= limit else _window(joined, held[first], terms, limit)), day


def _shown_size(text: str) -> int:
    return len(text) + _A_LINE * text.count("\n")


def _size(text: str, one: Sentence) -> int:
    return _shown_size(text[one.start : one.end])


def _between(text: str, sentences: Sequence[Sentence], index: int, chosen: set[int]) -> int:
    """Return the size of what is shown between a sentence and the chosen ones beside it, at most."""
    gap = len(_LINES_GAP) + 2 * _A_LINE
    before, after = index - 1, index + 1
    sizes = [
        _shown_size(text[sentences[left].end : sentences[right].start])
        for left, right in ((before, index), (index, after))
        if {left, right} - {index} <= chosen and _adjoin(sentences, left, right)
    ]
    return sum(sizes) or gap


def _adjoin(sentences: Sequence[Sentence], left: int, right: int) -> bool:
    """Whether next to nothing stands between two sentences, so that it is shown, too."""
    if sentences[right].start - sentences[left].end > _APART:
        return False
    return all(one.kind == "mark" for one in sentences[left + 1 : right])


def _introduced(sentences: Sequence[Sentence], held: list[set[str]], weights: Mapping[str, float]) -> list[float]:
    """Return each sentence's share of the worth of its introduction, and of the one before it in its paragraph."""
    weight_of = [math.fsum(weights[term] for term in terms) for terms in held]
    led = []
    for index, one in enumerate(sentences):
        shares = [0.0]
        if one.kind == "text":
            leads = [lead for lead in (one.title, one.lead) if lead is not None]
            shares += [weight_of[lead] * _INTRODUCED / (1 + _FADES * (index - lead - 1)) for lead in leads]
        if index and sentences[index - 1].block == one.block:
            shares.append(weight_of[index - 1] * _AFTERWARDS)
        led.append(max(shares))
    return led


def _take_title(text: str, sentences: Sequence[Sentence], chosen: set[int], held: list[set[str]], room: int) -> int:
    """Take the heading above the first sentence if it holds query terms of its own, or names the day."""
    [first] = chosen
    title = sentences[first].title
    if title is None:
        return 0
    names_the_day = len({one.day for one in sentences}) > 1 and date_from_heading(sentences[title].text)
    cost = _size(text, sentences[title]) + _between(text, sentences, title, chosen)
    if cost > room or not (names_the_day or held[title] - held[first]):
        return 0
    chosen.add(title)
    return cost


def _by_gain(
    sentences: Sequence[Sentence], held: list[set[str]], weights: Mapping[str, float], led: list[float], first: int
) -> Iterator[int]:
    """Yield the sentences that add terms or are introduced by some, those that add most first."""

    def gain(index: int) -> tuple[float, int]:
        weight_of = math.fsum(weights[term] for term in held[index] - covered)
        return (weight_of * (1 if sentences[index].kind == "text" else _HEADING_SHARE) + led[index], -index)

    covered = set(held[first])
    left = {index for index, terms in enumerate(held) if (terms or led[index]) and index != first}
    for _ in range(min(_MOST_PICKED, len(left))):
        best = max(left, key=gain)
        left.remove(best)
        if gain(best)[0] > 0:
            covered |= held[best]
            yield best


def _fill(text: str, sentences: Sequence[Sentence], chosen: set[int], room: int) -> None:
    """Take what follows the chosen sentences, then what comes before them, as long as there is room."""
    for step in (1, -1):
        edges = sorted(chosen)
        while edges:
            grown = []
            for index in edges:
                near = index + step
                if not 0 <= near < len(sentences) or near in chosen:
                    continue
                one = sentences[near]
                cost = _size(text, one) + _between(text, sentences, near, chosen)
                if one.kind != "text" or one.day != sentences[index].day or cost > room:
                    continue
                chosen.add(near)
                room -= cost
                grown.append(near)
            edges = grown


def _join(text: str, sentences: Sequence[Sentence], chosen: list[int]) -> str:
    """Return the slices of the chunk that hold the chosen sentences."""
    parts = [text[sentences[chosen[0]].start : sentences[chosen[0]].end]]
    for left, right in pairwise(chosen):
        between = text[sentences[left].end : sentences[right].start]
        if not _adjoin(sentences, left, right):
            between = _LINES_GAP if "\n" in between else _GAP
        parts += [between, text[sentences[right].start : sentences[right].end]]
    return "".join(parts)


def _window(text: str, wanted: set[str], terms: Callable[[str], Collection[str]], limit: int) -> str:
    """Cut a sentence that is too long around its first query term, at white space."""
    first = 0
    for match in re.finditer(r"\S+", text) if wanted else ():
        if wanted & set(terms(match[0])):
            first = match.start()
            break
    start = max(0, min(first - limit // 4, len(text) - limit))
    if start and (space := _SPACE.search(text, start, start + limit // 4)):
        start = space.end()
    room = limit - 2 * (start > 0)
    head = text[start : start + room + 1]
    if _shown_size(head) > room:
        while (excess := _shown_size(head) - (room - 2)) > 0:
            head = head[: -max(1, excess // (1 + _A_LINE))]
        whole = head.rsplit(None, 1)[0] if head else ""
        head = (whole if len(whole) >= _MIN_CUT else head) + " …"
    return ("… " if start else "") + head
