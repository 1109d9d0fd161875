"""Workbooks with values as shown, and slides with numbers, spans and superscript."""

import datetime as dt
import zipfile
from io import BytesIO

import openpyxl
import pptx
import pytest
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.chart import BarChart, Reference
from openpyxl.comments import Comment
from openpyxl.drawing.image import Image as SheetImage
from openpyxl.utils.datetime import MAC_EPOCH
from PIL import Image
from pptx.oxml.ns import qn
from pptx.util import Inches

from llama_index_contextual.app.folder.convert import DocumentReader
from llama_index_contextual.app.folder.converters.csv import read_csv
from llama_index_contextual.app.folder.converters.slides import read_pptx
from llama_index_contextual.app.folder.converters.workbook import read_xlsx
from llama_index_contextual.app.folder.formats import ConversionError
from llama_index_contextual.app.folder.tables import display_value
from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser

UP = InlineFont(vertAlign="superscript")
VALUES = [
    (dt.time(9, 5), "hh:mm", "09:05"),
    (dt.time(9, 5, 7), "hh:mm:ss", "09:05:07"),
    (dt.datetime.fromisoformat("1899-12-31T09:05"), "h:mm", "09:05"),
    (dt.timedelta(hours=30, minutes=15), "[h]:mm", "30:15"),
    (dt.timedelta(minutes=-90), "[h]:mm", "-1:30"),
    (dt.datetime.fromisoformat("2026-03-01"), "dd.mm.yyyy", "2026-03-01"),
    (dt.datetime.fromisoformat("2026-03-01T09:05"), "d/m/yy h:mm", "2026-03-01 09:05"),
    (0.2, "0%", "20%"),
    (0.125, "0.0%", "12.5%"),
    (-0.25, "0%", "-25%"),
    (1234, "00000", "01234"),
    (5550123, "000-0000", "555-0123"),
    (12345678, "000-00-0000", "012-34-5678"),
    (1234567, "#,##0 (0)", "1234567"),
    (1, "#-#", "1"),
    (-1, "# ##0", "-1"),
    (15551234567, "(000) 000-0000", "(1555) 123-4567"),
    (123456789, r"00\ 00\ 00\ 00\ 00", "01 23 45 67 89"),
    (-5, '[<100]"low";0', "-5"),
    (5, ";;;", "5"),
    ("007", "@", "007"),
    (1234.5, "#,##0.00", "1,234.50"),
    (1234.5, '#,##0.00 "EUR"', "1,234.50 EUR"),
    (12.5, "[$€-407] 0.00", "€ 12.50"),
    (-5, "0.00;(0.00)", "(5.00)"),
    (0, '0;-0;"none"', "none"),
    (1234567, '#,##0," k"', "1,235 k"),
    (-1234567, '$0.0,,"M"', "-$1.2M"),
    (0.125, "0.00", "0.13"),
    (2.0, "General", "2"),
    (0.1 + 0.2, "General", "0.3"),
    (12345678901234567, "0", "12345678901234567"),
    (0.5, "# ?/?", "0.5"),
    (12345, "0.00E+00", "12345"),
    (5, 'General" kg"', "5"),
    (dt.timedelta(minutes=90, seconds=5), "[mm]:ss", "1:30:05"),
    ("a_x000D_b", "General", "a b"),
    (True, "General", "TRUE"),
    (None, "0.00", ""),
]


@pytest.mark.parametrize(("value", "form", "text"), VALUES)
def test_a_value_is_shown_as_in_its_program(value, form, text):
    assert display_value(value, form) == text


@pytest.fixture
def workbook(tmp_path):
    """Return a function that saves rows as a workbook and returns the text of its sheet."""

    def make(*rows):
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(row)
        book.save(tmp_path / "book.xlsx")
        return read_xlsx(tmp_path / "book.xlsx").parts[0].text.removeprefix("# Sheet\n\n")

    return make


SHEETS = {
    "a title": (
        [["Fees 2026"], ["Kind", "EUR", "USD"], ["Day", 5, 6]],
        "Fees 2026\n\n| Kind | EUR | USD |\n| --- | --- | --- |\n| Day | 5 | 6 |\n",
    ),
    "a title above two columns": (
        [["Fees 2026"], ["Kind", "EUR"], ["Day", 5]],
        "Fees 2026\n\n| Kind | EUR |\n| --- | --- |\n| Day | 5 |\n",
    ),
    "titles, empty rows and an empty column": (
        [
            ["Fees"],
            ["of 2026"],
            [],
            [None, "Kind", "EUR", "USD"],
            [None, "Day", 5, 6],
            [],
            [None, "Total", 5, 6],
        ],
        (
            "Fees\n\nof 2026\n\n| Kind | EUR | USD |\n| --- | --- | --- |\n| Day | 5 | 6 |\n"
            "| Total | 5 | 6 |\n"
        ),
    ),
    "two tables and a remark": (
        [["Kind", "EUR"], ["Day", 5], [], ["Name", "Age"], ["Bob", 7], [], ["Source: office"]],
        (
            "| Kind | EUR |\n| --- | --- |\n| Day | 5 |\n\n| Name | Age |\n| --- | --- |\n| "
            "Bob | 7 |\n\nSource: office\n"
        ),
    ),
    "a header with an empty name": (
        [["Kind", None], ["Day", 5]],
        "| Kind |  |\n| --- | --- |\n| Day | 5 |\n",
    ),
    "signs": ([["# a", "b|c"], ["- 5", "1."]], "| # a | b\\|c |\n| --- | --- |\n| - 5 | 1. |\n"),
    "a title that looks like Markdown": (
        [["# of units"], ["Kind", "EUR", "USD"], ["Day", 5, 6]],
        "\\# of units\n\n| Kind | EUR | USD |\n| --- | --- | --- |\n| Day | 5 | 6 |\n",
    ),
}


@pytest.mark.parametrize(("rows", "markdown"), SHEETS.values(), ids=SHEETS)
def test_a_sheet_is_its_titles_and_tables(workbook, rows, markdown):
    assert workbook(*rows) == markdown


def test_later_chunks_of_a_sheet_name_its_columns_not_its_title(tmp_path):
    book = openpyxl.Workbook()
    for row in (["Fees of the harbour, 2026"], [], ["Berth", "Length limit", "Fee"]):
        book.active.append(row)
    for number in range(400):  # more than a table has that is not cut
        book.active.append([f"North {number}", number, number * 10])
    book.save(tmp_path / "fees.xlsx")
    nodes = HeadingAwareMarkdownNodeParser(chunk_size=200).get_nodes_from_documents(
        DocumentReader().load_data(tmp_path / "fees.xlsx")
    )
    assert "Length limit" in ContextualNodePostprocessor()(nodes)[-1].metadata["context"]


def test_rows_are_kept_and_content_that_is_not_text_is_counted(tmp_path):
    book = openpyxl.Workbook()
    for row in (
        ["Fees"],
        ["Region", "Plan", "Actual"],
        ["North", 1, 2],
        [None, 5],
        [None, None, "=1+2"],
    ):
        book.active.append(row)
    for cells in ("A1:C1", "A3:A5", "B4:C4"):
        book.active.merge_cells(cells)
    book.active["A3"].comment = Comment("checked", "Ana")
    book.save(tmp_path / "book.xlsx")
    converted = read_xlsx(tmp_path / "book.xlsx")
    assert converted.text == (
        "# Sheet\n\nFees\n\n| Region | Plan | Actual |\n| --- | --- | --- |\n| North | 1 "
        "| 2 |\n|  | 5 |  |\n"
    )
    assert +converted.left_out == {"comment": 1, "uncalculated formula": 1}


def test_a_chart_and_a_picture_of_a_sheet_count_once(tmp_path):
    book, chart, picture = openpyxl.Workbook(), BarChart(), BytesIO()
    book.active.append([1, 2])
    chart.add_data(Reference(book.active, min_col=1, max_col=2, min_row=1))
    book.active.add_chart(chart, "E5")
    Image.new("RGB", (9, 9)).save(picture, "PNG")
    book.active.add_image(SheetImage(picture), "A9")
    book.save(tmp_path / "book.xlsx")
    assert +read_xlsx(tmp_path / "book.xlsx").left_out == {"chart": 1, "picture": 1}


def test_a_workbook_has_its_author_and_date_if_known(tmp_path):
    book = openpyxl.Workbook()
    book.active.append(["Region", "Fee"])
    book.properties.created = dt.datetime.fromisoformat("2020-02-03T04:05:06")
    book.save(tmp_path / "full.xlsx")
    with (
        zipfile.ZipFile(tmp_path / "full.xlsx") as full,
        zipfile.ZipFile(tmp_path / "bare.xlsx", "w") as bare,
    ):
        for name in set(full.namelist()) - {"docProps/core.xml"}:
            bare.writestr(name, full.read(name))
    assert read_xlsx(tmp_path / "full.xlsx").metadata["created"] == "2020-02-03T04:05:06Z"
    assert read_xlsx(tmp_path / "bare.xlsx").metadata == {}


def test_a_sheet_of_too_many_cells_is_refused(workbook, monkeypatch):
    monkeypatch.setattr("llama_index_contextual.app.folder.markdown.MAX_CELLS", 5)
    with pytest.raises(ConversionError, match=r"more than 5 cells\. Split it"):
        workbook(["a", "b"], ["c", "d"], ["e", "f"])


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("a;b\n1,5;2\n", "| 1,5 | 2 |"),
        ("a\tb\n1\t2\n", "| 1 | 2 |"),
        ("a|b\n1|2\n", "| 1 | 2 |"),
        ('a,b\n"x\ny",2\n', "| x y | 2 |"),
        ("a;b\n1,5;2,5\n1,7;2,7\n", "| 1,5 | 2,5 |\n| 1,7 | 2,7 |"),
        ("a,b\r\r\n\n1,2\r\r\n", "| 1 | 2 |"),
        ("a;b\n1\n\n\n2;3\n", "| 1 |  |\n| 2 | 3 |"),
        ("a\tb\n1\n2\n3\t4\n\n", "| 1 |  |\n| 2 |  |\n| 3 | 4 |"),
    ],
)
def test_the_delimiter_of_csv_is_detected(tmp_path, text, row):
    (tmp_path / "a.csv").write_text(text)
    assert read_csv(tmp_path / "a.csv").parts[0].text == f"| a | b |\n| --- | --- |\n{row}\n"


def test_a_title_above_a_csv_is_not_a_row(tmp_path):
    (tmp_path / "a.csv").write_text(
        "Fees, 2026\nBoat;Summer;Winter\nup to 8 m;10,50;5\nover 8 m;20,50;10\n"
    )
    table = (
        "| Boat | Summer | Winter |\n| --- | --- | --- |\n| up to 8 m | 10,50 | 5 |\n| over "
        "8 m | 20,50 | 10 |\n"
    )
    assert read_csv(tmp_path / "a.csv").text == f"Fees, 2026\n\n{table}"


def test_slides_keep_numbers_spans_and_superscript(tmp_path):
    show = pptx.Presentation()
    slide = show.slides.add_slide(show.slide_layouts[1])
    slide.shapes.title.text = "Counts in C#"
    frame = slide.placeholders[1].text_frame
    frame.text = "10"
    for text, baseline in (
        ("6", "30000"),
        (" cells, H", ""),
        ("2", "-25000"),
        ("O, 2", ""),
        ("nd", "30000"),
    ):
        run = frame.paragraphs[0].add_run()
        run.text = text
        if baseline:
            run._r.get_or_add_rPr().set("baseline", baseline)
    for text, kind, start in (
        ("one", "arabicPeriod", "3"),
        ("two", "arabicPeriod", "3"),
        ("x", "alphaLcParenR", ""),
    ):
        paragraph = frame.add_paragraph()
        paragraph.text = text
        number = paragraph._p.get_or_add_pPr().makeelement(qn("a:buAutoNum"), {"type": kind})
        if start:
            number.set("startAt", start)
        else:
            paragraph.level = 1
        paragraph._p.get_or_add_pPr().append(number)
    box = slide.shapes.add_textbox(0, 0, Inches(1), Inches(1))
    box.text_frame.text = "# of units\n1. no item"
    table = slide.shapes.add_table(3, 3, 0, 0, Inches(4), Inches(1)).table
    for column, text in enumerate("ABC"):
        table.cell(0, column).text = text
    table.cell(1, 0).merge(table.cell(1, 1))
    table.cell(1, 2).merge(table.cell(2, 2))
    table.cell(1, 0).text, table.cell(1, 2).text, table.cell(2, 0).text = "ab", "c", "d"
    show.save(str(tmp_path / "show.pptx"))
    [slide] = read_pptx(tmp_path / "show.pptx").parts
    assert slide.text == (
        "# Counts in C\\#\n\n- 10^6 cells, H2O, 2nd\n3. one\n4. two\n   - a) x\n\n\\# of "
        "units\n\n1\\. no item\n\n"
        "| A | B | C |\n| --- | --- | --- |\n| ab |  | c |\n| d |  | c |\n"
    )


def changed(path, target, change):
    """Write a copy of a ZIP archive whose members are changed by a function of name and text.

    Return its path.
    """
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as written:
        for name in source.namelist():
            new_name, text = change(name, source.read(name).decode())
            written.writestr(new_name, text)
    return target


def replaced(*pairs):
    def change(name, text):
        for old, new in pairs:
            text = text.replace(old, new)
        return name, text

    return change


OOXML = "http://schemas.openxmlformats.org"
DETAILS = {
    "strict": replaced(
        (f"{OOXML}/spreadsheetml/2006/main", "http://purl.oclc.org/ooxml/spreadsheetml/main"),
        (
            f"{OOXML}/officeDocument/2006/relationships",
            "http://purl.oclc.org/ooxml/officeDocument/relationships",
        ),
    ),
    "empty fill": replaced(("<fill><patternFill/></fill>", "<fill/>")),
    "family of a font": replaced(('<family val="2"', '<family val="34"')),
    "day in another form": replaced(("T10:00:00Z", "."), ("2026-11-20", "20.11.2026")),
    "empty style": replaced((' r="A1"', ' r="A1" s=""')),
    "pane without a number": replaced(
        ('<sheetView workbookViewId="0">', '<sheetView workbookViewId="0"><pane xSplit=""/>')
    ),
    "styles of nothing": lambda name, text: (name, "<styleSheet/>" if "styles" in name else text),
    "capitals": lambda name, text: (name.replace("sharedStrings", "SharedStrings"), text),
    "backslashes": lambda name, text: (name.replace("/", "\\"), text),
}


@pytest.mark.parametrize("detail", DETAILS)
def test_details_of_styles_names_and_metadata_hide_no_cell(tmp_path, detail):
    book = openpyxl.Workbook()
    book.properties.created = dt.datetime.fromisoformat("2026-11-20T10:00")
    book.active.title = "Fees"
    book.active.append(["Item", "Price"])
    book.active.append(["Pump", 40])
    book.save(tmp_path / "plain.xlsx")
    path = changed(tmp_path / "plain.xlsx", tmp_path / "other.xlsx", DETAILS[detail])
    assert read_xlsx(path).text == "# Fees\n\n| Item | Price |\n| --- | --- |\n| Pump | 40 |\n"


def test_superscript_and_dates_since_1904_are_read(tmp_path):
    book = openpyxl.Workbook()
    book.epoch = MAC_EPOCH
    book.active.append(["Cells", "Day"])
    raised = CellRichText("10", TextBlock(UP, "6"), " cells of 5 m", TextBlock(UP, "2 "))
    book.active.append([raised, dt.date(2026, 3, 1)])
    day = CellRichText("the 2", TextBlock(UP, "nd"), TextBlock(InlineFont(b=True), " day"))
    book.active.append([day, dt.time(9, 5)])
    book.save(tmp_path / "raised.xlsx")
    text = read_xlsx(tmp_path / "raised.xlsx").text
    assert "| 10^6 cells of 5 m^2 | 2026-03-01 |\n| the 2nd day | 09:05:00 |" in text
