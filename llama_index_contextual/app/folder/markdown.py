"""Functions with which converters write Markdown.

They write escaped text, headings, code, tables, and list numbers as programs show them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from llama_index_contextual.app.folder.formats import ConversionError

MAX_CELLS = 500_000  # in a table
MAX_REPEATED = 80  # characters; longer cells are not repeated in the rows that they span
PAGE_MARK = "\ue002"  # marks the start of a page
NUMBER_MARK = "\ue000{}\ue001"  # marks the number of an item, as a program shows it
# Bullets in symbol fonts, but not check boxes.
BULLETS = "\uf02d\uf06c\uf06e\uf076\uf0a7\uf0b7\uf0d8"
# Text that starts a block in Markdown: a heading, an underline or rule, the rule of a table, a
# fence, HTML, front matter, or a comment in Obsidian. The second pattern is for lists and quotes,
# which people also write in plain text.
_SIGNS = r"#{1,6}(?:\s|$)|=+\s*$|[-|:][-|:\s]*$|_{3,}\s*$|`{3}|~{3}|<[a-zA-Z/!?]|\||\+{3,}\s*$|%%"
_BLOCK = re.compile(rf"[\s{PAGE_MARK}]*(?={_SIGNS})")
_LIST = re.compile(
    rf"[\s{PAGE_MARK}]*(?:(?=[-+*>](?:\s|$)|(?:\*\s*){{3,}}$)|\d{{1,9}}(?=[.)](?:\s|$)))"
)
# Code, or the start of a comment or tag in MDX, Liquid, Jinja or Hugo anywhere on a line.
_TAG = re.compile(r"(?<!`)(`{1,9})[^`]{1,1000}\1|\{(?=/\*|%|#\s)|(?<=\{)\{(?=<)")
# The HTML list types for their names in Word and PowerPoint.
_LIST_TYPES = {
    "lowerLetter": "a",
    "alphaL": "a",
    "upperLetter": "A",
    "alphaU": "A",
    "lowerRoman": "i",
    "romanL": "i",
    "upperRoman": "I",
    "romanU": "I",
}
_ROMAN = {
    1000: "m",
    900: "cm",
    500: "d",
    400: "cd",
    100: "c",
    90: "xc",
    50: "l",
    40: "xl",
    10: "x",
    9: "ix",
    5: "v",
    4: "iv",
    1: "i",
}
_MAX_ROMAN = 3999
_LETTERS = 26
_NARROW = 3  # columns; in a narrower table, a title looks like a row


def escape(text: str, *, keep_lists: bool = False) -> str:
    r"""Return plain text as Markdown.

    Text that would start a block or a tag is escaped by a backslash, as in ``\# of units``.

    Args:
        text: One or more lines.
        keep_lists: Whether lines that look like list items or quotes are left unescaped.
    """
    lines = []
    for line in text.split("\n"):
        escaped = _TAG.sub(_escape_tag, line) if "{" in line else line
        begin = _BLOCK.match(escaped)
        if begin is None and not keep_lists:
            begin = _LIST.match(escaped)
        if begin:
            escaped = f"{begin[0]}\\{escaped[begin.end() :]}"
        lines.append(escaped)
    return "\n".join(lines)


def _escape_tag(match: re.Match[str]) -> str:
    is_code = bool(match[1])
    return match[0] if is_code else "{\\"


def heading(level: int, text: str) -> str:
    """Return a heading on one line."""
    words = " ".join(text.split())
    # Escape trailing "#" signs, which Markdown would remove as the end of the heading.
    title = words.rstrip("#")
    signs = words[len(title) :]
    if signs:
        signs = f"\\{signs}"
    return f"{'#' * max(1, min(level, 6))} {title}{signs}"


def fence(code: str, language: str = "") -> str:
    """Return a code fence, with more backticks than the code contains."""
    longest = max(map(len, re.findall("`+", code)), default=0)
    ticks = "`" * max(3, 1 + longest)
    return f"{ticks}{language}\n{code.rstrip()}\n{ticks}"


def check_size(cells: int) -> None:
    """Raise a ConversionError for a table with too many cells."""
    if cells > MAX_CELLS:
        raise ConversionError(
            f"it contains a table of more than {MAX_CELLS:,} cells. Split it, or ignore it."
        )


def table_of(rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table from plain text.

    The first row is the header. Titles above it become lines of text.
    """
    filled = []
    for row in rows:
        cells = [" ".join(cell.split()) for cell in row]
        if any(cells):
            filled.append(cells)
    width = max(map(len, filled), default=0)
    check_size(width * len(filled))
    blocks = []
    while _begins_with_title(filled, width):
        title = filled.pop(0)
        blocks.append(escape(title[0]))
    lines = [_table_line(row, width) for row in filled]
    if lines:
        lines.insert(1, f"|{' --- |' * width}")
    blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _begins_with_title(rows: Sequence[Sequence[str]], width: int) -> bool:
    """Return whether the first row is a title above the names of the columns."""
    if len(rows) < 2 or not rows[0][0] or any(rows[0][1:]):  # noqa: PLR2004
        return False
    names = [cell for cell in rows[1] if cell]
    has_digits = any(map(str.isdigit, "".join(names)))
    return width >= _NARROW or (len(names) > 1 and not has_digits)


def _table_line(row: Sequence[str], width: int) -> str:
    cells = [cell.replace("|", r"\|") for cell in row]
    cells += [""] * (width - len(row))
    return f"| {' | '.join(cells)} |"


def numeral(number: int, kind: str) -> str:
    """Return a list number as HTML, Word and PowerPoint show it: letters, Roman or decimal."""
    list_type = _LIST_TYPES.get(kind, kind)
    if list_type in ("a", "A") and number > 0:
        repeats, letter = divmod(number - 1, _LETTERS)
        text = chr(ord("a") + letter) * min(repeats + 1, 10)
    elif list_type in ("i", "I") and 0 < number <= _MAX_ROMAN:
        text = _roman(number)
    else:
        return f"{number:02}" if list_type == "decimalZero" else str(number)
    return text.upper() if list_type.isupper() else text


def _roman(number: int) -> str:
    text = ""
    for value, letters in _ROMAN.items():
        text += letters * (number // value)
        number %= value
    return text
