"""Workbooks and CSV to Markdown: each sheet a part, its values as the program shows them."""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
from decimal import ROUND_HALF_UP, Decimal
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
    import zipfile
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_DELIMITERS: Final = ",;\t|"
_SAMPLE: Final = 20_000  # characters of a CSV file that show how it is delimited
_MOST_CELL: Final = 1_000_000  # characters
_FIRST_YEAR: Final = 1900  # of Excel's days: a time has no day
_LONGEST: Final = 255  # characters, as Excel has it
_SHEETS: Final = "xl/worksheets/sheet"
_MOST_TITLES: Final = 4  # rows
_CHUNK: Final = 1_000_000  # bytes
_HEAD: Final = 2_000  # bytes of a sheet before its data
_LARGEST: Final = 1e15  # number with all its digits
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
            if name.endswith((".xml", ".rels")) and not name.startswith(_SHEETS):
                xml_of(archive, name)  # it refuses entities, and members that are too large
        pictures = sum(name.startswith("xl/media/") for name in archive.namelist())
        charts = sum(name.startswith("xl/charts/chart") for name in archive.namelist())
        sheets = [name for name in archive.namelist() if name.startswith(_SHEETS)]
        has_formulas = True in [_has_formulas(archive, name) for name in sheets]  # all of them are checked
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    formulas = openpyxl.load_workbook(path, read_only=True) if has_formulas else book
    about, parts = book.properties, []
    left_out = {"picture": pictures, "chart": charts}
    for sheet, other in zip(book.worksheets, formulas.worksheets, strict=True):
        sheet.reset_dimensions()  # those in the file may be wrong
        other.reset_dimensions()
        text = blocks_of(_rows(sheet, other))
        if text.strip():
            parts.append(Part(f"{heading(1, sheet.title)}\n\n{text}", sheet.title, {"sheet": sheet.title}))
    dates = {"created": about.created, "modified": about.modified}
    metadata = {"title": about.title or "", "subject": about.subject or "", "author": about.creator or ""}
    return Conversion(parts, {**metadata, **{key: f"{day:%Y-%m-%d}" for key, day in dates.items() if day}}, left_out)


def _has_formulas(archive: zipfile.ZipFile, name: str) -> bool:
    """Whether a sheet holds formulas; it is read as a stream.

    Raises:
        ConversionError: It declares something before its data, such as entities.
    """
    with archive.open(name) as file:
        chunks = iter(lambda: file.read(_CHUNK), b"")
        first = next(chunks, b"")
        if b"<!" in first[:_HEAD].replace(b"\0", b""):
            raise ConversionError(f"its {name} declares an entity or more, which is not read. Cure: ignore it.")
        return b"<f" in first or any(b"<f" in chunk for chunk in chunks)


def _rows(sheet: Any, formulas: Any) -> Iterator[list[str]]:
    """The rows of a sheet as text, at their places; a formula whose value was never computed is shown itself."""
    count = 0
    computed = zip(sheet.iter_rows(), formulas.iter_rows(), strict=True) if formulas is not sheet else None
    for row, others in computed or ((row, row) for row in sheet.iter_rows()):
        values = [
            shown(cell.value if cell.value is not None else other.value, (cell.number_format or "General")[:_LONGEST])
            for cell, other in zip(row, others, strict=True)
        ]
        while values and not values[-1]:
            values.pop()
        count += len(values)
        if count > MOST_CELLS:
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
    return "\n\n".join(_table(_trimmed(table), is_alone=len(tables) == 1) for table in tables) + "\n"


def _has_names(rows: list[Sequence[str]]) -> bool:
    """Whether rows begin with a title, or with names above values."""
    is_text = not any(any(map(str.isdigit, cell)) for cell in rows[0])
    return _count(rows[0]) == 1 or (is_text and any(any(map(str.isdigit, cell)) for row in rows[1:] for cell in row))


def _count(row: Sequence[str]) -> int:
    return sum(bool(cell.strip()) for cell in row)


def _table(rows: list[Sequence[str]], *, is_alone: bool) -> str:
    """A table; a few rows of one cell each are titles or remarks."""
    if all(_count(row) == 1 for row in rows) and len(rows) <= (1 if is_alone else _MOST_TITLES):
        return "\n\n".join(escape("".join(row).strip()) for row in rows)
    return table_of(rows)


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
    words, signs, patterns = [""], "", []
    for quoted, escaped, currency, digits, other in _TOKENS.findall(sections[at]):
        if digits:
            patterns.append(digits)
            words.append("")
        words[-1] += quoted or escaped or currency or other
        signs += other
    pattern = "".join(patterns)
    if set("E/@") & set(signs) or "General" in signs or len(pattern) > _MOST_PLACES or abs(value) > _LARGEST:
        return str(value) if isinstance(value, int) else f"{value:.15g}"
    sign = "-" if value < 0 and at == 0 else ""
    if not pattern.strip(".,"):
        return words[0].strip()
    whole, _, places = pattern.partition(".")
    thousands = len(whole) - len(whole.rstrip(","))
    whole = whole.rstrip(",")
    exact = Decimal(repr(abs(value))).scaleb(2 * ("%" in signs) - 3 * thousands)
    number = exact.quantize(Decimal(1).scaleb(-len(places)), ROUND_HALF_UP)
    units, _, decimals = f"{number:{',' * (',' in whole)}f}".partition(".")
    least = len(places.rstrip("#?"))
    decimals = decimals[:least] + decimals[least:].rstrip("0")
    units = units.zfill(whole.count("0")) if units != "0" or "0" in whole or decimals else ""
    if len(patterns) > 1 and not places and "," not in whole:  # a mask, as 000-0000: filled from its end
        for at, digits in reversed(list(enumerate(patterns[1:], start=1))):
            units, last = units[: -len(digits)], units[-len(digits) :]
            words[at] += last
        return f"{sign}{words[0]}{units}{''.join(words[1:])}".strip()
    return f"{sign * bool(number)}{words[0]}{units}{'.' * bool(decimals)}{decimals}{''.join(words[1:])}".strip()
