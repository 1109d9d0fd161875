"""Word and OpenDocument to HTML, and so to Markdown.

Before mammoth sees a Word document, headings get one style, numbers of headings and lists become text, pages get marks,
and formulas and text boxes become paragraphs. OpenDocument is written as HTML element by element.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part, attribute, integer, local
from llama_index_contextual.app.folder.html import NUMBER, PAGE, formula, html_to_markdown

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
        members = {name: root}
        for member in archive.namelist():
            if member.endswith((".rels", "[Content_Types].xml", "footnotes.xml", "endnotes.xml")):
                members[member] = formats.xml_of(archive, member, _MOST_XML)
        for member, xml in members.items():
            written.writestr(member, etree.tostring(xml))
        metadata = formats.core_metadata(formats.xml_of(archive, "docProps/core.xml"))
    page = html_to_markdown(mammoth.convert_to_html(prepared, style_map=_STYLES).value, is_marked=True)
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
        """Write a formula, the begin of a page or an indented row with what mammoth knows; drop what Word hides."""
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
        elif kind == "r" and (properties := element.find(f"{_W}rPr")) is not None:
            style = self._styles.get(_value(properties, "rStyle"))
            raised = None if style is None else style.find(f".//{_W}vertAlign")
            if raised is not None and element.find(f"{_W}t") is not None and not _value(properties, "vertAlign"):
                properties.append(_element("vertAlign", val=attribute(raised, "val")))
            hidden = properties.find(f"{_W}vanish")
            if hidden is not None and attribute(hidden, "val") not in ("0", "false", "off"):
                self.left_out["hidden text"] += 1
                _replace(element)

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
        is_item = list_id in self._lists and any((one.text or "").strip(f"{PAGE} ") for one in texts)
        number = self._number(list_id, indent) if is_item else ""
        if level or is_item:
            properties.append(_element("pStyle", val=f"Heading{min(level, 6)}" if level else f"Item{indent}"))
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
    inner.text = "".join(char for char in text if char >= " ")
    inner.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")
    return _element("r", inner)


def _replace(element: Any, *children: Any) -> None:
    """Put others in the place of an element."""
    if (parent := element.getparent()) is not None:
        at = parent.index(element)
        parent[at : at + 1] = children


def _formula(element: Any) -> str:
    """A formula on one line: 1/2, x^2, √(a+b)."""
    kind, parts = local(element), [(local(child), _formula(child)) for child in element]
    if kind == "t":
        return element.text or ""
    if kind == "nary":
        sign = attribute(element.find(".//{*}chr"), "val") or "∫"
        limits = [(name, part) for name, part in parts if name in ("sub", "sup")]
        return f"{formula(kind, [('e', sign), *limits])} {dict(parts).get('e', '')}"
    return formula(kind, parts)


# OpenDocument

_SKIPPED: Final = frozenset(
    """
    tracked-changes annotation covered-table-cell note-citation forms sequence-decls ruby-text table-of-content-source
    illustration-index-source alphabetical-index-source bibliography-source
    """.split()  # noqa: SIM905
)
_WRITTEN: Final = {"s": " ", "tab": " ", "line-break": "<br>", **dict.fromkeys(_SKIPPED, "")}
_ROWS: Final = {"table": "table", "table-header-rows": "thead", "table-row": "tr", "table-cell": "td"}
_TAGS: Final = {**_ROWS, "text-box": "div", "section": "div", "desc": "div", "title": "div", "p": "p"}
_MATHML: Final = "{http://www.w3.org/1998/Math/MathML}"


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
        for element in body.iter("{*}object"):
            formula_of = formats.xml_of(archive, posixpath.normpath(f"{attribute(element, 'href')}/content.xml"))
            element.extend([formula_of] if local(formula_of) == "math" else [])
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
        self._shown = ["1"] * 300  # number of the item at a level

    def html(self, element: Any, lists: tuple[tuple[str, str], ...] = ()) -> str:
        """What an element holds; ``lists`` are the lists around it: the style of each, and which one it continues."""
        pieces = [escape(element.text or "")]
        for child in element:
            pieces += [self._child(child, lists), escape(child.tail or "")]
        return "".join(pieces)

    def _child(self, child: Any, lists: tuple[tuple[str, str], ...]) -> str:
        kind, style, times = local(child), attribute(child, "style-name"), 1
        properties = self._properties(style)
        is_hidden = "none" in (attribute(child, "display"), properties.get("display")) or kind == "hidden-text"
        self.left_out.update({"picture": kind == "image", "comment": kind == "annotation", "hidden text": is_hidden})
        self.left_out["object"] += kind == "object" and child.find(f"{_MATHML}math") is None
        if not kind or kind in _WRITTEN or is_hidden:
            return _WRITTEN.get(kind, "")
        if kind == "note":
            self.notes.append(re.sub("</?p>", " ", self.html(child[-1])))
            return f" [{len(self.notes)}]"
        if kind == "list":
            return self._list(child, lists)
        inner = self.html(child, lists)
        tag = kind if str(child.tag).startswith(_MATHML) else _TAGS.get(kind, "")
        if kind == "h":
            return self._heading(child, inner)
        if kind == "span":
            position = properties.get("text-position", "")
            tag = next((tag for tag in ("sup", "sub") if position.startswith(tag[:3])), "")
            tag = tag or "s" * (properties.get("text-line-through-style", "none") != "none")
        elif kind == "p":
            parent = attribute(self._named.get(style), "parent-style-name") if style[:1] == "P" else ""
            tag = {"Title": "h1", "Subtitle": "h2"}.get(parent or style, "p")
        elif tag in ("td", "tr"):
            times = integer(attribute(child, f"number-{'columns' if tag == 'td' else 'rows'}-repeated"), 1, 100)
        across, down = (attribute(child, f"number-{name}-spanned") for name in ("columns", "rows"))
        spans = f' colspan="{across}" rowspan="{down}"' if tag == "td" else ""
        return f"<{tag}{spans}>{inner}</{tag}>" * times if tag else inner

    def _properties(self, style: str) -> dict[str, str]:
        """What an automatic style says of letters."""
        named = self._named.get(style)
        found = None if named is None else named.find("{*}text-properties")
        return {} if found is None else {str(key).rpartition("}")[2]: value for key, value in found.attrib.items()}

    def _heading(self, element: Any, inner: str, number: str = "") -> str:
        at = integer(attribute(element, "outline-level"), 1, 10)
        self._counts[at:] = [self._counts[at] + 1, *[0] * (10 - at)]
        shown = [str(max(number, 1)) for number in self._counts]
        number = number or _shown(self._outline.get(str(at)), at, shown, ("", ""))
        return f"<h{min(at, 6)}>{escape(number)} {inner}</h{min(at, 6)}>"

    def _list(self, element: Any, lists: tuple[tuple[str, str], ...]) -> str:
        """The items of a list with their numbers; a heading in it stands by itself."""
        style, above = lists[-1] if lists else ("", "")
        style = attribute(element, "style-name") or style
        goes_on = attribute(element, "continue-numbering") == "true"
        continued, depth = attribute(element, "continue-list") or (style if goes_on else above), len(lists) + 1
        level = next((one for one in self._named.get(style, ()) if attribute(one, "level") == str(depth)), None)
        number = integer(attribute(level, "start-value")) - 1
        number = self._last.get((continued, depth), number) if continued else number
        pieces = []
        for item in element:
            first, shown = next(iter(item), None), ""
            is_outer = first is None or local(first) == "list"  # it only holds other items
            if not is_outer and local(item) == "list-item":
                number = integer(attribute(item, "start-value"), number + 1)
                self._shown[depth] = formats.numeral(number, attribute(level, "num-format"))
                shown = _shown(level, depth, self._shown, ("", "."))
            inner = (*lists, (style, continued if is_outer else ""))
            if first is not None and local(first) == "h":
                rest = "".join(self._child(child, inner) for child in item[1:])
                pieces.append(self._heading(first, self.html(first, inner), shown) + rest)
            elif is_outer and item.find(".//{*}h") is not None:
                pieces.append(self.html(item, inner))
            else:
                mark = NUMBER.format(escape(shown)) if shown else ""
                pieces.append(f"<ul><li>{mark}{self.html(item, inner)}</li></ul>")
        self._last[style, depth] = self._last[attribute(element, "id"), depth] = number
        return "".join(pieces).replace("</ul><ul>", "")


def _shown(level: Any, depth: int, numbers: Sequence[str], around: tuple[str, str]) -> str:
    """The number of an item as its level shows it, with those above it; "" for a bullet."""
    if not attribute(level, "num-format"):
        return ""
    text = ".".join(numbers[max(depth - integer(attribute(level, "display-levels")), 0) + 1 : depth + 1])
    affixes = attribute(level, "num-prefix"), attribute(level, "num-suffix")
    return text.join(affixes if any(affixes) else around).strip()
