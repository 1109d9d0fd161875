"""The highlighter: sentences of a chunk that a query is about with what they introduce, and the words that match.

What is shown is slices of the chunk. Chunks are untrusted and may be long, so every step takes time in proportion to
the chunk.
"""

from __future__ import annotations

import math
import re
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.text import date_from_heading, sentence_starts, tell_language

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import date

SPLIT: Final = Analyzer().tokens  # terms of texts that people read
_ITEM: Final = re.compile(r"[-*+•]\s|\d{1,9}[.)]\s")
_OPENS_A_BLOCK: Final = re.compile(r"[-*+•]\s|\d{1,9}[.)]\s|#{1,6}\s|>|\||`{3}|~{3}")
_HEADING: Final = re.compile(r"#{1,6}\s")
_RULE: Final = frozenset("-=*_|: \t")  # rules, underlines, and the line below a table's head are made of these
_COLONS: Final = (":", "：")  # noqa: RUF001  full width is meant
_INTRODUCES: Final = (*_COLONS, "?", "？")
_GAP: Final = " … "
LINES_GAP: Final = "\n…\n"
_A_LINE: Final = 4  # characters that a digest puts before each line of a note
_APART: Final = 40  # characters of white space or marks; two sentences with more between them are shown with a gap
_INTRODUCED: Final = 0.6  # what a sentence gets of the worth of what introduces it
_AFTERWARDS: Final = 0.3  # what a sentence gets of the worth of the one before it in its paragraph
_MOST_PICKED: Final = 12
_WORD: Final = re.compile(r"\w+|\W+")
_WIDE: Final = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")


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
    days = {one.day for one in sentences}

    def gain(index: int, known: Collection[str] = ()) -> tuple[float, int]:
        return math.fsum(weights[term] for term in held[index].difference(known)) + led[index], -index

    first = max((at for at, one in enumerate(sentences) if one.kind == "text"), key=gain, default=0)
    chosen, title = {first}, sentences[first].title

    def take(*indexes: int) -> bool:
        wanted = chosen.union(indexes)
        if len({sentences[at].day for at in wanted}) > 1 or _size(_joined(text, sentences, wanted)) > limit:
            return False
        chosen.update(indexes)
        return True

    # the heading above, if it holds query terms of its own, or names the day
    if title is not None and (held[title] - held[first] or (len(days) > 1 and sentences[first].day)):
        take(title)
    known, left = set(held[first]), {at for at, of_one in enumerate(held) if of_one or led[at]} - {first}
    for _ in range(min(_MOST_PICKED, len(left))):
        best = max(left, key=lambda at: gain(at, known))
        left.remove(best)
        if gain(best, known)[0] > 0:
            known |= held[best]
            # a heading without its first line tells nothing
            take(best, next((at for at in range(best, len(sentences)) if sentences[at].kind == "text"), best))
    for step, at in [(step, at) for step in (1, -1) for at in sorted(chosen)]:  # what follows them, then what is before
        near = at + step
        while 0 <= near < len(sentences) and sentences[near].kind == "text" and (near in chosen or take(near)):
            near += step
    shown = _joined(text, sentences, chosen)
    return (shown if _size(shown) <= limit else _window(shown, held[first], terms, limit)), sentences[first].day


def _joined(text: str, sentences: Sequence[Sentence], chosen: Collection[int]) -> str:
    """The slices of a chunk that hold some sentences; what is next to nothing between two of them is shown, too."""
    places = sorted(chosen)
    parts = [text[sentences[places[0]].start : sentences[places[0]].end]]
    for left, right in pairwise(places):
        between = text[sentences[left].end : sentences[right].start]
        if len(between) > _APART or any(one.kind != "mark" for one in sentences[left + 1 : right]):
            between = LINES_GAP if "\n" in between else _GAP
        parts += [between, text[sentences[right].start : sentences[right].end]]
    return "".join(parts)


def _introduced(sentences: Sequence[Sentence], worth: Sequence[float]) -> list[float]:
    """Share of each sentence in the worth of the heading, question or colon above it, and of the sentence before it."""
    led: list[float] = []
    lead: int | None = None  # the sentence that introduces; all items of a list have the same
    for at, one in enumerate(sentences):
        before = sentences[at - 1] if at and sentences[at - 1].kind == "text" else None
        if before is None:
            lead = None
        elif not (lead is not None and _ITEM.match(one.text) and sentences[lead].text.endswith(_COLONS)):
            lead = at - 1 if before.text.rstrip("*_\"'”»)").endswith(_INTRODUCES) else None
        sources = (place for place in (one.title, lead) if place is not None and one.kind == "text")
        shares = [worth[place] * _INTRODUCED for place in sources]
        shares += [worth[at - 1] * _AFTERWARDS] if before is not None and before.block == one.block else []
        led.append(max(shares, default=0.0))
    return led


def _size(text: str) -> int:
    return len(text) + _A_LINE * text.count("\n")


def _window(text: str, wanted: set[str], terms: Callable[[str], Collection[str]], limit: int) -> str:
    """A sentence that is too long, cut around its first query term at white space."""
    words = re.finditer(r"\S+", text) if wanted else ()
    first = next((match.start() for match in words if wanted & set(terms(match[0]))), 0)
    start = max(0, min(first - limit // 4, len(text) - limit))
    head = text[start : start + limit - 2 * len("… ")]
    while (excess := _size(head) + 2 * len("… ") - limit) > 0:
        head = head[: -max(1, excess // (1 + _A_LINE))]
    return ("… " if start else "") + (head.rsplit(None, 1)[0] if " " in head.strip() else head) + " …"


def marked(text: str, terms: Collection[str], split: Callable[[str], Collection[str]]) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a text, each with whether it matches; languages without spaces have terms within words.

    Args:
        text: Any text.
        terms: As ``split`` writes them.
        split: Cuts a text into terms.
    """
    wanted, parts = frozenset(terms), list[tuple[bool, str]]()
    for word in _WORD.findall(text) if terms else [text]:
        found = wanted.intersection(split(word)) if terms and (word[0].isalnum() or word[0] == "_") else ()
        if not found or not _WIDE.search(word):
            parts.append((bool(found), word))
            continue
        is_matched = [False] * len(word)
        for match in (match for term in found for match in re.finditer(re.escape(term), word)):
            is_matched[match.start() : match.end()] = [True] * len(match[0])
        parts += zip(is_matched, word, strict=True)
    for is_match, run in groupby(parts, lambda part: part[0]):
        yield is_match, "".join(part for _, part in run)
