"""PDF to Markdown, page by page: lines by their place, headings by their letters, tables by their columns.

A PDF says where each letter stands, and nothing else. PDFium reads letters, places, sizes and weights. Words on one
height make a line; wide gaps that stand below one another make columns; lines in larger or bolder letters than most
are headings; lines that most pages repeat at their edge are no text.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.documents.archive import table_of
from llama_index_contextual.documents.conversion import ConversionError, Converted, Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_SPACES: Final = frozenset({0, 2, 9, 10, 13, 32, 160, 0xFFFE})
_HYPHENS: Final = frozenset({2, 0xFFFE})  # what PDFium gives for a hyphen at the end of a line
_SAME_HEIGHT: Final = 0.35  # of a letter's size: words that differ less are on one line
_GAP: Final = 1.0  # of a letter's size: a wider one parts cells
_LARGER: Final = 1.12  # than most letters: a heading's
_LONGEST_HEADING: Final = 130  # characters
_SAME_PLACE: Final = 4.0  # points by which the height of a repeated line differs from page to page
_EDGE: Final = 4  # lines at the top and at the bottom of a page that may be repeated on others
_REPEATED: Final = 0.3  # of the pages that have a line at their edge: then it is no text; odd and even pages may differ
_LEVELS: Final = 6
_BETWEEN: Final = 3  # lines of a table without a value, such as names of groups
_LEAST_ROWS: Final = 3  # of a table
_LONGEST_NAME: Final = 90  # characters of a group of rows, or of columns
_YEAR: Final = re.compile(r"\b(?:19|20)\d\d\b")
_DIGITS: Final = re.compile(r"\d+")
_BULLET: Final = re.compile(r"[•●▪■◦‣·o–-](?=\s)\s*")
_BOLD: Final = re.compile(rb"bold|black|heavy|semibd|demi", re.IGNORECASE)
_VALUE: Final = re.compile(r"[$€£¥(]*\s*[-–—]?\s*[\d.,]*\d[\d.,]*\s*[)%]*|[-–—]+|[$€£¥]|N/?[AM]|\(?[a-z0-9]\)|[)%]+")
_MARKUP: Final = re.compile(r"(#{1,6}\s|[-+*>]\s|\d{1,9}[.)]\s|```|~~~|---+\s*$|===+\s*$|\|)")
_DATE: Final = re.compile(r"D:(\d{4})(\d\d)?(\d\d)?")


@dataclass(slots=True)
class _Word:
    text: str
    left: float
    right: float
    base: float
    size: float
    bold: bool


@dataclass(slots=True)
class _Line:
    words: list[_Word]
    cells: list[_Word] = field(default_factory=list)
    level: int = 0

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)

    @property
    def base(self) -> float:
        return self.words[0].base

    @property
    def size(self) -> float:
        return max(word.size for word in self.words)

    @property
    def bold(self) -> bool:
        return all(word.bold for word in self.words if any(map(str.isalpha, word.text)))


def read_pdf(path: Path) -> Converted:
    """Return the pages of a PDF.

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
    pages = [_lines_of(document, number) for number in range(len(document))]
    if not any(pages):
        raise ConversionError(
            f"its {len(pages)} pages are pictures without text (scanned). Cure: a reader with OCR, in Python: "
            "readers={'.pdf': …}; or ignore it."
        )
    _drop_edges(pages)
    _find_headings(pages)
    metadata = _metadata(document)
    return Converted([Part(_page(lines), str(n), {"page": n}) for n, lines in enumerate(pages, start=1)], metadata)


def _metadata(document: Any) -> dict[str, str]:
    found, values = document.get_metadata_dict(skip_empty=True), {}
    title = found.get("Title", "").strip()
    if " " in title and not re.search(r"\.\w{2,4}$|^Microsoft \w+ - ", title):  # else a file's name, or a number
        values["title"] = title
    if author := found.get("Author", "").strip():
        values["author"] = author
    for theirs, ours in (("CreationDate", "created"), ("ModDate", "modified")):
        if day := _DATE.match(found.get(theirs, "")):
            values[ours] = "-".join(part for part in day.groups() if part)
    return values


def _lines_of(document: Any, number: int) -> list[_Line]:
    """Return the lines of a page from top to bottom; none where it cannot be read."""
    import pypdfium2

    try:
        page = document[number]
        text = page.get_textpage()
    except pypdfium2.PdfiumError:
        return []
    lines = _joined(_words(text))
    text.close()
    page.close()
    for line in lines:
        line.cells = _cells(line.words)
    return lines


def _words(page: Any) -> list[_Word]:
    import pypdfium2.raw as pdfium

    raw, count = page.raw, page.count_chars()
    codes = [pdfium.FPDFText_GetUnicode(raw, index) for index in range(count)]
    x, y, right = ctypes.c_double(), ctypes.c_double(), ctypes.c_double()
    box, flags = pdfium.FS_RECTF(), ctypes.c_int()
    unused = ctypes.c_double()
    font = ctypes.create_string_buffer(128)
    words: list[_Word] = []
    start = -1
    for index in range(count + 1):
        code = codes[index] if index < count else 32
        if code not in _SPACES:
            start = index if start < 0 else start
            continue
        if start < 0:
            continue
        text = "".join(map(_char, codes[start:index])) + ("-" if code in _HYPHENS else "")
        pdfium.FPDFText_GetCharOrigin(raw, start, x, y)
        pdfium.FPDFText_GetCharBox(raw, index - 1, unused, right, unused, unused)
        pdfium.FPDFText_GetLooseCharBox(raw, start, box)
        pdfium.FPDFText_GetFontInfo(raw, start, font, 128, flags)
        bold = bool(_BOLD.search(font.value)) or pdfium.FPDFText_GetFontWeight(raw, start) >= 600  # noqa: PLR2004
        size = abs(box.top - box.bottom) or 1.0
        words.append(_Word(text, x.value, max(right.value, x.value), y.value, size, bold))
        start = -1
    return words


def _char(code: int) -> str:
    return chr(code) if 32 <= code < 0x110000 and not 0xD800 <= code < 0xE000 else ""  # noqa: PLR2004


def _joined(words: Sequence[_Word]) -> list[_Line]:
    """Return words as lines, from top to bottom.

    PDFium gives words in the order in which they were drawn: a table may be drawn column by column. Pieces on one
    height are one line, unless the page has columns of prose.
    """
    pieces: list[list[_Word]] = []
    for word in words:
        before = pieces[-1][-1] if pieces else None
        if (
            before is not None
            and abs(before.base - word.base) < _SAME_HEIGHT * max(before.size, word.size)
            and before.left <= word.left < before.right + 8 * word.size
        ):
            pieces[-1].append(word)
        else:
            pieces.append([word])
    if _has_columns(pieces):
        return [_Line(piece) for piece in pieces]
    pieces.sort(key=lambda piece: -piece[0].base)
    lines: list[list[_Word]] = []
    for piece in pieces:
        if lines and abs(lines[-1][0].base - piece[0].base) < _SAME_HEIGHT * max(lines[-1][0].size, piece[0].size):
            lines[-1].extend(piece)
        else:
            lines.append(list(piece))
    for line in lines:
        line.sort(key=lambda word: word.left)
    return [_Line(line) for line in lines]


def _has_columns(pieces: Sequence[list[_Word]]) -> bool:
    """Return whether many pieces of prose stand beside another one at the same height."""
    prose = [piece for piece in pieces if sum(word.text[:1].isalpha() for word in piece) >= max(5, 0.7 * len(piece))]
    heights = Counter(round(piece[0].base) for piece in prose)
    beside = sum(count for count in heights.values() if count > 1)
    return beside > 10 and beside > 0.5 * len(prose)  # noqa: PLR2004


def _cells(words: Sequence[_Word]) -> list[_Word]:
    """Return a line's words joined where the gaps are narrow; a currency's sign goes to its number."""
    cells: list[_Word] = []
    for word in words:
        last = cells[-1] if cells else None
        if last is not None and (
            word.left - last.right < _GAP * min(last.size, word.size)
            or last.text in {"$", "€", "£", "¥", "("}
            or word.text in {")", "%", ")%"}
        ):
            space = "" if last.text[-1] in "$€£¥(" or word.text[0] in ")%" else " "
            cells[-1] = _Word(
                last.text + space + word.text, last.left, word.right, last.base, last.size, last.bold and word.bold
            )
        else:
            cells.append(word)
    return cells


def _drop_edges(pages: Sequence[list[_Line]]) -> None:
    """Take out running headers and footers, and numbers of pages."""

    def edges(lines: Sequence[_Line]) -> Iterator[tuple[tuple[str, int], _Line]]:
        for line in (*lines[:_EDGE], *lines[_EDGE:][-_EDGE:]):
            text = _DIGITS.sub("#", line.text.casefold()).strip()
            yield (text, round(line.base / _SAME_PLACE) if any(map(str.isalpha, text)) else 0), line

    seen = Counter(key for lines in pages for key in {key for key, _ in edges(lines)})
    most = max(2, _REPEATED * len(pages))
    for lines in pages:
        repeated = {id(line) for key, line in edges(lines) if seen[key] > most}
        lines[:] = [line for line in lines if id(line) not in repeated]


def _find_headings(pages: Sequence[list[_Line]]) -> None:
    """Give lines that are headings a level: by size, and at the size of the text by weight and capitals."""
    sizes: Counter[float] = Counter()
    bold = 0
    for line in (line for lines in pages for line in lines):
        sizes[round(line.size * 2) / 2] += len(line.text)
        bold += len(line.text) * line.bold
    if not sizes:
        return
    body = sizes.most_common(1)[0][0]
    weight_tells = bold < 0.4 * sum(sizes.values())
    ranks: dict[_Line | int, tuple[float, bool]] = {}
    headings: list[tuple[_Line, tuple[float, bool, bool]]] = []
    for lines in pages:
        for line in lines:
            if not _may_be_heading(line):
                continue
            size = round(line.size * 2) / 2
            if size >= body * _LARGER or (weight_tells and line.bold and size >= body * 0.9):
                headings.append((line, (max(size, body), line.text.isupper(), line.bold)))
    del ranks
    levels = {rank: level for level, rank in enumerate(sorted({rank for _, rank in headings}, reverse=True), start=1)}
    for line, rank in headings:
        line.level = min(levels[rank], _LEVELS)


def _may_be_heading(line: _Line) -> bool:
    text = line.text
    letters = sum(map(str.isalpha, text))
    return (
        len(line.cells) == 1
        and letters >= 3  # noqa: PLR2004
        and letters > 0.5 * len(text.replace(" ", ""))
        and len(text) <= _LONGEST_HEADING
        and text[-1] not in ".,;:-"
        and not text[0].islower()
    )


def _page(lines: Sequence[_Line]) -> str:
    """Return the lines of a page as Markdown."""
    blocks: list[str] = []
    position = 0
    for start, end in _tables(lines):
        blocks += _prose(lines[position:start])
        blocks.append(_table(lines[start:end]))
        position = end
    blocks += _prose(lines[position:])
    return "\n\n".join(blocks)


def _prose(lines: Sequence[_Line]) -> list[str]:
    """Return paragraphs and headings."""
    blocks: list[str] = []
    last: _Line | None = None
    for line in lines:
        text = line.text
        if line.level:
            if last is not None and last.level == line.level and last.base - line.base < 1.8 * line.size:
                blocks[-1] += f" {text}"  # a heading of two lines
            else:
                blocks.append(f"{'#' * line.level} {text}")
        else:
            bullet = _BULLET.match(text)
            text = (
                f"- {text[bullet.end() :]}"
                if bullet
                else _MARKUP.sub(r"\\\1", text, count=1)
                if _MARKUP.match(text) and not text[0].isdigit()
                else text
            )
            near = last is not None and not last.level and 0 < last.base - line.base < 1.7 * max(line.size, last.size)
            if not near:
                blocks.append(text)
            elif blocks[-1].endswith("-") and blocks[-1][-2:-1].isalpha() and text[0].islower():
                blocks[-1] = blocks[-1][:-1] + text
            else:
                blocks[-1] += f"\n{text}"
        last = line
    return blocks


def _tables(lines: Sequence[_Line]) -> list[tuple[int, int]]:
    """Return where tables start and end: three lines or more with values in cells, and the lines between them."""
    found: list[tuple[int, int]] = []
    for position in (position for position, line in enumerate(lines) if _is_row(line)):
        if found and position - found[-1][1] <= _BETWEEN and not _has_heading(lines, *found[-1], position):
            found[-1] = (found[-1][0], position + 1)
        else:
            found.append((position, position + 1))
    tables, floor = [], 0
    for start, end in found:
        if sum(_is_row(line) for line in lines[start:end]) >= _LEAST_ROWS:
            tables.append((_header_start(lines, start, end, floor), end))
            floor = end
    return tables


def _has_heading(lines: Sequence[_Line], start: int, end: int, until: int) -> bool:
    """Return whether a heading that is larger than the rows of a table stands below them."""
    return any(line.level and line.size > lines[start].size * _LARGER for line in lines[end:until])


def _header_start(lines: Sequence[_Line], start: int, end: int, floor: int) -> int:
    """Return where the header of a table starts: above its rows, also with some names of groups between."""
    left, first, names = _values_left(lines[start:end]), start, 0
    for at in range(start - 1, floor - 1, -1):
        line = lines[at]
        if line.base - lines[at + 1].base > 3 * line.size:
            break
        if _in_columns(line, left):
            first = at
        elif len(line.cells) > 1 or names == _BETWEEN or len(line.text) > _LONGEST_NAME:
            break
        else:
            names += 1
    return first


def _values_left(lines: Sequence[_Line]) -> float:
    """Return where the columns of values begin."""
    return min(cell.left for line in lines if _is_row(line) for cell in line.cells[1:]) - 6 * lines[0].size


def _in_columns(line: _Line, left: float) -> bool:
    """Return whether a line names columns: all of it but a first cell stands above their values."""
    cells = line.cells[1:] or line.cells
    return all(cell.left >= left for cell in cells) and (len(line.cells) > 1 or len(line.text) <= _LONGEST_NAME)


def _is_row(line: _Line) -> bool:
    return len(line.cells) > 1 and any(_VALUE.fullmatch(cell.text) for cell in line.cells[1:])


def _is_years(line: _Line) -> bool:
    return all(_YEAR.search(cell.text) for cell in line.cells[1:])


def _table(lines: Sequence[_Line]) -> str:
    """Return lines as a Markdown table: values that stand below one another are one column."""
    rows, left = [line for line in lines if _is_row(line)], _values_left(lines)
    values = [row for row in rows if not _is_years(row)] or rows
    columns = _columns([cell for row in values for cell in row.cells[1:]])
    head = next((at for at, line in enumerate(lines) if not _in_columns(line, left) or line in values), 0)
    header = [""] * (len(columns) + 1)
    for line in lines[:head]:
        named = line.cells[1:] if line.cells[0].right < left else line.cells
        if named != line.cells:
            header[0] = f"{header[0]} {line.cells[0].text}".strip()
        for at, column in enumerate(columns, start=1):
            nearest = min(named, key=lambda cell: _apart(column, cell))
            header[at] = f"{header[at]} {nearest.text}".strip()
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


def _columns(values: Sequence[_Word]) -> list[list[float]]:
    """Return left and right of each column of values."""
    columns: list[list[float]] = []
    for cell in sorted(values, key=lambda cell: cell.right):
        if columns and cell.left < columns[-1][1] and cell.right > columns[-1][0]:
            columns[-1] = [min(columns[-1][0], cell.left), max(columns[-1][1], cell.right)]
        else:
            columns.append([cell.left, cell.right])
    return columns


def _apart(column: Sequence[float], cell: _Word) -> tuple[float, float]:
    """Return how far a cell is from a column: less than 0 where they overlap; and how far their middles are."""
    middle = abs(column[0] + column[1] - cell.left - cell.right) / 2
    return max(column[0] - cell.right, cell.left - column[1], 0), middle
