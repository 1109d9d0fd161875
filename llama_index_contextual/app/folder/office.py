"""Presentations through HTML; workbooks and CSV as tables of values as the program shows them.

Each function raises a ConversionError for a file that is damaged, too large or of another kind.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from llama_index_contextual.app.folder import decode, formats
from llama_index_contextual.app.folder.formats import (
    Conversion,
    ConversionError,
    Part,
    attribute,
    integer,
    local,
)
from llama_index_contextual.app.folder.html import NUMBER, html_to_markdown, raised

_FORMULA: Final = re.compile(rb"</f>(?:<v ?/>|<v></v>)?</c>")  # without its value
# A format of numbers: words, digits, decimals, words. Words are quoted, escaped, a currency, a colour, spaces or signs;
# between digits, as in numbers of telephones, they are signs or escaped.
_WORDS: Final = r"""((?:"[^"]*"|\\.|\[[^\]<>=]*\]|[_*].|[^0#?.,@/"\\\[_*a-zA-Z])*)"""
_FORM: Final = re.compile(
    rf"{_WORDS}([0#?](?:(?:[-() ]|\\.)*[0#?,])*)?(?:\.([0#?]{{1,10}})(,*))?{_WORDS}"
)
_WORD: Final = re.compile(r""""([^"]*)"|\\(.)|\[\$([^\]-]*)[^\]]*\]|\[[^\]]*\]|[_*].""")


def read_pptx(path: Path) -> Conversion:
    """A presentation: a part for each slide, with its notes."""
    with formats.open_archive(path) as archive:
        name = formats.related(archive, "", "officeDocument", "ppt/presentation.xml")[0]
        if name not in archive.NameToInfo:
            raise ConversionError(
                "it is damaged or no presentation (it has no ppt/presentation.xml). Cure: ignore it."
            )
        targets = {key: target for key, _, target in formats.relations(archive, name)}
        shown = [
            child.attrib.values() for child in formats.xml_of(archive, name).iterfind(".//{*}sldId")
        ]
        parts, left_out = [], Counter[str]()
        for number, target in enumerate(
            (targets[key] for keys in shown for key in keys if key in targets), start=1
        ):
            slide = formats.xml_of(archive, target)
            left_out += formats.lacking(slide)
            title, blocks = _slide(slide)
            for other in formats.related(archive, target, "diagramData"):
                blocks.append(_paragraphs(formats.xml_of(archive, other), is_list=True))
            for other in formats.related(archive, target, "comments"):
                left_out += formats.lacking(formats.xml_of(archive, other))
            for other in formats.related(archive, target, "notesSlide"):
                bodies = (
                    one
                    for one in formats.xml_of(archive, other).iter("{*}sp")
                    if _placeholder(one) == "body"
                )
                spoken = "".join(map(_paragraphs, bodies))
                blocks.append(f"<p>Notes:</p>{spoken}" if spoken else "")
            page = html_to_markdown(
                f"<h1>{title or f'Slide {number}'}</h1>{''.join(blocks)}", is_marked=True
            )
            parts.append(Part(page.text, {"slide": number}))
        return Conversion(
            parts, formats.core_metadata(formats.xml_of(archive, "docProps/core.xml")), left_out
        )


def _slide(slide: Any) -> tuple[str, list[str]]:
    """The title and the other shapes of a slide, as HTML."""
    title, blocks = "", []
    for shape in slide.iter("{*}sp", "{*}tbl"):
        kind = _placeholder(shape)
        if any(
            local(above) == "Fallback" for above in shape.iterancestors()
        ):  # the same for older versions
            continue
        if local(shape) == "tbl":
            blocks.append(_table(shape))
        elif kind in ("title", "ctrTitle") and not title:
            title = _runs(shape).strip()
        elif kind not in ("sldNum", "dt", "ftr"):
            blocks.append(_paragraphs(shape, is_list=kind in ("body", "obj")))
    return title, blocks


def _table(table: Any) -> str:
    html, tag = "", "th"
    for row in table.iter("{*}tr"):
        html += "<tr>"
        for cell in row.iterfind("{*}tc"):
            if not {cell.get("hMerge"), cell.get("vMerge")} & {"1", "true"}:
                spans = f'colspan="{cell.get("gridSpan")}" rowspan="{cell.get("rowSpan")}"'
                html += f"<{tag} {spans}>{_runs(cell).strip()}</{tag}>"
        tag = "td"
    return f"<table>{html}</table>"


def _placeholder(shape: Any) -> str:
    """The type of a shape: "title", "body", "obj" for one without a type; "" where it is no placeholder."""
    placeholder = shape.find(".//{*}ph")
    return "" if placeholder is None else attribute(placeholder, "type") or "obj"


def _paragraphs(shape: Any, *, is_list: bool = False) -> str:
    """The paragraphs of a shape as HTML; the items of a list are numbered where the slide shows numbers."""
    html, counts = "", dict[int, int]()
    for paragraph in shape.iter("{*}p"):
        properties, text = paragraph.find("{*}pPr"), _runs(paragraph).strip()
        depth = integer(attribute(properties, "lvl"), 0, 8)
        number = None if properties is None else properties.find("{*}buAutoNum")
        counts = {
            at: count
            for at, count in counts.items()
            if at < depth or (at == depth and number is not None)
        }
        if text and number is not None:
            counts[depth] = counts.get(depth, integer(attribute(number, "startAt")) - 1) + 1
            kind = attribute(number, "type")
            shown = formats.numeral(counts[depth], kind.partition("c")[0])
            text = (
                NUMBER.format(
                    f"{'(' * kind.endswith('Both')}{shown}{')' if 'Paren' in kind else '.'}"
                )
                + text
            )
        if text and (is_list or number is not None):
            html += f"{'<ul>' * (depth + 1)}<li>{text}</li>{'</ul>' * (depth + 1)}"
        elif text:
            html += f"<p>{text}</p>"
    for _ in range(9):
        html = html.replace("</ul><ul>", "")
    return html


def _runs(element: Any) -> str:
    """The text of an element as HTML on one line."""
    pieces: list[str] = []
    for child in element.iter("{*}t", "{*}br", "{*}p"):
        raised = (
            attribute(child.getparent().find("{*}rPr"), "baseline") if local(child) == "t" else ""
        )
        tag = "" if raised in ("", "0") else "sub" if raised.startswith("-") else "sup"
        text = escape(child.text or "") if local(child) == "t" else " "
        pieces.append(f"<{tag}>{text}</{tag}>" if tag else text)
    return "".join(pieces)


def read_csv(path: Path) -> Conversion:
    """A table; the first line is its header, and empty ones mean nothing."""
    text = decode(path.read_bytes()).text.removeprefix("\ufeff").replace("\0", "")
    csv.field_size_limit(1_000_000)
    lines = re.sub('"[^"]*"', "", text[:100_000]).split("\n")[:20]
    counts = {sign: Counter(line.count(sign) for line in lines if sign in line) for sign in ";\t|,"}
    alike = {
        sign: max(count.values(), default=0) for sign, count in counts.items()
    }  # lines that have as many
    delimiter = max(alike, key=alike.__getitem__)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    return Conversion([Part(_tables(row for row in rows if _count(row)))])


def read_xlsx(path: Path) -> Conversion:
    """A workbook: a part for each sheet that holds something."""
    import openpyxl

    left_out = Counter[str]()
    with formats.open_archive(path) as archive:
        for name in archive.namelist():
            if name.startswith("xl/worksheets/sheet"):
                data = archive.read(name)
                left_out["uncalculated formula"] += len(_FORMULA.findall(data))
                if b"<!DOCTYPE" in data.replace(
                    b"\0", b""
                ):  # in UTF-16, too; a cell cannot hold "<"
                    raise ConversionError(
                        f"its {name} declares an entity, which is not read. Cure: ignore it."
                    )
            elif name.endswith((".xml", ".rels")):
                root = formats.xml_of(
                    archive, name
                )  # it refuses entities, and members that are too large
                left_out += Counter() if name.startswith("xl/charts/") else formats.lacking(root)
        metadata = formats.core_metadata(formats.xml_of(archive, "docProps/core.xml"))
    book = openpyxl.load_workbook(
        path, read_only=True, data_only=True, keep_links=False, rich_text=True
    )
    texts = ((sheet.title, _tables(_rows(sheet))) for sheet in book.worksheets)
    parts = [
        Part(f"{formats.heading(1, name)}\n\n{text}", {"sheet": name})
        for name, text in texts
        if text.strip()
    ]
    return Conversion(parts, metadata, left_out)


def _rows(sheet: Any) -> Iterator[list[str]]:
    """The cells of a sheet as they are shown, without empty ones at the end of a row."""
    count = 0
    sheet.reset_dimensions()  # those in the file may be wrong
    for row in sheet.iter_rows():
        values = [shown(cell.value, (cell.number_format or "General")[:255]) for cell in row]
        while values and not values[-1]:
            values.pop()
        count += len(values)
        formats.check_size(count)
        yield values


def _tables(rows: Iterable[Sequence[str]]) -> str:
    """Rows as tables: behind an empty row another one begins where names of columns follow, else the same goes on."""
    tables: list[list[Sequence[str]]] = []
    for is_filled, group in groupby(rows, key=lambda row: _count(row) > 0):
        block = list(group) if is_filled else []
        if block and tables and len(tables[-1]) > 1 and not _has_names(block):
            tables[-1] += block
        elif block:
            tables.append(block)
    blocks = []
    for table in tables:
        first = min(at for row in table for at, cell in enumerate(row) if cell.strip())
        if all(_count(row) == 1 for row in table) and len(table) <= 4:  # noqa: PLR2004  titles
            blocks += [formats.escape("".join(row).strip()) for row in table]
        else:
            blocks.append(formats.table_of(row[first:] for row in table))
    return "\n\n".join(blocks) + "\n"


def _has_names(rows: Sequence[Sequence[str]]) -> bool:
    """Whether rows begin with a title, or with names above values."""
    first, others = "".join(rows[0]), "".join(cell for row in rows[1:] for cell in row)
    return _count(rows[0]) == 1 or (
        not any(map(str.isdigit, first)) and any(map(str.isdigit, others))
    )


def _count(row: Sequence[str]) -> int:
    return sum(bool(cell.strip()) for cell in row)


def shown(value: Any, form: str = "General") -> str:
    """A value of a cell as its format shows it; days are ISO dates.

    Args:
        value: As openpyxl gives it.
        form: The number format of the cell, as ``0.0%`` or ``[h]:mm``.
    """
    if isinstance(value, list):  # of text in several fonts
        fonts = (getattr(getattr(piece, "font", None), "vertAlign", None) for piece in value)
        pieces = zip(fonts, map(str, value), strict=True)
        value = "".join(
            raised(text.strip()) if font == "superscript" else text for font, text in pieces
        )
    if value is None or isinstance(value, bool | str):
        text = "" if value is None else str(value)
        return (
            text.upper() if isinstance(value, bool) else re.sub(r"_x00[01][0-9A-Fa-f]_", " ", text)
        )  # of Excel
    if isinstance(value, int | float):
        return _number(value, form)
    signs = {*_WORD.sub("", form).lower()}
    if isinstance(value, dt.timedelta):
        seconds = round(value.total_seconds())
        end = f":{abs(seconds) % 60:02}" if seconds % 60 or "s" in signs else ""
        return f"{'-' * (seconds < 0)}{abs(seconds) // 3600}:{abs(seconds) // 60 % 60:02}{end}"
    time = (
        value
        if isinstance(value, dt.time)
        else value.time()
        if isinstance(value, dt.datetime)
        else dt.time()
    )
    clock = f"{time:%H:%M:%S}" if time.second or "s" in signs else f"{time:%H:%M}"
    if isinstance(value, dt.time) or (value.year <= 1900 and not signs & {*"yd"}):  # noqa: PLR2004
        return clock
    return f"{value:%Y-%m-%d}" if time == dt.time() else f"{value:%Y-%m-%d} {clock}"


def _number(value: float, form: str) -> str:
    """A number with the places, thousands, percent, leading zeros and words of its format; else as it is."""
    sections = form.split(";")
    at = 1 if value < 0 and len(sections) > 1 else 2 if value == 0 and len(sections) > 2 else 0  # noqa: PLR2004
    match = _FORM.fullmatch(sections[at])
    text = f"{value:.15g}" if isinstance(value, float) else str(value)
    if match is None or abs(value) > 1e15 or re.search(r"\[[<>=]", form):  # noqa: PLR2004  more digits than Excel has
        return text
    before, digits, places, commas, after = match.groups(default="")
    ones = digits.rstrip(",")
    words, end = (
        _WORD.sub(lambda word: word[1] or word[2] or word[3] or "", one) for one in (before, after)
    )
    if not ones and not places:
        return words.strip() or text
    power = 2 * ("%" in _WORD.sub("", before + after)) - 3 * (len(digits) - len(ones) + len(commas))
    number = (
        Decimal(repr(abs(value)))
        .scaleb(power)
        .quantize(Decimal(1).scaleb(-len(places)), ROUND_HALF_UP)
    )
    units, _, decimals = f"{number:{',' * (',' in ones)}f}".partition(".")
    least = len(places.rstrip("#?"))
    decimals = decimals[:least] + decimals[least:].rstrip("0")
    units = units.zfill(ones.count("0")) if units != "0" or "0" in ones or decimals else ""
    if {*ones} - {*"0#?,"}:  # a number of a telephone
        if "," in ones:
            return text
        rest = [*units]
        signs = (
            (rest or [""]).pop() if sign in "0#?" else sign
            for sign in reversed(ones.replace("\\", ""))
        )
        units = "".join([*signs][::-1]).lstrip(" -/.")
        units = "".join(rest) + units
    return f"{'-' * (at == 0 and value < 0 and number > 0)}{words}{units}{'.' * bool(decimals)}{decimals}{end}".strip()
