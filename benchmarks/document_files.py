"""Files of many formats with the same text: headings, paragraphs, lists and tables of a Markdown page.

Each is written by a program that others use where there is one (python-docx, python-pptx, openpyxl, reportlab), so the
page is the reference for what a converter keeps. A writer returns how many pages, slides, sheets or chapters it made.
"""

from __future__ import annotations

import csv
import json
import re
import zipfile
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from markdown_it.token import Token


class Block(NamedTuple):
    """A heading, a text, an item of a list, code, or a table.

    Attributes:
        kind: ``"heading"``, ``"text"``, ``"item"``, ``"code"`` or ``"table"``.
        text: On one line; of code its lines.
        level: Of a heading or an item, from 1.
        rows: Of a table.
    """

    kind: str
    text: str = ""
    level: int = 1
    rows: tuple[tuple[str, ...], ...] = ()


def blocks_of(markdown: str, *, is_plain: bool = True) -> list[Block]:  # noqa: C901  one branch for each token
    """The blocks of a Markdown text.

    Args:
        markdown: The text.
        is_plain: Whether links, pictures and emphasis in it are such, and left out.
    """
    blocks: list[Block] = []
    rows: list[list[str]] = []
    kind, level, depth, in_table = "text", 1, 0, False
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type.endswith(("list_open", "list_close")):
            depth += token.nesting
        elif token.type in ("heading_open", "list_item_open"):
            kind, level = ("heading", int(token.tag[1])) if token.tag[0] == "h" else ("item", depth)
        elif token.type in ("table_open", "table_close"):
            in_table = token.nesting > 0
            if rows and not in_table:
                blocks.append(Block("table", rows=tuple(map(tuple, rows))))
                rows = []
        elif token.type == "tr_open":
            rows.append([])
        elif token.type == "fence":
            blocks.append(Block("code", token.content.strip("\n")))
        elif token.type == "inline":
            text = " ".join((_plain(token.children or []) if is_plain else token.content).split())
            if in_table:
                rows[-1].append(text.replace("|", "/"))
            elif text:
                blocks.append(Block(kind, text, level))
                kind = "text"
    return blocks


def _plain(tokens: Sequence[Token]) -> str:
    parts = (" " if "break" in one.type else one.content for one in tokens if one.type != "image")
    return re.sub(r"[\x00-\x1f]", " ", "".join(parts))


def _html(blocks: Sequence[Block]) -> str:
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        if kind == "table":
            cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
            head = next(cells).replace("td>", "th>")
            pieces.append(f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>")
        else:
            depth = level if kind == "item" else 1  # each list at its own depth
            tag = {"heading": f"h{level}", "text": "p", "code": "pre", "item": "li"}[kind]
            around = (
                ("<ul><li>" * (depth - 1) + "<ul>", "</ul>" + "</li></ul>" * (depth - 1))
                if kind == "item"
                else ("", "")
            )
            pieces.append(f"{around[0]}<{tag}>{escape(text)}</{tag}>{around[1]}")
    return "\n".join(pieces)


def write_html(path: Path, blocks: Sequence[Block]) -> int:
    """A page with a menu."""
    page = f"<html><head><title>Page</title></head><body><nav>Menu</nav><main>{_html(blocks)}</main></body></html>"
    path.write_text(page, "utf-8")
    return 1


def write_epub(path: Path, blocks: Sequence[Block]) -> int:
    """A book with a chapter for each heading of the first two levels."""
    chapters = _parts(blocks, lambda block: block.kind == "heading" and block.level <= 2)
    names = [f"c{number}" for number in range(len(chapters))]
    items = "".join(f'<item id="{name}" href="{name}.xhtml"/>' for name in names)
    spine = "".join(f'<itemref idref="{name}"/>' for name in names)
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("META-INF/container.xml", '<c><rootfiles><rootfile full-path="o.opf"/></rootfiles></c>')
        book.writestr("o.opf", f"<p><manifest>{items}</manifest><spine>{spine}</spine></p>")
        for name, chapter in zip(names, chapters, strict=True):
            book.writestr(f"{name}.xhtml", f"<html><head><title/></head><body>{_html(chapter)}</body></html>")
    return len(chapters)


def _parts(blocks: Sequence[Block], begins: Callable[[Block], bool]) -> list[list[Block]]:
    parts: list[list[Block]] = []
    for block in blocks:
        if not parts or begins(block):
            parts.append([])
        parts[-1].append(block)
    return parts


def write_eml(path: Path, blocks: Sequence[Block]) -> int:
    """A mail with HTML."""
    message = EmailMessage()
    message["Subject"], message["From"] = "Page", "iris@example.org"
    message.set_content("See the HTML.")
    message.add_alternative(_html(blocks), subtype="html")
    path.write_bytes(bytes(message))
    return 1


def write_docx(path: Path, blocks: Sequence[Block]) -> int:
    """A Word document with a page for each heading of the first two levels."""
    import docx

    document, pages = docx.Document(), 1
    for at, (kind, text, level, rows) in enumerate(blocks):
        if at and kind == "heading" and level <= 2:
            document.add_page_break()
            pages += 1
        if kind == "table":
            table = document.add_table(rows=0, cols=max(map(len, rows)))
            for row in rows:
                for cell, shown in zip(table.add_row().cells, row, strict=False):
                    cell.text = shown
        elif kind == "heading":
            document.add_heading(text, level)
        else:
            deeper = f" {level}" if 1 < level < 4 else ""
            document.add_paragraph(text, style=f"List Bullet{deeper}" if kind == "item" else None)
    document.save(str(path))
    return pages


_ODF = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{kind}:1.0"'
    for name, kind in {"office": "office", "t": "text", "table": "table"}.items()
)


def write_odt(path: Path, blocks: Sequence[Block]) -> int:
    """A text of OpenDocument."""
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        shown = escape(text).replace("\n", "<t:line-break/>")
        if kind == "heading":
            pieces.append(f'<t:h t:outline-level="{level}">{shown}</t:h>')
        elif kind == "table":
            cells = (
                "".join(f"<table:table-cell><t:p>{escape(cell)}</t:p></table:table-cell>" for cell in row)
                for row in rows
            )
            lines = "".join(f"<table:table-row>{row}</table:table-row>" for row in cells)
            pieces.append(f"<table:table>{lines}</table:table>")
        else:
            depth = level if kind == "item" else 0
            begin, end = "<t:list><t:list-item>" * depth, "</t:list-item></t:list>" * depth
            pieces.append(f"{begin}<t:p>{shown}</t:p>{end}")
    with zipfile.ZipFile(path, "w") as archive:
        body = f"<office:body><office:text>{''.join(pieces)}</office:text></office:body>"
        archive.writestr("content.xml", f"<office:document-content {_ODF}>{body}</office:document-content>")
    return 1


def write_rtf(path: Path, blocks: Sequence[Block]) -> int:
    """RTF, as Word writes it in short."""

    def text_of(text: str) -> str:
        text = re.sub(r"([\\{}])", r"\\\1", text).replace("\n", r"\line ")
        units = text.encode("utf-16-le")
        codes = [int.from_bytes(units[at : at + 2], "little", signed=True) for at in range(0, len(units), 2)]
        return "".join(chr(code) if 0 <= code < 128 else rf"\u{code}?" for code in codes)

    begins = {
        "heading": r"\pard\outlinelevel{} ",
        "item": r"\pard{{\listtext\'b7\tab}}",
        "text": r"\pard ",
        "code": r"\pard ",
    }
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        lines = ("".join(text_of(cell) + r"\cell " for cell in row) for row in rows)
        pieces += [rf"\trowd\intbl {line}\row" for line in lines] or [
            begins[kind].format(level - 1) + text_of(text) + r"\par"
        ]
    path.write_text(f"{{\\rtf1\\ansi\\uc1 {chr(10).join(pieces)}}}", "ascii")
    return 1


def write_pptx(path: Path, blocks: Sequence[Block]) -> int:
    """A slide for each heading, with what stands below it."""
    import pptx
    from pptx.util import Inches

    show, slides = pptx.Presentation(), _parts(blocks, lambda block: block.kind == "heading")
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
    """A sheet for each table."""
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.active)
    for number, block in enumerate(block for block in blocks if block.kind == "table"):
        sheet = book.create_sheet(f"Table {number}")
        for row in block.rows:
            sheet.append([f"\u200b{cell}" if cell[:1] == "=" else cell for cell in row])
    book.save(path)
    return len(book.worksheets)


def write_csv(path: Path, blocks: Sequence[Block]) -> int:
    """The tables, without what parts them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(row for block in blocks for row in block.rows)
    return 1


def write_ipynb(path: Path, blocks: Sequence[Block]) -> int:
    """A notebook of one cell for each heading."""
    cells = _parts(blocks, lambda block: block.kind == "heading")
    lines = {"text": "{1}\n", "heading": "{0} {1}\n", "code": "```\n{1}\n```\n"}

    def markdown(block: Block) -> str:
        if block.kind == "item":
            return f"{'  ' * (block.level - 1)}- {block.text}"
        table = [f"| {' | '.join(row)} |" for row in block.rows]
        table[1:1] = [f"|{' --- |' * len(block.rows[0])}"] if table else []
        return "\n".join([*table, ""]) if table else lines[block.kind].format("#" * block.level, block.text)

    sources = ("\n".join(("\n" * (block.kind != "item")) + markdown(block) for block in cell) for cell in cells)
    book = [{"cell_type": "markdown", "metadata": {}, "source": source} for source in sources]
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": book}), "utf-8")
    return len(cells)


def write_rst(path: Path, blocks: Sequence[Block]) -> int:
    """ReStructuredText with grids."""
    pieces: list[str] = []
    for (kind, level), group in groupby(blocks, key=lambda block: (block.kind, block.level)):
        some = list(group)
        if kind == "item":
            pieces.append("\n".join(f"{'  ' * (level - 1)}* {block.text}" for block in some))
        for _, text, _, rows in some if kind != "item" else ():
            code = "\n".join(f"   {line}" for line in text.split("\n"))
            shown = {
                "heading": f"{text}\n{'=-~^+*'[level - 1] * max(len(text), 4)}",
                "code": f"::\n\n{code}",
                "table": "",
            }
            pieces.append(_grid(rows) if rows else shown.get(kind, text))
    path.write_text("\n\n".join(pieces) + "\n", "utf-8")
    return 1


def _grid(rows: Sequence[Sequence[str]]) -> str:
    count = max(map(len, rows))
    table = [[*row, *[""] * count][:count] for row in rows]
    widths = [max(len(row[column]) for row in table) + 2 for column in range(count)]
    rule = f"+{'+'.join('-' * width for width in widths)}+"
    lines = ["|".join(f" {cell} ".ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "\n".join([rule, *(f"|{line}|\n{rule}" for line in lines)])


def write_org(path: Path, blocks: Sequence[Block]) -> int:
    """Org."""
    pieces: list[str] = []
    for kind, text, level, rows in blocks:
        table = [f"| {' | '.join(row)} |" for row in rows]
        table[1:1] = [f"|{'+'.join('---' for _ in rows[0])}|"] if rows else []
        shown = {
            "heading": f"{'*' * level} {text}",
            "item": f"{'  ' * (level - 1)}- {text}",
            "text": f"\n{text}\n",
            "code": f"\n#+begin_example\n{text}\n#+end_example\n",
        }
        pieces.append("\n".join(["", *table, ""]) if rows else shown[kind])
    path.write_text("\n".join(pieces) + "\n", "utf-8")
    return 1


def write_pdf(path: Path, blocks: Sequence[Block]) -> int:
    """A PDF."""
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, Preformatted, SimpleDocTemplate, Table

    styles = getSampleStyleSheet()
    story: list[object] = []
    for kind, text, level, rows in blocks:
        if kind == "table":
            story.append(Table([[Paragraph(escape(cell), styles["BodyText"]) for cell in row] for row in rows]))
        elif kind == "code":
            story.append(Preformatted(text, styles["Code"], maxLineLength=90))
        else:
            style = styles[f"Heading{level}" if kind == "heading" else "BodyText"]
            story.append(Paragraph(escape(text), style, bulletText="•" if kind == "item" else None))
    document = SimpleDocTemplate(str(path))
    document.build(story)
    return int(document.page)


WRITERS: dict[str, Callable[[Path, Sequence[Block]], int]] = {
    f".{name.removeprefix('write_')}": function for name, function in globals().items() if name.startswith("write_")
}
KEPT = {".xlsx": {"table"}, ".csv": {"table"}, ".pptx": {"heading", "item", "text", "table"}}  # others hold all
