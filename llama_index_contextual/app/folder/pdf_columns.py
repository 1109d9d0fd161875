"""The columns of a PDF page, and its lines in the order in which a reader takes them.

A page has two columns if prose or names start below one another near its middle. Between two
columns is a gutter, given by the position at which the right one starts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise, zip_longest

from llama_index_contextual.app.folder.pdf_words import CELL_GAP, SAME_PLACE, WordLine

MIN_ROWS = 3  # of a table
# Lines that start at the right one of two columns: if both contain prose, and otherwise.
_MIN_PROSE_LINES = 4
_MIN_OTHER_LINES = 5
_MIN_FULL_SHARE = 0.3  # of the lines of the left column must end near the gutter
_MIN_NARROW_LINES = 8  # of one of three or more columns
_MIN_COLUMN_WIDTH = 0.12  # of the page's width; also the distance of a full line to the gutter
_MIN_WORDS_OF_CELL = 4  # of prose; cells of tables have fewer
_HANGING_STEPS = 8  # half a SAME_PLACE each, by which bullets can be left of the other lines
_BLOCK_GAP = 1.8  # letter sizes; a wider gap separates columns from the text below them
_GUTTER_WIDTH = 0.6  # letter sizes
_MIDDLE = (0.4, 0.65)  # of the page's width, where the right one of two columns starts
_LETTERS = re.compile(r"\(?[^\W\d]")


def in_column_order(lines: list[WordLine]) -> list[WordLine]:
    """Return the lines of a page, divided into columns, with one column after the other.

    Args:
        lines: Lines from top to bottom, each across all columns.
    """
    gutters = _find_gutters(lines)
    if not gutters:
        return lines
    runs = groupby(lines, key=lambda line: _crosses_any(line, gutters))
    blocks = [list(run) for _, run in runs]
    ordered: list[WordLine] = []
    for block, next_block in zip_longest(blocks, blocks[1:]):
        end = _end_of_columns(block, gutters[0]) if next_block else len(block)
        ordered += _column_by_column(block[:end], gutters)
        ordered += block[end:]
    return ordered


def _end_of_columns(block: Sequence[WordLine], gutter: float) -> int:
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


def _column_by_column(block: list[WordLine], gutters: Sequence[float]) -> list[WordLine]:
    has_columns = any(_has_column_at(block, gutter) for gutter in gutters)
    if _crosses_any(block[0], gutters) or not has_columns:
        return block
    ordered: list[WordLine] = []
    for left, right in pairwise([-math.inf, *gutters, math.inf]):
        ordered += _parts_between(block, left, right)
    return ordered


def _parts_between(lines: Iterable[WordLine], left: float, right: float) -> list[WordLine]:
    """Return the words of each line that start between two positions, without empty lines."""
    parts = ([word for word in line if left <= word.left < right] for line in lines)
    return [part for part in parts if part]


def _find_gutters(lines: Sequence[WordLine]) -> list[float]:
    """Return the positions of the second and further columns of a page, if there are any.

    At a column, prose or names start on several lines. In a table, values would. The second of two
    columns starts near the middle of the page. Each of three or more must be full of prose.
    """
    left = min(line[0].left for line in lines)
    right = max(line[-1].right for line in lines)
    width = right - left
    starts = _text_starts(lines)

    # Look for three or more columns.
    frequent = sorted(slot for slot, count in starts.items() if count >= _MIN_NARROW_LINES)
    narrow_gutters = _narrow_gutters(lines, frequent, left, width)
    if len(narrow_gutters) > 1:
        return narrow_gutters

    # Look for two columns.
    low, high = (left + share * width for share in _MIDDLE)
    middle = {slot: count for slot, count in starts.items() if low < slot * SAME_PLACE < high}
    slot = max(middle, key=middle.__getitem__, default=0)
    count = middle.get(slot, 0)
    if count < _MIN_PROSE_LINES:
        return []
    gutter = _gutter_of_slot(lines, slot)
    needs_prose = count < _MIN_OTHER_LINES
    has_two = _has_two_columns(lines, gutter, width, needs_prose=needs_prose)
    return [gutter] if has_two else []


def _text_starts(lines: Iterable[WordLine]) -> Counter[int]:
    """Return the number of cells that start with letters, by slot.

    A slot is a position in units of SAME_PLACE.
    """
    starts: Counter[int] = Counter()
    for line in lines:
        right = -math.inf
        for word in line:
            if word.left - right > CELL_GAP * word.size and _LETTERS.match(word.text):
                starts[round(word.left / SAME_PLACE)] += 1
            right = word.right
    return starts


def _has_two_columns(
    lines: Iterable[WordLine], gutter: float, width: float, *, needs_prose: bool
) -> bool:
    """Return whether there are columns on both sides of a gutter.

    They contain prose, or, unless that is needed, enough lines that reach the gutter.
    """
    divided_lines = [line for line in lines if not _crosses(line, gutter)]
    left_parts = _parts_between(divided_lines, -math.inf, gutter)
    right_parts = _parts_between(divided_lines, gutter, math.inf)

    # Lines of both columns are side by side, unlike a table below or above short lines.
    column_end = _column_end(gutter)
    bases = [part[0].base for part in right_parts if part[0].left < column_end]
    side_by_side = 0
    for part in left_parts:
        first = part[0]
        side_by_side += any(abs(first.base - base) < first.size for base in bases)
    if side_by_side < MIN_ROWS:
        return False

    if _is_prose(left_parts) and _is_prose(right_parts):
        return True
    full = sum(part[-1].right > gutter - _MIN_COLUMN_WIDTH * width for part in left_parts)
    return not needs_prose and full > _MIN_FULL_SHARE * len(left_parts)


def _is_prose(parts: Sequence[WordLine]) -> bool:
    return _word_count(parts) >= _MIN_WORDS_OF_CELL * sum(map(_cell_count, parts))


def _cell_count(line: WordLine) -> int:
    gaps = sum(after.left - word.right > CELL_GAP * word.size for word, after in pairwise(line))
    return 1 + gaps


def _word_count(lines: Iterable[WordLine]) -> int:
    return sum(word.text[:1].isalpha() for line in lines for word in line)


def _gutter_of_slot(lines: Sequence[WordLine], slot: int) -> float:
    """Return the position at which a column starts whose lines start in a slot.

    It is left of most lines, because bullets and headings can be further left.
    """
    start = (slot - 0.75) * SAME_PLACE
    positions = [start - step * SAME_PLACE / 2 for step in range(_HANGING_STEPS)]
    return min(positions, key=lambda gutter: sum(_crosses(line, gutter) for line in lines))


def _column_end(gutter: float) -> float:
    """Return the position left of which the lines of a column start."""
    return gutter + _HANGING_STEPS * SAME_PLACE


def _narrow_gutters(
    lines: Sequence[WordLine], slots: Iterable[int], left: float, width: float
) -> list[float]:
    """Return the positions of the second and further ones of three or more columns of prose.

    Args:
        lines: The lines of the page.
        slots: The slots in which many lines start, from left to right.
        left: The left edge of the text.
        width: The width of the text.
    """
    gutters = []
    column_start = left
    for slot in slots:
        gutter = _gutter_of_slot(lines, slot)
        column_width = gutter - column_start
        if column_width < _MIN_COLUMN_WIDTH * width:
            continue
        divided_lines = (line for line in lines if not _crosses(line, gutter))
        parts = _parts_between(divided_lines, column_start - SAME_PLACE, gutter)
        full = sum(part[-1].right > gutter - 0.4 * column_width for part in parts)
        is_full = len(parts) >= _MIN_NARROW_LINES and 2 * full > len(parts)
        if is_full and _word_count(parts) > 2 * len(parts):
            gutters.append(gutter)
            column_start = gutter
    return gutters


def _crosses_any(line: WordLine, gutters: Iterable[float]) -> bool:
    return any(_crosses(line, gutter) for gutter in gutters)


def _crosses(line: WordLine, gutter: float) -> bool:
    """Return whether the text of a line goes on across a gutter."""
    before = max((word.right for word in line if word.left < gutter), default=-math.inf)
    after = min((word.left for word in line if word.left >= gutter), default=math.inf)
    return before > gutter or after - before < _GUTTER_WIDTH * line[0].size


def _has_column_at(lines: Sequence[WordLine], gutter: float) -> bool:
    """Return whether enough lines start at a gutter."""
    starts = [part[0].left for part in _parts_between(lines, gutter, math.inf)]
    aligned = sum(start < _column_end(gutter) for start in starts)
    return aligned >= max(MIN_ROWS, 0.3 * len(starts))
