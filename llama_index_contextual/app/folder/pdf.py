"""PDF to Markdown, page by page: headings by their letters, tables by their columns.

A PDF has no paragraphs, headings or tables. Lines in larger or bolder letters than most are headings; lines that most
pages repeat at their edge are no text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, pairwise
from pathlib import Path
from statistics import mode
from typing import Any, Final

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import (
    Conversion,
    ConversionError,
    Part,
    escape,
    heading,
    table_of,
)
from llama_index_contextual.app.folder.pdf_lines import (
    FAR,
    GAP,
    LARGER,
    LEAST_ROWS,
    SAME_PLACE,
    Word,
    lines_of,
)
from llama_index_contextual.utils.text import counted

_FULL: Final = 0.6  # of the longest line: a heading that is shorter ends there
_MUCH_LARGER: Final = 1.3  # than most letters: no running header
_EDGE: Final = 4  # lines at the top of a page, or at its bottom, that may be no text

_BULLET: Final = re.compile(rf"[•●▪■◦‣·o–{formats.BULLETS}-](?=\s)\s*")
_NUMBERED: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){0,4}\.?\s+[^\W\d_]")  # a heading of its own
_BROKEN: Final = re.compile(r"(\S{0,99}\w)-$")  # the word before a hyphen at the end of a line
# Of tables: lines whose values stand below one another in columns, and the names of these above them.
_BETWEEN: Final = 3  # lines of a table without a value, such as names of groups
_SHORT: Final = 6  # words: more are prose
_LONGEST_NAME: Final = 90  # characters of a group of rows, or of columns
_VALUE: Final = re.compile(  # with a unit: 5 kg, 12 pts, and not 4th
    r"[$€£¥(]*\s*[-–—+]?\s*[\d.,:/]*\d[\d.,:/]*(?:\^\d+)?\s*[)%]*(?:\s?(?!st|nd|rd|th)[A-Za-zµ°/²³]{1,3})?"
    r"|\d{4}-\d\d-\d\d|[-–—]+|[$€£¥]|N/?[AM]|\(?[a-z0-9]\)|[)%]+"
)


class Line:
    """Words on one height; ``cells`` are they joined where gaps are narrow.

    ``level`` is that of a heading, or 0; ``is_name``: it is the name of an owner above a heading. ``size`` is the
    height of its largest letters, ``usual`` of most of them; ``bold`` are all its words.
    """

    def __init__(self, words: list[Word]) -> None:
        self.words, self.level, self.is_name = words, 0, False
        self.text = " ".join(word.text for word in words)
        self.base, self.size = words[0].base, max(word.size for word in words)
        self.usual = mode(round(word.size, 1) for word in words for _ in word.text)
        self.width = words[-1].right - words[0].left
        self.bold = all(word.bold for word in words if any(map(str.isalpha, word.text)))
        self.cells = _cells(words)


def _cells(words: Sequence[Word]) -> list[Word]:
    """A line's words joined where the gaps are narrow; a currency's sign goes to its number."""
    cells: list[Word] = []
    for word in words:
        last = cells[-1] if cells else None
        if last is None or not (
            (
                word.left - last.right < GAP * min(last.size, word.size)
                and word.text not in {*"$€£¥"}
            )
            or last.text in {*"$€£¥("}
            or word.text in (")", "%", ")%")
        ):
            cells.append(word)
            continue
        space = "" if last.text[-1] in "$€£¥(" or word.text[0] in ")%" else " "
        text, bold = f"{last.text}{space}{word.text}", last.bold and word.bold
        cells[-1] = Word(text, last.left, word.right, last.base, last.size, bold)
    return cells


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
            raise ConversionError(
                "it is encrypted. Cure: save it without a password, or ignore it."
            ) from error
        raise ConversionError(f"it is damaged or no PDF ({error}). Cure: ignore it.") from error
    document.init_forms()
    left_out = Counter[str]()
    pages = [[*map(Line, lines_of(document, number, left_out))] for number in range(len(document))]
    if not any(pages):
        scanned = f"it has no text, but pictures on {counted(len(pages), 'page')} (scanned)"
        cure = "a reader with OCR, in Python: readers={'.pdf': …}; or ignore it."
        raise ConversionError(f"{scanned}. Cure: {cure}")
    left_out += _drop_edges(pages)
    _find_headings(pages)
    parts = [Part(_page(lines), {"page": number}) for number, lines in enumerate(pages, start=1)]
    return Conversion(parts, _metadata(document), left_out)


def _metadata(document: Any) -> dict[str, str]:
    info = document.get_metadata_dict(skip_empty=True)
    title, author = info.get("Title", "").strip(), info.get("Author", "").strip()
    is_name = " " not in title or re.search(
        r"\.\w{2,4}$|^Microsoft \w+ - ", title
    )  # of a file, or a number
    days = (
        re.match(r"D:(\d{4})(\d\d)?(\d\d)?", info.get(key, ""))
        for key in ("CreationDate", "ModDate")
    )
    created, modified = ("-".join(filter(None, day.groups())) if day else "" for day in days)
    return {
        "title": "" if is_name else title,
        "author": author,
        "created": created,
        "modified": modified,
    }


def _drop_edges(pages: Sequence[list[Line]]) -> Counter[str]:
    """What is taken out of the edges of pages: headers and footers that are on several, and numbers of pages."""
    largest = _MUCH_LARGER * _usual_size(pages)

    def edges(lines: Sequence[Line]) -> Iterator[tuple[tuple[str, int], Line]]:
        downwards = sorted(
            lines, key=lambda line: -line.base
        )  # a page of columns ends with the last of these
        for line in (*downwards[:_EDGE], *downwards[_EDGE:][-_EDGE:]):
            text = re.sub(r"\d+", "#", line.text.casefold()).strip()
            is_number = len(line.cells) == 1 and not any(map(str.isalpha, text))
            if line.size < largest:
                yield (text, 0 if is_number else round(line.base / SAME_PLACE)), line

    seen = Counter(key for lines in pages for key in {key for key, _ in edges(lines)})
    most = max(2, 0.3 * len(pages))  # odd and even pages may differ
    left_out = Counter[str]()
    for lines in pages:
        repeated = {id(line): key[1] for key, line in edges(lines) if seen[key] > most}
        left_out.update(
            "repeated margin line" if place else "page number" for place in repeated.values()
        )
        lines[:] = [line for line in lines if id(line) not in repeated]
    return left_out


def _usual_size(pages: Sequence[list[Line]]) -> float:
    sizes = Counter[float]()
    for line in chain(*pages):
        sizes[_style(line)[0]] += len(line.text)
    return max(sizes, key=sizes.__getitem__, default=0.0)


def _find_headings(pages: Sequence[list[Line]]) -> None:
    """Give lines that are headings a level: by size, and at the size of the text by weight and capitals."""
    single: Counter[tuple[float, bool]] = Counter()  # characters of lines without cells
    running: Counter[tuple[float, bool]] = Counter()  # of those that go on from a wide line above
    for lines in pages:
        wide = _FULL * max((line.width for line in lines), default=0.0)
        for style, run in groupby((line for line in lines if len(line.cells) == 1), key=_style):
            texts = list(run)
            single[style] += sum(len(line.text) for line in texts)
            for above, line in pairwise(texts):
                if above.width > wide and 0 < above.base - line.base < 2.2 * line.size:
                    running[style] += len(line.text)
    body = _usual_size(pages)
    headings: list[tuple[Line, tuple[float, bool, bool]]] = []
    for line in (line for lines in pages for line in lines if _may_be_heading(line)):
        size, bold = style = _style(line)
        is_large = size >= body * LARGER or (bold and size >= body * 0.9)
        if is_large and running[style] <= 0.5 * single[style]:
            headings.append((line, (max(size, body), line.text.isupper(), bold)))
    ranks = sorted({rank for _, rank in headings}, reverse=True)
    for line, rank in headings:
        line.level = min(ranks.index(rank) + 1, 6)
    for above, line in (pair for lines in pages for pair in pairwise(lines)):
        is_large = (
            above.level > 0 == line.level
            and line.size >= body * LARGER
            and _style(line) == _style(above)
        )
        if is_large and line.text[0].islower() and 0 < above.base - line.base < 1.8 * line.size:
            line.level = above.level  # a heading of two lines


def _style(line: Line) -> tuple[float, bool]:
    return round(line.usual * 2) / 2, line.bold


def _may_be_heading(line: Line) -> bool:
    text, letters = line.text, sum(map(str.isalpha, line.text))
    return (
        len(line.cells) == 1
        and line.base > -FAR / 2  # a turned line is a mark or stands at the side
        and 2 * letters > max(5, len(text.replace(" ", "")))
        and len(text) <= 130  # noqa: PLR2004
        and text[-1] not in ".,;:-"
        and not text[0].islower()
        and not (text[0] == "(" and text[-1] == ")")  # a unit
    )


def _page(lines: Sequence[Line]) -> str:
    """The lines of a page as Markdown; short lines at its top are headings with the one below them.

    So a company's name above a statement is part of the heading.
    """
    first = next((at for at, line in enumerate(lines) if line.level), 0)
    above = lines[:first] if first <= 2 else ()  # noqa: PLR2004
    if all(len(line.text) <= 60 and len(line.cells) == 1 for line in above):  # noqa: PLR2004
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
    width = max((line.width for line in lines), default=0.0)
    for last, line in zip([None, *lines], lines, strict=False):
        text, near = line.text, last is not None and last.level == line.level
        if last is not None and line.level:
            is_open = last.width > _FULL * width or last.is_name or text[0].islower()
            near = (
                near
                and is_open
                and last.base - line.base < 1.8 * last.size
                and not _NUMBERED.match(text)
            )
        elif last is not None:
            near = near and 0 < last.base - line.base < 1.7 * max(line.size, last.size)
        if line.level:
            blocks[len(blocks) - near :] = [
                f"{blocks[-1]} {text}" if near else heading(line.level, text)
            ]
            continue
        bullet = _BULLET.match(text)
        if bullet:
            text = f"- {text[bullet.end() :]}"
        elif not text[0].isdigit():  # a number begins an item here, too
            text = escape(text)
        if not near:
            blocks.append(text)
        elif (
            blocks[-1][-1] == "-"
            and text[0].isalnum()
            and (word := _BROKEN.search(blocks[-1][-100:]))
        ):
            is_whole = (
                "-" in word[1]
                or len(word[1]) == 1
                or not (word[1][-1].isalpha() and text[0].islower())
            )
            blocks[-1] = (blocks[-1] if is_whole else blocks[-1][:-1]) + text
        else:
            blocks[-1] += f"\n{text}"
    return blocks


# Tables


def _tables(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """Where tables start and end: three lines or more with values in cells, and the lines between them."""
    runs: list[tuple[int, int]] = []
    for position in (position for position, line in enumerate(lines) if _is_row(line)):
        if runs and position - runs[-1][1] <= _BETWEEN and not _ends(lines, runs[-1][1], position):
            runs[-1] = (runs[-1][0], position + 1)
        else:
            runs.append((position, position + 1))
    tables, floor = [], 0
    for start, end in runs:
        if sum(_is_row(line) for line in lines[start:end]) >= LEAST_ROWS:
            tables.append((_header_start(lines, start, end, floor), end))
            floor = end
    return tables


def _ends(lines: Sequence[Line], end: int, until: int) -> bool:
    """Whether another column begins below the rows of a table, or prose, which runs on below the columns of values."""
    left = min(cell.left for cell in lines[end - 1].cells[1:])
    return lines[until].base > lines[end - 1].base or any(
        len(line.cells) == 1
        and len(line.words) > _SHORT
        and line.words[0].left < left < line.words[-1].right
        for line in lines[end:until]
    )


def _header_start(lines: Sequence[Line], start: int, end: int, floor: int) -> int:
    """Where the header of a table starts: above its rows, also with some names of groups between."""
    left, first = _values_left(lines[start:end]), start
    for at in range(start - 1, max(floor, start - 2 - _BETWEEN) - 1, -1):
        line = lines[at]
        is_heading = line.level > 0 and line.size > LARGER * lines[start].size
        if is_heading or not 0 < line.base - lines[at + 1].base < 3 * line.size:
            break
        if _in_columns(line, left):
            first = at
        elif len(line.cells) > 1 or len(line.text) > _LONGEST_NAME:
            break
    return first


def _values_left(lines: Sequence[Line]) -> float:
    """Where the columns of values begin."""
    return (
        min(cell.left for line in lines if _is_row(line) for cell in line.cells[1:])
        - 6 * lines[0].size
    )


def _in_columns(line: Line, left: float) -> bool:
    """Whether a line names columns: all of it but a first cell stands above their values."""
    cells = line.cells[1:] or line.cells
    return all(cell.left >= left for cell in cells)


def _is_row(line: Line) -> bool:
    return any(_VALUE.fullmatch(cell.text[:60]) for cell in line.cells[1:])


def _is_years(line: Line) -> bool:
    """Whether years stand above columns, perhaps beside names such as "Change"; no value is among them."""
    texts = [cell.text for cell in line.cells[1:]]
    years = [text for text in texts if re.search(r"\b(?:19|20)\d\d\b", text)]
    return bool(years) and all(text in years or not any(map(str.isdigit, text)) for text in texts)


def _table(lines: Sequence[Line]) -> str:
    """Lines as a Markdown table: values that stand below one another are one column."""
    rows, left = [line for line in lines if _is_row(line)], _values_left(lines)
    values = [row for row in rows if not _is_years(row)] or rows
    columns: list[list[float]] = []  # left and right of each
    for cell in sorted(
        (cell for row in values for cell in row.cells[1:]), key=lambda cell: cell.right
    ):
        if columns and cell.left < columns[-1][1] and cell.right > columns[-1][0]:
            columns[-1] = [min(columns[-1][0], cell.left), max(columns[-1][1], cell.right)]
        else:
            columns.append([cell.left, cell.right])

    def column_of(cell: Word) -> int:
        return 1 + min(range(len(columns)), key=lambda at: _apart(columns[at], cell))

    head = next(
        (at for at, line in enumerate(lines) if not _in_columns(line, left) or line in values), 0
    )
    cells = [[""] * (len(columns) + 1)]
    for line in lines[:head]:
        first = line.cells[0]
        above = line.cells[1:] if first.left + first.right < 2 * columns[0][0] else line.cells
        cells[0][0] = f"{cells[0][0]} {first.text if above != line.cells else ''}".strip()
        nearest = (
            [min(above, key=lambda cell: _apart(column, cell)) for column in columns]
            if above
            else []
        )
        for cell in above:  # a name above several columns goes to the first
            at = next(
                (at for at, near in enumerate(nearest, start=1) if near is cell), 0
            ) or column_of(cell)
            cells[0][at] = f"{cells[0][at]} {cell.text}".strip()
    for line in lines[head:]:
        row = [""] * (len(columns) + 1)
        for number, cell in enumerate(line.cells):
            at = 0 if number == 0 and cell.left < columns[0][0] - 2 * cell.size else column_of(cell)
            row[at] = f"{row[at]} {cell.text}".strip()
        if (
            len(cells) > 1
            and row[0]
            and not any(cells[-1][1:])
            and (not any(row[1:]) or row[0][0].islower())
        ):
            row[0] = f"{cells.pop()[0]} {row[0]}"  # a name of several lines
        cells.append(row)
    return table_of(cells)


def _apart(column: Sequence[float], cell: Word) -> tuple[float, float]:
    """How far a cell is from a column: less than 0 where they overlap; and how far their middles are."""
    middle = abs(column[0] + column[1] - cell.left - cell.right) / 2
    return max(column[0] - cell.right, cell.left - column[1], 0), middle
