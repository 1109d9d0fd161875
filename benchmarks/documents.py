"""How well documents are converted, how fast, and in how much memory.

``retrieval.py`` asks for pages of PDFs.

    python benchmarks/documents.py [--files 40 | --speed]

Pages of ``kubernetes-docs`` are written in each format, and it counts which words, headings, items,
rows and pages come back; and words and pages of the documents of ``pdf-reports`` and ``faults`` are
compared with those that PDFium, python-docx, lxml and openpyxl read. ``--speed`` converts the 17
reports.
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

SHOWN = ("heading", "item", "row")
HEAD = [
    "files",
    "words %",
    "headings",
    "list items",
    "table rows",
    "pages",
    "false headings",
]
KEPT = {
    ".xlsx": {"table"},
    ".csv": {"table"},
    ".pptx": {"heading", "item", "text", "table"},
}  # others hold all


BEGINS = {"heading_open": "heading", "list_item_open": "item"}  # kinds by token


class Block(NamedTuple):
    """A heading, a text, an item of a list, code, or a table."""

    kind: str  # "heading", "text", "item", "code" or "table"
    text: str = ""  # on one line; of code its lines
    level: int = 1  # of a heading or an item, from 1
    rows: tuple[tuple[str, ...], ...] = ()  # of a table


def blocks_of(markdown: str, *, is_plain: bool = True) -> list[Block]:
    """Return the blocks of a Markdown text.

    Where ``is_plain``, links, pictures and emphasis in it are left out.
    """
    blocks: list[Block] = []
    rows: list[list[str]] = []
    kind = "text"
    level = 1
    depth = 0
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type.endswith(("list_open", "list_close")):
            depth += token.nesting
        elif token.type in BEGINS:
            kind = BEGINS[token.type]
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


# Writers, which return how many pages, slides, sheets or chapters they made


def markup(blocks: Sequence[Block]) -> str:
    """Return blocks as HTML; each list at its own depth."""
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        if kind == "table":
            cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
            head = next(cells).replace("td>", "th>")
            pieces.append(
                f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
            )
        else:
            tag = {"heading": f"h{level}", "text": "p", "code": "pre", "item": "li"}[kind]
            line = f"<{tag}>{escape(text)}</{tag}>"
            if kind == "item":
                outer = level - 1
                line = f"{'<ul><li>' * outer}<ul>{line}</ul>{'</li></ul>' * outer}"
            pieces.append(line)
    return "\n".join(pieces)


def parts_of(blocks: Sequence[Block], lowest: int) -> list[list[Block]]:
    """Return blocks cut before each heading of the first so many levels."""
    parts: list[list[Block]] = []
    for block in blocks:
        if not parts or (block.kind == "heading" and block.level <= lowest):
            parts.append([])
        parts[-1].append(block)
    return parts


def write_html(path: Path, blocks: Sequence[Block]) -> int:
    """Return a page with a menu."""
    head = "<head><title>Page</title></head>"
    page = f"<html>{head}<body><nav>Menu</nav><main>{markup(blocks)}</main></body></html>"
    path.write_text(page, "utf-8")
    return 1


def write_epub(path: Path, blocks: Sequence[Block]) -> int:
    """Return a book with a chapter for each heading of the first two levels."""
    chapters = parts_of(blocks, 2)
    names = [f"c{number}" for number in range(len(chapters))]
    items = "".join(f'<item id="{name}" href="{name}.xhtml"/>' for name in names)
    spine = "".join(f'<itemref idref="{name}"/>' for name in names)
    with zipfile.ZipFile(path, "w") as book:
        book.writestr(
            "META-INF/container.xml", '<c><rootfiles><rootfile full-path="o.opf"/></rootfiles></c>'
        )
        book.writestr("o.opf", f"<p><manifest>{items}</manifest><spine>{spine}</spine></p>")
        for name, chapter in zip(names, chapters, strict=True):
            book.writestr(
                f"{name}.xhtml", f"<html><head><title/></head><body>{markup(chapter)}</body></html>"
            )
    return len(chapters)


def write_eml(path: Path, blocks: Sequence[Block]) -> int:
    """Return a mail with HTML."""
    message = EmailMessage()
    message["Subject"] = "Page"
    message["From"] = "iris@example.org"
    message.set_content("See the HTML.")
    message.add_alternative(markup(blocks), subtype="html")
    path.write_bytes(bytes(message))
    return 1


def write_docx(path: Path, blocks: Sequence[Block]) -> int:
    """Return a Word document with a page for each heading of the first two levels."""
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
            else:
                deeper = f" {level}" if 1 < level < 4 else ""
                document.add_paragraph(
                    text, style=f"List Bullet{deeper}" if kind == "item" else None
                )
    document.save(str(path))
    return len(pages)


def write_odt(path: Path, blocks: Sequence[Block]) -> int:
    """Return a text of OpenDocument."""
    names = {"office": "office", "t": "text", "table": "table"}.items()
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{kind}:1.0"' for name, kind in names
    )
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        shown = escape(text).replace("\n", "<t:line-break/>")
        cells = (
            "".join(
                f"<table:table-cell><t:p>{escape(cell)}</t:p></table:table-cell>" for cell in row
            )
            for row in rows
        )
        lines = "".join(f"<table:table-row>{row}</table:table-row>" for row in cells)
        piece = f"<t:p>{shown}</t:p>"
        if rows:
            piece = f"<table:table>{lines}</table:table>"
        elif kind == "heading":
            piece = f'<t:h t:outline-level="{level}">{shown}</t:h>'
        elif kind == "item":
            piece = f"{'<t:list><t:list-item>' * level}{piece}{'</t:list-item></t:list>' * level}"
        pieces.append(piece)
    body = f"<office:body><office:text>{''.join(pieces)}</office:text></office:body>"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "content.xml", f"<office:document-content {spaces}>{body}</office:document-content>"
        )
    return 1


def write_rtf(path: Path, blocks: Sequence[Block]) -> int:
    """Write RTF as Word does, in short."""

    def text_of(text: str) -> str:
        text = re.sub(r"([\\{}])", r"\\\1", text).replace("\n", r"\line ")
        units = text.encode("utf-16-le")
        codes = struct.unpack(f"<{len(units) // 2}h", units)
        return "".join(chr(code) if 0 <= code < 128 else rf"\u{code}?" for code in codes)

    begins = {"heading": r"\pard\outlinelevel{} ", "item": r"\pard{{\listtext\'b7\tab}}"}
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        cells = ("".join(text_of(cell) + r"\cell " for cell in row) for row in rows)
        lines = [rf"\trowd\intbl {row}\row" for row in cells]
        pieces += lines or [begins.get(kind, r"\pard ").format(level - 1) + text_of(text) + r"\par"]
    path.write_text(f"{{\\rtf1\\ansi\\uc1 {chr(10).join(pieces)}}}", "ascii")
    return 1


def write_pptx(path: Path, blocks: Sequence[Block]) -> int:
    """Return a slide for each heading, with what stands below it."""
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
    """Return a sheet for each table."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for number, block in enumerate(block for block in blocks if block.kind == "table"):
        sheet = book.create_sheet(f"Table {number}")
        for row in block.rows:
            sheet.append([f"\u200b{cell}" if cell[:1] == "=" else cell for cell in row])
    book.save(path)
    return len(book.worksheets)


def write_csv(path: Path, blocks: Sequence[Block]) -> int:
    """Return the tables, without what parts them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(row for block in blocks for row in block.rows)
    return 1


def marked(blocks: Sequence[Block], sign: str, fence: Sequence[str], rule: str) -> str:
    """Return blocks as lines of Markdown or Org, with its signs of headings, code and tables."""
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        lines = [f"| {' | '.join(row)} |" for row in rows]
        lines[1:1] = [f"|{rule.join('---' for _ in rows[0])}|"] if rows else []
        shapes = {
            "heading": f"{sign * level} {text}",
            "code": "\n".join([fence[0], text, fence[1]]),
        }
        shapes["item"] = f"{'  ' * (level - 1)}- {text}"
        pieces.append("\n".join(lines) or shapes.get(kind, text))
    return "\n\n".join(pieces) + "\n"


def gridded(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as a grid of reStructuredText."""
    count = max(map(len, rows))
    table = [[*row, *[""] * count][:count] for row in rows]
    widths = [max(len(row[column]) for row in table) + 2 for column in range(count)]
    rule = f"+{'+'.join('-' * width for width in widths)}+"
    lines = [
        "|".join(f" {cell} ".ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in table
    ]
    return "\n".join([rule, *(f"|{line}|\n{rule}" for line in lines)])


def write_ipynb(path: Path, blocks: Sequence[Block]) -> int:
    """Return a notebook of one cell for each heading."""
    sources = [marked(cell, "#", ("```", "```"), "|") for cell in parts_of(blocks, 6)]
    book = [{"cell_type": "markdown", "metadata": {}, "source": source} for source in sources]
    path.write_text(
        json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": book}), "utf-8"
    )
    return len(sources)


def write_rst(path: Path, blocks: Sequence[Block]) -> int:
    """Write reStructuredText with grids."""
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        shapes = {"item": f"{'  ' * (level - 1)}* {text}", "code": f"::\n\n{indent(text, '   ')}"}
        shapes["heading"] = f"{text}\n{'=-~^+*'[min(level, 6) - 1] * max(len(text), 4)}"
        pieces.append(gridded(rows) if rows else shapes.get(kind, text))
    path.write_text("\n\n".join(pieces) + "\n", "utf-8")
    return 1


def write_org(path: Path, blocks: Sequence[Block]) -> int:
    """Write Org."""
    path.write_text(marked(blocks, "*", ("#+begin_example", "#+end_example"), "+"), "utf-8")
    return 1


def write_pdf(path: Path, blocks: Sequence[Block]) -> int:
    """Return a PDF."""
    styles = getSampleStyleSheet()
    story = list[object]()
    for kind, text, level, rows in blocks:
        if kind == "table":
            story.append(
                Table(
                    [[Paragraph(escape(cell), styles["BodyText"]) for cell in row] for row in rows]
                )
            )
        elif kind == "code":
            story.append(Preformatted(text, styles["Code"], maxLineLength=90))
        else:
            style = styles[f"Heading{level}" if kind == "heading" else "BodyText"]
            story.append(Paragraph(escape(text), style, bulletText="•" if kind == "item" else None))
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


def bag(blocks: Iterable[Block], kind: str) -> Counter[str]:
    """Return the texts of a kind of blocks, without spaces and what a page cannot tell."""
    texts = (block.text for block in blocks if block.kind == kind)
    if kind == "row":
        texts = ("".join(row) for block in blocks for row in block.rows)
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
    """Return how much of what was written was read, and how much was written."""
    return Counter({kind: (written & read).total(), f"all {kind}": written.total()})


def compare(written: list[Block], read: list[Block]) -> Counter[str]:
    """Return how many headings, items, rows and words of a page were read, and of how many."""
    counts = kept_counts("word", words_of_blocks(written), words_of_blocks(read))
    for kind in SHOWN:
        counts += kept_counts(kind, bag(written, kind), bag(read, kind))
    return counts


def made_pages(count: int) -> list[list[Block]]:
    """Return the blocks of some pages, half of them those with the most tables."""
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


def kept(count: int) -> str:
    """Return what converters keep of pages in each format, and of other documents."""
    pages = made_pages(count)
    rows = []
    for suffix in WRITERS:
        with tempfile.TemporaryDirectory() as folder:
            counts = counts_of_format(suffix, pages, Path(folder))
        shares = []
        for kind in SHOWN:
            total = counts[f"all {kind}"]
            shares.append(f"{counts[kind]:,} / {total:,}" if total else "–")
        rows.append([suffix, *file_cells(counts, shares), str(counts["extra heading"])])
    return markdown_table(["made by the benchmark", *HEAD], rows) + "\n\n" + kept_of_others()


def counts_of_format(suffix: str, pages: Sequence[list[Block]], folder: Path) -> Counter[str]:
    """Write pages in a format, read them, and count what comes back."""
    counts = Counter[str]()
    for number, blocks in enumerate(pages):
        written = [block for block in blocks if block.kind in KEPT.get(suffix, {block.kind})]
        if not written:
            continue
        path = folder / f"{number}{suffix}"
        part_count = WRITERS[suffix](path, blocks)
        texts = [document.text for document in DocumentReader().load_data(path)]
        read = blocks_of("\n\n".join(texts), is_plain=False)
        counts += compare(written, read)
        counts["file"] += 1
        counts["page"] += len(texts) == part_count
        counts["extra heading"] += (bag(read, "heading") - bag(blocks, "heading")).total()
    return counts


def file_cells(counts: Counter[str], shares: Sequence[str] = ()) -> list[str]:
    """Return the number of files, the per cent of words, other shares, and files with all pages."""
    words = f"{100 * counts['word'] / counts['all word']:.2f}"
    return [str(counts["file"]), words, *shares, f"{counts['page']} / {counts['file']}"]


def kept_of_others() -> str:
    """Return words and pages of documents of the data beside what other packages read."""
    paths = [*(DATA / "pdf-reports" / "corpus").glob("*.pdf"), *(DATA / "faults").glob("*/*")]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(paths):
        if path.suffix not in (".pdf", ".docx", ".html", ".xlsx"):
            continue
        expected = read_by_others(path)
        texts = [document.text for document in DocumentReader().load_data(path)]
        origin = f"{path.suffix} of {path.relative_to(DATA).parts[0]}"
        written = words_of("\n".join(expected))
        counts[origin] += kept_counts("word", written, words_of("\n".join(texts)))
        counts[origin]["file"] += 1
        counts[origin]["page"] += len(texts) == len(expected)
    rows = [[origin, *file_cells(origin_counts)] for origin, origin_counts in counts.items()]
    return markdown_table(["of others", "files", "words %", "pages"], rows)


def read_by_others(path: Path) -> list[str]:
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
    """Convert all reports in one process and return the speed."""
    worker = ConversionProcess()
    pages = 0
    for path in sorted(corpus.glob("*.pdf")):
        pages += len(worker.convert(path, ".pdf", 600.0, 4000)["parts"])
    worker.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = [
        f"{pages:,}",
        f"{pages / (used.ru_utime + used.ru_stime):.0f}",
        f"{used.ru_maxrss / 1024:.0f} MB",
    ]
    return markdown_table(["pages", "pages a CPU second", "peak memory"], [row])


def main() -> None:
    """Measure what the command line names."""
    options = command_line(__doc__, speed=False, files=40)
    corpus = DATA / "pdf-reports" / "corpus"
    table = speed(corpus) if options.speed else kept(options.files)
    print(f"{machine()}\n\n{table}")


if __name__ == "__main__":
    main()
