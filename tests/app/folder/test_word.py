"""Word, OpenDocument and RTF: containers, numbers, spans, superscript, boxes and pages."""

import re
import zipfile

import pytest
from growth import assert_linear
from word_files import cell, control, listed, numbering, paragraph, raised, row, run, table, word

from llama_index_contextual.app.folder.converters import word as converter
from llama_index_contextual.app.folder.converters.opendocument import read_odt
from llama_index_contextual.app.folder.converters.rtf import read_rtf
from llama_index_contextual.app.folder.converters.word import read_docx
from llama_index_contextual.app.folder.formats import ConversionError


@pytest.fixture
def read(tmp_path):
    """Return a function that writes a Word file and returns its pages as text."""

    def make(body, **members):
        return [
            part.text for part in read_docx(word(tmp_path / "file.docx", body, **members)).parts
        ]

    return make


RESTART, GOES_ON = '<w:vMerge w:val="restart"/>', "<w:vMerge/>"
MOVED = f"<w:moveFrom>{run('old')}</w:moveFrom><w:moveTo>{run('new place')}</w:moveTo>"
BOX = f"<w:txbxContent>{paragraph('In the box.')}</w:txbxContent>"
CHOICE = (
    "<mc:Choice "
    f'Requires="wps"><w:drawing><wps:wsp><wps:txbx>{BOX}</wps:txbx></wps:wsp></w:drawing></mc:Choice>'
)
FALLBACK = (
    f"<mc:Fallback><w:pict><v:shape><v:textbox>{BOX}</v:textbox></v:shape></w:pict></mc:Fallback>"
)
FRACTION = (
    "<m:f><m:num><m:r><m:t>a+b</m:t></m:r></m:num><m:den><m:r><m:t>2</m:t></m:r></m:den></m:f>"
)
SQUARE = "<m:sSup><m:e><m:r><m:t>x</m:t></m:r></m:e><m:sup><m:r><m:t>2</m:t></m:r></m:sup></m:sSup>"
CASES = {
    "a cell over two columns": (
        table(
            row("Model", cell("Speed", '<w:gridSpan w:val="2"/>'), "Price"),
            row("P1", "10", "20", "99 EUR"),
        ),
        "| Model | Speed |  | Price |\n| --- | --- | --- | --- |\n| P1 | 10 | 20 | 99 EUR |\n",
    ),
    "a cell over two rows": (
        table(
            row("Region", "Plan", "Fee"),
            row(cell("North", RESTART), "Basic", "10"),
            row(cell(paragraph(""), GOES_ON), "Premium", "25"),
        ),
        (
            "| Region | Plan | Fee |\n| --- | --- | --- |\n| North | Basic | 10 |\n| North | "
            "Premium | 25 |\n"
        ),
    ),
    "content controls around a row, a cell, a paragraph and words": (
        table(row("Part", "Qty"), control(row("Gasket", "4")), row("Bolt", control(cell("12"))))
        + control(paragraph("Block."))
        + paragraph(control(run("Inline")) + run(" rest.")),
        "| Part | Qty |\n| --- | --- |\n| Gasket | 4 |\n| Bolt | 12 |\n\nBlock.\n\nInline rest.\n",
    ),
    "other containers": (
        paragraph(
            f'<w:smartTag w:element="city">{run("Aldmoor")}</w:smartTag><w:hyperlink '
            f'r:id="gone">{run(" link")}'
            "</w:hyperlink><w:fldSimple "
            f'w:instr="DATE">{run(" today")}</w:fldSimple><w:ins>{run(" added")}</w:ins>'
            f"<w:del><w:r><w:delText>gone</w:delText></w:r></w:del>{MOVED}"
        ),
        "Aldmoor link today addednew place\n",
    ),
    "a return and a tabulator of alignment": (
        paragraph("<w:r><w:t>one</w:t><w:cr/><w:t>two</w:t><w:ptab/><w:t>3</w:t></w:r>"),
        "one\ntwo 3\n",
    ),
    "hyphens and symbols": (
        paragraph(
            "<w:r><w:t>1</w:t><w:noBreakHyphen/><w:t>24 hours, age </w:t>"
            '<w:sym w:font="Symbol" w:char="F0B3"/><w:t> 5</w:t></w:r>'
        ),
        "1\u201124 hours, age ≥ 5\n",
    ),
    "raised and lowered letters": (
        paragraph(
            run("10")
            + raised("6")
            + run(" cells, m")
            + raised("-2")
            + run(", the 1")
            + raised("st")
        ),
        "10^6 cells, m^-2, the 1st\n",
    ),
    "lowered numbers": (
        paragraph(run("H") + raised("2", "subscript") + run("O, 10") + raised("2", "subscript")),
        "H2O, 10_2\n",
    ),
    "letters raised in two runs": (
        paragraph(run("10") + raised("1") + raised("2") + run(" in m")),
        "10^12 in m\n",
    ),
    "readings": (
        paragraph(
            f"<w:r><w:ruby><w:rubyPr/><w:rt>{run('とうきょう')}</w:rt><w:rubyBase>{run('東京')}</w:rubyBase></w:ruby></w:r>"
            f"{run('です!')}"
        ),
        "東京です!\n",
    ),
    "two text boxes of a paragraph": (
        paragraph(
            f"{run('Before')}<w:r><w:pict>{BOX}{BOX.replace('In', 'Second in')}</w:pict></w:r>"
        ),
        "Before\n\nIn the box.\n\nSecond in the box.\n",
    ),
    "a text box, once": (
        paragraph(
            f"{run('Before')}<w:r><mc:AlternateContent>{CHOICE}{FALLBACK}</mc:AlternateContent></w:r>"
        )
        + paragraph("After."),
        "Before\n\nIn the box.\n\nAfter.\n",
    ),
    "a text box of an old Word": (
        paragraph(f"{run('Before')}<w:r><w:pict><v:textbox>{BOX}</v:textbox></w:pict></w:r>"),
        "Before\n\nIn the box.\n",
    ),
    "a formula": (
        paragraph(
            f"{run('Let ')}<m:oMath>{FRACTION}<m:r><m:t>=</m:t></m:r>{SQUARE}</m:oMath>{run(' hold.')}"  # noqa: E501
        ),
        "Let (a+b)/2=x^2 hold.\n",
    ),
    "text that looks like Markdown": (
        "".join(
            map(
                paragraph,
                (
                    "# of units: 5",
                    "They left.",
                    "1. no item",
                    "| a | b |",
                    "---",
                    "- no item",
                    "===",
                ),
            )
        )
        + paragraph("<w:r><w:t>Ana</w:t><w:br/><w:t>--</w:t><w:br/><w:t>ACME</w:t></w:r>")
        + paragraph("C#", "H1"),
        (
            "\\# of units: 5\n\nThey left.\n\n1\\. no item\n\n\\| a | b |\n\n\\---\n\n"
            "\\- no item\n\n\\===\n\n"
            "Ana\n\\--\nACME\n\n# C\\#\n"
        ),
    ),
    "pipes and signs in cells": (
        table(row("# a", "b|c"), row("- 5", "1. x")),
        "| # a | b\\|c |\n| --- | --- |\n| - 5 | 1. x |\n",
    ),
    "a table in a cell": (
        table(row("A", cell(table(row("x", "y")) + paragraph(""))), row("B", "z")),
        "| A | x y |\n| --- | --- |\n| B | z |\n",
    ),
}


@pytest.mark.parametrize(("body", "markdown"), CASES.values(), ids=CASES)
def test_a_word_file_becomes_markdown(read, body, markdown):
    assert read(body) == [markdown]


def test_strict_open_xml_is_read(tmp_path):
    path = word(tmp_path / "a.docx", paragraph("Plan", "H1") + table(row("a", "b"), row("c", "d")))
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "b.docx", "w") as strict:
        for name in archive.namelist():
            text = re.sub(
                r"schemas.openxmlformats.org/(\w+)/2006",
                r"purl.oclc.org/ooxml/\1",
                archive.read(name).decode(),
            )
            strict.writestr(name, text)
    [page] = read_docx(tmp_path / "b.docx").parts
    assert page.text == "# Plan\n\n| a | b |\n| --- | --- |\n| c | d |\n"


@pytest.mark.parametrize("name", ["word/styles.xml", "word/numbering.xml", "docProps/core.xml"])
@pytest.mark.parametrize("damaged", ["<x>&nope;</x>", "<x><y></x>", "no XML", ""])
def test_damaged_styles_and_properties_cost_no_text(tmp_path, name, damaged):
    path = word(tmp_path / "a.docx", paragraph("Plan", "H1") + paragraph("Buy seals."))
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "b.docx", "w") as copy:
        for member in set(archive.namelist()) - {name}:
            copy.writestr(member, archive.read(member))
        copy.writestr(name, damaged)
    [page] = read_docx(tmp_path / "b.docx").parts
    assert "Buy seals." in page.text


def test_the_main_part_is_found_by_its_relationship(read):
    """Word Online calls it ``document2.xml``."""
    assert read(paragraph("Plan", "H1") + paragraph("Buy seals."), main="document2.xml") == [
        "# Plan\n\nBuy seals.\n"
    ]


CONTRACT = (
    paragraph("Scope", "H1", listed(0))
    + paragraph("Terms", "H2", listed(1))
    + paragraph("Text.")
    + paragraph("Liability", "H2", listed(1))
    + paragraph("Fees", "H1", listed(0))
    + paragraph("Rates", "H2", listed(1))
)
ITEMS = "".join(
    paragraph(text, properties=listed(level))
    for text, level in (("a", 0), ("b", 1), ("c", 1), ("d", 0))
)
NUMBERED = {
    "headings": (CONTRACT, ("decimal %1.", "decimal %1.%2"), ["# 1. Scope", "## 1.2 Liability",
    "## 2.1 Rates"]),
    "articles": (
        CONTRACT,
        ("upperRoman Article_%1 3", "decimal %1.%2"),
        ["# Article III Scope", "## III.2 Liability", "# Article IV Fees"],
    ),
    "items": (ITEMS, ("decimal %1. 4", "lowerLetter (%2)"), ["4. a\n   - (a) b\n   - (b) c\n5. d"]),
    "items of several numbers": (ITEMS, ("decimal %1", "decimal %1.%2"),
    ["- 1 a\n  - 1.1 b\n  - 1.2 c\n- 2 d"]),
    "bullets": (ITEMS, ("bullet o", "bullet o"), ["- a\n  - b\n  - c\n- d"]),
    "letters after z": ("".join(paragraph(str(item), properties=listed(0)) for item in range(28)),
    ("upperLetter %1.",),
        ["- Z. 25\n- AA. 26\n- BB. 27"]),
}  # fmt: skip


@pytest.mark.parametrize(("body", "levels", "present"), NUMBERED.values(), ids=NUMBERED)
def test_the_numbers_of_headings_and_items_are_text(read, body, levels, present):
    [text] = read(body, numbering=numbering(*levels))
    assert all(piece in text for piece in present), text


def test_the_numbers_of_empty_cells_are_text(read):
    number = paragraph("", properties=listed(0))
    body = table(row("No.", "Gate"), row(cell(number), "North"), row(cell(number), "South"))
    [text] = read(body, numbering=numbering("decimal %1."))
    assert "| 1. | North |\n| 2. | South |" in text


def test_a_list_restarts_only_if_word_says_so(read):
    more = (
        '<w:num w:numId="2"><w:abstractNumId w:val="1"/><w:lvlOverride '
        'w:ilvl="0"><w:startOverride w:val="1"/>'
        "</w:lvlOverride></w:num>"
    )
    body = "".join(
        paragraph(f"item {position}", properties=listed(0, number)) + paragraph("between")
        for position, number in enumerate((1, 1, 2, 1))
    )
    [text] = read(body, numbering=numbering("decimal %1.", more=more))
    assert [line for line in text.splitlines() if "item" in line] == [
        "1. item 0", "2. item 1", "1. item 2", "3. item 3",
    ]  # fmt: skip


def test_styles_inherit_headings_and_lists(read):
    styles = (
        '<w:style w:type="paragraph" w:styleId="Own"><w:name w:val="Own"/><w:basedOn '
        'w:val="H2"/></w:style>'
        '<w:style w:type="paragraph" w:styleId="Owner"><w:name w:val="Owner"/><w:basedOn '
        'w:val="Own"/><w:pPr>'
        '<w:numPr><w:numId w:val="1"/></w:numPr></w:pPr></w:style>'
        '<w:style w:type="paragraph" w:styleId="Out"><w:name '
        'w:val="Out"/><w:pPr><w:outlineLvl w:val="2"/></w:pPr>'
        '</w:style><w:style w:type="paragraph" w:styleId="T"><w:name w:val="Title"/></w:style>'
        '<w:style w:type="paragraph" w:styleId="H8"><w:name w:val="heading 8"/></w:style>'
    )
    of_styles = (("F", "H8"), ("A", "Own"), ("B", "Owner"), ("C", "Out"), ("D", "T"))
    body = "".join(paragraph(text, style) for text, style in of_styles)
    body += paragraph("E", properties='<w:outlineLvl w:val="0"/>')
    [text] = read(body, styles=styles, numbering=numbering("decimal %1)"))
    assert text == "###### F\n\n## A\n\n## 1) B\n\n### C\n\n# D\n\n# E\n"


def test_a_style_has_its_level_in_the_list_of_the_style_below(read):
    styles = (
        '<w:style w:type="paragraph" w:styleId="L1"><w:name '
        'w:val="L1"/><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr>'
        '</w:pPr></w:style><w:style w:type="paragraph" w:styleId="L2"><w:name '
        'w:val="L2"/><w:basedOn w:val="L1"/>'
        '<w:pPr><w:numPr><w:ilvl w:val="1"/></w:numPr></w:pPr></w:style>'
    )
    body = "".join(
        paragraph(text, style)
        for text, style in (("a", "L1"), ("b", "L2"), ("c", "L2"), ("d", "L1"))
    )
    of_lists = numbering("decimal %1.", "decimal %1.%2")
    assert read(body, styles=styles, numbering=of_lists) == ["1. a\n   - 1.1 b\n   - 1.2 c\n2. d\n"]


def test_pages_start_at_the_page_breaks_that_word_saved(read):
    noted = "<w:r><w:lastRenderedPageBreak/><w:t>{}</w:t></w:r>"
    body = (
        paragraph("One.")
        + paragraph('<w:r><w:br w:type="page"/></w:r>')
        + paragraph(noted.format("Two,"))
        + paragraph(run("in the middle ") + noted.format("of three."))
        + paragraph("Four.", properties="<w:pageBreakBefore/>")
        + table(row("A", "B"), row(cell(paragraph(noted.format("c"))), "d"))
        + paragraph("Five.")
    )
    assert read(body) == [
        "One.\n",
        "Two,\n\nin the middle\n",
        "of three.\n",
        "Four.\n\n| A | B |\n| --- | --- |\n| c | d |\n",
        "Five.\n",
    ]


def test_notes_are_at_the_end_and_comments_and_pictures_are_counted(tmp_path):
    picture = '<w:r><w:drawing><a:blip r:embed="x"/></w:drawing></w:r>'
    drawn = '<w:r><w:pict><v:shape><v:imagedata r:id="rId1"/></v:shape></w:pict></w:r>'
    note = f'<w:footnote w:id="1">{paragraph(run("A note.") + drawn)}</w:footnote>'
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/image"
    link = f'<Relationship Id="rId1" Type="{kind}" Target="media/a.jpeg"/>'
    names = "http://schemas.openxmlformats.org/package/2006/relationships"
    body = paragraph(
        run("Text") + '<w:r><w:footnoteReference w:id="1"/></w:r>' + run(" goes on.") + picture
    )
    comment = f'<w:comment w:id="1">{paragraph("Why?")}</w:comment>'
    path = word(tmp_path / "a.docx", body, footnotes=note, comments=comment)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(
            "word/_rels/footnotes.xml.rels",
            f'<Relationships xmlns="{names}">{link}</Relationships>',
        )
    converted = read_docx(path)
    assert converted.parts[0].text == "Text [1] goes on.\n\n1. A note.\n"
    assert converted.to_dict()["metadata"]["left_out"] == "1 comment; 1 picture"


def test_a_document_that_takes_mammoth_a_minute_is_refused_before(tmp_path, monkeypatch):
    monkeypatch.setattr(converter, "_MAX_XML", 5_000)
    path = word(tmp_path / "a.docx", paragraph("word " * 2000))
    with pytest.raises(
        ConversionError,
        match=r"document.xml has 1\d,\d{3} bytes, more than 5,000. Split it",
    ):
        read_docx(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_an_entity_is_refused_in_any_encoding(tmp_path, encoding):
    path = word(tmp_path / "a.docx", paragraph("text"))
    text = (
        f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE w [<!ENTITY x '
        f'"{"y" * 1000}">]><w>{"&x;" * 99}</w>'
    )
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "b.docx", "w") as changed:
        for name in archive.namelist():
            changed.writestr(
                name, text.encode(encoding) if name == "word/styles.xml" else archive.read(name)
            )
    with pytest.raises(
        ConversionError, match=r"word/styles.xml declares an entity, which is not allowed"
    ):
        read_docx(tmp_path / "b.docx")


ODF = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{kind}:1.0"'
    for name, kind in {
        "office": "office",
        "t": "text",
        "table": "table",
        "s": "style",
        "d": "drawing",
    }.items()
)


@pytest.fixture
def opened(tmp_path):
    """Return a function that writes a text of OpenDocument and returns what becomes of it."""

    def make(body, automatic="", styles=""):
        with zipfile.ZipFile(tmp_path / "file.odt", "w") as archive:
            content = f"<office:automatic-styles>{automatic}</office:automatic-styles><office:body><office:text>{body}"  # noqa: E501
            archive.writestr("content.xml", f"<o {ODF}>{content}</office:text></office:body></o>")
            archive.writestr("styles.xml", f"<o {ODF}>{styles}</o>")
        return read_odt(tmp_path / "file.odt")

    return make


def odf_row(*cells):
    return f"<table:table-row>{''.join(cells)}</table:table-row>"


def odf_cell(text, spans=""):
    return f"<table:table-cell {spans}><t:p>{text}</t:p></table:table-cell>"


COVERED = "<table:covered-table-cell/>"
OPEN_CASES = {
    "spans": (
        "<table:table>"
        + odf_row(
            odf_cell("Region"),
            odf_cell("Plan", 'table:number-columns-spanned="2"'),
            COVERED,
            odf_cell("Fee"),
        )
        + odf_row(
            odf_cell("North", 'table:number-rows-spanned="2"'),
            odf_cell("a"),
            odf_cell("b"),
            odf_cell("1"),
        )
        + odf_row(COVERED, odf_cell("c"), odf_cell("d"), odf_cell("2"))
        + "</table:table>",
        (
            "| Region | Plan |  | Fee |\n| --- | --- | --- | --- |\n| North | a | b | 1 |\n| "
            "North | c | d | 2 |\n"
        ),
    ),
    "a cell that is repeated": (
        "<table:table>"
        + odf_row(odf_cell("A"), odf_cell("B"), odf_cell("C"))
        + odf_row(odf_cell("x", 'table:number-columns-repeated="2"'), odf_cell("y"))
        + "</table:table>",
        "| A | B | C |\n| --- | --- | --- |\n| x | x | y |\n",
    ),
    "raised letters": ('<t:p>10<t:span t:style-name="T1">6</t:span> cells</t:p>', "10^6 cells\n"),
    "numbers": (
        (
            '<t:list t:style-name="L1"><t:list-item t:start-value="4"><t:p>Fourth</t:p></t:list-item><t:list-item><t:p>Next'  # noqa: E501
            "</t:p></t:list-item></t:list>"
        ),
        "4. Fourth\n5. Next\n",
    ),
    "numbers of the levels above and signs around them": (
        (
            "<t:list "
            't:style-name="L2"><t:list-item><t:p>a</t:p><t:list><t:list-item><t:p>b</t:p></t:list-item>'
            "<t:list-item><t:p>c</t:p></t:list-item></t:list></t:list-item><t:list-item><t:p>d</t:p></t:list-item></t:list>"
        ),
        "- (a) a\n\n  - a.1 b\n  - a.2 c\n- (b) d\n",
    ),
    "readings": (
        "<t:p><t:ruby><t:ruby-base>東京</t:ruby-base><t:ruby-text>x</t:ruby-text></t:ruby>です</t:p>",
        "東京です\n",
    ),
    "signs": (
        "<t:p># of units</t:p><t:p>--<t:line-break/># x</t:p>",
        "\\# of units\n\n\\--\n\\# x\n",
    ),
    "a note": (
        (
            "<t:p>Text<t:note><t:note-citation>1</t:note-citation><t:note-body><t:p>A note.</t:p></t:note-body></t:note> on"  # noqa: E501
            "</t:p>"
        ),
        "Text [1] on\n\n[1] A note.\n",
    ),
    "a note with raised letters": (
        (
            '<t:p>Text<t:note><t:note-citation>1</t:note-citation><t:note-body><t:p>10<t:span t:style-name="T1">6</t:span>'  # noqa: E501
            "</t:p><t:p>More.</t:p></t:note-body></t:note></t:p>"
        ),
        "Text [1]\n\n[1] 10^6 More.\n",
    ),
    "an index": (
        (
            "<t:p>a</t:p><t:table-of-content><t:table-of-content-source>no"
            "</t:table-of-content-source></t:table-of-content>"
        ),
        "a\n",
    ),
    "spaces and boxes": (
        (
            "<t:p>a<t:s/>b<t:tab/>c<d:frame><d:text-box><t:p>In the "
            "box</t:p></d:text-box></d:frame></t:p>"
        ),
        "a b c\n\nIn the box\n",
    ),
    "lists that go on, with a paragraph that has no number": (
        (
            "<t:list "
            't:style-name="L1"><t:list-header><t:p>Rules</t:p></t:list-header><t:list-item><t:p>a</t:p><t:list>'
            "<t:list-item><t:p>in</t:p></t:list-item></t:list></t:list-item><t:list-item><t:p>b</t:p></t:list-item>"
            '</t:list><t:p>between</t:p><t:list t:style-name="L1" '
            't:continue-numbering="true"><t:list-item><t:p>c</t:p>'
            "</t:list-item></t:list><t:list "
            't:style-name="L1"><t:list-item><t:p>d</t:p></t:list-item></t:list>'
        ),
        "- Rules\n1. a\n\n   - in\n2. b\n\nbetween\n\n3. c\n\n1. d\n",
    ),
    "letters raised by a share of their height": (
        (
            '<t:p>5 m<t:span t:style-name="T2">2</t:span> at x<t:span t:style-name="T3">1</t:span>.'
            '<t:span t:style-name="T4">7</t:span></t:p>'
        ),
        "5 m^2 at x1.7\n",
    ),
    "changes": ("<t:tracked-changes><t:p>old</t:p></t:tracked-changes><t:p>new</t:p>", "new\n"),
}
RAISED = "".join(
    f'<s:style s:name="{name}"><s:text-properties {value}/></s:style>'
    for name, value in {
        "T1": 's:text-position="super 58%"',
        "T2": 's:text-position="33% 58%"',
        "T3": 's:text-position="-33% 58%"',
        "T4": 's:text-position="0% 100%"',
    }.items()
)
LISTED = (
    '<t:list-style s:name="L1"><t:list-level-style-number t:level="1" '
    's:num-format="1"/></t:list-style>'
    '<t:list-style s:name="L2"><t:list-level-style-number t:level="1" s:num-format="a" '
    's:num-prefix="(" s:num-suffix='
    '")"/><t:list-level-style-number t:level="2" s:num-format="1" t:display-levels="2" s:num-suffix=" "/></t:list-style>'  # noqa: E501
)


@pytest.mark.parametrize(("body", "markdown"), OPEN_CASES.values(), ids=OPEN_CASES)
def test_a_text_of_opendocument_becomes_markdown(opened, body, markdown):
    assert opened(body, RAISED + LISTED).parts[0].text == markdown


def test_headings_of_opendocument_have_their_numbers(opened):
    outline = "".join(
        f'<t:outline-level-style t:level="{level}" s:num-format="1" '
        f't:display-levels="{level}" s:num-suffix="."/>'
        for level in (1, 2)
    )
    heads = ((1, "Scope"), (2, "Terms"), (2, "Liability"), (1, "Fees"))
    body = "".join(f'<t:h t:outline-level="{level}">{text}</t:h>' for level, text in heads)
    body += '<t:h t:outline-level="1" t:is-list-header="true">Thanks</t:h>'
    converted = opened(body, styles=f"<t:outline-style>{outline}</t:outline-style>")
    assert (
        converted.parts[0].text
        == "# 1. Scope\n\n## 1.1. Terms\n\n## 1.2. Liability\n\n# 2. Fees\n\n# Thanks\n"
    )


RTF = {
    "letters of any code page": (
        (
            r"{\fonttbl{\f0\fcharset0 A;}{\f1\fcharset204 B;}}Caf\'e9 \u8364?5 "
            r"{\f1\'cf\'f0\'e8} \emdash\u-10179?\u-8704?"
        ),
        "Café €5 При —😀\n",
    ),
    "raised letters": (
        r"10{\super 6} cells, 1{\super st}, 10\super n+1\nosupersub  x",
        "10^6 cells, 1st, 10^(n+1) x\n",
    ),
    "headings": (
        r"\pard\outlinelevel1 Scope\par\pard\outlinelevel0 Top\par\pard Text.",
        "## Scope\n\n# Top\n\nText.\n",
    ),
    "items": (
        (
            r"\pard{\listtext\tab 4.\tab}first\par{\listtext\tab "
            r"(b)\tab}second\par{\listtext\'b7\tab}third\par\pard end"
        ),
        "4. first\n- (b) second\n- third\n\nend\n",
    ),
    "items of WordPad": (
        r"\pard{\pntext\f0 1.\tab}{\*\pn\pnlvlbody}first\par{\pntext 2.\tab}second",
        "1. first\n2. second\n",
    ),
    "a note": (
        r"40{\super \chftn }{\footnote \pard {\super \chftn } In May.}, and June",
        "40 Note: In May., and June\n",
    ),
    "a font without a charset beside one with it": (
        r"{\fonttbl{\f0 A;}{\f1\fcharset204 B;}}\f1 \'cf\'f0 \f0 \'e9",
        "Пр é\n",
    ),
    "a row without its definition": (
        (
            r"Before\par\pard\intbl Region\cell Fee\cell\row\pard\intbl North\cell "
            r"10\cell\row\pard After"
        ),
        "Before\n\n| Region | Fee |\n| --- | --- |\n| North | 10 |\n\nAfter\n",
    ),
    "a table": (
        (
            r"Before\par\trowd\intbl A\cell b|c\cell\row\trowd\intbl 1\cell "
            r"2\cell\trowd\row\pard After"
        ),
        "Before\n\n| A | b\\|c |\n| --- | --- |\n| 1 | 2 |\n\nAfter\n",
    ),
    "a picture whose bytes have no length, as Pandoc writes them": (
        r"Before {\pict\jpegblip\picw250 \bin ffd8ffe0} after, and \{\\bin \}",
        "Before after, and {\\bin }\n",
    ),
    "fields": (r"{\field{\*\fldinst PAGE}{\fldrslt link}}{\*\unknown hidden}", "link\n"),
    "signs": (
        r"# of units\par 1. no item\par a\par ---",
        "\\# of units\n\n1\\. no item\n\na\n\n\\---\n",
    ),
}


@pytest.mark.parametrize(("body", "markdown"), RTF.values(), ids=RTF)
def test_rtf_becomes_markdown(tmp_path, body, markdown):
    (tmp_path / "a.rtf").write_text(rf"{{\rtf1\ansi\ansicpg1252\uc1 {body}\par}}", "latin-1")
    assert read_rtf(tmp_path / "a.rtf").parts[0].text == markdown


def test_content_of_rtf_that_is_not_text_is_counted(tmp_path):
    (tmp_path / "a.rtf").write_text(
        r"{\rtf1{\info{\title A plan}}Text{\pict 89504e47}{\*\annotation note}\par}", "latin-1"
    )
    assert read_rtf(tmp_path / "a.rtf").to_dict()["metadata"] == {
        "title": "A plan",
        "left_out": "1 comment; 1 picture",
    }


@pytest.mark.parametrize("unit", [r"{\field{\*\fldinst{ HYPERLINK ", r"\trowd \cell "])
def test_links_and_rows_without_an_end_cost_rtf_linear_time(tmp_path, unit):
    """Links took quadratic time: half a minute for 5,000 of them."""
    path = tmp_path / "a.rtf"

    def read(text):
        path.write_text(text, "latin-1")
        read_rtf(path)

    assert_linear(read, lambda size: "{\\rtf1 " + unit * (size // len(unit)) + "}", 600_000)


CHUNK = (
    "<w:altChunk "
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" '
    'r:id="c1"/>'
)
RELATIONS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="c1" '
    'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/aFChunk" '
    'Target="{}"/></Relationships>'
)
PAGE_OF_CHUNK = (
    "<html><head><title>x</title></head><body><h1>Pumps</h1><p>40 rpm.</p></body></html>"
)
CHUNKS = {
    "page.html": PAGE_OF_CHUNK,
    "page.mht": (
        'MIME-Version: 1.0\nContent-Type: multipart/related; boundary="b"\n\n--b\n'
        'Content-Type: text/html; charset="utf-8"\nContent-Transfer-Encoding: quoted-printable\n\n'
        f"{PAGE_OF_CHUNK}\n--b--\n"
    ),
    "page.rtf": r"{\rtf1\ansi {\outlinelevel0 Pumps\par}\pard 40 rpm.\par}",
    "page.txt": "# Pumps\n40 rpm.\n",
}


@pytest.mark.parametrize("name", CHUNKS)
def test_an_embedded_document_in_another_format_is_read_in_its_place(tmp_path, name):
    path = word(tmp_path / "a.docx", paragraph("Before.") + CHUNK + paragraph("After."))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("word/_rels/document.xml.rels", RELATIONS.format(name))
        archive.writestr(f"word/{name}", CHUNKS[name])
    text = read_docx(path).text
    title = "\\# Pumps" if name.endswith("txt") else "# Pumps"
    assert text == f"Before.\n\n{title}\n\n40 rpm.\n\nAfter.\n"


def test_a_word_document_in_another_one_is_read(tmp_path):
    inner = word(tmp_path / "inner.docx", paragraph("40 rpm."))
    path = word(tmp_path / "a.docx", paragraph("Before.") + CHUNK)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("word/_rels/document.xml.rels", RELATIONS.format("inner.docx"))
        archive.writestr("word/inner.docx", inner.read_bytes())
    assert read_docx(path).text == "Before.\n\n40 rpm.\n"


def test_member_names_are_case_insensitive_and_can_have_backslashes(tmp_path):
    path = word(tmp_path / "a.docx", paragraph("The pump.", "H1"))
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "b.docx", "w") as written:
        for name in source.namelist():
            other = name.replace("/", "\\") if "rels" in name else name.replace("styles", "Styles")
            written.writestr(other, source.read(name))
    assert read_docx(tmp_path / "b.docx").text == "# The pump.\n"


def test_an_encrypted_text_of_opendocument_is_named_as_such(tmp_path):
    path = tmp_path / "secret.odt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("content.xml", bytes(range(256)))
        entry = "<m:file-entry><m:encryption-data/></m:file-entry>"
        names = 'xmlns:m="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"'
        archive.writestr("META-INF/manifest.xml", f"<m:manifest {names}>{entry}</m:manifest>")
    with pytest.raises(ConversionError, match="it is encrypted"):
        read_odt(path)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            r"The pump {\f1\i0\*\cs7\cf0 must never run dry} at night.\par",
            "The pump must never run dry at night.",
        ),
        (r"{\f1 \*\cs7 It runs at 40 rpm.}\par", "It runs at 40 rpm."),
        (r"It runs \*\cs7 at 40 rpm.\par", "It runs at 40 rpm."),
        (r"{\*\unknown left out}It runs.\par", "It runs."),
        ("{\n\\*\\unknown left out}It runs.\\par", "It runs."),
        (r"It never {\*\cs9 runs} dry.", "It never runs dry."),
        (r"{\stylesheet{\*\cs9 Emphasis;}}It runs.", "It runs."),
    ],
)
def test_only_the_first_word_of_a_group_of_rtf_can_drop_it(tmp_path, source, text):
    path = tmp_path / "a.rtf"
    path.write_text(rf"{{\rtf1\ansi\pard {source}}}", "latin-1")
    assert read_rtf(path).text == f"{text}\n"
