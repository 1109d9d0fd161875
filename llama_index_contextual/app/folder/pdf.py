"""PDF to Markdown, page by page: headings by their letters, tables by their columns.

A PDF has no paragraphs, headings or tables. Lines in larger or bolder letters than most are headings; lines that most
pages repeat at their edge are no text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final

from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part, escape, heading, table_of
from llama_index_contextual.app.folder.pdf_lines import FAR, LARGER, LEAST_ROWS, SAME_PLACE, Line, Word, lines_of
from llama_index_contextual.text import counted

_LONGEST_HEADING: Final = 130  # characters
_EDGE: Final = 4  # lines at the top and at the bottom of a page that may be repeated on others
_REPEATED: Final = 0.3  # of the pages that have a line at their edge: then it is no text; odd and even pages may differ
_LEVELS: Final = 6
_RUN: Final = 3  # lines of one size and weight in a row that are running text, not a heading
_LEADING: Final = 2.2  # of a line's size: lines that are further apart are no run
_FULL: Final = 0.6  # of the longest line: a heading that is shorter ends there
_MOST_ABOVE: Final = 2  # lines at the top of a page that name what its first heading is of
_LONGEST_ABOVE: Final = 60  # characters of each
_DIGITS: Final = re.compile(r"\d+")
_BULLET: Final = re.compile(r"[•●▪■◦‣·o–-](?=\s)\s*")
_BROKEN: Final = re.compile(r"(\S{0,99}\w)-$")  # the word before a hyphen at the end of a line
_DATE: Final = re.compile(r"D:(\d{4})(\d\d)?(\d\d)?")
# Of tables: lines whose values stand below one another in columns, and the names of these above them.
_BETWEEN: Final = 3  # lines of a table without a value, such as names of groups
_FEW: Final = 6  # words: a line of more that reaches below the values is prose
_LONGEST_NAME: Final = 90  # characters of a group of rows, or of columns
_YEAR: Final = re.compile(r"\b(?:19|20)\d\d\b")
_VALUE: Final = re.compile(r"[$€£¥(]*\s*[-–—]?\s*[\d.,]*\d[\d.,]*\s*[)%]*|[-–—]+|[$€£¥]|N/?[AM]|\(?[a-z0-9]\)|[)%]+")
_LONGEST_VALUE: Final = 60  # characters; what is longer is read up to here


def read_pdf(path: Path) -> Conversion:
    """The pages of a PDF.

    Raises:
        ConversionError: It is encrypted, damaged, or has no text.
    """
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise ConversionError("it is encrypted. Cure: save it without a password, or ignore it.") from error
        raise ConversionError(f"it is damaged or no PDF ({error}). Cure: ignore it.") from error
    pages = [lines_of(document, number) for number in range(len(document))]
    if not any(pages):
        raise ConversionError(
            f"it has no text, but pictures on {counted(len(pages), 'page')} (scanned). Cure: a reader with OCR, in "
            "Python: readers={'.pdf': …}; or ignore it."
        )
    _drop_edges(pages)
    _find_headings(pages)
    metadata = _metadata(document)
    return Conversion([Part(_page(lines), {"page": n}) for n, lines in enumerate(pages, start=1)], metadata)


def _metadata(document: Any) -> dict[str, str]:
    info = document.get_metadata_dict(skip_empty=True)
    title, author = info.get("Title", "").strip(), info.get("Author", "").strip()
    is_name = " " not in title or re.search(r"\.\w{2,4}$|^Microsoft \w+ - ", title)  # of a file, or a number
    days = {"created": _DATE.match(info.get("CreationDate", "")), "modified": _DATE.match(info.get("ModDate", ""))}
    dates = {key: "-".join(filter(None, day.groups())) for key, day in days.items() if day}
    return {"title": "" if is_name else title, "author": author, **dates}


def _drop_edges(pages: Sequence[list[Line]]) -> None:
    """Take out running headers and footers, and numbers of pages."""

    def edges(lines: Sequence[Line]) -> Iterator[tuple[tuple[str, int], Line]]:
        downwards = sorted(lines, key=lambda line: -line.base)  # a page of columns ends with the last of these
        for line in (*downwards[:_EDGE], *downwards[_EDGE:][-_EDGE:]):
            text = _DIGITS.sub("#", line.text.casefold()).strip()
            yield (text, round(line.base / SAME_PLACE) if any(map(str.isalpha, text)) else 0), line

    seen = Counter(key for lines in pages for key in {key for key, _ in edges(lines)})
    most = max(2, _REPEATED * len(pages))
    for lines in pages:
        repeated = {id(line) for key, line in edges(lines) if seen[key] > most}
        lines[:] = [line for line in lines if id(line) not in repeated]


def _find_headings(pages: Sequence[list[Line]]) -> None:
    """Give lines that are headings a level: by size, and at the size of the text by weight and capitals."""
    styles: Counter[tuple[float, bool]] = Counter()
    single: Counter[tuple[float, bool]] = Counter()  # characters of lines without cells
    running: Counter[tuple[float, bool]] = Counter()
    for lines in pages:
        wide = _FULL * max((line.width for line in lines), default=0.0)
        for line in lines:
            styles[_style(line)] += len(line.text)
        for style, run in groupby((line for line in lines if len(line.cells) == 1), key=_style):
            texts = list(run)
            single[style] += sum(len(line.text) for line in texts)
            running[style] += _running(texts, wide)
    sizes: Counter[float] = Counter()
    for (size, _), count in styles.items():
        sizes[size] += count
    body = max(sizes, key=sizes.__getitem__)
    weight_tells = sum(count for (_, bold), count in styles.items() if bold) < 0.4 * sum(sizes.values())
    headings: list[tuple[Line, tuple[float, bool, bool]]] = []
    for line in (line for lines in pages for line in lines if _may_be_heading(line)):
        size, bold = style = _style(line)
        is_large = size >= body * LARGER or (weight_tells and bold and size >= body * 0.9)
        if is_large and running[style] <= 0.5 * single[style]:
            headings.append((line, (max(size, body), line.text.isupper(), bold)))
    ranks = sorted({rank for _, rank in headings}, reverse=True)
    for line, rank in headings:
        line.level = min(ranks.index(rank) + 1, _LEVELS)
    for above, line in (pair for lines in pages for pair in pairwise(lines)):
        is_large = above.level > 0 == line.level and line.size >= body * LARGER and _style(line) == _style(above)
        if is_large and line.text[0].islower() and 0 < above.base - line.base < 1.8 * line.size:
            line.level = above.level  # a heading of two lines


def _running(lines: Sequence[Line], wide: float) -> int:
    """Characters of lines in a row that are running text: three or more, near one another, all but the last wide."""
    runs: list[list[Line]] = [[]]
    for line in lines:
        last = runs[-1][-1] if runs[-1] else None
        if last is not None and last.width > wide and 0 < last.base - line.base < _LEADING * line.size:
            runs[-1].append(line)
        else:
            runs.append([line])
    return sum(len(line.text) for run in runs if len(run) >= _RUN for line in run)


def _style(line: Line) -> tuple[float, bool]:
    return round(line.size * 2) / 2, line.bold


def _may_be_heading(line: Line) -> bool:
    text = line.text
    letters = sum(map(str.isalpha, text))
    return (
        len(line.cells) == 1
        and line.base > -FAR / 2  # a turned line is a mark or stands at the side
        and letters >= 3  # noqa: PLR2004
        and letters > 0.5 * len(text.replace(" ", ""))
        and len(text) <= _LONGEST_HEADING
        and text[-1] not in ".,;:-"
        and not text[0].islower()
        and not (text[0] == "(" and text[-1] == ")")  # a unit
    )


def _page(lines: Sequence[Line]) -> str:
    """The lines of a page as Markdown; short lines at its top are headings with the one below them.

    So a company's name above a statement is part of the heading.
    """
    first = next((at for at, line in enumerate(lines) if line.level), 0)
    above = lines[: first if first <= _MOST_ABOVE else 0]
    if all(len(line.text) <= _LONGEST_ABOVE and len(line.cells) == 1 for line in above):
        for line in above:
            line.level, line.is_name = lines[first].level, True
    blocks: list[str] = []
    position = 0
    for start, end in _tables(lines):
        blocks += [*_prose(lines[position:start]), _table(lines[start:end])]
        position = end
    return "\n\n".join([*blocks, *_prose(lines[position:])])


def _prose(lines: Sequence[Line]) -> list[str]:
    """Paragraphs and headings."""
    blocks: list[str] = []
    last: Line | None = None
    width = max((line.width for line in lines), default=0.0)
    for line in lines:
        text = line.text
        if line.level:
            near = last is not None and last.level == line.level and last.base - line.base < 1.8 * last.size
            if near and last is not None and (last.width > _FULL * width or last.is_name or text[0].islower()):
                blocks[-1] += f" {text}"  # a heading of two lines
            else:
                blocks.append(heading(line.level, text))
        else:
            bullet = _BULLET.match(text)
            if bullet:
                text = f"- {text[bullet.end() :]}"
            elif not text[0].isdigit():  # a number begins an item here, too
                text = escape(text)
            near = last is not None and not last.level and 0 < last.base - line.base < 1.7 * max(line.size, last.size)
            if not near:
                blocks.append(text)
            elif blocks[-1][-1] == "-" and text[0].isalnum() and (word := _BROKEN.search(blocks[-1][-100:])):
                is_whole = "-" in word[1] or len(word[1]) == 1 or not (word[1][-1].isalpha() and text[0].islower())
                blocks[-1] = (blocks[-1] if is_whole else blocks[-1][:-1]) + text
            else:
                blocks[-1] += f"\n{text}"
        last = line
    return blocks


# Tables


def _tables(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """Where tables start and end: three lines or more with values in cells, and the lines between them."""
    runs: list[tuple[int, int]] = []
    for position in (position for position, line in enumerate(lines) if _is_row(line)):
        if runs and position - runs[-1][1] <= _BETWEEN and not _ends(lines, *runs[-1], position):
            runs[-1] = (runs[-1][0], position + 1)
        else:
            runs.append((position, position + 1))
    tables, floor = [], 0
    for start, end in runs:
        if sum(_is_row(line) for line in lines[start:end]) >= LEAST_ROWS:
            tables.append((_header_start(lines, start, end, floor), end))
            floor = end
    return tables


def _ends(lines: Sequence[Line], start: int, end: int, until: int) -> bool:
    """Whether another column begins below the rows of a table, or a heading that is larger, or prose."""
    larger, left = lines[start].size * LARGER, min(cell.left for cell in lines[end - 1].cells[1:])
    return lines[until].base > lines[end - 1].base or any(
        (line.level and line.size > larger) or _is_prose(line, left) for line in lines[end:until]
    )


def _is_prose(line: Line, left: float) -> bool:
    """Whether a line runs on below the columns of values, or introduces a table, as no name of a row does."""
    words = line.words
    reaches = len(words) > _FEW and words[0].left < left < words[-1].right
    return len(line.cells) == 1 and (reaches or (len(words) > 2 * _FEW and words[-1].text.endswith(":")))


def _header_start(lines: Sequence[Line], start: int, end: int, floor: int) -> int:
    """Where the header of a table starts: above its rows, also with some names of groups between."""
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
    """Where the columns of values begin."""
    return min(cell.left for line in lines if _is_row(line) for cell in line.cells[1:]) - 6 * lines[0].size


def _in_columns(line: Line, left: float) -> bool:
    """Whether a line names columns: all of it but a first cell stands above their values."""
    cells = line.cells[1:] or line.cells
    return all(cell.left >= left for cell in cells) and (len(line.cells) > 1 or len(line.text) <= _LONGEST_NAME)


def _is_row(line: Line) -> bool:
    return len(line.cells) > 1 and any(_VALUE.fullmatch(cell.text[:_LONGEST_VALUE]) for cell in line.cells[1:])


def _is_years(line: Line) -> bool:
    """Whether years stand above columns, perhaps beside names such as "Change"; no value is among them."""
    texts = [cell.text for cell in line.cells[1:]]
    years = [text for text in texts if _YEAR.search(text)]
    return bool(years) and all(text in years or not any(map(str.isdigit, text)) for text in texts)


def _table(lines: Sequence[Line]) -> str:
    """Lines as a Markdown table: values that stand below one another are one column."""
    rows, left = [line for line in lines if _is_row(line)], _values_left(lines)
    values = [row for row in rows if not _is_years(row)] or rows
    columns = _columns([cell for row in values for cell in row.cells[1:]])
    head = next((at for at, line in enumerate(lines) if not _in_columns(line, left) or line in values), 0)
    header = [""] * (len(columns) + 1)
    for line in lines[:head]:
        first = line.cells[0]
        above = line.cells[1:] if first.left + first.right < 2 * columns[0][0] else line.cells
        if above != line.cells:
            header[0] = f"{header[0]} {first.text}".strip()
        nearest = [min(above, key=lambda cell: _apart(column, cell)) for column in columns] if above else []
        for cell in above:  # a name above several columns goes to the first
            first_of = [at for at, near in enumerate(nearest) if near is cell][:1]
            at = 1 + min(first_of or range(len(columns)), key=lambda at: _apart(columns[at], cell))
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
    """Left and right of each column of values."""
    columns: list[list[float]] = []
    for cell in sorted(values, key=lambda cell: cell.right):
        if columns and cell.left < columns[-1][1] and cell.right > columns[-1][0]:
            columns[-1] = [min(columns[-1][0], cell.left), max(columns[-1][1], cell.right)]
        else:
            columns.append([cell.left, cell.right])
    return columns


def _apart(column: Sequence[float], cell: Word) -> tuple[float, float]:
    """How far a cell is from a column: less than 0 where they overlap; and how far their middles are."""
    middle = abs(column[0] + column[1] - cell.left - cell.right) / 2
    return max(column[0] - cell.right, cell.left - column[1], 0), middle
