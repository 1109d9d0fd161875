"""Tables of HTML as a grid of cells, and the numbers of its lists: what Word, OpenDocument and pages have in common."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from llama_index_contextual.app.folder.formats import MOST_CELLS, ConversionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bs4 import Tag

HEADINGS: Final = re.compile(r"^h[1-6]$")
_KINDS: Final = {"lowerLetter": "a", "upperLetter": "A", "lowerRoman": "i", "upperRoman": "I"}  # Word's names
_REPEATED: Final = 80  # characters of a cell that is repeated in the rows that it spans
_LONG_CELL: Final = 200  # characters; a table with a table or heading in it and such a cell is no data
_ROMAN: Final = {
    1000: "m", 900: "cm", 500: "d", 400: "cd", 100: "c", 90: "xc", 50: "l", 40: "xl", 10: "x", 9: "ix", 5: "v", 4: "iv",
    1: "i",
}  # fmt: skip


def is_layout(table: Tag) -> bool:
    """Whether a table only lays out a page: it has one column, or holds blocks that no cell of data holds."""
    if table.get("role") in ("presentation", "none"):
        return True
    rows = [
        row.find_all(["td", "th"], recursive=False) for row in table.find_all("tr") if row.find_parent("table") is table
    ]
    if max(map(len, rows), default=0) < 2:  # noqa: PLR2004
        return True
    if table.find(["table", "pre", HEADINGS]) is None or table.find(["th", "caption"]) is not None:
        return False
    return len(rows) == 1 or any(len(cell.get_text(strip=True)) > _LONG_CELL for row in rows for cell in row)


def _span(cell: Tag, name: str) -> int:
    value = str(cell.get(name) or "1").strip()
    return max(1, min(int(value), 1000)) if value.isdecimal() and len(value) < 6 else 1  # noqa: PLR2004


def grid_of(table: Tag) -> list[list[str]]:
    """The cells of a table by row and column: what spans rows stands in each of them; names of columns are joined."""
    rows = [row for row in table.find_all("tr") if row.find_parent("table") is table]
    grid: list[list[str]] = []
    names: list[int] = []  # the rows that name columns
    spanning: dict[int, tuple[int, str]] = {}  # by column: the rows that are left, and the text
    count = 0
    for number, row in enumerate(rows):
        cells = row.find_all(["td", "th"], recursive=False)
        in_head = row.find_parent(["thead", "table"]) is not table
        is_title = number == len(grid) and len(cells) == 1 and not spanning and not names
        is_head = bool(cells) and not is_title and (in_head or all(cell.name == "th" for cell in cells))
        if is_head and (not names or names[-1] == number - 1):
            names.append(number)
        line, spanning = _line(cells, spanning, is_head=is_head)
        count += len(line)
        if count > MOST_CELLS:
            raise ConversionError(f"it holds a table of more than {MOST_CELLS:,} cells. Cure: ignore it.")
        grid.append(line)
    if 1 < len(names) < len(grid):
        heads = grid[names[0] : names[-1] + 1]
        columns = ([row[at] for row in heads if at < len(row)] for at in range(max(map(len, heads))))
        grid[names[0] : names[-1] + 1] = [[" ".join(dict.fromkeys(filter(None, column))) for column in columns]]
    return grid


def _line(
    cells: Sequence[Tag], spanning: dict[int, tuple[int, str]], *, is_head: bool
) -> tuple[list[str], dict[int, tuple[int, str]]]:
    """A row of a grid, and what spans the next ones."""
    line: list[str] = []
    below: dict[int, tuple[int, str]] = {}
    waiting = dict(spanning)
    for cell in (*cells, None):
        while len(line) in waiting or (cell is None and waiting):
            left, text = waiting.pop(len(line), (0, ""))
            if left > 1:
                below[len(line)] = (left - 1, text)
            line.append(text)
        if cell is None:
            break
        text, wide, high = str(cell.get("data-text") or ""), _span(cell, "colspan"), _span(cell, "rowspan")
        for at in range(wide):
            shown = text if at == 0 or is_head else ""
            waiting.pop(len(line), None)
            if high > 1:
                below[len(line)] = (high - 1, shown if len(shown) <= _REPEATED else "")
            line.append(shown)
    return line, below


def number_items(items: Tag) -> None:
    """Give the items of a numbered list the numbers that a browser shows."""
    found = items.find_all("li", recursive=False)
    start = str(items.get("start") or "").strip()
    is_down = items.get("reversed") is not None
    number = int(start) if start.lstrip("-").isdecimal() and len(start) < 10 else len(found) if is_down else 1  # noqa: PLR2004
    kind = str(items.get("type") or "1")
    for item in found:
        value = str(item.get("value") or "").strip()
        number = int(value) if value.lstrip("-").isdecimal() and len(value) < 10 else number  # noqa: PLR2004
        item["data-number"] = (
            f"[{number}]" if str(item.get("id")).startswith(("footnote-", "endnote-")) else f"{numeral(number, kind)}."
        )
        number += -1 if is_down else 1


def numeral(number: int, kind: str) -> str:
    """A number as HTML and Word show it: as letters, in Roman numerals, or as it is."""
    kind = _KINDS.get(kind, kind)
    if kind in ("a", "A") and number > 0:
        text = chr(ord("a") + (number - 1) % 26) * min((number - 1) // 26 + 1, 10)
    elif kind in ("i", "I") and 0 < number < 4000:  # noqa: PLR2004
        text = ""
        for value, letters in _ROMAN.items():
            text += letters * (number // value)
            number %= value
    else:
        return f"{number:02}" if kind == "decimalZero" else str(number)
    return text.upper() if kind.isupper() else text
