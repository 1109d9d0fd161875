"""Excel workbooks, read directly from their XML.

Only the contents of cells and the number formats are read. So styles, views and other details,
which programs write in different ways, cannot make a workbook unreadable.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from llama_index_contextual.app.folder import markdown
from llama_index_contextual.app.folder.archive import (
    Archive,
    attribute,
    core_metadata,
    count_left_out,
    integer,
    local_name,
)
from llama_index_contextual.app.folder.formats import Conversion, Part, declare_format
from llama_index_contextual.app.folder.formulas import superscript
from llama_index_contextual.app.folder.tables import Value, display_value, tables_of

_LONGEST_CODE = 255  # characters of a number format
_CHARTS = "xl/charts/"
_MAX_SHEET = 500_000_000  # bytes of a sheet, which is read row by row
_CELL = re.compile(r"\$?([A-Za-z]{1,3})\$?\d")


class _NumberFormat(NamedTuple):
    """A number format."""

    code: str = "General"
    is_date: bool = False
    is_duration: bool = False


@declare_format(
    "Excel",
    ".xlsx",
    ".xlsm",
    packages=("openpyxl", "lxml"),
    place="sheet",
    kept="values as displayed, titles above tables",
    left_out="pictures, charts",
)
def read_xlsx(path: Path) -> Conversion:
    """Return a workbook with one part per sheet that is not empty.

    Raises:
        ConversionError: The file is damaged, or not a workbook.
    """
    left_out: Counter[str] = Counter()
    parts = []
    with Archive(path) as archive:
        name = archive.main_member("xl/workbook.xml", "workbook")
        targets = {relation.id: relation for relation in archive.relations(name)}
        workbook = _Workbook(archive, name)
        sheets = set()
        for sheet in workbook.root.iterfind(".//{*}sheet"):
            relation = targets.get(attribute(sheet, "id"))
            if relation is None or relation.kind != "worksheet":
                continue
            sheets.add(relation.target.lower())
            text = tables_of(workbook.rows(relation.target, left_out))
            if text.strip():
                title = attribute(sheet, "name")
                parts.append(Part(f"{markdown.heading(1, title)}\n\n{text}", {"sheet": title}))
        for member in archive.names:
            is_chart = member.startswith(_CHARTS)
            if member.endswith(".xml") and member not in sheets and not is_chart:
                left_out += count_left_out(archive.xml(member))
        metadata = core_metadata(archive.xml("docProps/core.xml"))
    return Conversion(parts, metadata, left_out)


class _Workbook:
    """The texts and number formats that the sheets of a workbook share."""

    def __init__(self, archive: Archive, name: str) -> None:
        self.root = archive.xml(name)
        self._archive = archive
        self._texts: list[str] = []
        for member in archive.related(name, "sharedStrings"):
            self._texts += map(_text, archive.xml(member).iterfind("{*}si"))
        self._formats: list[_NumberFormat] = []
        for member in archive.related(name, "styles"):
            self._formats += _number_formats(archive.xml(member))
        properties = self.root.find("{*}workbookPr")
        self._starts_in_1904 = attribute(properties, "date1904") in ("1", "true")

    def rows(self, name: str, left_out: Counter[str]) -> Iterator[list[str]]:
        """Yield the rows of a sheet as text, without empty cells at the end of a row."""
        count = 0
        last_number = 0
        for row in self._archive.elements(name, "row", _MAX_SHEET):
            number = integer(row.get("r"), last_number + 1)
            if number > last_number + 1:
                yield []  # an empty row can separate tables
            last_number = number
            values: list[str] = []
            for cell in row.iterfind("{*}c"):
                column = _column(cell.get("r"), len(values))
                markdown.check_size(count + column)
                values += [""] * (column + 1 - len(values))
                values[column] = self._displayed(cell)
                left_out["uncalculated formula"] += _is_uncalculated(cell)
            while values and not values[-1]:
                values.pop()
            count += len(values)
            markdown.check_size(count)
            yield values

    def _displayed(self, cell: Any) -> str:
        style = integer(cell.get("s"), 0)
        is_known = style < len(self._formats)
        number_format = self._formats[style] if is_known else _NumberFormat()
        return display_value(self._value(cell, number_format), number_format.code)

    def _value(self, cell: Any, number_format: _NumberFormat) -> Value:
        kind = cell.get("t", "n")
        if kind == "inlineStr":
            return _text(cell)
        text = cell.findtext("{*}v") or ""
        if not text:
            return None
        if kind == "s":
            index = integer(text, len(self._texts))
            return self._texts[index] if index < len(self._texts) else ""
        if kind == "b":
            return text.strip() in ("1", "true")
        return self._number(text, number_format) if kind in ("n", "d") else text

    def _number(self, text: str, number_format: _NumberFormat) -> Value:
        """Return a number, or a date or time if it has such a format; otherwise the text."""
        from openpyxl.utils.datetime import MAC_EPOCH, WINDOWS_EPOCH, from_excel, from_ISO8601

        value: Value = text
        try:
            number = float(text) if re.search("[.eE]", text) else int(text)
        except ValueError:
            with contextlib.suppress(ValueError):
                value = from_ISO8601(text)
            return value
        if not number_format.is_date:
            return number
        epoch = MAC_EPOCH if self._starts_in_1904 else WINDOWS_EPOCH
        try:
            value = from_excel(number, epoch, timedelta=number_format.is_duration)
        except (OverflowError, ValueError):
            value = "#VALUE!"  # which Excel shows for an impossible date
        return value


def _number_formats(styles: Any) -> list[_NumberFormat]:
    """Return the number format of each cell style."""
    from openpyxl.styles.numbers import BUILTIN_FORMATS, is_date_format, is_timedelta_format

    codes: dict[int, str] = dict(BUILTIN_FORMATS)
    for declared in styles.iterfind("{*}numFmts/{*}numFmt"):
        code = declared.get("formatCode", "")
        codes[integer(declared.get("numFmtId"), 0)] = code[:_LONGEST_CODE]
    formats = []
    for style in styles.iterfind("{*}cellXfs/{*}xf"):
        code = codes.get(integer(style.get("numFmtId"), 0)) or codes[0]
        is_date = is_date_format(code)
        formats.append(_NumberFormat(code, is_date, is_timedelta_format(code)))
    return formats


def _text(element: Any) -> str:
    """Return the text of a cell without its phonetic reading."""
    text = ""
    for piece in element.iter("{*}t"):
        run = piece.getparent()
        if local_name(run) == "rPh":
            continue
        raised = run.find("{*}rPr/{*}vertAlign")
        if attribute(raised, "val") == "superscript":
            text += superscript((piece.text or "").strip())
        else:
            text += piece.text or ""
    return text


def _column(reference: str | None, default: int) -> int:
    """Return the column number (from 0) in a reference such as ``AB12``."""
    match = _CELL.match(reference or "")
    if match is None:
        return default
    column = 0
    for letter in match[1].upper():
        column = 26 * column + ord(letter) - ord("A") + 1
    return column - 1


def _is_uncalculated(cell: Any) -> bool:
    return cell.find("{*}f") is not None and not cell.findtext("{*}v")
