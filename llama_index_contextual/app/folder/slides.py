"""PowerPoint to Markdown: a part for each slide, with its title, lists, tables and notes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.folder.formats import (
    Conversion,
    ConversionError,
    Part,
    attribute,
    core_metadata,
    escape,
    heading,
    local,
    open_archive,
    relations,
    table_of,
    xml_of,
)

if TYPE_CHECKING:
    import zipfile
    from pathlib import Path

_LEFT_OUT: Final = {"pic": "picture", "chart": "chart", "oleObj": "object", "videoFile": "video", "audioFile": "sound"}
_SIGNS: Final = ("+", "-", "\u2212")
_NUMERALS: Final = {"alphaLc": "a", "alphaUc": "A", "romanLc": "i", "romanUc": "I"}


def read_pptx(path: Path) -> Conversion:
    """A presentation: a part for each slide, with its notes.

    Raises:
        ConversionError: It is damaged, or no presentation.
    """
    with open_archive(path) as archive:
        parts, left_out = [], Counter[str]()
        for number, name in enumerate(_slides(archive), start=1):
            if name in archive.NameToInfo:
                slide, others = xml_of(archive, name), relations(archive, name)
                for element in slide.iter():
                    left_out[_LEFT_OUT.get(local(element), "")] += 1
                notes = next((target for _, kind, target in others if kind == "notesSlide"), "")
                diagrams = [xml_of(archive, target) for _, kind, target in others if kind == "diagramData"]
                text = _slide(slide, diagrams, xml_of(archive, notes), number)
                parts.append(Part(text, str(number), {"slide": number}))
        del left_out[""]
        return Conversion(parts, core_metadata(xml_of(archive, "docProps/core.xml")), dict(left_out))


def _slides(archive: zipfile.ZipFile) -> list[str]:
    """The names of the slides, in the order in which they are shown."""
    named = (target for _, kind, target in relations(archive, "") if kind == "officeDocument")
    name = next(named, "ppt/presentation.xml")
    if name not in archive.NameToInfo:
        raise ConversionError("it is damaged or no presentation (it has no ppt/presentation.xml). Cure: ignore it.")
    targets = {key: target for key, _, target in relations(archive, name)}
    ids = [str(key) for child in xml_of(archive, name).iterfind(".//{*}sldId") for key in child.attrib.values()]
    return [targets[key] for key in ids if key in targets]


def _slide(slide: Any, diagrams: list[Any], notes: Any, number: int) -> str:
    title, blocks = "", []
    for shape in slide.iter("{*}sp", "{*}tbl"):
        if any(local(above) == "Fallback" for above in shape.iterancestors()):  # the same for older versions
            continue
        if local(shape) == "tbl":
            rows = [[_runs(cell) for cell in row.iterfind("{*}tc")] for row in shape.iterfind("{*}tr")]
            blocks.append(table_of(rows))
            continue
        kind = _placeholder(shape)
        if kind in ("title", "ctrTitle") and not title:
            title = " ".join(_runs(shape).split())
        elif kind not in ("sldNum", "dt", "ftr"):
            blocks.append(_paragraphs(shape, is_list=kind in ("body", "obj")))
    blocks += [_paragraphs(diagram, is_list=True) for diagram in diagrams]
    spoken = [_paragraphs(shape, is_list=False) for shape in notes.iter("{*}sp") if _placeholder(shape) == "body"]
    blocks = [heading(1, title or f"Slide {number}"), *blocks]
    if any(spoken):
        blocks += ["Notes:", *spoken]
    return "\n\n".join(block for block in blocks if block.strip()) + "\n"


def _placeholder(shape: Any) -> str:
    """The type of a shape: "title", "body", "obj" for one without a type; "" where it is no placeholder."""
    placeholder = shape.find(".//{*}ph")
    return "" if placeholder is None else attribute(placeholder, "type") or "obj"


def _paragraphs(shape: Any, *, is_list: bool) -> str:
    """The paragraphs of a shape; the items of a list are numbered where the slide shows numbers."""
    lines: list[str] = []
    counts: dict[int, int] = {}
    has_items, around = False, list[int]()
    for paragraph in shape.iter("{*}p"):
        properties = paragraph.find("{*}pPr")
        level_text = "0" if properties is None else attribute(properties, "lvl")
        level = min(int(level_text), 8) if level_text.isdecimal() else 0
        number = None if properties is None else properties.find("{*}buAutoNum")
        counts = {at: count for at, count in counts.items() if at < level or (at == level and number is not None)}
        text = " ".join(_runs(paragraph).split())
        if not text:
            continue
        if number is not None:
            start = attribute(number, "startAt")
            counts[level] = counts.get(level, int(start) - 1 if start.isdecimal() else 0) + 1
        mark = "-" if number is None else _numeral(counts[level], attribute(number, "type"))
        is_item = is_list or number is not None
        has_items = has_items or is_item
        around = [*(one for one in around if one < level), level]  # a list may begin at its second level
        lines.append(f"{'   ' * (len(around) - 1)}{mark} {escape(text)}" if is_item else escape(text))
    return ("\n" if has_items else "\n\n").join(lines)


def _numeral(number: int, kind: str) -> str:
    """A number as a slide shows it, as an item of a Markdown list."""
    from llama_index_contextual.app.folder.grid import numeral

    name, end = next(
        ((kind[: -len(end)], end) for end in ("Period", "ParenR", "ParenBoth") if kind.endswith(end)), (kind, "")
    )
    shown = numeral(number, _NUMERALS.get(name, ""))
    shown = f"({shown})" if end == "ParenBoth" else f"{shown})" if end == "ParenR" else f"{shown}."
    return shown if shown[:1].isdecimal() else f"- {shown}"


def _runs(element: Any) -> str:
    """The text of an element on one line; raised numbers stay apart from those beside them."""
    pieces: list[str] = []
    for child in element.iter("{*}t", "{*}br", "{*}p"):
        properties = child.getparent().find("{*}rPr") if local(child) == "t" else None
        raised = "" if properties is None else attribute(properties, "baseline")
        is_digit = bool(pieces) and pieces[-1][-1:].isalnum()
        mark = "" if raised in ("", "0") or not is_digit else "_" if raised.startswith("-") else "^"
        text = (child.text or "") if local(child) == "t" else " "
        pieces.append(f"{mark if text[:1].isdigit() or text[:1] in _SIGNS else ''}{text}")
    return "".join(pieces)
