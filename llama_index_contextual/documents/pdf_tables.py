"""Tables of a PDF: lines whose values stand below one another in columns, and the names of these above them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from llama_index_contextual.documents.archive import table_of
from llama_index_contextual.documents.pdf_lines import LARGER, LEAST_ROWS, Line, Word

if TYPE_CHECKING:
    from collections.abc import Sequence

_BETWEEN: Final = 3  # lines of a table without a value, such as names of groups
_FEW: Final = 6  # words: a line of more that reaches below the values is prose
_LONGEST_NAME: Final = 90  # characters of a group of rows, or of columns
_YEAR: Final = re.compile(r"\b(?:19|20)\d\d\b")
_VALUE: Final = re.compile(r"[$€£¥(]*\s*[-–—]?\s*[\d.,]*\d[\d.,]*\s*[)%]*|[-–—]+|[$€£¥]|N/?[AM]|\(?[a-z0-9]\)|[)%]+")
_LONGEST_VALUE: Final = 60  # characters; what is longer is read up to here


def tables_of(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """Return where tables start and end: three lines or more with values in cells, and the lines between them."""
    found: list[tuple[int, int]] = []
    for position in (position for position, line in enumerate(lines) if _is_row(line)):
        if found and position - found[-1][1] <= _BETWEEN and not _ends(lines, *found[-1], position):
            found[-1] = (found[-1][0], position + 1)
        else:
            found.append((position, position + 1))
    tables, floor = [], 0
    for start, end in found:
        if sum(_is_row(line) for line in lines[start:end]) >= LEAST_ROWS:
            tables.append((_header_start(lines, start, end, floor), end))
            floor = end
    return tables


def _ends(lines: Sequence[Line], start: int, end: int, until: int) -> bool:
    """Return whether another column begins below the rows of a table, or a heading that is larger, or prose."""
    larger, left = lines[start].size * LARGER, min(cell.left for cell in lines[end - 1].cells[1:])
    return lines[until].base > lines[end - 1].base or any(
        (line.level and line.size > larger) or _is_prose(line, left) for line in lines[end:until]
    )


def _is_prose(line: Line, left: float) -> bool:
    """Return whether a line runs on below the columns of values, or introduces a table, as no name of a row does."""
    words = line.words
    reaches = len(words) > _FEW and words[0].left < left < words[-1].right
    return len(line.cells) == 1 and (reaches or (len(words) > 2 * _FEW and words[-1].text.endswith(":")))


def _header_start(lines: Sequence[Line], start: int, end: int, floor: int) -> int:
    """Return where the header of a table starts: above its rows, also with some names of groups between."""
    left, first, names = _values_left(lines[start:end]), start, 0
    for at in range(start - 1, floor - 1, -1):
        line = lines[at]
        if not 0 < line.base - lines[at + 1].base < 3 * line.size:
            break
        if _in_columns(line, left):
            first = at
        elif len(line.cells) > 1 or names == _BETWEEN or len(line.text) > _LONGEST_NAME:
            break
        else:
            names += 1
    return first


def _values_left(lines: Sequence[Line]) -> float:
    """Return where the columns of values begin."""
    return min(cell.left for line in lines if _is_row(line) for cell in line.cells[1:]) - 6 * lines[0].size


def _in_columns(line: Line, left: float) -> bool:
    """Return whether a line names columns: all of it but a first cell stands above their values."""
    cells = line.cells[1:] or line.cells
    return all(cell.left >= left for cell in cells) and (len(line.cells) > 1 or len(line.text) <= _LONGEST_NAME)


def _is_row(line: Line) -> bool:
    return len(line.cells) > 1 and any(_VALUE.fullmatch(cell.text[:_LONGEST_VALUE]) for cell in line.cells[1:])


def _is_years(line: Line) -> bool:
    """Return whether years stand above columns, perhaps beside names such as "Change"; no value is among them."""
    texts = [cell.text for cell in line.cells[1:]]
    named = [text for text in texts if _YEAR.search(text)]
    return bool(named) and all(text in named or not any(map(str.isdigit, text)) for text in texts)


def markdown_of(lines: Sequence[Line]) -> str:
    """Return lines as a Markdown table: values that stand below one another are one column."""
    rows, left = [line for line in lines if _is_row(line)], _values_left(lines)
    values = [row for row in rows if not _is_years(row)] or rows
    columns = _columns([cell for row in values for cell in row.cells[1:]])
    head = next((at for at, line in enumerate(lines) if not _in_columns(line, left) or line in values), 0)
    header = [""] * (len(columns) + 1)
    for line in lines[:head]:
        first = line.cells[0]
        named = line.cells[1:] if first.left + first.right < 2 * columns[0][0] else line.cells
        if named != line.cells:
            header[0] = f"{header[0]} {first.text}".strip()
        nearest = [min(named, key=lambda cell: _apart(column, cell)) for column in columns] if named else []
        for at, cell in enumerate(nearest, start=1):
            if at == 1 or cell is not nearest[at - 2]:
                header[at] = f"{header[at]} {cell.text}".strip()  # above several columns it is said of the first
        for cell in named:
            if not any(cell is one for one in nearest):
                at = 1 + min(range(len(columns)), key=lambda at: _apart(columns[at], cell))
                header[at] = f"{header[at]} {cell.text}".strip()
    cells: list[list[str]] = []
    for line in lines[head:]:
        row = [""] * (len(columns) + 1)
        for number, cell in enumerate(line.cells):
            is_name = number == 0 and cell.left < columns[0][0] - 2 * cell.size
            at = 0 if is_name else 1 + min(range(len(columns)), key=lambda at: _apart(columns[at], cell))
            row[at] = f"{row[at]} {cell.text}".strip()
        if cells and row[0] and not any(cells[-1][1:]) and (not any(row[1:]) or row[0][0].islower()):
            row[0] = f"{cells.pop()[0]} {row[0]}"  # a name of several lines
        cells.append(row)
    return table_of([header, *cells]) if any(header) else table_of(cells)


def _columns(values: Sequence[Word]) -> list[list[float]]:
    """Return left and right of each column of values."""
    columns: list[list[float]] = []
    for cell in sorted(values, key=lambda cell: cell.right):
        if columns and cell.left < columns[-1][1] and cell.right > columns[-1][0]:
            columns[-1] = [min(columns[-1][0], cell.left), max(columns[-1][1], cell.right)]
        else:
            columns.append([cell.left, cell.right])
    return columns


def _apart(column: Sequence[float], cell: Word) -> tuple[float, float]:
    """Return how far a cell is from a column: less than 0 where they overlap; and how far their middles are."""
    middle = abs(column[0] + column[1] - cell.left - cell.right) / 2
    return max(column[0] - cell.right, cell.left - column[1], 0), middle
