"""The lines of a page of a PDF, in the order in which they are read: words, their places, columns of the page.

PDFium gives the place, size and weight of each letter. Words on one height make a line; wide gaps part it into
cells; where names or prose begin below one another near the middle of the page, it has two columns.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, Final

_SKEWED: Final = 5  # degrees: a scanned page
FAR: Final = 100_000  # points by which turned text stands below the rest
_NO_LETTERS: Final = dict.fromkeys((*range(0x7F, 0xA0), 0xAD, 0x200B, 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF))
_SPACES: Final = frozenset({0, 2, 9, 10, 13, 32, 160, 0xFFFE})
_HYPHENS: Final = frozenset({2, 0xFFFE})  # what PDFium gives for a hyphen at the end of a line
_SAME_HEIGHT: Final = 0.35  # of a letter's size: words that differ less are on one line
_RAISED: Final = 0.25  # of a letter's size
_GAP: Final = 1.0  # of a letter's size: a wider one parts cells
SAME_PLACE: Final = 4.0  # points by which what is at one place differs
_NARROW_GAP: Final = 0.6  # of a letter's size: at a gutter, a wider one parts columns
_LEAST_COLUMN: Final = 5  # lines of a column of a page
_LEAST_NARROW: Final = 8  # lines of one of three columns or more
_LEAST_WIDTH: Final = 0.12  # of a page, of such a column
_HANGING: Final = 8  # steps of half a place by which the first word of a line may stand further left than others
_NAME: Final = re.compile(r"\(?[^\W\d]")
_MIDDLE: Final = (0.4, 0.65)  # of the width of a page: where the right one of two columns begins
_SIDES: Final = (0.2, 0.8)  # where it begins if lines of the left one are on other heights
_WORDY: Final = 4  # words of a line on average: then a column is prose
_LEADING: Final = 1.8  # of a letter's size: lines of a column that are further apart do not run on
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

    ``level`` is that of a heading, or 0; ``is_name``: it is the name of an owner above a heading.
    """

    words: list[Word]
    cells: list[Word] = field(default_factory=list)
    level: int = 0
    is_name: bool = False

    @property
    def text(self) -> str:
        """Its words."""
        return " ".join(word.text for word in self.words)

    @property
    def base(self) -> float:
        """The height on which it stands."""
        return self.words[0].base

    @property
    def size(self) -> float:
        """The height of its largest letters."""
        return max(word.size for word in self.words)

    @property
    def width(self) -> float:
        """How wide it is."""
        return self.words[-1].right - self.words[0].left

    @property
    def bold(self) -> bool:
        """Whether all its words are bold."""
        return all(word.bold for word in self.words if any(map(str.isalpha, word.text)))


def lines_of(document: Any, number: int) -> list[Line]:
    """The lines of a page from top to bottom, turned text behind the others; none where the page cannot be read."""
    import pypdfium2

    try:
        page = document[number]
        text = page.get_textpage()
    except pypdfium2.PdfiumError:
        return []
    directions = sorted(_words(text).values(), key=lambda words: -sum(len(word.text) for word in words))
    lines: list[Line] = []
    for at, words in enumerate(directions):
        for word in words:
            word.base -= at * FAR  # below all others
        lines += _joined(words)
    text.close()
    page.close()
    for line in lines:
        line.cells = _cells(line.words)
    return lines


def _words(page: Any) -> dict[int, list[Word]]:
    """The words of a page by the direction in which they run, in degrees, with their places along it."""
    import pypdfium2.raw as pdfium

    raw, count = page.raw, page.count_chars()
    codes = [*(pdfium.FPDFText_GetUnicode(raw, index) for index in range(count)), 32]
    x, y, left, right, bottom, top = (ctypes.c_double() for _ in range(6))
    box, flags, font = pdfium.FS_RECTF(), ctypes.c_int(), ctypes.create_string_buffer(128)
    words: dict[int, list[Word]] = {}
    start = -1
    for index, code in enumerate(codes):
        if code not in _SPACES:
            start = index if start < 0 else start
            continue
        first, start = start, -1
        if first < 0 or not (text := _text_of(codes[first:index])):  # no letter is left of some words
            continue
        text += "-" if code in _HYPHENS else ""
        pdfium.FPDFText_GetCharOrigin(raw, first, x, y)
        pdfium.FPDFText_GetCharBox(raw, index - 1, left, right, bottom, top)
        pdfium.FPDFText_GetLooseCharBox(raw, first, box)
        pdfium.FPDFText_GetFontInfo(raw, first, font, 128, flags)
        bold = bool(_BOLD.search(font.value)) or pdfium.FPDFText_GetFontWeight(raw, first) >= 600  # noqa: PLR2004
        turn = round(-math.degrees(pdfium.FPDFText_GetCharAngle(raw, first)))
        straight = 90 * round(turn / 90)
        turn = (straight if abs(turn - straight) <= _SKEWED else turn) % 360
        begin, base, end, size = x.value, y.value, right.value, abs(box.top - box.bottom)
        if turn:
            along, across = math.cos(math.radians(turn)), math.sin(math.radians(turn))
            begin, base = x.value * along + y.value * across, y.value * along - x.value * across
            end = max(one.value * along + other.value * across for one in (left, right) for other in (bottom, top))
            size = size if abs(along) > abs(across) else abs(box.right - box.left)
        elif len(text) > 1 and text.isdecimal():
            cut, raised = len(text), base + _RAISED * size
            while cut > 1 and pdfium.FPDFText_GetCharOrigin(raw, first + cut - 1, x, y) and y.value > raised:
                cut -= 1
            text = f"{text[:cut]}^{text[cut:]}" if cut < len(text) else text
        words.setdefault(turn, []).append(Word(text, begin, max(end, begin), base, size or 1.0, bold))
    return words


def _text_of(codes: Sequence[int]) -> str:
    """Units of UTF-16 as text, without what is no letter or sign."""
    text = "".join(chr(code) for code in codes if 32 <= code < 0x110000)  # noqa: PLR2004
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    return text.translate(_NO_LETTERS)


def _joined(words: Sequence[Word]) -> list[Line]:
    """Words as lines, from top to bottom, of a page with columns one column after the other.

    PDFium gives words in the order in which they were drawn: a table may be drawn column by column.
    """
    pieces: list[list[Word]] = []
    for word in words:
        before = pieces[-1][-1] if pieces else None
        if before is not None and _is_beside(before, word) and before.left <= word.left < before.right + 8 * word.size:
            pieces[-1].append(word)
        else:
            pieces.append([word])
    lines: list[list[Word]] = []
    for piece in sorted(pieces, key=lambda piece: -piece[0].base):
        if lines and _is_beside(lines[-1][0], piece[0]):
            lines[-1] += piece
        else:
            lines.append(list(piece))
    for line in lines:
        line.sort(key=lambda word: word.left)
    gutters = _gutters(lines)
    return _in_columns(lines, gutters) if gutters else list(map(Line, lines))


def _is_beside(one: Word, other: Word) -> bool:
    return abs(one.base - other.base) < _SAME_HEIGHT * max(one.size, other.size)


def _gutters(lines: Sequence[list[Word]]) -> list[float]:
    """The places where columns of a page begin, but the first; none for a page of one column.

    Names or prose begin there on several lines. In a table, values do. Two columns are found by the middle of the page;
    of more, each has to be full of prose.
    """
    left, right = min((line[0].left for line in lines), default=0), max((line[-1].right for line in lines), default=0)
    starts = Counter(
        round(word.left / SAME_PLACE)
        for line in lines
        for before, word in pairwise([None, *line])
        if word is not None
        and _NAME.match(word.text)
        and (before is None or word.left - before.right > _GAP * word.size)
    )
    many = _narrow_columns(lines, {at: count for at, count in starts.items() if count >= _LEAST_NARROW}, left, right)
    if len(many) > 1:
        return many
    heights = [(line[0].base, line[0].size) for line in lines]
    close = sum(above - below < min(size, other) for (above, size), (below, other) in pairwise(heights))
    for shares in (_MIDDLE, _SIDES) if close >= LEAST_ROWS else (_MIDDLE,):
        low, high = (left + share * (right - left) for share in shares)
        middle = {at: count for at, count in starts.items() if low < at * SAME_PLACE < high}
        at = max(middle, key=middle.__getitem__, default=0)
        if middle.get(at, 0) >= (LEAST_ROWS if close >= LEAST_ROWS else _LEAST_COLUMN):
            gutter, is_wide = _place(lines, at), shares is _MIDDLE and middle[at] >= _LEAST_COLUMN
            if _is_uneven(lines, gutter) or (is_wide and _is_filled(lines, gutter, right - left)):
                return [gutter]
    return []


def _sides(lines: Sequence[list[Word]], gutter: float) -> list[tuple[list[Word], list[Word]]]:
    """Words before and behind a gutter, of each line that does not run over it."""
    counts = ((sum(word.left < gutter for word in line), line) for line in lines if not _bridges(line, gutter))
    return [(line[:count], line[count:]) for count, line in counts]


def _is_filled(lines: Sequence[list[Word]], gutter: float, width: float) -> bool:
    """Whether lines before a gutter run up to it, or those on both sides are prose."""
    columns = [[piece for piece in column if piece] for column in zip(*_sides(lines, gutter), strict=True)]
    words = ([word.text[:1].isalpha() for piece in column for word in piece] for column in columns)
    ends = [piece[-1].right for piece in columns[0]]
    is_prose = all(sum(some) >= _WORDY * len(column) for some, column in zip(words, columns, strict=True))
    return is_prose or sum(end > gutter - 0.12 * width for end in ends) > 0.3 * len(ends)


def _is_uneven(lines: Sequence[list[Word]], gutter: float) -> bool:
    """Whether lines run on in both columns, and more of them overlap in height than stand on one height."""
    sides = _sides(lines, gutter)
    for column in zip(*sides, strict=True):
        pieces = pairwise(piece[0] for piece in column if piece)
        near = [above.base - below.base < _LEADING * above.size for above, below in pieces]
        if sum(near) < 0.75 * len(near):  # names of rows, say
            return False
    overlapping = sum(
        bool(left) != bool(right)
        and bool(left) == bool(below)
        and bool(right) == bool(before)
        and (left or right)[0].base - (before or below)[0].base < (left or right)[0].size
        for (left, right), (before, below) in pairwise(sides)
    )
    return overlapping >= max(LEAST_ROWS, 1 + sum(bool(left and right) for left, right in sides))


def _place(lines: Sequence[list[Word]], at: int) -> float:
    """Where a column begins: bullets, and headings, stand further left than most of its lines."""
    start = (at - 0.75) * SAME_PLACE
    steps = (start - step * SAME_PLACE / 2 for step in range(_HANGING))
    return min(steps, key=lambda place: sum(_bridges(line, place) for line in lines))


def _beside(lines: Sequence[list[Word]], gutter: float) -> list[list[Word]]:
    """The lines that have words before a gutter and do not run over it."""
    return [line for line in lines if line[0].left < gutter and not _bridges(line, gutter)]


def _narrow_columns(lines: Sequence[list[Word]], starts: dict[int, int], left: float, right: float) -> list[float]:
    """The places where three columns or more begin, but the first, if each of them is full of prose."""
    places: list[float] = []
    begin = left
    for at in sorted(starts):
        gutter = _place(lines, at)
        if gutter - begin < _LEAST_WIDTH * (right - left):
            continue
        pieces = [
            [word for word in line if begin - SAME_PLACE <= word.left < gutter] for line in _beside(lines, gutter)
        ]
        pieces = [piece for piece in pieces if piece]
        end = max((piece[-1].right for piece in pieces), default=0.0)
        filled = sum(piece[-1].right > end - 0.3 * (end - begin) for piece in pieces)
        words = sum(word.text[:1].isalpha() for piece in pieces for word in piece)
        if len(pieces) >= _LEAST_NARROW and filled > 0.5 * len(pieces) and words > 2 * len(pieces):
            places.append(gutter)
            begin = gutter
    return places


def _bridges(line: Sequence[Word], gutter: float) -> bool:
    """Whether a line runs on over the gutter."""
    before = max((word.right for word in line if word.left < gutter), default=-math.inf)
    after = min((word.left for word in line if word.left >= gutter), default=math.inf)
    return before > gutter or after - before < _NARROW_GAP * line[0].size


def _in_columns(lines: Sequence[list[Word]], gutters: Sequence[float]) -> list[Line]:
    """Lines as they are read: column by column, between lines that run over several."""
    result: list[Line] = []
    for is_bridging, group in groupby(lines, key=lambda line: any(_bridges(line, gutter) for gutter in gutters)):
        some = list(group)
        if is_bridging or not any(_is_aligned(some, gutter) for gutter in gutters):  # a table over all columns
            result += map(Line, some)
            continue
        for low, high in pairwise([-math.inf, *gutters, math.inf]):
            words = ([word for word in line if low <= word.left < high] for line in some)
            result += [Line(line) for line in words if line]
    return result


def _is_aligned(lines: Sequence[list[Word]], gutter: float) -> bool:
    """Whether enough lines begin at a gutter."""
    starts = [first.left for line in lines if (first := next((word for word in line if word.left >= gutter), None))]
    aligned = sum(start < gutter + _HANGING * SAME_PLACE for start in starts)
    return aligned >= max(LEAST_ROWS, 0.3 * len(starts))


def _cells(words: Sequence[Word]) -> list[Word]:
    """A line's words joined where the gaps are narrow; a currency's sign goes to its number."""
    cells: list[Word] = []
    for word in words:
        last = cells[-1] if cells else None
        if last is None or not (
            (word.left - last.right < _GAP * min(last.size, word.size) and word.text not in _CURRENCIES)
            or last.text in (*_CURRENCIES, "(")
            or word.text in (")", "%", ")%")
        ):
            cells.append(word)
            continue
        space = "" if last.text[-1] in "$€£¥(" or word.text[0] in ")%" else " "
        text, bold = f"{last.text}{space}{word.text}", last.bold and word.bold
        cells[-1] = Word(text, last.left, word.right, last.base, last.size, bold)
    return cells
