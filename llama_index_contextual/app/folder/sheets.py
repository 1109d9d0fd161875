"""Workbooks and CSV to Markdown: each sheet a part, its values as the program shows them."""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.folder.formats import (
    MOST_CELLS,
    Conversion,
    ConversionError,
    Part,
    escape,
    heading,
    open_archive,
    table_of,
    xml_of,
)
from llama_index_contextual.text import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_DELIMITERS: Final = ",;\t|"
_SAMPLE: Final = 20_000  # characters of a CSV file that show how it is delimited
_MOST_CELL: Final = 1_000_000  # characters
_FIRST_YEAR: Final = 1900  # of Excel's days: a time has no day
_LONGEST_FORMAT: Final = 255  # characters, as Excel has it
_MOST_PLACES: Final = 40
# Of a number's format: text, escaped characters, currencies; colours and spaces; digits; other characters.
_TOKENS: Final = re.compile(r""""([^"]*)"|\\(.)|\[\$([^\]-]*)[^\]]*\]|\[[^\]]*\]|_.|\*.|([0#?.,]+)|([^\[])""")
_ELAPSED: Final = re.compile(r"\[(h+|m+|s+)\]", re.IGNORECASE)


def read_csv(path: Path) -> Conversion:
    """A table; the first line is its header."""
    text = decode(path.read_bytes()).text.removeprefix("\ufeff").replace("\0", "")
    csv.field_size_limit(_MOST_CELL)
    return Conversion([Part(blocks_of(csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text))))])


def _delimiter(text: str) -> str:
    """The delimiter that gives lines of the same length, and most cells."""

    def rank(delimiter: str) -> tuple[float, int]:
        widths = [len(row) for row in csv.reader(io.StringIO(text[:_SAMPLE], newline=""), delimiter=delimiter) if row][
            :50
        ]
        common = max(set(widths), key=widths.count, default=1)
        return (widths.count(common) / len(widths) if common > 1 else 0.0, common)

    return max(_DELIMITERS, key=rank)


def read_xlsx(path: Path) -> Conversion:
    """A workbook: a part for each sheet that holds something.

    Raises:
        ConversionError: It is damaged, or too large.
    """
    import openpyxl

    with open_archive(path) as archive:
        for name in archive.namelist():
            if name.endswith((".xml", ".rels")) and not name.startswith("xl/worksheets/sheet"):
                xml_of(archive, name)  # it refuses entities, and what is too large
        pictures = sum(name.startswith("xl/media/") for name in archive.namelist())
        charts = sum(name.startswith("xl/charts/chart") for name in archive.namelist())
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    about, parts = book.properties, []
    left_out = {"picture": pictures, "chart": charts}
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # what a file says of them may be wrong
        text = blocks_of(_rows(sheet))
        if text.strip():
            parts.append(Part(f"{heading(1, sheet.title)}\n\n{text}", sheet.title, {"sheet": sheet.title}))
    dates = {"created": about.created, "modified": about.modified}
    metadata = {"title": about.title or "", "subject": about.subject or "", "author": about.creator or ""}
    return Conversion(parts, {**metadata, **{key: f"{day:%Y-%m-%d}" for key, day in dates.items() if day}}, left_out)


def _rows(sheet: Any) -> Iterable[list[str]]:
    """The rows of a sheet as text, at their places."""
    cells = 0
    for row in sheet.iter_rows():
        values = [shown(cell.value, getattr(cell, "number_format", "General")[:_LONGEST_FORMAT]) for cell in row]
        while values and not values[-1]:
            values.pop()
        cells += len(values)
        if cells > MOST_CELLS:
            raise ConversionError(f"a sheet has more than {MOST_CELLS:,} cells. Cure: split it, or ignore it.")
        yield values


def blocks_of(rows: Iterable[Sequence[str]]) -> str:
    """Rows as tables: behind an empty row another one begins where names of columns follow, else the same goes on."""
    blocks: list[list[Sequence[str]]] = [[]]
    for row in rows:
        if any(cell.strip() for cell in row):
            blocks[-1].append(row)
        elif blocks[-1]:
            blocks.append([])
    tables: list[list[Sequence[str]]] = []
    for block in filter(None, blocks):
        if tables and len(tables[-1]) > 1 and not _has_names(block):
            tables[-1] += block
        else:
            tables.append(block)
    return "\n\n".join(_table(_trimmed(table)) for table in tables) + "\n"


def _has_names(rows: list[Sequence[str]]) -> bool:
    """Whether rows begin with a title, or with names above values."""
    is_text = not any(any(map(str.isdigit, cell)) for cell in rows[0])
    return _count(rows[0]) == 1 or (is_text and any(any(map(str.isdigit, cell)) for row in rows[1:] for cell in row))


def _count(row: Sequence[str]) -> int:
    return sum(bool(cell.strip()) for cell in row)


def _table(rows: list[Sequence[str]]) -> str:
    is_line = len(rows) == _count(rows[0]) == 1
    return escape("".join(rows[0]).strip()) if is_line else table_of(rows)


def _trimmed(rows: list[Sequence[str]]) -> list[Sequence[str]]:
    """Rows without the columns before the first that holds something."""
    first = min((at for row in rows for at, cell in enumerate(row) if cell.strip()), default=0)
    return [row[first:] for row in rows]


def shown(value: object, form: str = "General") -> str:
    """A value of a cell as its format shows it; days are ISO dates.

    Args:
        value: As openpyxl gives it.
        form: The number format of the cell, as ``0.0%`` or ``[h]:mm``.
    """
    if isinstance(value, dt.timedelta) or (_ELAPSED.search(form) and not isinstance(value, str | bool | None)):
        return _duration(value, form)
    if isinstance(value, dt.time):
        return _time(value, form)
    if isinstance(value, dt.datetime):
        day, time = value.date().isoformat(), value.time()
        if value.year <= _FIRST_YEAR and not re.search("[yYdD]", form):
            return _time(time, form)
        return day if time == dt.time() else f"{day} {_time(time, form)}"
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).upper()
    return _number(value, form) if isinstance(value, int | float) else str(value)


def _time(time: dt.time, form: str) -> str:
    return f"{time:%H:%M:%S}" if time.second or "s" in form.lower() else f"{time:%H:%M}"


def _duration(value: Any, form: str) -> str:
    """Hours that may be more than a day's, minutes, and seconds where there are some."""
    if isinstance(value, dt.time):
        value = dt.timedelta(hours=value.hour, minutes=value.minute, seconds=value.second)
    elif isinstance(value, dt.datetime):
        start = dt.date(1899, 12, 31 if value.date() < dt.date(1900, 3, 1) else 30)  # Excel's 1900 has a leap day
        value = value - dt.datetime.combine(start, dt.time())
    seconds = round(value.total_seconds() if isinstance(value, dt.timedelta) else value * 86400)
    sign, seconds = "-" * (seconds < 0), abs(seconds)
    minutes = f"{sign}{seconds // 3600}:{seconds // 60 % 60:02}"
    return f"{minutes}:{seconds % 60:02}" if seconds % 60 or "s" in form.lower() else minutes


def _number(value: float, form: str) -> str:
    """A number with the places, thousands, percent, leading zeros and words of its format."""
    sections = form.split(";")
    at = 1 if value < 0 and len(sections) > 1 else 2 if value == 0 and len(sections) > 2 else 0  # noqa: PLR2004
    before, behind, pattern = "", "", ""
    for quoted, escaped, currency, digits, other in _TOKENS.findall(sections[at]):
        word = quoted or escaped or currency or other
        before, behind = (before, behind + word) if pattern else (before + word, behind)
        pattern += digits
    if not pattern.strip(".,") or re.search("[E/]", before + behind) or len(pattern) > _MOST_PLACES:
        return str(value) if isinstance(value, int) else f"{value:.15g}"
    whole, _, places = pattern.partition(".")
    thousands = len(whole) - len(whole := whole.rstrip(","))
    number = abs(value) * (100 if "%" in behind + before else 1) / 1000**thousands
    text = f"{number:{',' * (',' in whole)}.{len(places)}f}"
    units, _, decimals = text.partition(".")
    least = len(places.rstrip("#?"))
    decimals = decimals[:least] + decimals[least:].rstrip("0")
    units = units.zfill(whole.count("0")) if units != "0" or "0" in whole or decimals else ""
    sign = "-" if value < 0 and at == 0 and float(text.replace(",", "")) else ""
    return f"{sign}{before}{units}{'.' * bool(decimals)}{decimals}{behind}".strip()
