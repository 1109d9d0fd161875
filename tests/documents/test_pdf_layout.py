"""Where words stand on a page of a PDF says what they are: columns of the page, tables, headings, running lines."""

import pytest
from reportlab.pdfgen.canvas import Canvas

from llama_index_contextual.app.folder.convert import DocumentReader

PROSE = "The harbour keeps a book of tides, in which each keeper writes what he saw in his years of service there."


@pytest.fixture
def drawn(tmp_path):
    """Return a function that draws pages and returns their text: (x, y, text), right-aligned where x is negative."""

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
        cells += [(-(x + width + column * at), y - 14 * number, value) for at, value in enumerate(values)]
    return cells


def test_two_columns_of_a_page_are_read_one_after_the_other(drawn):
    over = (50, 800, "A line that runs over both columns of the page, from its left to its right edge, all over it.")
    left = [(50, 780 - 14 * at, f"Left column, line {at}, and words up to the gutter here") for at in range(8)]
    right = [(310, 773 - 14 * at, f"Right column, line {at}, beyond the gutter") for at in range(8)]
    [text] = drawn([over, *left, *right])
    lines = [line.split(",")[0] for line in text.splitlines() if line]
    assert lines == ["A line that runs over both columns of the page"] + ["Left column"] * 8 + ["Right column"] * 8


def test_tables_side_by_side_are_two_also_where_bullets_hang_between_them(drawn):
    names = ("Advisory", "Equity", "Debt", "Loans", "Total")
    left = table(50, 700, [(f"{name} of the north berth", "120", "80") for name in names], width=180)
    right = table(330, 704, [(f"{name} south", "7", "9") for name in names], width=120)
    notes = [(318, 600 - 14 * at, f"• {name} of the south rose, as ships did") for at, name in enumerate(names)]
    below = [(50, 600 - 14 * at, "Prose of the left column, which runs up to the gutter") for at in range(5)]
    [text] = drawn([*left, *right, *notes, *below])
    rows = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    assert rows == [f"| {name} of the north berth | 120 | 80 |" for name in names] + [
        f"| {name} south | 7 | 9 |" for name in names
    ]
    assert text.index("Prose of the left column") < text.index("Total south") < text.index("- Advisory of the south")


def test_the_sign_of_a_currency_goes_to_the_number_after_it(drawn):
    cells = table(50, 700, [("Income", "13,851", "2,431"), ("Ships", "7", "9"), ("Tides", "4", "5")], column=45)
    [text] = drawn([*cells, (210, 700, "$"), (255, 700, "$")])
    assert "| Income | $13,851 | $2,431 |" in text


def test_what_stands_above_several_columns_is_said_of_the_first_of_them(drawn):
    rows = [("(in millions)", "2021", "2020"), ("Income", "14", "2"), ("Costs", "3", "4"), ("Taxes", "1", "1")]
    [text] = drawn([*table(50, 686, rows), (200, 700, "Three months ended March")])
    assert text.startswith(
        "| (in millions) | Three months ended March 2021 | 2020 |\n| --- | --- | --- |\n| Income | 14"
    )


def test_years_beside_a_name_of_a_column_are_a_header_and_no_word_of_it_is_lost(drawn):
    rows = [("(in millions, except ratios)", "2021", "2020", "Change"), ("Income", "14", "2", "7%")]
    rows += [("Costs", "3", "4", "(1)"), ("Taxes", "1", "1", "NM")]
    [text] = drawn([*table(50, 686, rows), (200, 700, "Three months ended March")])
    assert text.startswith("| (in millions, except ratios) | Three months ended March 2021 | 2020 | Change |")


def test_prose_between_two_tables_parts_them(drawn):
    first = table(50, 700, [("North", "120", "80"), ("South", "80", "7"), ("Old", "9", "1")])
    second = table(50, 630, [("East", "5", "6", "7"), ("West", "3", "4", "5"), ("New", "1", "2", "3")], width=160)
    [text] = drawn([*first, (50, 650, PROSE), *second])
    assert [block.count("\n") + 1 for block in text.split("\n\n")] == [4, 1, 4]


def test_a_name_at_the_top_of_a_page_joins_its_heading_and_a_unit_is_none(drawn):
    def page(number):
        prose = [(50, 680 - 14 * at, PROSE) for at in range(5)]
        heading = (50, 740, f"Statement {number}", "Helvetica-Bold", 14)
        return [(50, 760, "Aldmoor Shipping, Inc."), heading, (50, 715, "(in millions)", "Helvetica-Bold", 10), *prose]

    texts = drawn(page(1), page(2))
    assert [text.split("\n\n")[:2] for text in texts] == [
        [f"# Aldmoor Shipping, Inc. Statement {number}", "(in millions)"] for number in (1, 2)
    ]


def test_a_short_heading_ends_on_its_line(drawn):
    headings = [(50, 740, "Note 5", "Helvetica-Bold", 12), (50, 724, "Acquisitions of ships", "Helvetica-Bold", 12)]
    [text] = drawn([(50, 780, PROSE), *headings, *((50, 700 - 14 * at, PROSE) for at in range(5))])
    assert "# Note 5\n\n# Acquisitions of ships\n\n" in text


def test_the_number_of_a_page_is_no_text_below_the_first_of_two_columns(drawn):
    def page(number):
        left = [(50, 780 - 14 * at, f"Left column, line {at}, and words up to the gutter here") for at in range(8)]
        right = [(310, 773 - 14 * at, f"Right column, line {at}, beyond the gutter") for at in range(8)]
        return [*left, *right, (50, 20, str(number))]

    texts = drawn(*map(page, (11, 12, 13)))
    assert all("Left column, line 4" in text for text in texts)
    assert not any(str(number) in text.splitlines() for number, text in enumerate(texts, start=11))
