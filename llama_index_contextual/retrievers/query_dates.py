"""Find the dates in a question, such as ``yesterday`` or ``el 5 de abril``, in several languages.

Each language has a YAML file in ``data/languages/`` with small talk, stop words and date patterns.
The names of months and weekdays are in ``utils/dates.py``. Questions ask about the past, so an
ambiguous date means the most recent one: in March, ``April 5`` is a day of last year.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache, cached_property, partial
from importlib.resources import files
from itertools import chain, count
from typing import Any, NamedTuple, TypeAlias

import yaml

from llama_index_contextual.utils.dates import (
    NamedDate,
    Period,
    dates_in,
    existing_date,
    months_from,
    numbered_words,
    periods_in,
    with_ranges,
)
from llama_index_contextual.utils.language import (
    detect_language,
    fold,
    listed_stop_words,
    normalise,
)
from llama_index_contextual.utils.text import plain_digits

LANGUAGES = ("en", "es", "zh", "ja")
# These languages are only used if a text may be in one of them: "hier" means yesterday in French,
# but here in German.
FURTHER_LANGUAGES = ("de", "fr", "it", "nl", "pt", "ru")
DAYS_AFTER = 7  # notes from the days after a day can be about it, too
_PHRASE_KINDS = ("greeting", "thanks", "acknowledgement", "filler")
_MAX_DATES = 4
_SAMPLE = 200  # characters in which stop words are counted to find the language
_MAX_WORDS_OF_DATE = 4
_YEARS_WITH_29_FEBRUARY = 9  # any 9 years in a row include a 29 February
_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast in C
_SLOT = re.compile(r"\{(month|mm|weekday|unit|number|ordinal|day|year)\}")
_SLOT_NAME = re.compile(r"\(\?P<\w+>")
_MONTHS_OF_UNIT = {"month": 1, "quarter": 3, "year": 12}
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
HAS_CJK = re.compile(f"[{_CJK}]")
_WORD = re.compile(f"[{_CJK}]|(?:(?![{_CJK}])[^\\W_])+(?:['-](?:(?![{_CJK}])[^\\W_])+)*")

Slots: TypeAlias = dict[str, Any]  # the values in a date: numbers, and a unit
Meaning: TypeAlias = Callable[[Slots, int, date], Period]
# The possible dates in a text: the span of each, and the periods that it can mean. An impossible
# date has none.
Readings: TypeAlias = dict[tuple[int, int], list[Period]]


@dataclass(frozen=True)
class DatePattern:
    """A way to name a date.

    Attributes:
        body: A regular expression. Its groups are numbered slots, such as ``month_0``.
        meaning: Returns the period for the slots, the value and today.
        value: A number for the meaning, such as 1 for ``yesterday``.
    """

    body: str
    meaning: Meaning
    value: int

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """Return the compiled pattern. Most queries do not need it."""
        return re.compile(_any_of([self.body]), re.IGNORECASE)


class DatePatterns(NamedTuple):
    """The date patterns of a language.

    Attributes:
        any_date: Matches a text in lower case if any of the patterns matches. Most texts contain no
            date, and one search with this pattern takes less than half as long as a search with
            each. A search that ignores case would take more than twice as long.
        patterns: The patterns.
    """

    any_date: re.Pattern[str]
    patterns: Sequence[DatePattern]


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The words of several languages together, because the language of a message can be uncertain.

    Attributes:
        phrases: The kind of each phrase of small talk, by its words.
        stop_words: The stop words in lower case, with and without accents.
        numbers: The value of each month, weekday and number word, in lower case.
        units: The unit for each word: day, week, weekend, month, quarter or year.
        date_patterns: The date patterns of each language.
    """

    phrases: Mapping[tuple[str, ...], str]
    stop_words: frozenset[str]
    numbers: Mapping[str, int]
    units: Mapping[str, str]
    date_patterns: tuple[DatePatterns, ...]

    def is_stop_word(self, word: str) -> bool:
        """Return whether a word is a stop word.

        ``como`` is one like ``cómo``, but ``té`` (tea) is not one like ``te``.
        """
        return word.casefold() in self.stop_words


def split_words(text: str) -> list[str]:
    """Return the words of a text. Each Chinese or Japanese character is a word."""
    return _WORD.findall(text.replace("’", "'"))


def unaccented(text: str) -> str:
    """Return a text in lower case without accents: ``Cómo estás`` becomes ``como estas``."""
    return fold(normalise(text))


def lexicon_of(text: str) -> Lexicon:
    """Return the words of English, Spanish, and the languages that a text may be in."""
    languages = LANGUAGES if HAS_CJK.search(text) else LANGUAGES[:2]

    # Find the further languages that have the most stop words in the text.
    words = [word.casefold() for word in split_words(text[:_SAMPLE])]
    counts: dict[str, int] = {}
    for code in ("en", *FURTHER_LANGUAGES):
        stop_words = listed_stop_words(code)
        counts[code] = sum(word in stop_words for word in words)
    most = max(counts.values())
    detected = detect_language(text)
    likely = [code for code in FURTHER_LANGUAGES if code == detected or counts[code] == most > 0]

    # The language of a text such as "letzten Freitag" cannot be detected, because it is too short.
    may_be_date = len(words) <= _MAX_WORDS_OF_DATE and (not most or len(words) > 1)
    if may_be_date:
        phrase = text.strip(" ?!.").lower()
        likely += [
            code for code in FURTHER_LANGUAGES if _date_patterns(code).any_date.fullmatch(phrase)
        ]
    return load_lexicon((*languages, *likely))


@cache
def load_lexicon(languages: tuple[str, ...] = LANGUAGES) -> Lexicon:
    """Return the words of some languages, and the small talk of all languages."""
    numbers: dict[str, int] = {}
    units: dict[str, str] = {}
    stop_words: set[str] = set()
    for language in languages:
        data = _language_data(language)
        for key in ("months", "weekdays", "numbers", "ordinals"):
            numbers |= _with_unaccented(data[key])
        units |= _with_unaccented(data["units"])
        words = set(_entries(data, "stop_words"))
        if language in FURTHER_LANGUAGES:
            words |= listed_stop_words(language)
        stop_words.update(_with_unaccented(dict.fromkeys(words)))
    patterns = tuple(map(_date_patterns, languages))
    return Lexicon(_phrases(), frozenset(stop_words), numbers, units, patterns)


def _with_unaccented(words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by word in lower case, with and without accents."""
    forms: dict[str, Any] = {}
    for word, value in words.items():
        forms[word.casefold()] = value
        forms[unaccented(word)] = value
    return forms


@cache
def _phrases() -> Mapping[tuple[str, ...], str]:
    """Return the kind of each phrase of small talk in all languages, by its words."""
    phrases: dict[tuple[str, ...], str] = {}
    for language in (*LANGUAGES, *FURTHER_LANGUAGES):
        for kind in _PHRASE_KINDS:
            for phrase in _entries(_language_data(language), kind):
                phrases.setdefault(tuple(split_words(unaccented(phrase))), kind)
    return phrases


@cache
def _language_data(language: str) -> Mapping[str, Any]:
    """Return the content of the YAML file of a language, with its months and weekdays."""
    file = files("llama_index_contextual") / "data" / "languages" / f"{language}.yaml"
    names = {kind: numbered_words(kind, language) for kind in ("months", "weekdays")}
    return {**names, **_YAML(file.read_text("utf-8")).get_single_data()}


def _entries(data: Mapping[str, Any], key: str) -> list[str]:
    """Return the items of a list that is written with commas."""
    entries = str(data.get(key) or "").split(",")
    return [entry.strip() for entry in entries if entry.strip()]


@cache
def _date_patterns(language: str) -> DatePatterns:
    """Return the date patterns of a language with their slots filled.

    Slots are numbered, because a slot can be in several alternatives of a pattern.
    """
    data = _language_data(language)
    slots = {
        "day": r"[0-3]?\d",
        "mm": r"1[0-2]|0?[1-9]",
        "year": r"(?:19|20|21)\d\d(?![-/.][qwh]?\d)",
    }
    in_digits = {"number": [r"\d{1,3}"], "ordinal": ["[1-4]"]}
    for slot in ("month", "weekday", "unit", "number", "ordinal"):
        words = _with_unaccented(data[f"{slot}s"])
        longest_first = sorted(words, key=lambda word: (-len(word), word))
        slots[slot] = "|".join([*map(re.escape, longest_first), *in_digits.get(slot, [])])
    patterns = []
    for entry in data["dates"]:
        body = _fill_slots(entry["pattern"], slots)
        value = int(entry.get("value", 0))
        patterns.append(DatePattern(body, MEANINGS[entry["means"]], value))
    any_date = _any_of([_SLOT_NAME.sub("(?:", pattern.body) for pattern in patterns])
    return DatePatterns(re.compile(any_date), patterns)


def _fill_slots(pattern: str, slots: Mapping[str, str]) -> str:
    numbers = count()
    return _SLOT.sub(lambda match: f"(?P<{match[1]}_{next(numbers)}>{slots[match[1]]})", pattern)


def _any_of(bodies: Iterable[str]) -> str:
    """Return a pattern that matches any of the bodies at word boundaries.

    Bodies in Chinese or Japanese match anywhere, because there is no space between words.
    """
    unspaced = []
    spaced = []
    for body in bodies:
        if HAS_CJK.search(body):
            unspaced.append(body)
        else:
            spaced.append(body)
    if spaced:
        unspaced.append(rf"(?<!\w)(?:{'|'.join(spaced)})(?!\w)")
    return "|".join(unspaced)


# Dates in texts


def closeness(day: date, named_dates: Sequence[NamedDate]) -> float:
    """Return 1 for a named day, less during the week after it, and 0 for all other days."""
    distances = [named_date.distance(day) for named_date in named_dates]
    days_after = [days for days in distances if 0 <= days <= DAYS_AFTER]
    return 1 - min(days_after) / (DAYS_AFTER + 1) if days_after else 0.0


def find_dates(text: str, today: date, lexicon: Lexicon) -> tuple[NamedDate, ...]:
    """Return the dates in a text, in order. ``5 to 8 March`` is one period.

    ``03/04/2026`` can be 3 April or March 4. In English, both are returned unless one is in the
    future. In other languages, it is 3 April.
    """
    find = partial(_find_single_dates, today=today, lexicon=lexicon)
    return tuple(with_ranges(plain_digits(text), find)[:_MAX_DATES])


def _find_single_dates(text: str, today: date, lexicon: Lexicon) -> list[NamedDate]:
    """Return the dates in a text, in order. If readings overlap, the longest is used.

    This includes impossible dates, so that "30 February" is not read as "February".
    """
    readings = _readings_with_year(text, today) | _readings_in_words(text, today, lexicon)
    longest_first = sorted(readings, key=lambda span: (span[0] - span[1], span))
    is_taken = bytearray(len(text))  # 1 for each character of a chosen reading
    named_dates: list[NamedDate] = []
    for start, end in longest_first:
        if not any(is_taken[start:end]):
            is_taken[start:end] = b"\1" * (end - start)
            named_dates += [NamedDate(*period, start, end) for period in readings[start, end]]
    return sorted(named_dates, key=lambda named: named.start)


def _readings_with_year(text: str, today: date) -> Readings:
    """Return the readings of dates with a year. If there are several, future ones are left out."""
    readings: Readings = {}
    for named in (*dates_in(text, is_question=True), *periods_in(text)):
        readings.setdefault((named.start, named.end), []).append(named.period)
    for span, periods in readings.items():
        past = [period for period in periods if period.first <= today]
        readings[span] = past or periods
    return readings


def _readings_in_words(text: str, today: date, lexicon: Lexicon) -> Readings:
    """Return the readings of the date patterns. For the same characters, the first one is used."""
    readings: Readings = {}
    lower = text.lower()
    likely = [
        patterns_of_language.patterns
        for patterns_of_language in lexicon.date_patterns
        if patterns_of_language.any_date.search(lower)
    ]
    for pattern in chain.from_iterable(likely):
        for match in pattern.expression.finditer(text):
            slots = _slots_of(match, lexicon)
            try:
                periods = [pattern.meaning(slots, pattern.value, today)]
            except (ValueError, OverflowError):  # 31 April, or a year out of range
                periods = []
            readings.setdefault(match.span(), periods)
    return readings


def _slots_of(match: re.Match[str], lexicon: Lexicon) -> Slots:
    """Return the values of the slots that a pattern matched."""
    slots: Slots = {}
    for name, text in match.groupdict().items():
        if text is None:
            continue
        slot = name.rpartition("_")[0]
        word = text.casefold()
        if slot == "mm":
            slots["month"] = int(word)
        elif slot == "unit":
            slots[slot] = lexicon.units.get(word, "day")
        else:
            slots[slot] = int(word) if word.isdigit() else lexicon.numbers[word]
    return slots


# Meanings of date patterns


def _period_ago(slots: Slots, value: int, today: date) -> Period:
    """Return the day, week (from Monday), weekend, month, quarter or year some units ago."""
    unit = slots.get("unit", "day")
    units_back = slots.get("number", value)
    months_of_unit = _MONTHS_OF_UNIT.get(unit)
    if months_of_unit:
        this_month = today.year * 12 + today.month - 1
        first_month = (this_month // months_of_unit - units_back) * months_of_unit
        return months_from(first_month // 12, first_month % 12 + 1, months_of_unit)
    if unit == "day":
        day = today - timedelta(days=units_back)
        return Period(day, day)
    sunday = today + timedelta(days=6 - today.weekday() - 7 * units_back)
    days_before_sunday = 6 if unit == "week" else 1
    return Period(sunday - timedelta(days=days_before_sunday), sunday)


def _until_today(slots: Slots, value: int, today: date) -> Period:
    """Return the period from the start of the day, week, month or year some units ago to today."""
    return Period(_period_ago(slots, value, today).first, today)


def _last_weekday(slots: Slots, _: int, today: date) -> Period:
    """Return the most recent day before today with this weekday."""
    days_back = (today.weekday() - slots["weekday"] - 1) % 7 + 1
    day = today - timedelta(days=days_back)
    return Period(day, day)


def _latest(slots: Slots, today: date, in_year: Callable[[int], Sequence[Period]]) -> Period:
    """Return the first period in the given year, else the most recent one that has begun.

    Raises:
        ValueError: No year has such a period.
    """
    if "year" in slots:
        candidates = list(in_year(slots["year"]))
    else:
        years = range(today.year, today.year - _YEARS_WITH_29_FEBRUARY, -1)
        periods = chain.from_iterable(map(in_year, years))
        candidates = [period for period in periods if period.first <= today]
    if not candidates:
        raise ValueError
    return candidates[0]


def _day_of_month(slots: Slots, _: int, today: date) -> Period:
    """Return a day of the given month, else of the most recent month that has this day."""
    day = slots["day"] if "day" in slots else slots["number"]
    months = [slots["month"]] if "month" in slots else range(12, 0, -1)

    def in_year(year: int) -> list[Period]:
        days = [existing_date(year, number, day) for number in months]
        return [Period(existing, existing) for existing in days if existing]

    return _latest(slots, today, in_year)


def _part_of_year(slots: Slots, value: int, today: date) -> Period:
    """Return a month, a quarter, or a part of ``value`` months, such as ``first half of 2025``."""
    if "month" in slots:
        size = 1
        number = slots["month"]
    else:
        size = value or _MONTHS_OF_UNIT["quarter"]
        number = slots["ordinal"]
    first_month = (number - 1) * size + 1
    return _latest(slots, today, lambda year: [months_from(year, first_month, size)])


def _whole_year(slots: Slots, _: int, __: date) -> Period:
    return months_from(slots["year"], 1, 12)


MEANINGS: Mapping[str, Meaning] = {
    "ago": _period_ago,
    "past": _until_today,
    "weekday": _last_weekday,
    "day": _day_of_month,
    "month": _part_of_year,
    "year": _whole_year,
}
