"""Words of languages, and the dates that a question names (``yesterday``, ``el 5 de abril``), as days in the past.

Each language is one YAML file of ``data/languages/``: phrases that need no memory, stop words, and how dates are named.
The names of months and weekdays stand in ``common/dates.py``. Questions look back, so what is ambiguous is the most
recent day that has come: ``April 5`` in March is last year's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache, partial
from importlib.resources import files
from itertools import count
from typing import Any, Final

import yaml

from llama_index_contextual.utils.dates import (
    NamedDate,
    dates_in,
    existing_date,
    numbered_words,
    with_ranges,
)
from llama_index_contextual.utils.language import fold, listed_stop_words, normalise, tell_language
from llama_index_contextual.utils.text import plain_digits

LANGUAGES: Final = ("en", "es", "zh", "ja")
# Those that count besides where a text is in one of them: "hier" is yesterday in French, and here in German.
FURTHER_LANGUAGES: Final = ("de", "fr", "it", "nl", "pt", "ru")
DAYS_AFTER: Final = 7  # notes of the days after it speak of the day, too
_ALL: Final = (*LANGUAGES, *FURTHER_LANGUAGES)
_KINDS: Final = (
    "greeting",
    "thanks",
    "acknowledgement",
    "filler",
)  # of phrases that need no memory
_MOST_DATES: Final = 4
_SHORT: Final = 200  # characters in which stop words show the languages that a text may be in
_FEW: Final = 4  # words of a text that may be a date alone
_YAML: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C ten times as fast
_SLOT: Final = re.compile(r"\{(month|mm|weekday|unit|number|ordinal|day|year)\}")
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
HAS_CJK: Final = re.compile(f"[{_CJK}]")
_WORD: Final = re.compile(f"[{_CJK}]|(?:(?![{_CJK}])[^\\W_])+(?:['-](?:(?![{_CJK}])[^\\W_])+)*")
Range = tuple[date, date]
Slots = dict[str, Any]  # of a date pattern: numbers, and a unit


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Several languages taken together: a message need not tell in which one it is."""

    phrases: Mapping[tuple[str, ...], str]
    """Words of a phrase to its kind: greeting, thanks, acknowledgement, filler."""
    stop_words: frozenset[str]
    numbers: Mapping[str, int]
    """Lower-case month, weekday and number words to their number."""
    units: Mapping[str, str]
    date_patterns: tuple[tuple[re.Pattern[str], str, int], ...]
    """Ways to name a date: the expression, a key of :data:`MEANINGS`, and a number."""

    def is_stop_word(self, word: str) -> bool:
        """Whether a word says nothing of the subject; ``como`` counts as ``cómo``, ``té`` (tea) not as ``te``."""
        return word.casefold() in self.stop_words


def split_words(text: str) -> list[str]:
    """Words of a text; a character of a script that writes no spaces (Chinese, Japanese) is one by itself."""
    return _WORD.findall(text.replace("’", "'"))


def unaccented(text: str) -> str:
    """Text in lower case without accents, as people type in a chat: ``Cómo estás`` gives ``como estas``."""
    return fold(normalise(text))


def lexicon_of(text: str) -> Lexicon:
    """Words that count in a text: of English, of Spanish, and of the languages that it may be in."""
    words = [word.casefold() for word in split_words(text[:_SHORT])]
    counts = {
        code: sum(word in listed_stop_words(code) for word in words)
        for code in ("en", *FURTHER_LANGUAGES)
    }
    best = max(counts.values())
    likely = [
        code
        for code in FURTHER_LANGUAGES
        if code == tell_language(text) or counts[code] == best > 0
    ]
    if len(words) <= _FEW and (not best or len(words) > 1):  # "letzten Freitag"
        phrase, every = (
            text.strip(" ?!."),
            ((code, lexicon((code,)).date_patterns) for code in FURTHER_LANGUAGES),
        )
        likely += [
            code
            for code, patterns in every
            if any(pattern.fullmatch(phrase) for pattern, *_ in patterns)
        ]
    return lexicon((*(LANGUAGES if HAS_CJK.search(text) else LANGUAGES[:2]), *likely))


@cache
def lexicon(languages: tuple[str, ...] = LANGUAGES) -> Lexicon:
    """Words of some languages, and of all languages the phrases, as these are whole messages."""
    loaded = {language: _load(language) for language in languages}
    numbers, units, stop_words, patterns = (
        dict[str, int](),
        dict[str, str](),
        set[str](),
        list[Any](),
    )
    for language, data in loaded.items():
        for key in ("months", "weekdays", "numbers", "ordinals"):
            numbers.update(
                {form: number for word, number in data[key].items() for form in _forms(word)}
            )
        units.update({form: unit for word, unit in data["units"].items() for form in _forms(word)})
        stop_words.update(_entries(data, "stop_words"))
        stop_words.update(listed_stop_words(language) if language in FURTHER_LANGUAGES else ())
        patterns += _date_patterns(data)
    listed = (
        (kind, entry)
        for data in map(_load, _ALL)
        for kind in _KINDS
        for entry in _entries(data, kind)
    )
    phrases = {
        tuple(split_words(unaccented(entry))): kind for kind, entry in reversed([*listed])
    }  # the first counts
    every_form = frozenset(form for word in stop_words for form in _forms(word))
    return Lexicon(phrases, every_form, numbers, units, tuple(patterns))


def _forms(word: str) -> tuple[str, str]:
    return word.casefold(), unaccented(word)


@cache
def _load(language: str) -> Mapping[str, Any]:
    text = (
        files("llama_index_contextual")
        .joinpath("data", "languages", f"{language}.yaml")
        .read_text("utf-8")
    )
    names = {kind: numbered_words(kind, language) for kind in ("months", "weekdays")}
    return {**names, **_YAML(text).get_single_data()}


def _entries(data: Mapping[str, Any], key: str) -> list[str]:
    return [entry.strip() for entry in str(data.get(key) or "").split(",") if entry.strip()]


def _date_patterns(data: Mapping[str, Any]) -> Iterator[tuple[re.Pattern[str], str, int]]:
    """Patterns of a language with their slots filled; a slot may stand in several alternatives, so it is numbered."""
    slots = {"day": r"[0-3]?\d", "mm": r"1[0-2]|0?[1-9]", "year": r"(?:19|20|21)\d\d(?![-/.]\d)"}
    digits = {"number": [r"\d{1,3}"], "ordinal": ["[1-4]"]}
    for slot in ("month", "weekday", "unit", "number", "ordinal"):
        names = {form for name in data[f"{slot}s"] for form in (name, unaccented(name))}
        words = [re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name))]
        slots[slot] = "|".join([*words, *digits.get(slot, [])])
    for entry in data["dates"]:
        number = count()
        body = _SLOT.sub(
            lambda slot: f"(?P<{slot[1]}_{next(number)}>{slots[slot[1]]})",  # noqa: B023
            entry["pattern"],  # noqa: B023, RUF100
        )
        before, after = ("", "") if HAS_CJK.search(body) else (r"(?<!\w)", r"(?!\w)")
        pattern = re.compile(f"{before}(?:{body}){after}", re.IGNORECASE)
        yield pattern, entry["means"], int(entry.get("value", 0))


# Dates in texts


def closeness(day: date | None, named: Sequence[NamedDate]) -> float:
    """1 for a named day, less over the week after it, 0 elsewhere and for no day."""
    distances = [one.distance(day) for one in named] if day is not None else []
    return max(
        (1 - far / (DAYS_AFTER + 1) for far in distances if 0 <= far <= DAYS_AFTER), default=0.0
    )


def find_dates(text: str, today: date, words: Lexicon) -> tuple[NamedDate, ...]:
    """Dates that a text names, in order; of ``5 to 8 March`` all days.

    ``03/04/2026`` is 3 April or March 4: in English both that have come, in the other languages the former.
    """
    return (
        *with_ranges(plain_digits(text), partial(_named, today=today, words=words))[:_MOST_DATES],
    )


def _named(text: str, today: date, words: Lexicon) -> list[NamedDate]:
    """The dates in a text, in order; of readings that overlap the longest counts, even if impossible."""
    whole = defaultdict[tuple[int, int], list[Range]](list)
    for first, last, start, end in dates_in(text, either=True):
        whole[start, end].append((first, last))
    come = {span: [one for one in days if one[0] <= today] or days for span, days in whole.items()}
    readings = come | {
        match.span(): ranges for match, ranges in reversed([*_worded(text, today, words)])
    }
    taken = bytearray(
        len(text)
    )  # 1 where a longer reading was chosen, so that "30 February" leaves no "February"
    chosen = []
    for (start, end), ranges in sorted(
        readings.items(), key=lambda one: (one[0][0] - one[0][1], one[0])
    ):
        if not any(taken[start:end]):
            taken[start:end] = bytes([1]) * (end - start)
            chosen += [NamedDate(*days, start, end) for days in ranges]
    return sorted(chosen, key=lambda one: one.start)


def _worded(
    text: str, today: date, words: Lexicon
) -> Iterator[tuple[re.Match[str], Sequence[Range]]]:
    for pattern, means, value in words.date_patterns:
        for match in pattern.finditer(text):
            slots = Slots()
            for name, word in match.groupdict().items():
                slot, folded = name.rsplit("_", 1)[0], (word or "").casefold()
                if word is not None and slot == "unit":
                    slots[slot] = words.units.get(folded, "day")
                elif word is not None:
                    slots[slot] = int(folded) if folded.isdigit() else words.numbers[folded]
            try:
                yield match, [MEANINGS[means](slots, value, today)]
            except (ValueError, OverflowError):  # 31 April, or a year that no calendar has
                yield match, []


def _months(start: int, size: int = 1) -> Range:
    """So many months from one on, whose number is counted from January of year 0."""
    first, after = (date(month // 12, month % 12 + 1, 1) for month in (start, start + size))
    return first, after - timedelta(days=1)


def _unit(slots: Slots, value: int, today: date) -> Range:
    """The whole day, week (Monday first), weekend, month, quarter or year that lies so many before the current one."""
    unit, back = slots.get("unit", "day"), slots.get("number", value)
    if size := _MONTHS.get(unit):
        return _months(((today.year * 12 + today.month - 1) // size - back) * size, size)
    if unit == "day":
        return today - timedelta(days=back), today - timedelta(days=back)
    sunday = today + timedelta(days=6 - today.weekday() - 7 * back)
    return sunday - timedelta(days=6 if unit == "week" else 1), sunday


def _recent(slots: Slots, today: date, of_year: Callable[[int], Sequence[Range]]) -> Range:
    """The first of a year's ranges; where a text names no year, the most recent that has begun."""
    years = (
        [slots["year"]] if "year" in slots else range(today.year, today.year - 9, -1)
    )  # with a 29 February
    first, *_ = (
        one for year in years for one in of_year(year) if "year" in slots or one[0] <= today
    )
    return first


def _day(slots: Slots, _: int, today: date) -> Range:
    """A day of a month; without a month, of the most recent one that has it."""
    months = (
        [slots["month" if "month" in slots else "mm"]]
        if slots.keys() & {"month", "mm"}
        else range(12, 0, -1)
    )
    day = slots["day"] if "day" in slots else slots["number"]

    def of_year(year: int) -> list[Range]:
        found = (existing_date(year, month, day) for month in months)
        return [(one, one) for one in found if one is not None]

    return _recent(slots, today, of_year)


def _part_of_year(slots: Slots, value: int, today: date) -> Range:
    """A month, a quarter, or a part of so many months: ``April``, ``Q3 2025``, ``first half of 2025``."""
    month = slots.get("month") or slots.get("mm")
    size, number = (1, month) if month else (value or 3, slots["ordinal"])
    return _recent(slots, today, lambda year: [_months(year * 12 + (number - 1) * size, size)])


MEANINGS: Final[Mapping[str, Callable[[Slots, int, date], Range]]] = {
    "ago": _unit,
    "past": lambda slots, value, today: (_unit(slots, value, today)[0], today),
    "weekday": lambda slots, _, today: _unit(
        {}, (today.weekday() - slots["weekday"] - 1) % 7 + 1, today
    ),
    "day": _day,
    "month": _part_of_year,
    "year": lambda slots, _, __: _months(slots["year"] * 12, 12),
}
