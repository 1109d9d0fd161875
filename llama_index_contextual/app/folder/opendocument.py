"""OpenDocument texts to HTML, and so to Markdown."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.folder.formats import (
    Conversion,
    ConversionError,
    Part,
    attribute,
    core_metadata,
    local,
    open_archive,
    xml_of,
)
from llama_index_contextual.app.folder.html import html_to_markdown

if TYPE_CHECKING:
    from pathlib import Path

_LEFT_OUT: Final = {"image": "picture", "object": "object", "annotation": "comment"}
_SKIPPED: Final = frozenset(
    ("tracked-changes", "annotation", "covered-table-cell", "note-citation", "forms", "sequence-decls", "")
)
_CHARS: Final = {"s": " ", "tab": " ", "line-break": "<br>"}
_TAGS: Final = {
    "table": "table",
    "table-header-rows": "thead",
    "table-row": "tr",
    "table-cell": "td",
    "text-box": "div",
    "section": "div",
}
_SPANS: Final = {"colspan": "number-columns-spanned", "rowspan": "number-rows-spanned"}
_MOST_REPEATED: Final = 100  # rows or cells that are alike


def read_odt(path: Path) -> Conversion:
    """A text of OpenDocument.

    Raises:
        ConversionError: It is damaged, or no text of OpenDocument.
    """
    with open_archive(path) as archive:
        content = xml_of(archive, "content.xml")
        body = content.find(".//{*}body/{*}text")
        if body is None:
            raise ConversionError("it is damaged or no text of OpenDocument (it has no body). Cure: ignore it.")
        writer = _OpenDocument(content, xml_of(archive, "styles.xml"))
        text = writer.html(body) + "".join(f"<p>[{at}] {note}</p>" for at, note in enumerate(writer.notes, start=1))
        metadata = core_metadata(xml_of(archive, "meta.xml"))
    page = html_to_markdown(f"<body>{text}</body>", is_marked=True)
    return Conversion([Part(page.text)], metadata, dict(writer.left_out))


class _OpenDocument:
    """Writes a text of OpenDocument as HTML."""

    def __init__(self, *roots: Any) -> None:
        self.notes: list[str] = []
        self.left_out: Counter[str] = Counter()
        named = [one for root in roots for one in root.iter() if attribute(one, "name")]
        self._styles = {attribute(one, "name"): one for one in named if local(one) == "style"}
        self._lists = {attribute(one, "name"): one for one in named if local(one) == "list-style"}
        outlines = [level for root in roots for one in root.iter("{*}outline-style") for level in one]
        self._outline = {attribute(level, "level"): level for level in outlines}
        self._counts = [0] * 11

    def html(self, element: Any, lists: tuple[str, ...] = ()) -> str:
        """What an element holds; ``lists`` are the styles of the lists around it."""
        pieces = [escape(element.text or "")]
        for child in element:
            pieces += [self._child(child, lists), escape(child.tail or "")]
        return "".join(pieces)

    def _child(self, child: Any, lists: tuple[str, ...]) -> str:
        kind = local(child)
        self.left_out[_LEFT_OUT.get(kind, "")] += kind in _LEFT_OUT
        if kind in _SKIPPED or kind in _CHARS:
            return _CHARS.get(kind, "")
        if kind == "note":
            self.notes.append(escape(" ".join("".join(child[-1].itertext()).split())))
            return f" [{len(self.notes)}]"
        if kind == "list":
            return self._list(child, (*lists, attribute(child, "style-name") or (lists[-1] if lists else "")))
        inner = self.html(child, lists)
        tag = _TAGS.get(kind, "")
        if kind == "h":
            return self._heading(child, inner)
        if kind == "p":
            tag = {"Title": "h1", "Subtitle": "h2"}.get(self._base(child), "p")
        elif kind == "span":
            tag = self._position(child)
        elif kind in ("table-cell", "table-row"):
            return _repeated(child, tag, inner)
        return f"<{tag}>{inner}</{tag}>" if tag else inner

    def _base(self, element: Any) -> str:
        """The style of an element that is not automatic."""
        name = attribute(element, "style-name")
        style = self._styles.get(name)
        return (attribute(style, "parent-style-name") if style is not None and name[:1] == "P" else "") or name

    def _position(self, span: Any) -> str:
        style = self._styles.get(attribute(span, "style-name"))
        properties = None if style is None else style.find("{*}text-properties")
        position = "" if properties is None else attribute(properties, "text-position")
        return "sup" if position.startswith("super") else "sub" if position.startswith("sub") else ""

    def _heading(self, element: Any, inner: str) -> str:
        level = attribute(element, "outline-level")
        at = min(int(level), 10) if level.isdecimal() else 1
        self._counts[at] += 1
        self._counts[at + 1 :] = [0] * (10 - at)
        style, number = self._outline.get(str(at)), ""
        if style is not None and attribute(style, "num-format"):
            shown = int(attribute(style, "display-levels") or 1)
            number = ".".join(str(max(count, 1)) for count in self._counts[at - shown + 1 : at + 1])
            number = f"{attribute(style, 'num-prefix')}{number}{attribute(style, 'num-suffix')} "
        return f"<h{min(at, 6)}>{escape(number)}{inner}</h{min(at, 6)}>"

    def _list(self, element: Any, lists: tuple[str, ...]) -> str:
        levels = (one for one in self._lists.get(lists[-1], ()) if attribute(one, "level") == str(len(lists)))
        level = next(levels, None)
        items = "".join(
            f'<li value="{escape(attribute(item, "start-value"))}">{self.html(item, lists)}</li>'
            for item in element
            if local(item) in ("list-item", "list-header")
        )
        if level is None or local(level) != "list-level-style-number" or not attribute(level, "num-format"):
            return f"<ul>{items}</ul>"
        start = escape(attribute(level, "start-value") or "1")
        return f'<ol type="{escape(attribute(level, "num-format"))}" start="{start}">{items}</ol>'


def _repeated(element: Any, tag: str, inner: str) -> str:
    """A cell or a row with its spans, as often as it is repeated; what is empty only up to a width of a table."""
    times = attribute(element, f"number-{'columns' if tag == 'td' else 'rows'}-repeated")
    count = min(int(times), _MOST_REPEATED) if times.isdecimal() and len(times) < 10 else 1  # noqa: PLR2004
    spans = "".join(f' {name}="{attribute(element, odf)}"' for name, odf in _SPANS.items() if attribute(element, odf))
    return f"<{tag}{spans}>{inner}</{tag}>" * count
