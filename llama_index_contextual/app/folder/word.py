"""Word to HTML by mammoth, and so to Markdown.

Before mammoth sees a document, headings get one style, numbers of headings and lists become text, pages get marks, and
formulas and text boxes become paragraphs.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import (
    PAGE,
    Conversion,
    ConversionError,
    Part,
    attribute,
    integer,
    local,
)
from llama_index_contextual.app.folder.html import NUMBER, html_to_markdown, whole

_MOST_XML: Final = 30_000_000  # bytes: mammoth takes a minute for 100 MB
_W: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_HEADING: Final = re.compile(r"heading (\d)")
_TITLES: Final = {"title": 1, "subtitle": 2, "toc heading": 1}
_UNWRAPPED: Final = frozenset("hyperlink fldSimple bdo dir ruby rubyBase".split())  # noqa: SIM905
_DROPPED: Final = frozenset("del moveFrom pPrChange rubyPr rt".split())  # noqa: SIM905
_SIGNS: Final = {"den": "/", "sup": "^", "sub": "_", "rad": "√"}  # before the parts of a formula
_PAGE_BEGINS: Final = re.compile(rf"^([-#\d.) ]{{0,60}}){PAGE}", re.MULTILINE)
# What mammoth makes of the styles that paragraphs get: six headings, and lists in one another.
_LISTED: Final = [f"p.Item{level} => {'ul > li > ' * level}ul > li:fresh" for level in range(9)]
_STYLES: Final = "\n".join(
    [*(f"p.Heading{level} => h{level}:fresh" for level in range(1, 7)), *_LISTED]
)


def read_docx(path: Path) -> Conversion:
    """A Word document: a part for each page, where Word has written down where pages begin, else one part.

    Raises:
        ConversionError: It is damaged, or no Word document.
    """
    import mammoth
    from lxml import etree

    prepared = io.BytesIO()
    with formats.open_archive(path) as archive, zipfile.ZipFile(prepared, "w") as written:
        name = formats.related(archive, "", "officeDocument", "word/document.xml")[0]
        root = formats.xml_of(archive, name, _MOST_XML)
        if root.find("{*}body") is None:
            raise ConversionError(
                f"it is damaged or no Word document (it has no {name} with a body). Cure: ignore it."
            )
        styles, numbering, comments = (
            formats.related(
                archive, name, kind, posixpath.join(posixpath.dirname(name), f"{kind}.xml")
            )[0]
            for kind in ("styles", "numbering", "comments")
        )
        document = _Document(formats.xml_of(archive, styles), formats.xml_of(archive, numbering))
        left_out = formats.lacking(root) + formats.lacking(formats.xml_of(archive, comments))
        document.prepare(root)
        # mammoth gets the changed document and its notes, and neither pictures nor anything unchecked.
        written.writestr(name, etree.tostring(root))
        for member in archive.namelist():
            if member.endswith((".rels", "[Content_Types].xml", "footnotes.xml", "endnotes.xml")):
                written.writestr(member, etree.tostring(formats.xml_of(archive, member, _MOST_XML)))
        metadata = formats.core_metadata(formats.xml_of(archive, "docProps/core.xml"))
    html = mammoth.convert_to_html(prepared, style_map=_STYLES, convert_image=lambda _: []).value
    page = html_to_markdown(html, is_marked=True)
    texts = [
        f"{text.strip()}\n"
        for text in _PAGE_BEGINS.sub(rf"{PAGE}\1", page.text).split(PAGE)
        if text.strip()
    ]
    pages = [Part(text, {"page": number}) for number, text in enumerate(texts, start=1)]
    return Conversion(pages if len(pages) > 1 else [Part("".join(texts))], metadata, left_out)


class _Document:
    """Makes plain what mammoth does not read."""

    def __init__(self, styles: Any, numbering: Any) -> None:
        self._styles = {attribute(style, "styleId"): style for style in styles.iterfind("{*}style")}
        self._kinds = {
            attribute(kind, "abstractNumId"): kind for kind in numbering.iterfind("{*}abstractNum")
        }
        self._lists = {attribute(one, "numId"): one for one in numbering.iterfind("{*}num")}
        self._counts: dict[str, list[int]] = defaultdict(
            lambda: [0] * 9
        )  # by kind of list; 0 is none yet

    def prepare(self, root: Any) -> None:
        """Change a document."""
        for element in list(root.iter()):
            kind = local(element)
            if kind in _DROPPED:
                _replace(element)
            elif kind == "AlternateContent":  # forms for several versions of Word
                _replace(element, *element.iterfind("{*}Fallback/*"))
            elif kind == "oMath":
                _replace(element, _run(_formula(element)))
            elif kind in _UNWRAPPED or kind == "oMathPara":
                _replace(element, *element)
            elif kind in ("cr", "ptab"):
                element.tag = f"{_W}{'br' if kind == 'cr' else 'tab'}"
            elif kind == "lastRenderedPageBreak" or (
                kind == "br" and attribute(element, "type") == "page"
            ):
                _replace(element, *_run(PAGE))
        for paragraph in list(root.iter(f"{_W}p")):
            self._paragraph(paragraph)

    def _paragraph(self, paragraph: Any) -> None:
        """Give a paragraph a style that mammoth knows, its number as text, and the mark of its page."""
        properties = paragraph.find(f"{_W}pPr")
        if properties is None:
            properties = _element("pPr")
            paragraph.insert(0, properties)
        direct = {local(child): attribute(child, "val") for child in properties.iter()}
        values = {**self._of_style(direct.get("pStyle", "")), **direct}
        level, list_id = integer(values.get("outlineLvl"), 9) + 1, values.get("numId", "")
        level, indent = level * (level <= 6), integer(values.get("ilvl"), 0, 8)  # noqa: PLR2004  others are text
        properties[:] = []
        is_filled = any((text.text or "").strip(f"{PAGE} ") for text in paragraph.iter(f"{_W}t"))
        is_item = list_id in self._lists and (is_filled or paragraph.getparent().tag == f"{_W}tc")
        if direct.get("pageBreakBefore", "0") not in ("0", "false"):
            properties.addnext(_run(PAGE))
        if is_item and (number := self._number(list_id, indent)):
            properties.addnext(
                _run(f"{number} " if level or not is_filled else NUMBER.format(number))
            )
        if is_filled and (level or is_item):
            properties.append(
                _element("pStyle", val=f"Heading{level}" if level else f"Item{indent}")
            )

    def _of_style(self, key: str, depth: int = 0) -> dict[str, str]:
        """The properties of a style and of those that it is based on; the level of a heading is an outline's."""
        if (style := self._styles.get(key)) is None or depth > 20:  # noqa: PLR2004  of one on itself
            return {}
        values = {local(child): attribute(child, "val") for child in style.iter()}
        name = values.get("name", "").lower()
        if level := int(match[1]) if (match := _HEADING.match(name)) else _TITLES.get(name):
            values["outlineLvl"] = str(min(level, 6) - 1)
        if "numId" in values:
            named = (
                at for at in range(9) if _value(self._level(values["numId"], at), "pStyle") == key
            )
            values.setdefault("ilvl", str(next(named, 0)))
        return {**self._of_style(values.get("basedOn", ""), depth + 1), **values}

    def _level(self, list_id: str, indent: int) -> Any:
        """A level of a list; None for none."""
        of_list = self._lists.get(list_id)
        kinds = (of_list, self._kinds.get(_value(of_list, "abstractNumId")))
        levels = (level for kind in kinds if kind is not None for level in kind.iter(f"{_W}lvl"))
        return next((level for level in levels if attribute(level, "ilvl") == str(indent)), None)

    def _number(self, list_id: str, indent: int) -> str:
        """The number of the next item of a list as Word shows it; "" for a bullet."""
        level, of_list = self._level(list_id, indent), self._lists[list_id]
        if level is None:
            return ""
        restart = of_list.find(f"{_W}lvlOverride/{_W}startOverride")  # it has numbers of its own
        counts = self._counts[
            _value(of_list, "abstractNumId") if restart is None else f"list {list_id}"
        ]
        start = (
            integer(_value(level, "start"))
            if restart is None
            else integer(attribute(restart, "val"))
        )
        counts[indent] = counts[indent] + 1 if counts[indent] else start
        counts[indent + 1 :] = [0] * (8 - indent)
        if _value(level, "numFmt") in ("bullet", "none"):
            return ""

        def shown(match: re.Match[str]) -> str:
            of, count = self._level(list_id, int(match[1]) - 1), counts[int(match[1]) - 1]
            kind = "" if level.find(f"{_W}isLgl") is not None else _value(of, "numFmt")
            return formats.numeral(count or integer(_value(of, "start")), kind)

        return re.sub(r"%([1-9])", shown, _value(level, "lvlText")).strip()


def _value(element: Any, name: str) -> str:
    """The value of a property of an element; "" where it has none of this name."""
    return "" if element is None else attribute(element.find(f"{_W}{name}"), "val")


def _element(name: str, *children: Any, **values: str) -> Any:
    """An element of a Word document."""
    from lxml import etree

    element = etree.Element(f"{_W}{name}", {f"{_W}{key}": value for key, value in values.items()})
    element.extend(children)
    return element


def _run(text: str) -> Any:
    inner = _element("t")
    inner.text = text
    inner.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")
    return _element("r", inner)


def _replace(element: Any, *children: Any) -> None:
    """Put others in the place of an element."""
    if (parent := element.getparent()) is not None:
        at = parent.index(element)
        parent[at : at + 1] = children


def _formula(element: Any) -> str:
    """A formula on one line: (a+b)/2, x^2, √5."""
    kind, inner = local(element), "".join(map(_formula, element))
    if kind == "chr":  # of a sum or an integral
        return attribute(element, "val")
    if kind == "d":
        return f"({inner})"
    if kind == "num" or (kind in _SIGNS and inner):
        return _SIGNS.get(kind, "") + whole(inner) + " " * (kind in ("sub", "sup"))
    return (element.text or "") if kind == "t" else inner
