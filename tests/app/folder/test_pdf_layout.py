"""The layout of PDF pages: columns, tables, headings and running lines."""

import pytest
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfgen.canvas import Canvas

from llama_index_contextual.app.folder.convert import DocumentReader
from llama_index_contextual.app.folder.converters.pdf import _text_blocks
from llama_index_contextual.app.folder.pdf_lines import Line
from llama_index_contextual.app.folder.pdf_words import Word, in_reading_order
from llama_index_contextual.utils.errors import DocumentError

PROSE = (
    "The harbour keeps a book of tides, in which each keeper writes what he saw in his years "
    "of service there."
)


@pytest.fixture
def drawn(tmp_path):
    """Return a function that draws pages and returns their text.

    (x, y, text), right-aligned where x is negative.
    """

    def draw(*pages):
        canvas = Canvas(str(tmp_path / "drawn.pdf"))
        for page in pages:
            for x, y, text, *font in page:
                canvas.setFont(font[0] if font else "Helvetica", font[1] if font else 10)
                (canvas.drawString if x > 0 else canvas.drawRightString)(abs(x), y, text)
            canvas.showPage()
        canvas.save()
        return [document.text for document in DocumentReader().load_data(tmp_path / "drawn.pdf")]

    return draw


def table(x, y, rows, width=200, column=60):
    """Return cells: a name, and values whose right edges stand below one another."""
    cells = []
    for number, (name, *values) in enumerate(rows):
        cells.append((x, y - 14 * number, name))
        cells += [
            (-(x + width + column * index), y - 14 * number, value)
            for index, value in enumerate(values)
        ]
    return cells


def test_two_columns_of_a_page_are_read_one_after_the_other(drawn):
    over = (
        50,
        800,
        (
            "A line that runs over both columns of the page, from its left to its right "
            "edge, all over it."
        ),
    )
    left = [
        (50, 780 - 14 * number, f"Left column, line {number}, and words up to the gutter here")
        for number in range(8)
    ]
    right = [
        (310, 773 - 14 * number, f"Right column, line {number}, beyond the gutter")
        for number in range(8)
    ]
    [text] = drawn([over, *left, *right])
    lines = [line.split(",")[0] for line in text.splitlines() if line]
    assert (
        lines
        == ["A line that runs over both columns of the page"]
        + ["Left column"] * 8
        + ["Right column"] * 8
    )


@pytest.mark.parametrize(
    ("gap", "shift", "order"), [(70, 0, "columns"), (70, 0, "rows"), (90, 5, "rows")]
)
def test_columns_with_a_wide_gutter_are_read_one_after_the_other(drawn, gap, shift, order):
    words = ["of", "pumps", "and", "how", "they", "are", "primed", "before", "the", "season"]
    sides = [
        [f"{side}{number} {' '.join(words[: 5 + number % 3])}" for number in range(9)]
        for side in ("Left", "Right")
    ]
    cells = [(50, 760 - 13 * number, line) for number, line in enumerate(sides[0])]
    cells += [(250 + gap, 760 - shift - 13 * number, line) for number, line in enumerate(sides[1])]
    [text] = drawn(
        sorted(cells, key=lambda cell: (-cell[1], cell[0])) if order == "rows" else cells
    )
    assert text.split() == " ".join(sides[0] + sides[1]).split()


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        (["a state-of-the-", "art method"], "a state-of-the-art method"),
        (
            ["the X-", "ray of Anna-", "Lena in 2019-", "2020"],
            "the X-ray of Anna-Lena in 2019-2020",
        ),
        (["a con-", "denser"], "a condenser"),
    ],
)
def test_a_hyphen_at_the_end_of_a_line_is_kept_only_if_the_word_has_it(drawn, lines, joined):
    assert drawn(
        [(50, 760 - 14 * number, line, "Helvetica", 12) for number, line in enumerate(lines)]
    ) == [joined]


def test_superscript_digits_are_a_power_and_a_heading_continues_in_lower_case(drawn):
    title = [
        (50, 780, "How the seals of the north basin", "Helvetica", 20),
        (50, 757, "are kept", "Helvetica", 20),
    ]
    number = [
        (50, 700, "Count: 10", "Helvetica", 12),
        (98.7, 705, "6", "Helvetica", 7),
        (104, 700, "cells.", "Helvetica", 12),
    ]
    [text] = drawn([*title, *number, *((50, 680 - 14 * line, PROSE) for line in range(5))])
    assert "# How the seals of the north basin are kept\n" in text
    assert "Count: 10^6 cells." in text


def test_tables_side_by_side_are_separate_even_with_bullets_between_them(drawn):
    names = ("Advisory", "Equity", "Debt", "Loans", "Total")
    left = table(
        50, 700, [(f"{name} of the north berth", "120", "80") for name in names], width=180
    )
    right = table(330, 704, [(f"{name} south", "7", "9") for name in names], width=120)
    notes = [
        (318, 600 - 14 * number, f"• {name} of the south rose, as ships did")
        for number, name in enumerate(names)
    ]
    below = [
        (50, 600 - 14 * number, "Prose of the left column, which runs up to the gutter")
        for number in range(5)
    ]
    [text] = drawn([*left, *right, *notes, *below])
    rows = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    assert rows == [f"| {name} of the north berth | 120 | 80 |" for name in names] + [
        f"| {name} south | 7 | 9 |" for name in names
    ]
    assert (
        text.index("Prose of the left column")
        < text.index("Total south")
        < text.index("- Advisory of the south")
    )


def test_a_currency_sign_is_joined_to_the_number_after_it(drawn):
    cells = table(
        50,
        700,
        [("Income", "13,851", "2,431"), ("Ships", "7", "9"), ("Tides", "4", "5")],
        column=45,
    )
    [text] = drawn([*cells, (210, 700, "$"), (255, 700, "$")])
    assert "| Income | $13,851 | $2,431 |" in text


def test_a_name_above_several_columns_belongs_to_the_first_one(drawn):
    rows = [
        ("(in millions)", "2021", "2020"),
        ("Income", "14", "2"),
        ("Costs", "3", "4"),
        ("Taxes", "1", "1"),
    ]
    [text] = drawn([*table(50, 686, rows), (200, 700, "Three months ended March")])
    assert text.startswith(
        "| (in millions) | Three months ended March 2021 | 2020 |\n| --- | --- | --- |\n"
        "| Income | 14"
    )


def test_years_beside_a_column_name_are_a_header_without_lost_words(drawn):
    rows = [("(in millions, except ratios)", "2021", "2020", "Change"), ("Income", "14", "2", "7%")]
    rows += [("Costs", "3", "4", "(1)"), ("Taxes", "1", "1", "NM")]
    [text] = drawn([*table(50, 686, rows), (200, 700, "Three months ended March")])
    assert text.startswith(
        "| (in millions, except ratios) | Three months ended March 2021 | 2020 | Change |"
    )


def test_prose_separates_two_tables(drawn):
    first = table(50, 700, [("North", "120", "80"), ("South", "80", "7"), ("Old", "9", "1")])
    second = table(
        50,
        630,
        [("East", "5", "6", "7"), ("West", "3", "4", "5"), ("New", "1", "2", "3")],
        width=160,
    )
    [text] = drawn([*first, (50, 650, PROSE), *second])
    assert [block.count("\n") + 1 for block in text.split("\n\n")] == [4, 1, 4]


def test_a_short_heading_ends_on_its_line(drawn):
    headings = [
        (50, 740, "Note 5", "Helvetica-Bold", 12),
        (50, 724, "Acquisitions of ships", "Helvetica-Bold", 12),
    ]
    [text] = drawn(
        [(50, 780, PROSE), *headings, *((50, 700 - 14 * number, PROSE) for number in range(5))]
    )
    assert "# Note 5\n\n# Acquisitions of ships\n\n" in text


def test_a_page_number_below_the_first_of_two_columns_is_not_text(drawn):
    def page(number):
        left = [
            (50, 780 - 14 * line, f"Left column, line {line}, and words up to the gutter here")
            for line in range(8)
        ]
        right = [
            (310, 773 - 14 * line, f"Right column, line {line}, beyond the gutter")
            for line in range(8)
        ]
        return [*left, *right, (50, 20, str(number))]

    texts = drawn(*map(page, (11, 12, 13)))
    assert all("Left column, line 4" in text for text in texts)
    assert not any(str(number) in text.splitlines() for number, text in enumerate(texts, start=11))


def minimal(path, content, letters=None, rotate=0):
    """Write a PDF of one page from its own operators.

    ``letters`` are codes in hexadecimal and UTF-16 for them.
    """
    page = "/Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R"
    font = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding {}>>"
    shown = "\n".join(f"<{code}> <{text}>" for code, text in (letters or {"78": "0078"}).items())
    names = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def "
        "/CMapType 2 def 1 "
        f"begincodespacerange <00> <FF> endcodespacerange {len(letters or 'x')} beginbfchar\n{shown}\nendbfchar endcmap end end"  # noqa: E501
    )
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< {page} /Rotate {rotate} /Resources << /Font << /F1 5 0 R /F2 6 0 R >> >> >>",
        f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        font.format(""),
        font.format("/ToUnicode 7 0 R "),
        f"<< /Length {len(names)} >>\nstream\n{names}\nendstream",
    ]
    text, places = "%PDF-1.4\n", []
    for number, pdf_object in enumerate(objects, start=1):
        places.append(len(text))
        text += f"{number} 0 obj\n{pdf_object}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    count = len(objects) + 1
    text += f"xref\n0 {count}\n0000000000 65535 f \n{table}trailer << /Size {count} /Root 1 0 R >>\nstartxref\n{text.count('')}\n%%EOF"  # noqa: E501
    path.write_bytes(text.encode("latin-1"))
    return [document.text for document in DocumentReader().load_data(path)]


def show_text(x, y, text, font="F1", matrix="1 0 0 1"):
    return f"BT /{font} 12 Tf {matrix} {x} {y} Tm ({text}) Tj ET "


@pytest.mark.parametrize(
    ("letter", "text"),
    [
        ("0007", "The speed is 40 rpm."),
        ("D835DC65", "The speed \U0001d465 is 40 rpm."),
        ("D842DFB7", "The speed \U00020bb7 is 40 rpm."),
    ],
)
def test_words_without_letters_and_letters_beyond_the_basic_plane_are_read(tmp_path, letter, text):
    content = (
        show_text(60, 700, "The speed")
        + show_text(125, 700, "x", "F2")
        + show_text(140, 700, "is 40 rpm.")
    )
    assert minimal(tmp_path / "a.pdf", content, {"78": letter}) == [text]


UP, DOWN, OVER, SLANTED = "0 1 -1 0", "0 -1 1 0", "-1 0 0 -1", ".7071 .7071 -.7071 .7071"
TURNED = {
    UP: [(100 + 20 * step, 100) for step in range(3)],
    DOWN: [(300 - 20 * step, 700) for step in range(3)],
}
TURNED[OVER] = [(500, 100 + 20 * step) for step in range(3)]


@pytest.mark.parametrize("matrix", TURNED)
@pytest.mark.parametrize("rotate", [0, 90])
def test_rotated_text_is_read_in_its_own_lines(tmp_path, matrix, rotate):
    lines = [
        "Tides of the north quay",
        "High water comes at 04:12 and leaves at noon.",
        "Low water comes at 10:30.",
    ]
    content = "".join(
        show_text(x, y, line, matrix=matrix)
        for line, (x, y) in zip(lines, TURNED[matrix], strict=True)
    )
    [text] = minimal(tmp_path / "a.pdf", content, rotate=rotate)
    assert text.split("\n") == lines


@pytest.mark.parametrize("matrix", [UP, DOWN, SLANTED])
def test_a_rotated_side_bar_or_watermark_follows_the_text(tmp_path, matrix):
    lines = [
        f"Line {number} of a page of prose, which runs on to the next line of it"
        for number in range(9)
    ]
    content = "".join(show_text(60, 740 - 14 * number, line) for number, line in enumerate(lines))
    [text] = minimal(
        tmp_path / "a.pdf", content + show_text(200, 660, "DRAFT of June 2021", matrix=matrix)
    )
    assert " ".join(text.split()) == f"{' '.join(lines)} DRAFT of June 2021"


WORDS = (PROSE.split() * 20)[:400]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("gap", [8, 14, 30])
@pytest.mark.parametrize("order", ["columns", "rows", "uneven"])
def test_narrow_columns_are_read_one_after_the_other(drawn, count, gap, order):
    from reportlab.pdfbase.pdfmetrics import stringWidth

    width, cells, expected = (495 - gap * (count - 1)) / count, [], []
    for column in range(count):
        lines, words = [""], iter(f"{'abcd'[column]}{word}" for word in WORDS)
        while len(lines) <= 20:
            word = next(words)
            fits = stringWidth(f"{lines[-1]} {word}", "Helvetica", 10) <= width
            lines[-1:] = [f"{lines[-1]} {word}".strip()] if fits else [lines[-1], word]
        shift = 3 * (column % 2) if order == "uneven" else 0
        left = 50 + column * (width + gap)
        cells += [(left, 750 - 12 * number - shift, line) for number, line in enumerate(lines[:20])]
        expected += " ".join(lines[:20]).split()
    if order == "rows":
        cells.sort(key=lambda cell: (-cell[1], cell[0]))
    [text] = drawn(cells)
    assert text.split() == expected


def test_rows_of_words_are_read_one_after_the_other(drawn):
    rows = [
        (
            f"Item {number} of the catalogue",
            f"{'red' if number % 2 else 'green'} oil paint",
            "in stock",
        )
        for number in range(9)
    ]
    cells = [
        (50 + 180 * column, 750 - 14 * number, cell)
        for number, row in enumerate(rows)
        for column, cell in enumerate(row)
    ]
    [text] = drawn(cells)
    assert text.split() == " ".join(" ".join(row) for row in rows).split()


def test_a_heading_right_above_a_table_is_not_a_column_name(drawn):
    rows = [
        ("Month", "North", "South"),
        ("May", "1,005", "12"),
        ("June", "2,005", "15"),
        ("July", "900", "11"),
    ]
    [text] = drawn([(250, 790, "Sales", "Helvetica-Bold", 16), *table(50, 766, rows)])
    assert text.startswith("# Sales\n\n| Month | North | South |\n")


def test_a_style_of_running_text_is_not_a_heading(drawn):
    """Press releases set whole paragraphs in bold or in larger letters; a line that begins with a capital was a heading."""  # noqa: E501

    def paragraph(top, start, font, size):
        lines = [
            f"{start} of a paragraph that fills the whole width of the page and goes on below"
            for _ in range(4)
        ]
        return [(50, top - 14 * number, line, font, size) for number, line in enumerate(lines)]

    body = [(50, 400 - 14 * number, PROSE) for number in range(12)]
    bold = paragraph(700, "Bold line", "Helvetica-Bold", 10) + paragraph(
        630, "Bold line", "Helvetica-Bold", 10
    )
    large = paragraph(560, "Large line", "Helvetica", 12) + paragraph(
        490, "Large line", "Helvetica", 12
    )
    heading = (50, 760, "Results of the year", "Helvetica-Bold", 14)
    [text] = drawn([heading, *bold, *large, (50, 420, "Outlook", "Helvetica-Bold", 14), *body])
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# Results of the year",
        "# Outlook",
    ]


def test_distinct_headings_of_pages_are_not_running_headers_which_are_counted(drawn, tmp_path):
    def page(number, font, size):
        edges = [
            (50, 810, "Book of tides", "Helvetica", 8),
            (280, 30, f"Page {number} of 5", "Helvetica", 8),
        ]
        prose = [(50, 700 - 14 * line, PROSE[number * (line + 1) :]) for line in range(5)]
        return [*edges, (50, 724, f"Day {number}", font, size), *prose]

    for style in (("Helvetica", 18), ("Helvetica-Bold", 14)):
        texts = drawn(*(page(number, *style) for number in range(1, 6)))
        assert [text.split("\n\n")[0] for text in texts] == [
            f"# Day {number}" for number in range(1, 6)
        ]
        assert not any("Book of tides" in text or "Page" in text for text in texts)
        left_out = DocumentReader().load_data(tmp_path / "drawn.pdf")[0].metadata["left_out"]
        assert left_out == "10 repeated margin lines"


@pytest.mark.parametrize(
    ("text", "raised", "read"),
    [("x", "2", "x^2"), ("tide", "1", "tide^1"), ("1,200", "3", "1,200^3")],
)
@pytest.mark.parametrize("left", ["", "Of "])
def test_superscript_digits_are_a_power_or_a_note(drawn, text, raised, read, left):
    from reportlab.pdfbase.pdfmetrics import stringWidth

    end = 50 + stringWidth(left + text, "Helvetica", 12)
    cells = [
        (50, 700, left + text, "Helvetica", 12),
        (end, 705, raised, "Helvetica", 7),
        (end + 9, 700, "is it", "Helvetica", 12),
    ]
    assert (
        drawn([*cells, (50, 680, PROSE, "Helvetica", 12)])[0].splitlines()[0]
        == f"{left}{read} is it"
    )


def test_list_numbers_in_larger_letters_make_no_heading(drawn):
    items = [(50, 700 - 14 * number, str(number), "Helvetica", 12) for number in range(4)]
    items += [(70, 700 - 14 * number, f"Step {number} of the pump") for number in range(4)]
    assert "#" not in drawn([*items, *((50, 600 - 14 * number, PROSE) for number in range(4))])[0]


def test_typed_form_fields_are_text_and_comments_are_counted(tmp_path):
    canvas = Canvas(str(tmp_path / "form.pdf"))
    canvas.drawString(70, 780, "Name of keeper:")
    canvas.acroForm.textfield(name="name", value="Ana Ruiz", x=200, y=775, width=200, height=20)
    canvas.textAnnotation("Ask Bo", Rect=[50, 600, 100, 650])
    canvas.save()
    [document] = DocumentReader().load_data(tmp_path / "form.pdf")
    assert document.text == "Name of keeper: Ana Ruiz"
    assert document.metadata["left_out"] == "1 comment"


def test_superscript_digits_before_a_comma_or_with_a_sign_are_recognised(tmp_path):
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, SimpleDocTemplate

    text = "Only 5<super>99</super>, or 10<super>-3</super> on the 1st day, he says, by the book"
    SimpleDocTemplate(str(tmp_path / "a.pdf")).build(
        [Paragraph(text, getSampleStyleSheet()["BodyText"])]
    )
    [document] = DocumentReader().load_data(tmp_path / "a.pdf")
    assert document.text == "Only 5^99, or 10^-3 on the 1st day, he says, by the book"


def test_a_letter_of_a_symbol_font_is_a_bullet():
    items = [("\uf0b7", 50, 700), ("spring", 60, 700), ("\uf0b7", 50, 686), ("neap", 60, 686)]
    words = [Word(text, left, left + 8, base, 10, bold=False) for text, left, base in items]
    assert _text_blocks([Line(words[:2]), Line(words[2:])]) == ["- spring\n- neap"]


def test_times_dates_and_numbers_with_units_are_values_of_a_table(drawn):
    tables = [
        [
            ("Port", "High", "Low"),
            ("Oslo", "04:12", "10:20"),
            ("Bergen", "05:13", "11:21"),
            ("Rost", "06:14", "12:22"),
        ],
        [
            ("Part", "Weight", "Change"),
            ("Bolt", "5 kg", "+2 pts"),
            ("Nut", "1.5 kg", "(3) pts"),
            ("Oil", "3 l", "-1 pt"),
        ],
        [("Trip", "Day"), ("North", "2026-03-04"), ("South", "03.04.2026"), ("West", "12/04/2026")],
    ]
    for read, cells in zip(
        drawn(*(table(60, 700, cells) for cells in tables)), tables, strict=True
    ):
        assert [
            line.strip("| ").split(" | ") for line in read.splitlines() if "---" not in line
        ] == [*map(list, cells)]


def test_names_of_quarters_are_not_values(drawn):
    [text] = drawn(
        table(
            60,
            700,
            [("", "1st", "2nd"), ("Fees", "10", "20"), ("Costs", "5", "6"), ("Rest", "5", "14")],
        )
    )
    assert text.startswith("|  | 1st | 2nd |\n| --- |")


def test_a_table_below_short_lines_is_not_a_second_column(drawn):
    above = [
        (50, 780 - 14 * number, f"Line {number} of text, about so long as a half")
        for number in range(6)
    ]
    rows = [
        (f"Basin {name}", f"{number}1", f"{number}2") for number, name in enumerate("abcdef", 1)
    ]
    below = [
        (50, 560 - 14 * number, f"Line {number} of the text that goes on below")
        for number in range(6)
    ]
    [text] = drawn([*above, *table(240, 660, rows, width=150), *below])
    assert (
        text.index("Line 5 of text")
        < text.index("Basin a")
        < text.index("Basin f")
        < text.index("Line 0 of the")
    )


def test_superscript_digits_before_a_letter_stay_on_their_line(drawn):
    lines = [
        (50, 712, "The share of"),
        (50, 700, "carbon"),
        (90, 705, "13", "Helvetica", 7),
        (98.3, 700, "C falls"),
    ]
    assert drawn(lines) == ["The share of\ncarbon 13C falls"]


def test_a_number_starts_a_new_heading(drawn):
    headings = [
        (100, 740, "Annual report", "Helvetica-Bold", 18),
        (50, 712, "1 Overview", "Helvetica-Bold", 18),
    ]
    [text] = drawn(
        [*headings, *((50, 690 - 14 * number, "The harbour keeps a book.") for number in range(5))]
    )
    assert "# Annual report\n\n# 1 Overview\n\n" in text


def raw_pdf(path, content, letters):
    """Write a page whose font F2 maps bytes to letters; F1 is an ordinary font."""
    pairs = "\n".join(f"<{code:02X}> <{text.encode('utf-16-be').hex()}>" for code, text in letters)
    mapping = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def "
        "/CMapType 2 def "
        f"1 begincodespacerange <00> <FF> endcodespacerange\n{len(letters)} beginbfchar\n"
        f"{pairs}\nendbfchar "
        "endcmap CMapName currentdict /CMap defineresource pop end end"
    )
    fonts = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding"
    return write_objects(
        path,
        "<< /Font << /F1 5 0 R /F2 6 0 R >> >>",
        f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        f"{fonts} >>",
        f"{fonts} /ToUnicode 7 0 R >>",
        f"<< /Length {len(mapping)} >>\nstream\n{mapping}\nendstream",
    )


def write_objects(path, resources, *objects):
    page = (
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R /Resources "
        f"{resources} >>"
    )
    tree = ("<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [3 0 R] /Count 1 >>", page)
    data = b"%PDF-1.4\n"
    for number, text in enumerate((*tree, *objects), start=1):
        data += f"{number} 0 obj\n{text}\nendobj\n".encode("latin-1")
    path.write_bytes(data + b"trailer << /Root 1 0 R >>\n%%EOF")
    return DocumentReader().load_data(path)


def drawn_backwards(lines, y=700):
    """Return how programs draw lines from right to left.

    The leftmost letter first, up to the right margin.
    """
    letters = sorted({letter for line in lines for letter in line if letter != " "})
    codes = {
        letter: 97 + number if number < 26 else 39 + number for number, letter in enumerate(letters)
    }
    content = []
    for number, line in enumerate(lines):
        text = "".join(chr(codes[letter]) if letter != " " else " " for letter in reversed(line))
        content.append(
            f"BT /F2 12 Tf 1 0 0 1 {500 - 6 * len(line)} {y - 20 * number} Tm ({text}) Tj ET"
        )
    return " ".join(content), [(code, letter) for letter, code in codes.items()] + [(32, " ")]


@pytest.mark.parametrize(
    "lines",
    [
        ["המשאבה של הנמל פועלת בארבעים סיבובים", "קים שומר את המפתח של בית המשאבות"],
        ["تعمل مضخة الميناء بأربعين دورة", "يحتفظ كريم بمفتاح بيت المضخة"],
    ],
)
def test_lines_from_right_to_left_are_in_reading_order(tmp_path, lines):
    content, letters = drawn_backwards(lines)
    [page] = raw_pdf(tmp_path / "a.pdf", content, letters)
    assert page.text.split("\n") == lines


def test_numbers_and_words_in_the_other_direction_keep_their_order():
    def placed(*texts):
        return [
            Word(text, 50.0 * position, 50.0 * position + 40, 0, 10, bold=False)
            for position, text in enumerate(texts)
        ]

    def read(*texts):
        return [word.text for word in in_reading_order(placed(*texts))]

    assert read("דקות", "40", "rpm", "משאבה", "של") == [
        "של",
        "משאבה",
        "40",
        "rpm",
        "דקות",
    ]
    assert read("The", "word", "של", "משאבה", "is", "Hebrew") == [
        "The",
        "word",
        "משאבה",
        "של",
        "is",
        "Hebrew",
    ]


def test_a_glyph_of_two_arabic_letters_keeps_their_order(tmp_path):
    content = "BT /F2 12 Tf 1 0 0 1 300 700 Tm (abc) Tj ET"
    letters = [(97, "\u0644"), (98, "\u0644\u0627"), (99, "\u062e")]
    [page] = raw_pdf(tmp_path / "a.pdf", content, letters)
    assert page.text == "\u062e\u0644\u0627\u0644"


def glyph_numbers(text):
    return "".join(f"{ord(letter) - 29:04X}" for letter in text)


CIPHER = (
    (
        "<< /Type /Font /Subtype /Type0 /BaseFont /ABCDEF+Arial /Encoding /Identity-H "
        "/DescendantFonts [6 0 R] >>"
    ),
    (
        "<< /Type /Font /Subtype /CIDFontType2 /BaseFont /ABCDEF+Arial /CIDSystemInfo << "
        "/Registry (Adobe) "
        "/Ordering (Identity) /Supplement 0 >> /DW 556 /CIDToGIDMap /Identity "
        "/FontDescriptor 7 0 R >>"
    ),
    (
        "<< /Type /FontDescriptor /FontName /ABCDEF+Arial /Flags 4 /FontBBox [0 -200 "
        "1000 900] /ItalicAngle 0 "
        "/Ascent 900 /Descent -200 /CapHeight 700 /StemV 80 >>"
    ),
    "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
)


@pytest.mark.parametrize("is_all", [True, False])
def test_a_font_that_defines_no_letters_is_reported_as_unreadable(tmp_path, is_all):
    content = f"BT /F1 12 Tf 60 700 Td <{glyph_numbers('The pump of the harbour')}> Tj ET"
    if not is_all:
        content += " BT /F2 12 Tf 60 660 Td (Plain words below.) Tj ET"
    stream = f"<< /Length {len(content)} >>\nstream\n{content}\nendstream"
    arguments = (tmp_path / "a.pdf", "<< /Font << /F1 5 0 R /F2 8 0 R >> >>", stream, *CIPHER)
    if is_all:
        with pytest.raises(DocumentError, match=r"do not define their letters\. Use .*OCR"):
            write_objects(*arguments)
    else:
        [page] = write_objects(*arguments)
        assert page.text == "Plain words below."
        assert page.metadata["left_out"] == "19 unreadable characters"


def test_letters_mapped_to_private_characters_are_unreadable(tmp_path):
    letters = "".join(f"<{97 + i:02X}> <{0xE100 + i:04X}>" for i in range(26))
    cmap = (
        "/CIDInit /ProcSet findresource begin begincmap 1 begincodespacerange <00> <FF> "
        f"endcodespacerange 26 beginbfchar {letters} endbfchar endcmap end"
    )
    font = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 6 0 R >>"
    content = "BT /F1 12 Tf 60 700 Td (harbour pump house) Tj ET"
    streams = [f"<< /Length {len(data)} >>\nstream\n{data}\nendstream" for data in (content, cmap)]
    with pytest.raises(DocumentError, match="do not define their letters"):
        write_objects(
            tmp_path / "a.pdf", "<< /Font << /F1 5 0 R >> >>", streams[0], font, streams[1]
        )


@pytest.mark.parametrize("is_shuffled", [True, False])
@pytest.mark.parametrize("pitch", [1.0, 1.5])
def test_letters_that_are_placed_one_by_one_become_words(drawn, pitch, is_shuffled):
    cells = []
    for number, line in enumerate(("The pump of the harbour", "runs by night")):
        x = 60.0
        for letter in line:
            if letter != " ":
                cells.append((x, 700 - 20 * number, letter))
            x += pitch * stringWidth(letter, "Helvetica", 10)
    if is_shuffled:
        cells.sort(key=lambda cell: cell[2])
    [text] = drawn(cells)
    assert text.split() == ["The", "pump", "of", "the", "harbour", "runs", "by", "night"]


def test_letters_with_spaces_between_them_stay_apart(drawn):
    assert drawn([(60, 700, "A B C D E F")]) == ["A B C D E F"]


def test_columns_of_four_lines_are_read_one_after_the_other(drawn):
    sides = [
        [f"{side}{number} keeper wrote what he saw of the tides" for number in range(4)]
        for side in ("Left", "Right")
    ]
    cells = []
    for number in range(4):
        cells += [
            (50, 760 - 13 * number, sides[0][number]),
            (310, 760 - 13 * number, sides[1][number]),
        ]
    [text] = drawn(cells)
    assert text.split() == " ".join(sides[0] + sides[1]).split()


def test_short_lines_below_two_columns_follow_the_right_one(drawn):
    """A table of two columns of prose ends where a heading and a wide line follow."""
    cells = []
    for number in range(6):
        y = 760 - 13 * number
        cells.append((50, y, f"Left{number} keeper wrote what he saw of tides"))
        if number < 5:
            cells.append((310, y, f"Right{number} keeper wrote what he saw of tides"))
    cells += [
        (50, 660, "Lights of the coast"),
        (50, 645, "They burn:"),
        (
            50,
            630,
            "A line that runs over both columns of the page, from its left to its right edge.",
        ),
    ]
    [text] = drawn(cells)
    starts = [line.split()[0] for line in text.splitlines() if line]
    left = [f"Left{number}" for number in range(6)]
    right = [f"Right{number}" for number in range(5)]
    assert starts == [*left, *right, "Lights", "They", "A"]
