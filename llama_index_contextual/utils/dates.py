"""Dates that notes carry, in a path, a heading or a metadata value, and the names of months and weekdays.

Of ``21.01.2024``, ``21/01/2024`` and ``21-01-2024`` the day comes first. ``01/02/2024`` and ``01-02-2024`` may be of an
American: in an English text, and where nothing tells the language, they are no date. An impossible date is none either.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta, timezone
from functools import cache
from typing import Final, NamedTuple

from llama_index_contextual.utils.language import WORDS, tell_language
from llama_index_contextual.utils.text import plain_digits


class Period(NamedTuple):
    """A day, or all days from the first to the last."""

    first: date
    last: date

    def isoformat(self) -> str:
        """Return ``2026-04-05``, or ``2026-04-01/2026-04-30`` for several days."""
        if self.first == self.last:
            return self.first.isoformat()
        return f"{self.first.isoformat()}/{self.last.isoformat()}"

    def overlaps(self, other: Period) -> bool:
        """Tell whether the two periods have a day in common."""
        return self.first <= other.last and other.first <= self.last


class NamedDate(NamedTuple):
    """A period that a text names, and where the words for it start and end."""

    first: date
    last: date
    start: int
    end: int

    @property
    def period(self) -> Period:
        """Return the first and the last day."""
        return Period(self.first, self.last)

    def distance(self, day: date) -> int:
        """Return the days from the period to a day: 0 inside, negative before, positive after."""
        if day < self.first:
            return (day - self.first).days
        return max(0, (day - self.last).days)


_BEGINS: Final = re.compile(r"\W{0,9}\d{8}(?!\S{0,20}\d)")
_WORD: Final = re.compile(r"\w+")
_ANY_YEAR: Final = re.compile(r"\d{4}")
_YEAR: Final = r"(?P<year>(?:19|20|21)\d\d)"
# With dots of two digits each: "2024.1.5" is a version, and so is "v1.2024.01.05".
_ISO: Final = re.compile(
    rf"(?<!\d)(?<!\d\.){_YEAR}(?:[-_/]|\.(?=\d\d\.\d\d)|:(?=\d\d:\d\d\b))(?P<month>\d\d?)(?:[-_/.]|(?<=:\d\d):)"
    r"(?P<day>\d\d?)(?!\d|\.\d)"
)
_AMBIGUOUS: Final = re.compile(
    rf"(?<![\w./-])(?P<day>\d\d?)(?P<mark>[/-])(?P<month>\d\d?)(?P=mark){_YEAR}(?!\d|[./-]\d)"
)
_DOTTED: Final = re.compile(rf"(?<![\w.])(?P<day>\d\d?)\. ?(?P<month>\d\d?)\. ?{_YEAR}(?!\d|\.\d)")
# In questions alone, after a word that leads to a day: elsewhere it is a version or an amount.
_LED: Final = re.sub(
    r"\w+",
    r"(?<=\\b\g<0> )",
    "on|am|vom|zum|bis|seit|den|dem|op|van|tot|le|du|au|il|el|del|dal|al|em|dia|od|do|dnia|på|от|до|на",
)
_SHORT_YEAR: Final = re.compile(
    rf"(?:{_LED})(?!\d-|\d\d-\d-)(?P<day>\d\d?)(?P<mark>[./-])(?P<month>\d\d?)(?P=mark)(?P<year>\d\d)(?!\w|[.,:/-]\d)",
    re.IGNORECASE,
)
_IN_NUMBERS: Final = (_ISO, _AMBIGUOUS, _DOTTED)
_ORDINAL: Final = r"(?:st|nd|rd|th|er|º|°|\.)?"
_FORMS: Final = (
    *_IN_NUMBERS,
    re.compile(rf"(?<![\d.]){_YEAR}\. (?P<month>\d\d?)\. (?P<day>\d\d?)\."),
    # Some short months are words where a word follows: "In 2024, may 5 people join".
    re.compile(
        rf"\b{_YEAR}(?:[,.]? (?!(?i:set|out|gen|mar|ago|may|mars|mart|mag) \d\d? \w)|[-_/])(?:\d\d[- _])?"
        r"(?P<month>[^\W\d_]+)[ _/-](?P<day>\d\d?)(?!\d)"
    ),
    re.compile(rf"{_YEAR} ?[年년] ?(?P<month>\d\d?) ?[月월] ?(?P<day>\d\d?) ?[日일号]"),
    re.compile(rf"\b(?P<month>[^\W\d_]+)\.? {{1,2}}(?P<day>\d\d?){_ORDINAL}(?:, ?| ){_YEAR}\b"),
    re.compile(
        rf"\b(?P<day>\d\d?){_ORDINAL}(?: de| of)?[ -]?(?P<month>[^\W\d_]+)\.?,?(?: del?)?[ -]?{_YEAR}\b"
    ),
    # As names of files have it, alone or before a time: 20240229, 202402291015, 20240229_101500.
    re.compile(
        rf"(?<!\d){_YEAR}(?P<month>0[1-9]|1[0-2])(?P<day>[0-3]\d)(?=(?:[0-2]\d[0-5]\d(?:[0-5]\d(?:\d{{3}})?)?)?(?!\d))"
    ),
)

DATE_LANGUAGES: Final = tuple(WORDS["months"])
# In 1973 as seconds and as milliseconds: smaller numbers are years or counts.
_FIRST_SECOND: Final = 100_000_000
_FIRST_MILLISECOND: Final = 1000 * _FIRST_SECOND
_EPOCH: Final = re.compile(r"1\d{9}(?:\d{3})?")


def _names(kind: str, language: str) -> list[list[str]]:
    return [words.split() for words in WORDS[kind].get(language, "").split(",") if words]


@cache
def numbered_words(kind: str, language: str) -> dict[str, int]:
    """The words for ``"months"`` (from 1) or ``"weekdays"`` (from 0, Monday) in a language such as ``"en"``."""
    names = enumerate(_names(kind, language), kind.endswith("months"))
    return {word: number for number, words in names for word in words}


_MONTH_NAMES: Final = {
    word: number
    for code in DATE_LANGUAGES
    for word, number in numbered_words("months", code).items()
}
# Short names count in a whole date alone: "set" and "ago" are words of other languages.
_MONTH_NUMBERS: Final = {**numbered_words("short months", "any"), **_MONTH_NAMES}


def month_name(month: int, language: str = "en") -> str:
    """The full name of a month, 1 to 12, in small letters."""
    return _names("months", language)[month - 1][0]


def date_in_words(iso: object) -> str:
    """Return ``2026-01-28`` as ``Wednesday, 28 January 2026``, and "" for anything else.

    ``2026-01-01/2026-01-31`` is ``1 January 2026 to 31 January 2026``.
    """
    text = str(iso or "")
    first, is_period, last = text.partition("/")
    if is_period:
        ends = [_in_words(parse_day(first)), _in_words(parse_day(last))]
        return " to ".join(ends) if all(ends) else ""
    try:
        day = date.fromisoformat(text[:10])
    except ValueError:  # 2026-02-31 is no date
        return ""
    # The language of strftime depends on the machine.
    weekday = _names("weekdays", "en")[day.weekday()][0]
    return f"{weekday.capitalize()}, {_in_words(day)}"


def _in_words(day: date | None) -> str:
    return f"{day.day} {month_name(day.month).capitalize()} {day.year}" if day else ""


def take_dates(word: str) -> tuple[list[date], str]:
    """The dates in a word, such as ``report-2026-04-09.pdf`` or ``21.01.2024``, and the rest of the word."""
    found = dates_in(word, forms=_IN_NUMBERS)
    for one in reversed(found):
        word = f"{word[: one.start]}-{word[one.end :]}"
    return [one.first for one in found], word.strip("-")


def date_from_path(path: str) -> date | None:
    """Return the date in a path: ``memory/2026-04-09.md``, ``2026/04/09-standup.md``.

    It is the first possible date of the deepest folder or file that has one.
    """
    path = path.replace("\\", "/")
    dates = [
        (-path.count("/", 0, named.end), named.start, named.first) for named in _ranges_in(path)
    ]
    return min(dates)[2] if dates else None


def period_from_path(path: str) -> Period | None:
    """Return the period of a note by its path: a day, week, month, quarter, half-year or year.

    ``monthly/2025-10.md``, ``2025/10.md``, ``2025-W41.md``, ``2025-Q3.md``, ``2025 October.md``,
    ``Week 41 2025.md``. A day anywhere in the path counts before the name of the note.
    """
    day = date_from_path(path)
    if day:
        return Period(day, day)
    parts = path.replace("\\", "/").split("/")
    name = parts[-1].rpartition(".")[0] or parts[-1]
    name_in_folder = "-".join([*parts[-2:-1], name])
    if _YEAR_OF_NOTE.fullmatch(name):
        return months_from(int(name), 1, 12)
    for text in (name, name_in_folder):
        for form in _PERIODS:
            match = form.search(text)
            period = _period(match) if match else None
            if period:
                return period
    return None


def _period(match: re.Match[str]) -> Period | None:
    """Return the period of a match of :data:`_PERIODS`; None for a week that no year has."""
    year = int(match["year"])
    if match["week"]:
        try:
            monday = date.fromisocalendar(year, int(match["week"]), 1)
        except ValueError:
            return None
        return Period(monday, monday + timedelta(days=6))
    for unit, size in (("quarter", 3), ("half", 6)):
        if match[unit]:
            return months_from(year, (int(match[unit]) - 1) * size + 1, size)
    month = match["month"]
    number = int(month) if month.isdigit() else _MONTH_NAMES[month.lower()]
    return months_from(year, number, 1)


def months_from(year: int, month: int, size: int) -> Period:
    """Return a period of so many whole months, the first of them given as 1 to 12."""
    months = year * 12 + month - 1
    starts = [date(number // 12, number % 12 + 1, 1) for number in (months, months + size)]
    return Period(starts[0], starts[1] - timedelta(days=1))


def _in_heading(title: str) -> list[NamedDate]:
    """The dates in a heading: a number of eight digits is one where it begins it, and else an order or a telephone."""
    return [
        one
        for one in _ranges_in(title)
        if _BEGINS.match(title) or not title[one.start : one.end].isdecimal()
    ]


def date_from_heading(title: str) -> date | None:
    """The first date in a heading's text: ``2026-01-31``, ``January 31, 2026: plan for the 2026-06-30 release``.

    Months have names in the languages of :data:`DATE_LANGUAGES`. A time of day is left out.
    """
    return next((one.first for one in _in_heading(title)), None)


def names_in_passing(title: str) -> bool:
    """Whether words of a sentence lead to the first date of a title: ``Plan for 2026-06-30``, not ``Standup, …``."""
    before = title[: next((one.start for one in _in_heading(title)), 0)].rstrip("[<")
    words = before.split()
    return before.endswith(" ") and len(words) > 1 and words[-1].isalpha() and words[-1].islower()


# Between the first and the last day of a range; a hyphen inside of "2026-03-05" is none.
_TO: Final = r"""(?:[ ]?(?:[–—~〜～]|\.\.|から|至|到|(?<!-\d)(?<!-\d\d)-(?![\d.]{0,10}-)|(?<=\.)/)[ ]?|[ ]all['’]
    |[ _](?:-|to|until|till|through|bis|hasta|al?|au|ao|até|tot|tot[ ]en[ ]met|t/m|по|до)[ _])"""  # noqa: RUF001
_AND: Final = r"(?:[ ](?:and|&|und|y|et|e|en|и)[ ]|[和と])"
_MAY_BE_RANGE: Final = re.compile(f"{_TO}|{_AND}", re.VERBOSE | re.IGNORECASE)
_LONG: Final = re.compile(
    r"[^\W\d_]{3,}"
)  # words that are of a range where they are names: "Rome to Paris" is none
_NAMES: Final = {
    *_MONTH_NUMBERS,
    *(day for code in DATE_LANGUAGES for day in numbered_words("weekdays", code)),
}


def names_only_a_day(title: str) -> bool:
    """Tell whether a heading is a day and nothing else: ``Sunday``, ``2026-01-31``, ``1 May 2026``."""
    words = _WORD.findall(title.casefold())
    return all(word in _NAMES or word[0].isdigit() for word in words)


_NUMBER: Final = r"\d\d?(?:st|nd|rd|th|er|º|°|\.|日|号)?"
_ITEMS: Final = {  # what is a day, or a part of one; and what may stand between two where no "between" comes before
    r"(?:19|20|21)\d\d-\d\d?-\d\d?": _TO,
    rf"\b[^\W\d_]{{3,}}\.?[ ]{_NUMBER}": _TO,
    rf"{_NUMBER}[ ]?(?:de[ ]|of[ ])?[^\W\d_]{{3,}}\b\.?": _TO,
    r"\b[^\W\d_](?:[^\W\d_]{2,}|\d)\b\.?": _TO,  # January, Q1
    r"\d\d?[./月]\d\d?[./日号]?": _TO,
    _NUMBER: f"{_TO}|{_AND}",
}
_MONTH: Final = "|".join(map(re.escape, _MONTH_NUMBERS))
# The name of a note of a period. A month in digits needs a separator, and no day may follow.
_PERIOD: Final = (
    r"(?:(?:w|kw|week)[ _-]?(?P<week>\d\d?)|q(?P<quarter>[1-4])|h(?P<half>[12])"
    rf"|(?P<month>(?<=[ _-])(?:0[1-9]|1[0-2])|{'|'.join(map(re.escape, _MONTH_NAMES))}))"
)
_PERIODS: Final = (
    re.compile(rf"(?<!\d)(?<!\d[.-]){_YEAR}[ _-]*{_PERIOD}(?![^\W_]|[-_.]\d)", re.IGNORECASE),
    re.compile(rf"(?<![^\W_]){_PERIOD}[ _,-]+{_YEAR}(?![^\W_]|[-_.]\d)", re.IGNORECASE),
)
_YEAR_OF_NOTE: Final = re.compile(r"20\d\d")
# What follows the number of a last day: a month, a year or the end; "March 5 and 3 others" is no range.
_DAY_ENDS: Final = (
    rf"(?=[ ]?(?:(?:de|of)[ ])?(?:{_MONTH})\b|(?<=\.)\d|(?<=[日号])[^間间]|[./月]|,?[ ](?:19|20|21)\d\d|[ ]\w+[ ]ago\b"
    r"|[ ]*(?:[^\w: ]|$))"
)
_RANGES: Final = [
    re.compile(
        rf"""(?<![\d.-])(?<!\d/)
        (?P<between>\b(?:between|entre|zwischen|tra|fra|tussen|между)[ ](?:(?:the|el|le|dem)[ ])?)?
        (?P<first>{item}(?P<year>,?[ ]?(?:19|20|21)\d\d)?)(?:{to}|(?(between){_AND}|(?!)))(?:[^\W\d_]+\.?,?[ ])?
        (?P<last>{item}(?(year),?[ ]?(?:19|20|21)\d\d))(?!(?<=\d)\d|[-/]\d){after}""",
        re.IGNORECASE | re.VERBOSE,
    )
    for item, to, after in (
        (item, to, _DAY_ENDS if item is _NUMBER else "") for item, to in _ITEMS.items()
    )
]


def with_ranges(text: str, find: Callable[[str], list[NamedDate]]) -> list[NamedDate]:
    """The dates that a function finds in a text, in order, and those of a range as one.

    ``5 to 8 March`` is read as ``5 March`` and as ``8 March``. Where not both are dates it is no range.
    """
    found = []
    for at in (
        (0, 2) if _MAY_BE_RANGE.search(text) else ()
    ):  # without the last days, and without the first
        part, offsets = text, [*range(len(text))]
        for pattern in _RANGES:
            matches = [
                one
                for one in pattern.finditer(part)
                if _NAMES.issuperset(_LONG.findall(one["first"].lower()))
            ]
            for match in reversed(matches):
                edges = match.end("first"), match.end(), match.start("first"), match.start("last")
                start, end = edges[at : at + 2]
                part = part[:start] + part[end:]
                del offsets[start:end]
        found.append(
            [
                one._replace(start=offsets[one.start], end=offsets[one.end - 1] + 1)
                for one in find(part)
            ]
        )
    if not any(found) or len(found[0]) != len(found[1]):
        return find(text)
    for one, other in zip(*found, strict=True):
        start, end = min(one.start, other.start), max(one.end, other.end)
        if (
            one.first > other.last and len(_ANY_YEAR.findall(text, start, end)) > 1
        ):  # "2026-03-05 to 2026-02-01"
            return find(text)
    return [_range(*ends) for ends in zip(*found, strict=True)]


def _range(one: NamedDate, other: NamedDate) -> NamedDate:
    days = [*one[:2], *other[:2]]
    if one.first - other.last > timedelta(
        days=31
    ):  # "28 December to 3 January 2026", and not "5 to 3 days ago"
        days[:2] = (existing_date(day.year - 1, day.month, day.day) or day for day in days[:2])
    return NamedDate(min(days), max(days), min(one.start, other.start), max(one.end, other.end))


def dates_in(
    text: str, *, either: bool = False, forms: Sequence[re.Pattern[str]] = _FORMS
) -> list[NamedDate]:
    """The dates in a text that name a year, in order.

    Args:
        text: A path, a heading, a value or a question.
        either: Whether it is a question, in which ``01/02/2024`` is two in English, and ``am 25.12.24`` one.
        forms: Of dates that name a year in four digits.
    """
    found = []
    text = plain_digits(text).replace("\u2010", "-").replace("\u2011", "-")
    for form in (_SHORT_YEAR, *forms) if either else forms if _ANY_YEAR.search(text) else ():
        for match in form.finditer(text):
            century = 2000 if form is _SHORT_YEAR else 0
            year, month, number = (
                century + int(match["year"]),
                match["month"].lower(),
                int(match["day"]),
            )
            read = [
                existing_date(
                    year, int(month) if month.isdigit() else _MONTH_NUMBERS.get(month, 0), number
                )
            ]
            read += (
                [existing_date(year, number, int(month))]
                if match.groupdict().get("mark") in {"/", "-"}
                else []
            )
            days = [day for day in dict.fromkeys(read) if day is not None]
            if len(days) > 1 and not (either and tell_language(text) == "en"):
                days = [] if tell_language(text) == "en" else days[:1]
            found += [NamedDate(day, day, *match.span()) for day in days]
    return sorted(found, key=lambda one: one.start)


def _ranges_in(text: str) -> list[NamedDate]:
    return with_ranges(text, dates_in) if _ANY_YEAR.search(text) else []


def existing_date(year: int, month: int, day: int) -> date | None:
    """The day of a year, a month and a day; None where no calendar has it."""
    with contextlib.suppress(ValueError):
        return date(year, month, day)
    return None


def parse_date(value: object) -> date | datetime | None:
    """Return the date in a metadata value.

    The value may be a date, a datetime, ISO 8601 text, a day in words, or seconds or milliseconds
    since the epoch. Of a period it is the first day.

    Returns:
        A datetime where the value has a time of day (naive if it names no zone), else a date; None
        if it is no date.
    """
    if isinstance(value, date):  # a datetime is a date, too
        return value
    if isinstance(value, str):
        text = value.strip()
        return _from_epoch(int(text)) if _EPOCH.fullmatch(text) else _from_text(text)
    return _from_epoch(value) if isinstance(value, int | float) else None


def _from_epoch(number: float) -> datetime | None:
    if number >= _FIRST_MILLISECOND:
        number /= 1000
    try:
        return datetime.fromtimestamp(number, timezone.utc) if number >= _FIRST_SECOND else None
    except (ValueError, OverflowError, OSError):  # beyond the calendar
        return None


def _from_text(text: str) -> date | datetime | None:
    iso = re.sub(r"[zZ]$", "+00:00", text)  # Python 3.10 knows no Z
    # What Python reads into a row of digits depends on its version.
    readers = () if text.isdecimal() else (date.fromisoformat, datetime.fromisoformat)
    for read in readers:
        with contextlib.suppress(ValueError):
            return read(iso)
    return next((named.first for named in _ranges_in(text)), None)


def parse_day(value: object) -> date | None:
    """Return the day of a metadata value, as :func:`parse_date` reads it."""
    moment = parse_date(value)
    return moment.date() if isinstance(moment, datetime) else moment


def parse_period(value: object) -> Period | None:
    """Return the period of a metadata value: a date, or an ISO 8601 interval of two dates."""
    first_text, is_interval, last_text = str(value).partition("/")
    first = parse_day(first_text if is_interval else value)
    last = parse_day(last_text) if is_interval else first
    return Period(first, last) if first and last and first <= last else None


def epoch_seconds(day: date) -> int:
    """The seconds from the epoch to midnight UTC of a day: the value of ``metadata["date_ts"]``."""
    return int(datetime.combine(day, time(), tzinfo=timezone.utc).timestamp())
