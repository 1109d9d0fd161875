"""The order of hits, and what of each is shown: without repetitions, by age, and with what is current first.

Of notes that differ on one fact, the newest is shown, and the older ones are named. A fact is a line ``timeout: 30``, a
row of two cells, or a sentence ``The owner is Ana``; two speak of the same where what stands before the value, and the
headings above that are no days, have the same words.

What is shown is a slice of the chunk: the sentences that a query is about. Chunks are untrusted and may be long, so
every step takes time in proportion to the chunk.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.memory.digest import MemoryEntry, OlderValue, shown_path, visible
from llama_index_contextual.retrievers.features import NearDuplicates
from llama_index_contextual.retrievers.query_dates import split_words
from llama_index_contextual.utils import dates
from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.language import sentence_starts, tell_language
from llama_index_contextual.utils.text import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import date

    Split = Callable[[str], Collection[str]]

# What ends in a question or an exclamation mark gives no value.
_FACT: Final = re.compile(
    r"(?P<key>[^:：=|?!]{2,60}?)"  # noqa: RUF001  full width is meant
    r"(?:\s?[:：]\s|\s?=(?![=>])|\s?\||\s(?:is|are|ist|sind|es|son|está|están|est|sont|è|sono|zijn|é|são|是)\s)"  # noqa: RUF001
    r"\s{0,9}(?P<value>[^|]{1,80}(?<![?!？！]))"
)
_MARKS: Final = re.compile(r"^(?:[-*+•>]\s+|\d{1,9}[.)]\s+|\[[ xX]\]\s+|\d{1,2}:\d\d\s+)+|\*\*|__")
_SURE_SHARE: Final = (
    0.8  # of the message that the best statement holds; one with less is not what is asked for
)
_LEAST_SHARE: Final = 0.4  # of what the best hit holds of the message
_MOST_OLDER: Final = 3
_WIDE_CHARACTER: Final = re.compile(r"[^\u0000-\u024f]")  # beyond Latin scripts
_LEAST_TOKENS: Final = 20  # fewer of a hit tell nothing
# A heading; or a line with those after it that are not blank and begin no item, heading, quotation, row or fence.
_BLOCK: Final = re.compile(
    r"^[^\S\n]*(?P<marks>#{1,6})[^\S\n].*"
    r"|^[^\S\n]*\S.*(?:\n(?!\s|\Z|[-*+•]\s|\d{1,9}[.)]\s|#{1,6}\s|[>|]|`{3}|~{3}).+)*",
    re.MULTILINE,
)
_MOST: Final = 10_000  # characters of a sentence; a longer one is cut


def best_first(hits: Collection[MemoryEntry]) -> list[MemoryEntry]:
    """The hits by score, then by id."""
    return sorted(hits, key=lambda one: (-one.score, one.id))


def unseen_hits(hits: Sequence[MemoryEntry], seen: Collection[str]) -> list[MemoryEntry]:
    """Hits that were not shown before, by id or citation."""
    return [one for one in hits if not seen or not {one.id, *one.citations} & {*seen}]


def without_repetitions(
    hits: Sequence[MemoryEntry], most: int, *, by_session: bool = False
) -> list[MemoryEntry]:
    """The best hits without near-duplicates.

    Args:
        hits: Best first.
        most: How many.
        by_session: Whether the next chunk of a session, a day of a note, takes the place of one that repeats another.
    """
    met, chosen, left = NearDuplicates(), list[MemoryEntry](), [*hits]
    while left and len(chosen) < most:
        one = left.pop(0)
        if not met.has(one.node.get_content(), {}):
            chosen.append(one)
        elif by_session and session_of(one) not in map(session_of, chosen):
            places = (at for at, other in enumerate(left) if session_of(other) == session_of(one))
            if (further := next(places, None)) is not None:
                left.insert(0, left.pop(further))
    return chosen


def session_of(hit: MemoryEntry) -> tuple[str, date | None]:
    """The note of a hit, and its day."""
    return hit.path, meta.day_of(hit.node.metadata)


# What is current


class Fact(NamedTuple):
    """A value that a later note may change.

    Args:
        day: Of the note, or of the heading above.
        line: Of the note, or of the chunk where that is not known.
        subject: The words of the headings above that are no days, and those before the value.
        value: Its words.
        text: A slice of the chunk.
        hit: The chunk.
        held: The terms of the message that the subject holds; none where only the headings hold some.
        worth: How much of the message these are, by the rarity of terms.
    """

    day: date
    line: int
    subject: tuple[str, ...]
    value: tuple[str, ...]
    text: str
    hit: MemoryEntry
    held: frozenset[str]
    worth: float


def facts_of(hit: MemoryEntry, terms: Split) -> list[Fact]:
    """The facts of a hit, each subject once: who speaks twice in a note is none."""
    text, metadata, facts = hit.node.get_content(), hit.node.metadata, list[Fact]()
    above, first = meta.heading_titles(metadata), meta.value_of(metadata, meta.START_LINE) or 1
    for one in split_sentences(text):
        day, statement = one.day or meta.day_of(metadata), text[one.start : one.end]
        match = None if one.is_heading else _FACT.fullmatch(_MARKS.sub("", statement).strip("| "))
        if match and day:
            places = [
                place
                for place in dict.fromkeys([*above, one.title])
                if not dates.date_from_heading(place)
            ]
            subject = _folded(" ".join([*places, match["key"]]))
            held = frozenset(hit.terms.keys() & set(terms(" ".join(subject))))
            held = held if held.intersection(terms(match["key"])) else frozenset()
            line, worth = (
                first + text.count("\n", 0, one.start),
                math.fsum(hit.terms[term] for term in held),
            )
            facts.append(
                Fact(day, line, subject, _folded(match["value"]), statement, hit, held, worth)
            )
    counts = Counter(one.subject for one in facts)
    return [one for one in facts if counts[one.subject] == 1]


def _folded(text: str) -> tuple[str, ...]:
    return tuple(map(str.casefold, split_words(text)))


def newest_first(
    chosen: Sequence[MemoryEntry], ranked: Sequence[MemoryEntry], terms: Split
) -> list[MemoryEntry]:
    """Hits with the newest value of what is asked for where the first of them stands that has one.

    A hit that holds no more than an older value is left out, as the newest names it.

    Args:
        chosen: The hits of a digest, best first.
        ranked: All that was found.
        terms: Cuts a text into terms, as those of the hits are.
    """
    facts = [fact for one in chosen for fact in facts_of(one, terms)]
    wanted = max(facts, key=lambda fact: fact.worth, default=None)
    most = max((sum(one.terms.values()) for one in chosen), default=0.0)
    if wanted is None or wanted.worth < _LEAST_SHARE * most:
        return list(chosen)
    near = {one.id: one for one in (*chosen, *ranked) if wanted.held <= one.terms.keys()}.values()
    same = (fact for one in near for fact in facts_of(one, terms) if fact.subject == wanted.subject)
    history = sorted(same, key=lambda fact: (fact.day, fact.hit.path, fact.line))
    runs = [list(run) for _, run in groupby(history, key=lambda fact: fact.value)]
    older = [
        _older(run, after[0].day) for run, after in pairwise(runs) if run[-1].day < after[0].day
    ]
    if not older:
        return list(chosen)
    newest = replace(
        history[-1].hit,
        snippet=history[-1].text,
        since=runs[-1][0].day.isoformat(),
        older=tuple(older[: -_MOST_OLDER - 1 : -1]),
    )
    least = _SURE_SHARE * wanted.worth
    others = {
        fact.hit.id for fact in facts if fact.subject != wanted.subject and fact.worth >= least
    }
    known = {fact.hit.id for fact in history}
    at = next(place for place, one in enumerate(chosen) if one.id in known)
    rest = [
        one
        for one in chosen[at:]
        if one.id != newest.id and (one.id not in known or one.id in others)
    ]
    return [*chosen[:at], newest, *rest][: len(chosen)]


def _older(run: Sequence[Fact], until: date) -> OlderValue:
    last, snippet = run[-1], visible(run[-1].text)
    cited = meta.citation(shown_path(last.hit.path), last.line, last.line)
    return OlderValue(cited, snippet, run[0].day.isoformat(), until.isoformat())


# What is shown


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
            sentences += (
                Sentence(*one.span(), day, title, bool(marks))
                for one in piece.finditer(text, first, last)
            )
        if marks:
            title = block[0].strip("# \t\r")
    return sentences


def choose_snippet(
    text: str, weights: Mapping[str, float], terms: Split, *, limit: int
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
        return sentences[place].is_heading and not (
            held[place] or (sentences[place].day and has_days)
        )

    has_days = any(one.day != sentences[0].day for one in sentences)
    held = [weights.keys() & set(terms(text[one.start : one.end])) for one in sentences]
    counts, best, stop = Counter[str](), (-1.0, 0, 0), 0
    for start, of_first in enumerate(held):
        while stop < len(sentences) and fits(start, stop):
            counts.update(held[stop])
            stop += 1
        worth = math.fsum(weights[term] for term, count in counts.items() if count)
        # Of those that hold the same the first; without sentences before it that hold nothing.
        if worth > best[0] or (
            worth == best[0] > 0 and start == best[1] + 1 and not held[start - 1]
        ):
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


def entries_of(
    chosen: Sequence[MemoryEntry], groups: Sequence[tuple[str, ...]], terms: Split, max_tokens: int
) -> tuple[MemoryEntry, ...]:
    """Hits with snippets that share the budget; what one leaves goes to those after it.

    Args:
        chosen: Best first.
        groups: The query's terms with their alternatives.
        terms: Cuts a text into terms.
        max_tokens: For all lines together, estimated. Where it is short, later hits are left out; the first never is.
    """
    entries: list[MemoryEntry] = []
    left = max_tokens
    for position, one in enumerate(chosen):
        weights = {
            alternative: one.terms[group[0]]
            for group in groups
            for alternative in group
            if group[0] in one.terms
        }
        text = readable(one.node.get_content())
        # "birthday: 1991-05-02" may be what is asked for
        matched = [part for part in one.properties if weights.keys() & set(terms(part))]
        text = "\n\n".join([*matched, text])
        share = left // (len(chosen) - position) - estimate_tokens(one.block)
        if share < _LEAST_TOKENS and entries:
            break
        limit = int(max(share, _LEAST_TOKENS) * len(text) / max(1, estimate_tokens(text)))
        snippet, day = choose_snippet(text, weights, terms, limit=limit)
        day = day or meta.day_of(one.node.metadata)
        if one.snippet not in snippet:  # the value that is current
            snippet = one.snippet
        shown = replace(one, snippet=visible(snippet), score=round(min(one.score, 1.0), 6))
        entries.append(replace(shown, date=day.isoformat() if day else None))
        left -= estimate_tokens(entries[-1].block)
    return tuple(entries)


def estimate_tokens(text: str) -> int:
    """Estimated LLM tokens without a tokenizer: four characters each, one character each beyond Latin scripts."""
    wide = 0 if text.isascii() else len(_WIDE_CHARACTER.findall(text))
    return wide + -(-(len(text) - wide) // 4)
