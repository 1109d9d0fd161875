"""Presentations, workbooks and CSV: slides through HTML, sheets as tables of values as the program shows them."""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part, attribute, integer, local
from llama_index_contextual.app.folder.html import NUMBER, html_to_markdown, power
from llama_index_contextual.text import decode

_LEFT_OUT: Final = {"pic": "picture", "chart": "chart", "oleObj": "object", "videoFile": "video", "audioFile": "sound"}
# A format of numbers: text, digits, decimals, text. Text is quoted, escaped, a currency, a colour, a space, or a sign.
_WORDS: Final = r"""((?:"[^"]*"|\\.|\[[^\]]*\]|[_*].|[^0#?.,"\\\[_*])*)"""
_FORM: Final = re.compile(rf"{_WORDS}([0#?,]*)(?:\.([0#?]+)(,*))?{_WORDS}")
_WORD: Final = re.compile(r""""([^"]*)"|\\(.)|\[\$([^\]-]*)[^\]]*\]|\[[^\]]*\]|[_*].""")
_MARK: Final = re.compile(rf"{_WORD.pattern}|.")
_BOUND: Final = re.compile(r"\[([<>=]{1,2})(-?\d+(?:\.\d+)?)\]")
_MERGED: Final = re.compile(rb'<(?:\w+:)?mergeCell\s[^<>]*?ref="([A-Z]{1,3}\d{1,7}:[A-Z]{1,3}\d{1,7})"')
# Raised letters behind others in a text of a workbook.
_RUN: Final = r"(?:(?!</rPr>).){0,200}"
_RAISED: Final = re.compile(
    rf"(?<=[\w)\]])(</t></r><r><rPr>{_RUN}<vertAlign val=\"superscript\" ?/>{_RUN}</rPr><t[^<>]{{0,50}}>)([^<]+)",
    re.DOTALL,
)
_SCIENTIFIC: Final = re.compile(r"[0#?]+(?:\.([0#?]+))?E([+-])(0+)")
_FRACTION: Final = re.compile(r"(?:([0#?]+)[ _?]+)?[0#?]+/(?:(\d+)|([?#]+))")


def read_pptx(path: Path) -> Conversion:
    """A presentation: a part for each slide, with its notes.

    Raises:
        ConversionError: It is damaged, or no presentation.
    """
    with formats.open_archive(path) as archive:
        name = formats.related(archive, "", "officeDocument", "ppt/presentation.xml")[0]
        if name not in archive.NameToInfo:
            raise ConversionError("it is damaged or no presentation (it has no ppt/presentation.xml). Cure: ignore it.")
        targets = {key: target for key, _, target in formats.relations(archive, name)}
        shown = [child.attrib.values() for child in formats.xml_of(archive, name).iterfind(".//{*}sldId")]
        parts, left_out = [], Counter[str]()
        for number, target in enumerate((targets[key] for keys in shown for key in keys if key in targets), start=1):
            slide = formats.xml_of(archive, target)
            left_out.update(_LEFT_OUT[kind] for kind in map(local, slide.iter()) if kind in _LEFT_OUT)
            title, blocks = _slide(slide)
            for other in formats.related(archive, target, "diagramData"):
                blocks.append(_paragraphs(formats.xml_of(archive, other), is_list=True))
            for other in formats.related(archive, target, "comments"):
                left_out["comment"] += len(formats.xml_of(archive, other))
            for other in formats.related(archive, target, "notesSlide"):
                bodies = (one for one in formats.xml_of(archive, other).iter("{*}sp") if _placeholder(one) == "body")
                spoken = "".join(map(_paragraphs, bodies))
                blocks.append(f"<p>Notes:</p>{spoken}" if spoken else "")
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
            blocks.append(_table(shape))
        elif kind in ("title", "ctrTitle") and not title:
            title = _runs(shape).strip()
        elif kind not in ("sldNum", "dt", "ftr"):
            blocks.append(_paragraphs(shape, is_list=kind in ("body", "obj")))
    return title, blocks


def _table(table: Any) -> str:
    """A table as HTML; names of columns go on below one that spans several."""
    lines, tag = list[str](), "th"
    for row in table.iter("{*}tr"):
        merged = ((cell, {cell.get("hMerge"), cell.get("vMerge")}) for cell in row.iterfind("{*}tc"))
        cells = [cell for cell, values in merged if values <= {None, "0", "false"}]
        texts = [_runs(cell).strip() for cell in cells]
        tag = "td" if lines and any(map(str.isdigit, "".join(texts))) else tag
        spans = [f'colspan="{cell.get("gridSpan")}" rowspan="{cell.get("rowSpan")}"' for cell in cells]
        inner = (f"<{tag} {span}>{text}</{tag}>" for span, text in zip(spans, texts, strict=True))
        lines.append(f"<tr>{''.join(inner)}</tr>")
        tag = tag if any(integer(cell.get("gridSpan")) > 1 for cell in cells) else "td"
    return f"<table>{''.join(lines)}</table>"


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
        counts = {at: count for at, count in counts.items() if at < depth or (at == depth and number is not None)}
        if text and number is not None:
            counts[depth] = counts.get(depth, integer(attribute(number, "startAt")) - 1) + 1
            kind = attribute(number, "type")
            shown = formats.numeral(counts[depth], re.sub("Period|Paren.*", "", kind))
            end = f"({shown})" if kind.endswith("Both") else f"{shown})" if kind.endswith("R") else f"{shown}."
            text = NUMBER.format(end) + text
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
        raised = attribute(child.getparent().find("{*}rPr"), "baseline") if local(child) == "t" else ""
        tag = "" if raised in ("", "0") else "sub" if raised.startswith("-") else "sup"
        text = escape(child.text or "") if local(child) == "t" else " "
        pieces.append(f"<{tag}>{text}</{tag}>" if tag else text)
    return "".join(pieces)


def read_csv(path: Path) -> Conversion:
    """A table; the first line is its header, and empty ones mean nothing."""
    text = decode(path.read_bytes()).text.removeprefix("\ufeff").replace("\0", "")
    csv.field_size_limit(1_000_000)
    separator = re.match(r'"?sep=(.)"?\r?\n', text)
    text = text[separator.end() :] if separator else text

    def rank(delimiter: str) -> tuple[float, int]:  # the one that gives lines of the same length, and most cells
        rows = csv.reader(io.StringIO(text[:20_000], newline=""), delimiter=delimiter)
        widths = [len(row) for row in rows if row][:50]
        common = max(set(widths), key=widths.count, default=1)
        return (widths.count(common) / len(widths) if common > 1 else 0.0, common)

    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator[1] if separator else max(",;\t|", key=rank))
    return Conversion([Part(_tables(row for row in rows if _count(row)))])


def read_xlsx(path: Path) -> Conversion:
    """A workbook: a part for each sheet that holds something.

    Raises:
        ConversionError: It is damaged, or too large.
    """
    import openpyxl

    has_formulas, left_out, merged = False, Counter[str](), dict[str, set[bytes]]()
    prepared = io.BytesIO()
    with formats.open_archive(path) as archive, zipfile.ZipFile(prepared, "w") as written:
        for name in archive.namelist():
            left_out.update(picture=name.startswith("xl/media/"), chart=name.startswith("xl/charts/chart"))
            if not name.endswith((".xml", ".rels")):
                continue
            data = archive.read(name)
            if name.startswith("xl/worksheets/sheet"):
                has_formulas |= b"<f" in data
                merged[name] = set(_MERGED.findall(data))
                if b"<!" in data[:2000].replace(b"\0", b""):  # before the data
                    raise ConversionError(f"its {name} declares an entity, which is not read. Cure: ignore it.")
            else:
                root = formats.xml_of(archive, name)  # it refuses entities, and members that are too large
                left_out["comment"] += len(root.findall(".//{*}comment")) * name.startswith("xl/comments")
                left_out["text box"] += len(root.findall(".//{*}txBody")) * name.startswith("xl/drawings/")
            if b"superscript" in data:
                data = _RAISED.sub(lambda run: run[1] + power(run[2]), data.decode("utf-8", "replace")).encode()
            written.writestr(name, data)
    book = openpyxl.load_workbook(prepared, read_only=True, data_only=True)
    formulas = openpyxl.load_workbook(prepared, read_only=True) if has_formulas else book
    about, parts = book.properties, []
    for sheet, other in zip(book.worksheets, formulas.worksheets, strict=True):
        sheet.reset_dimensions()  # those in the file may be wrong
        other.reset_dimensions()
        rows = list(_rows(sheet, other))
        ranges = merged.get(sheet._worksheet_path, ())  # noqa: SLF001  it does not show them
        _merge(rows, [openpyxl.utils.range_boundaries(cells.decode()) for cells in ranges])
        if (text := _tables(rows)).strip():
            parts.append(Part(f"{formats.heading(1, sheet.title)}\n\n{text}", {"sheet": sheet.title}))
    metadata = {"title": about.title or "", "subject": about.subject or "", "author": about.creator or ""}
    metadata |= {key: f"{day:%Y-%m-%d}" for key in ("created", "modified") if (day := getattr(about, key))}
    return Conversion(parts, metadata, left_out)


def _rows(sheet: Any, formulas: Any) -> Iterator[list[str]]:
    """The rows of a sheet as text, at their places; a formula whose value was never computed is shown itself."""
    count = 0
    rows = ((row, row) for row in sheet.iter_rows())
    for row, others in rows if formulas is sheet else zip(sheet.iter_rows(), formulas.iter_rows(), strict=True):
        values = [
            shown(cell.value if cell.value is not None else other.value, (cell.number_format or "General")[:255])
            for cell, other in zip(row, others, strict=True)
        ]
        while values and not values[-1]:
            values.pop()
        count += len(values)
        formats.check_size(count)
        yield values


def _merge(rows: list[list[str]], spans: Sequence[tuple[int, int, int, int]]) -> None:
    """Write what spans rows into each of them; names of columns above others are joined to these.

    Args:
        rows: Changed in place.
        spans: First column and row, last column and row, from 1.
    """
    width = max(map(len, rows), default=0)
    if not spans or width * len(rows) > formats.MOST_CELLS:
        return
    rows[:] = [[*row, *[""] * (width - len(row))] for row in rows]
    starts: dict[tuple[int, int], int] = {}  # of cells over several columns: where each one begins
    for left, top, right, bottom in spans:
        if left <= width and top <= len(rows):
            text = rows[top - 1][left - 1]
            for row in rows[top:bottom] if len(text) <= formats.REPEATED else ():
                row[left - 1] = row[left - 1] or text * any(row)
            if right > left:
                starts.update({(top - 1, column): left - 1 for column in range(left - 1, min(right, width))})
    heads: list[int] = []
    for at in sorted({row for row, _ in starts}):
        if at + 1 == len(rows) or _count(rows[at]) < 2 or (at and at - 1 not in heads and _count(rows[at - 1]) > 1):  # noqa: PLR2004
            continue
        above = [rows[at][starts.get((at, column), column)] for column in range(width)]
        cells = [
            (name, cell, (at, column) in starts)
            for column, (name, cell) in enumerate(zip(above, rows[at + 1], strict=True))
        ]
        under = [cell for _, cell, is_below in cells if is_below and cell]
        is_beside = all(cell in ("", name) for name, cell, is_below in cells if not is_below)
        if under and is_beside and all(re.match(r"[^\W\d]|<|(?:19|20)\d\d$", cell) for cell in under):  # names
            rows[at] = above
            heads.append(at)
    for at in reversed(heads):
        pairs = zip(*rows[at : at + 2], strict=True)
        rows[at : at + 2] = [[" ".join(dict.fromkeys(filter(None, pair))) for pair in pairs]]


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
        if all(_count(row) == 1 for row in table) and len(table) <= (1 if len(tables) == 1 else 4):  # titles
            blocks += [formats.escape("".join(row).strip()) for row in table]
        else:
            blocks.append(formats.table_of(row[first:] for row in table))
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
        text = "" if value is None else str(value)
        return text.upper() if isinstance(value, bool) else re.sub(r"_x00[01][0-9A-Fa-f]_", " ", text)  # of Excel
    elapsed = re.search(r"\[(h+|m+|s+)\]", form.lower())
    if isinstance(value, dt.timedelta) or elapsed:
        return _duration(value, form, elapsed[1] if elapsed else "h")
    if isinstance(value, int | float):
        return _number(value, form)
    time = value if isinstance(value, dt.time) else value.time()
    clock = f"{time:%H:%M:%S}" if time.second or "s" in form.lower() else f"{time:%H:%M}"
    if isinstance(value, dt.time) or (value.year <= 1900 and not re.search("[yYdD]", form)):  # noqa: PLR2004
        return clock
    signs = {*_WORD.sub("", form).lower()}
    if time == dt.time() and not signs & {*"dh"} and "y" in signs:
        return f"{value:%Y-%m}" if "m" in signs else f"{value:%Y}"
    return f"{value:%Y-%m-%d}" if time == dt.time() else f"{value:%Y-%m-%d} {clock}"


def _duration(value: Any, form: str, unit: str) -> str:
    """Hours or another unit that may be more than a day's, minutes, and seconds where there are some."""
    from openpyxl.utils.datetime import to_excel

    seconds = round(86400 * (value if isinstance(value, int | float) else to_excel(value)))
    sign, seconds = "-" * (seconds < 0), abs(seconds)
    minutes = f"{seconds // 60}" if unit[0] == "m" else f"{seconds // 3600}:{seconds // 60 % 60:02}"
    minutes += f":{seconds % 60:02}" if seconds % 60 or "s" in form.lower() else ""
    return sign + (f"{seconds}" if unit[0] == "s" else minutes)


def _number(value: Any, form: str) -> str:
    """A number with the places, thousands, percent, leading zeros and words of its format."""
    sections = form.split(";")
    at = 1 if value < 0 and len(sections) > 1 else 2 if value == 0 and len(sections) > 2 else 0  # noqa: PLR2004
    if _BOUND.search(form):
        at = next((n for n, section in enumerate(sections) if _is_within(value, _BOUND.search(section))), 0)
    match = _FORM.fullmatch(sections[at])
    signs = _WORD.sub("", sections[at])
    unsigned = abs(value) if at == 1 else value  # where the section has signs of its own
    if "E" in signs and (match := _SCIENTIFIC.search(sections[at])):
        mantissa, _, exponent = f"{unsigned:.{len(match[1] or '')}E}".partition("E")
        sign = "-" if int(exponent) < 0 else match[2].strip("-")
        text = f"{mantissa}E{sign}{abs(int(exponent)):0{len(match[3])}}"
        return f"{_words(sections[at][: match.start()])}{text}{_words(sections[at][match.end() :])}".strip()
    if "/" in signs and (match := _FRACTION.search(signs)):
        return _fraction(unsigned, match)
    if {*"E/@"} & {*signs} or "General" in signs or abs(value) > 1e15 or (match is None and {*".,"} & {*signs}):  # noqa: PLR2004
        return f"{value:.15g}" if isinstance(value, float) else str(value)
    if match is None:
        return _masked(value, sections[at])
    whole, places = match[2].rstrip(","), (match[3] or "")[:40]
    thousands = len(match[2]) - len(whole) + len(match[4] or "")
    if not whole and not places:
        return _words(match[1]).strip()
    number = Decimal(repr(abs(value))).scaleb(2 * ("%" in signs) - 3 * thousands)
    number = number.quantize(Decimal(1).scaleb(-len(places)), ROUND_HALF_UP)
    units, _, decimals = f"{number:{',' * (',' in whole)}f}".partition(".")
    least = len(places.rstrip("#?"))
    decimals = decimals[:least] + decimals[least:].rstrip("0")
    units = units.zfill(whole.count("0")) if units != "0" or "0" in whole or decimals else ""
    sign = "-" if unsigned < 0 and number else ""
    return f"{sign}{_words(match[1])}{units}{'.' * bool(decimals)}{decimals}{_words(match[5])}".strip()


def _fraction(value: float, form: re.Match[str]) -> str:
    least = int(form[2] or 0)
    number = Fraction(abs(value)).limit_denominator(10 ** len(form[3] or "?") - 1)
    above, below = number.numerator, number.denominator
    if least:
        above, below = round(abs(value) * least), least
    whole, above = divmod(above, below) if form[1] else (0, above)
    text = f"{whole or ''}{f' {above}/{below}' if above or not form[1] else ''}".strip()
    return f"{'-' * (value < 0)}{text or 0}"


def _is_within(value: float, bound: re.Match[str] | None) -> bool:
    if bound is None:
        return True
    sign, most = bound[1], float(bound[2])
    return (
        ("<" in sign and value < most)
        or (">" in sign and value > most)
        or (sign != "<>" and "=" in sign and value == most)
    )


def _words(form: str) -> str:
    return _WORD.sub(lambda word: word[1] or word[2] or word[3] or "", form)


def _masked(value: Any, form: str) -> str:
    """A number whose digits stand between signs, as of a telephone."""
    marks = [mark[0] for mark in _MARK.finditer(form)]
    count = sum(mark in "0#?" for mark in marks)
    number = f"{abs(value):.0f}".rjust(count)
    first = len(number) - count + 1  # digits at the first place
    digits = iter([number[:first], *number[first:]])
    pieces = (next(digits).strip() or "0" * (mark == "0") if mark in "0#?" else _words(mark) for mark in marks)
    return f"{'-' * (value < 0 and ';' not in form)}{''.join(pieces)}".strip()
