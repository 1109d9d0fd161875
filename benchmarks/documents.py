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
    kind, level, depth = "text", 1, 0
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type.endswith(("list_open", "list_close")):
            depth += token.nesting
        elif token.type in ("heading_open", "list_item_open"):
            kind, level = ("heading", int(token.tag[1])) if token.tag[0] == "h" else ("item", depth)
        elif token.type == "tr_open":
            rows.append([])
        elif token.type == "table_close":
            blocks.append(Block("table", rows=tuple(map(tuple, rows))))
            rows = []
        elif token.type == "fence":
            blocks.append(Block("code", token.content.strip("\n")))
        elif token.type == "inline":
            parts = (
                " " if "break" in one.type else one.content
                for one in token.children or []
                if one.type != "image"
            )
            plain = re.sub(r"[\x00-\x1f]", " ", "".join(parts))
            text = " ".join((plain if is_plain else token.content).split())
            if rows:
                rows[-1].append(text.replace("|", "/"))
            elif text:
                blocks.append(Block(kind, text, level))
                kind = "text"
    return blocks


# Writers, which return how many pages, slides, sheets or chapters they made


def markup(blocks: Sequence[Block]) -> str:
    """HTML of blocks; each list at its own depth."""
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
            start, end = ("<ul><li>" * (level - 1) + "<ul>", "</ul>" + "</li></ul>" * (level - 1))
            line = f"<{tag}>{escape(text)}</{tag}>"
            pieces.append(f"{start}{line}{end}" if kind == "item" else line)
    return "\n".join(pieces)


def parts_of(blocks: Sequence[Block], lowest: int) -> list[list[Block]]:
    """Blocks cut before each heading of the first so many levels."""
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
    message["Subject"], message["From"] = "Page", "iris@example.org"
    message.set_content("See the HTML.")
    message.add_alternative(markup(blocks), subtype="html")
    path.write_bytes(bytes(message))
    return 1


def write_docx(path: Path, blocks: Sequence[Block]) -> int:
    """Return a Word document with a page for each heading of the first two levels."""
    document, pages = docx.Document(), parts_of(blocks, 2)
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
        depth = level if kind == "item" else 0
        begin, end = "<t:list><t:list-item>" * depth, "</t:list-item></t:list>" * depth
        line = (
            f'<t:h t:outline-level="{level}">{shown}</t:h>'
            if kind == "heading"
            else f"{begin}<t:p>{shown}</t:p>{end}"
        )
        pieces.append(f"<table:table>{lines}</table:table>" if rows else line)
    body = f"<office:body><office:text>{''.join(pieces)}</office:text></office:body>"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "content.xml", f"<office:document-content {spaces}>{body}</office:document-content>"
        )
    return 1


def write_rtf(path: Path, blocks: Sequence[Block]) -> int:
    """RTF, as Word writes it in short."""

    def text_of(text: str) -> str:
        text = re.sub(r"([\\{}])", r"\\\1", text).replace("\n", r"\line ")
        units = text.encode("utf-16-le")
        codes = [
            int.from_bytes(units[at : at + 2], "little", signed=True)
            for at in range(0, len(units), 2)
        ]
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
    show, slides = pptx.Presentation(), parts_of(blocks, 6)
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
                paragraph.text, paragraph.level = text.replace("\n", " "), min(level, 5) - 1
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
    """ReStructuredText with grids."""
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        shapes = {"item": f"{'  ' * (level - 1)}* {text}", "code": f"::\n\n{indent(text, '   ')}"}
        shapes["heading"] = f"{text}\n{'=-~^+*'[min(level, 6) - 1] * max(len(text), 4)}"
        pieces.append(gridded(rows) if rows else shapes.get(kind, text))
    path.write_text("\n\n".join(pieces) + "\n", "utf-8")
    return 1


def write_org(path: Path, blocks: Sequence[Block]) -> int:
    """Org."""
    path.write_text(marked(blocks, "*", ("#+begin_example", "#+end_example"), "+"), "utf-8")
    return 1


def write_pdf(path: Path, blocks: Sequence[Block]) -> int:
    """Return a PDF."""
    styles, story = getSampleStyleSheet(), list[object]()
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
    """Words of a text."""
    return Counter(re.findall(r"\w+", text))


def bag(blocks: Iterable[Block], kind: str) -> Counter[str]:
    """Return the texts of a kind of blocks, without spaces and what a page cannot tell."""
    texts = (block.text for block in blocks if block.kind == kind)
    if kind == "row":
        texts = ("".join(row) for block in blocks for row in block.rows)
    return Counter("".join(re.findall(r"\w+", text)) for text in texts)


def compare(wanted: list[Block], got: list[Block]) -> Counter[str]:
    """How many headings, items, rows and words of a page are there, of how many."""
    counts: Counter[str] = Counter()
    for kind in SHOWN:
        one = bag(wanted, kind)
        counts.update({kind: (one & bag(got, kind)).total(), f"all {kind}": one.total()})
    words = [
        words_of(" ".join(" ".join((one.text, *map(" ".join, one.rows))) for one in some))
        for some in (wanted, got)
    ]
    counts.update({"word": (words[0] & words[1]).total(), "all word": words[0].total()})
    return counts


def made_pages(count: int) -> list[list[Block]]:
    """Blocks of some pages, half of them those with the most tables."""
    pages = []
    for path in sorted((DATA / "kubernetes-docs" / "corpus").rglob("*.md")):
        text = re.sub(r"\A---\n.*?\n---\n", "", path.read_text("utf-8", "replace"), flags=re.DOTALL)
        pages.append(
            [one for one in blocks_of(text) if one.kind != "table" or len(one.rows[0]) > 1]
        )
    pages.sort(key=lambda blocks: -sum(len(block.rows) for block in blocks))
    filled = [blocks for blocks in pages if blocks]
    step = max(1, len(filled) // (count - count // 2))
    return [*filled[: count // 2], *filled[count // 2 :: step]][:count]


def kept(count: int) -> str:
    """Return what converters keep of pages in each format, and of other documents."""
    chosen, rows = made_pages(count), []
    for suffix, write in WRITERS.items():
        found, extra = Counter[str](), 0
        with tempfile.TemporaryDirectory() as folder:
            for number, blocks in enumerate(chosen):
                wanted = [block for block in blocks if block.kind in KEPT.get(suffix, {block.kind})]
                if not wanted:
                    continue
                path = Path(folder) / f"{number}{suffix}"
                parts = write(path, blocks)
                texts = [document.text for document in DocumentReader().load_data(path)]
                got = blocks_of("\n\n".join(texts), is_plain=False)
                found += compare(wanted, got) + Counter(file=1, page=len(texts) == parts)
                extra += (bag(got, "heading") - bag(blocks, "heading")).total()
        shares = (
            f"{found[key]:,} / {found[f'all {key}']:,}" if found[f"all {key}"] else "–"
            for key in SHOWN
        )
        words = f"{100 * found['word'] / found['all word']:.2f}"
        rows.append(
            [
                suffix,
                str(found["file"]),
                words,
                *shares,
                f"{found['page']} / {found['file']}",
                str(extra),
            ]
        )
    return markdown_table(["made by the benchmark", *HEAD], rows) + "\n\n" + kept_of_others()


def kept_of_others() -> str:
    """Words and pages of documents of the data beside what other packages read."""
    paths = [*(DATA / "pdf-reports" / "corpus").glob("*.pdf"), *(DATA / "faults").glob("*/*")]
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(
        path for path in paths if path.suffix in (".pdf", ".docx", ".html", ".xlsx")
    ):
        expected = read_by_others(path)
        texts = [document.text for document in DocumentReader().load_data(path)]
        got, wanted = words_of("\n".join(texts)), words_of("\n".join(expected))
        total = {"all word": wanted.total(), "word": (got & wanted).total()}
        key = f"{path.suffix} of {path.relative_to(DATA).parts[0]}"
        found[key].update({"file": 1, "page": len(texts) == len(expected), **total})
    rows = [
        [
            key,
            str(one["file"]),
            f"{100 * one['word'] / one['all word']:.2f}",
            f"{one['page']} / {one['file']}",
        ]
        for key, one in found.items()
    ]
    return markdown_table(["of others", "files", "words %", "pages"], rows)


def read_by_others(path: Path) -> list[str]:
    """Texts of the pages of a document, by another package."""
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
    """Convert all reports in one process."""
    worker, pages = ConversionProcess(), 0
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
    print(
        f"{machine()}\n\n"
        f"{speed(DATA / 'pdf-reports' / 'corpus') if options.speed else kept(options.files)}"
    )


if __name__ == "__main__":
    main()
