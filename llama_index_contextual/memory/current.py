"""What is current wins: of notes that say different things of one fact, the newest is shown, the older ones are named.

Two notes speak of one fact where a line of both has the same key (``timeout: 30``, ``timeout: 60``), where both have
one short paragraph under the same heading, or where two sentences differ in a word or two. They have to stand under the
same headings, except for headings that are days. What has no day is neither newer nor older.

Prose says it in other words each time. Where the best sentences of two hits give other values of one unit that the
message asks for (``3 hours``, ``4 hours``; two dates), the newer hit comes first, and neither is called older.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final

from llama_index_contextual.keyword import lexicon_of, split_words
from llama_index_contextual.memory.digest import Current, OlderStatement, shown_path, visible
from llama_index_contextual.memory.snippet import remembering, split_sentences
from llama_index_contextual.metadata import START_LINE, citation, day_of, heading_titles, path_of, value_of
from llama_index_contextual.text import DATE_LANGUAGES, date_from_heading, date_from_words, month_words, weekday_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import date

    from llama_index_contextual.memory.search import PoolHit

_MARKS: Final = re.compile(r"(?:[-*+•]\s+|\d{1,9}[.)]\s+|\[[ xX]\]\s+|>\s*)+")
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d\b\s*")  # a list item in the note of a day may start with its time
_PAIR: Final = re.compile(
    r"([^:=|`：]{1,60}?)(?::\s{1,9}|\s{0,9}：\s{0,9}|\s{0,9}=(?![=>])\s{0,9})(?=\S)"  # noqa: RUF001  full width is meant
)
_INSIDE_NUMBERS: Final = re.compile(r"(?<=\d)[.,:](?=\d)")
_ROW: Final = re.compile(r"\|([^|]{1,60})\|([^|]+)\|$")
_MOST_KEY_WORDS: Final = 6
_MOST_VALUE_WORDS: Final = 12  # what follows a colon, or is the paragraph below a heading; more of them tell a story
_MOST_WORDS: Final = 20  # of a sentence
_LEAST_SHARED: Final = 2  # words that two sentences of one fact share, stop words left out
_SUBJECT_SHARE: Final = 0.6  # of what the best sentence holds of the message; one with less is not what is asked for
_SURE_SHARE: Final = 0.8  # the same, of statements
_NEAR: Final = 0.45  # of the best score; in prose only such hits are compared
_MOST_COMPARED: Final = 25
_DATE, _TIME, _PERCENT = _UNITS = ("a date", "a time", "%")
_NUMBER: Final = re.compile(r"(?:(?<![^\W\d_])([^\W\d_]+)\s{1,9})?(\d+(?:[.,:/]\d+)*)(?:st|nd|rd|th)?\s*(%|[^\W\d_]+)?")
_MONTHS: Final = {word: number for language in DATE_LANGUAGES for word, number in month_words(language).items()}
_LEAST_SHARE: Final = 0.4  # of what the best hit holds of the message
_ASKS: Final = ("?", "？")
_MOST_OLDER: Final = 3
_MOST_CHARS: Final = 160  # of an older statement


@dataclass(frozen=True, slots=True)
class Statement:
    """A line or a sentence of a note that a later note may change."""

    text: str
    """A slice of the chunk."""
    start: int
    """Where it begins in the chunk."""
    day: date | None
    """Of the headings above it."""
    place: tuple[tuple[str, ...], ...]
    """The headings above it that are no days, each as its words."""
    key: tuple[str, ...]
    """The words before its colon, or those of its heading; none where it is a sentence."""
    value: tuple[str, ...]
    """Its other words."""

    @property
    def subject(self) -> str:
        """What it is about: its key, or all of it, and the headings above it."""
        return " ".join([*(word for title in self.place for word in title), *(self.key or [self.text])])

    def is_about_the_same(self, other: Statement) -> bool:
        """Whether both speak of one fact, whatever they say of it."""
        if self.key != other.key or (self.place and other.place and self.place != other.place):
            return False
        return bool(self.key) or _differ_little(self.value, other.value)


@remembering
def statements(text: str, titles: tuple[str, ...]) -> tuple[Statement, ...]:
    """Return the statements of a chunk, in their order.

    Args:
        text: The chunk.
        titles: The headings above its beginning, the highest first.
    """
    sentences = split_sentences(text)
    below = Counter(one.title for one in sentences if one.kind == "text")
    above = tuple(_folded(title) for title in titles if not _is_day(title))
    results: list[Statement] = []
    for one in sentences:
        if one.kind != "text" or one.text.endswith(_ASKS):
            continue
        title = sentences[one.title].text.strip("# \t") if one.title is not None else ""
        heading = _folded(title) if title and not _is_day(title) else ()
        place = above if not heading or heading in above else (*above, heading)
        plain = _CLOCK.sub("", _MARKS.sub("", one.text, count=1), count=1).replace("**", "").replace("__", "")
        key, value = _key_and_value(plain)
        if not key and heading and below[one.title] == 1 and len(value) <= _MOST_VALUE_WORDS:
            key, place = heading, tuple(part for part in place if part != heading)
        if len(value) <= (_MOST_VALUE_WORDS if key else _MOST_WORDS):
            results.append(Statement(text[one.start : one.end], one.start, one.day, place, key, value))
    keys = Counter((one.place, one.key) for one in results)
    # A key that comes again names who speaks.
    return tuple(one for one in results if not one.key or keys[one.place, one.key] == 1)


def _key_and_value(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if row := _ROW.match(text):
        before, after = row.groups()
    elif pair := _PAIR.match(text):
        before, after = pair[1], text[pair.end() :]
    else:
        return (), _folded(text)
    key, value = _folded(before), _folded(after)
    return (key, value) if value and 0 < len(key) <= _MOST_KEY_WORDS else ((), _folded(text))


def _differ_little(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two sentences say the same but for numbers, or for the last word after a stop word (``is Ana``)."""
    known = lexicon_of("")
    left, right, both = (
        {word for word in some if word in known.numbers or not known.is_stop_word(word)}
        for some in (set(one) - set(other), set(other) - set(one), set(one) & set(other))
    )
    if len(both) < _LEAST_SHARED or bool(left) != bool(right):
        return False
    if all(word.isdigit() or word in known.numbers for word in left | right):
        return True
    ends = left == {one[-1]} and right == {other[-1]}
    return ends and all(len(each) > 1 and known.is_stop_word(each[-2]) for each in (one, other))


def _folded(text: str) -> tuple[str, ...]:
    return tuple(word.casefold() for word in split_words(_INSIDE_NUMBERS.sub("", text)))


@lru_cache(maxsize=4096)
def _is_day(title: str) -> bool:
    if _CLOCK.match(title) or date_from_heading(title) or date_from_words(title):
        return True
    folded = _folded(title)
    return len(folded) == 1 and any(folded[0] in weekday_words(language) for language in DATE_LANGUAGES)


# In prose


def newer_values_first(
    ranked: Sequence[PoolHit], message: str, terms: Callable[[str], Collection[str]]
) -> list[PoolHit]:
    """Put a hit before the first older one that gives another value of the same unit.

    Args:
        ranked: The hits, best first.
        message: What they answer. A unit counts that is a word of it; dates, times and percentages always do.
        terms: Cuts a text into terms, as those of the hits are.
    """
    order, wanted_terms = list(ranked), {*terms(message), *_UNITS}
    near = [one for one in ranked[:_MOST_COMPARED] if one.score >= _NEAR * ranked[0].score]
    values = {one.id: value for one in near if (value := _value_in(one, wanted_terms, terms))}
    least = _SUBJECT_SHARE * max((value.worth for value in values.values()), default=0.0)
    values = {id_: value for id_, value in values.items() if value.worth >= least}
    for one in near:
        if (value := values.get(one.id)) is None:
            continue
        at = order.index(one)
        older = (place for place in range(at) if (other := values.get(order[place].id)) and value.renews(other))
        if (place := next(older, None)) is not None:
            order.insert(place, order.pop(at))
    return order


@dataclass(frozen=True, slots=True)
class _Value:
    """The sentence of a hit that holds most of a message among those with numbers."""

    worth: float
    terms: frozenset[str]
    quantities: Mapping[str, set[str]]
    """Numbers by their units."""
    order: tuple[date, str, int]

    def renews(self, other: _Value) -> bool:
        """Whether it is newer, about the same, and gives another value of the same unit."""
        if self.order <= other.order or len(self.terms & other.terms) <= _LEAST_SHARED:
            return False
        return any(
            not self.quantities[unit] <= other.quantities.get(unit, self.quantities[unit]) for unit in self.quantities
        )


def _value_in(one: PoolHit, wanted_terms: Collection[str], terms: Callable[[str], Collection[str]]) -> _Value | None:
    node, weights = one.node, one.terms
    values: list[_Value] = []
    for sentence in split_sentences(node.get_content()):
        day = sentence.day or day_of(node.metadata)
        if day is None or sentence.kind != "text" or not (quantities := _quantities(sentence.text, terms)):
            continue
        held = frozenset(terms(sentence.text))
        wanted = {unit: numbers for unit, numbers in quantities.items() if unit in wanted_terms}
        order = day, path_of(node.metadata), value_of(node.metadata, START_LINE) or 0
        values.append(_Value(math.fsum(weights[term] for term in weights.keys() & held), held, wanted, order))
    return max(values, key=lambda value: value.worth, default=None)


def _quantities(text: str, terms: Callable[[str], Collection[str]]) -> dict[str, set[str]]:
    """Return the numbers of a text by their units."""
    quantities: dict[str, set[str]] = {}
    for before, number, after in _NUMBER.findall(text):
        left, right, value = before.casefold(), after.casefold(), number.replace(",", "")
        if month := _MONTHS.get(left) or _MONTHS.get(right):
            unit, value = _DATE, f"{month}-{value}"
        elif right in {"am", "pm"} or ":" in number:
            unit, value = _TIME, value + right
        elif right == _PERCENT:
            unit = _PERCENT
        else:
            unit = "" if lexicon_of("").is_stop_word(right) else next(iter(terms(right)), "")
        if unit:
            quantities.setdefault(unit, set()).add(value)
    return quantities


# In a digest


@dataclass(frozen=True, slots=True)
class _Mention:
    """A statement in a hit, with its day."""

    hit: PoolHit
    statement: Statement
    day: date
    held: frozenset[str] | set[str] = frozenset()
    """The terms of the message that its subject holds."""

    @property
    def order(self) -> tuple[date, str, int]:
        return self.day, path_of(self.hit.node.metadata), self.line or self.statement.start

    @property
    def line(self) -> int | None:
        first = value_of(self.hit.node.metadata, START_LINE)
        before = self.hit.node.get_content()[: self.statement.start]
        return first + before.count("\n") if isinstance(first, int) else None

    def until(self, first: date, day: date) -> OlderStatement:
        path = path_of(self.hit.node.metadata)
        text = self.statement.text
        return OlderStatement(
            citation=citation(shown_path(path), self.line, self.line),
            since=first.isoformat(),
            until=day.isoformat(),
            snippet=visible(text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 2]} …"),
        )


def newest_first(
    chosen: Sequence[PoolHit],
    ranked: Sequence[PoolHit],
    terms: Callable[[str], Collection[str]],
) -> tuple[list[PoolHit], dict[str, Current]]:
    """Put the newest that notes say of a fact where the first of them stands.

    A hit that says no more than an older value is left out, as the newest names it. One that says more comes after.

    Args:
        chosen: The hits of a digest, best first.
        ranked: All that was found.
        terms: Cuts a text into terms, as those of the hits are.

    Returns:
        As many hits at most, and by id what of them is current.
    """
    order, current, mentions = list(chosen), dict[str, Current](), dict[str, list[_Mention]]()
    requested = _requested(chosen, terms)
    for one in chosen:
        for wanted in requested[one.id] if one in order else ():
            near = [other for other in ranked if other.id != one.id and wanted.held <= other.terms.keys()]
            mentions |= {other.id: _mentions(other) for other in near if other.id not in mentions}
            every = (mention for other in near for mention in mentions[other.id])
            others = [mention for mention in every if mention.statement.is_about_the_same(wanted.statement)]
            history = sorted([wanted, *others], key=lambda mention: mention.order)
            if (last := _current_of(history)) is None:
                continue
            newest = history[-1].hit
            current.setdefault(newest.id, last)
            at = min(order.index(hit) for hit in (one, newest) if hit in order)
            known = [mention.statement for mention in history]
            says_no_more = {
                id_ for id_, each in requested.items() if each and all(mention.statement in known for mention in each)
            }
            removed = says_no_more | {newest.id}
            before, after = ([hit for hit in part if hit.id not in removed] for part in (order[:at], order[at:]))
            order = [*before, newest, *after]
            break
    return order[: len(chosen)], current


def _mentions(one: PoolHit) -> list[_Mention]:
    node, day = one.node, day_of(one.node.metadata)
    every = statements(node.get_content(), tuple(heading_titles(node.metadata)))
    return [_Mention(one, each, each_day) for each in every if (each_day := each.day or day)]


def _requested(chosen: Sequence[PoolHit], terms: Callable[[str], Collection[str]]) -> dict[str, list[_Mention]]:
    """Return the statements of each chosen hit that hold most of the message, the best first."""
    worth = dict[str, list[tuple[float, _Mention]]]()
    for one in chosen:
        weights = one.terms
        held = [replace(each, held=weights.keys() & set(terms(each.statement.subject))) for each in _mentions(one)]
        worth[one.id] = [(math.fsum(weights[term] for term in each.held), each) for each in held]
    best = max((value for pairs in worth.values() for value, _ in pairs), default=0.0)
    most = max((sum(one.terms.values()) for one in chosen), default=0.0)
    least = max(_SURE_SHARE * best, _LEAST_SHARE * most)
    return {
        id_: [each for value, each in sorted(pairs, key=lambda pair: -pair[0]) if value >= least > 0]
        for id_, pairs in worth.items()
    }


def _current_of(history: Sequence[_Mention]) -> Current | None:
    """Return the last of some mentions with the different ones before it; None where all say the same."""
    runs = [list(run) for _, run in groupby(history, key=lambda mention: mention.statement.value)]
    older = [run[-1].until(run[0].day, following[0].day) for run, following in pairwise(runs)]
    last = runs[-1]
    return (
        Current(last[-1].statement.text, last[0].day.isoformat(), tuple(older[: -_MOST_OLDER - 1 : -1]))
        if older
        else None
    )
