"""RTF to HTML, and so to Markdown: marks in the place of words tell headings, items and cells from text."""

from __future__ import annotations

import codecs
import contextlib
import re
from html import escape
from itertools import count
from pathlib import Path
from typing import Final

from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part
from llama_index_contextual.app.folder.html import NUMBER, html_to_markdown, power

_HEAD, _ITEM, _CELL, _ROW, _TABLE, _RAISED, _RAISED_END, _NOTE, _NOTE_END = map(chr, range(0xE010, 0xE019))
_MARKS: Final = {"outlinelevel": _HEAD, "listtext": _ITEM, "pntext": _ITEM, "footnote": _NOTE, "super": _RAISED}
_RTF: Final = {**_MARKS, "cell": _CELL, "row": _ROW, "trowd": _TABLE}
_RTF_WORD: Final = re.compile(rf"\\({'|'.join(_RTF)}|nosupersub|v|deleted)(?![a-z])(\d?) ?|\\[{{}}\\]|[{{}}]")
_ANY_MARK: Final = re.compile(f"[{_HEAD}-{_NOTE_END}]")
_POWER: Final = re.compile(f"(?<=[\\w)]){_RAISED}([^{_HEAD}-{_NOTE_END}]+)(?:{_RAISED_END}|(?={_NOTE}))")
_NOTES: Final = re.compile(f"{_NOTE}([^{_NOTE}{_NOTE_END}]*){_NOTE_END}")


def read_rtf(path: Path) -> Conversion:
    """A text in the Rich Text Format, by striprtf.

    Raises:
        ConversionError: It is none.
    """
    from striprtf.striprtf import rtf_to_text

    source = path.read_bytes().decode("latin-1")
    if not source.lstrip().startswith("{\\rtf"):
        raise ConversionError("it is damaged or no RTF file. Cure: ignore it.")
    encoding = "cp1252"
    with contextlib.suppress(LookupError):
        encoding = codecs.lookup("cp" + "".join(re.findall(r"\\ansicpg(\d{1,5})", source)[:1])).name
    marked = _marked(source)
    # A font without a charset is of the text's; and striprtf looks for links in quadratic time.
    known = re.sub(r"(\{\\f\d+)(?![^{}]{0,200}\\fcharset)", r"\1\\fcharset1", marked).replace("\\fldinst", "\\code")
    text = rtf_to_text(known, encoding, "replace")
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # halves of letters beyond U+FFFF
    text, numbers = _POWER.sub(lambda raised: power(raised[1]), text), count(1)
    text = text.replace(_RAISED, "").replace(_RAISED_END, "")
    notes = [_ANY_MARK.sub(" ", note) for note in _NOTES.findall(text)]
    text = _NOTES.sub(lambda _: f" [{next(numbers)}]", text).replace(_NOTE, "").replace(_NOTE_END, "")
    *rows, rest = text.split(_ROW)
    lines: list[str] = []
    for row in rows:  # without the word that begins it, from the line of its first cell
        start = row.find(_TABLE) if _TABLE in row else row.rfind("\n", 0, max(row.find(_CELL), 0)) + 1
        lines += [*row[:start].split("\n"), row[start:].replace("\n", " ").replace(_TABLE, "") + _ROW]
    blocks = [*map(_block, (*lines, *rest.replace(_TABLE, "").split("\n")))]
    blocks += [f"<p>[{at}] {escape(note)}</p>" for at, note in enumerate(notes, start=1)]
    page = html_to_markdown(re.sub("</(ul|table)><\\1>", "", f"<body>{''.join(blocks)}</body>"), is_marked=True)
    info = re.findall(r"\{\\(title|author|subject) ([^{}]{0,1000})\}", source)
    days = re.findall(r"\\(creatim|revtim)\\yr(\d{4})\\mo(\d\d?)\\dy(\d\d?)", source)
    dates = {"creatim": "created", "revtim": "modified"}
    about = {dates[key]: f"{year}-{month:0>2}-{day:0>2}" for key, year, month, day in days}
    about |= {key: rtf_to_text(f"{{\\rtf1 {value}}}", errors="replace") for key, value in info}
    hidden = marked.count("\\*") - source.count("\\*")
    comments = source.count(r"\*\annotation")
    left_out = {
        "comment": comments,
        "picture": source.count(r"\pict"),
        "text box": source.count(r"\shptxt"),
        "hidden text": hidden,
    }
    return Conversion([Part(page.text)], about, left_out)


def _marked(source: str) -> str:
    """RTF with marks in the place of words, two of them around each note, and without what is hidden."""
    groups, is_hidden = [""], False  # the marks at the ends of groups that are open

    def written(mark: str) -> str:
        return f"{{\\uc0\\u{ord(mark) - 65536} }}" if mark else ""

    def marked(match: re.Match[str]) -> str:
        nonlocal is_hidden
        text, word, number = match[0], match[1], match[2]
        if text == "{":
            groups.append("")
        elif text == "}" and len(groups) > 1:
            return f"{written(groups.pop())}}}"
        elif word in ("super", "nosupersub"):
            ended, groups[-1] = groups[-1], _RAISED_END if word == "super" and number != "0" else ""
            return written(ended) + written(_RAISED if groups[-1] else "")
        elif word in _RTF:
            groups[-1] = _NOTE_END if word == "footnote" else groups[-1]
            return f"{written(_RTF[word])}{number}"
        elif word and is_hidden and number == "0":
            is_hidden = False
            return "}"
        elif word and number != "0":  # striprtf leaves out a group, or the rest of one, that begins like this
            is_hidden = re.match(r"[^{}]{0,300}\\v0", source[match.end() : match.end() + 320]) is not None
            return "{\\*\\v " if is_hidden else "\\*"
        return text

    return _RTF_WORD.sub(marked, source)


def _block(line: str) -> str:
    """A heading, a row, an item or a paragraph as HTML."""
    line = line.strip()
    _, is_heading, heading = line.rpartition(_HEAD)
    if is_heading and heading[:1].isdecimal() and (text := " ".join(heading[1:].split(_ITEM)[-1].split())):
        return f"<h{min(int(heading[0]) + 1, 6)}>{escape(text)}</h{min(int(heading[0]) + 1, 6)}>"
    if line.endswith(_ROW):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in line.split(_CELL)[:-1])
        return f"<table><tr>{cells}</tr></table>"
    if _ITEM in line:
        number, _, text = line.rpartition(_ITEM)[2].strip().partition("\t")
        mark = NUMBER.format(escape(number)) if any(map(str.isalnum, number)) else ""
        return f"<ul><li>{mark}{escape(text)}</li></ul>"
    return f"<p>{escape(line)}</p>" if line else ""
