"""HTML, EPUB and mail: spans, numbers, hidden or repeated text, and escaped Markdown."""

import time
import zipfile
from email.message import EmailMessage

import pytest
from outlook_files import outlook

from llama_index_contextual.app.folder.converters.eml import read_eml
from llama_index_contextual.app.folder.converters.epub import read_epub
from llama_index_contextual.app.folder.converters.html import read_html
from llama_index_contextual.app.folder.converters.msg import read_msg
from llama_index_contextual.app.folder.formats import ConversionError
from llama_index_contextual.app.folder.html_to_markdown import decode_html, html_to_markdown
from llama_index_contextual.app.folder.markdown import MAX_CELLS, numeral

TABLES = {
    "a cell over two rows": (
        ("<tr><th>Region<th>Plan<th>Fee<tr><td rowspan=2>North<td>Basic<td>10<tr><td>Premium<td>25<tr><td>East"  # noqa: E501
        "<td colspan=2>closed"),
        ("| Region | Plan | Fee |\n| --- | --- | --- |\n| North | Basic | 10 |\n| North | Premium | 25 |\n"  # noqa: E501
        "| East | closed |  |"),
    ),
    "a cell over two rows in the middle": (
        "<tr><th>A<th>B<th>C<tr><td>1<td rowspan=2>m<td>3<tr><td>4<td>6",
        "| A | B | C |\n| --- | --- | --- |\n| 1 | m | 3 |\n| 4 | m | 6 |",
    ),
    "a name over two columns": (
        "<tr><th>Model<th colspan=2>Speed<th>Price<tr><td>P1<td>10<td>20<td>99",
        "| Model | Speed | Speed | Price |\n| --- | --- | --- | --- |\n| P1 | 10 | 20 | 99 |",
    ),
    "names in two rows": (
        ("<thead><tr><th rowspan=2>Model<th colspan=2>Speed<th rowspan=2>Price<tr><th>min<th>max</thead>"  # noqa: E501
        "<tr><td>P1<td>10<td>20<td>99"),
        ("| Model | Speed min | Speed max | Price |\n| --- | --- | --- | --- |\n| P1 | 10 | 20 | 99 |"),  # noqa: E501
    ),
    "a title over all columns": (
        "<tr><th colspan=3>Fees 2026<tr><th>Kind<th>EUR<th>USD<tr><td>Day<td>1<td>2",
        "Fees 2026\n\n| Kind | EUR | USD |\n| --- | --- | --- |\n| Day | 1 | 2 |",
    ),
    "a name without text": (
        "<tr><th><th>2021<th>2020<tr><th>Income<td>5<td>6",
        "|  | 2021 | 2020 |\n| --- | --- | --- |\n| Income | 5 | 6 |",
    ),
    "spans beyond the table": (
        "<tr><td rowspan=99 colspan=2>x<td>1<tr><td>2",
        "| x |  | 1 |\n| --- | --- | --- |\n| x |  | 2 |",
    ),
    "spans that are no numbers": (
        "<tr><td rowspan=all colspan=-1>x<td>1<tr><td>y<td>2",
        "| x | 1 |\n| --- | --- |\n| y | 2 |",
    ),
    "signs": ("<tr><td># a<td>b|c<tr><td>- 5<td><code>x</code>",
    "| # a | b\\|c |\n| --- | --- |\n| - 5 | `x` |"),
    "raised letters": (
        "<tr><th>Area (m<sup>2</sup>)<th>N<tr><td>10<sup>6</sup><td>3<sup><a href=#n1>1</a></sup>",
        "| Area (m^2) | N |\n| --- | --- |\n| 10^6 | 3 [1] |",
    ),
    "all rows below": (
        "<tr><td rowspan=0>N<td>1<tr><td>2<tr><td>3",
        "| N | 1 |\n| --- | --- |\n| N | 2 |\n| N | 3 |",
    ),
    "several bodies": (
        "<tbody><tr><td>A<td>B</tbody><tbody><tr><td>1<td>2</tbody><tfoot><tr><td>3<td>4</tfoot>",
        "| A | B |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |",
    ),
    "names in a table that is laid out by another": (
        "<tr><td><table><tr><th>A<th>B<tr><td>1<td>2</table><td>beside",
        "| A | B |\n| --- | --- |\n| 1 | 2 |\n\nbeside",
    ),
    "layout": ("<tr><td><h2>Tides</h2>Four<br>metres.<td><table><tr><td>A<td>B</table>", ("## Tides\n\nFour\nmetres.\n\n"  # noqa: E501
        "| A | B |\n| --- | --- |")),
    "a list in a cell": ("<tr><td>A<td>B<tr><td><ul><li>p<li>q</ul><td>2",
    "| A | B |\n| --- | --- |\n| - p - q | 2 |"),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "markdown"), TABLES.values(), ids=TABLES)
def test_a_table_is_one_grid(rows, markdown):
    assert html_to_markdown(f"<table>{rows}</table>").text == f"{markdown}\n"


def test_spans_cannot_make_a_table_of_millions_of_cells():
    rows = "<tr><td colspan=1000 rowspan=65000>x<td>y" + "<tr><td>z" * 2000
    assert MAX_CELLS < 1001 * 2000
    with pytest.raises(ConversionError, match=r"a table of more than 500,000 cells\. Split it"):
        html_to_markdown(f"<table>{rows}</table>")


FAR = (
    "All rights reserved by the office of the harbour and by each of its keepers, who wrote "
    "this in long years."
)
PAGES = {
    "no end of the head": (
        (
            "<!doctype html><html><head><meta "
            "charset=utf-8><title>Pump</title><body><h1>Pump</h1><p>Prime it<p>Never dry"
        ),
        "# Pump\n\nPrime it\n\nNever dry\n",
    ),
    "no head at all": ("<title>T</title><h1>A</h1>text<p>more", "# A\n\ntext\n\nmore\n"),
    "a page of XML": (
        (
            "<?xml version='1.0'?><html "
            "xmlns='http://www.w3.org/1999/xhtml'><head><title/></head><body><p>a<br/>b</p>"
            "<a id='x'/><p>c</p></body></html>"
        ),
        "a\nb\n\nc\n",
    ),
    "headings that are buttons": (
        (
            "<h2><button class=acc>Can I return "
            "shoes?</button></h2><p>Yes.<dl><dt><button>Abroad?</button><dd>No.</dl>"
            "<button aria-expanded=false>Fees</button><p>None."
        ),
        "## Can I return shoes?\n\nYes.\n\nAbroad?\n\nNo.\n\nFees\n\nNone.\n",
    ),
    "a button in code, and labels of tabs": (
        "<h3>Run</h3><pre>a<button>Copy</button></pre>Now.<ul><li><button role=tab>Linux</button><button role=tab>Mac</button></ul>",  # noqa: E501
        "### Run\n\n```\na\n```\n\nNow.\n\n- Linux\n  Mac\n",
    ),
    "what is deleted": (
        "<p>Price <del>20</del> <ins>15</ins> EUR, <s>10</s> 5<ul><li><del>Buy</del></ul>",
        "Price ~~20~~ 15 EUR, ~~10~~ 5\n\n- ~~Buy~~\n",
    ),
    "a button in a table's header, and a short one above its panel": (
        (
            "<table><tr><th><button>Name</button></th><th>Price</th></tr><tr><td>Ring</td><td>5</td></tr></table>"
            "<button class=accordion>Shipping</button><div class=panel>Only to Norway.</div>"
        ),
        "| Name | Price |\n| --- | --- |\n| Ring | 5 |\n\nShipping\n\nOnly to Norway.\n",
    ),
    "a question that is a button": (
        (
            "<div><button>How do I return shoes that do not fit?</button></div><div>Within "
            "30 days.</div>"
        ),
        "How do I return shoes that do not fit?\n\nWithin 30 days.\n",
    ),
    "a summary": (
        "<details><summary>More <b>on</b> it</summary>Inside</details>",
        "More on it\n\nInside\n",
    ),
    "an aside in the text": (
        "<main><p>Run it.<aside aria-label=Danger><p>Back up first.</aside><p>Restart.</main>",
        "Run it.\n\nBack up first.\n\nRestart.\n",
    ),
    "an aside without a main part": (
        "<p>Run it.<aside class=note>Mind the gap.</aside>",
        "Run it.\n\nMind the gap.\n",
    ),
    "a footer of a quote": (
        "<blockquote><p>Go.<footer>Iris</footer></blockquote>",
        "> Go.\n>\n> Iris\n",
    ),
    "a form around the page": (
        "<form><h1>Fees</h1>Ten.<select><option>a</select></form>",
        "# Fees\n\nTen.\n",
    ),
    "signs beside headings of Sphinx": (
        (
            "<h2>Install<a class=headerlink href=#i title='Link to this heading'>¶</a></h2><dl><dt>run()<a class=headerlink "  # noqa: E501
            "href=#r>¶</a><dd>Runs.</dl>"
        ),
        "## Install\n\nrun()\n\nRuns.\n",
    ),
    "signs beside headings of MkDocs and others": (
        (
            "<h2>Use<a class=headerlink href=#u>#</a></h2><h3><a class=anchor href=#c></a>Cut</h3><h3>Tie<a class=hash-link "  # noqa: E501
            "href=#t>\u200b</a></h3>"
        ),
        "## Use\n\n### Cut\n\n### Tie\n",
    ),
    "headings that are links, and signs that are text": (
        (
            "<h2><a class=anchor href=#x>Linked</a></h2><h2>C#</h2><h2># of units</h2><p>§ 5 "
            "and <a href=#a>¶ 3</a></p>"
        ),
        "## Linked\n\n## C\\#\n\n## # of units\n\n§ 5 and ¶ 3\n",
    ),
    "raised and lowered letters": (
        (
            "<p>10<sup>6</sup> cells, 5 m<sup>2</sup>, 10<sup>-3</sup>, (a+b)<sup>2</sup>, 1<sup>st</sup>, e<sup>x</sup>, "  # noqa: E501
            "H<sub>2</sub>O, log<sub>10</sub>100, pump<sup><a href=#fn1>2</a></sup>"
        ),
        "10^6 cells, 5 m^2, 10^-3, (a+b)^2, 1st, e^x, H2O, log_10 100, pump [2]\n",
    ),
    "text that looks like Markdown": (
        (
            "<p># of units: 5<p>a<br>--<br># b<br>1. c<br>2) d<br>- e<br>&gt; f<br>| g | "
            "h |<br>|---|---|<br>===<br>```"
            "<div># i <b># j</b></div><p><b># k</b> l<p>&lt;script&gt; m"
        ),
        (
            "\\# of units: 5\n\na\n\\--\n\\# b\n1\\. c\n2\\) d\n\\- e\n\\> f\n\\| g | h |\n\\|---|---|\n\\===\n\\```\n\n"  # noqa: E501
            "\\# i # j\n\n\\# k l\n\n\\<script> m\n"
        ),
    ),
    "signs within a line, and in code": (
        "<p>See # 5, 1. and | x <i># y</i> and <code># z</code><pre># w</pre>",
        "See # 5, 1. and | x # y and `# z`\n\n```\n# w\n```\n",
    ),
    "items that begin with signs": (
        "<ul><li># a<li>- b<li>1. c</ul>",
        "- \\# a\n- \\- b\n- 1\\. c\n",
    ),
    "numbers of lists": (
        (
            "<ol start=4><li>a<li>b</ol><ol><li "
            "value=9>c<li>d</ol><ol><li>e<li>f</ol><ol type=a><li>g<li>h</ol>"
            "<ol start=3 type=I><li>i</ol><ol reversed><li>j<li>k</ol><ol reversed "
            "start=9><li>l<li>m</ol>"
        ),
        (
            "4. a\n5. b\n\n9. c\n10. d\n\n1. e\n2. f\n\n- a. g\n- b. h\n\n- III. i\n\n2. j\n"
            "1. k\n\n9. l\n8. m\n"
        ),
    ),
    "lists in lists": (
        "<ol><li>a<ul><li>b<ol><li>c</ol></ul><li>d</ol>",
        "1. a\n   - b\n     1. c\n2. d\n",
    ),
    "code with its language and numbers of lines": (
        (
            "<div class='highlight-python notranslate'><pre><span></span>import os</pre></div><table class=highlighttable>"  # noqa: E501
            "<tr><td class=linenos><pre>1\n2</pre><td class=code><pre>a\n```b</pre></table>"
        ),
        "```python\nimport os\n```\n\n````\na\n```b\n````\n",
    ),
    "letters that break words": ("<p>har&shy;bour&nbsp;office", "harbour office\n"),
    "text beside blocks": ("a<div>b<p>c</p>d</div>e<br># f", "a\n\nb\n\nc\n\nd\n\ne\n\\# f\n"),
    "a tab that is hidden until it is chosen": ("<div role=tabpanel hidden>Linux</div>", "Linux\n"),
    "answers that their questions unfold, and a menu": (
        (
            "<h3><button aria-expanded=false aria-controls=a>Return "
            "shoes?</button></h3><p id=a hidden>Within 30 days."
            "<h3>Abroad?</h3><div role=region hidden>No.</div><ul role=menu id=m "
            "hidden><li>x</ul><p aria-controls=m>E"
        ),
        "### Return shoes?\n\nWithin 30 days.\n\n### Abroad?\n\nNo.\n\nE\n",
    ),
    "headings by their role": (
        "<div role=heading aria-level=1>Pump</div>Old.<p role=heading>Seals</p>New.",
        "# Pump\n\nOld.\n\n## Seals\n\nNew.\n",
    ),
    "links of a wiki that edit": (
        "<h2>History<span class=mw-editsection>[<a href=e>edit</a>]</span></h2>Old.",
        "## History\n\nOld.\n",
    ),
    "signs of notes": (
        (
            "<p>40<a epub:type=noteref href=n.xhtml#1>1</a>, 50<a role=doc-noteref "
            "href=#2><sup>2</sup></a>, 60<a "
            "class=footnote-ref>[3]</a>, 70<sup><a href=#4>4</a></sup><sup><a href=#5>5</a></sup>"
        ),
        "40 [1], 50 [2], 60 [3], 70 [4] [5]\n",
    ),
    "raised and lowered letters that are no number": (
        (
            "<p>10<sup>n+1</sup>, x<sup>2/3</sup>, Ca<sup>2+</sup>, H<sub>n+1</sub>, "
            "see<sup>1,2</sup>"
        ),
        "10^(n+1), x^(2/3), Ca^2+, H_(n+1), see^1,2\n",
    ),
    "formulas, in TeX where it stands there": (
        (
            "<p>Take "
            "<math><mi>E</mi><mo>=</mo><mi>m</mi><msup><mi>c</mi><mn>2</mn></msup></math>, "
            "<math><mfrac>"
            "<mn>1</mn><mn>2</mn></mfrac></math>, <span "
            "class=katex><math><semantics><msqrt><mi>a</mi></msqrt>"
            "<annotation>\\sqrt{a}</annotation></semantics></math><span "
            "class=katex-html>√a</span></span>"
        ),
        "Take E=mc^2, 1/2, \\sqrt{a}\n",
    ),
    "formulas of several pieces": (
        (
            "<math><mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><msup><mi>x</mi><mn>2</mn></msup></mfrac>"
            "<munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover></math>"
        ),
        "(a+b)/(x^2)∑_(i=1)^n\n",
    ),
    "boxes that are ticked": (
        (
            "<ul><li><input type=checkbox checked disabled> Paint<li><input "
            "type=checkbox>Rig</ul><input type=radio>"
        ),
        "- [x] Paint\n- [ ] Rig\n",
    ),
    "labels beside one another": (
        "<div><label>Linux</label><label>macOS</label></div>",
        "Linux\n\nmacOS\n",
    ),
    "what is about the page": ("<h1>Tides</h1><div role=contentinfo>Generated</div>", "# Tides\n"),
    "letters raised by a style": ("<p>10<span style='vertical-align: super'>6</span>", "10^6\n"),
    "readings above letters": (
        "<ruby>漢<rp>(</rp><rt>kan</rt><rp>)</rp></ruby>字<ruby>文<rt>b</rt></ruby>",
        "漢字文\n",
    ),
    "answers of buttons without a role": (
        "<div><button>How do I return my shoes?</button><p hidden>By post.</div>",
        "How do I return my shoes?\n\nBy post.\n",
    ),
}


@pytest.mark.parametrize(("page", "markdown"), PAGES.values(), ids=PAGES)
def test_a_page_becomes_markdown(page, markdown):
    assert html_to_markdown(page).text == markdown


def test_a_list_whose_items_have_headings_is_layout():
    page = (  # as javadoc writes it
        "<ul class=member-list><li><section><h3>open</h3><p>Opens a "
        "gate.<ul><li>lock<li>sluice</ul></section>"
        "<li><section><h3>close</h3><p>Closes it.</section></ul>"
    )
    members = "### open\n\nOpens a gate.\n\n- lock\n- sluice\n\n### close\n\nCloses it.\n"
    assert html_to_markdown(page).text == members


def test_line_numbers_are_not_code_and_letters_of_symbol_fonts_are_bullets():
    code = "<pre><span class=source-line-no>001</span><span>import tides;</span></pre>"
    page = f"{code}<p>\uf0b7\xa0 spring<p>neap \uf0b7 tide<p>\uf0fe ticked"
    assert (
        html_to_markdown(page).text
        == "```\nimport tides;\n```\n\n- spring\n\nneap \uf0b7 tide\n\n\uf0fe ticked\n"
    )


def test_a_charset_is_found_after_a_long_preamble():
    page = f"<html><head>{' ' * 5000}<meta charset=windows-1251><body>Приливы".encode("cp1251")
    assert html_to_markdown(decode_html(page)).text == "Приливы\n"


def test_content_of_a_page_that_is_not_text_is_counted():
    page = html_to_markdown(
        f"<body><script>a</script><nav>{'menu ' * 30}</nav><nav>short</nav><p>Text<img "
        "src=a><svg><text>x</text></svg>"
        f"<noscript>{FAR}</noscript><footer>{FAR}</footer>"
    )
    assert page.text == "Text\n"
    assert page.left_out == {
        "script": 1,
        "picture": 2,
        "<nav> character": 149,
        "<noscript> character": len(FAR),
        "<footer> character": len(FAR),
    }
    outside = html_to_markdown(f"<p>{FAR}</p><main>Text</main>")
    assert (outside.text, outside.left_out) == ("Text\n", {"outside character": len(FAR) + 1})


@pytest.mark.parametrize("text", ["Grüße\n", "naïve café", "ü", "São Paulo"])
def test_accents_without_a_charset_are_western(text):
    assert decode_html(text.encode("cp1252")) == decode_html(text.encode("cp1252"), "utf-8") == text


def test_a_page_is_decoded_with_its_declared_charset(tmp_path):
    page = tmp_path / "page.html"
    page.write_bytes("<meta charset=koi8-r><p>Причал".encode("koi8-r"))
    assert read_html(page).parts[0].text == "Причал\n"
    page.write_bytes("<meta charset=utf-8><p>Café".encode("latin-1"))
    assert read_html(page).parts[0].text == "Café\n"
    page.write_bytes(b"\xef\xbb\xbf" + "<meta charset=windows-1252><p>Größe".encode())
    assert read_html(page).parts[0].text == "Größe\n"


def test_numbers_are_shown_as_html_and_word_show_them():
    assert [numeral(number, "i") for number in (4, 9, 14, 40, 1990)] == [
        "iv",
        "ix",
        "xiv",
        "xl",
        "mcmxc",
    ]
    assert [numeral(number, "upperLetter") for number in (1, 26, 27)] == ["A", "Z", "AA"]
    assert [numeral(number, "i") for number in (0, -1, 4000)] == ["0", "-1", "4000"]


def test_notes_and_warnings_of_a_book_are_text(tmp_path):
    with zipfile.ZipFile(tmp_path / "book.epub", "w") as book:
        book.writestr(
            "META-INF/container.xml", '<c><rootfiles><rootfile full-path="o.opf"/></rootfiles></c>'
        )
        book.writestr(
            "o.opf",
            '<p><manifest><item id="t" href="toc.xhtml"/><item id="c" '
            'href="c%201.xhtml"/></manifest><spine>'
            '<itemref idref="t"/><itemref idref="c"/></spine></p>',
        )
        book.writestr(
            "toc.xhtml",
            "<html><body><nav><ol><li><a href='c 1.xhtml'>Whales</a></li></ol></nav></body></html>",
        )
        book.writestr(
            "c 1.xhtml",
            '<html xmlns="http://www.w3.org/1999/xhtml" '
            'xmlns:epub="http://www.idpf.org/2007/ops"><head><title/></head>'
            '<body><h1>Whales</h1><p>They sing<sup><a epub:type="noteref" '
            'href="#n1">1</a></sup>.</p>'
            '<aside epub:type="footnote" id="n1"><p>For thirty minutes. <a '
            'href="c%201.xhtml#r1">↩</a></p></aside>'
            '<aside class="warning"><p>Keep away.</p></aside></body></html>',
        )
    [chapter] = read_epub(tmp_path / "book.epub").parts
    assert chapter.text == "# Whales\n\nThey sing [1].\n\nFor thirty minutes.\n\nKeep away.\n"


@pytest.fixture
def received(tmp_path):
    """Return a function that writes a mail and returns its text behind the subject."""

    def make(message):
        (tmp_path / "mail.eml").write_bytes(
            message if isinstance(message, bytes) else bytes(message)
        )
        return read_eml(tmp_path / "mail.eml").parts[0].text.split("\n\n", 1)[1]

    return make


def mail_of(plain, html):
    message = EmailMessage()
    message["Subject"], message["From"] = "Pumps", "Iris <iris@example.org>"
    message.set_content(plain)
    message.add_alternative(html, subtype="html")
    return message


HTML = f"<p>The blue pump is 20 % off until 8 March. {FAR}</p>"


@pytest.mark.parametrize(
    "plain", [" ", "\n\n", "No HTML?", f"See it in your browser: https://example.org/{'a1b2' * 40}"]
)
def test_a_plain_part_with_little_text_does_not_replace_html(received, plain):
    assert received(mail_of(plain, HTML)).startswith("The blue pump is 20 % off")


def test_a_plain_part_with_the_same_words_is_read(received):
    plain = (
        "The blue pump is 20 % off until 8 March.\n\n> All rights reserved by the office of "
        "the harbour.\n"
    )
    assert received(mail_of(plain, HTML)) == plain
    assert received(mail_of("Yes.", "<p>Yes.")) == "Yes.\n"


def test_text_of_a_mail_is_escaped_except_for_lists_and_quotes(received):
    message = EmailMessage()
    message["Subject"] = "# of pumps"
    message.set_content(
        "Run\n\n# systemctl stop\n\nBest regards\nAna\n-- \nACME\n\n- one\n1. two\n> How "
        "much?\n| a | b |\n"
    )
    assert received(message) == (
        "Run\n\n\\# systemctl stop\n\nBest regards\nAna\n\\--\nACME\n\n- one\n1. two\n> "
        "How much?\n\\| a | b |\n"
    )


@pytest.mark.parametrize(
    "charset", ["", "; charset=klingon", "; charset=us-ascii", "; charset=utf-8"]
)
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_a_wrong_or_missing_charset_does_not_end_a_mail(received, charset, encoding):
    head = f"Subject: x\nContent-Type: text/plain{charset}\nContent-Transfer-Encoding: 8bit\n\n".encode()  # noqa: E501
    assert received(head + "Größe in €".encode(encoding)) == "Größe in €\n"


def test_mails_in_a_mail_are_text_below_their_subject(received):
    mail = (
        "From: Ben <ben@example.org>\nSubject: Old fees\nDate: Thu, 29 Feb 2024 09:00:00 "
        "+0100\n\nHow much?\n"
    )
    inner = "## Old fees\n\nHow much?\n"
    head = "Subject: x\nContent-Type: multipart/{}; boundary=b\n\n--b\n{}\n\n"
    forwarded = (
        head.format("mixed", "\nSee below.\n--b\nContent-Type: message/rfc822") + f"{mail}--b--"
    )
    assert received(forwarded.encode()) == f"See below.\n\n{inner}"
    digest = head.format("digest", "").removesuffix("\n") + f"{mail}\n--b\n\n{mail}--b--"
    assert received(digest.encode()) == f"{inner}\n{inner}"


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("text/markdown", "- one", "- one\n"),
        ("text/enriched", "<bold>Bold</bold> words", "Bold words\n"),
        ("multipart/mixed", "Without a boundary", "Without a boundary\n"),
        ("text/calendar", "BEGIN:VEVENT", "Attached: text/calendar\n"),
    ],
)
def test_a_body_of_any_text_type_is_read(received, kind, body, text):
    assert received(f"Subject: x\nContent-Type: {kind}\n\n{body}".encode()) == text


def test_an_outlook_mail_is_read_like_other_mail(tmp_path):
    headers = b"To: Tom <tom@example.org>\r\nDate: Mon, 02 Mar 2026 10:00:00 +0000\r\n\r\n"
    path = outlook(tmp_path, subject=b"Pumps", html=HTML.encode(), headers=headers, sender=b"Iris")
    mail = read_msg(path)
    assert mail.parts[0].text.startswith("# Pumps\n\nThe blue pump is 20 % off")
    assert mail.metadata["date"] == "2026-03-02"
    assert mail.metadata["to"] == "Tom <tom@example.org>"
    assert mail.metadata["sender"] == "Iris"


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"body": b"The pump \x81 runs"}, "The pump \ufffd runs"),
        ({"body": b"The pump runs", "code_page": 99999}, "The pump runs"),
        ({"body": b"The pump runs", "internet_code_page": 99999}, "The pump runs"),
        (
            {"html": b"<p>The caf\xe9 pump runs", "internet_code_page": 65001},
            "The caf\ufffd pump runs",
        ),
        (
            {"html": "<p>\u30dd\u30f3\u30d7".encode("iso-2022-jp"), "internet_code_page": 50220},
            "\u30dd\u30f3\u30d7",
        ),
        (
            {"body": "\u041d\u0430\u0441\u043e\u0441".encode("cp1251"), "code_page": 1251},
            "\u041d\u0430\u0441\u043e\u0441",
        ),
    ],
)
def test_an_odd_byte_or_code_page_costs_a_letter_and_not_the_mail(tmp_path, properties, text):
    path = outlook(tmp_path, subject=b"Pumps", **properties)
    assert read_msg(path).text == f"# Pumps\n\n{text}\n"


def test_a_file_that_outlook_did_not_write_is_refused(tmp_path):
    (tmp_path / "a.msg").write_bytes(b"Subject: Pumps")
    with pytest.raises(ConversionError, match="not an Outlook mail"):
        read_msg(tmp_path / "a.msg")


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b"\n\n"])
def test_text_before_the_headers_of_a_mail_hides_none(tmp_path, start):
    (tmp_path / "a.eml").write_bytes(start + b"Subject: Pumps\n\nThe pump runs.")
    assert read_eml(tmp_path / "a.eml").text == "# Pumps\n\nThe pump runs.\n"


def test_an_invitation_without_text_has_subject_time_and_place(tmp_path):
    event = (
        "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nSUMMARY:Pump inspection\r\n"
        "DTSTART;TZID=Europe/Berlin:20260302T090000\r\nDTEND:20260302T100000Z\r\n"
        "LOCATION:North\r\n  berth\\, shed 2\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    )
    path = tmp_path / "a.eml"
    path.write_bytes(f"Subject: Invitation\r\nContent-Type: text/calendar\r\n\r\n{event}".encode())
    text = read_eml(path).text
    assert "Subject: Pump inspection\nBegin: 2026-03-02 09:00\nEnd: 2026-03-02 10:00 UTC" in text
    assert "Place: North berth, shed 2" in text


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("Content-Type: text/html; " + "a*0*=b;" * 20_000, "<p>Body"),
        ("To: " + "<a@b.example>," * 50_000, "Body"),
        ("Subject: " + "=?utf-8?q?a?= " * 50_000, "Body"),
        ("To: " + "((" * 30_000, "Body"),
    ],
    ids=["parameters", "people", "encoded words", "comments"],
)
def test_a_very_long_header_is_read_quickly(tmp_path, header, body):
    (tmp_path / "mail.eml").write_text(f"Subject: Fees\n{header}\n\n{body}\n", "utf-8")
    began = time.thread_time()
    assert "Body" in read_eml(tmp_path / "mail.eml").text
    assert time.thread_time() - began < 5
