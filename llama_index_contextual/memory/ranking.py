"""The order of hits: without repetitions, by age, and with what is current first.

Of notes that differ on one fact, the newest is shown, and the older ones are named. Two notes speak of one fact where a
line of both has the same key (``timeout: 30``), where both have one short paragraph under a heading, or where two
sentences differ in a word or two; under the same headings, but for those that are days. In prose, where the best
sentences of two hits give other numbers of one unit that the message asks for, the newer comes first.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index.core.schema import NodeWithScore

from llama_index_contextual.keyword import lexicon_of, split_words
from llama_index_contextual.memory.digest import Current, MemoryEntry, OlderStatement, shown_path, visible
from llama_index_contextual.memory.snippet import split_sentences
from llama_index_contextual.metadata import START_LINE, citation, day_of, heading_titles, value_of
from llama_index_contextual.retrieval import NearDuplicates
from llama_index_contextual.text import DATE_LANGUAGES, date_from_heading, weekday_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import date

    from llama_index_contextual.retrieval import RecencyPostprocessor

    Split = Callable[[str], Collection[str]]

_MARKS: Final = re.compile(r"(?:[-*+•]\s+|\d{1,9}[.)]\s+|\[[ xX]\]\s+|>\s*)+")
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d\b\s*")  # a list item in the note of a day may start with its time
_PAIR: Final = re.compile(
    r"\|(?P<cell>[^|]{1,60})\|(?P<next>[^|]+)\|$"
    r"|(?P<key>[^:=|`：]{1,60}?)(?::\s{1,9}|\s{0,9}：\s{0,9}|\s{0,9}=(?![=>])\s{0,9})(?=\S)(?P<value>.*)"  # noqa: RUF001
)
_NO_VALUE: Final = ("?", "？", "!", "！")
_IS: Final = frozenset(
    {"is", "are", "ist", "sind", "es", "son", "está", "están", "est", "sont", "è", "sono", "zijn", "é", "são", "是"}
)
_INSIDE_NUMBERS: Final = re.compile(r"(?<=\d)[.,:](?=\d)")
_MOST_KEY_WORDS: Final = 6
_MOST_VALUE_WORDS: Final = 12  # what follows a colon, or is the paragraph below a heading; more of them tell a story
_MOST_WORDS: Final = 20  # of a sentence
_LEAST_SHARED: Final = 2  # words that two sentences of one fact share, stop words left out
_SURE_SHARE: Final = 0.8  # of the message that the best statement holds; one with less is not what is asked for
_LEAST_SHARE: Final = 0.4  # of what the best hit holds of the message
_SUBJECT_SHARE: Final = 0.6  # of what the best sentence with a number holds of the message
_MOST_COMPARED: Final = 25  # hits whose numbers in prose are compared
_NUMBER: Final = re.compile(r"(?<!\d)(?<!\d[.,:/])(\d+(?:[.,:/]\d+){0,9})(?:st|nd|rd|th)?\s{0,9}(%|[^\W\d_]+)")
_MOST_OLDER: Final = 3
_MOST_CHARS: Final = 160  # of an older statement


def best_first(hits: Collection[MemoryEntry]) -> list[MemoryEntry]:
    """The hits by score, then by id."""
    return sorted(hits, key=lambda one: (-one.score, one.id))


def aged_hits(ranked: Sequence[MemoryEntry], recency: RecencyPostprocessor) -> list[MemoryEntry]:
    """Hits whose scores are lowered by the age of their notes, best first."""
    aged = []
    ages = recency.explain([NodeWithScore(node=one.node, score=one.score) for one in ranked])
    for one, why in zip(ranked, ages, strict=True):
        reason = f"recency x{why.multiplier:.2f} ({why.age_days:.0f} days, {why.reason})" if why.multiplier != 1 else ""
        aged.append(replace(one, score=why.score_after, reasons=(*one.reasons, *filter(None, [reason]))))
    return best_first(aged)


def fresh_hits(ranked: Sequence[MemoryEntry], most: int, seen: Collection[str] = ()) -> list[MemoryEntry]:
    """The best hits without near-duplicates and those that were shown before."""
    unseen = [one for one in ranked if not is_seen(one, seen)]
    repeated = NearDuplicates()
    return [one for one in unseen[: 4 * most] if not repeated.has(one.node.get_content(), {})][:most]


def is_seen(one: MemoryEntry, seen: Collection[str]) -> bool:
    """Whether a hit was shown before, by its id or its citation."""
    return bool(seen) and (one.id in seen or one.citation in seen)


# What is current


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
        if (self.place, self.key) != (other.place, other.key):
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
        if one.kind != "text":
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
    return tuple(results)


def _names_a_speaker(statement: Statement, hits: Sequence[MemoryEntry]) -> bool:
    """Whether a key stands twice in one place of a note, as the names of those who speak do."""
    keys = ([(each.place, each.key) for each in _statements_of(one)] for one in hits)
    return bool(statement.key) and any(of_one.count((statement.place, statement.key)) > 1 for of_one in keys)


def _statements_of(one: MemoryEntry) -> tuple[Statement, ...]:
    return statements(one.node.get_content(), tuple(heading_titles(one.node.metadata)))


def _key_and_value(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if pair := _PAIR.match(text):
        key, value = _folded(pair["cell"] or pair["key"]), _folded(pair["next"] or pair["value"])
        if value and 0 < len(key) <= _MOST_KEY_WORDS:
            return key, value
    return (), _folded(text)


def _differ_little(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two sentences on what is are the same but for numbers, or the last word after a stop word (``is Ana``).

    One of them may have words that the other lacks. "We walked 5 km" is no older value of "We walked 8 km".
    """
    known = lexicon_of("")
    if _IS.isdisjoint(one) or _IS.isdisjoint(other):
        return False
    sides = [[word for word in some if not (word.isdigit() or word in known.numbers)] for some in (one, other)]
    if sides[0] == list(one) or sides[1] == list(other):  # no numbers on one side: of what is the last word?
        if not all(len(some) > 1 and known.is_stop_word(some[-2]) for some in (one, other)):
            return False
        sides = [list(some[:-1]) for some in (one, other)]
    left, right = map(set, sides)
    shared = sum(not known.is_stop_word(word) for word in left & right)
    return shared >= _LEAST_SHARED and (left <= right or right <= left)


def _folded(text: str) -> tuple[str, ...]:
    return tuple(word.casefold() for word in split_words(_INSIDE_NUMBERS.sub("", text)))


@lru_cache(maxsize=4096)
def _is_day(title: str) -> bool:
    folded = _folded(title)
    is_weekday = len(folded) == 1 and any(folded[0] in weekday_words(language) for language in DATE_LANGUAGES)
    return is_weekday or bool(_CLOCK.match(title) or date_from_heading(title))


class _Value(NamedTuple):
    """The sentence of a hit that holds most of a message among those with numbers: its numbers by their units."""

    worth: float
    terms: frozenset[str]
    numbers: dict[str, set[str]]
    order: tuple[date, str, int]

    def renews(self, other: _Value) -> bool:
        """Whether it is newer, about the same, and gives another number of the same unit."""
        if self.order <= other.order or len(self.terms & other.terms) <= _LEAST_SHARED:
            return False
        return any(not numbers <= other.numbers.get(unit, numbers) for unit, numbers in self.numbers.items())


def newer_values_first(ranked: Sequence[MemoryEntry], message: str, terms: Split) -> list[MemoryEntry]:
    """Hits in their order, but each before the first older one that gives another number of the same unit.

    Args:
        ranked: The hits, best first.
        message: What they answer. A unit counts that is a word of it; percentages always do.
        terms: Cuts a text into terms, as those of the hits are.
    """
    order, units = list(ranked), {"%", *terms(message)}
    values = {one.id: value for one in ranked[:_MOST_COMPARED] if (value := _value_in(one, units, terms))}
    least = _SUBJECT_SHARE * max((value.worth for value in values.values()), default=0.0)
    values = {node_id: value for node_id, value in values.items() if value.worth >= least}
    for one in (one for one in ranked if one.id in values):
        at = order.index(one)
        known = ((place, values.get(order[place].id)) for place in range(at))
        older = (place for place, value in known if value and values[one.id].renews(value))
        order.insert(next(older, at), order.pop(at))
    return order


def _value_in(one: MemoryEntry, units: Collection[str], terms: Split) -> _Value | None:
    values = list[_Value]()
    for sentence in split_sentences(one.node.get_content()):
        day, numbers = sentence.day or day_of(one.node.metadata), dict[str, set[str]]()
        for number, after in _NUMBER.findall(sentence.text) if day and sentence.kind == "text" else ():
            unit = after if after == "%" or lexicon_of("").is_stop_word(after) else next(iter(terms(after)), "")
            numbers.setdefault(unit, set()).add(number.replace(",", ""))
        if numbers and day:
            held = frozenset(terms(sentence.text))
            worth = math.fsum(one.terms[term] for term in one.terms.keys() & held)
            wanted = {unit: some for unit, some in numbers.items() if unit in units}
            order = day, one.path, value_of(one.node.metadata, START_LINE) or 0
            values.append(_Value(worth, held, wanted, order))
    return max(values, key=lambda value: value.worth, default=None)


class _Mention(NamedTuple):
    """A statement in a hit, with its day, and the terms of the message that its subject holds."""

    hit: MemoryEntry
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
        return self.day, self.hit.path, self.line or self.statement.start

    def until(self, first: date, day: date) -> OlderStatement:
        cited, text = citation(shown_path(self.hit.path), self.line, self.line), self.statement.text
        shown = visible(text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 2]} …")
        return OlderStatement(cited, shown, first.isoformat(), day.isoformat())


def _mentions(one: MemoryEntry, terms: Split) -> list[_Mention]:
    day, found = day_of(one.node.metadata), []
    for each in _statements_of(one):
        if each.text.endswith(_NO_VALUE):
            continue
        subject = " ".join([*(word for title in each.place for word in title), *(each.key or [each.text])])
        if (of_day := each.day or day) is not None:
            found.append(_Mention(one, each, of_day, frozenset(one.terms.keys() & set(terms(subject)))))
    return found


def newest_first(chosen: Sequence[MemoryEntry], ranked: Sequence[MemoryEntry], terms: Split) -> list[MemoryEntry]:
    """Hits with the newest that notes have of a fact where the first of them stands, and with what is current.

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
            if (last := _current_of(history)) is None or _names_a_speaker(wanted.statement, ranked):
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
    return [replace(one, current=current.get(one.id)) for one in order[: len(chosen)]]


def _requested(chosen: Sequence[MemoryEntry], terms: Split) -> dict[str, list[_Mention]]:
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
    renewed = ((run, following[0].day) for run, following in pairwise(runs) if run[-1].day < following[0].day)
    older = [run[-1].until(run[0].day, day) for run, day in renewed]
    last = runs[-1]
    recent = tuple(older[: -_MOST_OLDER - 1 : -1])
    return Current(last[-1].statement.text, last[0].day.isoformat(), recent) if older else None
