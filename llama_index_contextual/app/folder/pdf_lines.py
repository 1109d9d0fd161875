"""The lines of a PDF page in reading order.

Words at the same height form a line, which wide gaps divide into cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mode
from typing import TYPE_CHECKING, Any

from llama_index_contextual.app.folder.pdf_columns import in_column_order
from llama_index_contextual.app.folder.pdf_words import (
    CELL_GAP,
    PageWords,
    Word,
    WordLine,
    in_reading_order,
    join_letters,
    join_words,
)

if TYPE_CHECKING:
    from collections import Counter

LARGER = 1.12  # times the usual letter size: the smallest size of a heading
_ROTATED = 100_000  # points by which rotated text is placed below other text
_SAME_LINE = 0.35  # letter sizes; words whose heights differ by less are on one line
_PIECE_GAP = 8  # letter sizes; a word after a wider gap was not drawn as part of the same line
_CURRENCIES = frozenset("$€£¥")
_OPENING = _CURRENCIES | {"("}
_CLOSING = (")", "%", ")%")

Style = tuple[float, bool]  # size of letters, and whether they are bold


class Line:
    """A line of words at the same height.

    Attributes:
        cells: The words, joined if the gaps between them are narrow.
        level: The level of a heading, or 0.
        is_name: Whether it is a name above a heading, such as that of a company.
        size: The height of its largest letters.
        usual_size: The height of most of its letters.
        bold: Whether all its words are bold.
    """

    def __init__(self, words: WordLine) -> None:
        self.words = words
        self.level = 0
        self.is_name = False
        self.text = " ".join(word.text for word in in_reading_order(words))
        self.base = words[0].base
        self.size = max(word.size for word in words)
        self.usual_size = mode(round(word.size, 1) for word in words for _ in word.text)
        self.width = words[-1].right - words[0].left
        self.bold = all(word.bold for word in words if any(map(str.isalpha, word.text)))
        self.cells = _cells(words)

    @property
    def style(self) -> Style:
        """Return the size of its letters in steps of half a point, and whether they are bold."""
        return round(self.usual_size * 2) / 2, self.bold

    @property
    def is_rotated(self) -> bool:
        """Return whether most text of the page has another direction."""
        return self.base <= -_ROTATED / 2

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
    return [join_words(group, _text_of_cell(group)) for group in groups]


def _text_of_cell(words: Sequence[Word]) -> str:
    text = ""
    for word in in_reading_order(words):
        is_apart = text and text[-1] not in _OPENING and word.text[0] not in ")%"
        text += f" {word.text}" if is_apart else word.text
    return text


def _is_in_cell(cell: Sequence[Word], word: Word) -> bool:
    """Return whether the next word of a line belongs to a cell."""
    first = cell[0]
    is_opening = len(cell) == 1 and first.text in _OPENING
    if is_opening or word.text in _CLOSING:
        return True
    is_near = word.left - cell[-1].right < CELL_GAP * min(first.size, word.size)
    return is_near and word.text not in _CURRENCIES


def lines_of(document: Any, page_index: int, left_out: Counter[str]) -> list[Line]:
    """Return the lines of a page from top to bottom, with rotated text last.

    If the page cannot be read, there are no lines. Comments and unreadable characters are counted
    in ``left_out``.
    """
    directions = _words_by_direction(document, page_index, left_out)
    lines: list[WordLine] = []
    for rank, words in enumerate(sorted(directions, key=_text_length, reverse=True)):
        for word in words:
            word.base -= rank * _ROTATED
        lines += in_column_order(_word_lines(words))
    return list(map(Line, lines))


def _words_by_direction(document: Any, page_index: int, left_out: Counter[str]) -> list[list[Word]]:
    import pypdfium2
    import pypdfium2.raw as pdfium

    try:
        page = document[page_index]
        for index in range(pdfium.FPDFPage_GetAnnotCount(page)):
            note = pdfium.FPDFPage_GetAnnot(page, index)
            left_out["comment"] += pdfium.FPDFAnnot_GetSubtype(note) == pdfium.FPDF_ANNOT_TEXT
            pdfium.FPDFPage_CloseAnnot(note)
        if document.formenv:  # turn typed form fields into text of the page
            page.flatten()
            page = document[page_index]
        text = page.get_textpage()
    except pypdfium2.PdfiumError:
        return []
    words = PageWords(text).by_direction(left_out)
    text.close()
    page.close()
    return list(words.values())


def _text_length(words: Iterable[Word]) -> int:
    return sum(len(word.text) for word in words)


def _word_lines(words: Sequence[Word]) -> list[WordLine]:
    """Return words as lines from top to bottom."""
    lines: list[WordLine] = []
    for piece in sorted(_pieces(words), key=lambda piece: -piece[0].base):
        if lines and _is_on_line(lines[-1][0], piece[0]):
            lines[-1] += piece
        else:
            lines.append(piece)
    return [join_letters(sorted(line, key=lambda word: word.left)) for line in lines]


def _pieces(words: Sequence[Word]) -> list[WordLine]:
    """Return the groups of words that were drawn one after the other on a line.

    PDFium returns words in the order in which they were drawn, and tables can be drawn by column.
    Superscript digits become part of the word before them.
    """
    pieces = [[words[0]]]
    for word in words[1:]:
        before = pieces[-1][-1]
        limit = before.right + _PIECE_GAP * word.size
        if _is_superscript(before, word):
            before.text = f"{before.text}^{word.text}"
            before.right = word.right
        elif _is_on_line(before, word) and before.left <= word.left < limit:
            pieces[-1].append(word)
        else:
            pieces.append([word])
    return pieces


def _is_superscript(before: Word, word: Word) -> bool:
    """Return whether a word consists of smaller digits above the end of another word."""
    is_higher = 0.2 * before.size < word.base - before.base < 0.7 * before.size
    is_next = abs(word.left - before.right) < 0.2 * before.size
    return is_higher and is_next and word.size < 0.85 * before.size and word.text.isdecimal()


def _is_on_line(word: Word, other: Word) -> bool:
    """Return whether two words have the same height."""
    return abs(word.base - other.base) < _SAME_LINE * max(word.size, other.size)
