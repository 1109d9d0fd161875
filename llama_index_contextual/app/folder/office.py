"""Presentations, workbooks and CSV: slides through HTML, sheets as tables of values as the program shows them."""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part, attribute, local
from llama_index_contextual.app.folder.html import NUMBER, html_to_markdown, numeral
from llama_index_contextual.text import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_LEFT_OUT: Final = {"pic": "picture", "chart": "chart", "oleObj": "object", "videoFile": "video", "audioFile": "sound"}
_NUMERALS: Final = {"alphaLc": "a", "alphaUc": "A", "romanLc": "i", "romanUc": "I"}
_NUMBERED: Final = re.compile(r"(alphaLc|alphaUc|romanLc|romanUc|arabic)(Period|ParenR|ParenBoth)?")
_SAMPLE: Final = 20_000  # characters of a CSV file that show how it is delimited
_MOST_CELL: Final = 1_000_000  # characters
_FIRST_YEAR: Final = 1900  # of Excel's days: a time has no day
_LONGEST: Final = 255  # characters of a format, as Excel has it
_SHEETS: Final = "xl/worksheets/sheet"
_MOST_TITLES: Final = 4  # rows
_HEAD: Final = 2_000  # bytes of a sheet before its data
_LARGEST: Final = 1e15  # number with all its digits
_MOST_PLACES: Final = 40
# A format of numbers: text, digits, decimals, text. Text is quoted, escaped, a currency, a colour, a space, or a sign.
_WORDS: Final = r"""((?:"[^"]*"|\\.|\[[^\]]*\]|[_*].|[^0#?.,"\\\[_*])*)"""
_FORM: Final = re.compile(rf"{_WORDS}([0#?,]*)(?:\.([0#?]+))?{_WORDS}")
_WORD: Final = re.compile(r""""([^"]*)"|\\(.)|\[\$([^\]-]*)[^\]]*\]|\[[^\]]*\]|[_*].""")
_ELAPSED: Final = re.compile(r"\[(h+|m+|s+)\]", re.IGNORECASE)


def read_pptx(path: Path) -> Conversion:
    """A presentation: a part for each slide, with its notes.

    Raises:
        ConversionError: It is damaged, or no presentation.
    """
    with formats.open_archive(path) as archive:
        named = (target for _, kind, target in formats.relations(archive, "") if kind == "officeDocument")
        name = next(named, "ppt/presentation.xml")
        if name not in archive.NameToInfo:
            raise ConversionError("it is damaged or no presentation (it has no ppt/presentation.xml). Cure: ignore it.")
        targets = {key: target for key, _, target in formats.relations(archive, name)}
        shown = [child.attrib.values() for child in formats.xml_of(archive, name).iterfind(".//{*}sldId")]
        parts, left_out = [], Counter[str]()
        for number, target in enumerate((targets[key] for keys in shown for key in keys if key in targets), start=1):
            slide, others = formats.xml_of(archive, target), formats.relations(archive, target)
            left_out.update(_LEFT_OUT[kind] for kind in map(local, slide.iter()) if kind in _LEFT_OUT)
            title, blocks = _slide(slide)
            diagrams = [other for _, kind, other in others if kind == "diagramData"]
            blocks += [_paragraphs(formats.xml_of(archive, other), is_list=True) for other in diagrams]
            notes = [formats.xml_of(archive, other) for _, kind, other in others if kind == "notesSlide"]
            bodies = [shape for note in notes for shape in note.iter("{*}sp") if _placeholder(shape) == "body"]
            if spoken := "".join(_paragraphs(shape) for shape in bodies):
                blocks += ["<p>Notes:</p>", spoken]
            page = html_to_markdown(f"<h1>{title or f'Slide {number}'}</h1>{''.join(blocks)}", is_marked=True)
            parts.append(Part(page.text, {"slide": number}))
        return Conversion(parts, formats.core_metadata(formats.xml_of(archive, "docProps/core.xml")), left_out)


def _slide(slide: Any) -> tuple[str, list[str]]:
    """The title and the other shapes of a slide, as HTML."""
    title, blocks = "", []
    for shape in slide.iter("{*}sp", "{*}tbl"):
        kind = _placeholder(shape)
        if any(local(above) == "Fallback" for above in shape.iterancestors()):  # the same for older versions
            continue
        if local(shape) == "tbl":
            rows = ("".join(f"<td>{_runs(cell)}</td>" for cell in row.iterfind("{*}tc")) for row in shape.iter("{*}tr"))
            blocks.append(f"<table><tr>{'</tr><tr>'.join(rows)}</tr></table>")
        elif kind in ("title", "ctrTitle") and not title:
            title = _runs(shape).strip()
        elif kind not in ("sldNum", "dt", "ftr"):
            blocks.append(_paragraphs(shape, is_list=kind in ("body", "obj")))
    return title, blocks


def _placeholder(shape: Any) -> str:
    """The type of a shape: "title", "body", "obj" for one without a type; "" where it is no placeholder."""
    placeholder = shape.find(".//{*}ph")
    return "" if placeholder is None else attribute(placeholder, "type") or "obj"


def _paragraphs(shape: Any, *, is_list: bool = False) -> str:
    """The paragraphs of a shape as HTML; the items of a list are numbered where the slide shows numbers."""
    pieces: list[str] = []
    counts: dict[int, int] = {}
    for paragraph in shape.iter("{*}p"):
        properties, text = paragraph.find("{*}pPr"), _runs(paragraph).strip()
        level = attribute(properties, "lvl")
        depth, number = min(int(level), 8) if level.isdecimal() else 0, None
        if properties is not None:
            number = properties.find("{*}buAutoNum")
        counts = {at: count for at, count in counts.items() if at < depth or (at == depth and number is not None)}
        if text and number is not None:
            start = attribute(number, "startAt")
            counts[depth] = counts.get(depth, int(start) - 1 if start.isdecimal() else 0) + 1
            text = NUMBER.format(_numeral(counts[depth], attribute(number, "type"))) + text
        if text and (is_list or number is not None):
            pieces.append(f"{'<ul>' * (depth + 1)}<li>{text}</li>{'</ul>' * (depth + 1)}")
        elif text:
            pieces.append(f"<p>{text}</p>")
    html = "".join(pieces)
    while "</ul><ul>" in html:
        html = html.replace("</ul><ul>", "")
    return html


def _numeral(number: int, kind: str) -> str:
    match = _NUMBERED.match(kind)
    shown, end = numeral(number, _NUMERALS.get(match[1] if match else "", "")), match[2] if match else ""
    return f"({shown})" if end == "ParenBoth" else f"{shown})" if end == "ParenR" else f"{shown}."


def _runs(element: Any) -> str:
    """The text of an element as HTML on one line."""
    pieces: list[str] = []
    for child in element.iter("{*}t", "{*}br", "{*}p"):
        raised = attribute(child.getparent().find("{*}rPr"), "baseline") if local(child) == "t" else ""
        tag = "" if raised in ("", "0") else "sub" if raised.startswith("-") else "sup"
        text = escape(child.text or "") if local(child) == "t" else " "
        pieces.append(f"<{tag}>{text}</{tag}>" if tag else text)
    return "".join(pieces)


def read_csv(path: Path) -> Conversion:
    """A table; the first line is its header."""
    text = decode(path.read_bytes()).text.removeprefix("\ufeff").replace("\0", "")
    csv.field_size_limit(_MOST_CELL)

    def rank(delimiter: str) -> tuple[float, int]:  # the one that gives lines of the same length, and most cells
        rows = csv.reader(io.StringIO(text[:_SAMPLE], newline=""), delimiter=delimiter)
        widths = [len(row) for row in rows if row][:50]
        common = max(set(widths), key=widths.count, default=1)
        return (widths.count(common) / len(widths) if common > 1 else 0.0, common)

    rows = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t|", key=rank))
    return Conversion([Part(_tables(rows))])


def read_xlsx(path: Path) -> Conversion:
    """A workbook: a part for each sheet that holds something.

    Raises:
        ConversionError: It is damaged, or too large.
    """
    import openpyxl

    has_formulas, names = False, list[str]()
    with formats.open_archive(path) as archive:
        for name in archive.namelist():
            names.append(name)
            if name.startswith(_SHEETS):
                data = archive.read(name)
                has_formulas |= b"<f" in data
                if b"<!" in data[:_HEAD].replace(b"\0", b""):
                    raise ConversionError(f"its {name} declares an entity, which is not read. Cure: ignore it.")
            elif name.endswith((".xml", ".rels")):
                formats.xml_of(archive, name)  # it refuses entities, and members that are too large
    kinds = {"picture": "xl/media/", "chart": "xl/charts/chart"}
    left_out = {kind: sum(name.startswith(folder) for name in names) for kind, folder in kinds.items()}
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    formulas = openpyxl.load_workbook(path, read_only=True) if has_formulas else book
    about, parts = book.properties, []
    for sheet, other in zip(book.worksheets, formulas.worksheets, strict=True):
        sheet.reset_dimensions()  # those in the file may be wrong
        other.reset_dimensions()
        text = _tables(_rows(sheet, other))
        if text.strip():
            title = formats.heading(1, sheet.title)
            parts.append(Part(f"{title}\n\n{text}", {"sheet": sheet.title}))
    metadata = {"title": about.title or "", "subject": about.subject or "", "author": about.creator or ""}
    metadata |= {key: f"{day:%Y-%m-%d}" for key in ("created", "modified") if (day := getattr(about, key))}
    return Conversion(parts, metadata, left_out)


def _rows(sheet: Any, formulas: Any) -> Iterator[list[str]]:
    """The rows of a sheet as text, at their places; a formula whose value was never computed is shown itself."""
    count = 0
    rows = ((row, row) for row in sheet.iter_rows())
    for row, others in rows if formulas is sheet else zip(sheet.iter_rows(), formulas.iter_rows(), strict=True):
        values = [
            shown(cell.value if cell.value is not None else other.value, (cell.number_format or "General")[:_LONGEST])
            for cell, other in zip(row, others, strict=True)
        ]
        while values and not values[-1]:
            values.pop()
        count += len(values)
        if count > formats.MOST_CELLS:
            raise ConversionError(f"a sheet has more than {formats.MOST_CELLS:,} cells. Cure: split it, or ignore it.")
        yield values


def _tables(rows: Iterable[Sequence[str]]) -> str:
    """Rows as tables: behind an empty row another one begins where names of columns follow, else the same goes on."""
    tables: list[list[Sequence[str]]] = []
    for is_filled, group in groupby(rows, key=lambda row: any(cell.strip() for cell in row)):
        block = list(group) if is_filled else []
        if block and tables and len(tables[-1]) > 1 and not _has_names(block):
            tables[-1] += block
        elif block:
            tables.append(block)
    blocks = []
    for table in tables:
        first = min(at for row in table for at, cell in enumerate(row) if cell.strip())
        is_text = all(_count(row) == 1 for row in table) and len(table) <= (1 if len(tables) == 1 else _MOST_TITLES)
        lines = [formats.escape("".join(row).strip()) for row in table] if is_text else []
        blocks += lines or [formats.table_of(row[first:] for row in table)]
    return "\n\n".join(blocks) + "\n"


def _has_names(rows: Sequence[Sequence[str]]) -> bool:
    """Whether rows begin with a title, or with names above values."""
    first, others = "".join(rows[0]), "".join(cell for row in rows[1:] for cell in row)
    return _count(rows[0]) == 1 or (not any(map(str.isdigit, first)) and any(map(str.isdigit, others)))


def _count(row: Sequence[str]) -> int:
    return sum(bool(cell.strip()) for cell in row)


def shown(value: Any, form: str = "General") -> str:
    """A value of a cell as its format shows it; days are ISO dates.

    Args:
        value: As openpyxl gives it.
        form: The number format of the cell, as ``0.0%`` or ``[h]:mm``.
    """
    if value is None or isinstance(value, bool | str):
        return "" if value is None else str(value).upper() if isinstance(value, bool) else value
    if isinstance(value, dt.timedelta) or _ELAPSED.search(form):
        return _duration(value, form)
    if isinstance(value, dt.datetime):
        day, time = f"{value:%Y-%m-%d}", value.time()
        if value.year <= _FIRST_YEAR and not re.search("[yYdD]", form):
            return _time(time, form)
        return day if time == dt.time() else f"{day} {_time(time, form)}"
    return _time(value, form) if isinstance(value, dt.time) else _number(value, form)


def _time(time: dt.time, form: str) -> str:
    return f"{time:%H:%M:%S}" if time.second or "s" in form.lower() else f"{time:%H:%M}"


def _duration(value: Any, form: str) -> str:
    """Hours that may be more than a day's, minutes, and seconds where there are some."""
    from openpyxl.utils.datetime import to_excel

    seconds = round(86400 * (value if isinstance(value, int | float) else to_excel(value)))
    sign, seconds = "-" * (seconds < 0), abs(seconds)
    minutes = f"{sign}{seconds // 3600}:{seconds // 60 % 60:02}"
    return f"{minutes}:{seconds % 60:02}" if seconds % 60 or "s" in form.lower() else minutes


def _number(value: Any, form: str) -> str:
    """A number with the places, thousands, percent, leading zeros and words of its format."""
    sections = form.split(";")
    at = 1 if value < 0 and len(sections) > 1 else 2 if value == 0 and len(sections) > 2 else 0  # noqa: PLR2004
    match = _FORM.fullmatch(sections[at])
    signs = _WORD.sub("", sections[at])
    if match is None or {*"E/@"} & {*signs} or "General" in signs or match[2].endswith(",") or abs(value) > _LARGEST:
        return f"{value:.15g}" if isinstance(value, float) else str(value)
    whole, places = match[2], (match[3] or "")[:_MOST_PLACES]
    before, after = (_WORD.sub(lambda word: word[1] or word[2] or word[3] or "", match[at]) for at in (1, 4))
    if not whole and not places:
        return before.strip()
    number = Decimal(repr(abs(value))).scaleb(2 * ("%" in signs))
    number = number.quantize(Decimal(1).scaleb(-len(places)), ROUND_HALF_UP)
    units, _, decimals = f"{number:{',' * (',' in whole)}f}".partition(".")
    least = len(places.rstrip("#?"))
    decimals = decimals[:least] + decimals[least:].rstrip("0")
    units = units.zfill(whole.count("0")) if units != "0" or "0" in whole or decimals else ""
    sign = "-" if value < 0 and at == 0 and number else ""
    return f"{sign}{before}{units}{'.' * bool(decimals)}{decimals}{after}".strip()
