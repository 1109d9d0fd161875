"""A document of each format with a heading, list and table, made by real programs if possible."""

import datetime as dt
import json
import zipfile
from email.message import EmailMessage
from pathlib import Path

ROWS = [("Berth", "Metres"), ("North", "120"), ("South", "80")]
HTML = """<html><head><title>Harbour</title><meta name="author" content="Iris Vale"><script>evil()</script></head>
<body><nav>Menu</nav><h1>Tides</h1><p>The tide at Aldmoor is <b>four</b> metres.<ul><li>spring tide<li>neap tide</ul>
<table><tr><th>Berth<th>Metres<tr><td>North<td>120<tr><td>South<td>80</table>
<pre><code class="language-python">print(1)</code></pre><footer>All rights</footer></body></html>"""  # noqa: E501


def pdf(path: Path, pages: int = 3) -> None:
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import (
        ListFlowable,
        PageBreak,
        Paragraph,
        SimpleDocTemplate,
        Spacer,
        Table,
    )

    styles = getSampleStyleSheet()

    def edges(canvas, document):
        canvas.drawString(60, 820, "Port of Aldmoor, annual report")
        canvas.drawString(60, 20, f"Page {document.page} of {pages}")

    story = [Paragraph("Harbour report", styles["Heading1"])]
    for page in range(1, pages + 1):
        if page < pages:
            story.append(Paragraph(f"Tides of year {page}", styles["Heading2"]))
        story += [
            Paragraph(
                f"The tide at Aldmoor was {page + 3} metres in that year. " * 3, styles["BodyText"]
            ),
            ListFlowable(
                [
                    Paragraph("spring tide", styles["BodyText"]),
                    Paragraph("neap tide", styles["BodyText"]),
                ]
            ),
            Spacer(1, 20),
            Table(
                [
                    ["Berth", "Metres", "Ships"],
                    ["North", f"12{page}", "30"],
                    ["South", "80", "1,204"],
                    ["Old", "9", "-"],
                ],
                colWidths=[200, 100, 100],
                style=[("ALIGN", (1, 0), (-1, -1), "RIGHT")],
            ),
            PageBreak(),
        ]
    document = SimpleDocTemplate(
        str(path), pagesize=A4, title="Report of the harbour", author="Iris Vale", invariant=True
    )
    document.build(story, onFirstPage=edges, onLaterPages=edges)


def docx(path: Path) -> None:
    import docx

    document = docx.Document()
    document.core_properties.title, document.core_properties.author = "Harbour report", "Iris Vale"
    document.sections[0].header.paragraphs[0].text = "Port of Aldmoor"
    document.add_heading("Tides", 1)
    document.add_paragraph("The tide at Aldmoor is four metres.")
    document.add_paragraph("spring tide", style="List Bullet")
    document.add_paragraph("neap tide", style="List Bullet")
    document.add_paragraph("first step", style="List Number")
    document.add_heading("Berths", 2)
    table = document.add_table(rows=3, cols=2)
    for number, row in enumerate(ROWS):
        for column, text in enumerate(row):
            table.cell(number, column).text = text
    document.add_page_break()
    document.add_paragraph("The crane was painted.")
    document.save(str(path))


def pptx(path: Path) -> None:
    import pptx
    from pptx.util import Inches

    show = pptx.Presentation()
    show.core_properties.title = "Plan of the harbour"
    slide = show.slides.add_slide(show.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "Tides", "spring tide\nneap tide"
    slide.notes_slide.notes_text_frame.text = "The tide at Aldmoor is four metres."
    slide = show.slides.add_slide(show.slide_layouts[5])
    slide.shapes.title.text = "Berths"
    table = slide.shapes.add_table(3, 2, Inches(1), Inches(2), Inches(4), Inches(1)).table
    for number, row in enumerate(ROWS):
        for column, text in enumerate(row):
            table.cell(number, column).text = text
    show.save(str(path))


def xlsx(path: Path) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    book.properties.title = "Fees of the harbour"
    book.active.title = "Berths"
    for row in [
        ("Berth", "Metres", "Built"),
        ("North", 120, dt.date(1988, 3, 4)),
        ("South", 80, None),
    ]:
        book.active.append(row)
    fees = book.create_sheet("Fees")
    fees.append(("Kind", "Euro"))
    fees.append(("Day", 12.5))
    book.save(str(path))


def notebook(path: Path) -> None:
    cells = [
        {
            "cell_type": "markdown",
            "metadata": {},
            "source": ["# Tides\n", "\n", "The tide at Aldmoor is four metres."],
        },
        {
            "cell_type": "code",
            "metadata": {},
            "source": "print(1)",
            "outputs": [{"text": "SECRET"}],
        },
        {
            "cell_type": "markdown",
            "metadata": {},
            "source": "## Berths\n\n| Berth | Metres |\n| --- | --- |\n| North | 120 |",
        },
        {"cell_type": "markdown", "metadata": {}, "source": "- spring tide\n- neap tide"},
    ]
    about = {"language_info": {"name": "python"}, "title": "Harbour"}
    path.write_text(
        json.dumps({"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}), "utf-8"
    )


def mail(path: Path) -> None:
    message = EmailMessage()
    message["From"], message["To"] = "Iris Vale <iris@example.org>", "Tom Reed <tom@example.org>"
    message["Subject"], message["Date"] = (
        "Dredging of the harbour",
        "Mon, 02 Mar 2026 10:00:00 +0000",
    )
    message.set_content("The tide at Aldmoor is four metres.\n\n- spring tide\n- neap tide\n")
    message.add_alternative(HTML, subtype="html")
    message.add_attachment(b"%PDF-1.4", maintype="application", subtype="pdf", filename="map.pdf")
    path.write_bytes(bytes(message))


def odt(path: Path) -> None:
    names = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{kind}:1.0"'
        for name, kind in {
            "office": "office",
            "text": "text",
            "table": "table",
            "manifest": "manifest",
        }.items()
    )
    cells = "".join(
        "<table:table-row>"
        + "".join(f"<table:table-cell><text:p>{cell}</text:p></table:table-cell>" for cell in row)
        + "</table:table-row>"
        for row in ROWS
    )
    items = "".join(
        f"<text:list-item><text:p>{text}</text:p></text:list-item>"
        for text in ("spring tide", "neap tide")
    )
    body = (
        '<text:h text:outline-level="1">Tides</text:h><text:p>The tide at Aldmoor is '
        "four metres.</text:p>"
        f"<text:list>{items}</text:list><table:table>{cells}</table:table>"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        archive.writestr(
            "content.xml",
            "<office:document-content "
            f"{names}><office:body><office:text>{body}</office:text></office:body>"
            "</office:document-content>",
        )
        archive.writestr(
            "meta.xml",
            f"<office:document-meta {names} "
            'xmlns:dc="http://purl.org/dc/elements/1.1/"><office:meta>'
            "<dc:title>Harbour</dc:title><dc:creator>Iris "
            "Vale</dc:creator></office:meta></office:document-meta>",
        )


def epub(path: Path) -> None:
    dc = 'xmlns:dc="http://purl.org/dc/elements/1.1/"'
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr(
            "META-INF/container.xml",
            '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
        )
        archive.writestr(
            "OEBPS/book.opf",
            '<package xmlns="http://www.idpf.org/2007/opf"><metadata '
            f"{dc}><dc:title>Harbour</dc:title>"
            "<dc:creator>Iris Vale</dc:creator></metadata><manifest>"
            '<item id="b" href="two.xhtml"/><item id="a" href="one.xhtml"/></manifest>'
            '<spine><itemref idref="a"/><itemref idref="b"/></spine></package>',
        )
        archive.writestr("OEBPS/one.xhtml", HTML)
        archive.writestr(
            "OEBPS/two.xhtml",
            "<html><body><h1>Cranes</h1><p>The crane was painted.</p></body></html>",
        )


RST = """Harbour
=======

Tides
-----

The tide at Aldmoor is four metres.

* spring tide
* neap tide

.. code-block:: python

   print(1)

=====  ======
Berth  Metres
=====  ======
North  120
South  80
=====  ======
"""
ORG = """#+TITLE: Harbour
#+AUTHOR: Iris Vale
* Tides
The tide at Aldmoor is four metres.
- spring tide
- neap tide
** TODO Berths :port:
| Berth | Metres |
|-------+--------|
| North | 120    |
#+BEGIN_SRC python
print(1)
#+END_SRC
"""
TEX = r"""\documentclass{article}
\title{Harbour}
\author{Iris Vale}
\begin{document}
\maketitle
\section{Tides}
The tide at \textbf{Aldmoor} is four metres. % a remark
\begin{itemize}
\item spring tide
\item neap tide
\end{itemize}
\subsection{Berths}
\begin{tabular}{ll}
Berth & Metres \\ \hline
North & 120 \\
\end{tabular}
\begin{verbatim}
print(1)
\end{verbatim}
\end{document}
"""
RTF = (
    r"{\rtf1\ansi{\info{\title Harbour}{\author Iris Vale}}\pard The tide at Aldmoor is "
    r"four metres.\par"
    r"\trowd\cellx1000\cellx2000\intbl Berth\cell Metres\cell\row"
    r"\trowd\cellx1000\cellx2000\intbl North\cell 120\cell\row\pard spring tide\par}"
)

MAKERS = {
    "report.pdf": pdf,
    "report.docx": docx,
    "plan.pptx": pptx,
    "fees.xlsx": xlsx,
    "note.odt": odt,
    "page.html": lambda path: path.write_text(HTML, "utf-8"),
    "page.htm": lambda path: path.write_text(HTML, "utf-8"),
    "book.epub": epub,
    "mail.eml": mail,
    "work.ipynb": notebook,
    "guide.rst": lambda path: path.write_text(RST, "utf-8"),
    "log.org": lambda path: path.write_text(ORG, "utf-8"),
    "ships.csv": lambda path: path.write_text(
        'Berth,Metres\nNorth,120\n"South, old",80\n', "utf-8"
    ),
    "paper.tex": lambda path: path.write_text(TEX, "utf-8"),
    "letter.rtf": lambda path: path.write_text(RTF, "utf-8"),
}


def make(name: str, folder: Path) -> Path:
    path = folder / name
    MAKERS[name](path)
    return path
