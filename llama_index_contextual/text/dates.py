"""Dates that notes carry, in a path, a heading or a metadata value, and the names of months and weekdays.

Of numeric forms those with the year first are read, and those with dots, in which the day comes first wherever they
are written (``21.01.2024``). Any other order of digits is a guess. An impossible date is no date.
"""

from __future__ import annotations

import contextlib
import re
from datetime import date, datetime, time, timezone
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_DAY: Final = re.compile(
    r"(?<![\d.])(?P<year>(?:19|20|21)\d{2})(?P<one>[-_/.])(?P<month>\d{2})(?P<two>[-_/.])(?P<day>\d{2})(?!\d)"
    r"|(?<![\w.])(?P<first>\d{1,2})\.(?P<second>\d{1,2})\.(?P<last>(?:19|20|21)\d{2})(?![\d]|\.\d)"
)

_ISO: Final = re.compile(r"(?<!\d)(\d{4})[-_/.](\d{1,2})[-_/.](\d{1,2})(?!\d)")

_MONTH_DAY: Final = re.compile(
    r"\b(?P<month>[^\W\d_]+)\.? {1,2}(?P<day>\d{1,2})(?:st|nd|rd|th)?,? (?:\d\d?:\d\d(?::\d\d)? )?(?P<year>\d{4})\b"
)
_DAY_MONTH: Final = re.compile(
    r"\b(?P<day>\d{1,2})(?:st|nd|rd|th|\.)?(?: de)?[ -](?P<month>[^\W\d_]+)\.?,?(?: de)?[ -](?P<year>\d{4})\b"
)

# By language, January and Monday first: the full name, then other ways to write it. "sat" and "sun" are words as well.
_MONTHS: Final = {
    "en": "january jan,february feb,march mar,april apr,may,june jun,july jul,august aug,september sep sept,"
    "october oct,november nov,december dec",
    "es": "enero,febrero,marzo,abril,mayo,junio,julio,agosto,septiembre setiembre,octubre,noviembre,diciembre",
    "de": "januar jänner,februar,märz maerz,april,mai,juni,juli,august,september,oktober,november,dezember",
    "fr": "janvier,février fevrier,mars,avril,mai,juin,juillet,août aout,septembre,octobre,novembre,décembre decembre",
    "it": "gennaio,febbraio,marzo,aprile,maggio,giugno,luglio,agosto,settembre,ottobre,novembre,dicembre",
    "nl": "januari,februari,maart,april,mei,juni,juli,augustus,september,oktober,november,december",
    "pt": "janeiro,fevereiro,março marco,abril,maio,junho,julho,agosto,setembro,outubro,novembro,dezembro",
    "ru": "январь января январе,февраль февраля феврале,март марта марте,апрель апреля апреле,май мая мае,"
    "июнь июня июне,июль июля июле,август августа августе,сентябрь сентября сентябре,октябрь октября октябре,"
    "ноябрь ноября ноябре,декабрь декабря декабре",
}
_WEEKDAYS: Final = {
    "en": "monday mon,tuesday tue tues,wednesday wed,thursday thu thur thurs,friday fri,saturday,sunday",
    "es": "lunes,martes,miércoles miercoles,jueves,viernes,sábado sabado,domingo",
    "de": "montag,dienstag,mittwoch,donnerstag,freitag,samstag sonnabend,sonntag",
    "fr": "lundi,mardi,mercredi,jeudi,vendredi,samedi,dimanche",
    "it": "lunedì lunedi,martedì martedi,mercoledì mercoledi,giovedì giovedi,venerdì venerdi,sabato,domenica",
    "nl": "maandag,dinsdag,woensdag,donderdag,vrijdag,zaterdag,zondag",
    "pt": "segunda-feira segunda,terça-feira terça terca,quarta-feira quarta,quinta-feira quinta,sexta-feira sexta,"
    "sábado sabado,domingo",
    "ru": "понедельник понедельника,вторник вторника,среда среду среды,четверг четверга,пятница пятницу пятницы,"
    "суббота субботу субботы,воскресенье воскресенья",
}
DATE_LANGUAGES: Final = tuple(_MONTHS)
_FIRST_SECOND: Final = 100_000_000  # in 1973: a smaller number is a year or a count, and no seconds since the epoch


def month_words(language: str) -> dict[str, int]:
    """Return the words for months in a language (``"en"``), each with its number, 1 to 12; {} for others."""
    return {word: number for number, words in enumerate(_names(_MONTHS, language), 1) for word in words}


@cache
def weekday_words(language: str) -> dict[str, int]:
    """Return the words for weekdays in a language, each with its number, 0 (Monday) to 6; {} for others."""
    return {word: number for number, words in enumerate(_names(_WEEKDAYS, language)) for word in words}


def month_name(month: int, language: str = "en") -> str:
    """Return the full name of a month, 1 to 12, in small letters."""
    return _names(_MONTHS, language)[month - 1][0]


def date_in_words(iso: object) -> str:
    """Return ``2026-01-28`` as ``Wednesday, 28 January 2026``, and ``""`` for anything that is no such date."""
    try:
        day = date.fromisoformat(str(iso or "")[:10])
    except ValueError:  # 2026-02-31 is no date
        return ""
    weekday = _names(_WEEKDAYS, "en")[day.weekday()][0]  # the language of strftime depends on the machine
    return f"{weekday.capitalize()}, {day.day} {month_name(day.month).capitalize()} {day.year}"


def date_from_words(text: str) -> date | None:
    """Read ``January 2, 2026``, ``2 Jan 2026``, ``Fri, 02 Jan 2026 10:11:12 GMT``; the time of day is left out."""
    for form in (_MONTH_DAY, _DAY_MONTH):
        for match in form.finditer(text.lower()):
            for language in DATE_LANGUAGES:
                if month := month_words(language).get(match["month"]):
                    try:
                        return date(int(match["year"]), month, int(match["day"]))
                    except ValueError:
                        break
    return None


def take_dates(word: str) -> tuple[list[date], str]:
    """Return the dates in a word, such as ``report-2026-04-09.pdf``, and the rest of the word."""
    days: list[date] = []

    def take(match: re.Match[str]) -> str:
        try:
            days.append(date(*map(int, match.groups())))
        except ValueError:
            return match.group()
        return "-"

    return days, _ISO.sub(take, word).strip("-")


def date_from_path(path: str) -> date | None:
    """Find the date in a path: ``memory/2026-04-09.md``, ``2026/04/09-standup.md``, ``log/2026_04_09``.

    The first possible date of the deepest folder or file that has one; ``2026-02-31`` is none.
    """
    path = path.replace("\\", "/")
    deepest: tuple[int, date | None] = (-1, None)
    for end, day in _dates_in(path):
        if (depth := path.count("/", 0, end)) > deepest[0]:
            deepest = depth, day
    return deepest[1]


def date_from_heading(title: str) -> date | None:
    """Find the first date in a heading's text: ``2026-01-31``, ``2026-03-01: plan for the 2026-06-30 release``."""
    return next((day for _, day in _dates_in(title)), None)


def _dates_in(text: str) -> Iterator[tuple[int, date]]:
    """Yield the dates in digits, each with the offset after it."""
    for match in _DAY.finditer(text):
        parts = match.group("year", "month", "day") if match["year"] else match.group("last", "second", "first")
        if match["one"] != match["two"] and "." in (match["one"], match["two"]):
            continue
        try:
            day = date(*map(int, parts))
        except ValueError:
            continue
        yield match.end(), day


def parse_date(value: object) -> date | datetime | None:
    """Read a metadata value: a date, a datetime, ISO 8601 text, a day in words, or seconds since the epoch.

    Returns:
        A datetime where the value has a time of day (naive if it names no zone), else a date; None if it is no date.
    """
    if isinstance(value, date):  # a datetime is one too
        return value
    if isinstance(value, int | float):
        try:
            return datetime.fromtimestamp(value, timezone.utc) if value >= _FIRST_SECOND else None
        except (ValueError, OverflowError, OSError):  # somebody else's milliseconds
            return None
    text = re.sub(r"[zZ]$", "+00:00", value.strip()) if isinstance(value, str) else ""  # 3.10 knows no Z
    for read in (date.fromisoformat, datetime.fromisoformat):
        with contextlib.suppress(ValueError):
            return read(text)
    return date_from_heading(text) or date_from_words(text)


def parse_day(value: object) -> date | None:
    """Read a metadata value as :func:`parse_date` does, and leave out its time of day."""
    moment = parse_date(value)
    return moment.date() if isinstance(moment, datetime) else moment


def epoch_seconds(day: date) -> int:
    """Return the seconds from the epoch to midnight UTC of a day: the value of ``metadata["date_ts"]``."""
    return int(datetime.combine(day, time(), tzinfo=timezone.utc).timestamp())


def _names(by_language: dict[str, str], language: str) -> list[list[str]]:
    return [words.split() for words in by_language.get(language, "").split(",") if words]
