"""PDF to Markdown, page by page: headings by their letters, tables by their columns.

A PDF has no paragraphs, headings or tables. Lines in larger or bolder letters than most are headings; lines that most
pages repeat at their edge are no text.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.documents.conversion import ConversionError, Converted, Part
from llama_index_contextual.documents.pdf_lines import LARGER, SAME_PLACE, Line, lines_of
from llama_index_contextual.documents.pdf_tables import markdown_of, tables_of
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_LONGEST_HEADING: Final = 130  # characters
_EDGE: Final = 4  # lines at the top and at the bottom of a page that may be repeated on others
_REPEATED: Final = 0.3  # of the pages that have a line at their edge: then it is no text; odd and even pages may differ
_LEVELS: Final = 6
_FULL: Final = 0.6  # of the longest line: a heading that is shorter ends there
_MOST_ABOVE: Final = 2  # lines at the top of a page that name what its first heading is of
_LONGEST_ABOVE: Final = 60  # characters of each
_DIGITS: Final = re.compile(r"\d+")
_BULLET: Final = re.compile(r"[•●▪■◦‣·o–-](?=\s)\s*")
_MARKUP: Final = re.compile(r"(#{1,6}\s|[-+*>]\s|\d{1,9}[.)]\s|```|~~~|---+\s*$|===+\s*$|\|)")
_DATE: Final = re.compile(r"D:(\d{4})(\d\d)?(\d\d)?")


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
    pages = [lines_of(document, number) for number in range(len(document))]
    if not any(pages):
        raise ConversionError(
            f"it has no text, but pictures on {counted(len(pages), 'page')} (scanned). Cure: a reader with OCR, in "
            "Python: readers={'.pdf': …}; or ignore it."
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
    sizes: Counter[float] = Counter()
    bold = 0
    for line in (line for lines in pages for line in lines):
        sizes[round(line.size * 2) / 2] += len(line.text)
        bold += len(line.text) * line.bold
    if not sizes:
        return
    body = sizes.most_common(1)[0][0]
    weight_tells = bold < 0.4 * sum(sizes.values())
    headings: list[tuple[Line, tuple[float, bool, bool]]] = []
    for lines in pages:
        for line in lines:
            if not _may_be_heading(line):
                continue
            size = round(line.size * 2) / 2
            if size >= body * LARGER or (weight_tells and line.bold and size >= body * 0.9):
                headings.append((line, (max(size, body), line.text.isupper(), line.bold)))
    levels = {rank: level for level, rank in enumerate(sorted({rank for _, rank in headings}, reverse=True), start=1)}
    for line, rank in headings:
        line.level = min(levels[rank], _LEVELS)


def _may_be_heading(line: Line) -> bool:
    text = line.text
    letters = sum(map(str.isalpha, text))
    return (
        len(line.cells) == 1
        and letters >= 3  # noqa: PLR2004
        and letters > 0.5 * len(text.replace(" ", ""))
        and len(text) <= _LONGEST_HEADING
        and text[-1] not in ".,;:-"
        and not text[0].islower()
        and not (text[0] == "(" and text[-1] == ")")  # a unit
    )


def _page(lines: Sequence[Line]) -> str:
    """Return the lines of a page as Markdown."""
    _name_top(lines)
    blocks: list[str] = []
    position = 0
    for start, end in tables_of(lines):
        blocks += _prose(lines[position:start])
        blocks.append(markdown_of(lines[start:end]))
        position = end
    blocks += _prose(lines[position:])
    return "\n\n".join(blocks)


def _name_top(lines: Sequence[Line]) -> None:
    """Make short lines at the top of a page headings with the one below them, as a company's name above a statement."""
    first = next((at for at, line in enumerate(lines) if line.level), 0)
    if first <= _MOST_ABOVE and all(
        len(line.text) <= _LONGEST_ABOVE and len(line.cells) == 1 for line in lines[:first]
    ):
        for line in lines[:first]:
            line.level, line.is_name = lines[first].level, True


def _goes_on(line: Line, following: Line, width: float) -> bool:
    """Return whether a heading goes on in the line below it: it fills its own, or is a name at the top of a page."""
    near = line.base - following.base < 1.8 * line.size
    return near and (line.width > _FULL * width or line.is_name)


def _prose(lines: Sequence[Line]) -> list[str]:
    """Return paragraphs and headings."""
    blocks: list[str] = []
    last: Line | None = None
    width = max((line.width for line in lines), default=0.0)
    for line in lines:
        text = line.text
        if line.level:
            if last is not None and last.level == line.level and _goes_on(last, line, width):
                blocks[-1] += f" {text}"  # a heading of two lines
            else:
                blocks.append(f"{'#' * line.level} {text}")
        else:
            bullet = _BULLET.match(text)
            text = (
                f"- {text[bullet.end() :]}"
                if bullet
                else f"\\{text}"
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
