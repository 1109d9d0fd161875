"""Files of many formats with the same text: headings, paragraphs, lists and tables of a Markdown page.

Each is written by a program that others use where there is one (python-docx, python-pptx, openpyxl, reportlab), so the
page is the reference for what a converter keeps.
"""

from __future__ import annotations

import csv
import json
import re
import zipfile
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from markdown_it.token import Token


class Block(NamedTuple):
    """A heading, a text, an item of a list, a row of a table, or code.

    Attributes:
        kind: ``"heading"``, ``"text"``, ``"item"``, ``"row"`` or ``"code"``.
        text: On one line; of code its lines; of a row its cells, with bars between them.
        level: Of a heading or an item, from 1.
    """

    kind: str
    text: str
    level: int = 1

    @property
    def cells(self) -> list[str]:
        """The cells of a row."""
        return self.text.split(" | ")


def blocks_of(markdown: str, *, is_plain: bool = True) -> list[Block]:
    """The blocks of a Markdown text.

    Args:
        markdown: The text.
        is_plain: Whether links, pictures and emphasis in it are such, and left out.
    """
    blocks: list[Block] = []
    row: list[str] | None = None
    kind, level, depth = "text", 1, 0
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type.endswith(("list_open", "list_close")):
            depth += token.nesting
        elif token.type in ("heading_open", "list_item_open"):
            kind, level = ("heading", int(token.tag[1])) if token.tag[0] == "h" else ("item", depth)
        elif token.type == "tr_open":
            row = []
        elif token.type == "tr_close" and row is not None:
            blocks.append(Block("row", " | ".join(row)))
            row = None
        elif token.type == "fence":
            blocks.append(Block("code", token.content.strip("\n")))
        elif token.type == "inline":
            text = " ".join((_plain(token) if is_plain else token.content).split())
            if row is not None:
                row.append(text.replace("|", "/"))
            elif text:
                blocks.append(Block(kind, text, level))
                kind = "text"
    return blocks


def _plain(token: Token) -> str:
    breaks = ("softbreak", "hardbreak")
    parts = (
        " " if child.type in breaks else "" if child.type == "image" else child.content
        for child in token.children or []
    )
    return re.sub(r"[\x00-\x1f]", " ", "".join(parts))


def _html(blocks: Sequence[Block]) -> str:
    pieces: list[str] = []
    for at, block in enumerate(blocks):
        text, before = escape(block.text), blocks[at - 1].kind if at else ""
        last = at + 1 == len(blocks) or blocks[at + 1].kind != block.kind
        if block.kind == "heading":
            pieces.append(f"<h{block.level}>{text}</h{block.level}>")
        elif block.kind == "item":  # each list at its own depth
            pieces.append(f"{'<ul><li>' * block.level}{text}{'</li></ul>' * block.level}")
        elif block.kind == "row":
            tag = "td" if before == "row" else "th"
            cells = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in block.cells)
            pieces.append(f"{'' if before == 'row' else '<table>'}<tr>{cells}</tr>{'</table>' if last else ''}")
        else:
            pieces.append(f"<p>{text}</p>" if block.kind == "text" else f"<pre>{text}</pre>")
    return "\n".join(pieces)


def write_html(path: Path, blocks: Sequence[Block]) -> None:
    """A page with a menu and a footer."""
    page = f"<html><head><title>Page</title></head><body><nav>Menu</nav><main>{_html(blocks)}</main></body></html>"
    path.write_text(page, "utf-8")


def write_epub(path: Path, blocks: Sequence[Block]) -> None:
    """A book of one chapter."""
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("META-INF/container.xml", '<c><rootfiles><rootfile full-path="o.opf"/></rootfiles></c>')
        book.writestr(
            "o.opf", '<p><manifest><item id="c" href="c.xhtml"/></manifest><spine><itemref idref="c"/></spine></p>'
        )
        book.writestr("c.xhtml", f"<html><head><title/></head><body>{_html(blocks)}</body></html>")


def write_eml(path: Path, blocks: Sequence[Block]) -> None:
    """A mail with HTML."""
    message = EmailMessage()
    message["Subject"], message["From"] = "Page", "iris@example.org"
    message.set_content("See the HTML.")
    message.add_alternative(_html(blocks), subtype="html")
    path.write_bytes(bytes(message))


def write_docx(path: Path, blocks: Sequence[Block]) -> None:
    """A Word document."""
    import docx

    document, table = docx.Document(), None
    for block in blocks:
        if block.kind == "row":
            if table is None or len(table.columns) != len(block.cells):
                table = document.add_table(rows=0, cols=len(block.cells))
            for cell, text in zip(table.add_row().cells, block.cells, strict=True):
                cell.text = text
            continue
        if table is not None:
            document.add_paragraph()
            table = None
        if block.kind == "heading":
            document.add_heading(block.text, block.level)
        elif block.kind == "item":
            document.add_paragraph(block.text, style=f"List Bullet{f' {block.level}' if 1 < block.level < 4 else ''}")
        else:
            document.add_paragraph(block.text)
    document.save(str(path))


_ODF = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{kind}:1.0"'
    for name, kind in {"office": "office", "t": "text", "table": "table"}.items()
)


def write_odt(path: Path, blocks: Sequence[Block]) -> None:
    """A text of OpenDocument."""
    pieces: list[str] = []
    for at, block in enumerate(blocks):
        text = escape(block.text).replace("\n", "<t:line-break/>")
        if block.kind == "heading":
            pieces.append(f'<t:h t:outline-level="{block.level}">{text}</t:h>')
        elif block.kind == "item":
            begin, end = "<t:list><t:list-item>" * block.level, "</t:list-item></t:list>" * block.level
            pieces.append(f"{begin}<t:p>{text}</t:p>{end}")
        elif block.kind == "row":
            cells = "".join(f"<table:table-cell><t:p>{escape(cell)}</t:p></table:table-cell>" for cell in block.cells)
            begin = "" if at and blocks[at - 1].kind == "row" else "<table:table>"
            end = "" if at + 1 < len(blocks) and blocks[at + 1].kind == "row" else "</table:table>"
            pieces.append(f"{begin}<table:table-row>{cells}</table:table-row>{end}")
        else:
            pieces.append(f"<t:p>{text}</t:p>")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        body = f"<office:body><office:text>{''.join(pieces)}</office:text></office:body>"
        archive.writestr("content.xml", f"<office:document-content {_ODF}>{body}</office:document-content>")


def write_rtf(path: Path, blocks: Sequence[Block]) -> None:
    """RTF, as Word writes it in short."""

    def text_of(text: str) -> str:
        text = re.sub(r"([\\{}])", r"\\\1", text).replace("\n", r"\line ")
        units = text.encode("utf-16-le")
        codes = [int.from_bytes(units[at : at + 2], "little", signed=True) for at in range(0, len(units), 2)]
        return "".join(chr(code) if 0 <= code < 128 else rf"\u{code}?" for code in codes)

    pieces: list[str] = []
    for block in blocks:
        if block.kind == "heading":
            pieces.append(rf"\pard\outlinelevel{block.level - 1} {text_of(block.text)}\par")
        elif block.kind == "item":
            pieces.append(rf"\pard{{\listtext\'b7\tab}}{text_of(block.text)}\par")
        elif block.kind == "row":
            cells = "".join(text_of(cell) + r"\cell " for cell in block.cells)
            pieces.append(rf"\trowd\intbl {cells}\row")
        else:
            pieces.append(rf"\pard {text_of(block.text)}\par")
    path.write_text(f"{{\\rtf1\\ansi\\uc1 {chr(10).join(pieces)}}}", "ascii")


def write_pptx(path: Path, blocks: Sequence[Block]) -> None:
    """A slide for each heading, with what stands below it."""
    import pptx
    from pptx.util import Inches

    show = pptx.Presentation()
    slide, frame = None, None
    for at, block in enumerate(blocks):
        if slide is None or block.kind == "heading":
            slide = show.slides.add_slide(show.slide_layouts[1])
            frame = slide.placeholders[1].text_frame
            slide.shapes.title.text = block.text
        elif block.kind == "row":
            if blocks[at - 1].kind != "row":
                rows = [block.cells]
                for other in blocks[at + 1 :]:
                    if other.kind != "row" or len(other.cells) != len(block.cells):
                        break
                    rows.append(other.cells)
                table = slide.shapes.add_table(len(rows), len(block.cells), 0, 0, Inches(6), Inches(2)).table
                for number, cells in enumerate(rows):
                    for column, text in enumerate(cells):
                        table.cell(number, column).text = text
        else:
            paragraph = frame.paragraphs[0] if not frame.text else frame.add_paragraph()
            paragraph.text, paragraph.level = block.text.replace("\n", " "), min(block.level, 5) - 1
    show.save(str(path))


def write_xlsx(path: Path, blocks: Sequence[Block]) -> None:
    """The tables, one below the other."""
    import openpyxl

    book = openpyxl.Workbook()
    for at, block in enumerate(blocks):
        if block.kind == "row":
            if at and blocks[at - 1].kind != "row":
                book.active.append([])
            book.active.append([f"\u200b{cell}" if cell[:1] == "=" else cell for cell in block.cells])
    book.save(path)


def write_csv(path: Path, blocks: Sequence[Block]) -> None:
    """The tables, without what parts them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(block.cells for block in blocks if block.kind == "row")


def _markdown(blocks: Sequence[Block]) -> str:
    pieces: list[str] = []
    for at, block in enumerate(blocks):
        if block.kind == "row":
            rule = "" if at and blocks[at - 1].kind == "row" else f"\n|{' --- |' * len(block.cells)}"
            pieces.append(f"{'' if not rule else chr(10)}| {block.text} |{rule}")
        elif block.kind == "item":
            pieces.append(f"{'  ' * (block.level - 1)}- {block.text}")
        elif block.kind == "code":
            pieces.append(f"\n```\n{block.text}\n```\n")
        else:
            pieces.append(f"\n{'#' * block.level + ' ' if block.kind == 'heading' else ''}{block.text}\n")
    return "\n".join(pieces)


def write_ipynb(path: Path, blocks: Sequence[Block]) -> None:
    """A notebook of one cell for each heading."""
    cells: list[list[Block]] = [[]]
    for block in blocks:
        if block.kind == "heading" and cells[-1]:
            cells.append([])
        cells[-1].append(block)
    book = [{"cell_type": "markdown", "metadata": {}, "source": _markdown(cell)} for cell in cells]
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": book}), "utf-8")


def write_rst(path: Path, blocks: Sequence[Block]) -> None:
    """ReStructuredText with grids."""
    pieces: list[str] = []
    for at, block in enumerate(blocks):
        if block.kind == "heading":
            pieces.append(f"\n{block.text}\n{'=-~^+*'[block.level - 1] * max(len(block.text), 4)}\n")
        elif block.kind == "item":
            before = "" if at and blocks[at - 1].kind == "item" and blocks[at - 1].level == block.level else "\n"
            pieces.append(f"{before}{'  ' * (block.level - 1)}* {block.text}")
        elif block.kind == "row":
            first = at - next(n for n in range(at + 1) if n == at or blocks[at - n - 1].kind != "row")
            rows = [first]
            while rows[-1] + 1 < len(blocks) and blocks[rows[-1] + 1].kind == "row":
                rows.append(rows[-1] + 1)
            count = max(len(blocks[row].cells) for row in rows)
            table = [[*blocks[row].cells, *[""] * count][:count] for row in rows]
            widths = [max(len(row[column]) for row in table) + 2 for column in range(count)]
            rule = f"+{'+'.join('-' * width for width in widths)}+"
            line = "|".join(f" {cell} ".ljust(width) for cell, width in zip(table[at - first], widths, strict=True))
            pieces.append(f"{chr(10) + rule + chr(10) if at == first else ''}|{line}|\n{rule}")
        else:
            code = "\n".join(f"   {line}" for line in block.text.split("\n"))
            pieces.append(f"\n{block.text}\n" if block.kind == "text" else f"\n::\n\n{code}\n")
    path.write_text("\n".join(pieces) + "\n", "utf-8")


def write_org(path: Path, blocks: Sequence[Block]) -> None:
    """Org."""
    pieces: list[str] = []
    for at, block in enumerate(blocks):
        if block.kind == "heading":
            pieces.append(f"{'*' * block.level} {block.text}")
        elif block.kind == "item":
            pieces.append(f"{'  ' * (block.level - 1)}- {block.text}")
        elif block.kind == "row":
            rule = "" if at and blocks[at - 1].kind == "row" else f"\n|{'+'.join('---' for _ in block.cells)}|"
            pieces.append(f"{chr(10) if rule else ''}| {block.text} |{rule}")
        else:
            pieces.append(
                f"\n{block.text}\n" if block.kind == "text" else f"\n#+begin_example\n{block.text}\n#+end_example\n"
            )
    path.write_text("\n".join(pieces) + "\n", "utf-8")


_STYLES = {1: "Heading1", 2: "Heading2", 3: "Heading3", 4: "Heading4", 5: "Heading5", 6: "Heading6"}


def write_pdf(path: Path, blocks: Sequence[Block]) -> None:
    """A PDF."""
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, Preformatted, SimpleDocTemplate, Table

    styles = getSampleStyleSheet()
    story: list[object] = []
    for at, block in enumerate(blocks):
        if block.kind == "row":
            if not at or blocks[at - 1].kind != "row":
                rows = [block.cells]
                for other in blocks[at + 1 :]:
                    if other.kind != "row" or len(other.cells) != len(block.cells):
                        break
                    rows.append(other.cells)
                story.append(Table([[Paragraph(escape(cell), styles["BodyText"]) for cell in row] for row in rows]))
        elif block.kind == "code":
            story.append(Preformatted(block.text, styles["Code"], maxLineLength=90))
        else:
            style = _STYLES[block.level] if block.kind == "heading" else "BodyText"
            bullet = "•" if block.kind == "item" else None
            story.append(Paragraph(escape(block.text), styles[style], bulletText=bullet))
    SimpleDocTemplate(str(path)).build(story)


WRITERS: dict[str, Callable[[Path, Sequence[Block]], None]] = {
    ".docx": write_docx,
    ".odt": write_odt,
    ".rtf": write_rtf,
    ".html": write_html,
    ".epub": write_epub,
    ".eml": write_eml,
    ".pptx": write_pptx,
    ".xlsx": write_xlsx,
    ".csv": write_csv,
    ".ipynb": write_ipynb,
    ".rst": write_rst,
    ".org": write_org,
    ".pdf": write_pdf,
}
KEPT = {  # what a format can hold of a page; others hold all
    ".xlsx": {"row"},
    ".csv": {"row"},
    ".pptx": {"heading", "item", "text", "row"},
}
