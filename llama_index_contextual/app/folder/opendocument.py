"""OpenDocument texts and RTF to HTML, and so to Markdown."""

from __future__ import annotations

import re
from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part, attribute, local
from llama_index_contextual.app.folder.html import NUMBER, html_to_markdown

if TYPE_CHECKING:
    from pathlib import Path

_LEFT_OUT: Final = {"image": "picture", "object": "object", "annotation": "comment"}
_WRITTEN: Final = {"s": " ", "tab": " ", "line-break": "<br>"}
_SKIPPED: Final = frozenset(
    ("tracked-changes", "annotation", "covered-table-cell", "note-citation", "forms", "sequence-decls", "")
)
_TAGS: Final = {
    "table": "table",
    "table-header-rows": "thead",
    "table-row": "tr",
    "table-cell": "td",
    "text-box": "div",
    "section": "div",
    "list-item": "li",
    "list-header": "li",
    "p": "p",
}
_ATTRIBUTES: Final = {
    "number-columns-spanned": "colspan",
    "number-rows-spanned": "rowspan",
    "start-value": "value",
}
_MOST_REPEATED: Final = 100  # rows or cells that are alike
# Of RTF: marks in the place of words.
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
_OBJECTS: Final = {"picture": r"\pict", "note": r"\footnote", "text box": r"\shptxt"}
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
    return Conversion([Part(html_to_markdown(f"<body>{text}</body>").text)], metadata, writer.left_out)


class _OpenDocument:
    """Writes a text of OpenDocument as HTML."""

    def __init__(self, *roots: Any) -> None:
        self.notes: list[str] = []
        self.left_out: Counter[str] = Counter()
        self._named = {attribute(one, "name"): one for root in roots for one in root.iter() if attribute(one, "name")}
        levels = [level for root in roots for one in root.iter("{*}outline-style") for level in one]
        self._outline = {attribute(level, "level"): level for level in levels}
        self._counts = [0] * 11

    def html(self, element: Any, lists: tuple[str, ...] = ()) -> str:
        """What an element holds; ``lists`` are the styles of the lists around it."""
        pieces = [escape(element.text or "")]
        for child in element:
            pieces += [self._child(child, lists), escape(child.tail or "")]
        return "".join(pieces)

    def _child(self, child: Any, lists: tuple[str, ...]) -> str:
        kind, style = local(child), attribute(child, "style-name")
        self.left_out[_LEFT_OUT.get(kind, "")] += kind in _LEFT_OUT
        if kind in _SKIPPED or kind in _WRITTEN:
            return _WRITTEN.get(kind, "")
        if kind == "note":
            self.notes.append(escape(" ".join("".join(child[-1].itertext()).split())))
            return f" [{len(self.notes)}]"
        if kind == "list":
            lists = (*lists, style or (lists[-1] if lists else ""))
            return self._list(lists[-1], str(len(lists)), self.html(child, lists))
        tag, inner, count = _TAGS.get(kind, ""), self.html(child, lists), 1
        if kind == "h":
            return self._heading(child, inner)
        if kind == "span":
            position = attribute(self._child_of(style, "text-properties"), "text-position")
            tag = next((tag for tag in ("sup", "sub") if position.startswith(tag[:3])), "")
        elif kind == "p":
            parent = attribute(self._named.get(style), "parent-style-name") if style[:1] == "P" else ""
            tag = {"Title": "h1", "Subtitle": "h2"}.get(parent or style, "p")
        elif tag in ("td", "tr"):
            times = attribute(child, f"number-{'columns' if tag == 'td' else 'rows'}-repeated")
            count = min(int(times), _MOST_REPEATED) if times.isdecimal() and len(times) < 10 else 1  # noqa: PLR2004
        values = ((name, attribute(child, key)) for key, name in _ATTRIBUTES.items())
        shown = "".join(f' {name}="{escape(value)}"' for name, value in values if value)
        return f"<{tag}{shown}>{inner}</{tag}>" * count if tag else inner

    def _child_of(self, style: str, name: str) -> Any:
        return None if style not in self._named else self._named[style].find(f"{{*}}{name}")

    def _heading(self, element: Any, inner: str) -> str:
        level = attribute(element, "outline-level")
        at = min(int(level), 10) if level.isdecimal() else 1
        self._counts[at] += 1
        self._counts[at + 1 :] = [0] * (10 - at)
        style, number = self._outline.get(str(at)), ""
        if attribute(style, "num-format"):
            shown = int(attribute(style, "display-levels") or 1)
            number = ".".join(str(max(count, 1)) for count in self._counts[at - shown + 1 : at + 1])
            number = f"{attribute(style, 'num-prefix')}{number}{attribute(style, 'num-suffix')} "
        return f"<h{min(at, 6)}>{escape(number)}{inner}</h{min(at, 6)}>"

    def _list(self, style: str, depth: str, items: str) -> str:
        level = next((one for one in self._named.get(style, ()) if attribute(one, "level") == depth), None)
        kind, start = escape(attribute(level, "num-format")), escape(attribute(level, "start-value") or "1")
        is_numbered = kind and local(level) == "list-level-style-number"
        return f'<ol type="{kind}" start="{start}">{items}</ol>' if is_numbered else f"<ul>{items}</ul>"


def read_rtf(path: Path) -> Conversion:
    """A text in the Rich Text Format, by striprtf; marks tell headings, items and cells from text.

    Raises:
        ConversionError: It is none.
    """
    from striprtf.striprtf import rtf_to_text

    source = path.read_bytes().decode("latin-1")
    if not source.lstrip().startswith("{\\rtf"):
        raise ConversionError("it is damaged or no RTF file. Cure: ignore it.")
    marked = _WORD.sub(lambda word: f"{{\\uc0\\u{ord(_MARKS[word[1]]) - 65536} }}{word[2]}", source)
    marked = marked.replace("\\fldinst", "\\code")  # striprtf looks for links in quadratic time
    text = rtf_to_text(marked, errors="replace")
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # halves of letters beyond U+FFFF
    *rows, rest = _POWER.sub("^", text).replace(_RAISED, "").split(_ROW)
    lines: list[str] = []
    for row in rows:
        before, _, cells = row.partition(_TABLE)
        lines += [*before.split("\n"), cells.replace("\n", " ").replace(_TABLE, "") + _ROW]
    blocks = map(_block, (*lines, *rest.replace(_TABLE, "").split("\n")))
    page = html_to_markdown(re.sub("</(ul|table)><\\1>", "", f"<body>{''.join(blocks)}</body>"), is_marked=True)
    about = {key: rtf_to_text(f"{{\\rtf1 {value}}}", errors="replace") for key, value in _INFO.findall(source)}
    return Conversion([Part(page.text)], about, {thing: source.count(word) for thing, word in _OBJECTS.items()})


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
