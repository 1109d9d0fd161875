"""Word to HTML by mammoth, and so to Markdown.

Before mammoth sees a document, headings get one style, numbers of headings and lists become text, pages get marks, and
formulas and text boxes become paragraphs.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part, attribute, integer, local
from llama_index_contextual.app.folder.html import NUMBER, PAGE, html_to_markdown, whole

_MOST_XML: Final = 30_000_000  # bytes: mammoth takes a minute for 100 MB
_W: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_HEADING: Final = re.compile(
    r"(?:heading|überschrift|titre|título|titolo|kop|rubrik|nagłówek|заголовок|標題|标题|見出し|제목)\s*(\d)",
    re.IGNORECASE,
)
_UNWRAPPED: Final = "ins moveTo smartTag customXml sdt sdtContent bdo dir fldSimple hyperlink ruby rubyBase".split()  # noqa: SIM905
_DROPPED: Final = frozenset("del moveFrom sdtPr sdtEndPr instrText delText pPrChange rPrChange rubyPr rt".split())  # noqa: SIM905
_PICTURES: Final = {"blip": "picture", "imagedata": "picture", "chart": "chart", "OLEObject": "object"}
# What mammoth makes of the styles that paragraphs get: six headings, and lists in one another.
_LISTED: Final = [f"p.Item{level} => {'ul > li > ' * level}ul > li:fresh" for level in range(9)]
_STYLES: Final = "\n".join([*(f"p.Heading{level} => h{level}:fresh" for level in range(1, 7)), *_LISTED])


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
            raise ConversionError(f"it is damaged or no Word document (it has no {name} with a body). Cure: ignore it.")
        styles, numbering, comments = (
            formats.related(archive, name, kind, posixpath.join(posixpath.dirname(name), f"{kind}.xml"))[0]
            for kind in ("styles", "numbering", "comments")
        )
        document = _Document(formats.xml_of(archive, styles), formats.xml_of(archive, numbering))
        document.prepare(root)
        document.left_out["comment"] += len(formats.xml_of(archive, comments))
        # mammoth gets the changed document and its notes, and neither pictures nor anything unchecked.
        written.writestr(name, etree.tostring(root))
        for member in archive.namelist():
            if member.endswith((".rels", "[Content_Types].xml", "footnotes.xml", "endnotes.xml")):
                other = formats.xml_of(archive, member, _MOST_XML)
                document.left_out["picture"] += sum(1 for _ in other.iter("{*}blip", "{*}imagedata"))
                written.writestr(member, etree.tostring(other))
        metadata = formats.core_metadata(formats.xml_of(archive, "docProps/core.xml"))
    html = mammoth.convert_to_html(prepared, style_map=_STYLES, convert_image=lambda _: []).value
    page = html_to_markdown(html, is_marked=True)
    texts = [f"{text.strip()}\n" for text in page.text.split(PAGE) if text.strip()]
    pages = [Part(text, {"page": number}) for number, text in enumerate(texts, start=1)]
    return Conversion(pages if len(pages) > 1 else [Part("".join(texts))], metadata, document.left_out)


class _Document:
    """Makes plain what mammoth does not read."""

    def __init__(self, styles: Any, numbering: Any) -> None:
        self.left_out: Counter[str] = Counter()
        self._styles = {attribute(style, "styleId"): style for style in styles.iterfind("{*}style")}
        self._kinds = {attribute(kind, "abstractNumId"): kind for kind in numbering.iterfind("{*}abstractNum")}
        self._lists = {attribute(one, "numId"): one for one in numbering.iterfind("{*}num")}
        self._counts: dict[str, list[int | None]] = defaultdict(lambda: [None] * 9)  # by kind of list
        self._started: set[tuple[str, int]] = set()

    def prepare(self, root: Any) -> None:
        """Change a document."""
        for alternatives in list(root.iter("{*}AlternateContent")):  # forms for several versions of Word
            forms = [child for child in alternatives if local(child) in ("Choice", "Fallback")]
            kept = [form for form in forms if form.find(".//{*}t") is not None] or forms
            _replace(alternatives, *(child for form in kept[:1] for child in form))
        for element in list(root.iter()):
            self._simplify(element, local(element))
        for element in list(root.iter(*(f"{{*}}{name}" for name in _UNWRAPPED))):
            _replace(element, *element)
        for box in reversed(list(root.iter("{*}txbxContent"))):  # behind the paragraph that it hangs on
            for host in list(box.iterancestors(f"{_W}p"))[-1:]:
                for child in reversed([*box]):
                    host.addnext(child)
        for element in list(root.iter("{*}drawing", "{*}pict", "{*}object")):
            _replace(element)
        for paragraph in list(root.iter(f"{_W}p")):
            self._paragraph(paragraph)

    def _simplify(self, element: Any, kind: str) -> None:
        """Write a formula or the begin of a page with what mammoth knows."""
        self.left_out[_PICTURES.get(kind, "")] += kind in _PICTURES
        if kind in _DROPPED or (kind == "tr" and element.find(f"{_W}trPr/{_W}del") is not None):
            _replace(element)
        elif kind in ("oMath", "oMathPara"):
            _replace(element, _run(_formula(element)))
        elif kind == "lastRenderedPageBreak" or (kind == "br" and attribute(element, "type") == "page"):
            _replace(element, *_run(PAGE))
        elif kind == "cr":
            _replace(element, _element("br"))
        elif kind == "gridBefore":
            cells = [_element("tc", _element("p")) for _ in range(integer(attribute(element, "val"), 0, 100))]
            element.getparent().getparent()[1:1] = cells

    def _paragraph(self, paragraph: Any) -> None:
        """Give a paragraph a style and a list that mammoth knows, its number as text, and the mark of its page."""
        properties = paragraph.find(f"{_W}pPr")
        if properties is None:
            properties = _element("pPr")
            paragraph.insert(0, properties)
        values = {local(child): attribute(child, "val") for child in properties.iter()}
        level, list_id, indent = self._of_style(values.get("pStyle", ""))
        level = level or _outline(values)
        list_id = values.get("numId", list_id)
        indent = integer(values.get("ilvl"), 0 if "numId" in values else indent, 8)
        begins_page = values.get("pageBreakBefore", "0") not in ("0", "false")
        properties[:] = []
        texts = [one for one in paragraph.iter(f"{_W}t") if one.text]
        while texts and texts[0].text == PAGE:  # before all text: the page begins with the paragraph
            begins_page = True
            texts.pop(0).text = ""
        is_filled = any((one.text or "").strip(f"{PAGE} ") for one in texts)
        is_cell = paragraph.getparent().tag == f"{_W}tc"
        is_listed = list_id in self._lists and (is_filled or is_cell)
        number = self._number(list_id, indent) if is_listed else ""
        is_item = is_listed and is_filled
        if level or is_item:
            properties.append(_element("pStyle", val=f"Heading{min(level, 6)}" if level else f"Item{indent}"))
        if number:
            properties.addnext(_run(NUMBER.format(number) if is_item and not level else f"{number} "))
        if begins_page and is_cell:
            properties.addnext(_run(PAGE))
        elif begins_page:
            paragraph.addprevious(_element("p", _run(PAGE)))

    def _of_style(self, key: str) -> tuple[int, str, int]:
        """Heading's level (0: none), list ("": none) and level in it, of a style or those that it is based on."""
        level, list_id, indent = 0, "", 0
        for _ in range(20):
            if (style := self._styles.get(key)) is None:
                break
            values = {local(child): attribute(child, "val") for child in style.iter()}
            name = values.get("name", "").lower()
            match = _HEADING.match(name)
            level = level or (int(match[1]) if match else {"title": 1, "subtitle": 2}.get(name, _outline(values)))
            if not list_id and "numId" in values:
                list_id = values["numId"]
                named = (at for at in range(9) if _value(self._level(list_id, at), "pStyle") == key)
                indent = integer(values.get("ilvl"), next(named, 0), 8)
            key = values.get("basedOn", "")
        return level, list_id, indent

    def _level(self, list_id: str, indent: int) -> Any:
        """A level of a list; None for none."""
        of_list = self._lists.get(list_id)
        kinds = (of_list, self._kinds.get(_value(of_list, "abstractNumId")))
        levels = (level for kind in kinds if kind is not None for level in kind.iter(f"{_W}lvl"))
        return next((level for level in levels if attribute(level, "ilvl") == str(indent)), None)

    def _number(self, list_id: str, indent: int) -> str:
        """The number of the next item of a list as Word shows it; "" for a bullet."""
        level, counts = self._level(list_id, indent), self._counts[_value(self._lists[list_id], "abstractNumId")]
        if level is None:
            return ""
        overrides = self._lists[list_id].iterfind(f"{_W}lvlOverride")
        restart = next((_value(one, "startOverride") for one in overrides if attribute(one, "ilvl") == str(indent)), "")
        is_new = restart and (list_id, indent) not in self._started
        self._started.add((list_id, indent))
        last = counts[indent]
        counts[indent] = integer(restart or _value(level, "start")) if last is None or is_new else last + 1
        counts[indent + 1 :] = [None] * (8 - indent)
        if _value(level, "numFmt") in ("bullet", "none"):
            return ""

        def shown(match: re.Match[str]) -> str:
            of, count = self._level(list_id, int(match[1]) - 1), counts[int(match[1]) - 1]
            kind = "" if level.find(f"{_W}isLgl") is not None else _value(of, "numFmt")
            return formats.numeral(integer(_value(of, "start")) if count is None else count, kind)

        return re.sub(r"%([1-9])", shown, _value(level, "lvlText")).strip()


def _outline(values: dict[str, str]) -> int:
    """The level of a heading that has no style of one; 0 for text."""
    at = integer(values.get("outlineLvl"), 9)
    return at + 1 if at < 6 else 0  # noqa: PLR2004


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
    """A formula on one line: 1/2, x^2, √(a+b)."""
    if (kind := local(element)) == "t":
        return element.text or ""
    texts = [(local(child), _formula(child)) for child in element]
    inner = defaultdict(str, texts)
    if inner["num"]:
        return f"{whole(inner['num'])}/{whole(inner['den'])}"
    if kind == "rad":
        return f"{inner['deg']}√{whole(inner['e'])}"
    if inner["sub"] or inner["sup"]:  # also of a sum or an integral
        limits = "".join(f"{sign}{whole(inner[name])}" for name, sign in (("sub", "_"), ("sup", "^")) if inner[name])
        sign = attribute(element.find(".//{*}chr"), "val") or "∫"
        return f"{sign}{limits} {inner['e']}" if kind == "nary" else inner["e"] + limits
    result, last = "", ""
    for _, text in texts:
        is_apart = re.search("[/^_√]", last) is not None or ("/" in text and last[-1:].isdigit())
        result += " " * (is_apart and text[:1].isalnum()) + text
        last = text
    return f"({result})" if kind == "d" else result
