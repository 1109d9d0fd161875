"""Tables on a PDF page: lines whose values are aligned in columns, with their header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from llama_index_contextual.app.folder.markdown import table_of
from llama_index_contextual.app.folder.pdf_columns import MIN_ROWS
from llama_index_contextual.app.folder.pdf_lines import LARGER

if TYPE_CHECKING:
    from llama_index_contextual.app.folder.pdf_lines import Line
    from llama_index_contextual.app.folder.pdf_words import Word

_MAX_LINES_BETWEEN_ROWS = 3  # without a value, such as names of groups
_MAX_HEADER_LINES = 2
_MAX_WORDS = 6  # a longer line is prose
_MAX_NAME = 90  # characters in the name of a group of rows or columns
_HEADER_GAP = 3  # letter heights between the lines of a header
_MAX_VALUE = 60  # characters
_VALUE = re.compile(  # with an optional unit, as in 5 kg and 12 pts, but not 4th
    r"[$€£¥(]*\s*[-–—+]?\s*[\d.,:/]*\d[\d.,:/]*(?:\^\d+)?\s*[)%]*(?:\s?(?!st|nd|rd|th)[A-Za-zµ°/²³]{1,3})?"
    r"|\d{4}-\d\d-\d\d|[-–—]+|[$€£¥]|N/?[AM]|\(?[a-z0-9]\)|[)%]+"
)
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")


class _Column(NamedTuple):
    """The left and right edge of a column."""

    left: float
    right: float

    def distance(self, cell: Word) -> tuple[float, float]:
        """Return the gap between a cell and the column, or 0, and the distance of their centres."""
        middle = abs(self.left + self.right - cell.left - cell.right) / 2
        return max(self.left - cell.right, cell.left - self.right, 0), middle


def find_tables(lines: Sequence[Line]) -> list[range]:
    """Return the positions of the lines of each table.

    A table has at least three lines with values in cells, and includes the lines between them.
    """
    # Join rows that are close to each other.
    runs: list[range] = []
    for position, line in enumerate(lines):
        if _is_row(line):
            start = position
            if runs and _is_same_table(lines, runs[-1].stop, position):
                start = runs.pop().start
            runs.append(range(start, position + 1))

    # Add the headers of those with enough rows.
    tables = []
    end_of_table_above = 0
    for run in runs:
        if sum(map(_is_row, lines[run.start : run.stop])) >= MIN_ROWS:
            start = _header_start(lines, run, end_of_table_above)
            tables.append(range(start, run.stop))
            end_of_table_above = run.stop
    return tables


def _is_same_table(lines: Sequence[Line], end: int, position: int) -> bool:
    """Return whether a row belongs to the table that ends before a line above it."""
    if position - end > _MAX_LINES_BETWEEN_ROWS:
        return False
    last = lines[end - 1]
    if lines[position].base > last.base:  # another column of the page
        return False
    left = min(cell.left for cell in last.cells[1:])
    for line in lines[end:position]:
        is_prose = len(line.cells) == 1 and len(line.words) > _MAX_WORDS
        if is_prose and line.words[0].left < left < line.words[-1].right:
            return False
    return True


def _header_start(lines: Sequence[Line], rows: range, end_of_table_above: int) -> int:
    """Return the start of a table's header, which is above its rows and any names of groups."""
    left = _values_left(lines[rows.start : rows.stop])
    start = rows.start
    highest = rows.start - _MAX_HEADER_LINES - _MAX_LINES_BETWEEN_ROWS
    for position in range(rows.start - 1, max(end_of_table_above, highest) - 1, -1):
        line = lines[position]
        is_heading = line.level > 0 and line.size > LARGER * lines[rows.start].size
        is_close = 0 < lines[position + 1].gap_below(line) < _HEADER_GAP * line.size
        if is_heading or not is_close:
            break
        if _names_columns(line, left):
            start = position
        elif len(line.cells) > 1 or len(line.text) > _MAX_NAME:
            break
    return start


def _values_left(lines: Sequence[Line]) -> float:
    """Return the position left of all columns of values."""
    lefts = [cell.left for line in lines if _is_row(line) for cell in line.cells[1:]]
    return min(lefts) - 6 * lines[0].size


def _names_columns(line: Line, left: float) -> bool:
    """Return whether all cells of a line except the first are above values."""
    return all(cell.left >= left for cell in line.cells[1:] or line.cells)


def _is_row(line: Line) -> bool:
    """Return whether a line has a value after its first cell."""
    return any(_VALUE.fullmatch(cell.text[:_MAX_VALUE]) for cell in line.cells[1:])


def _names_years(line: Line) -> bool:
    """Return whether a line has years as column names, perhaps among others such as "Change"."""
    texts = [cell.text for cell in line.cells[1:]]
    texts_with_digits = [text for text in texts if any(map(str.isdigit, text))]
    return bool(texts_with_digits) and all(map(_YEAR.search, texts_with_digits))


def table_of_lines(lines: Sequence[Line]) -> str:
    """Return lines as a Markdown table, with a column for values that are below one another."""
    rows = [line for line in lines if _is_row(line)]
    rows_of_values = [row for row in rows if not _names_years(row)] or rows
    columns = _columns(rows_of_values)
    left = _values_left(lines)
    header_end = 0
    for line in lines:
        if line in rows_of_values or not _names_columns(line, left):
            break
        header_end += 1
    table = [_header(lines[:header_end], columns)]
    for line in lines[header_end:]:
        row = _row(line, columns)
        has_row_above = len(table) > 1
        if has_row_above and _continues_name(table[-1], row):
            name_above = table.pop()[0]
            row[0] = f"{name_above} {row[0]}"
        table.append(row)
    return table_of(table)


def _columns(rows: Sequence[Line]) -> list[_Column]:
    """Return the columns of values. Values that overlap horizontally are in the same column."""
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


def _header(lines: Sequence[Line], columns: Sequence[_Column]) -> list[str]:
    """Return the names of columns. A name above several columns goes to the first of them."""
    header = [""] * (len(columns) + 1)
    for line in lines:
        names = line.cells
        first = names[0]
        centre = (first.left + first.right) / 2
        if centre < columns[0].left:  # the name of the column of names
            _append(header, 0, first.text)
            names = names[1:]
        if not names:
            continue
        name_above = [min(names, key=column.distance) for column in columns]
        for name in names:
            if name in name_above:
                number = 1 + name_above.index(name)
            else:
                number = _nearest_column(columns, name)
            _append(header, number, name.text)
    return header


def _row(line: Line, columns: Sequence[_Column]) -> list[str]:
    row = [""] * (len(columns) + 1)
    for position, cell in enumerate(line.cells):
        is_name = position == 0 and cell.left < columns[0].left - 2 * cell.size
        number = 0 if is_name else _nearest_column(columns, cell)
        _append(row, number, cell.text)
    return row


def _append(row: list[str], number: int, text: str) -> None:
    row[number] = f"{row[number]} {text}".strip()


def _continues_name(above: Sequence[str], row: Sequence[str]) -> bool:
    """Return whether a row continues the name in the row above it."""
    if not row[0] or any(above[1:]):
        return False
    return not any(row[1:]) or row[0][0].islower()
