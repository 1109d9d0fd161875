"""The lines of a page of a PDF, in the order in which they are read: words, their places, columns of the page.

PDFium says where each letter stands, in which size and weight. Words on one height make a line; wide gaps part it into
cells; where names or prose begin below one another near the middle of the page, it has two columns.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, Final

_SPACES: Final = frozenset({0, 2, 9, 10, 13, 32, 160, 0xFFFE})
_HYPHENS: Final = frozenset({2, 0xFFFE})  # what PDFium gives for a hyphen at the end of a line
_SAME_HEIGHT: Final = 0.35  # of a letter's size: words that differ less are on one line
_GAP: Final = 1.0  # of a letter's size: a wider one parts cells
SAME_PLACE: Final = 4.0  # points by which what is at one place differs
_LEAST_COLUMN: Final = 5  # lines of a column of a page
_HANGING: Final = 8  # steps of half a place by which the first word of a line may stand further left than others
_NAME: Final = re.compile(r"\(?[^\W\d]")
_MIDDLE: Final = (0.4, 0.65)  # of the width of a page: where the right one of two columns begins
LEAST_ROWS: Final = 3  # of a table
_CURRENCIES: Final = frozenset("$€£¥")
_BOLD: Final = re.compile(rb"bold|black|heavy|semibd|demi", re.IGNORECASE)
LARGER: Final = 1.12  # than most letters: a heading's


@dataclass(slots=True)
class Word:
    """A word, in points from the lower left corner; ``size`` is the height of its letters."""

    text: str
    left: float
    right: float
    base: float
    size: float
    bold: bool


@dataclass(slots=True)
class Line:
    """Words on one height; ``cells`` are they joined where gaps are narrow.

    ``level`` is that of a heading, or 0; ``is_name`` says that it names whose the heading below it is.
    """

    words: list[Word]
    cells: list[Word] = field(default_factory=list)
    level: int = 0
    is_name: bool = False

    @property
    def text(self) -> str:
        """Return its words."""
        return " ".join(word.text for word in self.words)

    @property
    def base(self) -> float:
        """Return the height on which it stands."""
        return self.words[0].base

    @property
    def size(self) -> float:
        """Return the height of its largest letters."""
        return max(word.size for word in self.words)

    @property
    def width(self) -> float:
        """Return how wide it is."""
        return self.words[-1].right - self.words[0].left

    @property
    def bold(self) -> bool:
        """Return whether all its words are bold."""
        return all(word.bold for word in self.words if any(map(str.isalpha, word.text)))


def lines_of(document: Any, number: int) -> list[Line]:
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


def _words(page: Any) -> list[Word]:
    import pypdfium2.raw as pdfium

    raw, count = page.raw, page.count_chars()
    codes = [pdfium.FPDFText_GetUnicode(raw, index) for index in range(count)]
    x, y, right = ctypes.c_double(), ctypes.c_double(), ctypes.c_double()
    box, flags = pdfium.FS_RECTF(), ctypes.c_int()
    unused = ctypes.c_double()
    font = ctypes.create_string_buffer(128)
    words: list[Word] = []
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
        words.append(Word(text, x.value, max(right.value, x.value), y.value, size, bold))
        start = -1
    return words


def _char(code: int) -> str:
    return chr(code) if 32 <= code < 0x110000 and not 0xD800 <= code < 0xE000 else ""  # noqa: PLR2004


def _joined(words: Sequence[Word]) -> list[Line]:
    """Return words as lines, from top to bottom.

    PDFium gives words in the order in which they were drawn: a table may be drawn column by column. Pieces on one
    height are one line, unless the page has columns.
    """
    pieces: list[list[Word]] = []
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
    lines = _heights(pieces)
    gutter = _gutter(lines)
    if gutter is not None:
        return _in_two_columns(lines, gutter)
    return [Line(piece) for piece in pieces] if _has_columns(pieces) else [Line(line) for line in lines]


def _heights(pieces: Iterable[list[Word]]) -> list[list[Word]]:
    """Return pieces on one height as one line."""
    lines: list[list[Word]] = []
    for piece in sorted(pieces, key=lambda piece: -piece[0].base):
        if lines and abs(lines[-1][0].base - piece[0].base) < _SAME_HEIGHT * max(lines[-1][0].size, piece[0].size):
            lines[-1].extend(piece)
        else:
            lines.append(list(piece))
    for line in lines:
        line.sort(key=lambda word: word.left)
    return lines


def _gutter(lines: Sequence[list[Word]]) -> float | None:
    """Return where the right one of two columns begins; None for a page of one.

    Names or prose begin there on several lines, near the middle of the page. In a table, values do.
    """
    left, right = min((line[0].left for line in lines), default=0), max((line[-1].right for line in lines), default=0)
    starts = Counter(
        round(word.left / SAME_PLACE)
        for line in lines
        for before, word in pairwise([None, *line])
        if word is not None and _NAME.match(word.text) and _begins(before, word)
    )
    low, high = (left + share * (right - left) for share in _MIDDLE)
    middle = {at: count for at, count in starts.items() if low < at * SAME_PLACE < high}
    at = max(middle, key=middle.__getitem__, default=0)
    if middle.get(at, 0) < _LEAST_COLUMN:
        return None
    start = (at - 0.75) * SAME_PLACE
    # Bullets, and headings of a right column, stand further left than most of its lines.
    gutter = min(
        (start - step * SAME_PLACE / 2 for step in range(_HANGING)),
        key=lambda place: sum(_bridges(line, place) for line in lines),
    )
    beside = [line for line in lines if not _bridges(line, gutter) and line[0].left < gutter]
    ends = [max(word.right for word in line if word.left < gutter) for line in beside]
    filled = sum(end > gutter - 0.12 * (right - left) for end in ends)
    return gutter if filled > 0.3 * len(ends) else None


def _begins(before: Word | None, word: Word) -> bool:
    return before is None or word.left - before.right > _GAP * word.size


def _bridges(line: Sequence[Word], gutter: float) -> bool:
    """Return whether a line runs on over the gutter."""
    before = max((word.right for word in line if word.left < gutter), default=-math.inf)
    after = min((word.left for word in line if word.left >= gutter), default=math.inf)
    return before > gutter or after - before < 0.8 * line[0].size


def _in_two_columns(lines: Sequence[list[Word]], gutter: float) -> list[Line]:
    """Return lines as they are read: the left column, then the right one, between lines that run over both."""
    result: list[Line] = []
    for bridging, group in groupby(lines, key=lambda line: _bridges(line, gutter)):
        some = list(group)
        starts = [first.left for line in some if (first := next((word for word in line if word.left >= gutter), None))]
        aligned = sum(start < gutter + _HANGING * SAME_PLACE for start in starts)
        if bridging or aligned < max(LEAST_ROWS, 0.3 * len(starts)):  # a table over both columns
            result += map(Line, some)
            continue
        for side in (False, True):
            words = ([word for word in line if (word.left >= gutter) is side] for line in some)
            result += [Line(line) for line in words if line]
    return result


def _has_columns(pieces: Sequence[list[Word]]) -> bool:
    """Return whether many pieces of prose stand beside another one at the same height."""
    prose = [piece for piece in pieces if sum(word.text[:1].isalpha() for word in piece) >= max(5, 0.7 * len(piece))]
    heights = Counter(round(piece[0].base) for piece in prose)
    beside = sum(count for count in heights.values() if count > 1)
    return beside > 2 * _LEAST_COLUMN and beside > 0.5 * len(prose)


def _cells(words: Sequence[Word]) -> list[Word]:
    """Return a line's words joined where the gaps are narrow; a currency's sign goes to its number."""
    cells: list[Word] = []
    for word in words:
        last = cells[-1] if cells else None
        if last is not None and (
            (word.left - last.right < _GAP * min(last.size, word.size) and word.text not in _CURRENCIES)
            or last.text in _CURRENCIES
            or last.text == "("
            or word.text in {")", "%", ")%"}
        ):
            space = "" if last.text[-1] in "$€£¥(" or word.text[0] in ")%" else " "
            cells[-1] = Word(
                last.text + space + word.text, last.left, word.right, last.base, last.size, last.bold and word.bold
            )
        else:
            cells.append(word)
    return cells
