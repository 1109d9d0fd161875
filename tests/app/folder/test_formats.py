"""Each format from a real file to Markdown with headings, lists and tables, and a broken file."""

import posixpath
import runpy
import sys
from email.message import EmailMessage
from pathlib import Path

import pytest
import samples

from llama_index_contextual.app.folder import converters, formats, walk, worker
from llama_index_contextual.app.folder.convert import DocumentReader
from llama_index_contextual.app.folder.folders import Folders
from llama_index_contextual.app.folder.formats import known_formats, suffix_of
from llama_index_contextual.app.folder.html_to_markdown import html_to_markdown
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils.errors import DocumentError, MissingExtraError
from llama_index_contextual.utils.metadata import citation, citation_of

TIDE = "The tide at Aldmoor is four metres."
LIST = "- spring tide\n- neap tide"
TABLE = "| Berth | Metres |\n| --- | --- |\n| North | 120 |"
CODE = "```python\nprint(1)\n```"
IRIS = {"author": "Iris Vale"}
# By file: text that its parts contain, text that they do not, the places of the parts, and metadata
# of the document.
EXPECTED = {
    "report.docx": (
        ["# Tides", TIDE, LIST, "1. first step", "## Berths", TABLE, "The crane was painted."],
        ["Port of Aldmoor"],
        [{"page": 1}, {"page": 2}],
        {"title": "Harbour report", **IRIS},
    ),
    "plan.pptx": (
        ["# Tides", LIST, f"Notes:\n\n{TIDE}", "# Berths", TABLE],
        [],
        [{"slide": 1}, {"slide": 2}],
        {"title": "Plan of the harbour"},
    ),
    "fees.xlsx": (
        ["# Berths", "| North | 120 | 1988-03-04 |", "# Fees", "| Day | 12.5 |"],
        ["00:00:00"],
        [{"sheet": "Berths"}, {"sheet": "Fees"}],
        {"title": "Fees of the harbour"},
    ),
    "note.odt": (["# Tides", TIDE, "- spring tide", TABLE], [], [{}], {"title": "Harbour", **IRIS}),
    "page.html": (
        ["# Tides", TIDE, LIST, TABLE, CODE],
        ["evil", "Menu", "All rights"],
        [{}],
        {"title": "Harbour", **IRIS},
    ),
    "page.htm": (
        ["# Tides", TIDE, LIST, TABLE, CODE],
        ["evil", "Menu"],
        [{}],
        {"title": "Harbour", **IRIS},
    ),
    "book.epub": (
        ["# Tides", TIDE, LIST, TABLE, "# Cranes"],
        ["evil"],
        [{"chapter": 1}, {"chapter": 2}],
        {"title": "Harbour", **IRIS},
    ),
    "mail.eml": (
        ["# Dredging of the harbour", TIDE, LIST, "Attached: map.pdf"],
        ["%PDF"],
        [{}],
        {
            "subject": "Dredging of the harbour",
            "sender": "Iris Vale <iris@example.org>",
            "to": "Tom Reed <tom@example.org>",
            "date": "2026-03-02",
        },
    ),
    "work.ipynb": (
        ["# Tides", TIDE, CODE, "## Berths", TABLE, LIST],
        ["SECRET"],
        [{"cell": 1}, {"cell": 3}],
        {"title": "Harbour"},
    ),
    "guide.rst": (
        ["# Harbour\n", "## Tides\n", TIDE, "```python\n\n   print(1)\n```", TABLE],
        ["===", "---\n\n"],
        [{}],
        {},
    ),
    "log.org": (
        [
            "# Tides",
            TIDE,
            LIST,
            "## Berths\n",
            "| Berth | Metres |\n|-------|--------|\n| North | 120    |",
            CODE,
        ],
        ["TODO", ":port:", "#+"],
        [{}],
        {"title": "Harbour", **IRIS},
    ),
    "ships.csv": ([TABLE, "| South, old | 80 |"], [], [{}], {}),
    "paper.tex": (
        ["## Tides", TIDE, LIST, "### Berths", TABLE, "```\nprint(1)\n```"],
        ["remark", "\\item", "\\hline"],
        [{}],
        {"title": "Harbour", **IRIS},
    ),
    "letter.rtf": ([TIDE, TABLE, "spring tide"], ["rtf1"], [{}], {"title": "Harbour", **IRIS}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_document_becomes_markdown_with_the_places_of_its_parts(tmp_path, name):
    present, absent, places, about = EXPECTED[name]
    documents = DocumentReader().load_data(samples.make(name, tmp_path))
    text = "\n\n".join(document.text for document in documents)
    for piece in present:
        assert piece in text
    for piece in absent:
        assert piece not in text
    keys = ("page", "slide", "sheet", "cell", "chapter")
    assert [
        {key: document.metadata[key] for key in keys if key in document.metadata}
        for document in documents
    ] == places
    assert about.items() <= documents[0].metadata.items()


@pytest.mark.parametrize(
    "path",
    [
        "a/b.PDF",
        "b.tar.gz",
        ".hidden",
        "..md",
        "a.b/c",
        "a.b/.c.Md",
        "end.",
        "",
        "a\\b.c\\d",
        "a\\b.X",
        "a/",
        "...a.b",
    ],
)
def test_a_suffix_is_the_one_of_splitext_in_lower_case(path):
    assert suffix_of(path) == posixpath.splitext(path.replace("\\", "/"))[1].lower()


def first_suffix(suffix):
    return known_formats()[suffix].suffixes[0]


def test_each_format_has_a_sample_but_outlook_mail_which_no_program_here_writes():
    assert {first_suffix(suffix_of(name)) for name in samples.MAKERS} | {".msg"} == {
        known.suffixes[0] for known in known_formats().values()
    }
    assert set(EXPECTED) == set(samples.MAKERS) - {"report.pdf"}


OTHER_SUFFIXES = [suffix for suffix in known_formats() if suffix != first_suffix(suffix)]


@pytest.mark.parametrize("suffix", OTHER_SUFFIXES)
def test_another_suffix_of_a_format_is_read_the_same_way(suffix, tmp_path):
    first = first_suffix(suffix)
    name = next(name for name in samples.MAKERS if suffix_of(name) == first)
    sample = samples.make(name, tmp_path)
    texts = [page.text for page in DocumentReader().load_data(sample)]
    renamed = sample.rename(sample.with_suffix(suffix))
    assert [page.text for page in DocumentReader().load_data(renamed)] == texts
    cited = citation(f"a{first}", 1, 2, "3")
    assert citation(f"a{suffix}", 1, 2, "3") == cited.replace(first, suffix)


GEMINI = """
from llama_index_contextual.app.folder.formats import Conversion, Part, declare_format


@declare_format("Gemini text", ".gmi", packages=("no_such_package",), kept="links")
def read_gmi(path):
    return Conversion([Part(path.read_text("utf-8").replace("=>", "-"))])
"""


@pytest.fixture
def gemini(tmp_path, monkeypatch):
    """Add a module for a format to the converters; return a folder with a file of it."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "gmi.py").write_text(GEMINI, "utf-8")
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.gmi").write_text("=> a link\n", "utf-8")
    with monkeypatch.context() as changed:
        changed.setattr(converters, "__path__", [*converters.__path__, str(modules)])
        formats.known_formats.cache_clear()
        changed.setattr(formats, "has_extra", formats.has_extra.__wrapped__)
        yield folder
    sys.modules.pop(f"{converters.__name__}.gmi", None)
    formats.known_formats.cache_clear()


def test_a_new_format_only_needs_a_module_among_the_converters(gemini, monkeypatch):
    # Conversion
    assert worker.convert(gemini / "a.gmi", ".gmi")["parts"] == [("- a link\n", {})]
    # Messages
    with pytest.raises(MissingExtraError, match=r"the reader for \.gmi files \(Gemini text\)"):
        DocumentReader().load_data(gemini / "a.gmi")
    with pytest.raises(DocumentError, match=r"\.xyz cannot be converted.*\.gmi"):
        DocumentReader().documents(gemini / "a.xyz", b"")
    assert "documents" in walk.summary_of_skipped(["a.gmi"])
    # The walk
    with monkeypatch.context() as changed:
        changed.setattr(formats, "has_extra", lambda: True)
        rules = walk.FileRules()
    folders = Folders(gemini, {"": gemini})
    assert [file.path for file in walk.walk_folders(folders, rules).files] == ["a.gmi"]
    # The documentation
    hooks = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "hooks.py"))
    row = "| Gemini text | `.gmi` | `file.gmi#L12-L16` | links |  |"
    assert row in hooks["table_of_formats"]()


def test_a_pdf_has_pages_headings_and_tables_but_no_running_lines(tmp_path):
    pages = DocumentReader().load_data(samples.make("report.pdf", tmp_path))
    assert [page.metadata["page"] for page in pages] == [1, 2, 3]
    assert pages[0].metadata["title"] == "Report of the harbour"
    first = pages[0].text
    assert first.startswith(
        "# Harbour report\n\n## Tides of year 1\n\nThe tide at Aldmoor was 4 metres"
    )
    assert (
        "| Berth | Metres | Ships |\n| --- | --- | --- |\n| North | 121 | 30 |\n| South "
        "| 80 | 1,204 |\n| Old | 9 | - |"
    ) in first
    assert "spring tide" in first
    assert not any("annual report" in page.text or "Page " in page.text for page in pages)
    for page in pages:
        page.metadata["path"] = "report.pdf"
    nodes = HeadingAwareMarkdownNodeParser(chunk_size=60)(pages)
    last = [node for node in nodes if node.metadata["page"] == 3]
    assert {node.metadata["header_path"] for node in last} == {"Harbour report > Tides of year 2"}
    assert citation_of(last[0].metadata) == "report.pdf#page=3"
    texts = {page.doc_id: page.text for page in pages}
    assert all(
        texts[node.ref_doc_id][node.start_char_idx : node.end_char_idx] == node.text
        for node in nodes
    )


def test_a_mail_continues_after_an_attachment_and_names_it(tmp_path):
    inner = EmailMessage()
    inner["Subject"] = "Old fees"
    mail = EmailMessage()
    mail["Subject"] = "Fees"
    mail.set_content("First the map.")
    mail.add_attachment(b"%PDF-1.4", maintype="application", subtype="pdf", filename="map.pdf")
    mail.add_attachment("And now the fees.", disposition="inline")
    mail.add_attachment(inner)
    mail.add_attachment(
        b"GIF89a", maintype="image", subtype="gif", disposition="inline", cid="<logo>"
    )
    mail.add_attachment("a,b", subtype="csv")
    (tmp_path / "mail.eml").write_bytes(bytes(mail))
    [document] = DocumentReader().load_data(tmp_path / "mail.eml")
    assert document.text.split("\n\n")[1:3] == ["First the map.", "And now the fees."]
    assert document.text.split("\n\n")[3] == "## Old fees"
    assert document.text.endswith("Attached: map.pdf, image/gif, text/csv\n")
    assert document.metadata["left_out"] == "3 attachments"


def test_values_can_contain_quotes_and_csv_of_excel_starts_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "ships.csv"
    path.write_text("Berth,Metres,Note\n" + 'North,120,"closed, the ""old"""\n' * 9, "utf-8-sig")
    [document] = DocumentReader().load_data(path)
    assert document.text.startswith("| Berth | Metres | Note |\n| --- |")
    assert document.text.count('| North | 120 | closed, the "old" |') == 9


PAGES = [
    ("<table><tr><td><h2>Tides</h2><p>Four<br>metres.</table>", "## Tides\n\nFour\nmetres.\n"),
    (
        "<table><caption>Berths</caption><tr><td><p>North</p><p>pier</p><td><table><tr><td>1<td>2</table></table>",
        "Berths\n\n| North pier | 1 2 |\n| --- | --- |\n",
    ),
    ("<ul><li><p>one</p><ol><li>first<li></ol><li></ul><p>after", "- one\n\n  1. first\n\nafter\n"),
    ("<pre class='lang-sh'>ls<br>cd <button>copy</button></pre><p>x", "```sh\nls\ncd\n```\n\nx\n"),
    ("<nav>menu</nav><form><main>tide</main></form><article>other", "tide\n"),
    (
        "<p>top<div><article>one</article><h2>more</h2><article>two</article></div>",
        "top\n\none\n\n## more\n\ntwo\n",
    ),
]


@pytest.mark.parametrize(("page", "markdown"), PAGES)
def test_a_page_is_its_text_without_layout(page, markdown):
    assert html_to_markdown(page).text == markdown


@pytest.mark.parametrize("name", ["guide.rst", "log.org"])
def test_markup_keeps_its_lines(tmp_path, name):
    path = samples.make(name, tmp_path)
    source = path.read_text("utf-8").splitlines()
    [document] = DocumentReader().load_data(path)
    assert document.text.splitlines().index("The tide at Aldmoor is four metres.") == source.index(
        "The tide at Aldmoor is four metres."
    )
    assert len(document.text.splitlines()) == len(source)


@pytest.mark.parametrize(
    "name",
    ["report.pdf", "report.docx", "plan.pptx", "fees.xlsx", "note.odt", "book.epub", "work.ipynb"],
)
def test_a_broken_twin_is_refused_with_the_reason(tmp_path, name):
    path = samples.make(name, tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DocumentError, match=r"damaged|cannot|failed|invalid|no "):
        DocumentReader().load_data(path)
    path.write_bytes(b"")
    with pytest.raises(DocumentError):
        DocumentReader().load_data(path)


def test_an_encrypted_pdf_and_a_scanned_one_are_named_as_such(tmp_path):
    from reportlab.pdfgen.canvas import Canvas

    secret = Canvas(str(tmp_path / "secret.pdf"), encrypt="word")
    secret.drawString(100, 100, "The tide.")
    secret.save()
    with pytest.raises(DocumentError, match="encrypted"):
        DocumentReader().load_data(tmp_path / "secret.pdf")
    scan = Canvas(str(tmp_path / "scan.pdf"))
    scan.rect(100, 100, 200, 200, fill=1)
    scan.save()
    with pytest.raises(DocumentError, match=r"scanned.*OCR"):
        DocumentReader().load_data(tmp_path / "scan.pdf")
