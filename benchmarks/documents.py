"""Measure how well documents are converted, how fast, and in how much memory.

    python benchmarks/documents.py [--files 40 | --speed]

Pages of ``kubernetes-docs`` are written in each format and converted, to count which words,
headings, items, rows and pages come back. The words and pages of the documents of ``pdf-reports``
and ``faults`` are compared with those that PDFium, python-docx, lxml and openpyxl read. ``--speed``
converts the 17 reports. ``retrieval.py`` measures how well pages of PDFs are found.
"""

from __future__ import annotations

import csv
import json
import re
import resource
import struct
import tempfile
import zipfile
from collections import Counter, defaultdict
from email.message import EmailMessage
from html import escape
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, NamedTuple

import docx
import openpyxl
import pptx
import pypdfium2
from common import command_line, machine, markdown_table
from datasets import DATA
from lxml import html
from markdown_it import MarkdownIt
from pptx.util import Inches
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.platypus import Paragraph, Preformatted, SimpleDocTemplate, Table

from llama_index_contextual.app.folder.convert import DocumentReader
from llama_index_contextual.app.folder.process import ConversionProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from markdown_it.token import Token

COUNTED_KINDS = ("heading", "item", "row")
HEADER = [
    "files",
    "words %",
    "headings",
    "list items",
    "table rows",
    "pages",
    "false headings",
]
# The kinds of blocks of a format. Other formats have all kinds.
KINDS_OF_FORMAT = {
    ".xlsx": {"table"},
    ".csv": {"table"},
    ".pptx": {"heading", "item", "text", "table"},
}
KIND_OF_TOKEN = {"heading_open": "heading", "list_item_open": "item"}
HTML_TAGS = {"text": "p", "code": "pre"}


class Block(NamedTuple):
    """A part of a page.

    Attributes:
        kind: ``"heading"``, ``"text"``, ``"item"`` (of a list), ``"code"`` or ``"table"``.
        text: The text on one line, or the lines of code; "" for a table.
        level: The level of a heading or an item, from 1.
        rows: The rows of a table.
    """

    kind: str
    text: str = ""
    level: int = 1
    rows: tuple[tuple[str, ...], ...] = ()


def blocks_of(markdown: str, *, is_plain: bool = True) -> list[Block]:
    """Return the blocks of a Markdown text.

    Args:
        markdown: The text.
        is_plain: Whether to leave out the markup of links, pictures and emphasis.
    """
    blocks: list[Block] = []
    rows: list[list[str]] = []
    kind = "text"
    level = 1
    depth = 0
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type.endswith(("list_open", "list_close")):
            depth += token.nesting
        elif token.type in KIND_OF_TOKEN:
            kind = KIND_OF_TOKEN[token.type]
            level = int(token.tag[1]) if kind == "heading" else depth
        elif token.type == "tr_open":
            rows.append([])
        elif token.type == "table_close":
            blocks.append(Block("table", rows=tuple(map(tuple, rows))))
            rows = []
        elif token.type == "fence":
            blocks.append(Block("code", token.content.strip("\n")))
        elif token.type == "inline":
            text = line_of(token, is_plain=is_plain)
            if rows:
                rows[-1].append(text.replace("|", "/"))
            elif text:
                blocks.append(Block(kind, text, level))
                kind = "text"
    return blocks


def line_of(inline: Token, *, is_plain: bool) -> str:
    """Return the text of a paragraph or a heading on one line."""
    text = inline.content
    if is_plain:
        text = ""
        for token in inline.children or []:
            if "break" in token.type:
                text += " "
            elif token.type != "image":
                text += token.content
        text = re.sub(r"[\x00-\x1f]", " ", text)
    return " ".join(text.split())


# Writers, which return the number of pages, slides, sheets or chapters


def markup(blocks: Sequence[Block]) -> str:
    """Return blocks as HTML, with each item in a list at its depth."""
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        if kind == "table":
            pieces.append(table_markup(rows))
        elif kind == "heading":
            pieces.append(f"<h{level}>{escape(text)}</h{level}>")
        elif kind == "item":
            outer = level - 1
            item = f"<ul><li>{escape(text)}</li></ul>"
            pieces.append(f"{'<ul><li>' * outer}{item}{'</li></ul>' * outer}")
        else:
            tag = HTML_TAGS[kind]
            pieces.append(f"<{tag}>{escape(text)}</{tag}>")
    return "\n".join(pieces)


def table_markup(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML, with its first row as the header."""
    html = ""
    tag = "th"
    for row in rows:
        cells = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        html += f"<tr>{cells}</tr>"
        tag = "td"
    return f"<table>{html}</table>"


def parts_of(blocks: Sequence[Block], lowest_level: int) -> list[list[Block]]:
    """Return the parts of a page, which start at headings down to the lowest level."""
    parts: list[list[Block]] = []
    for block in blocks:
        if not parts or (block.kind == "heading" and block.level <= lowest_level):
            parts.append([])
        parts[-1].append(block)
    return parts


def write_html(path: Path, blocks: Sequence[Block]) -> int:
    """Write a page with a menu."""
    head = "<head><title>Page</title></head>"
    page = f"<html>{head}<body><nav>Menu</nav><main>{markup(blocks)}</main></body></html>"
    path.write_text(page, "utf-8")
    return 1


def write_epub(path: Path, blocks: Sequence[Block]) -> int:
    """Write a book with a chapter for each heading of the first two levels."""
    chapters = parts_of(blocks, 2)
    names = [f"c{number}" for number in range(len(chapters))]
    items = "".join(f'<item id="{name}" href="{name}.xhtml"/>' for name in names)
    spine = "".join(f'<itemref idref="{name}"/>' for name in names)
    with zipfile.ZipFile(path, "w") as book:
        container = '<c><rootfiles><rootfile full-path="o.opf"/></rootfiles></c>'
        book.writestr("META-INF/container.xml", container)
        book.writestr("o.opf", f"<p><manifest>{items}</manifest><spine>{spine}</spine></p>")
        for name, chapter in zip(names, chapters, strict=True):
            page = f"<html><head><title/></head><body>{markup(chapter)}</body></html>"
            book.writestr(f"{name}.xhtml", page)
    return len(chapters)


def write_eml(path: Path, blocks: Sequence[Block]) -> int:
    """Write a mail with HTML."""
    message = EmailMessage()
    message["Subject"] = "Page"
    message["From"] = "iris@example.org"
    message.set_content("See the HTML.")
    message.add_alternative(markup(blocks), subtype="html")
    path.write_bytes(bytes(message))
    return 1


def write_docx(path: Path, blocks: Sequence[Block]) -> int:
    """Write a Word document with a page for each heading of the first two levels."""
    document = docx.Document()
    pages = parts_of(blocks, 2)
    for number, page in enumerate(pages):
        if number:
            document.add_page_break()
        for kind, text, level, rows in page:
            if kind == "table":
                table = document.add_table(rows=0, cols=max(map(len, rows)))
                for row in rows:
                    for cell, shown in zip(table.add_row().cells, row, strict=False):
                        cell.text = shown
            elif kind == "heading":
                document.add_heading(text, level)
            elif kind == "item":
                depth = f" {level}" if 1 < level < 4 else ""
                document.add_paragraph(text, style=f"List Bullet{depth}")
            else:
                document.add_paragraph(text)
    document.save(str(path))
    return len(pages)


def write_odt(path: Path, blocks: Sequence[Block]) -> int:
    """Write an OpenDocument text."""
    namespaces = ""
    for prefix, name in {"office": "office", "t": "text", "table": "table"}.items():
        namespaces += f' xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        escaped = escape(text).replace("\n", "<t:line-break/>")
        if kind == "table":
            pieces.append(odt_table(rows))
        elif kind == "heading":
            pieces.append(f'<t:h t:outline-level="{level}">{escaped}</t:h>')
        elif kind == "item":
            start = "<t:list><t:list-item>" * level
            end = "</t:list-item></t:list>" * level
            pieces.append(f"{start}<t:p>{escaped}</t:p>{end}")
        else:
            pieces.append(f"<t:p>{escaped}</t:p>")
    body = f"<office:body><office:text>{''.join(pieces)}</office:text></office:body>"
    with zipfile.ZipFile(path, "w") as archive:
        content = f"<office:document-content{namespaces}>{body}</office:document-content>"
        archive.writestr("content.xml", content)
    return 1


def odt_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in OpenDocument's XML."""
    xml = ""
    for row in rows:
        cells = ""
        for cell in row:
            cells += f"<table:table-cell><t:p>{escape(cell)}</t:p></table:table-cell>"
        xml += f"<table:table-row>{cells}</table:table-row>"
    return f"<table:table>{xml}</table:table>"


def write_rtf(path: Path, blocks: Sequence[Block]) -> int:
    """Write RTF as Word does, without styles."""
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        if kind == "table":
            for row in rows:
                cells = "".join(rf"{rtf_text(cell)}\cell " for cell in row)
                pieces.append(rf"\trowd\intbl {cells}\row")
            continue
        start = r"\pard "
        if kind == "heading":
            start = rf"\pard\outlinelevel{level - 1} "
        elif kind == "item":
            start = r"\pard{\listtext\'b7\tab}"
        pieces.append(rf"{start}{rtf_text(text)}\par")
    lines = "\n".join(pieces)
    path.write_text(f"{{\\rtf1\\ansi\\uc1 {lines}}}", "ascii")
    return 1


def rtf_text(text: str) -> str:
    """Return a text with RTF's escapes for signs, line ends and letters beyond ASCII."""
    escaped = re.sub(r"([\\{}])", r"\\\1", text).replace("\n", r"\line ")
    units = escaped.encode("utf-16-le")
    codes = struct.unpack(f"<{len(units) // 2}h", units)
    return "".join(chr(code) if 0 <= code < 128 else rf"\u{code}?" for code in codes)


def write_pptx(path: Path, blocks: Sequence[Block]) -> int:
    """Write a presentation with a slide for each heading and the text below it."""
    show = pptx.Presentation()
    slides = parts_of(blocks, 6)
    for part in slides:
        slide = show.slides.add_slide(show.slide_layouts[1])
        frame = slide.placeholders[1].text_frame
        for kind, text, level, rows in part:
            if kind == "heading":
                slide.shapes.title.text = text
            elif kind == "table":
                size = (len(rows), max(map(len, rows)), 0, 0, Inches(6), Inches(2))
                table = slide.shapes.add_table(*size).table
                for number, row in enumerate(rows):
                    for column, shown in enumerate(row):
                        table.cell(number, column).text = shown
            else:
                paragraph = frame.add_paragraph() if frame.text else frame.paragraphs[0]
                paragraph.text = text.replace("\n", " ")
                paragraph.level = min(level, 5) - 1
    show.save(str(path))
    return len(slides)


def write_xlsx(path: Path, blocks: Sequence[Block]) -> int:
    """Write a workbook with a sheet for each table."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for number, block in enumerate(block for block in blocks if block.kind == "table"):
        sheet = book.create_sheet(f"Table {number}")
        for row in block.rows:
            sheet.append([f"\u200b{cell}" if cell[:1] == "=" else cell for cell in row])
    book.save(path)
    return len(book.worksheets)


def write_csv(path: Path, blocks: Sequence[Block]) -> int:
    """Write the rows of all tables one after the other."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(row for block in blocks for row in block.rows)
    return 1


class Signs(NamedTuple):
    """The signs of Markdown or Org.

    Attributes:
        heading: The sign before a heading, once for each level.
        code_start: The line before code.
        code_end: The line after it.
        crossing: The sign between two columns in the line below the header of a table.
    """

    heading: str
    code_start: str
    code_end: str
    crossing: str


MARKDOWN = Signs("#", "```", "```", "|")
ORG = Signs("*", "#+begin_example", "#+end_example", "+")


def marked_up(blocks: Sequence[Block], signs: Signs) -> str:
    """Return blocks as lines of Markdown or Org."""
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        if kind == "table":
            lines = [f"| {' | '.join(row)} |" for row in rows]
            lines.insert(1, f"|{signs.crossing.join('---' for _ in rows[0])}|")
            pieces.append("\n".join(lines))
        elif kind == "heading":
            pieces.append(f"{signs.heading * level} {text}")
        elif kind == "code":
            pieces.append(f"{signs.code_start}\n{text}\n{signs.code_end}")
        elif kind == "item":
            pieces.append(f"{'  ' * (level - 1)}- {text}")
        else:
            pieces.append(text)
    return "\n\n".join(pieces) + "\n"


def grid_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as a grid of reStructuredText."""
    column_count = max(map(len, rows))
    table = [[*row, *[""] * column_count][:column_count] for row in rows]
    widths = [max(map(len, column)) + 2 for column in zip(*table, strict=True)]
    rule = f"+{'+'.join('-' * width for width in widths)}+"
    lines = [rule]
    for row in table:
        cells = [f" {cell} ".ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines += [f"|{'|'.join(cells)}|", rule]
    return "\n".join(lines)


def write_ipynb(path: Path, blocks: Sequence[Block]) -> int:
    """Write a notebook with a cell for each heading."""
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": marked_up(part, MARKDOWN)}
        for part in parts_of(blocks, 6)
    ]
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    path.write_text(json.dumps(notebook), "utf-8")
    return len(cells)


def write_rst(path: Path, blocks: Sequence[Block]) -> int:
    """Write reStructuredText with grids."""
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        if kind == "table":
            pieces.append(grid_table(rows))
        elif kind == "heading":
            underline = "=-~^+*"[min(level, 6) - 1]
            pieces.append(f"{text}\n{underline * max(len(text), 4)}")
        elif kind == "code":
            pieces.append(f"::\n\n{indent(text, '   ')}")
        elif kind == "item":
            pieces.append(f"{'  ' * (level - 1)}* {text}")
        else:
            pieces.append(text)
    path.write_text("\n\n".join(pieces) + "\n", "utf-8")
    return 1


def write_org(path: Path, blocks: Sequence[Block]) -> int:
    """Write Org."""
    path.write_text(marked_up(blocks, ORG), "utf-8")
    return 1


def write_pdf(path: Path, blocks: Sequence[Block]) -> int:
    """Write a PDF."""
    styles = getSampleStyleSheet()
    story = list[object]()
    for kind, text, level, rows in blocks:
        if kind == "table":
            body = styles["BodyText"]
            story.append(Table([[Paragraph(escape(cell), body) for cell in row] for row in rows]))
        elif kind == "code":
            story.append(Preformatted(text, styles["Code"], maxLineLength=90))
        else:
            style = styles[f"Heading{level}" if kind == "heading" else "BodyText"]
            bullet = "•" if kind == "item" else None
            story.append(Paragraph(escape(text), style, bulletText=bullet))
    document = SimpleDocTemplate(str(path))
    document.build(story)
    return int(document.page)


WRITERS: dict[str, Callable[[Path, Sequence[Block]], int]] = {
    f".{name.removeprefix('write_')}": function
    for name, function in globals().items()
    if name.startswith("write_")
}


# What converters keep


def words_of(text: str) -> Counter[str]:
    """Return the words of a text."""
    return Counter(re.findall(r"\w+", text))


def texts_of_kind(blocks: Iterable[Block], kind: str) -> Counter[str]:
    """Return the texts of the blocks of a kind, or of the rows of tables.

    Only letters and digits are compared, because a page does not keep every space.
    """
    if kind == "row":
        texts = ["".join(row) for block in blocks for row in block.rows]
    else:
        texts = [block.text for block in blocks if block.kind == kind]
    return Counter("".join(re.findall(r"\w+", text)) for text in texts)


def words_of_blocks(blocks: Iterable[Block]) -> Counter[str]:
    """Return the words of all blocks."""
    words = Counter[str]()
    for block in blocks:
        words += words_of(block.text)
        for row in block.rows:
            words += words_of(" ".join(row))
    return words


def kept_counts(kind: str, written: Counter[str], read: Counter[str]) -> Counter[str]:
    """Return how many of the written texts were read, and how many were written."""
    return Counter({kind: (written & read).total(), f"all {kind}": written.total()})


def compare(written: list[Block], read: list[Block]) -> Counter[str]:
    """Return the numbers of headings, items, rows and words that were read and written."""
    counts = kept_counts("word", words_of_blocks(written), words_of_blocks(read))
    for kind in COUNTED_KINDS:
        counts += kept_counts(kind, texts_of_kind(written, kind), texts_of_kind(read, kind))
    return counts


def sample_pages(count: int) -> list[list[Block]]:
    """Return the blocks of some pages, half of which are those with the longest tables."""
    pages = []
    for path in sorted((DATA / "kubernetes-docs" / "corpus").rglob("*.md")):
        text = re.sub(r"\A---\n.*?\n---\n", "", path.read_text("utf-8", "replace"), flags=re.DOTALL)
        blocks = [block for block in blocks_of(text) if not block.rows or len(block.rows[0]) > 1]
        if blocks:
            pages.append(blocks)
    pages.sort(key=lambda blocks: -sum(len(block.rows) for block in blocks))
    half = count // 2
    step = max(1, len(pages) // (count - half))
    return [*pages[:half], *pages[half::step]][:count]


def tables_of_kept(page_count: int) -> str:
    """Return the tables of what converters keep of pages in each format, and of real documents.

    Args:
        page_count: The number of pages that are written in each format.
    """
    pages = sample_pages(page_count)
    rows = []
    for suffix in WRITERS:
        with tempfile.TemporaryDirectory() as folder:
            counts = counts_of_format(suffix, pages, Path(folder))
        shares = []
        for kind in COUNTED_KINDS:
            total = counts[f"all {kind}"]
            shares.append(f"{counts[kind]:,} / {total:,}" if total else "–")
        rows.append([suffix, *file_cells(counts, shares), str(counts["extra heading"])])
    table = markdown_table(["made by the benchmark", *HEADER], rows)
    return f"{table}\n\n{table_of_real_documents()}"


def counts_of_format(suffix: str, pages: Sequence[list[Block]], folder: Path) -> Counter[str]:
    """Write pages in a format, read them, and count what comes back."""
    counts = Counter[str]()
    for number, blocks in enumerate(pages):
        written = [
            block for block in blocks if block.kind in KINDS_OF_FORMAT.get(suffix, {block.kind})
        ]
        if not written:
            continue
        path = folder / f"{number}{suffix}"
        part_count = WRITERS[suffix](path, blocks)
        texts = [document.text for document in DocumentReader().load_data(path)]
        read = blocks_of("\n\n".join(texts), is_plain=False)
        counts += compare(written, read)
        counts["file"] += 1
        counts["page"] += len(texts) == part_count
        counts["extra heading"] += (
            texts_of_kind(read, "heading") - texts_of_kind(blocks, "heading")
        ).total()
    return counts


def file_cells(counts: Counter[str], shares: Sequence[str] = ()) -> list[str]:
    """Return the cells of a row: files, words in percent, other shares, and complete files."""
    words = f"{100 * counts['word'] / counts['all word']:.2f}"
    return [str(counts["file"]), words, *shares, f"{counts['page']} / {counts['file']}"]


def table_of_real_documents() -> str:
    """Return the table of words and pages that other packages read, too."""
    paths = [*(DATA / "pdf-reports" / "corpus").glob("*.pdf"), *(DATA / "faults").glob("*/*")]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(paths):
        if path.suffix not in (".pdf", ".docx", ".html", ".xlsx"):
            continue
        expected = read_by_other_package(path)
        texts = [document.text for document in DocumentReader().load_data(path)]
        origin = f"{path.suffix} of {path.relative_to(DATA).parts[0]}"
        written = words_of("\n".join(expected))
        counts[origin] += kept_counts("word", written, words_of("\n".join(texts)))
        counts[origin]["file"] += 1
        counts[origin]["page"] += len(texts) == len(expected)
    rows = [[origin, *file_cells(origin_counts)] for origin, origin_counts in counts.items()]
    return markdown_table(["of others", "files", "words %", "pages"], rows)


def read_by_other_package(path: Path) -> list[str]:
    """Return the texts of the pages of a document, by another package."""
    if path.suffix == ".pdf":
        with pypdfium2.PdfDocument(path) as report:
            return [page.get_textpage().get_text_range() for page in report]
    if path.suffix == ".docx":
        document = docx.Document(str(path))
        cells = [cell.text for table in document.tables for row in table.rows for cell in row.cells]
        return ["\n".join([*(paragraph.text for paragraph in document.paragraphs), *cells])]
    if path.suffix == ".html":
        return [" ".join(html.parse(str(path)).getroot().find("body").itertext())]
    sheets = openpyxl.load_workbook(path).worksheets
    return [
        "\n".join(cell.value for row in sheet for cell in row if isinstance(cell.value, str))
        for sheet in sheets
    ]


# Speed


def speed(corpus: Path) -> str:
    """Convert all reports in one process, and return a table of the speed."""
    converter = ConversionProcess()
    pages = 0
    for path in sorted(corpus.glob("*.pdf")):
        pages += len(converter.convert(path, ".pdf", 600.0, 4000)["parts"])
    converter.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = [
        f"{pages:,}",
        f"{pages / (used.ru_utime + used.ru_stime):.0f}",
        f"{used.ru_maxrss / 1024:.0f} MB",
    ]
    return markdown_table(["pages", "pages a CPU second", "peak memory"], [row])


def main() -> None:
    """Measure what is kept, or the speed, and print it."""
    options = command_line(__doc__, speed=False, files=40)
    corpus = DATA / "pdf-reports" / "corpus"
    table = speed(corpus) if options.speed else tables_of_kept(options.files)
    print(f"{machine()}\n\n{table}")


if __name__ == "__main__":
    main()
