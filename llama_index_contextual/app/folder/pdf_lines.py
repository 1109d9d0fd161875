"""The lines of a page of a PDF, in the order in which they are read: words, their places, columns of the page.

PDFium gives the place, size and weight of each letter. Words on one height make a line; wide gaps part it into
cells; where names or prose begin below one another near the middle of the page, it has two columns.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, repeat
from typing import Any, Final

FAR: Final = 100_000  # points by which turned text stands below the rest
LEAST_ROWS: Final = 3  # of a table
SAME_PLACE: Final = 4.0  # points by which what is at one place differs
LARGER: Final = 1.12  # than most letters: a heading's
_NO_LETTERS: Final = dict.fromkeys(
    (*range(0x7F, 0xA0), 0xAD, 0x200B, 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF)
)
_HYPHENS: Final = frozenset({2, 0xFFFE})  # what PDFium gives for a hyphen at the end of a line
_SPACES: Final = _HYPHENS | {0, 9, 10, 13, 32, 160}
_MARKS: Final = ".,;:!?"  # behind a word
GAP: Final = 1.0  # of a letter's size: a wider one parts cells
_LEAST_NARROW: Final = 8  # lines of one of three columns or more
_HANGING: Final = (
    8  # steps of half a place by which the first word of a line may stand further left than others
)
_MIDDLE: Final = (0.4, 0.65)  # of the width of a page: where the right one of two columns begins
_BOLD: Final = re.compile(rb"bold|black|heavy|semibd|demi", re.IGNORECASE)


@dataclass(slots=True)
class Word:
    """A word, in points from the lower left corner; ``size`` is the height of its letters."""

    text: str
    left: float
    right: float
    base: float
    size: float
    bold: bool


def lines_of(document: Any, number: int, left_out: Counter[str]) -> list[list[Word]]:
    """The lines of a page from top to bottom, turned text behind the others; none where the page cannot be read."""
    import pypdfium2
    import pypdfium2.raw as pdfium

    try:
        page = document[number]
        for index in range(pdfium.FPDFPage_GetAnnotCount(page)):
            note = pdfium.FPDFPage_GetAnnot(page, index)
            left_out["comment"] += pdfium.FPDFAnnot_GetSubtype(note) == pdfium.FPDF_ANNOT_TEXT
            pdfium.FPDFPage_CloseAnnot(note)
        if document.formenv:  # what was typed into a form becomes text of its page
            page.flatten()
            page = document[number]
        text = page.get_textpage()
    except pypdfium2.PdfiumError:
        return []
    found = _words(text)
    directions = sorted(found.values(), key=lambda words: -sum(len(word.text) for word in words))
    lines: list[list[Word]] = []
    for at, words in enumerate(directions):
        for word in words:
            word.base -= at * FAR  # below all others
        lines += _joined(words)
    text.close()
    page.close()
    return lines


def _words(page: Any) -> dict[int, list[Word]]:
    """The words of a page by the direction in which they run, in degrees, with their places along it."""
    import pypdfium2.raw as pdfium

    raw, count = page.raw, page.count_chars()
    codes = [*map(pdfium.FPDFText_GetUnicode, repeat(raw), range(count)), 32]
    x, y, left, right, bottom, top = (ctypes.c_double() for _ in range(6))
    box, flags, font = pdfium.FS_RECTF(), ctypes.c_int(), ctypes.create_string_buffer(128)
    words: dict[int, list[Word]] = {}
    start = -1
    for index, code in enumerate(codes):
        if code not in _SPACES:
            start = index if start < 0 else start
            continue
        first, start = start, -1
        if first < 0 or not (
            text := _text_of(codes[first:index])
        ):  # no letter is left of some words
            continue
        text += "-" if code in _HYPHENS else ""
        pdfium.FPDFText_GetCharOrigin(raw, first, x, y)
        pdfium.FPDFText_GetCharBox(raw, index - 1, left, right, bottom, top)
        pdfium.FPDFText_GetLooseCharBox(raw, first, box)
        pdfium.FPDFText_GetFontInfo(raw, first, font, 128, flags)
        bold = bool(_BOLD.search(font.value)) or pdfium.FPDFText_GetFontWeight(raw, first) >= 600  # noqa: PLR2004
        turn = round(-math.degrees(pdfium.FPDFText_GetCharAngle(raw, first)))
        straight = 90 * round(turn / 90)
        turn = (straight if abs(turn - straight) <= 5 else turn) % 360  # noqa: PLR2004  a scanned page is skewed
        begin, base, end, size = x.value, y.value, right.value, abs(box.top - box.bottom)
        if turn:
            along, across = math.cos(math.radians(turn)), math.sin(math.radians(turn))
            begin, base = x.value * along + y.value * across, y.value * along - x.value * across
            end = max(
                one.value * along + other.value * across
                for one in (left, right)
                for other in (bottom, top)
            )
            size = size if abs(along) > abs(across) else abs(box.right - box.left)
        elif (stop := len(text.rstrip(_MARKS))) > 1 and text[
            stop - 1
        ].isdecimal():  # its last digits may be raised
            cut, above = stop, base + 0.25 * size
            while cut > 1 and _is_above(raw, first + cut - 1, above):
                cut -= 1
            text = f"{text[:cut]}^{text[cut:]}" if cut < stop else text
        elif text[0].isdecimal() and text[-1].isalpha():  # its first digits may be raised
            pdfium.FPDFText_GetCharOrigin(raw, index - 1, x, y)
            base = min(base, y.value)
        words.setdefault(turn, []).append(
            Word(text, begin, max(end, begin), base, size or 1.0, bold)
        )
    return words


def _is_above(page: Any, index: int, base: float) -> bool:
    import pypdfium2.raw as pdfium

    x, y = ctypes.c_double(), ctypes.c_double()
    return bool(pdfium.FPDFText_GetCharOrigin(page, index, x, y)) and y.value > base


def _text_of(codes: Sequence[int]) -> str:
    """Units of UTF-16 as text, without what is no letter or sign."""
    text = "".join(chr(code) for code in codes if 32 <= code < 0x110000)  # noqa: PLR2004
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    return text.translate(_NO_LETTERS)


def _joined(words: Sequence[Word]) -> list[list[Word]]:
    """Words as lines, from top to bottom, of a page with columns one column after the other.

    PDFium gives words in the order in which they were drawn: a table may be drawn column by column.
    """
    pieces = [[words[0]]]
    for word in words[1:]:
        before = pieces[-1][-1]
        if _is_raised(before, word):
            before.text, before.right = f"{before.text}^{word.text}", word.right
        elif _is_beside(before, word) and before.left <= word.left < before.right + 8 * word.size:
            pieces[-1].append(word)
        else:
            pieces.append([word])
    lines: list[list[Word]] = []
    for piece in sorted(pieces, key=lambda piece: -piece[0].base):
        if lines and _is_beside(lines[-1][0], piece[0]):
            lines[-1] += piece
        else:
            lines.append(list(piece))
    lines = [sorted(line, key=lambda word: word.left) for line in lines]
    gutters = _gutters(lines)
    result: list[list[Word]] = []
    for is_bridging, group in groupby(
        lines, key=lambda line: any(_bridges(line, gutter) for gutter in gutters)
    ):
        some = list(group)
        is_table = is_bridging or not any(
            _is_aligned(some, gutter) for gutter in gutters
        )  # over all columns
        for low, high in pairwise([-math.inf, *([] if is_table else gutters), math.inf]):
            result += filter(
                None, ([word for word in line if low <= word.left < high] for line in some)
            )
    return result


def _is_raised(before: Word, word: Word) -> bool:
    """Whether a word is smaller digits above the end of another."""
    is_higher = 0.2 * before.size < word.base - before.base < 0.7 * before.size
    is_next = abs(word.left - before.right) < 0.2 * before.size
    return is_higher and is_next and word.size < 0.85 * before.size and word.text.isdecimal()


def _is_beside(one: Word, other: Word) -> bool:
    return abs(one.base - other.base) < 0.35 * max(one.size, other.size)


def _gutters(lines: Sequence[list[Word]]) -> list[float]:
    """The places where columns of a page begin, but the first; none for a page of one column.

    Names or prose begin there on several lines. In a table, values do. Two columns are found by the middle of the page;
    of more, each has to be full of prose.
    """
    left, right = min(line[0].left for line in lines), max(line[-1].right for line in lines)
    starts = Counter(
        round(word.left / SAME_PLACE)
        for line in lines
        for before, word in pairwise([None, *line])
        if word is not None
        and re.match(r"\(?[^\W\d]", word.text)
        and (before is None or word.left - before.right > GAP * word.size)
    )
    many = _narrow_columns(
        lines, sorted(at for at, count in starts.items() if count >= _LEAST_NARROW), left, right
    )
    if len(many) > 1:
        return many
    low, high = (left + share * (right - left) for share in _MIDDLE)
    middle = {at: count for at, count in starts.items() if low < at * SAME_PLACE < high}
    at = max(middle, key=middle.__getitem__, default=0)
    if middle.get(at, 0) < 5:  # noqa: PLR2004
        return []
    gutter, columns = _place(lines, at), (list[list[Word]](), list[list[Word]]())
    for line in lines:
        if not _bridges(line, gutter):
            for is_right, piece in groupby(line, key=lambda word: word.left >= gutter):
                columns[is_right].append(list(piece))
    bases = [one[0].base for one in columns[1] if one[0].left < gutter + _HANGING * SAME_PLACE]
    beside = (
        one[0] for one in columns[0] if any(abs(one[0].base - base) < one[0].size for base in bases)
    )
    if sum(1 for _ in beside) < LEAST_ROWS:  # a table below or above short lines
        return []
    is_prose = all(_word_count(column) >= 4 * sum(map(_cell_count, column)) for column in columns)
    filled = sum(
        piece[-1].right > gutter - 0.12 * (right - left) for piece in columns[0]
    )  # up to the gutter
    return [gutter] if is_prose or filled > 0.3 * len(columns[0]) else []


def _cell_count(piece: Sequence[Word]) -> int:
    return 1 + sum(after.left - word.right > GAP * word.size for word, after in pairwise(piece))


def _word_count(pieces: Iterable[list[Word]]) -> int:
    return sum(word.text[:1].isalpha() for piece in pieces for word in piece)


def _place(lines: Sequence[list[Word]], at: int) -> float:
    """Where a column begins: bullets, and headings, stand further left than most of its lines."""
    start = (at - 0.75) * SAME_PLACE
    steps = (start - step * SAME_PLACE / 2 for step in range(_HANGING))
    return min(steps, key=lambda place: sum(_bridges(line, place) for line in lines))


def _narrow_columns(
    lines: Sequence[list[Word]], starts: Iterable[int], left: float, right: float
) -> list[float]:
    """The places where three columns or more begin, but the first, if each of them is full of prose."""
    places, begin = list[float](), left
    for at in starts:
        gutter = _place(lines, at)
        if gutter - begin < 0.12 * (right - left):
            continue
        beside = (line for line in lines if line[0].left < gutter and not _bridges(line, gutter))
        pieces = [
            [word for word in line if begin - SAME_PLACE <= word.left < gutter] for line in beside
        ]
        pieces = [piece for piece in pieces if piece]
        filled = sum(piece[-1].right > gutter - 0.4 * (gutter - begin) for piece in pieces)
        if (
            len(pieces) >= _LEAST_NARROW
            and 2 * filled > len(pieces)
            and _word_count(pieces) > 2 * len(pieces)
        ):
            places.append(gutter)
            begin = gutter
    return places


def _bridges(line: Sequence[Word], gutter: float) -> bool:
    """Whether a line runs on over the gutter."""
    before = max((word.right for word in line if word.left < gutter), default=-math.inf)
    after = min((word.left for word in line if word.left >= gutter), default=math.inf)
    return before > gutter or after - before < 0.6 * line[0].size


def _is_aligned(lines: Sequence[list[Word]], gutter: float) -> bool:
    """Whether enough lines begin at a gutter."""
    starts = [
        first.left
        for line in lines
        if (first := next((word for word in line if word.left >= gutter), None))
    ]
    aligned = sum(start < gutter + _HANGING * SAME_PLACE for start in starts)
    return aligned >= max(LEAST_ROWS, 0.3 * len(starts))
