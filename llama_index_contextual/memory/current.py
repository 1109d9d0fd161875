"""What is current wins: of notes that differ on one fact, the newest is shown, and the older ones are named.

Two notes speak of one fact where a line of both has the same key (``timeout: 30``, ``timeout: 60``), where both have
one short paragraph under the same heading, or where two sentences differ in a word or two. They have to stand under the
same headings, except for headings that are days. What has no day is neither newer nor older.

Prose has other words each time. Where the best sentences of two hits give other values of one unit that the message
asks for (``3 hours``, ``4 hours``; two dates), the newer hit comes first, and neither is called older.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.keyword import lexicon_of, split_words
from llama_index_contextual.memory.digest import Current, OlderStatement, shown_path, visible
from llama_index_contextual.memory.snippet import split_sentences
from llama_index_contextual.metadata import START_LINE, citation, day_of, heading_titles, path_of, value_of
from llama_index_contextual.text import DATE_LANGUAGES, date_from_heading, month_words, weekday_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import date

    from llama_index_contextual.memory.digest import PoolHit

    Split = Callable[[str], Collection[str]]

_MARKS: Final = re.compile(r"(?:[-*+•]\s+|\d{1,9}[.)]\s+|\[[ xX]\]\s+|>\s*)+")
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d\b\s*")  # a list item in the note of a day may start with its time
_PAIR: Final = re.compile(
    r"\|(?P<cell>[^|]{1,60})\|(?P<next>[^|]+)\|$"
    r"|(?P<key>[^:=|`：]{1,60}?)(?::\s{1,9}|\s{0,9}：\s{0,9}|\s{0,9}=(?![=>])\s{0,9})(?=\S)(?P<value>.*)"  # noqa: RUF001
)
_INSIDE_NUMBERS: Final = re.compile(r"(?<=\d)[.,:](?=\d)")
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
_MOST_OLDER: Final = 3
_MOST_CHARS: Final = 160  # of an older statement


class Statement(NamedTuple):
    """A line or a sentence of a note that a later note may change.

    Args:
        text: A slice of the chunk.
        start: Where it begins in the chunk.
        day: Of the headings above it.
        place: The headings above it that are no days, each as its words.
        key: The words before its colon, or those of its heading; none where it is a sentence.
        value: Its other words.
    """

    text: str
    start: int
    day: date | None
    place: tuple[tuple[str, ...], ...]
    key: tuple[str, ...]
    value: tuple[str, ...]

    def is_about_the_same(self, other: Statement) -> bool:
        """Whether both speak of one fact, whatever its value."""
        if self.key != other.key or (self.place and other.place and self.place != other.place):
            return False
        return bool(self.key) or _differ_little(self.value, other.value)


@lru_cache(maxsize=256)
def statements(text: str, titles: tuple[str, ...]) -> tuple[Statement, ...]:
    """Statements of a chunk, in their order.

    Args:
        text: The chunk.
        titles: The headings above its beginning, the highest first.
    """
    sentences = split_sentences(text)
    below = Counter(one.title for one in sentences if one.kind == "text")
    above = tuple(_folded(title) for title in titles if not _is_day(title))
    results: list[Statement] = []
    for one in sentences:
        if one.kind != "text" or one.text.endswith(("?", "？")):
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
    if pair := _PAIR.match(text):
        key, value = _folded(pair["cell"] or pair["key"]), _folded(pair["next"] or pair["value"])
        if value and 0 < len(key) <= _MOST_KEY_WORDS:
            return key, value
    return (), _folded(text)


def _differ_little(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two sentences are the same but for numbers, or for the last word after a stop word (``is Ana``)."""
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
    if _CLOCK.match(title) or date_from_heading(title):
        return True
    folded = _folded(title)
    return len(folded) == 1 and any(folded[0] in weekday_words(language) for language in DATE_LANGUAGES)


# In prose


class _Value(NamedTuple):
    """The sentence of a hit that holds most of a message among those with numbers: its numbers by their units."""

    worth: float
    terms: frozenset[str]
    quantities: Mapping[str, set[str]]
    order: tuple[date, str, int]

    def renews(self, other: _Value) -> bool:
        """Whether it is newer, about the same, and gives another value of the same unit."""
        if self.order <= other.order or len(self.terms & other.terms) <= _LEAST_SHARED:
            return False
        return any(not numbers <= other.quantities.get(unit, numbers) for unit, numbers in self.quantities.items())


def newer_values_first(ranked: Sequence[PoolHit], message: str, terms: Split) -> list[PoolHit]:
    """Hits in their order, but each before the first older one that gives another value of the same unit.

    Args:
        ranked: The hits, best first.
        message: What they answer. A unit counts that is a word of it; dates, times and percentages always do.
        terms: Cuts a text into terms, as those of the hits are.
    """
    order, units = list(ranked), {*terms(message), *_UNITS}
    near = [one for one in ranked[:_MOST_COMPARED] if one.score >= _NEAR * ranked[0].score]
    values = {one.id: value for one in near if (value := _value_in(one, units, terms))}
    least = _SUBJECT_SHARE * max((value.worth for value in values.values()), default=0.0)
    values = {node_id: value for node_id, value in values.items() if value.worth >= least}
    for one in near:
        at = order.index(one)
        older = (
            place for place in range(at) if (other := values.get(order[place].id)) and values[one.id].renews(other)
        )
        if one.id in values and (place := next(older, None)) is not None:
            order.insert(place, order.pop(at))
    return order


def _value_in(one: PoolHit, units: Collection[str], terms: Split) -> _Value | None:
    metadata, values = one.node.metadata, list[_Value]()
    for sentence in split_sentences(one.node.get_content()):
        day = sentence.day or day_of(metadata)
        if day is None or sentence.kind != "text" or not (quantities := _quantities(sentence.text, terms)):
            continue
        held = frozenset(terms(sentence.text))
        wanted = {unit: numbers for unit, numbers in quantities.items() if unit in units}
        order = day, path_of(metadata), value_of(metadata, START_LINE) or 0
        values.append(_Value(math.fsum(one.terms[term] for term in one.terms.keys() & held), held, wanted, order))
    return max(values, key=lambda value: value.worth, default=None)


def _quantities(text: str, terms: Split) -> dict[str, set[str]]:
    """Numbers of a text by their units."""
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


class _Mention(NamedTuple):
    """A statement in a hit, with its day, and the terms of the message that its subject holds."""

    hit: PoolHit
    statement: Statement
    day: date
    held: frozenset[str]

    @property
    def line(self) -> int | None:
        first = value_of(self.hit.node.metadata, START_LINE)
        before = self.hit.node.get_content()[: self.statement.start]
        return first + before.count("\n") if isinstance(first, int) else None

    @property
    def order(self) -> tuple[date, str, int]:
        return self.day, path_of(self.hit.node.metadata), self.line or self.statement.start

    def until(self, first: date, day: date) -> OlderStatement:
        cited, text = citation(shown_path(path_of(self.hit.node.metadata)), self.line, self.line), self.statement.text
        shown = visible(text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 2]} …")
        return OlderStatement(cited, shown, first.isoformat(), day.isoformat())


def _mentions(one: PoolHit, terms: Split) -> list[_Mention]:
    node, day = one.node, day_of(one.node.metadata)
    found = []
    for each in statements(node.get_content(), tuple(heading_titles(node.metadata))):
        subject = " ".join([*(word for title in each.place for word in title), *(each.key or [each.text])])
        if (of_day := each.day or day) is not None:
            found.append(_Mention(one, each, of_day, frozenset(one.terms.keys() & set(terms(subject)))))
    return found


def newest_first(
    chosen: Sequence[PoolHit], ranked: Sequence[PoolHit], terms: Split
) -> tuple[list[PoolHit], dict[str, Current]]:
    """Hits with the newest that notes have of a fact where the first of them stands; and by id what is current.

    A hit that holds no more than an older value is left out, as the newest names it. One that holds more comes after.

    Args:
        chosen: The hits of a digest, best first.
        ranked: All that was found.
        terms: Cuts a text into terms, as those of the hits are.
    """
    order, current = list(chosen), dict[str, Current]()
    requested = _requested(chosen, terms)
    for one in chosen:
        for wanted in requested[one.id] if one in order else ():
            near = [other for other in ranked if other.id != one.id and wanted.held <= other.terms.keys()]
            others = [mention for other in near for mention in _mentions(other, terms)]
            same = [mention for mention in others if mention.statement.is_about_the_same(wanted.statement)]
            history = sorted([wanted, *same], key=lambda mention: mention.order)
            if (last := _current_of(history)) is None:
                continue
            newest, known = history[-1].hit, [mention.statement for mention in history]
            current.setdefault(newest.id, last)
            at = min(order.index(hit) for hit in (one, newest) if hit in order)
            holds_no_more = (
                node_id for node_id, each in requested.items() if each and all(one.statement in known for one in each)
            )
            removed = {newest.id, *holds_no_more}
            before, after = ([hit for hit in part if hit.id not in removed] for part in (order[:at], order[at:]))
            order = [*before, newest, *after]
            break
    return order[: len(chosen)], current


def _requested(chosen: Sequence[PoolHit], terms: Split) -> dict[str, list[_Mention]]:
    """Statements of each chosen hit that hold most of the message, the best first."""
    worth = {
        one.id: [(math.fsum(one.terms[term] for term in each.held), each) for each in _mentions(one, terms)]
        for one in chosen
    }
    best = max((value for pairs in worth.values() for value, _ in pairs), default=0.0)
    most = max((sum(one.terms.values()) for one in chosen), default=0.0)
    least = max(_SURE_SHARE * best, _LEAST_SHARE * most)
    return {
        node_id: [each for value, each in sorted(pairs, key=lambda pair: -pair[0]) if value >= least > 0]
        for node_id, pairs in worth.items()
    }


def _current_of(history: Sequence[_Mention]) -> Current | None:
    """The last of some mentions with the different ones before it; None where all are the same."""
    runs = [list(run) for _, run in groupby(history, key=lambda mention: mention.statement.value)]
    older = [run[-1].until(run[0].day, following[0].day) for run, following in pairwise(runs)]
    last = runs[-1]
    recent = tuple(older[: -_MOST_OLDER - 1 : -1])
    return Current(last[-1].statement.text, last[0].day.isoformat(), recent) if older else None
