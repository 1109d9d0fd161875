"""HTML pages: they show what they should, load nothing, and let nothing of a document run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from itertools import pairwise

import pytest
from llama_index.core import Document, VectorStoreIndex

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    HeadingAwareMarkdownNodeParser,
    LocalEmbedding,
)
from llama_index_contextual.evaluation import Passage, Question, compare, html_report
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.report import chunks_page, hits_page

needs_chromium = pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium on this machine")
HOSTILE = "<script>document.title = 'hacked'</script><img src=x onerror=\"document.title = 'hacked'\">"
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


@pytest.fixture
def explanation(nodes):
    arms = [ContextualBM25Retriever(nodes), ContextualBM25Retriever(nodes)]
    return ContextualFusionRetriever(arms, similarity_top_k=2).explain("default value of the gateway?")


def check_harmless(page):
    assert "<script>document.title" not in page
    assert "<img src=x" not in page
    assert not re.findall(r"<[^>]+(?:src|href)=", page), "an element loads something"
    assert "default-src 'none'" in page


def test_chunks_with_their_views(nodes):
    page = chunks_page(nodes, title="docs/gateway.md", budget=60)
    check_harmless(page)
    assert page.count('<section class="card chunk">') == len(nodes)
    assert "docs/gateway.md#L5" in page
    for view in ("Displayed", "Embedded", "Keywords", "Language model"):
        assert page.count(f"<b>{view}</b>") == len(nodes)
    assert "Document: docs/gateway.md &gt; Gateway" in page


def test_what_stands_in_the_chunk_before_is_shaded(nodes):
    parser = HeadingAwareMarkdownNodeParser(chunk_size=16, chunk_overlap=8, min_chunk_size=1)
    numbers = ("One two three", "Four five six", "Seven eight nine", "Ten eleven twelve", "More and more")
    cut = parser([Document(text="# A\n\n" + " ".join(f"{number}." for number in numbers))])
    again = [b.text[: max(0, a.end_char_idx - b.start_char_idx)] for a, b in pairwise(cut)]
    assert any(again), "the example overlaps"
    page = chunks_page(cut, title="a")
    for text in again:
        assert f'<pre><span class="overlap">{text}</span>' in page


def test_hits_with_their_reasons(explanation):
    page = hits_page(explanation, Analyzer())
    check_harmless(page)
    assert "docs/gateway.md#L" in page
    assert "<mark>default</mark>" in page
    assert "<mark>60</mark>" not in page
    assert "Document: docs/<mark>gateway</mark>" in page, "words of the context are marked, too"
    assert page.count("rank 1, score") >= 2, "both arms are shown"


def test_weights_are_shown_where_they_count(nodes, explanation):
    assert "reciprocal_rerank; weights " in hits_page(explanation)
    arms = [ContextualBM25Retriever(nodes), VectorStoreIndex(nodes, embed_model=LocalEmbedding()).as_retriever()]
    learned = ContextualFusionRetriever(arms).explain("default value")
    assert "Fusion: learned; " in hits_page(learned)
    assert "weights" not in hits_page(learned)
    assert str(learned).startswith("default value   (learned; bm25, ")


def test_a_question_that_finds_nothing_has_a_page(explanation):
    empty = type(explanation)(explanation.queries, explanation.arms, explanation.mode, explanation.k, (), 0)
    assert "Nothing was found." in hits_page(empty)


def in_chromium(page, folder):
    """Return the document that Chromium makes of a page."""
    file = folder / "page.html"
    file.write_text(page, "utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{file}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout  # noqa: S603


@needs_chromium
def test_in_a_real_browser_nothing_of_a_document_runs(nodes, tmp_path):
    seen = in_chromium(chunks_page(nodes, title="the title"), tmp_path)
    assert "<title>the title</title>" in seen
    assert seen.count("document.title = 'hacked'") >= 2, "it is shown as text"


# Of each page in a frame: is it, or anything of it but the inside of a table's box, wider than the frame?
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
</script>"""


@needs_chromium
@pytest.mark.parametrize("width", [320, 400, 1200])
def test_no_page_is_wider_than_its_window(width, tmp_path):
    long = "very_long_name_" * 12
    document = Document(text=f"# {long}\n\n{long} is here. {TEXT}", metadata={"path": f"docs/{long}.md"})
    nodes = ContextualNodePostprocessor()(HeadingAwareMarkdownNodeParser()([document]))
    arms = [ContextualBM25Retriever(nodes), ContextualBM25Retriever(nodes)]
    questions = [Question(f"port {long}", (Passage(text="port 80"),)), Question("timeout", (Passage(text="is 60"),))]
    rows = {"text alone": arms[0], f"headings {long}": arms[1]}
    compared = compare(rows, questions, top_k=[1, 3, 5, 10], nodes=nodes)
    pages = {
        "preview": chunks_page(nodes, title=long, budget=60).replace("<details>", "<details open>"),
        "search": hits_page(ContextualFusionRetriever(arms).explain(f"default {long}"), Analyzer()),
        "evaluate": html_report(compared, long).replace("<details>", "<details open>"),
    }
    frames = [
        f'<iframe title="{name}" width="{width}" height="600" frameborder="0" srcdoc="{escape(page)}"></iframe>'
        for name, page in pages.items()
    ]
    seen = in_chromium(MEASURE + "".join(frames), tmp_path)
    measured, wide = json.loads(unescape(re.sub("<script>.*?</script>|<[^>]+>", "", seen, flags=re.DOTALL)))
    assert measured == len(pages)
    assert not wide


def test_an_index_previews_a_file_as_it_would_have_it(tmp_path):
    from llama_index_contextual import ContextualIndex
    from llama_index_contextual.errors import DocumentError

    (tmp_path / "gateway.md").write_text(TEXT, "utf-8")
    with ContextualIndex.open(tmp_path) as index:
        seen = index.preview("gateway.md")
        assert not index.exists, "nothing is indexed"
        assert seen.nodes[0].metadata["context"].startswith("Document: gateway.md")
        check_harmless(seen.to_html())
        assert "sandbox" in seen._repr_html_()
        with pytest.raises(DocumentError, match=r"other\.md: it cannot be read"):
            index.preview("other.md")
        with pytest.raises(DocumentError, match="is not in"):
            index.preview(__file__)


def test_pages_from_the_command_line(tmp_path):
    from typer.testing import CliRunner

    from llama_index_contextual.cli import app

    (tmp_path / "gateway.md").write_text(TEXT, "utf-8")
    page = tmp_path / "page.html"
    run = CliRunner().invoke
    assert run(app, ["preview", str(tmp_path / "gateway.md"), "--html", str(page)]).exit_code == 0
    check_harmless(page.read_text("utf-8"))
    assert run(app, ["index", str(tmp_path)]).exit_code == 0
    done = run(app, ["search", "default value", "--folder", str(tmp_path), "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "<mark>default</mark>" in page.read_text("utf-8")
    lost = run(app, ["search", "x", "--folder", str(tmp_path), "--html", str(tmp_path / "no" / "page.html")])
    assert lost.exit_code != 0
