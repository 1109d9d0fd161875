"""Rich Text Format files, converted by striprtf.

Control words are replaced by marks, to tell headings, items and cells from text.
"""

from __future__ import annotations

import codecs
import contextlib
import re
from html import escape
from pathlib import Path

from llama_index_contextual.app.folder.formats import Conversion, ConversionError, declare_format
from llama_index_contextual.app.folder.markdown import NUMBER_MARK

_HEADING, _ITEM, _CELL, _ROW, _TABLE, _NOTE, _RAISED, _RAISED_END = map(chr, range(0xE010, 0xE018))
_MARKS = {
    "outlinelevel": _HEADING,
    "listtext": _ITEM,
    "pntext": _ITEM,
    "footnote": _NOTE,
    "trowd": _TABLE,
    "intbl": _TABLE,
    "cell": _CELL,
    "row": _ROW,
}
_ANY_MARK = re.compile(f"[{_HEADING}-{_TABLE}]")
_WORD = re.compile(rf"(?<!\\)\\({'|'.join(_MARKS)})(?![a-z])(\d?) ?")
_SUPER = re.compile(r"(?<!\\)\\super(?![a-z\d]) ?([^{}\\]{1,20})")
# Remove every "\*" that is not the first word of its group, or is before a character style. In both
# cases, striprtf would wrongly ignore the group.
_STAR_INSIDE = re.compile(r"(?<=[^{\\\s])(\s?)\\\*|(?<=\{)\\\*(?=\\cs\d)")
_LEFT_OUT = {"comment": r"\*\annotation", "picture": r"\pict", "text box": r"\shptxt"}
_INFO = re.compile(r"\{\\(title|author|subject) ([^{}]{0,1000})\}")
_LOWEST_LEVEL = 6  # of a heading


@declare_format(
    "Rich Text Format",
    ".rtf",
    packages=("striprtf", "bs4", "lxml"),
    kept="numbering, notes",
    left_out="pictures, comments, text boxes",
)
def read_rtf(path: Path) -> Conversion:
    """Return a Rich Text Format file.

    Raises:
        ConversionError: The file is not in the Rich Text Format.
    """
    from striprtf.striprtf import rtf_to_text

    from llama_index_contextual.app.folder.html_to_markdown import html_to_markdown

    data = path.read_bytes()
    page = html_to_markdown(f"<body>{rtf_to_html(data)}</body>", is_marked=True)
    source = data.decode("latin-1")
    metadata = {}
    for key, value in _INFO.findall(source):
        metadata[key] = rtf_to_text(f"{{\\rtf1 {value}}}", errors="replace")
    left_out = {name: source.count(word) for name, word in _LEFT_OUT.items()}
    return Conversion(page.parts, metadata, left_out)


def rtf_to_html(data: bytes) -> str:
    """Return a Rich Text Format file as HTML, with marks for the numbers of items."""
    from striprtf.striprtf import rtf_to_text

    source = data.decode("latin-1")
    if not source.lstrip().startswith("{\\rtf"):
        raise ConversionError("it is damaged or not an RTF file. Ignore it.")
    text = rtf_to_text(_prepared(source), _encoding(source), "replace")
    # Join surrogate pairs.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    *rows, last = text.split(_ROW)
    lines: list[str] = []
    for row in rows:
        before, _, cells = row.partition(_TABLE)
        lines += before.split("\n")
        lines.append(cells.replace("\n", " ") + _ROW)
    lines += last.split("\n")
    html = "".join(map(_block, lines))
    html = re.sub("</(ul|table)><\\1>", "", html)
    html = html.replace(_RAISED, "<sup>").replace(_RAISED_END, "</sup>")
    return _ANY_MARK.sub("", html.replace(_NOTE, " Note: "))


def _encoding(source: str) -> str:
    match = re.search(r"\\ansicpg(\d{1,5})", source)
    with contextlib.suppress(LookupError):
        return codecs.lookup(f"cp{match[1] if match else ''}").name
    return "cp1252"


def _prepared(source: str) -> str:
    """Return RTF with marks for control words and superscript, corrected for striprtf."""
    source = _STAR_INSIDE.sub(r"\1", source)
    source = _SUPER.sub(
        lambda raised: f"{_rtf_of(_RAISED)}{raised[1]}{_rtf_of(_RAISED_END)}", source
    )
    source = _WORD.sub(lambda word: f"{_rtf_of(_MARKS[word[1]])}{word[2]}", source)
    # A font without a charset has the charset of the text.
    source = re.sub(r"(\{\\f\d+)(?![^{}]{0,200}\\fcharset)", r"\1\\fcharset1", source)
    # Unlike RTF, striprtf does not read a missing number as 0, and it takes quadratic time for
    # links.
    source = re.sub(r"(?<!\\)\\bin(?![a-z\d])", r"\\bin0", source)
    return source.replace("\\fldinst", "\\code")


def _rtf_of(mark: str) -> str:
    return f"{{\\uc0\\u{ord(mark) - 65536} }}"


def _block(line: str) -> str:
    """Return a heading, a row, an item or a paragraph as HTML."""
    _, is_heading, heading = line.rpartition(_HEADING)
    if is_heading and heading[:1].isdecimal():
        text = heading[1:].split(_ITEM)[-1].strip()
        if text:
            level = min(int(heading[0]) + 1, _LOWEST_LEVEL)
            return f"<h{level}>{escape(text)}</h{level}>"
    if line.endswith(_ROW):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in line.split(_CELL)[:-1])
        return f"<table><tr>{cells}</tr></table>"
    if _ITEM in line:
        number, _, text = line.rpartition(_ITEM)[2].strip().partition("\t")
        mark = NUMBER_MARK.format(escape(number)) if any(map(str.isalnum, number)) else ""
        return f"<ul><li>{mark}{escape(text)}</li></ul>"
    return f"<p>{escape(line)}</p>" if line.strip() else ""
