"""OpenDocument texts and RTF to HTML, and so to Markdown."""

from __future__ import annotations

import codecs
import contextlib
import re
from collections import Counter
from html import escape
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part, attribute, local
from llama_index_contextual.app.folder.html import NUMBER, html_to_markdown, numeral

if TYPE_CHECKING:
    from pathlib import Path

_LEFT_OUT: Final = {"image": "picture", "object": "object", "annotation": "comment"}
_WRITTEN: Final = {"s": " ", "tab": " ", "line-break": "<br>"}
_SKIPPED: Final = frozenset(
    "tracked-changes annotation covered-table-cell note-citation forms sequence-decls ruby-text".split()  # noqa: SIM905
)
_TAGS: Final = {
    "table": "table",
    "table-header-rows": "thead",
    "table-row": "tr",
    "table-cell": "td",
    "text-box": "div",
    "section": "div",
    "p": "p",
}
_ATTRIBUTES: Final = {
    "number-columns-spanned": "colspan",
    "number-rows-spanned": "rowspan",
}
_MOST_REPEATED: Final = 100  # rows or cells that are alike
# Of RTF: marks in the place of words.
_HEADING, _ITEM, _CELL, _ROW, _TABLE, _RAISED, _NOTE, _NOTE_END = map(chr, range(0xE010, 0xE018))
_MARKS: Final = {
    "outlinelevel": _HEADING,
    "listtext": _ITEM,
    "pntext": _ITEM,
    "footnote": _NOTE,
    "cell": _CELL,
    "row": _ROW,
    "trowd": _TABLE,
    "super": _RAISED,
}
_WORD: Final = re.compile(rf"\\({'|'.join(_MARKS)}|v|deleted)(?![a-z])(\d?) ?|\\[{{}}\\]|[{{}}]")
_SHOWN_AGAIN: Final = re.compile(r"[^{}]{0,300}\\v0")  # within a group
_FONT: Final = re.compile(r"(\{\\f\d+)(?![^{}]{0,200}\\fcharset)")
_CODE_PAGE: Final = re.compile(r"\\ansicpg(\d{1,5})")
_NOTES: Final = re.compile(f"{_NOTE}([^{_NOTE}{_NOTE_END}]*){_NOTE_END}")
_ANY_MARK: Final = re.compile(f"[{_HEADING}-{_NOTE_END}]")
_POWER: Final = re.compile(f"(?<=\\w){_RAISED}(?=[\\d+-])")
_OBJECTS: Final = {"picture": r"\pict", "text box": r"\shptxt"}
_INFO: Final = re.compile(r"\{\\(title|author|subject) ([^{}]{0,1000})\}")


def read_odt(path: Path) -> Conversion:
    """A text of OpenDocument.

    Raises:
        ConversionError: It is damaged, or no text of OpenDocument.
    """
    with formats.open_archive(path) as archive:
        content = formats.xml_of(archive, "content.xml")
        body = content.find(".//{*}body/{*}text")
        if body is None:
            raise ConversionError("it is damaged or no text of OpenDocument (it has no body). Cure: ignore it.")
        writer = _OpenDocument(content, formats.xml_of(archive, "styles.xml"))
        text = writer.html(body) + "".join(f"<p>[{at}] {note}</p>" for at, note in enumerate(writer.notes, start=1))
        metadata = formats.core_metadata(formats.xml_of(archive, "meta.xml"))
    return Conversion([Part(html_to_markdown(f"<body>{text}</body>", is_marked=True).text)], metadata, writer.left_out)


class _OpenDocument:
    """Writes a text of OpenDocument as HTML."""

    def __init__(self, *roots: Any) -> None:
        self.notes: list[str] = []
        self.left_out: Counter[str] = Counter()
        self._named = {attribute(one, "name"): one for root in roots for one in root.iter() if attribute(one, "name")}
        levels = [level for root in roots for one in root.iter("{*}outline-style") for level in one]
        self._outline = {attribute(level, "level"): level for level in levels}
        self._counts = [0] * 11
        self._last: dict[tuple[str, int], int] = {}  # number of a list, by its name or style, and level
        self._shown: dict[int, str] = {}  # number of the item at a level

    def html(self, element: Any, lists: tuple[tuple[str, str], ...] = ()) -> str:
        """What an element holds; ``lists`` are the lists around it: the style of each, and which one it continues."""
        pieces = [escape(element.text or "")]
        for child in element:
            pieces += [self._child(child, lists), escape(child.tail or "")]
        return "".join(pieces)

    def _child(self, child: Any, lists: tuple[tuple[str, str], ...]) -> str:
        kind, style = local(child), attribute(child, "style-name")
        self.left_out[_LEFT_OUT.get(kind, "")] += kind in _LEFT_OUT
        if not kind or kind in _SKIPPED or kind in _WRITTEN:
            return _WRITTEN.get(kind, "")
        if kind == "note":
            self.notes.append(escape(" ".join("".join(child[-1].itertext()).split())))
            return f" [{len(self.notes)}]"
        if kind == "list":
            return self._list(child, lists)
        tag, inner, times = _TAGS.get(kind, ""), self.html(child, lists), 1
        if kind == "h":
            return self._heading(child, inner)
        if kind == "span":
            position = attribute(self._child_of(style, "text-properties"), "text-position")
            tag = next((tag for tag in ("sup", "sub") if position.startswith(tag[:3])), "")
        elif kind == "p":
            parent = attribute(self._named.get(style), "parent-style-name") if style[:1] == "P" else ""
            tag = {"Title": "h1", "Subtitle": "h2"}.get(parent or style, "p")
        elif tag in ("td", "tr"):
            times = min(
                _int(attribute(child, f"number-{'columns' if tag == 'td' else 'rows'}-repeated"), 1), _MOST_REPEATED
            )
        values = ((name, attribute(child, key)) for key, name in _ATTRIBUTES.items())
        shown = "".join(f' {name}="{escape(value)}"' for name, value in values if value)
        return f"<{tag}{shown}>{inner}</{tag}>" * times if tag else inner

    def _child_of(self, style: str, name: str) -> Any:
        return None if style not in self._named else self._named[style].find(f"{{*}}{name}")

    def _heading(self, element: Any, inner: str, number: str = "") -> str:
        level = attribute(element, "outline-level")
        at = min(int(level), 10) if level.isdecimal() else 1
        self._counts[at] += 1
        self._counts[at + 1 :] = [0] * (10 - at)
        style = self._outline.get(str(at))
        if not number and attribute(style, "num-format"):
            shown = int(attribute(style, "display-levels") or 1)
            number = ".".join(str(max(count, 1)) for count in self._counts[at - shown + 1 : at + 1])
            number = f"{attribute(style, 'num-prefix')}{number}{attribute(style, 'num-suffix')}"
        return f"<h{min(at, 6)}>{escape(number)} {inner}</h{min(at, 6)}>"

    def _list(self, element: Any, lists: tuple[tuple[str, str], ...]) -> str:
        """The items of a list with their numbers; a heading in it stands by itself."""
        style, above = lists[-1] if lists else ("", "")
        style = attribute(element, "style-name") or style
        goes_on = attribute(element, "continue-numbering") == "true"
        continued, depth = attribute(element, "continue-list") or (style if goes_on else above), len(lists) + 1
        level = next((one for one in self._named.get(style, ()) if attribute(one, "level") == str(depth)), None)
        number = _int(attribute(level, "start-value"), 1) - 1
        if continued:
            number = self._last.get((continued, depth), number)
        pieces = []
        for item in element:
            first, shown = next(iter(item), None), ""
            is_outer = first is None or local(first) == "list"  # it only holds other items
            if not is_outer and local(item) == "list-item":
                number = _int(attribute(item, "start-value"), number + 1)
                shown = self._number(level, number, depth)
            inner = (*lists, (style, continued if is_outer else ""))
            if first is not None and local(first) == "h":
                rest = "".join(self._child(child, inner) for child in item[1:])
                pieces.append(self._heading(first, self.html(first, inner), shown) + rest)
            elif is_outer and item.find(".//{*}h") is not None:
                pieces.append(self.html(item, inner))
            else:
                pieces.append(
                    f"<ul><li>{NUMBER.format(escape(shown)) if shown else ''}{self.html(item, inner)}</li></ul>"
                )
        self._last[style, depth] = self._last[attribute(element, "id"), depth] = number
        return "".join(pieces).replace("</ul><ul>", "")

    def _number(self, level: Any, number: int, depth: int) -> str:
        """The number of an item as its level shows it; "" for a bullet."""
        if not (kind := attribute(level, "num-format")):
            return ""
        self._shown[depth] = numeral(number, kind)
        outer = _int(attribute(level, "display-levels"), 1) - 1
        text = ".".join(self._shown.get(at, "1") for at in range(max(depth - outer, 1), depth + 1))
        around = [attribute(level, name) for name in ("num-prefix", "num-suffix")]
        return text.join(around if any(around) else ("", ".")).strip()


def _int(text: str, default: int) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else default  # noqa: PLR2004


def read_rtf(path: Path) -> Conversion:
    """A text in the Rich Text Format, by striprtf; marks tell headings, items and cells from text.

    Raises:
        ConversionError: It is none.
    """
    from striprtf.striprtf import rtf_to_text

    source = path.read_bytes().decode("latin-1")
    if not source.lstrip().startswith("{\\rtf"):
        raise ConversionError("it is damaged or no RTF file. Cure: ignore it.")
    encoding = "cp1252"
    with contextlib.suppress(LookupError):
        encoding = codecs.lookup(f"cp{''.join(_CODE_PAGE.findall(source)[:1])}").name
    marked = _FONT.sub(r"\1\\fcharset1", _marked(source))  # a font without a charset is of the text's
    marked = marked.replace("\\fldinst", "\\code")  # striprtf looks for links in quadratic time
    text = rtf_to_text(marked, encoding, "replace")
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # halves of letters beyond U+FFFF
    text, numbers = _POWER.sub("^", text).replace(_RAISED, ""), count(1)
    notes = [f"<p>[{at}] {escape(_ANY_MARK.sub(' ', note))}</p>" for at, note in enumerate(_NOTES.findall(text), 1)]
    text = _NOTES.sub(lambda _: f" [{next(numbers)}]", text).replace(_NOTE, "").replace(_NOTE_END, "")
    *rows, rest = text.split(_ROW)
    lines: list[str] = []
    for row in rows:  # without the word that begins it, from the line of its first cell
        start = row.find(_TABLE) if _TABLE in row else row.rfind("\n", 0, max(row.find(_CELL), 0)) + 1
        lines += [*row[:start].split("\n"), row[start:].replace("\n", " ").replace(_TABLE, "") + _ROW]
    blocks = map(_block, (*lines, *rest.replace(_TABLE, "").split("\n")))
    html = re.sub("</(ul|table)><\\1>", "", f"<body>{''.join((*blocks, *notes))}</body>")
    page = html_to_markdown(html, is_marked=True)
    about = {key: rtf_to_text(f"{{\\rtf1 {value}}}", errors="replace") for key, value in _INFO.findall(source)}
    left_out = {thing: source.count(word) for thing, word in _OBJECTS.items()}
    left_out["hidden text"] = marked.count("\\*") - source.count("\\*")
    return Conversion([Part(page.text)], about, left_out)


def _marked(source: str) -> str:
    """RTF with marks in the place of words, two of them around each note, and without what is hidden."""
    groups = [False]  # that are open, and whether each is a note

    def marked(match: re.Match[str]) -> str:
        text, word = match[0], match[1]
        if text == "{":
            groups.append(False)
        elif text == "}" and len(groups) > 1 and groups.pop():
            return f"{_letter(_NOTE_END)}}}"
        elif word in _MARKS:
            groups[-1] |= word == "footnote"
            return _letter(_MARKS[word]) + match[2]
        elif word and match[2] != "0" and not _SHOWN_AGAIN.match(source, match.end()):
            return "\\*"  # striprtf leaves out the rest of the group
        return text

    return _WORD.sub(marked, source)


def _letter(char: str) -> str:
    return f"{{\\uc0\\u{ord(char) - 65536} }}"


def _block(line: str) -> str:
    """A heading, a row, an item or a paragraph as HTML."""
    line = line.strip()
    _, is_heading, heading = line.rpartition(_HEADING)
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
