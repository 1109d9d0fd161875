"""Word to HTML, by mammoth, and so to Markdown.

Before mammoth sees a document, headings get one style, numbers of headings and lists become text, pages get marks, and
formulas and text boxes become paragraphs.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.folder.formats import (
    Conversion,
    ConversionError,
    Part,
    attribute,
    core_metadata,
    local,
    open_archive,
    relations,
    xml_of,
)
from llama_index_contextual.app.folder.grid import numeral
from llama_index_contextual.app.folder.html import NUMBER, PAGE, html_to_markdown

if TYPE_CHECKING:
    from pathlib import Path

_MOST_XML: Final = 30_000_000  # bytes: mammoth takes a minute for 100 MB
_W: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_NAMES: Final = f'xmlns:w="{_W[1:-1]}"'
_MEMBERS: Final = ("styles", "numbering", "comments")
_MOST_COLUMNS: Final = 100
_Lists = dict[str, tuple[str, dict[int, dict[str, Any]]]]  # of each list: the id of its kind, and its levels
_HEADING: Final = re.compile(r"heading\s*(\d)", re.IGNORECASE)
_TITLES: Final = {"title": 1, "subtitle": 2}
_LEVELS: Final = range(1, 7)
_KEPT: Final = (".rels", "[Content_Types].xml", "footnotes.xml", "endnotes.xml")
_UNWRAPPED: Final = tuple("ins moveTo smartTag customXml sdt sdtContent bdo dir fldSimple hyperlink".split())  # noqa: SIM905
_DROPPED: Final = frozenset("del moveFrom sdtPr sdtEndPr instrText delText pPrChange rPrChange".split())  # noqa: SIM905
_PICTURES: Final = {
    "blip": "picture",
    "imagedata": "picture",
    "chart": "chart",
    "relIds": "diagram",
    "OLEObject": "object",
}
_STYLE: Final = '<w:style w:type="paragraph" w:styleId="Heading{0}"><w:name w:val="heading {0}"/></w:style>'
_STYLES: Final = "".join(map(_STYLE.format, _LEVELS))
_BULLETS: Final = "".join(f'<w:lvl w:ilvl="{level}"><w:numFmt w:val="bullet"/></w:lvl>' for level in range(9))
_LIST: Final = (
    f'<w:abstractNum w:abstractNumId="1">{_BULLETS}</w:abstractNum>'
    '<w:num w:numId="1"><w:abstractNumId w:val="1"/></w:num>'
)


def read_docx(path: Path) -> Conversion:
    """A Word document: a part for each page, where Word has written down where pages begin, else one part.

    Raises:
        ConversionError: It is damaged, or no Word document.
    """
    import mammoth

    with open_archive(path) as archive:
        found = (target for _, kind, target in relations(archive, "") if kind == "officeDocument")
        name = next(found, "word/document.xml")
        root = xml_of(archive, name, _MOST_XML)
        if root.find("{*}body") is None:
            raise ConversionError(f"it is damaged or no Word document (it has no {name} with a body). Cure: ignore it.")
        members = {kind: posixpath.join(posixpath.dirname(name), f"{kind}.xml") for kind in _MEMBERS}
        members.update({kind: target for _, kind, target in relations(archive, name) if kind in _MEMBERS})
        document = _Document(xml_of(archive, members["styles"]), _lists(xml_of(archive, members["numbering"])))
        document.prepare(root)
        document.left_out["comment"] += len(xml_of(archive, members["comments"]))
        metadata = core_metadata(xml_of(archive, "docProps/core.xml"))
        prepared = _prepared(archive, name, root, members)
    page = html_to_markdown(mammoth.convert_to_html(prepared).value, is_marked=True)
    texts = [f"{text.strip()}\n" for text in page.text.split(PAGE) if text.strip()]
    if len(texts) < 2:  # noqa: PLR2004
        return Conversion([Part("".join(texts))], metadata, dict(document.left_out))
    pages = [Part(text, str(number), {"page": number}) for number, text in enumerate(texts, start=1)]
    return Conversion(pages, metadata, dict(document.left_out))


def _prepared(archive: zipfile.ZipFile, name: str, root: Any, members: dict[str, str]) -> io.BytesIO:
    """The archive with the changed document, our styles and lists, and neither pictures nor anything unchecked."""
    from lxml import etree

    written = {
        name: etree.tostring(root),
        members["styles"]: f"<w:styles {_NAMES}>{_STYLES}</w:styles>",
        members["numbering"]: f"<w:numbering {_NAMES}>{_LIST}</w:numbering>",
    }
    for member in archive.namelist():
        if member.endswith(_KEPT) and member not in written:
            written[member] = etree.tostring(xml_of(archive, member, _MOST_XML))
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w") as prepared:
        for member, data in written.items():
            prepared.writestr(member, data)
    return result


class _Document:
    """Makes plain what mammoth does not read."""

    def __init__(self, styles: Any, lists: _Lists) -> None:
        self.left_out: Counter[str] = Counter()
        self._styles = {attribute(style, "styleId"): style for style in styles.iterfind("{*}style")}
        self._lists = lists
        self._counts: dict[str, list[int | None]] = defaultdict(lambda: [None] * 9)
        self._started: set[tuple[str, int]] = set()

    def prepare(self, root: Any) -> None:
        """Change a document."""
        for alternatives in list(root.iter("{*}AlternateContent")):
            _choose(alternatives)
        for element in list(root.iter()):
            kind = local(element)
            self.left_out[_PICTURES.get(kind, "")] += kind in _PICTURES
            _simplify(element, kind)
        for element in list(root.iter(*(f"{{*}}{name}" for name in _UNWRAPPED))):
            _replace(element, list(element))
        for box in list(root.iter("{*}txbxContent")):
            _lift(box)
        for element in list(root.iter("{*}drawing", "{*}pict", "{*}object")):
            _replace(element, [])
        for paragraph in list(root.iter(f"{_W}p")):
            self._paragraph(paragraph)

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
        indent = _int(values.get("ilvl", ""), 0 if "numId" in values else indent, 8)
        begins_page = "pageBreakBefore" in values and values["pageBreakBefore"] not in ("0", "false")
        for child in list(properties):
            properties.remove(child)
        texts = [one for one in paragraph.iter(f"{_W}t") if one.text]
        while texts and texts[0].text == PAGE:  # before all text: the page begins with the paragraph
            begins_page = True
            texts.pop(0).text = ""
        is_item = list_id in self._lists and any((one.text or "").strip(f"{PAGE} ") for one in texts)
        number = self._number(list_id, indent) if is_item else ""
        if level:
            properties.append(_element("pStyle", val=f"Heading{min(level, len(_LEVELS))}"))
        elif is_item:
            properties.append(_element("numPr", _element("ilvl", val=str(indent)), _element("numId", val="1")))
        if number:
            properties.addnext(_run(f"{number} " if level else NUMBER.format(number)))
        if begins_page and paragraph.getparent().tag == f"{_W}tc":
            properties.addnext(_run(PAGE))
        elif begins_page:
            paragraph.addprevious(_element("p", _run(PAGE)))

    def _of_style(self, key: str) -> tuple[int, str, int]:
        """Heading's level (0: none), list ("": none) and level in it, of a style or those that it is based on."""
        level, list_id, indent = 0, "", 0
        for _ in range(20):
            style = self._styles.get(key)
            if style is None:
                break
            values = {local(child): attribute(child, "val") for child in style.iter()}
            match = _HEADING.match(values.get("name", ""))
            level = level or (int(match[1]) if match else _TITLES.get(values.get("name", "").lower(), _outline(values)))
            if not list_id and "numId" in values:
                list_id = values["numId"]
                named = (at for at, one in self._lists.get(list_id, ("", {}))[1].items() if one["style"] == key)
                indent = _int(values.get("ilvl", ""), next(named, 0), 8)
            key = values.get("basedOn", "")
        return level, list_id, indent

    def _number(self, list_id: str, indent: int) -> str:
        """The number of the next item of a list as Word shows it; "" for a bullet."""
        abstract, levels = self._lists[list_id]
        counts, level = self._counts[abstract], levels.get(indent)
        if level is None:
            return ""
        restarts = (list_id, indent) not in self._started and level["restarts"]
        self._started.add((list_id, indent))
        last = counts[indent]
        counts[indent] = level["start"] if last is None or restarts else last + 1
        for deeper in range(indent + 1, 9):
            counts[deeper] = None
        if level["kind"] in ("bullet", "none", ""):
            return ""

        def shown(match: re.Match[str]) -> str:
            at = int(match[1]) - 1
            of = levels.get(at, level)
            count = counts[at]
            return numeral(of["start"] if count is None else count, "" if level["is_legal"] else of["kind"])

        return re.sub(r"%([1-9])", shown, level["text"]).strip()


def _lists(numbering: Any) -> _Lists:
    """Of each list by its id: the id of its kind, and its levels."""
    kinds = {attribute(kind, "abstractNumId"): kind for kind in numbering.iterfind("{*}abstractNum")}
    lists = {}
    for one in numbering.iterfind("{*}num"):
        key = _value(one, "abstractNumId")
        levels = {
            _int(attribute(child, "ilvl"), 0, 8): _level(child) for child in kinds.get(key, ()) if local(child) == "lvl"
        }
        for override in one.iterfind("{*}lvlOverride"):
            at = _int(attribute(override, "ilvl"), 0, 8)
            if (inner := override.find("{*}lvl")) is not None:
                levels[at] = _level(inner)
            if (start := _value(override, "startOverride")) and at in levels:
                levels[at] |= {"start": _int(start, 1, 10**6), "restarts": True}
        lists[attribute(one, "numId")] = (key, levels)
    return lists


def _level(level: Any) -> dict[str, Any]:
    return {
        "kind": _value(level, "numFmt") or "decimal",
        "text": _value(level, "lvlText"),
        "start": _int(_value(level, "start"), 1, 10**6),
        "style": _value(level, "pStyle"),
        "is_legal": level.find("{*}isLgl") is not None,
        "restarts": False,
    }


def _outline(values: dict[str, str]) -> int:
    """The level of a heading that has no style of one; 0 for text."""
    at = _int(values.get("outlineLvl", ""), len(_LEVELS), 9)
    return at + 1 if at < len(_LEVELS) else 0


def _int(text: str, default: int, most: int) -> int:
    return min(int(text), most) if text.isdecimal() and len(text) < 10 else default  # noqa: PLR2004


def _choose(alternatives: Any) -> None:
    """Keep one of the forms in which a drawing stands for several versions of Word: the first that holds text."""
    forms = [child for child in alternatives if local(child) in ("Choice", "Fallback")]
    kept = next((at for at, form in enumerate(forms) if any(local(one) == "t" for one in form.iter())), 0)
    _replace(alternatives, [child for form in forms[kept : kept + 1] for child in form])


def _simplify(element: Any, kind: str) -> None:
    """Write a formula, the begin of a page or an indented row with what mammoth knows; drop what Word hides."""
    if kind in _DROPPED:
        _replace(element, [])
    elif kind in ("oMath", "oMathPara"):
        _replace(element, [_run(_formula(element))])
    elif kind == "lastRenderedPageBreak" or (kind == "br" and attribute(element, "type") == "page"):
        _replace(element, [_text(PAGE)])
    elif kind == "gridBefore":
        cells = [_element("tc", _element("p")) for _ in range(_int(attribute(element, "val"), 0, _MOST_COLUMNS))]
        element.getparent().getparent()[1:1] = cells


def _lift(box: Any) -> None:
    """Put the paragraphs of a text box behind the paragraph that it hangs on."""
    hosts = list(box.iterancestors(f"{_W}p"))
    if hosts:
        for child in reversed([*box]):
            hosts[-1].addnext(child)


def _value(element: Any, name: str) -> str:
    """The value of a property of an element; "" where it has none of this name."""
    child = element.find(f"{_W}{name}")
    return "" if child is None else attribute(child, "val")


def _element(name: str, *children: Any, **values: str) -> Any:
    """An element of a Word document."""
    from lxml import etree

    element = etree.Element(f"{_W}{name}", {f"{_W}{key}": value for key, value in values.items()})
    element.extend(children)
    return element


def _text(text: str) -> Any:
    element = _element("t")
    element.text = "".join(char for char in text if char >= " ")
    element.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")
    return element


def _run(text: str) -> Any:
    return _element("r", _text(text))


def _replace(element: Any, children: list[Any]) -> None:
    """Put others in the place of an element."""
    parent = element.getparent()
    if parent is not None:
        at = parent.index(element)
        parent[at : at + 1] = children


def _formula(element: Any) -> str:
    """A formula on one line: 1/2, x^2, √(a+b)."""
    if local(element) == "t":
        return element.text or ""
    parts = {local(child): _formula(child) for child in element}
    inner = {name: f"({part})" if len(part) > 1 else part for name, part in parts.items()}
    kind, base = local(element), inner.get("e", "")
    if kind == "f":
        return f"{inner.get('num', '')}/{inner.get('den', '')}"
    if kind == "rad":
        return f"{inner.get('deg', '')}√{base}"
    if kind in ("sSup", "sSub", "sSubSup", "nary"):
        sign = attribute(element.find(".//{*}chr"), "val") if element.find(".//{*}chr") is not None else "∫"
        low, high = (f"{mark}{inner[name]}" if inner.get(name) else "" for mark, name in (("_", "sub"), ("^", "sup")))
        return f"{sign}{low}{high} {parts.get('e', '')}" if kind == "nary" else f"{parts.get('e', '')}{low}{high}"
    if kind == "d":
        return f"({', '.join(_formula(child) for child in element if local(child) == 'e')})"
    return "".join(_formula(child) for child in element)
