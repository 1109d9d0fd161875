"""PowerPoint presentations, converted through HTML."""

from __future__ import annotations

from collections import Counter
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
from llama_index_contextual.app.folder.formats import Conversion, Part, declare_format
from llama_index_contextual.app.folder.markdown import NUMBER_MARK, numeral

_LEVELS = 9  # of nested lists
_TITLES = ("title", "ctrTitle")
_LISTS = ("body", "obj")
_FURNITURE = ("sldNum", "dt", "ftr")  # number, date and footer of a slide


@declare_format(
    "PowerPoint",
    ".pptx",
    ".pptm",
    packages=("bs4", "lxml"),
    place="slide",
    kept="speaker notes, numbering, diagrams",
    left_out="pictures, charts",
)
def read_pptx(path: Path) -> Conversion:
    """Return a presentation with one part per slide, including its notes."""
    from llama_index_contextual.app.folder.html_to_markdown import html_to_markdown

    parts: list[Part] = []
    left_out: Counter[str] = Counter()
    with Archive(path) as archive:
        name = archive.main_member("ppt/presentation.xml", "presentation")
        targets = {relation.id: relation.target for relation in archive.relations(name)}
        for slide_id in archive.xml(name).iterfind(".//{*}sldId"):
            target = next((targets[key] for key in slide_id.attrib.values() if key in targets), "")
            if target:
                number = len(parts) + 1
                html = _slide(archive, target, number, left_out)
                page = html_to_markdown(html, is_marked=True)
                parts.append(Part(page.text, {"slide": number}))
        metadata = core_metadata(archive.xml("docProps/core.xml"))
    return Conversion(parts, metadata, left_out)


def _slide(archive: Archive, name: str, number: int, left_out: Counter[str]) -> str:
    """Return a slide as HTML with its diagrams and notes, and count what is left out."""
    slide = archive.xml(name)
    left_out += count_left_out(slide)
    title, blocks = _shapes(slide)
    for diagram in archive.related(name, "diagramData"):
        blocks.append(_paragraphs(archive.xml(diagram), is_list=True))
    for comments in archive.related(name, "comments"):
        left_out += count_left_out(archive.xml(comments))
    for notes in archive.related(name, "notesSlide"):
        shapes = archive.xml(notes).iter("{*}sp")
        spoken = "".join(_paragraphs(shape) for shape in shapes if _placeholder(shape) == "body")
        if spoken:
            blocks.append(f"<p>Notes:</p>{spoken}")
    return f"<h1>{title or f'Slide {number}'}</h1>{''.join(blocks)}"


def _shapes(slide: Any) -> tuple[str, list[str]]:
    """Return the title and the other shapes of a slide, as HTML."""
    title = ""
    blocks = []
    for shape in slide.iter("{*}sp", "{*}tbl"):
        if any(local_name(above) == "Fallback" for above in shape.iterancestors()):
            continue  # a copy for older versions of PowerPoint
        kind = _placeholder(shape)
        if local_name(shape) == "tbl":
            blocks.append(_table(shape))
        elif kind in _TITLES and not title:
            title = _runs(shape).strip()
        elif kind not in _FURNITURE:
            blocks.append(_paragraphs(shape, is_list=kind in _LISTS))
    return title, blocks


def _table(table: Any) -> str:
    html = ""
    tag = "th"
    for row in table.iter("{*}tr"):
        html += "<tr>"
        for cell in row.iterfind("{*}tc"):
            is_merged = not {cell.get("hMerge"), cell.get("vMerge")}.isdisjoint(("1", "true"))
            if not is_merged:
                spans = f'colspan="{cell.get("gridSpan")}" rowspan="{cell.get("rowSpan")}"'
                html += f"<{tag} {spans}>{_runs(cell).strip()}</{tag}>"
        tag = "td"
    return f"<table>{html}</table>"


def _placeholder(shape: Any) -> str:
    """Return a placeholder's type, such as "title", or "obj" by default; "" for other shapes."""
    placeholder = shape.find(".//{*}ph")
    return "" if placeholder is None else attribute(placeholder, "type") or "obj"


def _paragraphs(shape: Any, *, is_list: bool = False) -> str:
    """Return the paragraphs of a shape as HTML, with list numbers if the slide shows them."""
    html = ""
    counts: dict[int, int] = {}
    for paragraph in shape.iter("{*}p"):
        properties = paragraph.find("{*}pPr")
        text = _runs(paragraph).strip()
        level = integer(attribute(properties, "lvl"), 0, _LEVELS - 1)
        numbering = None if properties is None else properties.find("{*}buAutoNum")
        is_numbered = numbering is not None
        for deeper in list(counts):
            if deeper > level or (deeper == level and not is_numbered):
                del counts[deeper]
        if not text:
            continue
        if is_numbered:
            before = counts.get(level, integer(attribute(numbering, "startAt")) - 1)
            counts[level] = before + 1
            text = _number(counts[level], attribute(numbering, "type")) + text
        if is_list or is_numbered:
            html += f"{'<ul>' * (level + 1)}<li>{text}</li>{'</ul>' * (level + 1)}"
        else:
            html += f"<p>{text}</p>"
    for _ in range(_LEVELS):
        html = html.replace("</ul><ul>", "")
    return html


def _number(number: int, kind: str) -> str:
    """Return the mark for a list number, in a format such as ``alphaLcParenBoth``."""
    shown = numeral(number, kind.partition("c")[0])
    start = "(" if kind.endswith("Both") else ""
    end = ")" if "Paren" in kind else "."
    return NUMBER_MARK.format(f"{start}{shown}{end}")


def _runs(element: Any) -> str:
    """Return the text of an element as HTML on one line."""
    html = ""
    for child in element.iter("{*}t", "{*}br", "{*}p"):
        if local_name(child) != "t":
            html += " "
            continue
        text = escape(child.text or "")
        baseline = attribute(child.getparent().find("{*}rPr"), "baseline")
        if baseline in ("", "0"):
            html += text
        else:
            tag = "sub" if baseline.startswith("-") else "sup"
            html += f"<{tag}>{text}</{tag}>"
    return html
