"""Tables on a PDF page: lines whose values are aligned in columns, with their header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from llama_index_contextual.app.folder.markdown import table_of
from llama_index_contextual.app.folder.pdf_lines import LARGER, LEAST_ROWS

if TYPE_CHECKING:
    from llama_index_contextual.app.folder.pdf_words import Word

_BETWEEN = 3  # lines without a value inside a table, such as names of groups
_SHORT = 6  # words; a longer line is prose
_LONGEST_NAME = 90  # characters in the name of a group of rows or columns
_HEADER_GAP = 3  # letter heights between the lines of a header
_LONGEST_VALUE = 60  # characters
_VALUE = re.compile(  # with an optional unit, as in 5 kg and 12 pts, but not 4th
    r"[$€£¥(]*\s*[-–—+]?\s*[\d.,:/]*\d[\d.,:/]*(?:\^\d+)?\s*[)%]*(?:\s?(?!st|nd|rd|th)[A-Za-zµ°/²³]{1,3})?"
    r"|\d{4}-\d\d-\d\d|[-–—]+|[$€£¥]|N/?[AM]|\(?[a-z0-9]\)|[)%]+"
)
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")


class TableLine(Protocol):
    """The attributes of a line that show whether it is a row of a table."""

    words: list[Word]
    cells: list[Word]
    text: str
    level: int
    base: float
    size: float


class _Column(NamedTuple):
    """The left and right edge of a column."""

    left: float
    right: float

    def distance(self, cell: Word) -> tuple[float, float]:
        """Return the gap between a cell and the column, or 0, and the distance of their centres."""
        middle = abs(self.left + self.right - cell.left - cell.right) / 2
        return max(self.left - cell.right, cell.left - self.right, 0), middle


def find_tables(lines: Sequence[TableLine]) -> list[tuple[int, int]]:
    """Return the start and end of each table.

    A table has at least three lines with values in cells, and includes the lines between them.
    """
    runs: list[tuple[int, int]] = []
    for position, line in enumerate(lines):
        if not _is_row(line):
            continue
        start = position
        if runs:
            run_start, run_end = runs[-1]
            is_close = position - run_end <= _BETWEEN
            if is_close and not _is_interrupted(lines, run_end, position):
                start = run_start
                runs.pop()
        runs.append((start, position + 1))
    tables = []
    floor = 0
    for start, end in runs:
        if sum(map(_is_row, lines[start:end])) >= LEAST_ROWS:
            tables.append((_header_start(lines, start, end, floor), end))
            floor = end
    return tables


def _is_interrupted(lines: Sequence[TableLine], end: int, until: int) -> bool:
    """Return whether another column or prose starts below the rows of a table."""
    last = lines[end - 1]
    if lines[until].base > last.base:
        return True
    left = min(cell.left for cell in last.cells[1:])
    for line in lines[end:until]:
        is_prose = len(line.cells) == 1 and len(line.words) > _SHORT
        if is_prose and line.words[0].left < left < line.words[-1].right:
            return True
    return False


def _header_start(lines: Sequence[TableLine], start: int, end: int, floor: int) -> int:
    """Return the start of a table's header, which is above its rows and any names of groups."""
    left = _values_left(lines[start:end])
    first = start
    highest = max(floor, start - 2 - _BETWEEN)
    for position in range(start - 1, highest - 1, -1):
        line = lines[position]
        is_heading = line.level > 0 and line.size > LARGER * lines[start].size
        is_close = 0 < line.base - lines[position + 1].base < _HEADER_GAP * line.size
        if is_heading or not is_close:
            break
        if _names_columns(line, left):
            first = position
        elif len(line.cells) > 1 or len(line.text) > _LONGEST_NAME:
            break
    return first


def _values_left(lines: Sequence[TableLine]) -> float:
    """Return the position left of all columns of values."""
    lefts = [cell.left for line in lines if _is_row(line) for cell in line.cells[1:]]
    return min(lefts) - 6 * lines[0].size


def _names_columns(line: TableLine, left: float) -> bool:
    """Return whether a line names columns, so that all but its first cell are above values."""
    return all(cell.left >= left for cell in line.cells[1:] or line.cells)


def _is_row(line: TableLine) -> bool:
    return any(_VALUE.fullmatch(cell.text[:_LONGEST_VALUE]) for cell in line.cells[1:])


def _is_years(line: TableLine) -> bool:
    """Return whether a line has years as column names, perhaps among others such as "Change"."""
    texts = [cell.text for cell in line.cells[1:]]
    has_year = any(map(_YEAR.search, texts))
    return has_year and all(_YEAR.search(text) or not any(map(str.isdigit, text)) for text in texts)


def table(lines: Sequence[TableLine]) -> str:
    """Return lines as a Markdown table, with a column for values that are below one another."""
    rows = [line for line in lines if _is_row(line)]
    values = [row for row in rows if not _is_years(row)] or rows
    columns = _columns(values)
    left = _values_left(lines)
    header_end = 0
    for line in lines:
        if line in values or not _names_columns(line, left):
            break
        header_end += 1
    header = _header(lines[:header_end], columns)
    cells = [header]
    for line in lines[header_end:]:
        row = _row(line, columns)
        if len(cells) > 1 and _continues(cells[-1], row):
            row[0] = f"{cells.pop()[0]} {row[0]}"  # a name on several lines
        cells.append(row)
    return table_of(cells)


def _columns(rows: Sequence[TableLine]) -> list[_Column]:
    cells = [cell for row in rows for cell in row.cells[1:]]
    columns: list[_Column] = []
    for cell in sorted(cells, key=lambda cell: cell.right):
        left = cell.left
        right = cell.right
        if columns and left < columns[-1].right and right > columns[-1].left:
            last = columns.pop()
            left = min(left, last.left)
            right = max(right, last.right)
        columns.append(_Column(left, right))
    return columns


def _nearest_column(columns: Sequence[_Column], cell: Word) -> int:
    """Return the number (from 1) of the column that is nearest to a cell."""
    return 1 + min(range(len(columns)), key=lambda number: columns[number].distance(cell))


def _header(lines: Sequence[TableLine], columns: Sequence[_Column]) -> list[str]:
    """Return the names of columns. A name above several columns goes to the first of them."""
    header = [""] * (len(columns) + 1)
    for line in lines:
        names = line.cells
        first = names[0]
        if first.left + first.right < 2 * columns[0].left:
            _append(header, 0, first.text)
            names = names[1:]
        if not names:
            continue
        above = [min(names, key=column.distance) for column in columns]
        for name in names:
            number = _nearest_column(columns, name)
            if name in above:
                number = above.index(name) + 1
            _append(header, number, name.text)
    return header


def _row(line: TableLine, columns: Sequence[_Column]) -> list[str]:
    row = [""] * (len(columns) + 1)
    for position, cell in enumerate(line.cells):
        is_name = position == 0 and cell.left < columns[0].left - 2 * cell.size
        number = 0 if is_name else _nearest_column(columns, cell)
        _append(row, number, cell.text)
    return row


def _append(row: list[str], number: int, text: str) -> None:
    row[number] = f"{row[number]} {text}".strip()


def _continues(above: Sequence[str], row: Sequence[str]) -> bool:
    """Return whether a row continues the name in the row above it."""
    if not row[0] or any(above[1:]):
        return False
    return not any(row[1:]) or row[0][0].islower()
