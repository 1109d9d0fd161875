"""The lines of a PDF page in reading order, on pages with or without columns.

Words at the same height form a line, which wide gaps divide into cells. A page has two columns if
prose or names start below one another near its middle.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise, zip_longest
from typing import Any

from llama_index_contextual.app.folder.pdf_words import PageWords, Word, join_letters

FAR = 100_000  # points by which rotated text is placed below other text
LEAST_ROWS = 3  # of a table
SAME_PLACE = 4.0  # points within which positions are equal
LARGER = 1.12  # times the usual letter size: the least size of a heading
GAP = 1.0  # letter sizes; a wider gap separates cells
_BESIDE = 0.35  # letter sizes; words whose heights differ by less are on one line
_LEAST_LINES = 4  # that start at the right column if it is prose
_LEAST_FILLED = 5  # that start at the right column if it is other text
_FILLED = 0.3  # of the lines of the left column that must end near the right column
_LEAST_NARROW = 8  # lines of one of three or more columns
# Steps of half a SAME_PLACE by which the first word of a line can be left of the others.
_HANGING = 8
_BLOCK_GAP = 1.8  # letter sizes; a wider gap separates columns from the text below them
_MIDDLE = (0.4, 0.65)  # of the page's width, where the right one of two columns starts
_LETTERS = re.compile(r"\(?[^\W\d]")

Line = list[Word]


def lines_of(document: Any, number: int, left_out: Counter[str]) -> list[Line]:
    """Return the lines of a page from top to bottom, with rotated text last.

    If the page cannot be read, there are no lines.
    """
    import pypdfium2
    import pypdfium2.raw as pdfium

    try:
        page = document[number]
        for index in range(pdfium.FPDFPage_GetAnnotCount(page)):
            note = pdfium.FPDFPage_GetAnnot(page, index)
            left_out["comment"] += pdfium.FPDFAnnot_GetSubtype(note) == pdfium.FPDF_ANNOT_TEXT
            pdfium.FPDFPage_CloseAnnot(note)
        if document.formenv:  # turn typed form fields into text of the page
            page.flatten()
            page = document[number]
        text = page.get_textpage()
    except pypdfium2.PdfiumError:
        return []
    directions = PageWords(text).by_direction(left_out).values()
    text.close()
    page.close()
    lines: list[Line] = []
    for rank, words in enumerate(sorted(directions, key=_length, reverse=True)):
        for word in words:
            word.base -= rank * FAR  # below the text in more frequent directions
        lines += _joined(words)
    return lines


def _length(words: Iterable[Word]) -> int:
    return sum(len(word.text) for word in words)


def _joined(words: Sequence[Word]) -> list[Line]:
    """Return words as lines from top to bottom, one column after the other.

    PDFium returns words in the order in which they were drawn, and tables can be drawn by column.
    """
    lines = _lines(_pieces(words))
    gutters = _gutters(lines)
    if not gutters:
        return lines
    runs = groupby(lines, key=lambda line: _bridges_any(line, gutters))
    blocks = [list(run) for _, run in runs]
    ordered: list[Line] = []
    for block, next_block in zip_longest(blocks, blocks[1:]):
        end = _end_of_columns(block, gutters[0]) if next_block else len(block)
        ordered += _column_by_column(block[:end], gutters)
        ordered += block[end:]
    return ordered


def _end_of_columns(block: Sequence[Line], gutter: float) -> int:
    """Return the index of the first line below the columns of a block.

    A gap separates it from the columns, and there is nothing beside it or the lines below it.
    """
    end = len(block)
    for position in range(end - 1, 0, -1):
        line = block[position]
        if line[-1].left >= gutter or _cell_count(line) > 1:
            break
        if block[position - 1][0].base - line[0].base > _BLOCK_GAP * line[0].size:
            end = position
    return end


def _column_by_column(block: list[Line], gutters: Sequence[float]) -> list[Line]:
    if _bridges_any(block[0], gutters) or not any(_is_aligned(block, place) for place in gutters):
        return block
    ordered: list[Line] = []
    for left, right in pairwise([-math.inf, *gutters, math.inf]):
        pieces = [[word for word in line if left <= word.left < right] for line in block]
        ordered += filter(None, pieces)
    return ordered


def _pieces(words: Sequence[Word]) -> list[Line]:
    """Return the groups of words that were drawn one after the other on a line.

    Superscript digits become part of the word before them.
    """
    pieces = [[words[0]]]
    for word in words[1:]:
        before = pieces[-1][-1]
        if _is_superscript(before, word):
            before.text = f"{before.text}^{word.text}"
            before.right = word.right
        elif _is_beside(before, word) and before.left <= word.left < before.right + 8 * word.size:
            pieces[-1].append(word)
        else:
            pieces.append([word])
    return pieces


def _lines(pieces: Iterable[Line]) -> list[Line]:
    lines: list[Line] = []
    for piece in sorted(pieces, key=lambda piece: -piece[0].base):
        if lines and _is_beside(lines[-1][0], piece[0]):
            lines[-1] += piece
        else:
            lines.append(list(piece))
    return [join_letters(sorted(line, key=lambda word: word.left)) for line in lines]


def _is_superscript(before: Word, word: Word) -> bool:
    """Return whether a word consists of smaller digits above the end of another word."""
    is_higher = 0.2 * before.size < word.base - before.base < 0.7 * before.size
    is_next = abs(word.left - before.right) < 0.2 * before.size
    return is_higher and is_next and word.size < 0.85 * before.size and word.text.isdecimal()


def _is_beside(word: Word, other: Word) -> bool:
    return abs(word.base - other.base) < _BESIDE * max(word.size, other.size)


def _gutters(lines: Sequence[Line]) -> list[float]:
    """Return the positions of the second and further columns of a page, if there are any.

    At a column, prose or names start on several lines. In a table, values would. The second of two
    columns starts near the middle of the page. Each of three or more must be full of prose.
    """
    left = min(line[0].left for line in lines)
    right = max(line[-1].right for line in lines)
    starts = _starts_of_text(lines)
    frequent = sorted(place for place, count in starts.items() if count >= _LEAST_NARROW)
    narrow = _narrow_columns(lines, frequent, left, right)
    if len(narrow) > 1:
        return narrow
    low, high = (left + share * (right - left) for share in _MIDDLE)
    middle = {place: count for place, count in starts.items() if low < place * SAME_PLACE < high}
    place = max(middle, key=middle.__getitem__, default=0)
    count = middle.get(place, 0)
    if count < _LEAST_LINES:
        return []
    gutter = _gutter(lines, place)
    least_filled = _FILLED if count >= _LEAST_FILLED else 1
    return [gutter] if _has_two_columns(lines, gutter, right - left, least_filled) else []


def _starts_of_text(lines: Iterable[Line]) -> Counter[int]:
    """Return the number of cells that start with letters, by their rounded position."""
    starts: Counter[int] = Counter()
    for line in lines:
        right = -math.inf
        for word in line:
            if word.left - right > GAP * word.size and _LETTERS.match(word.text):
                starts[round(word.left / SAME_PLACE)] += 1
            right = word.right
    return starts


def _has_two_columns(
    lines: Iterable[Line], gutter: float, width: float, least_filled: float
) -> bool:
    """Return whether there is prose on both sides of a gutter, or enough lines that reach it."""
    left_pieces: list[Line] = []
    right_pieces: list[Line] = []
    for line in lines:
        if not _bridges(line, gutter):
            left_piece = [word for word in line if word.left < gutter]
            right_piece = [word for word in line if word.left >= gutter]
            if left_piece:
                left_pieces.append(left_piece)
            if right_piece:
                right_pieces.append(right_piece)
    edge = gutter + _HANGING * SAME_PLACE
    bases = [piece[0].base for piece in right_pieces if piece[0].left < edge]
    beside = 0
    for piece in left_pieces:
        first = piece[0]
        beside += any(abs(first.base - base) < first.size for base in bases)
    if beside < LEAST_ROWS:  # such as a table below or above short lines
        return False
    if _is_prose(left_pieces) and _is_prose(right_pieces):
        return True
    filled = sum(piece[-1].right > gutter - 0.12 * width for piece in left_pieces)
    return filled > least_filled * len(left_pieces)


def _is_prose(pieces: Sequence[Line]) -> bool:
    return _word_count(pieces) >= 4 * sum(map(_cell_count, pieces))


def _cell_count(piece: Line) -> int:
    return 1 + sum(after.left - word.right > GAP * word.size for word, after in pairwise(piece))


def _word_count(pieces: Iterable[Line]) -> int:
    return sum(word.text[:1].isalpha() for piece in pieces for word in piece)


def _gutter(lines: Sequence[Line], place: int) -> float:
    """Return the position at which a column starts.

    It is left of most lines, because bullets and headings can be further left.
    """
    start = (place - 0.75) * SAME_PLACE
    steps = [start - step * SAME_PLACE / 2 for step in range(_HANGING)]
    return min(steps, key=lambda gutter: sum(_bridges(line, gutter) for line in lines))


def _narrow_columns(
    lines: Sequence[Line], places: Iterable[int], left: float, right: float
) -> list[float]:
    """Return the positions of the second and further ones of three or more columns of prose."""
    gutters = []
    begin = left
    for place in places:
        gutter = _gutter(lines, place)
        if gutter - begin < 0.12 * (right - left):
            continue
        pieces = []
        for line in lines:
            piece = [word for word in line if begin - SAME_PLACE <= word.left < gutter]
            if piece and not _bridges(line, gutter):
                pieces.append(piece)
        filled = sum(piece[-1].right > gutter - 0.4 * (gutter - begin) for piece in pieces)
        is_full = len(pieces) >= _LEAST_NARROW and 2 * filled > len(pieces)
        if is_full and _word_count(pieces) > 2 * len(pieces):
            gutters.append(gutter)
            begin = gutter
    return gutters


def _bridges_any(line: Line, gutters: Iterable[float]) -> bool:
    return any(_bridges(line, gutter) for gutter in gutters)


def _bridges(line: Line, gutter: float) -> bool:
    """Return whether a line crosses the gutter."""
    before = max((word.right for word in line if word.left < gutter), default=-math.inf)
    after = min((word.left for word in line if word.left >= gutter), default=math.inf)
    return before > gutter or after - before < 0.6 * line[0].size


def _is_aligned(lines: Sequence[Line], gutter: float) -> bool:
    """Return whether enough lines start at a gutter."""
    starts = []
    for line in lines:
        behind = [word.left for word in line if word.left >= gutter]
        starts += behind[:1]
    aligned = sum(start < gutter + _HANGING * SAME_PLACE for start in starts)
    return aligned >= max(LEAST_ROWS, 0.3 * len(starts))
