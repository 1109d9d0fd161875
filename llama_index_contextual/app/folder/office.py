"""Office files to Markdown: Word and PowerPoint with headings, lists, tables, notes; others as Kreuzberg reads them."""

from __future__ import annotations

import posixpath
import re
import zipfile
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.folder.formats import (
    Conversion,
    ConversionError,
    Part,
    attribute,
    core_metadata,
    local,
    open_archive,
    table_of,
    xml_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from xml.etree.ElementTree import Element

_CORE: Final = "docProps/core.xml"
_HEADING: Final = re.compile(r"heading\s*(\d)", re.IGNORECASE)
_TITLES: Final = {"title": 1, "subtitle": 2}
_LEVELS: Final = 6
_SKIPPED: Final = frozenset({"del", "moveFrom", "instrText", "delText", "pict", "Fallback", "rPr", "pPr"})
_MIDNIGHT: Final = re.compile(r"(\d{4}-\d\d-\d\d) 00:00:00(?= \|)")
# Names of Kreuzberg's for a text, and for several.
_KNOWN: Final = {
    "created_at": "created",
    "modified_at": "modified",
    "title": "title",
    "subject": "subject",
    "from_email": "sender",
}
_LISTED: Final = {"authors": "author", "to_emails": "to"}


def read_docx(path: Path) -> Conversion:
    """Return a Word document: a part for each page, where Word has written down where pages begin, else one part.

    Raises:
        ConversionError: It is damaged, or no Word document.
    """
    with open_archive(path) as archive:
        body = xml_of(archive, "word/document.xml").find("{*}body")
        if body is None:
            raise ConversionError("it is damaged or no Word document (it has no word/document.xml). Cure: ignore it.")
        word = _Word(_styles(archive), _numbering(archive), _notes(archive))
        word.read(body)
        metadata = core_metadata(xml_of(archive, _CORE))
    pages = word.pages()
    if len(pages) == 1:
        return Conversion([Part(pages[0])], metadata)
    return Conversion([Part(text, str(page), {"page": page}) for page, text in enumerate(pages, start=1)], metadata)


class _Word:
    """Reads the body of a document into blocks of Markdown, and remembers where pages end."""

    def __init__(
        self, styles: dict[str, tuple[int, str]], ordered: set[tuple[str, str]], notes: dict[str, str]
    ) -> None:
        self._styles = styles
        self._ordered = ordered
        self._notes = notes
        self._pages: list[list[str]] = [[]]
        self._used: list[str] = []

    def read(self, body: Element) -> None:
        for element in body:
            kind = local(element)
            if kind == "p":
                self._paragraph(element)
            elif kind == "tbl":
                self._add(table_of(self._rows(element)))
            elif kind in {"sdt", "sdtContent", "ins", "customXml", "smartTag"}:
                self.read(element)

    def pages(self) -> list[str]:
        if self._used:
            self._pages[-1] += [f"[{number}] {text}" for number, text in enumerate(self._used, start=1)]
        return ["\n\n".join(page).replace("\0", "") + "\n" for page in self._pages]

    def _add(self, block: str, *, joins: bool = False) -> None:
        if not block.strip("\0 \n"):
            return
        page = self._pages[-1]
        if joins and page and page[-1].lstrip()[:2] in {"- ", "1."}:
            page[-1] += f"\n{block}"
        else:
            page.append(block)

    def _paragraph(self, element: Element) -> None:
        style, number, level = "", "", "0"
        for child in element.iterfind("{*}pPr//*"):
            name = local(child)
            style = attribute(child, "val") if name == "pStyle" else style
            number = attribute(child, "val") if name == "numId" else number
            level = attribute(child, "val") if name == "ilvl" else level
            if name == "pageBreakBefore" and attribute(child, "val") not in {"0", "false"} and self._pages[-1]:
                self._pages.append([])
        heading, of_style = self._styles.get(style, (0, ""))
        number = number or of_style
        for position, piece in enumerate(self._text(element).split("\f")):
            if position and self._pages[-1]:
                self._pages.append([])
            text = piece.strip()
            if not text:
                continue
            if heading:
                self._add(f"{'#' * heading} {' '.join(text.split())}")
            elif number and number != "0":
                mark = "1." if (number, level) in self._ordered else "-"
                self._add(f"{'   ' * int(level or 0)}{mark} {' '.join(text.split())}", joins=True)
            else:
                self._add(text)

    def _text(self, element: Element) -> str:
        return "".join(self._pieces(element))

    def _pieces(self, element: Element) -> Iterator[str]:
        for child in element:
            kind = local(child)
            if kind == "t":
                yield child.text or ""
            elif kind == "tab":
                yield "\t"
            elif kind in {"br", "cr", "lastRenderedPageBreak"}:
                yield "\f" if kind == "lastRenderedPageBreak" or attribute(child, "type") == "page" else "\n"
            elif kind in {"footnoteReference", "endnoteReference"}:
                if note := self._notes.get(f"{kind[:-9]} {attribute(child, 'id')}"):
                    self._used.append(note)
                    yield f" [{len(self._used)}]"
            elif kind not in _SKIPPED:
                yield from self._pieces(child)

    def _rows(self, table: Element) -> list[list[str]]:
        return [
            [
                " ".join(self._text(part).replace("\f", " ") for part in cell.iterfind(".//{*}p"))
                for cell in row.iterfind("{*}tc")
            ]
            for row in table.iterfind("{*}tr")
        ]


def _styles(archive: zipfile.ZipFile) -> dict[str, tuple[int, str]]:
    """Return by a style's id the level of its heading, 0 for none, and its list, "" for none."""
    styles, bases = {}, {}
    for style in xml_of(archive, "word/styles.xml").iterfind("{*}style"):
        level, number, key = 0, "", attribute(style, "styleId")
        for child in style.iter():
            value = attribute(child, "val")
            if local(child) == "name":
                match = _HEADING.match(value)
                level = int(match[1]) if match else _TITLES.get(value.lower(), level)
            elif local(child) == "outlineLvl" and value.isdecimal() and int(value) < _LEVELS:
                level = level or int(value) + 1
            elif local(child) == "numId":
                number = value
            elif local(child) == "basedOn":
                bases[key] = value
        styles[key] = (min(level, _LEVELS), number)
    for key, base in bases.items():  # one step: a style of the user's on a heading
        if styles[key] == (0, "") and base in styles:
            styles[key] = styles[base]
    return styles


def _numbering(archive: zipfile.ZipFile) -> set[tuple[str, str]]:
    """Return the lists and levels that are numbered, not bulleted."""
    root = xml_of(archive, "word/numbering.xml")
    abstract = {
        attribute(style, "abstractNumId"): {
            attribute(level, "ilvl"): _value(level, "numFmt") or "bullet" for level in style.iterfind("{*}lvl")
        }
        for style in root.iterfind("{*}abstractNum")
    }
    return {
        (attribute(number, "numId"), level)
        for number in root.iterfind("{*}num")
        for level, kind in abstract.get(_value(number, "abstractNumId"), {}).items()
        if kind not in {"bullet", "none"}
    }


def _value(element: Element, name: str) -> str:
    """Return what a property of an element says; "" where it has none of this name."""
    child = element.find(f"{{*}}{name}")
    return "" if child is None else attribute(child, "val")


def _notes(archive: zipfile.ZipFile) -> dict[str, str]:
    """Return foot- and endnotes by kind and id."""
    notes = {}
    for kind in ("footnote", "endnote"):
        for note in xml_of(archive, f"word/{kind}s.xml"):
            if text := " ".join("".join(part.text or "" for part in note.iterfind(".//{*}t")).split()):
                notes[f"{kind} {attribute(note, 'id')}"] = text
    return notes


def read_pptx(path: Path) -> Conversion:
    """Return a presentation: a part for each slide, with its notes.

    Raises:
        ConversionError: It is damaged, or no presentation.
    """
    with open_archive(path) as archive:
        parts = []
        for number, name in enumerate(_slides(archive), start=1):
            if name in archive.NameToInfo:
                notes = next((target for target in _targets(archive, name).values() if "notesSlide" in target), "")
                text = _slide(xml_of(archive, name), xml_of(archive, notes), number)
                parts.append(Part(text, str(number), {"slide": number}))
        return Conversion(parts, core_metadata(xml_of(archive, _CORE)))


def _slides(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of the slides, in the order in which they are shown."""
    name = "ppt/presentation.xml"
    if name not in archive.NameToInfo:
        raise ConversionError("it is damaged or no presentation (it has no ppt/presentation.xml). Cure: ignore it.")
    targets = _targets(archive, name)
    ids = [key for child in xml_of(archive, name).iterfind(".//{*}sldId") for key in child.attrib.values()]
    return [targets[key] for key in ids if key in targets]


def _targets(archive: zipfile.ZipFile, name: str) -> dict[str, str]:
    """Return what a member refers to, by id."""
    folder, base = posixpath.split(name)
    return {
        attribute(child, "Id"): posixpath.normpath(posixpath.join(folder, attribute(child, "Target"))).lstrip("/")
        for child in xml_of(archive, f"{folder}/_rels/{base}.rels")
        if attribute(child, "TargetMode") != "External"
    }


def _slide(slide: Element, notes: Element, number: int) -> str:
    title, blocks = "", []
    for shape in (element for element in slide.iter() if local(element) in {"sp", "tbl"}):
        if local(shape) == "tbl":
            rows = [[_runs(cell) for cell in row.iterfind("{*}tc")] for row in shape.iterfind("{*}tr")]
            blocks.append(table_of(rows))
            continue
        kind = _placeholder(shape)
        if kind in {"title", "ctrTitle"} and not title:
            title = " ".join(_runs(shape).split())
        elif kind not in {"sldNum", "dt", "ftr"}:
            blocks.append(_paragraphs(shape, is_list=kind in {"body", "obj"}))
    spoken = [
        _paragraphs(shape, is_list=False) for shape in notes.iterfind(".//{*}sp") if _placeholder(shape) == "body"
    ]
    blocks = [f"# {title or f'Slide {number}'}", *blocks]
    if any(spoken):
        blocks += ["Notes:", *spoken]
    return "\n\n".join(block for block in blocks if block.strip()) + "\n"


def _placeholder(shape: Element) -> str:
    """Return what a shape is for: "title", "body", "obj" for one without a type; "" for none."""
    placeholder = shape.find(".//{*}ph")
    return "" if placeholder is None else attribute(placeholder, "type") or "obj"


def _paragraphs(shape: Element, *, is_list: bool) -> str:
    lines = []
    for paragraph in shape.iterfind(".//{*}p"):
        properties = paragraph.find("{*}pPr")
        level = 0 if properties is None else int(attribute(properties, "lvl") or 0)
        if text := " ".join(_runs(paragraph).split()):
            lines.append(f"{'  ' * level}- {text}" if is_list else text)
    return ("\n" if is_list else "\n\n").join(lines)


def _runs(element: Element) -> str:
    return "".join(
        " " if local(child) in {"br", "p"} else child.text or ""
        for child in element.iter()
        if local(child) in {"t", "br", "p"}
    )


def read_with_kreuzberg(path: Path) -> Conversion:
    """Return a document that Kreuzberg reads; sheets of a workbook are parts of their own.

    Raises:
        ConversionError: It says that it cannot.
    """
    from kreuzberg import ExtractionConfig, KreuzbergError, extract_file_sync

    if zipfile.is_zipfile(path):
        with open_archive(path):
            pass  # it refuses bombs
    config = ExtractionConfig(use_cache=False, enable_quality_processing=False, output_format="markdown")
    try:
        result = extract_file_sync(path, config=config)
    except KreuzbergError as error:
        words = str(error).split("\n", 1)[0]
        why = "it is encrypted" if "password" in words.lower() or "encrypt" in words.lower() else words[:200]
        raise ConversionError(f"{why}. Cure: ignore it, or give its type a reader.") from error
    metadata, text = _metadata(dict(result.metadata)), result.content.replace("\ufeff", "")  # a mark of CSV by Excel
    if names := result.metadata.get("sheet_names"):
        return Conversion(_sheets(_MIDNIGHT.sub(r"\1", text), list(names)), metadata)
    return Conversion([Part(text)], metadata)


def _sheets(text: str, names: list[str]) -> list[Part]:
    """Return the sheets of a workbook, which begin with their names as headings, in order."""
    starts, start = [], 0
    for name in names:
        at = text.find(f"## {name}\n", start)
        if at >= 0 and (at == 0 or text[at - 1] == "\n"):
            starts.append((at, name))
            start = at + 1
    parts = [
        Part(text[at + 1 : end].strip() + "\n", name, {"sheet": name})
        for (at, name), (end, _) in pairwise([*starts, (len(text), "")])
    ]
    return parts or [Part(text)]


def _metadata(data: dict[str, Any]) -> dict[str, str]:
    values = {ours: str(data.get(theirs) or "") for theirs, ours in _KNOWN.items()}
    lists = {ours: ", ".join(map(str, data.get(theirs) or [])) for theirs, ours in _LISTED.items()}
    return values | lists
