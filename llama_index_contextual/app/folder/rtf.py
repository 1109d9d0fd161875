"""RTF to HTML by striprtf, and so to Markdown: marks in its place tell headings, items and cells from text."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Final

from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part
from llama_index_contextual.app.folder.html import NUMBER, html_to_markdown

if TYPE_CHECKING:
    from pathlib import Path

_HEADING, _ITEM, _CELL, _ROW, _TABLE, _RAISED = map(chr, range(0xE010, 0xE016))
_MARKS: Final = {
    "outlinelevel": _HEADING,
    "listtext": _ITEM,
    "cell": _CELL,
    "row": _ROW,
    "trowd": _TABLE,
    "super": _RAISED,
}
_WORD: Final = re.compile(rf"\\({'|'.join(_MARKS)})(?![a-z])(\d?) ?")
_POWER: Final = re.compile(f"(?<=\\w){_RAISED}(?=[\\d+-])")
_LEFT_OUT: Final = {"picture": r"\pict", "note": r"\footnote", "text box": r"\shptxt"}
_INFO: Final = re.compile(r"\{\\(title|author|subject) ([^{}]{0,1000})\}")


def read_rtf(path: Path) -> Conversion:
    """A text in the Rich Text Format.

    Raises:
        ConversionError: It is none.
    """
    from striprtf.striprtf import rtf_to_text

    source = path.read_bytes().decode("latin-1")
    if not source.lstrip().startswith("{\\rtf"):
        raise ConversionError("it is damaged or no RTF file. Cure: ignore it.")
    marked = _WORD.sub(_marked, source).replace("\\fldinst", "\\code")  # striprtf looks for links in quadratic time
    text = rtf_to_text(marked, errors="replace")
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # halves of letters beyond U+FFFF
    text = _POWER.sub("^", text).replace(_RAISED, "")
    blocks: list[str] = []
    *rows, rest = text.split(_ROW)
    for row in rows:
        lines, _, cells = row.partition(_TABLE) if _TABLE in row else row.rpartition("\n")
        blocks += [*map(_block, lines.split("\n")), _cells(cells)]
    blocks += map(_block, rest.replace(_TABLE, "").split("\n"))
    page = html_to_markdown(re.sub("</(ul|table)><\\1>", "", f"<body>{''.join(blocks)}</body>"), is_marked=True)
    about = {key: rtf_to_text(f"{{\\rtf1 {value}}}", errors="replace") for key, value in _INFO.findall(source)}
    return Conversion([Part(page.text)], about, {thing: source.count(word) for thing, word in _LEFT_OUT.items()})


def _marked(match: re.Match[str]) -> str:
    """A mark in the place of a word of RTF, with the digit behind it."""
    return f"{{\\uc0\\u{ord(_MARKS[match[1]]) - 65536} }}{match[2]}"


def _cells(row: str) -> str:
    """A row of a table as HTML."""
    cells = row.replace(_TABLE, "").split(_CELL)[:-1]
    return f"<table><tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr></table>"


def _block(line: str) -> str:
    """A heading, an item or a paragraph as HTML."""
    line = line.strip()
    _, is_heading, heading = line.rpartition(_HEADING)
    if is_heading and heading[:1].isdecimal() and (text := " ".join(heading[1:].split(_ITEM)[-1].split())):
        return f"<h{min(int(heading[0]) + 1, 6)}>{escape(text)}</h{min(int(heading[0]) + 1, 6)}>"
    if _ITEM in line:
        number, _, text = line.rpartition(_ITEM)[2].strip().partition("\t")
        mark = NUMBER.format(escape(number)) if any(map(str.isalnum, number)) else ""
        return f"<ul><li>{mark}{escape(text)}</li></ul>"
    return f"<p>{escape(line)}</p>" if line else ""
