"""OpenDocument texts, converted to HTML element by element."""

from __future__ import annotations

import re
from collections import defaultdict
from html import escape
from pathlib import Path
from typing import Any

from llama_index_contextual.app.folder.archive import (
    Archive,
    attribute,
    core_metadata,
    count_left_out,
    integer,
    local_name,
)
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, declare_format
from llama_index_contextual.app.folder.markdown import NUMBER_MARK, numeral

_SKIPPED = [
    "tracked-changes",
    "annotation",
    "covered-table-cell",
    "note-citation",
    "forms",
    "sequence-decls",
    "ruby-text",
    "table-of-content-source",
    "illustration-index-source",
    "alphabetical-index-source",
    "bibliography-source",
]
_WRITTEN = {"s": " ", "tab": " ", "line-break": "<br>", **dict.fromkeys(_SKIPPED, "")}
_TAGS = {
    "table": "table",
    "table-header-rows": "thead",
    "table-row": "tr",
    "text-box": "div",
    "section": "div",
    "desc": "div",
    "title": "div",
}
_TITLES = {"Title": "h1", "Subtitle": "h2"}
_OUTLINE = "outline-style"  # the numbering of headings
_LEVELS = 10  # of headings and lists
_MAX_REPEATED = 100  # cells


@declare_format(
    "OpenDocument text",
    ".odt",
    packages=("bs4", "lxml"),
    kept="numbering, merged cells, notes",
    left_out="pictures, comments, formulas",
)
def read_odt(path: Path) -> Conversion:
    """Return an OpenDocument text.

    Raises:
        ConversionError: The file is damaged, or not an OpenDocument text.
    """
    from llama_index_contextual.app.folder.html_to_markdown import html_to_markdown

    with Archive(path) as archive:
        content = archive.xml("content.xml")
        body = content.find(".//{*}body/{*}text")
        if body is None:
            raise ConversionError(
                "it is damaged or not an OpenDocument text (it has no body). Ignore it."
            )
        writer = _Writer(content, archive.xml("styles.xml"))
        html = writer.html(body)
        for number, note in enumerate(writer.notes, start=1):
            html += f"<p>[{number}] {note}</p>"
        metadata = core_metadata(archive.xml("meta.xml"))
    page = html_to_markdown(f"<body>{html}</body>", is_marked=True)
    return Conversion(page.parts, metadata, count_left_out(body))


class _Writer:
    """A converter of an OpenDocument text to HTML."""

    def __init__(self, *roots: Any) -> None:
        self.notes: list[str] = []
        self._by_name: dict[str, Any] = {_OUTLINE: ()}
        for root in roots:
            for element in root.iter():
                is_outline = local_name(element) == _OUTLINE
                name = _OUTLINE if is_outline else attribute(element, "name")
                self._by_name[name] = element
        # The counts of headings and list items, by style and level.
        self._counts: dict[str, list[int]] = defaultdict(lambda: [0] * (_LEVELS + 1))

    def html(self, element: Any, style: str = "", depth: int = 0) -> str:
        """Return the contents of an element as HTML.

        Args:
            element: The element.
            style: The name of the style of the list around it, or "".
            depth: The number of lists around it.
        """
        pieces = [escape(element.text or "")]
        for child in element:
            pieces.append(self._child(child, style, depth))
            pieces.append(escape(child.tail or ""))
        return "".join(pieces)

    def _child(self, child: Any, style: str, depth: int) -> str:
        kind = local_name(child)
        if not kind or kind in _WRITTEN:
            return _WRITTEN.get(kind, "")
        style_name = attribute(child, "style-name")
        if kind == "note":
            self.notes.append(re.sub("</?p>", " ", self.html(child[-1])))
            return f" [{len(self.notes)}]"
        if kind == "list":
            return self._list(child, style_name or style, depth + 1)
        inner = self.html(child, style, depth)
        if kind == "h":
            return self._heading(child, inner)
        if kind == "table-cell":
            return _cell(child, inner)
        if kind == "span":
            tag = self._span_tag(style_name)
        elif kind == "p":
            tag = self._paragraph_tag(style_name)
        else:
            tag = _TAGS.get(kind, "")
        return f"<{tag}>{inner}</{tag}>" if tag else inner

    def _heading(self, element: Any, inner: str) -> str:
        level = integer(attribute(element, "outline-level"), 1, _LEVELS)
        number = ""
        if attribute(element, "is-list-header") != "true":
            number = self._next_number(_OUTLINE, level)
        tag = f"h{min(level, 6)}"
        return f"<{tag}>{number} {inner}</{tag}>"

    def _paragraph_tag(self, style_name: str) -> str:
        parent = ""
        if style_name.startswith("P"):  # a style of a single paragraph
            parent = attribute(self._by_name.get(style_name), "parent-style-name")
        return _TITLES.get(parent or style_name, "p")

    def _span_tag(self, style_name: str) -> str:
        """Return the tag of superscript or subscript, or "" for other text."""
        style = self._by_name.get(style_name)
        if style is None:
            return ""
        position = attribute(style.find("{*}text-properties"), "text-position")
        if position.startswith(("sub", "-")):
            return "sub"
        return "sup" if position.strip("0% ") else ""

    def _level_definition(self, style: str, level: int) -> Any:
        """Return the definition of a level in a list or outline style, or None."""
        for child in self._by_name.get(style, ()):
            if attribute(child, "level") == str(level):
                return child
        return None

    def _next_number(self, style: str, level: int) -> str:
        """Return the next number of a level, with the higher levels that it shows; "" for none."""
        definition = self._level_definition(style, level)
        counts = self._counts[style]
        counts[level:] = [counts[level] + 1, *[0] * (_LEVELS - level)]
        if not attribute(definition, "num-format"):
            return ""
        first = max(level - integer(attribute(definition, "display-levels")), 0) + 1
        numbers = []
        for shown_level in range(first, level + 1):
            kind = attribute(self._level_definition(style, shown_level), "num-format")
            numbers.append(numeral(counts[shown_level] or 1, kind))
        prefix = attribute(definition, "num-prefix")
        return escape(prefix + ".".join(numbers) + attribute(definition, "num-suffix"))

    def _list(self, element: Any, style: str, depth: int) -> str:
        """Return a list, numbered if its level is. If it contains headings, it is only layout."""
        if element.find(".//{*}h") is not None or depth > _LEVELS:
            return self.html(element, style, depth)
        counts = self._counts[style]
        continues = attribute(element, "continue-numbering") == "true"
        if not (continues or attribute(element, "continue-list")) or not counts[depth]:
            definition = self._level_definition(style, depth)
            counts[depth] = integer(attribute(definition, "start-value")) - 1
        items = ""
        for item in element:
            counts[depth] = integer(attribute(item, "start-value"), counts[depth] + 1) - 1
            number = " "  # for a paragraph that continues an item
            if local_name(item) != "list-header":
                # An item whose first child is a list only contains that list.
                is_filled = len(item) > 0 and local_name(item[0]) != "list"
                number = self._next_number(style, depth).strip() if is_filled else ""
            if number.isdecimal():
                number += "."
            mark = NUMBER_MARK.format(number) if number else ""
            items += f"<li>{mark}{self.html(item, style, depth)}</li>"
        return f"<ul>{items}</ul>"


def _cell(element: Any, inner: str) -> str:
    columns = attribute(element, "number-columns-spanned")
    rows = attribute(element, "number-rows-spanned")
    repeated = integer(attribute(element, "number-columns-repeated"), 1, _MAX_REPEATED)
    return f'<td colspan="{columns}" rowspan="{rows}">{inner}</td>' * repeated
