"""Markdown tables from rows of cells, and cell values as spreadsheets show them."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from itertools import groupby

from llama_index_contextual.app.folder.markdown import escape, table_of

Value = str | bool | float | dt.datetime | dt.date | dt.time | dt.timedelta | None

# A number format: words, digits, decimals, words. Words are quoted or escaped text, a currency, a
# colour, spaces or signs. Between digits, as in telephone numbers, they are signs or escaped text.
_WORDS = r"""((?:"[^"]*"|\\.|\[[^\]<>=]*\]|[_*].|[^0#?.,@/"\\\[_*a-zA-Z])*)"""
_FORM = re.compile(rf"{_WORDS}([0#?](?:(?:[-() ]|\\.)*[0#?,])*)?(?:\.([0#?]{{1,10}})(,*))?{_WORDS}")
_WORD = re.compile(r""""([^"]*)"|\\(.)|\[\$([^\]-]*)[^\]]*\]|\[[^\]]*\]|[_*].""")
_CONDITION = re.compile(r"\[[<>=]")
_ESCAPED = re.compile(r"_x00[01][0-9A-Fa-f]_")  # control characters, as Excel writes them
_MAX_TITLES = 4  # rows with one cell each that are not a table
_MAX_NUMBER = 1e15  # Excel has no more digits
_FIRST_YEAR = 1900  # of Excel; times without a date are in this year


def tables_of(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as tables.

    After an empty row, a new table starts if column names follow. Otherwise the table continues.
    """
    tables: list[list[Sequence[str]]] = []
    for is_filled, group in groupby(rows, key=lambda row: _filled_count(row) > 0):
        if not is_filled:
            continue
        block = list(group)
        if tables and len(tables[-1]) > 1 and not _begins_table(block):
            tables[-1] += block
        else:
            tables.append(block)
    blocks: list[str] = []
    for table in tables:
        if len(table) <= _MAX_TITLES and all(_filled_count(row) == 1 for row in table):
            blocks += [escape("".join(row).strip()) for row in table]
        else:
            first = min(map(_first_filled, table))
            blocks.append(table_of(row[first:] for row in table))
    return "\n\n".join(blocks) + "\n"


def _filled_count(row: Sequence[str]) -> int:
    return sum(bool(cell.strip()) for cell in row)


def _first_filled(row: Sequence[str]) -> int:
    return next(column for column, cell in enumerate(row) if cell.strip())


def _begins_table(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether rows start with a title, or with names above values."""
    if _filled_count(rows[0]) == 1:
        return True
    below = "".join(cell for row in rows[1:] for cell in row)
    return not _has_digit("".join(rows[0])) and _has_digit(below)


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


def display_value(value: Value, number_format: str = "General") -> str:
    """Return the value of a cell as its number format shows it, with dates in ISO format.

    Args:
        value: The value of the cell.
        number_format: The number format of the cell, such as ``0.0%`` or ``[h]:mm``.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return _ESCAPED.sub(" ", value)
    if isinstance(value, int | float):
        return _display_number(value, number_format)
    signs = set(_WORD.sub("", number_format).lower())
    if isinstance(value, dt.timedelta):
        return _display_duration(value, has_seconds="s" in signs)
    return _display_time(value, signs)


def _display_duration(value: dt.timedelta, *, has_seconds: bool) -> str:
    total = round(value.total_seconds())
    minutes, seconds = divmod(abs(total), 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if total < 0 else ""
    end = f":{seconds:02}" if seconds or has_seconds else ""
    return f"{sign}{hours}:{minutes:02}{end}"


def _display_time(value: dt.datetime | dt.date | dt.time, signs: set[str]) -> str:
    if isinstance(value, dt.time):
        time = value
    elif isinstance(value, dt.datetime):
        time = value.time()
    else:
        time = dt.time()
    has_seconds = bool(time.second) or "s" in signs
    clock = f"{time:%H:%M:%S}" if has_seconds else f"{time:%H:%M}"
    if isinstance(value, dt.time):
        return clock
    if value.year <= _FIRST_YEAR and signs.isdisjoint("yd"):
        return clock
    return f"{value:%Y-%m-%d}" if time == dt.time() else f"{value:%Y-%m-%d} {clock}"


def _display_number(value: float, number_format: str) -> str:
    """Return a number with the decimals, thousands, percent, zeros and words of its format.

    If the format is not supported, the plain number is returned.
    """
    plain = f"{value:.15g}" if isinstance(value, float) else str(value)
    section, has_minus = _section(value, number_format.split(";"))
    match = _FORM.fullmatch(section)
    if match is None or abs(value) > _MAX_NUMBER or _CONDITION.search(number_format):
        return plain
    words_before, integer_form, decimal_form, final_commas, words_after = match.groups(default="")
    prefix = _WORD.sub(_shown_text, words_before)
    suffix = _WORD.sub(_shown_text, words_after)
    if not integer_form and not decimal_form:
        return prefix.strip() or plain

    # Scale the number. A comma at the end divides it by a thousand.
    digit_form = integer_form.rstrip(",")
    power = -3 * (len(integer_form) - len(digit_form) + len(final_commas))
    if "%" in _WORD.sub("", words_before + words_after):
        power += 2
    number = Decimal(repr(abs(value))).scaleb(power)
    number = number.quantize(Decimal(1).scaleb(-len(decimal_form)), ROUND_HALF_UP)

    # Show as many digits as the format requires.
    separator = "," if "," in digit_form else ""
    units, _, decimals = f"{number:{separator}f}".partition(".")
    required = len(decimal_form.rstrip("#?"))
    decimals = decimals[:required] + decimals[required:].rstrip("0")
    zeros = digit_form.count("0")
    is_hidden = units == "0" and not zeros and not decimals
    units = "" if is_hidden else units.zfill(zeros)
    if not set(digit_form) <= set("0#?,"):
        if separator:
            return plain
        units = _with_separators(units, digit_form.replace("\\", ""))

    minus = "-" if has_minus and number > 0 else ""
    point = "." if decimals else ""
    return f"{minus}{prefix}{units}{point}{decimals}{suffix}".strip()


def _section(value: float, sections: Sequence[str]) -> tuple[str, bool]:
    """Return the section of a format for a number, and whether to put a minus sign before it."""
    if value < 0 and len(sections) > 1:
        return sections[1], False
    if value == 0 and len(sections) > 2:  # noqa: PLR2004
        return sections[2], False
    return sections[0], value < 0


def _shown_text(match: re.Match[str]) -> str:
    """Return the text that a word of a format shows: quoted or escaped text, or a currency sign."""
    return match[1] or match[2] or match[3] or ""


def _with_separators(units: str, form: str) -> str:
    """Return digits with the signs that a format has between them, as in telephone numbers."""
    digits = list(units)
    signs = []
    for sign in reversed(form):
        if sign not in "0#?":
            signs.append(sign)
        elif digits:
            signs.append(digits.pop())
    text = "".join(reversed(signs)).lstrip(" -/.")
    return "".join(digits) + text
