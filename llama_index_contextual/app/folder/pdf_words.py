"""The words of a PDF page with their positions.

PDFium returns the position, size and weight of each letter. It returns the letters of Hebrew and
Arabic words in reading order.
"""

from __future__ import annotations

import ctypes
import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, product, repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import Counter

SAME_PLACE = 4.0  # points within which positions are equal
CELL_GAP = 1.0  # letter sizes; a wider gap between two words separates cells
# Characters without a visible sign.
_INVISIBLE = dict.fromkeys((*range(0x7F, 0xA0), 0xAD, 0x200B, 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF))
_PRIVATE = range(0xE000, 0xF000)  # the codes above it are used by symbol fonts
_HYPHENS = frozenset({2, 0xFFFE})  # PDFium's codes for a hyphen at the end of a line
_SPACES = _HYPHENS | {0, 9, 10, 13, 32, 160}
_MARKS = ".,;:!?"  # after a word
_BOLD = re.compile(rb"bold|black|heavy|semibd|demi", re.IGNORECASE)
_BOLD_WEIGHT = 600
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_SKEW = 5  # degrees by which a scanned page can be rotated
_RAISED = 0.25  # of a letter's size
_MIN_LETTERS = 3  # single letters in a row that are joined to words
_LETTER_GAP = 0.15  # of a letter's size; a gap wider than the usual one by this ends a word


@dataclass(slots=True)
class Word:
    """A word with its position in points from the lower left corner, and its letters' height."""

    text: str
    left: float
    right: float
    base: float
    size: float
    bold: bool
    is_before_space: bool = True  # False if PDFium inferred the space after it from the gap

    @property
    def is_right_to_left(self) -> bool:
        """Return whether the word is in a right-to-left script, such as Hebrew or Arabic."""
        return not self.text.isascii() and _RIGHT_TO_LEFT.search(self.text) is not None


WordLine = list[Word]  # the words of a line, from left to right


class PageWords:
    """A reader of the words on a page.

    A word consists of the letters from an index ``start`` to an index ``end``.
    """

    def __init__(self, page: Any) -> None:
        import pypdfium2.raw as pdfium

        self._pdfium = pdfium
        self._raw = page.raw
        count = page.count_chars()
        codes = map(pdfium.FPDFText_GetUnicode, repeat(self._raw), range(count))
        self._codes = [*codes, ord(" ")]
        # PDFium writes its answers into these objects.
        self._x = ctypes.c_double()
        self._y = ctypes.c_double()
        self._edges = [ctypes.c_double() for _ in range(4)]
        self._loose_box = pdfium.FS_RECTF()
        self._flags = ctypes.c_int()
        self._font = ctypes.create_string_buffer(128)

    def by_direction(self, left_out: Counter[str]) -> dict[int, list[Word]]:
        """Return the words by their direction in degrees, with positions relative to the direction.

        Words in a font that does not define its letters are counted and left out.
        """
        words: dict[int, list[Word]] = defaultdict(list)
        start = 0
        for end, code in enumerate(self._codes):
            if code not in _SPACES:
                continue
            text = self._text(start, end)
            if self._is_unreadable(start, end):
                left_out["unreadable character"] += len(text)
            elif text:  # some words have no visible letters
                turn = self._turn(start)
                words[turn].append(self._word(text, start, end, turn))
            start = end + 1
        return words

    def _text(self, start: int, end: int) -> str:
        """Return UTF-16 units as text, without invisible characters."""
        codes = self._codes[start:end]
        text = "".join(chr(code) for code in codes if 32 <= code < 0x110000)  # noqa: PLR2004
        if text.isascii():
            return text.translate(_INVISIBLE)
        if _RIGHT_TO_LEFT.search(text):
            text = unicodedata.normalize("NFKC", self._reordered(start, end))
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
        return text.translate(_INVISIBLE)

    def _reordered(self, start: int, end: int) -> str:
        """Return a right-to-left word with the letters of ligatures in the right order.

        PDFium reverses the letters of a glyph that represents several.
        """
        text = ""
        for _, glyph in groupby(range(start, end), key=lambda index: self._origin(index)[0]):
            letters = [chr(self._codes[index]) for index in glyph]
            text += "".join(reversed(letters))
        return text

    def _is_unreadable(self, start: int, end: int) -> bool:
        has_error = self._pdfium.FPDFText_HasUnicodeMapError
        errors = sum(has_error(self._raw, index) == 1 for index in range(start, end))
        # Some programs map the letters of a font to private characters. A single one can be a
        # bullet.
        private = [code in _PRIVATE for code in self._codes[start:end]]
        if len(private) > 1:
            errors = max(errors, sum(private))
        return bool(2 * errors > end - start)

    def _word(self, text: str, start: int, end: int, turn: int) -> Word:
        """Return a word with its position along and across its direction."""
        if self._codes[end] in _HYPHENS:
            text += "-"
        cosine = math.cos(math.radians(turn))
        sine = math.sin(math.radians(turn))
        x, y = self._origin(start)
        left = x * cosine + y * sine
        last_left, last_right, bottom, top = self._letter_edges(end - 1)
        corners = product((last_left, last_right), (bottom, top))
        right = max(corner_x * cosine + corner_y * sine for corner_x, corner_y in corners)
        word = Word(
            text,
            left,
            right=max(left, right),
            base=y * cosine - x * sine,
            size=self._letter_height(start, is_upright=abs(cosine) <= abs(sine)),
            bold=self._is_bold(start),
            is_before_space=self._pdfium.FPDFText_IsGenerated(self._raw, end) != 1,
        )
        if turn == 0:
            self._mark_superscript_digits(word, start, end)
            if word.is_right_to_left:
                _, first_right, _, _ = self._letter_edges(start)
                word.left = min(left, last_left)
                word.right = max(left, first_right)
        return word

    def _letter_height(self, index: int, *, is_upright: bool) -> float:
        """Return the height of a letter with its line, also if its direction is upright."""
        self._pdfium.FPDFText_GetLooseCharBox(self._raw, index, self._loose_box)
        box = self._loose_box
        height = box.right - box.left if is_upright else box.top - box.bottom
        return abs(height) or 1.0

    def _mark_superscript_digits(self, word: Word, start: int, end: int) -> None:
        text = word.text
        stop = len(text.rstrip(_MARKS))
        if stop > 1 and text[stop - 1].isdecimal():  # its last digits can be superscript
            cut = stop
            while cut > 1 and self._origin(start + cut - 1)[1] > word.base + _RAISED * word.size:
                cut -= 1
            if cut < stop:
                word.text = f"{text[:cut]}^{text[cut:]}"
        elif text[0].isdecimal() and text[-1].isalpha():  # its first digits can be superscript
            word.base = min(word.base, self._origin(end - 1)[1])

    def _is_bold(self, index: int) -> bool:
        self._pdfium.FPDFText_GetFontInfo(self._raw, index, self._font, 128, self._flags)
        if _BOLD.search(self._font.value):
            return True
        return bool(self._pdfium.FPDFText_GetFontWeight(self._raw, index) >= _BOLD_WEIGHT)

    def _turn(self, index: int) -> int:
        """Return the direction of a letter in degrees, ignoring a slight skew of the page."""
        angle = self._pdfium.FPDFText_GetCharAngle(self._raw, index)
        turn = round(-math.degrees(angle))
        straight = 90 * round(turn / 90)
        return (straight if abs(turn - straight) <= _SKEW else turn) % 360

    def _origin(self, index: int) -> tuple[float, float]:
        self._pdfium.FPDFText_GetCharOrigin(self._raw, index, self._x, self._y)
        return self._x.value, self._y.value

    def _letter_edges(self, index: int) -> list[float]:
        """Return the left, right, bottom and top edge of a letter."""
        self._pdfium.FPDFText_GetCharBox(self._raw, index, *self._edges)
        return [edge.value for edge in self._edges]


def join_words(words: Sequence[Word], text: str) -> Word:
    """Return neighbouring words of a line as a single word with the given text."""
    first = words[0]
    bold = all(word.bold for word in words)
    return Word(text, first.left, words[-1].right, first.base, first.size, bold)


def in_reading_order(words: Sequence[Word]) -> list[Word]:
    """Return the words of a line in reading order, given their order from left to right.

    A line runs from right to left if most of its words do. Words in the other direction keep their
    own order.
    """
    if not any(word.is_right_to_left for word in words):
        return list(words)
    words_with_letters = [word for word in words if any(map(str.isalpha, word.text))]
    backwards = sum(word.is_right_to_left for word in words_with_letters)
    is_backwards = 2 * backwards > len(words_with_letters)
    runs = groupby(
        reversed(words) if is_backwards else words,
        key=lambda word: word.is_right_to_left == is_backwards,
    )
    ordered: list[Word] = []
    for has_direction_of_line, run in runs:
        ordered += run if has_direction_of_line else reversed(list(run))
    return ordered


def join_letters(line: WordLine) -> WordLine:
    """Return the words of a line, after joining letters that were placed one by one.

    The letters are joined according to their gaps, but never across a written space.
    """
    runs: list[list[Word]] = [[]]
    for word in line:
        runs[-1].append(word)
        if word.is_before_space:
            runs.append([])
    words: list[Word] = []
    for run in runs:
        letters = sum(len(word.text) == 1 and word.text.isalpha() for word in run)
        is_spaced_out = letters >= _MIN_LETTERS and 2 * letters > len(run)
        words += _words_between_wide_gaps(run) if is_spaced_out else run
    return words


def _words_between_wide_gaps(letters: Sequence[Word]) -> list[Word]:
    gaps = [after.left - letter.right for letter, after in pairwise(letters)]
    usual_gap = sorted(gaps)[len(gaps) // 4]  # most gaps are inside words
    limit = max(usual_gap, 0) + _LETTER_GAP * letters[0].size
    groups = [[letters[0]]]
    for letter, gap in zip(letters[1:], gaps, strict=True):
        if gap <= limit and gap < letter.size:
            groups[-1].append(letter)
        else:
            groups.append([letter])
    words = []
    for group in groups:
        text = "".join(letter.text for letter in in_reading_order(group))
        words.append(join_words(group, text))
    return words
