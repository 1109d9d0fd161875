"""PDF files, converted to Markdown page by page.

A PDF does not contain paragraphs, headings or tables. Lines in larger or bolder letters are treated
as headings, and lines with aligned values as tables. Lines that many pages repeat at their edges
are dropped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from llama_index_contextual.app.folder.formats import (
    Conversion,
    ConversionError,
    Part,
    declare_format,
)
from llama_index_contextual.app.folder.markdown import BULLETS, escape, heading
from llama_index_contextual.app.folder.pdf_lines import LARGER, Line, Style, lines_of
from llama_index_contextual.app.folder.pdf_tables import find_tables, table_of_lines
from llama_index_contextual.app.folder.pdf_words import SAME_PLACE
from llama_index_contextual.utils.text import counted

# Shares of the width of the longest line. After a shorter line, running text or a heading ends.
_WIDE = 0.6
# Letter sizes between the bases of two lines that belong together.
_TEXT_SPACING = 1.7
_HEADING_SPACING = 1.8
_RUNNING_SPACING = 2.2
_MUCH_LARGER = 1.3  # times the usual letter size: larger lines are not running headers
_MARGIN_LINES = 4  # at the top and bottom of a page, which can be headers or footers
_REPEATED_SHARE = 0.3  # of the pages, since odd and even pages can differ
_MAX_HEADING = 130  # characters
_MAX_NAME = 60  # characters of a name above a heading
_MAX_NAMES = 2  # lines above a heading that belong to it
_LOWEST_LEVEL = 6

_BULLET = re.compile(rf"[•●▪■◦‣·o–{BULLETS}-](?=\s)\s*")
# The start of a numbered heading, which does not continue the heading above it.
_NUMBERED = re.compile(r"\d{1,3}(?:\.\d{1,3}){0,4}\.?\s+[^\W\d_]")
_BROKEN = re.compile(r"(\S{0,99}\w)-$")  # the word before a hyphen at the end of a line
_DAY = re.compile(r"D:(\d{4})(\d\d)?(\d\d)?")
_FILE_NAME = re.compile(r"\.\w{2,4}$|^Microsoft \w+ - ")


@declare_format(
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
    pages = [lines_of(document, index, left_out) for index in range(len(document))]
    if not any(pages):
        raise ConversionError(_why_without_text(len(pages), left_out))
    left_out += _remove_margin_lines(pages)
    _set_heading_levels(pages)
    parts = []
    for number, lines in enumerate(pages, start=1):
        parts.append(Part(_page_text(lines), {"page": number}))
    return Conversion(parts, _metadata(document), left_out)


def _why_without_text(page_count: int, left_out: Counter[str]) -> str:
    if left_out["unreadable character"]:
        reason = "its fonts do not define their letters"
    else:
        reason = f"it has no text on {counted(page_count, 'page')}, which may be scanned"
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


class _MarginText(NamedTuple):
    """What identifies a line that several pages repeat.

    Attributes:
        text: The text, with a sign in place of each number.
        height: The rounded height on the page; None for a page number, which can be anywhere.
    """

    text: str
    height: int | None


def _remove_margin_lines(pages: Sequence[list[Line]]) -> Counter[str]:
    """Remove repeated headers, footers and page numbers, and return their counts."""
    largest = _MUCH_LARGER * _body_size(pages)
    margins = [_margin_lines(lines, largest) for lines in pages]
    page_counts: Counter[_MarginText] = Counter()
    for margin in margins:
        page_counts.update(set(margin.values()))
    limit = max(2, _REPEATED_SHARE * len(pages))
    left_out: Counter[str] = Counter()
    for lines, margin in zip(pages, margins, strict=True):
        repeated = {line: text for line, text in margin.items() if page_counts[text] > limit}
        for text in repeated.values():
            left_out["page number" if text.height is None else "repeated margin line"] += 1
        lines[:] = [line for line in lines if line not in repeated]
    return left_out


def _margin_lines(lines: Sequence[Line], largest: float) -> dict[Line, _MarginText]:
    """Return the lines at the top and bottom of a page, without lines in large letters."""
    # Sort by height, because the last line of a page with columns is at the end of a column.
    downwards = sorted(lines, key=lambda line: -line.base)
    top = downwards[:_MARGIN_LINES]
    bottom = downwards[_MARGIN_LINES:][-_MARGIN_LINES:]
    margin = {}
    for line in top + bottom:
        if line.size < largest:
            text = re.sub(r"\d+", "#", line.text.casefold()).strip()
            is_number = len(line.cells) == 1 and not any(map(str.isalpha, text))
            height = None if is_number else round(line.base / SAME_PLACE)
            margin[line] = _MarginText(text, height)
    return margin


def _body_size(pages: Sequence[list[Line]]) -> float:
    """Return the size of most letters of a document."""
    letters: Counter[float] = Counter()
    for line in chain(*pages):
        size, _ = line.style
        letters[size] += len(line.text)
    return max(letters, key=letters.__getitem__, default=0.0)


def _set_heading_levels(pages: Sequence[list[Line]]) -> None:
    """Set the level of lines that are headings.

    The level depends on the size, and for lines of the usual size on boldness and capitals.
    """
    body_size = _body_size(pages)
    running_styles = _running_styles(pages)

    # Rank the headings of the whole document.
    ranks: dict[Line, tuple[float, bool, bool]] = {}
    for line in chain(*pages):
        size, bold = line.style
        is_prominent = size >= body_size * LARGER or (bold and size >= body_size * 0.9)
        if is_prominent and line.style not in running_styles and _may_be_heading(line):
            ranks[line] = (max(size, body_size), line.text.isupper(), bold)
    ordered = sorted(set(ranks.values()), reverse=True)
    for line, rank in ranks.items():
        line.level = min(ordered.index(rank) + 1, _LOWEST_LEVEL)

    # Add the second lines of headings, which start with a small letter.
    for lines in pages:
        for above, line in pairwise(lines):
            is_alike = line.style == above.style and line.size >= body_size * LARGER
            is_close = 0 < line.gap_below(above) < _HEADING_SPACING * line.size
            is_lower = line.level == 0 and line.text[0].islower()
            if above.level and is_alike and is_close and is_lower:
                line.level = above.level


def _running_styles(pages: Sequence[list[Line]]) -> set[Style]:
    """Return the styles of running text, in which most lines continue a wide line above."""
    # Characters by style, of lines with a single cell.
    characters: Counter[Style] = Counter()
    continuing_characters: Counter[Style] = Counter()
    for lines in pages:
        wide = _WIDE * max((line.width for line in lines), default=0.0)
        lines_of_one_cell = (line for line in lines if len(line.cells) == 1)
        for style, run in groupby(lines_of_one_cell, key=lambda line: line.style):
            lines_in_style = list(run)
            characters[style] += sum(len(line.text) for line in lines_in_style)
            for above, line in pairwise(lines_in_style):
                is_close = 0 < line.gap_below(above) < _RUNNING_SPACING * line.size
                if above.width > wide and is_close:
                    continuing_characters[style] += len(line.text)
    return {
        style for style, count in continuing_characters.items() if 2 * count > characters[style]
    }


def _may_be_heading(line: Line) -> bool:
    text = line.text
    if len(line.cells) != 1 or len(text) > _MAX_HEADING:
        return False
    if line.is_rotated:  # a watermark or a margin note
        return False
    if text[-1] in ".,;:-" or text[0].islower():
        return False
    is_unit = text[0] == "(" and text[-1] == ")"
    letters = sum(map(str.isalpha, text))
    return not is_unit and 2 * letters > max(5, len(text.replace(" ", "")))


def _page_text(lines: Sequence[Line]) -> str:
    """Return the lines of a page as Markdown."""
    _mark_names(lines)
    blocks: list[str] = []
    position = 0
    for table in find_tables(lines):
        blocks += _text_blocks(lines[position : table.start])
        blocks.append(table_of_lines(lines[table.start : table.stop]))
        position = table.stop
    blocks += _text_blocks(lines[position:])
    return "\n\n".join(blocks)


def _mark_names(lines: Sequence[Line]) -> None:
    """Make short lines at the top of a page part of the heading below them.

    Such a line is, for example, a company's name above a statement.
    """
    first = next((index for index, line in enumerate(lines) if line.level), 0)
    names = lines[:first]
    are_short = all(len(line.text) <= _MAX_NAME and len(line.cells) == 1 for line in names)
    if len(names) <= _MAX_NAMES and are_short:
        for line in names:
            line.level = lines[first].level
            line.is_name = True


def _text_blocks(lines: Sequence[Line]) -> list[str]:
    """Return lines as paragraphs and headings."""
    blocks: list[str] = []
    width = max((line.width for line in lines), default=0.0)
    above: Line | None = None
    for line in lines:
        is_continued = above is not None and _continues(above, line, width)
        above = line
        if line.level and is_continued:
            blocks[-1] += f" {line.text}"
        elif line.level:
            blocks.append(heading(line.level, line.text))
        elif is_continued:
            blocks[-1] = _with_next_line(blocks[-1], _markdown_of(line.text))
        else:
            blocks.append(_markdown_of(line.text))
    return blocks


def _markdown_of(text: str) -> str:
    """Return a line of a paragraph or a list item as Markdown."""
    bullet = _BULLET.match(text)
    if bullet:
        return f"- {text[bullet.end() :]}"
    starts_numbered_item = text[0].isdigit()  # as in Markdown
    return text if starts_numbered_item else escape(text)


def _continues(above: Line, line: Line, width: float) -> bool:
    """Return whether a line continues the paragraph or heading above it.

    Args:
        above: The line above.
        line: The line.
        width: The width of the longest line.
    """
    if line.level != above.level:
        return False
    if not line.level:
        return 0 < line.gap_below(above) < _TEXT_SPACING * max(line.size, above.size)
    is_open = above.width > _WIDE * width or above.is_name or line.text[0].islower()
    is_close = line.gap_below(above) < _HEADING_SPACING * above.size
    return is_open and is_close and not _NUMBERED.match(line.text)


def _with_next_line(block: str, text: str) -> str:
    """Return a paragraph with its next line, after joining a word that is split by a hyphen."""
    broken_word = _BROKEN.search(block[-100:])
    if broken_word is None or not text[0].isalnum():
        return f"{block}\n{text}"
    start = broken_word[1]
    is_one_word = start[-1].isalpha() and text[0].islower()
    keeps_hyphen = "-" in start or len(start) == 1 or not is_one_word
    return (block if keeps_hyphen else block[:-1]) + text
