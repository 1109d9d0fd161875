"""HTML pages: they show what they should, load nothing, and let nothing of a document run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from itertools import pairwise

import pytest
from growth import assert_linear
from llama_index.core import Document
from llama_index.core.schema import TextNode
from previewed import preview

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualNodePostprocessor,
    HeadingAwareMarkdownNodeParser,
)
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.evaluation import Passage, Question, compare
from llama_index_contextual.app.folder.walk import FileRules
from llama_index_contextual.app.serve.html import chunk_data, marked_html, node_html, render


def rendered(text, values, address):
    return node_html(TextNode(text=text, metadata=values), address)


def chunks_page(nodes, title, budget=None):
    return render("chunks.html", title=title, budget=budget, chunks=chunk_data(nodes))


needs_chromium = pytest.mark.skipif(
    not shutil.which("chromium"), reason="no Chromium on this machine"
)
HOSTILE = (
    "<script>document.title = 'hacked'</script><img src=x onerror=\"document.title = 'hacked'\">"
)
TEXT = f"""# Gateway {HOSTILE}

## Timeout

The default value is 60 and can be adjusted. {HOSTILE}

## Port

The gateway listens on port 80.
"""


@pytest.fixture
def nodes():
    document = Document(text=TEXT, id_="docs/gateway.md", metadata={"path": "docs/gateway.md"})
    parser = HeadingAwareMarkdownNodeParser(chunk_size=60, chunk_overlap=20, min_chunk_size=5)
    return ContextualNodePostprocessor()(parser([document]))


def check_harmless(page):
    assert "<script>document.title" not in page
    assert "<img src=x" not in page
    assert not re.findall(r"<[^>]+src=|<link|url\(|@import", page), "an element loads something"
    assert not re.findall(r"<a (?![^>]*rel=\"noopener)(?!class=\"nowhere\")", page), (
        "a link tells where it is from"
    )
    assert "default-src 'none'" in page


def data_of(page):
    """Return what a page of chunks draws, from its own data."""
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    )


def test_chunks_with_their_views(nodes):
    page = chunks_page(nodes, title="docs/gateway.md", budget=60)
    check_harmless(page)
    chunks = data_of(page)
    assert len(chunks) == len(nodes)
    assert all(
        chunk["overlap"] + chunk["text"] == node.text
        for chunk, node in zip(chunks, nodes, strict=True)
    )
    assert any(chunk["citation"].startswith("docs/gateway.md#L5") for chunk in chunks)
    assert "Document: docs/gateway.md > Gateway" in chunks[0]["embedded"]


def test_text_repeated_from_the_previous_chunk_is_shaded(nodes):
    parser = HeadingAwareMarkdownNodeParser(chunk_size=16, chunk_overlap=8, min_chunk_size=1)
    numbers = (
        "One two three",
        "Four five six",
        "Seven eight nine",
        "Ten eleven twelve",
        "More and more",
    )
    cut = parser([Document(text="# A\n\n" + " ".join(f"{number}." for number in numbers))])
    overlaps = [b.text[: max(0, a.end_char_idx - b.start_char_idx)] for a, b in pairwise(cut)]
    assert any(overlaps), "the example overlaps"
    assert [chunk["overlap"] for chunk in data_of(chunks_page(cut, title="a"))] == ["", *overlaps]


def test_a_page_of_chunks_holds_each_text_once():
    text = "# A\n\n" + "\n\n".join(
        f"Paragraph {number} says {'something ' * 20}" for number in range(400)
    )
    document = Document(text=text, id_="a.md", metadata={"path": "a.md"})
    nodes = ContextualNodePostprocessor()(
        HeadingAwareMarkdownNodeParser(chunk_overlap=0)([document])
    )
    assert len(chunks_page(nodes, title="a").encode()) < 2 * len(text.encode())


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**bold** `code`", "<p><strong>bold</strong> <code>code</code></p>"),
        ("<b onclick=x>1</b> <!-- c -->", "<p>&lt;b onclick=x&gt;1&lt;/b&gt; &lt;!-- c --&gt;</p>"),
        ("<script>x</script>", "<p>&lt;script&gt;x&lt;/script&gt;</p>"),
        ("![a <i>](http://x/y.png)", '<p><span class="image">a &lt;i&gt;</span></p>'),
        ("[a](javascript:x)", "<p>[a](javascript:x)</p>"),
        ("[a](JaVaScRiPt:x)", "<p>[a](JaVaScRiPt:x)</p>"),
        ("[a](data:text/html,x)", "<p>[a](data:text/html,x)</p>"),
        ("[a](vscode:x)", '<p><a class="nowhere">a</a></p>'),
        ("[a](//evil.example/x)", '<p><a class="nowhere">a</a></p>'),
        ("[a](../../etc/passwd)", '<p><a class="nowhere">a</a></p>'),
        ("[a](b.md#x)", '<p><a href="@notes/b.md" rel="noopener noreferrer">a</a></p>'),
        (
            '[a](https://x.example/?a="b)',
            (
                '<p><a href="https://x.example/?a=%22b" target="_blank" rel="noopener '
                'noreferrer">a</a></p>'
            ),
        ),
        ("[[B]]", '<p><a href="@[[B]]" rel="noopener noreferrer">B</a></p>'),
        ("[[B#x|t <b>]]", '<p><a href="@[[B#x]]" rel="noopener noreferrer">t &lt;b&gt;</a></p>'),
        ("[[#x]]", '<p><a href="@[[notes/a.md#x]]" rel="noopener noreferrer">x</a></p>'),
        ("`[[B]]` [[ -f x ]] [[]]", "<p><code>[[B]]</code> [[ -f x ]] [[]]</p>"),
        (
            "![[B#x]]",
            '<p><a href="@[[B#x]]" rel="noopener noreferrer">B &gt; x</a></p>',
        ),
        ("![[b.PNG|200]]", '<p><span class="image" data-picture="notes/b.PNG">b.PNG</span></p>'),
        ("![[b.base|200x80]]", '<p><a href="@[[b.base]]" rel="noopener noreferrer">b.base</a></p>'),
        ("[[b|2024]]", '<p><a href="@[[b]]" rel="noopener noreferrer">2024</a></p>'),
        ("# H", "<h1>H</h1>"),
        ("```html\n<b>\n```", '<pre><code class="language-html">&lt;b&gt;\n</code></pre>'),
    ],
)
def test_markdown_becomes_html_that_runs_and_loads_nothing(text, html):
    assert rendered(text, {"path": "notes/a.md"}, lambda path: f"@{path}").strip() == html


@pytest.mark.long
def test_names_in_brackets_are_read_in_proportion_to_the_text():
    def work(text):
        rendered(text, {"path": "a.md"}, str)

    for piece in (
        "[[",
        "![[",
        "[[a|",
        "[[a#",
        "[[a]] ",
        "> [!tip] x\n>\n",
        "> " * 30 + "[!tip]\n\n",
    ):
        assert_linear(work, lambda count, piece=piece: piece * count, 2000)


def test_a_converted_document_is_shown_as_markdown_and_a_plain_text_as_it_is(tmp_path):
    (tmp_path / "page.html").write_text(
        "<h1>Tides</h1><p>High <b>tide</b>.<table><tr><td>a<td>b</table>", "utf-8"
    )
    (tmp_path / "fees.csv").write_text("name,fee\nboat,7\n", "utf-8")
    (tmp_path / "plain.txt").write_text("# Tides\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n", "utf-8")
    files = FileRules(include=("*.html", "*.csv", "*.txt"))
    with ContextualIndex.open(tmp_path, embed_model="none", files=files) as index:
        index.refresh()
        pages = {node.metadata["path"]: node_html(node, str) for node in index.nodes()}
    assert "<h1>Tides</h1>" in pages["page.html"]
    assert "<td>7</td>" in pages["fees.csv"]
    assert pages["plain.txt"].startswith("<pre># Tides")


def test_later_pieces_of_tables_and_fences_are_shown_as_such():
    table = rendered("| 1 | 2 |\n| 3 | 4 |", {"path": "a.md", "continues": "| a | b |"}, str)
    assert (table.count("<th>"), table.count("<td>")) == (2, 4)
    for before in (
        "",
        "Text.\n\n",
    ):  # a chunk above the budget that begins with the table, or holds it
        table = f"{before}| a   | b   |\n| --- | --- |\n| 1   | 2   |"
        assert (
            rendered(table, {"path": "a.md", "continues": "| a | b |"}, str).count("<th>a</th>")
            == 1
        )
    code = rendered("*x*", {"path": "a.md", "continues": "python"}, str)
    assert code == '<pre><code class="language-python">*x*</code></pre>\n'
    assert rendered("*x*", {"path": "a.py"}, str) == "<pre>*x*</pre>"
    nested = rendered(
        "\t3. Decide:\n\t\t- Yes\n\nThen *go*.", {"path": "a.md", "content_type": "mixed"}, str
    )
    assert (
        re.sub(r"\s+", "", nested)
        == '<olstart="3"><li>Decide:<ul><li>Yes</li></ul></li></ol><p>Then<em>go</em>.</p>'
    )


@pytest.mark.parametrize(
    ("text", "code"),
    {
        "under its heading": ("# A\n\n```\n# b\n```\n", ["# b\n"]),
        "the first piece under its heading": ("# A\n\n```\n*b*\n", ["*b*\n"]),
        "after its introduction": ("And:\n\n```sh\n# b\n```\n```\nc\n```\n", ["# b\n", "c\n"]),
        "a middle piece": ("*b*\n", ["*b*\n"]),
    }.values(),
)
def test_a_chunk_of_code_shows_as_code_what_stands_in_its_fences(text, code):
    html = rendered(text, {"path": "a.md", "content_type": "code"}, str)
    assert re.findall("<pre><code[^>]*>(.*?)</code></pre>", html, re.DOTALL) == code


def test_whole_words_are_marked_and_parts_of_texts_without_spaces():
    assert (
        marked_html("Values <and> 网关超时时间", {"valu", "超时"})
        == "<mark>Values</mark> &lt;and&gt; 网关<mark>超时</mark>时间"
    )


def in_chromium(page, folder):
    """Return the document that Chromium makes of a page."""
    file = folder / "page.html"
    file.write_text(page, "utf-8")
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--dump-dom",
        f"file://{file}",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout  # noqa: S603


@needs_chromium
def test_in_a_real_browser_nothing_of_a_document_runs(nodes, tmp_path):
    seen = in_chromium(chunks_page(nodes, title="the title"), tmp_path)
    assert "<title>the title</title>" in seen
    assert seen.count("document.title = 'hacked'") >= 2, "it is shown as text"


@needs_chromium
def test_a_long_document_is_drawn_page_by_page_and_searched_as_a_whole(tmp_path):
    parser = HeadingAwareMarkdownNodeParser(chunk_size=20, chunk_overlap=0, min_chunk_size=1)
    text = "\n\n".join(f"# Part {number}\n\nParagraph number {number}." for number in range(120))
    page = chunks_page(parser([Document(text=text, metadata={"path": "a.md"})]), title="a")
    seen = in_chromium(page, tmp_path)
    assert seen.count('<article class="hit chunk">') == 50
    assert "1 to 50 of 120" in seen
    ask = (
        "next.click(); next.click(); document.title = count.textContent; find.value = 'number 77'; "
    )
    ask += "find.dispatchEvent(new Event('input'));"
    seen = in_chromium(page.replace("draw();\n</script>", f"draw(); {ask}\n</script>"), tmp_path)
    assert "<title>101 to 120 of 120</title>" in seen
    assert seen.count('<article class="hit chunk">') == 1


# For each page in a frame: is it, or any part except the inside of a table's box, wider than the
# frame?
MEASURE = """<!doctype html><script>
onload = () => {
  const frames = [...document.querySelectorAll("iframe")], wide = [];
  for (const frame of frames) {
    const page = frame.contentDocument, width = frame.clientWidth;
    if (page.documentElement.scrollWidth > width) wide.push(frame.title);
    for (const box of page.body.querySelectorAll("*")) {
      const scrolls = box.closest(".scroll"), wider = box.getBoundingClientRect().right > width;
      if (scrolls ? !scrolls.querySelector("table") : wider) wide.push(frame.title + ": " + box.outerHTML.slice(0, 80));
    }
  }
  document.body.textContent = JSON.stringify([frames.length, wide]);
};
</script>"""  # noqa: E501


@needs_chromium
@pytest.mark.parametrize("width", [320, 400, 1200])
def test_no_page_is_wider_than_its_window(width, tmp_path):
    long = "very_long_name_" * 12
    document = Document(
        text=f"# {long}\n\n{long} is here. {TEXT}", metadata={"path": f"docs/{long}.md"}
    )
    nodes = ContextualNodePostprocessor()(HeadingAwareMarkdownNodeParser()([document]))
    retrievers = [ContextualBM25Retriever(nodes), ContextualBM25Retriever(nodes)]
    questions = [
        Question(f"port {long}", (Passage(text="port 80"),)),
        Question("timeout", (Passage(text="is 60"),)),
    ]
    rows = {"text alone": retrievers[0], f"headings {long}": retrievers[1]}
    compared = compare(rows, questions, top_k=[1, 3, 5, 10])
    pages = {
        "preview": chunks_page(nodes, title=long, budget=60),
        "evaluate": compared.to_html(long).replace("<details>", "<details open>"),
    }
    frames = [
        (
            f'<iframe title="{name}" width="{width}" height="600" frameborder="0" '
            f'srcdoc="{escape(page)}"></iframe>'
        )
        for name, page in pages.items()
    ]
    seen = in_chromium(MEASURE + "".join(frames), tmp_path)
    measured, wide = json.loads(
        unescape(re.sub("<script>.*?</script>|<[^>]+>", "", seen, flags=re.DOTALL))
    )
    assert measured == len(pages)
    assert not wide


def test_an_index_previews_a_file_as_it_would_have_it(tmp_path):
    from llama_index_contextual.app import ContextualIndex
    from llama_index_contextual.utils.errors import DocumentError

    (tmp_path / "gateway.md").write_text(TEXT, "utf-8")
    with ContextualIndex.open(tmp_path) as index:
        seen = preview(index, "gateway.md")
        assert not index.exists, "nothing is indexed"
        assert seen[0].metadata["context"].startswith("Document: gateway.md")
        check_harmless(chunks_page(seen, title="gateway.md"))
        with pytest.raises(DocumentError, match=r"other\.md: it cannot be read"):
            preview(index, "other.md")
        with pytest.raises(DocumentError, match="is not in"):
            preview(index, __file__)


def test_pages_from_the_command_line(tmp_path):
    from click.testing import CliRunner

    from llama_index_contextual.app.cli import app

    (tmp_path / "gateway.md").write_text(TEXT, "utf-8")
    page = tmp_path / "page.html"
    run = CliRunner().invoke
    assert run(app, ["preview", str(tmp_path / "gateway.md"), "--html", str(page)]).exit_code == 0
    check_harmless(page.read_text("utf-8"))
    lost = run(
        app, ["preview", str(tmp_path / "gateway.md"), "--html", str(tmp_path / "no" / "page.html")]
    )
    assert lost.exit_code != 0
