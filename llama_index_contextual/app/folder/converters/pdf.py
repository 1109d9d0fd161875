"""PDF files, converted to Markdown page by page.

A PDF does not contain paragraphs, headings or tables. Lines in larger or bolder letters are treated
as headings, and lines with aligned values as tables. Lines that many pages repeat at their edges
are dropped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, pairwise
from pathlib import Path
from statistics import mode
from typing import Any

from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part, format_of
from llama_index_contextual.app.folder.markdown import BULLETS, escape, heading
from llama_index_contextual.app.folder.pdf_lines import FAR, GAP, LARGER, SAME_PLACE, lines_of
from llama_index_contextual.app.folder.pdf_tables import find_tables, table
from llama_index_contextual.app.folder.pdf_words import Word, in_reading_order, joined
from llama_index_contextual.utils.text import counted

_FULL = 0.6  # of the longest line; a heading shorter than this is not continued
_MUCH_LARGER = 1.3  # times the usual letter size: larger lines are not running headers
_EDGE = 4  # lines at the top and bottom of a page that can be headers or footers
_REPEATED = 0.3  # of the pages, since odd and even pages can differ
_LONGEST_HEADING = 130  # characters
_LONGEST_OWNER = 60  # characters of a name above a heading
_MOST_OWNERS = 2  # lines above a heading that belong to it
_LOWEST = 6  # the lowest level of a heading
_CURRENCIES = frozenset("$€£¥")
_OPENING = _CURRENCIES | {"("}
_CLOSING = (")", "%", ")%")

_BULLET = re.compile(rf"[•●▪■◦‣·o–{BULLETS}-](?=\s)\s*")
# The start of a numbered heading, which does not continue the heading above it.
_NUMBERED = re.compile(r"\d{1,3}(?:\.\d{1,3}){0,4}\.?\s+[^\W\d_]")
_BROKEN = re.compile(r"(\S{0,99}\w)-$")  # the word before a hyphen at the end of a line
_DAY = re.compile(r"D:(\d{4})(\d\d)?(\d\d)?")
_FILE_NAME = re.compile(r"\.\w{2,4}$|^Microsoft \w+ - ")

Style = tuple[float, bool]  # size of letters, and whether they are bold


class Line:
    """A line of words at the same height.

    Attributes:
        cells: The words, joined if the gaps between them are narrow.
        level: The level of a heading, or 0.
        is_name: Whether it is a name above a heading, such as that of a company.
        size: The height of its largest letters.
        usual: The height of most of its letters.
        bold: Whether all its words are bold.
    """

    def __init__(self, words: list[Word]) -> None:
        self.words = words
        self.level = 0
        self.is_name = False
        self.text = " ".join(word.text for word in in_reading_order(words))
        self.base = words[0].base
        self.size = max(word.size for word in words)
        self.usual = mode(round(word.size, 1) for word in words for _ in word.text)
        self.width = words[-1].right - words[0].left
        self.bold = all(word.bold for word in words if any(map(str.isalpha, word.text)))
        self.cells = _cells(words)

    @property
    def style(self) -> Style:
        """Return the size of its letters in steps of half a point, and whether they are bold."""
        return round(self.usual * 2) / 2, self.bold

    def gap_below(self, line: Line) -> float:
        """Return the distance below another line in points."""
        return line.base - self.base


def _cells(words: Sequence[Word]) -> list[Word]:
    """Return a line's words, joined if the gaps between them are narrow.

    A currency sign is joined to its number.
    """
    groups: list[list[Word]] = []
    for word in words:
        if groups and _is_in_cell(groups[-1], word):
            groups[-1].append(word)
        else:
            groups.append([word])
    return [joined(group, _text_of_cell(group)) for group in groups]


def _text_of_cell(words: Sequence[Word]) -> str:
    text = ""
    for word in in_reading_order(words):
        is_apart = text and text[-1] not in _OPENING and word.text[0] not in ")%"
        text += f" {word.text}" if is_apart else word.text
    return text


def _is_in_cell(cell: Sequence[Word], word: Word) -> bool:
    first = cell[0]
    is_currency = len(cell) == 1 and first.text in _OPENING
    if is_currency or word.text in _CLOSING:
        return True
    is_near = word.left - cell[-1].right < GAP * min(first.size, word.size)
    return is_near and word.text not in _CURRENCIES


@format_of(
    "PDF",
    ".pdf",
    packages=("pypdfium2",),
    place="page",
    kept="columns, turned text, raised digits, typed form fields",
    left_out="pictures, comments, ticked boxes, running headers and footers, fonts without letters",
)
def read_pdf(path: Path) -> Conversion:
    """Return the pages of a PDF.

    Raises:
        ConversionError: The file is encrypted or damaged, or has no text.
    """
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise ConversionError(
                "it is encrypted. Save it without a password, or ignore it."
            ) from error
        reason = str(error).rstrip(".")
        raise ConversionError(f"it is damaged or not a PDF ({reason}). Ignore it.") from error
    document.init_forms()
    left_out: Counter[str] = Counter()
    numbers = range(len(document))
    pages = [list(map(Line, lines_of(document, number, left_out))) for number in numbers]
    if not any(pages):
        raise ConversionError(_without_text(len(pages), left_out))
    left_out += _drop_edges(pages)
    _find_headings(pages)
    parts = [Part(_page(lines), {"page": number}) for number, lines in enumerate(pages, start=1)]
    return Conversion(parts, _metadata(document), left_out)


def _without_text(pages: int, left_out: Counter[str]) -> str:
    if left_out["unreadable character"]:
        reason = "its fonts do not define their letters"
    else:
        reason = f"it has no text on {counted(pages, 'page')}, which may be scanned"
    return f"{reason}. Use a reader with OCR in Python, readers={{'.pdf': …}}, or ignore it."


def _metadata(document: Any) -> dict[str, str]:
    info = document.get_metadata_dict(skip_empty=True)
    title = info.get("Title", "").strip()
    is_name_of_file = " " not in title or _FILE_NAME.search(title)
    return {
        "title": "" if is_name_of_file else title,
        "author": info.get("Author", "").strip(),
        "created": _day(info.get("CreationDate", "")),
        "modified": _day(info.get("ModDate", "")),
    }


def _day(text: str) -> str:
    match = _DAY.match(text)
    return "-".join(filter(None, match.groups())) if match else ""


def _drop_edges(pages: Sequence[list[Line]]) -> Counter[str]:
    """Remove headers, footers and page numbers from the edges of pages, and count them."""
    largest = _MUCH_LARGER * _usual_size(pages)
    edges = [list(_edges(lines, largest)) for lines in pages]
    seen: Counter[tuple[str, int]] = Counter()
    for edge in edges:
        seen.update({key for key, _ in edge})
    most = max(2, _REPEATED * len(pages))
    left_out: Counter[str] = Counter()
    for lines, edge in zip(pages, edges, strict=True):
        dropped = set()
        for key, line in edge:
            if seen[key] > most:
                dropped.add(line)
                _, place = key
                left_out["repeated margin line" if place else "page number"] += 1
        lines[:] = [line for line in lines if line not in dropped]
    return left_out


def _edges(lines: Sequence[Line], largest: float) -> Iterator[tuple[tuple[str, int], Line]]:
    """Yield the lines at the edges of a page, each with its text without numbers and its place."""
    # Sort by height, because the last line of a page with columns is at the end of a column.
    downwards = sorted(lines, key=lambda line: -line.base)
    for line in (*downwards[:_EDGE], *downwards[_EDGE:][-_EDGE:]):
        if line.size >= largest:
            continue
        text = re.sub(r"\d+", "#", line.text.casefold()).strip()
        is_number = len(line.cells) == 1 and not any(map(str.isalpha, text))
        yield (text, 0 if is_number else round(line.base / SAME_PLACE)), line


def _usual_size(pages: Sequence[list[Line]]) -> float:
    sizes: Counter[float] = Counter()
    for line in chain(*pages):
        size, _ = line.style
        sizes[size] += len(line.text)
    return max(sizes, key=sizes.__getitem__, default=0.0)


def _find_headings(pages: Sequence[list[Line]]) -> None:
    """Set the level of lines that are headings.

    The level depends on the size, and for lines of the usual size on boldness and capitals.
    """
    body = _usual_size(pages)
    running = _running_styles(pages)
    ranks: dict[Line, tuple[float, bool, bool]] = {}
    for line in chain(*pages):
        size, bold = line.style
        is_prominent = size >= body * LARGER or (bold and size >= body * 0.9)
        if is_prominent and line.style not in running and _may_be_heading(line):
            ranks[line] = (max(size, body), line.text.isupper(), bold)
    ordered = sorted(set(ranks.values()), reverse=True)
    for line, rank in ranks.items():
        line.level = min(ordered.index(rank) + 1, _LOWEST)
    for lines in pages:
        for above, line in pairwise(lines):
            is_alike = line.style == above.style and line.size >= body * LARGER
            is_close = 0 < line.gap_below(above) < 1.8 * line.size
            is_lower = line.level == 0 and line.text[0].islower()
            if above.level and is_alike and is_close and is_lower:
                line.level = above.level  # a heading on two lines


def _running_styles(pages: Sequence[list[Line]]) -> set[Style]:
    """Return the styles of running text, in which most lines continue a wide line above."""
    characters: Counter[Style] = Counter()  # of lines with a single cell
    running: Counter[Style] = Counter()  # of those that continue a wide line above
    for lines in pages:
        wide = _FULL * max((line.width for line in lines), default=0.0)
        single = (line for line in lines if len(line.cells) == 1)
        for style, run in groupby(single, key=lambda line: line.style):
            texts = list(run)
            characters[style] += sum(len(line.text) for line in texts)
            for above, line in pairwise(texts):
                if above.width > wide and 0 < line.gap_below(above) < 2.2 * line.size:
                    running[style] += len(line.text)
    return {style for style, count in running.items() if count > 0.5 * characters[style]}


def _may_be_heading(line: Line) -> bool:
    text = line.text
    if len(line.cells) != 1 or len(text) > _LONGEST_HEADING:
        return False
    if line.base <= -FAR / 2:  # rotated text is a watermark or a margin note
        return False
    if text[-1] in ".,;:-" or text[0].islower():
        return False
    is_unit = text[0] == "(" and text[-1] == ")"
    letters = sum(map(str.isalpha, text))
    return not is_unit and 2 * letters > max(5, len(text.replace(" ", "")))


def _page(lines: Sequence[Line]) -> str:
    """Return the lines of a page as Markdown.

    Short lines at the top of the page become part of the heading below them, such as a company's
    name above a statement.
    """
    first = next((index for index, line in enumerate(lines) if line.level), 0)
    owners = lines[:first] if first <= _MOST_OWNERS else ()
    if all(len(line.text) <= _LONGEST_OWNER and len(line.cells) == 1 for line in owners):
        for line in owners:
            line.level = lines[first].level
            line.is_name = True
    blocks: list[str] = []
    position = 0
    for start, end in find_tables(lines):
        blocks += _prose(lines[position:start])
        blocks.append(table(lines[start:end]))
        position = end
    blocks += _prose(lines[position:])
    return "\n\n".join(blocks)


def _prose(lines: Sequence[Line]) -> list[str]:
    """Return lines as paragraphs and headings."""
    blocks: list[str] = []
    width = max((line.width for line in lines), default=0.0)
    above: Line | None = None
    for line in lines:
        is_continued = above is not None and _continues(above, line, width)
        above = line
        text = line.text
        if line.level:
            if is_continued:
                blocks[-1] += f" {text}"
            else:
                blocks.append(heading(line.level, text))
            continue
        bullet = _BULLET.match(text)
        if bullet:
            text = f"- {text[bullet.end() :]}"
        elif not text[0].isdigit():  # a number starts an item in Markdown, too
            text = escape(text)
        if is_continued:
            blocks[-1] = _joined(blocks[-1], text)
        else:
            blocks.append(text)
    return blocks


def _continues(above: Line, line: Line, width: float) -> bool:
    """Return whether a line continues the paragraph or heading above it."""
    if line.level != above.level:
        return False
    if not line.level:
        return 0 < line.gap_below(above) < 1.7 * max(line.size, above.size)
    is_open = above.width > _FULL * width or above.is_name or line.text[0].islower()
    is_close = line.gap_below(above) < 1.8 * above.size
    return is_open and is_close and not _NUMBERED.match(line.text)


def _joined(block: str, text: str) -> str:
    """Return a paragraph with its next line, after joining a word that is split by a hyphen."""
    word = _BROKEN.search(block[-100:])
    if word is None or not text[0].isalnum():
        return f"{block}\n{text}"
    start = word[1]
    is_one_word = start[-1].isalpha() and text[0].islower()
    keeps_hyphen = "-" in start or len(start) == 1 or not is_one_word
    return (block if keeps_hyphen else block[:-1]) + text
