"""Dates in paths, headings and metadata values, and the names of months.

``21.01.2024``, ``21/01/2024`` and ``21-01-2024`` start with the day. ``01/02/2024`` and
``01-02-2024`` could be American, so they are not read as dates in English texts and in texts of
unknown language. Impossible dates are ignored.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time, timedelta, timezone
from functools import cache, lru_cache
from pathlib import PurePosixPath
from typing import NamedTuple

from llama_index_contextual.utils.language import WORDS, detect_language
from llama_index_contextual.utils.text import plain_digits


class Period(NamedTuple):
    """A range of days, which can be a single day."""

    first: date
    last: date

    def isoformat(self) -> str:
        """Return ``2026-04-05``, or ``2026-04-01/2026-04-30`` for several days."""
        if self.first == self.last:
            return self.first.isoformat()
        return f"{self.first.isoformat()}/{self.last.isoformat()}"

    def overlaps(self, other: Period) -> bool:
        """Return whether the two periods have a day in common."""
        return self.first <= other.last and other.first <= self.last


class NamedDate(NamedTuple):
    """A period that a text mentions, with the offsets of its words."""

    first: date
    last: date
    start: int
    end: int

    @property
    def period(self) -> Period:
        """Return the period from the first to the last day."""
        return Period(self.first, self.last)

    def distance(self, day: date) -> int:
        """Return the number of days from the period to a day: 0 inside, negative before it."""
        if day < self.first:
            return (day - self.first).days
        return max(0, (day - self.last).days)


_BEGINS_WITH_DIGITS = re.compile(r"\W{0,9}\d{8}(?!\S{0,20}\d)")
_WORD = re.compile(r"\w+")
_ANY_YEAR = re.compile(r"\d{4}")
_YEAR = r"(?P<year>(?:19|20|21)\d\d)"
# Between dots, the month and day need two digits: "2024.1.5" is a version, and so is
# "v1.2024.01.05".
_ISO = re.compile(
    rf"(?<!\d)(?<!\d\.){_YEAR}(?:[-_/]|\.(?=\d\d\.\d\d)|:(?=\d\d:\d\d\b))"
    r"(?P<month>\d\d?)(?:[-_/.]|(?<=:\d\d):)"
    r"(?P<day>\d\d?)(?!\d|\.\d)"
)
_AMBIGUOUS = re.compile(
    rf"(?<![\w./-])(?P<day>\d\d?)(?P<mark>[/-])(?P<month>\d\d?)(?P=mark){_YEAR}(?!\d|[./-]\d)"
)
_DOTTED = re.compile(rf"(?<![\w.])(?P<day>\d\d?)\. ?(?P<month>\d\d?)\. ?{_YEAR}(?!\d|\.\d)")
# Only in questions and after a word that introduces a date. Elsewhere, such numbers are versions or
# amounts.
_LED = re.sub(
    r"\w+",
    r"(?<=\\b\g<0> )",
    "on|am|vom|zum|bis|seit|den|dem|op|van|tot|le|du|au|il|el|del|dal|al|em|dia"
    "|od|do|dnia|på|от|до|на",
)
_SHORT_YEAR = re.compile(
    rf"(?:{_LED})(?!\d-|\d\d-\d-)(?P<day>\d\d?)(?P<mark>[./-])(?P<month>\d\d?)(?P=mark)"
    r"(?P<year>\d\d)(?!\w|[.,:/-]\d)",
    re.IGNORECASE,
)
_IN_NUMBERS = (_ISO, _AMBIGUOUS, _DOTTED)
_ORDINAL = r"(?:st|nd|rd|th|er|º|°|\.)?"
_FORMS = (
    *_IN_NUMBERS,
    re.compile(rf"(?<![\d.]){_YEAR}\. (?P<month>\d\d?)\. (?P<day>\d\d?)\."),
    # Before another word, some short names of months are ordinary words: "In 2024, may 5 people
    # join".
    re.compile(
        rf"\b{_YEAR}(?:[,.]? (?!(?i:set|out|gen|mar|ago|may|mars|mart|mag) \d\d? \w)|[-_/])"
        r"(?:\d\d[- _])?"
        r"(?P<month>[^\W\d_]+)[ _/-](?P<day>\d\d?)(?!\d)"
    ),
    re.compile(rf"{_YEAR} ?[年년] ?(?P<month>\d\d?) ?[月월] ?(?P<day>\d\d?) ?[日일号]"),
    re.compile(rf"\b(?P<month>[^\W\d_]+)\.? {{1,2}}(?P<day>\d\d?){_ORDINAL}(?:, ?| ){_YEAR}\b"),
    re.compile(
        rf"\b(?P<day>\d\d?){_ORDINAL}(?: de| of)?[ -]?(?P<month>[^\W\d_]+)\.?,?"
        rf"(?: del?)?[ -]?{_YEAR}\b"
    ),
    # As in file names, with or without a time: 20240229, 202402291015, 20240229_101500.
    re.compile(
        rf"(?<!\d){_YEAR}(?P<month>0[1-9]|1[0-2])(?P<day>[0-3]\d)"
        r"(?=(?:[0-2]\d[0-5]\d(?:[0-5]\d(?:\d{3})?)?)?(?!\d))"
    ),
)

DATE_LANGUAGES = tuple(WORDS["months"])
# The first epoch times that are accepted, in 1973. Smaller numbers are years or counts.
_FIRST_SECOND = 100_000_000
_FIRST_MILLISECOND = 1000 * _FIRST_SECOND
_MAX_BACKWARD_DAYS = 31
_EPOCH = re.compile(r"1\d{9}(?:\d{3})?")
# ISO 8601. (Which of these forms fromisoformat accepts depends on the version of Python.)
_ISO_DAY = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_ISO_WEEK = re.compile(r"(\d{4})-?W(\d\d)(?:-?([1-7]))?", re.ASCII)
_ISO_MOMENT = re.compile(
    r"(?P<year>\d{4})(?P<dash>-?)(?P<month>\d\d)(?P=dash)(?P<day>\d\d)"
    r"[T ](?P<hour>\d\d)(?::?(?P<minute>\d\d)(?::?(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?)?"
    r" ?(?:(?P<utc>Z)|(?P<sign>[+-])(?P<zone_hour>\d\d):?(?P<zone_minute>\d\d)?)?",
    re.ASCII | re.IGNORECASE,
)
_MICROSECOND_DIGITS = 6


def _names(kind: str, language: str) -> list[list[str]]:
    return [words.split() for words in WORDS[kind].get(language, "").split(",") if words]


@cache
def numbered_words(kind: str, language: str) -> dict[str, int]:
    """Return the number of each word for a month (from 1) or a weekday (from 0, Monday).

    Args:
        kind: ``"months"``, ``"short months"`` or ``"weekdays"``.
        language: A language code, such as ``"en"``.
    """
    numbers: dict[str, int] = {}
    first_number = 1 if kind.endswith("months") else 0
    for number, words in enumerate(_names(kind, language), first_number):
        numbers.update(dict.fromkeys(words, number))
    return numbers


_MONTH_NAMES = {
    word: number
    for code in DATE_LANGUAGES
    for word, number in numbered_words("months", code).items()
}
# Short names are only used in complete dates, because "set" and "ago" are words in other languages.
_MONTH_NUMBERS = {**numbered_words("short months", "any"), **_MONTH_NAMES}


def month_name(month: int, language: str = "en") -> str:
    """Return the full name of a month (1 to 12) in lower case."""
    return _names("months", language)[month - 1][0]


def date_in_words(iso: object) -> str:
    """Return ``2026-01-28`` as ``Wednesday, 28 January 2026``, and "" for anything else.

    ``2026-01-01/2026-01-31`` becomes ``1 January 2026 to 31 January 2026``.
    """
    text = str(iso or "")
    first, is_period, last = text.partition("/")
    if is_period:
        ends = [_in_words(parse_day(first)), _in_words(parse_day(last))]
        return " to ".join(ends) if all(ends) else ""
    period = iso_period(text[:10])
    if period is None:  # such as 2026-02-31
        return ""
    day = period.first
    # Do not use strftime, because its language depends on the machine.
    weekday = _names("weekdays", "en")[day.weekday()][0]
    return f"{weekday.capitalize()}, {_in_words(day)}"


def _in_words(day: date | None) -> str:
    return f"{day.day} {month_name(day.month).capitalize()} {day.year}" if day else ""


def extract_dates(word: str) -> tuple[list[date], str]:
    """Return the dates in a word, such as ``report-2026-04-09.pdf``, and the word without them."""
    named_dates = dates_in(word, forms=_IN_NUMBERS)
    for named in reversed(named_dates):
        word = f"{word[: named.start]}-{word[named.end :]}"
    return [named.first for named in named_dates], word.strip("-")


def date_from_path(path: str) -> date | None:
    """Return the date in a path: ``memory/2026-04-09.md``, ``2026/04/09-standup.md``.

    It is the first valid date in the deepest folder or file name that has one.
    """
    path = path.replace("\\", "/")
    named_dates = _ranges_in(path)
    if not named_dates:
        return None

    def deepest_first(named: NamedDate) -> tuple[int, int, date]:
        depth = path.count("/", 0, named.end)
        return -depth, named.start, named.first

    return min(named_dates, key=deepest_first).first


@lru_cache(maxsize=1024)  # the chunks of a document follow each other
def period_from_path(path: str) -> Period | None:
    """Return the day, week, month, quarter, half-year or year of a note, according to its path.

    ``monthly/2025-10.md``, ``2025/10.md``, ``2025-W41.md``, ``2025-Q3.md``, ``2025 October.md``,
    ``Week 41 2025.md``. A complete date anywhere in the path takes precedence.
    """
    day = date_from_path(path)
    if day:
        return Period(day, day)
    note = PurePosixPath(path.replace("\\", "/"))
    if _YEAR_OF_NOTE.fullmatch(note.stem):
        return months_from(int(note.stem), 1, 12)
    for text in (note.stem, f"{note.parent.name}-{note.stem}"):
        for named in _find_periods(text, _PERIODS):
            return named.period
    return None


def periods_in(text: str) -> Iterator[NamedDate]:
    """Yield the weeks, quarters and half-years that a text mentions with their year."""
    return _find_periods(text, _WEEKS_TO_HALVES)


def _find_periods(text: str, forms: Sequence[re.Pattern[str]]) -> Iterator[NamedDate]:
    for form in forms:
        for match in form.finditer(text):
            period = _period_of(match)
            if period:
                yield NamedDate(*period, *match.span())


def _period_of(match: re.Match[str]) -> Period | None:
    """Return the period of a match of :data:`_PERIODS`, or None if the week does not exist."""
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
    """Return a period of ``size`` whole months from the given year and month (1 to 12)."""
    next_month = month + size - 1  # from 0
    next_start = date(year + next_month // 12, next_month % 12 + 1, 1)
    return Period(date(year, month, 1), next_start - timedelta(days=1))


@lru_cache(maxsize=4096)  # the chunks of a document share their headings
def _first_in_heading(title: str) -> NamedDate | None:
    """Return the first date in a heading.

    Eight digits are a date only at the start of the heading. Elsewhere they can be an order number
    or a telephone number.
    """
    begins_with_digits = bool(_BEGINS_WITH_DIGITS.match(title))
    for named in _ranges_in(title):
        if begins_with_digits or not title[named.start : named.end].isdecimal():
            return named
    return None


def date_from_heading(title: str) -> date | None:
    """Return the first date in a heading: ``January 31, 2026: plan for the 2026-06-30 release``.

    Names of months are recognised in the languages of :data:`DATE_LANGUAGES`. Times are ignored.
    """
    named = _first_in_heading(title)
    return named.first if named else None


def mentions_date_in_passing(title: str) -> bool:
    """Return whether a title only mentions its date in a sentence: ``Plan for 2026-06-30``."""
    named = _first_in_heading(title)
    before = title[: named.start if named else 0].rstrip("[<")
    words = before.split()
    return before.endswith(" ") and len(words) > 1 and words[-1].isalpha() and words[-1].islower()


# Separators between the first and the last day of a range, but not the hyphens in "2026-03-05".
_TO = r"""(?:
    [ ]?(?:[–—~〜～]|\.\.|から|至|到|(?<!-\d)(?<!-\d\d)-(?![\d.]{0,10}-)|(?<=\.)/)[ ]?
    |[ ]all['’]
    |[ _](?:-|to|until|till|through|bis|hasta|al?|au|ao|até|tot|tot[ ]en[ ]met|t/m|по|до)[ _]
)"""  # noqa: RUF001
_AND = r"(?:[ ](?:and|&|und|y|et|e|en|и)[ ]|[和と])"
_MAY_BE_RANGE = re.compile(f"{_TO}|{_AND}", re.VERBOSE | re.IGNORECASE)
_LONG_WORD = re.compile(r"[^\W\d_]{3,}")
_NAMES = {
    *_MONTH_NUMBERS,
    *(day for code in DATE_LANGUAGES for day in numbered_words("weekdays", code)),
}


def is_only_a_date(title: str) -> bool:
    """Return whether a heading is only a day: ``Sunday``, ``2026-01-31``, ``1 May 2026``."""
    words = _WORD.findall(title.casefold())
    return all(word in _NAMES or word[0].isdigit() for word in words)


_NUMBER = r"\d\d?(?:st|nd|rd|th|er|º|°|\.|日|号)?"
# Forms of days and parts of days, with the separators that make a range of two of them. After
# "between", "and" is always a separator.
_ITEMS = {
    r"(?:19|20|21)\d\d-\d\d?-\d\d?": _TO,
    rf"\b[^\W\d_]{{3,}}\.?[ ]{_NUMBER}": _TO,
    rf"{_NUMBER}[ ]?(?:de[ ]|of[ ])?[^\W\d_]{{3,}}\b\.?": _TO,
    r"\b[^\W\d_](?:[^\W\d_]{2,}|\d)\b\.?": _TO,  # January, Q1
    r"\d\d?[./月]\d\d?[./日号]?": _TO,
    _NUMBER: f"{_TO}|{_AND}",
}
_MONTH = "|".join(map(re.escape, _MONTH_NUMBERS))


def _period_forms(names: str) -> tuple[re.Pattern[str], ...]:
    """Return the patterns of a period's name before and after its year."""
    return (
        re.compile(rf"(?<!\d)(?<!\d[.-]){_YEAR}[ _-]*(?:{names})(?![^\W_]|[-_.]\d)", re.IGNORECASE),
        re.compile(
            rf"(?<![^\W_])(?<!\d[-_.])(?:{names})(?:[ _,/-]+| of ){_YEAR}(?![^\W_]|[-_.]\d)",
            re.IGNORECASE,
        ),
    )


_WEEK_TO_HALF = r"(?:w|kw|week)[ _-]?(?P<week>\d\d?)|q(?P<quarter>[1-4])|h(?P<half>[12])"
_WEEKS_TO_HALVES = _period_forms(_WEEK_TO_HALF)
# The names of notes about a period. A month in digits needs a separator, and no day after it.
_PERIODS = (
    *_period_forms(
        rf"{_WEEK_TO_HALF}"
        rf"|(?P<month>(?<=[ _-])(?:0[1-9]|1[0-2])|{'|'.join(map(re.escape, _MONTH_NAMES))})"
    ),
    re.compile(
        rf"(?<!\d){_YEAR} ?[年년] ?第? ?(?:(?P<week>\d\d?) ?[周週주]"
        r"|(?P<quarter>[1-4]) ?(?:季度|四半期|분기)|(?P<half>(?!))"
        r"|(?P<month>0?[1-9]|1[0-2]) ?[月월])"
    ),
)
_DIGIT = re.compile(r"\d")
_YEAR_OF_NOTE = re.compile(r"20\d\d")
# What must follow if the last day is only a number: a month, a year or the end of the phrase.
# "March 5 and 3 others" is not a range.
_DAY_ENDS = (
    rf"(?=[ ]?(?:(?:de|of)[ ])?(?:{_MONTH})\b|(?<=\.)\d|(?<=[日号])[^間间]|[./月]"
    r"|,?[ ](?:19|20|21)\d\d|[ ]\w+[ ]ago\b"
    r"|[ ]*(?:[^\w: ]|$))"
)


def _range_pattern(item: str, separator: str) -> re.Pattern[str]:
    after = _DAY_ENDS if item is _NUMBER else ""
    return re.compile(
        rf"""(?<![\d.-])(?<!\d/)
        (?P<between>\b(?:between|entre|zwischen|tra|fra|tussen|между)[ ](?:(?:the|el|le|dem)[ ])?)?
        (?P<first>{item}(?P<year>,?[ ]?(?:19|20|21)\d\d)?)
        (?:{separator}|(?(between){_AND}|(?!)))(?:[^\W\d_]+\.?,?[ ])?
        (?P<last>{item}(?(year),?[ ]?(?:19|20|21)\d\d))(?!(?<=\d)\d|[-/]\d){after}""",
        re.IGNORECASE | re.VERBOSE,
    )


_RANGES = [_range_pattern(item, separator) for item, separator in _ITEMS.items()]


def with_ranges(text: str, find: Callable[[str], list[NamedDate]]) -> list[NamedDate]:
    """Return the dates that a function finds in a text, in order, with each range as one period.

    The ends of ``5 to 8 March`` are read as ``5 March`` and ``8 March``. If either is not a date,
    there is no range.
    """
    if not _may_have_range(text):
        return find(text)
    first_days = _find_ends(text, find, "first")
    last_days = _find_ends(text, find, "last") if first_days else []
    if not first_days or len(first_days) != len(last_days):
        return find(text)
    ranges = []
    for first, last in zip(first_days, last_days, strict=True):
        start = min(first.start, last.start)
        end = max(first.end, last.end)
        years = _ANY_YEAR.findall(text, start, end)
        if first.first > last.last and len(years) > 1:  # "2026-03-05 to 2026-02-01"
            return find(text)
        days = [*_moved_before(first, last), last.first, last.last]
        ranges.append(NamedDate(min(days), max(days), start, end))
    return ranges


def _may_have_range(text: str) -> bool:
    """Return whether a text can have a range: a separator, and a number or the name of a day."""
    if not _MAY_BE_RANGE.search(text):
        return False
    return bool(_DIGIT.search(text)) or not _NAMES.isdisjoint(_LONG_WORD.findall(text.lower()))


def _find_ends(text: str, find: Callable[[str], list[NamedDate]], kept: str) -> list[NamedDate]:
    """Return the dates in a text, but only one end of each range, with offsets in the text.

    The list is empty if the text has no range.

    Args:
        text: The text.
        find: A function that finds the dates in a text without ranges.
        kept: The end of each range to keep, ``"first"`` or ``"last"``.
    """
    offsets = list(range(len(text)))
    part = text
    for pattern in _RANGES:
        for match in reversed(list(pattern.finditer(part))):
            # Other words, such as "Rome to Paris", are not a range.
            if _NAMES.issuperset(_LONG_WORD.findall(match["first"].lower())):
                start = match.end("first") if kept == "first" else match.start("first")
                end = match.end() if kept == "first" else match.start("last")
                part = part[:start] + part[end:]
                del offsets[start:end]
    if part == text:
        return []
    return [
        named._replace(start=offsets[named.start], end=offsets[named.end - 1] + 1)
        for named in find(part)
    ]


def _moved_before(first: NamedDate, last: NamedDate) -> list[date]:
    """Return the days of a range's first end, a year earlier for "28 December to 3 January".

    They are not moved for small differences, as in "5 to 3 days ago", whose ends are in reverse
    order.
    """
    days = [first.first, first.last]
    if first.first - last.last <= timedelta(days=_MAX_BACKWARD_DAYS):
        return days
    return [existing_date(day.year - 1, day.month, day.day) or day for day in days]


def dates_in(
    text: str, *, is_question: bool = False, forms: Sequence[re.Pattern[str]] = _FORMS
) -> list[NamedDate]:
    """Return the dates with a year in a text, in order.

    Args:
        text: A path, a heading, a value or a question.
        is_question: Whether the text is a question. Then ``01/02/2024`` is read as two dates in
            English, and ``am 25.12.24`` as one.
        forms: The patterns of dates with a four-digit year.
    """
    if not _DIGIT.search(text):
        return []
    text = plain_digits(text).replace("\u2010", "-").replace("\u2011", "-")
    if is_question:
        forms = (_SHORT_YEAR, *forms)
    elif not _ANY_YEAR.search(text):
        return []
    named_dates = []
    for form in forms:
        for match in form.finditer(text):
            days = _readings(match)
            if len(days) > 1:
                is_english = detect_language(text) == "en"
                if is_english and not is_question:
                    continue
                days = days if is_english else days[:1]
            named_dates += [NamedDate(day, day, *match.span()) for day in days]
    return sorted(named_dates, key=lambda named: named.start)


def _readings(match: re.Match[str]) -> list[date]:
    """Return the possible dates of a match, day first. ``01/02/2024`` has two."""
    year = int(match["year"])
    if match.re is _SHORT_YEAR:
        year += 2000
    day = int(match["day"])
    month_text = match["month"].lower()
    month = int(month_text) if month_text.isdigit() else _MONTH_NUMBERS.get(month_text, 0)
    readings = [existing_date(year, month, day)]
    if match.groupdict().get("mark") in {"/", "-"}:
        readings.append(existing_date(year, day, month))
    return list(dict.fromkeys(reading for reading in readings if reading))


def _ranges_in(text: str) -> list[NamedDate]:
    return with_ranges(text, dates_in) if _ANY_YEAR.search(text) else []


def existing_date(year: int, month: int, day: int) -> date | None:
    """Return the date of a year, a month and a day, or None if it does not exist."""
    with contextlib.suppress(ValueError):
        return date(year, month, day)
    return None


def parse_date(value: object) -> date | datetime | None:
    """Return the date in a metadata value.

    The value can be a date, a datetime, ISO 8601 text, a date in words, or seconds or milliseconds
    since the epoch. For a period, the first day is returned.

    Returns:
        A datetime if the value has a time (naive without a time zone), or else a date; None if the
        value is not a date.
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
    except (ValueError, OverflowError, OSError):  # outside the calendar
        return None


def _from_text(text: str) -> date | datetime | None:
    moment = _ISO_MOMENT.fullmatch(text)
    if moment:
        with contextlib.suppress(ValueError):  # 2026-02-31T10:00 and 2026-04-09T24:00
            return _moment_of(moment)
    period = iso_period(text)
    if period is not None:
        return period.first
    return next((named.first for named in _ranges_in(text)), None)


def _moment_of(match: re.Match[str]) -> datetime:
    """Return the datetime of a match of :data:`_ISO_MOMENT`."""
    fraction = (match["fraction"] or "")[:_MICROSECOND_DIGITS].ljust(_MICROSECOND_DIGITS, "0")
    zone = timezone.utc if match["utc"] else None
    if match["sign"]:
        hours = int(match["zone_hour"])
        offset = timedelta(hours=hours, minutes=int(match["zone_minute"] or 0))
        zone = timezone(-offset if match["sign"] == "-" else offset)
    return datetime(
        int(match["year"]),
        int(match["month"]),
        int(match["day"]),
        int(match["hour"]),
        int(match["minute"] or 0),
        int(match["second"] or 0),
        int(fraction),
        zone,
    )


def iso_period(text: str) -> Period | None:
    """Return the day or the week of an ISO 8601 date: ``2026-04-09``, ``2026-W15-4``, ``2026-W15``.

    The result is the same in all versions of Python.
    """
    day = _ISO_DAY.fullmatch(text)
    if day:
        first = existing_date(*map(int, day.groups()))
        return Period(first, first) if first else None
    week = _ISO_WEEK.fullmatch(text)
    if week:
        year, number, weekday = week.groups()
        with contextlib.suppress(ValueError, OverflowError):
            first = date.fromisocalendar(int(year), int(number), int(weekday or 1))
            return Period(first, first if weekday else first + timedelta(days=6))
    return None


def parse_day(value: object) -> date | None:
    """Return the day in a metadata value. See :func:`parse_date`."""
    moment = parse_date(value)
    return moment.date() if isinstance(moment, datetime) else moment


def parse_period(value: object) -> Period | None:
    """Return the period in a metadata value.

    The value can be a date, an interval of two dates, or the name of a week, month, quarter or
    half-year: ``2026-W15``, ``2026-04``, ``April 2026``, ``2026-Q2``.
    """
    if isinstance(value, str):
        text = value.strip()
        period = iso_period(text)
        if period:
            return period
        for named in _find_periods(text, _PERIODS):
            if named.end - named.start == len(text):
                return named.period
    first_text, is_interval, last_text = str(value).partition("/")
    first = parse_day(first_text if is_interval else value)
    last = parse_day(last_text) if is_interval else first
    return Period(first, last) if first and last and first <= last else None


def epoch_seconds(day: date) -> int:
    """Return the seconds from the epoch to midnight UTC of a day, as in ``metadata["date_ts"]``."""
    return int(datetime.combine(day, time(), tzinfo=timezone.utc).timestamp())
