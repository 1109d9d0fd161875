"""Dates that a question names (``yesterday``, ``last Friday``, ``el 5 de abril``), as ranges of days in the past.

Questions look back, so what is ambiguous is the most recent day that has come: ``April 5`` in March is last year's.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from llama_index_contextual.text import tell_language

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_index_contextual.keyword.lexicon import DatePattern, Lexicon

_YEAR_FIRST: Final = re.compile(r"(?<![\d./-])((?:19|20|21)\d\d)([-/.])(\d{1,2})\2(\d{1,2})(?![\d]|[./-]\d)")
_YEAR_LAST: Final = re.compile(r"(?<![\d./-])(\d{1,2})([-/.])(\d{1,2})\2((?:19|20|21)\d\d)(?![\d]|[./-]\d)")
_MONTH_FIRST: Final = re.compile(r"(?<![\d./-])(0?[1-9]|1[0-2])[/.]((?:19|20|21)\d\d)(?![\d]|[./-]\d)")
_NUMERIC_MONTH: Final = re.compile(r"(?<![\d./-])((?:19|20|21)\d\d)-(0[1-9]|1[0-2])(?![\d-])")
_MOST_DATES: Final = 4
DAYS_AFTER: Final = 7  # notes of the days after it speak of the day, too


@dataclass(frozen=True, slots=True)
class NamedDate:
    """A range of days that a message names, both ends included."""

    first: date
    last: date
    text: str
    """The words that name it, as written."""
    start: int
    """Where they start in the message."""

    @property
    def end(self) -> int:
        """Where the words end in the message."""
        return self.start + len(self.text)

    def distance(self, day: date) -> int:
        """Days between a day and the range: 0 inside, negative before it, positive after it."""
        if day < self.first:
            return (day - self.first).days
        return max(0, (day - self.last).days)


def closeness(day: date | None, dates: Sequence[NamedDate]) -> float:
    """Return 1 for a named day, less over the week after it, 0 elsewhere and for no day."""
    if day is None:
        return 0.0
    distances = [distance for named in dates if 0 <= (distance := named.distance(day)) <= DAYS_AFTER]
    return 1 - min(distances) / (DAYS_AFTER + 1) if distances else 0.0


Range = tuple[date, date]


def find_dates(text: str, today: date, lexicon: Lexicon) -> tuple[NamedDate, ...]:
    """Find the dates that a text names, in order; of readings that overlap the longest counts, even if impossible.

    ``03/04/2026`` is 3 April or March 4: in English both that have come, in the other languages the former.
    """
    readings = [*_numeric(text, today), *_worded(text, today, lexicon)]
    readings.sort(key=lambda reading: (reading[0].start() - reading[0].end(), reading[0].start()))
    chosen: list[tuple[re.Match[str], Sequence[Range]]] = []
    taken = bytearray(len(text))  # 1 where a longer reading was chosen
    for match, days in readings:
        if not any(taken[match.start() : match.end()]):
            taken[match.start() : match.end()] = bytes([1]) * len(match[0])
            chosen.append((match, days))
    # only now, so that "30 February" does not leave "February"
    named = [NamedDate(*days, match[0], match.start()) for match, ranges in chosen for days in ranges]
    return tuple(sorted(named, key=lambda date_: date_.start)[:_MOST_DATES])


Reading = tuple["re.Match[str]", "Sequence[Range]"]


def _numeric(text: str, today: date) -> list[Reading]:
    readings: list[Reading] = [
        (match, _existing((match[1], match[3], match[4]))) for match in _YEAR_FIRST.finditer(text)
    ]
    for match in _YEAR_LAST.finditer(text):
        first, mark, second, year = match.groups()
        both = mark == "/" and tell_language(text) == "en"
        day_first = _existing((year, second, first))
        month_first = _existing((year, first, second)) if mark == "/" and (both or not day_first) else []
        days = [*dict.fromkeys((*day_first, *month_first))]
        readings.append((match, [one for one in days if one[0] <= today] or days))
    readings += [(match, [_month(int(match[1]), int(match[2]))]) for match in _NUMERIC_MONTH.finditer(text)]
    readings += [(match, [_month(int(match[2]), int(match[1]))]) for match in _MONTH_FIRST.finditer(text)]
    return readings


def _existing(parts: tuple[str, str, str]) -> list[Range]:
    """Return the day of a year, a month and a day; none where no calendar has it."""
    try:
        day = date(*map(int, parts))
    except ValueError:
        return []
    return [(day, day)]


def _worded(text: str, today: date, lexicon: Lexicon) -> list[Reading]:
    found = [
        (match, _resolve(pattern, match, today, lexicon))
        for pattern in lexicon.date_patterns
        for match in pattern.matches(text)
    ]
    return [(match, [] if days is None else [days]) for match, days in found]


def _resolve(pattern: DatePattern, match: re.Match[str], today: date, lexicon: Lexicon) -> Range | None:
    slots: dict[str, int | str] = {}
    for name, word in match.groupdict().items():
        if word is None:
            continue
        slot, folded = name.rsplit("_", 1)[0], word.casefold()
        if slot == "unit":
            slots[slot] = lexicon.units.get(folded, "day")
        else:
            slots[slot] = int(folded) if folded.isdigit() else lexicon.numbers[folded]
    try:
        return MEANINGS[pattern.means](slots, pattern.value, today)
    except (ValueError, OverflowError, KeyError):
        return None  # 31 April, or a year that no calendar has


def _days_ago(_slots: Mapping[str, int | str], value: int, today: date) -> Range:
    day = today - timedelta(days=value)
    return day, day


def _ago(slots: Mapping[str, int | str], _value: int, today: date) -> Range:
    number, unit = int(slots["number"]), slots["unit"]
    if unit == "day":
        return _days_ago(slots, number, today)
    if unit == "week":  # people round: half a week either side
        return today - timedelta(days=7 * number + 3), today - timedelta(days=7 * number - 3)
    return _calendar_unit(str(unit), number, today)


def _past(slots: Mapping[str, int | str], _value: int, today: date) -> Range:
    number, unit = int(slots["number"]), slots["unit"]
    if unit == "day":
        return today - timedelta(days=number), today
    if unit == "week":
        return today - timedelta(days=7 * number), today
    return _calendar_unit(str(unit), number, today)[0], today


def _calendar_unit(unit: str, back: int, today: date) -> Range:
    """Return the whole day, week (Monday first), month or year that lies so many before the current one."""
    if unit == "year":
        return date(today.year - back, 1, 1), date(today.year - back, 12, 31)
    if unit == "month":
        months = today.year * 12 + today.month - 1 - back
        return _month(months // 12, months % 12 + 1)
    if unit == "week":
        monday = today - timedelta(days=today.weekday() + 7 * back)
        return monday, monday + timedelta(days=6)
    return _days_ago({}, back, today)


def _weekend(_slots: Mapping[str, int | str], value: int, today: date) -> Range:
    saturday = today - timedelta(days=today.weekday() - 5 + 7 * value)
    return saturday, saturday + timedelta(days=1)


def _weekday(slots: Mapping[str, int | str], _value: int, today: date) -> Range:
    back = (today.weekday() - int(slots["weekday"]) - 1) % 7 + 1
    return _days_ago(slots, back, today)


def _day(slots: Mapping[str, int | str], _value: int, today: date) -> Range:
    month, day = int(slots["month"]), int(slots["day"])
    if "year" in slots:
        exact = date(int(slots["year"]), month, day)
        return exact, exact
    for year in range(today.year, today.year - 9, -1):  # nine years hold a 29 February
        if day <= calendar.monthrange(year, month)[1] and date(year, month, day) <= today:
            return date(year, month, day), date(year, month, day)
    raise ValueError("no such day")


def _named_month(slots: Mapping[str, int | str], _value: int, today: date) -> Range:
    month = int(slots["month"])
    return _month(int(slots.get("year", today.year - (month > today.month))), month)


def _day_of_month(slots: Mapping[str, int | str], _value: int, today: date) -> Range:
    day = int(slots["day"])
    for back in range(3):
        first, last = _calendar_unit("month", back, today)
        if day <= last.day and first.replace(day=day) <= today:
            return first.replace(day=day), first.replace(day=day)
    raise ValueError("no such day")


def _month(year: int, month: int) -> Range:
    return date(year, month, 1), date(year, month, calendar.monthrange(year, month)[1])


MEANINGS: Final[Mapping[str, Callable[[Mapping[str, int | str], int, date], Range]]] = {
    "days_ago": _days_ago,
    "ago": _ago,
    "past": _past,
    "previous": lambda slots, _, today: _calendar_unit(str(slots["unit"]), 1, today),
    "current": lambda slots, _, today: _calendar_unit(str(slots["unit"]), 0, today),
    "weekend": _weekend,
    "weekday": _weekday,
    "day": _day,
    "month": _named_month,
    "day_of_month": _day_of_month,
    "year": lambda slots, _, __: (date(int(slots["year"]), 1, 1), date(int(slots["year"]), 12, 31)),
}
