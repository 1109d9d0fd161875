"""Word documents, converted to HTML by mammoth and then to Markdown.

Before mammoth reads a document, headings get uniform styles, the numbers of headings and lists
become text, page breaks become marks, and formulas and text boxes become paragraphs.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
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
from llama_index_contextual.app.folder.formats import (
    Conversion,
    ConversionError,
    Part,
    declare_format,
)
from llama_index_contextual.app.folder.formulas import in_parentheses
from llama_index_contextual.app.folder.markdown import NUMBER_MARK, PAGE_MARK, numeral

_MAX_XML = 30_000_000  # bytes; mammoth takes a minute for 100 MB
_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
_EMBEDDED = "\ue003"  # stands for an embedded document in another format
_EMBEDDED_PARAGRAPH = re.compile(f"<p>{_EMBEDDED}</p>")
_HEADING = re.compile(r"heading (\d)")
_TITLES = {"title": 1, "subtitle": 2, "toc heading": 1}
_LOWEST_LEVEL = 6  # of a heading; paragraphs with lower levels are text
_LEVELS = 9  # of nested lists
_MAX_STYLES = 20  # styles in a chain of base styles
_UNWRAPPED = frozenset(("hyperlink", "fldSimple", "bdo", "dir", "ruby", "rubyBase", "oMathPara"))
_REMOVED = frozenset(("del", "moveFrom", "pPrChange", "rubyPr", "rt"))
_BREAKS = {"cr": "br", "ptab": "tab"}
# Signs before the parts of a formula.
_FORMULA_SIGNS = {"den": "/", "sup": "^", "sub": "_", "rad": "√"}
_PAGE_BEGINS = re.compile(rf"^([-#\d.) ]{{0,60}}){PAGE_MARK}", re.MULTILINE)


def _style_map() -> str:
    """Return mammoth's style map for our paragraph styles, which are headings and nested lists."""
    headings = [f"p.Heading{level} => h{level}:fresh" for level in range(1, _LOWEST_LEVEL + 1)]
    items = [f"p.Item{level} => {'ul > li > ' * level}ul > li:fresh" for level in range(_LEVELS)]
    return "\n".join([*headings, *items])


@declare_format(
    "Word",
    ".docx",
    ".docm",
    packages=("mammoth", "lxml", "bs4"),
    place="page",
    kept="numbering, merged cells, notes, text boxes, ticked boxes, formulas, embedded HTML; "
    "pages if Word stored them",
    left_out="pictures, comments, headers",
)
def read_docx(path: Path) -> Conversion:
    """Return a Word document.

    It has one part per page if Word has saved the page breaks, and otherwise a single part.

    Raises:
        ConversionError: The file is damaged, or not a Word document.
    """
    from llama_index_contextual.app.folder.html_to_markdown import html_to_markdown

    left_out: Counter[str] = Counter()
    with Archive(path) as archive:
        html = _html(archive, left_out)
        metadata = core_metadata(archive.xml("docProps/core.xml"))
    text = html_to_markdown(html, is_marked=True).text
    text = _PAGE_BEGINS.sub(rf"{PAGE_MARK}\1", text)
    pages = [f"{page.strip()}\n" for page in text.split(PAGE_MARK) if page.strip()]
    if len(pages) > 1:
        parts = [Part(page, {"page": number}) for number, page in enumerate(pages, start=1)]
    else:
        parts = [Part("".join(pages))]
    return Conversion(parts, metadata, left_out)


def _html(archive: Archive, left_out: Counter[str]) -> str:
    """Return a document as HTML with marks for numbers and pages, and count what is left out."""
    import mammoth

    name = archive.main_member("word/document.xml", "Word document")
    root = archive.xml(name, _MAX_XML)
    if root.find("{*}body") is None:
        raise ConversionError(
            f"it is damaged or not a Word document (its {name} has no body). Ignore it."
        )
    folder = posixpath.dirname(name)

    def beside(kind: str) -> Any:
        names = archive.related(name, kind) or [posixpath.join(folder, f"{kind}.xml")]
        return archive.xml(names[0], _MAX_XML)

    left_out += count_left_out(root) + count_left_out(beside("comments"))
    document = _Document(beside("styles"), beside("numbering"))
    embedded_ids = document.prepare(root)
    # Give mammoth only the changed document and its notes, but no pictures or unchecked members.
    prepared = io.BytesIO()
    with zipfile.ZipFile(prepared, "w") as written:
        written.writestr("word/document.xml", _without_relations(root))
        for kind in ("footnotes", "endnotes"):
            notes = beside(kind)
            if len(notes):
                written.writestr(f"word/{kind}.xml", _without_relations(notes))
    result = mammoth.convert_to_html(prepared, style_map=_style_map())
    targets = {relation.id: relation.target for relation in archive.relations(name)}
    embedded = (
        _embedded_html(archive, targets.get(embedded_id, ""), left_out)
        for embedded_id in embedded_ids
    )
    return _EMBEDDED_PARAGRAPH.sub(lambda _: next(embedded, ""), str(result.value))


def _without_relations(root: Any) -> bytes:
    """Return an element as XML, without references to other members of the archive."""
    from lxml import etree

    for element in root.iter():
        for name in element.attrib:
            if name.startswith(_RELATION):
                del element.attrib[name]
    data: bytes = etree.tostring(root)
    return data


def _embedded_html(archive: Archive, name: str, left_out: Counter[str]) -> str:
    """Return an embedded document, which can be in another format, as HTML."""
    from html import escape

    from llama_index_contextual.app.folder.converters.eml import html_of_mail
    from llama_index_contextual.app.folder.converters.rtf import rtf_to_html
    from llama_index_contextual.app.folder.files import decode
    from llama_index_contextual.app.folder.html_to_markdown import body_of, decode_html

    data = archive.read(name) if name in archive else b""
    start = data.lstrip(b"\xef\xbb\xbf\r\n\t ")[:1000]
    if start.startswith(b"PK"):
        with Archive(io.BytesIO(data)) as inner:
            return _html(inner, left_out)
    if start.startswith(b"{\\rtf"):
        return rtf_to_html(data)
    if b"mime-version:" in start.lower():
        return body_of(html_of_mail(data))
    if start.startswith(b"<"):
        return body_of(decode_html(data))
    paragraphs = decode(data).text.splitlines()
    return "".join(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs)


class _Document:
    """A document that is changed to elements that mammoth supports."""

    def __init__(self, styles: Any, numbering: Any) -> None:
        self._styles = _by_attribute(styles.iterfind("{*}style"), "styleId")
        self._kinds = _by_attribute(numbering.iterfind("{*}abstractNum"), "abstractNumId")
        self._lists = _by_attribute(numbering.iterfind("{*}num"), "numId")
        # The number of the last item by list and level; 0 if there is none yet.
        self._counts: dict[str, list[int]] = defaultdict(lambda: [0] * _LEVELS)

    def prepare(self, root: Any) -> list[str]:
        """Change a document in place, and return the ids of embedded documents."""
        embedded_ids = []
        for element in list(root.iter()):
            kind = local_name(element)
            if kind in _REMOVED:
                _replace(element)
            elif kind == "AlternateContent":  # variants for several versions of Word
                _replace(element, *element.iterfind("{*}Fallback/*"))
            elif kind == "oMath":
                _replace(element, _run(_formula(element)))
            elif kind in _UNWRAPPED:
                _replace(element, *element)
            elif kind in _BREAKS:
                element.tag = f"{_W}{_BREAKS[kind]}"
            elif kind == "altChunk":
                embedded_ids.append(attribute(element, "id"))
                _replace(element, _element("p", _run(_EMBEDDED)))
            elif _is_page_break(element):
                _replace(element, *_run(PAGE_MARK))
        for paragraph in list(root.iter(f"{_W}p")):
            self._prepare_paragraph(paragraph)
        return embedded_ids

    def _prepare_paragraph(self, paragraph: Any) -> None:
        """Give a paragraph one of our styles, its number as text, and the mark of a new page."""
        properties = paragraph.find(f"{_W}pPr")
        if properties is None:
            properties = _element("pPr")
            paragraph.insert(0, properties)
        direct = {local_name(child): attribute(child, "val") for child in properties.iter()}
        values = {**self._style_values(direct.get("pStyle", "")), **direct}
        properties[:] = []

        # Find out whether it is a heading, an item or both.
        texts = (text.text or "" for text in paragraph.iter(f"{_W}t"))
        is_filled = any(text.strip(f"{PAGE_MARK} ") for text in texts)
        level = integer(values.get("outlineLvl"), _LEVELS) + 1
        is_heading = level <= _LOWEST_LEVEL
        list_id = values.get("numId", "")
        indent = integer(values.get("ilvl"), 0, _LEVELS - 1)
        is_in_cell = paragraph.getparent().tag == f"{_W}tc"
        is_item = list_id in self._lists and (is_filled or is_in_cell)

        # Write what this means for mammoth.
        if direct.get("pageBreakBefore", "0") not in ("0", "false"):
            properties.addnext(_run(PAGE_MARK))
        number = self._next_number(list_id, indent) if is_item else ""
        if number:
            is_text = is_heading or not is_filled
            properties.addnext(_run(f"{number} " if is_text else NUMBER_MARK.format(number)))
        if is_filled and is_heading:
            properties.append(_element("pStyle", val=f"Heading{level}"))
        elif is_filled and is_item:
            properties.append(_element("pStyle", val=f"Item{indent}"))

    def _style_values(self, style_id: str, depth: int = 0) -> dict[str, str]:
        """Return the properties of a style and of its base styles.

        The level of a heading style is stored as its outline level.
        """
        style = self._styles.get(style_id)
        if style is None or depth > _MAX_STYLES:  # a style can be based on itself
            return {}
        values = {local_name(child): attribute(child, "val") for child in style.iter()}
        name = values.get("name", "").lower()
        match = _HEADING.match(name)
        level = int(match[1]) if match else _TITLES.get(name, 0)
        if level:
            values["outlineLvl"] = str(min(level, _LOWEST_LEVEL) - 1)
        if "numId" in values and "ilvl" not in values:
            values["ilvl"] = str(self._level_of_style(values["numId"], style_id))
        return {**self._style_values(values.get("basedOn", ""), depth + 1), **values}

    def _level_of_style(self, list_id: str, style_id: str) -> int:
        """Return the level of a list that has a paragraph style, or 0."""
        for indent in range(_LEVELS):
            if _value(self._level_definition(list_id, indent), "pStyle") == style_id:
                return indent
        return 0

    def _level_definition(self, list_id: str, indent: int) -> Any:
        """Return the definition of a level in a list, or None."""
        numbered_list = self._lists.get(list_id)
        kind = self._kinds.get(_value(numbered_list, "abstractNumId"))
        for holder in (numbered_list, kind):
            if holder is not None:
                for level in holder.iter(f"{_W}lvl"):
                    if attribute(level, "ilvl") == str(indent):
                        return level
        return None

    def _next_number(self, list_id: str, indent: int) -> str:
        """Return the number of the next item of a list as Word shows it; "" for a bullet."""
        level = self._level_definition(list_id, indent)
        if level is None:
            return ""
        numbered_list = self._lists[list_id]
        restart = numbered_list.find(f"{_W}lvlOverride/{_W}startOverride")
        if restart is None:
            counts = self._counts[_value(numbered_list, "abstractNumId")]
            start = integer(_value(level, "start"))
        else:  # the list restarts its numbers
            counts = self._counts[f"list {list_id}"]
            start = integer(attribute(restart, "val"))
        counts[indent] = counts[indent] + 1 if counts[indent] else start
        counts[indent + 1 :] = [0] * (_LEVELS - 1 - indent)
        if _value(level, "numFmt") in ("bullet", "none"):
            return ""
        is_decimal = level.find(f"{_W}isLgl") is not None

        def shown(match: re.Match[str]) -> str:
            index = int(match[1]) - 1
            numbered = self._level_definition(list_id, index)
            kind = "" if is_decimal else _value(numbered, "numFmt")
            return numeral(counts[index] or integer(_value(numbered, "start")), kind)

        return re.sub(r"%([1-9])", shown, _value(level, "lvlText")).strip()


def _by_attribute(elements: Iterator[Any], name: str) -> dict[str, Any]:
    return {attribute(element, name): element for element in elements}


def _is_page_break(element: Any) -> bool:
    kind = local_name(element)
    return kind == "lastRenderedPageBreak" or (
        kind == "br" and attribute(element, "type") == "page"
    )


def _value(element: Any, name: str) -> str:
    """Return the value of an element's property; "" if there is none."""
    return "" if element is None else attribute(element.find(f"{_W}{name}"), "val")


def _element(name: str, *children: Any, **values: str) -> Any:
    """Return an element of a Word document."""
    from lxml import etree

    attributes = {f"{_W}{key}": value for key, value in values.items()}
    element = etree.Element(f"{_W}{name}", attributes)
    element.extend(children)
    return element


def _run(text: str) -> Any:
    inner = _element("t")
    inner.text = text
    inner.set(_SPACE, "preserve")
    return _element("r", inner)


def _replace(element: Any, *children: Any) -> None:
    """Replace an element by other elements, or remove it."""
    parent = element.getparent()
    if parent is not None:
        index = parent.index(element)
        parent[index : index + 1] = children


def _formula(element: Any) -> str:
    """Return a formula on one line: (a+b)/2, x^2, √5."""
    kind = local_name(element)
    inner = "".join(map(_formula, element))
    if kind == "t":
        return element.text or ""
    if kind == "chr":  # the sign of a sum or an integral
        return attribute(element, "val")
    if kind == "d":
        return f"({inner})"
    if kind == "num":
        return in_parentheses(inner)
    if kind in _FORMULA_SIGNS and inner:
        end = " " if kind in ("sub", "sup") else ""
        return _FORMULA_SIGNS[kind] + in_parentheses(inner) + end
    return inner
