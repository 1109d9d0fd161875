"""A comparison as a page and as Markdown."""

import re

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_contextual.app.evaluation import Passage, Question, compare, html_report

HOSTILE = "<script>alert(1)</script> | x"


class Fixed(BaseRetriever):
    """Answers every question with the same texts."""

    def __init__(self, *texts):
        super().__init__()
        self.texts = texts

    def _retrieve(self, _):
        return [NodeWithScore(node=TextNode(text=text, metadata={"path": "a.md"})) for text in self.texts]


@pytest.fixture
def comparison():
    questions = [
        Question(text, tuple(Passage(text=one) for one in gold))
        for text, gold in ((f"first {HOSTILE}", "a"), ("second", "bc"), ("third", "x"))
    ]
    chunks = [TextNode(text=one, metadata={"path": "a.md"}) for one in "abcx"]
    return compare({"plain": Fixed("a", "b"), "contexts": Fixed("c", "b", "x")}, questions, top_k=[1, 2], nodes=chunks)


def test_a_page_with_plot_failures_and_changed_questions(comparison):
    page = html_report(comparison, "My <notes>")
    assert "My &lt;notes&gt;" in page
    assert "<script" not in page
    assert page.count("<circle") == 4, "two rows, two numbers of hits"
    assert 'contexts: <span class="good">1 gained</span>, <span class="warn">1 lost</span>' in page
    both = r"<b>second</b>.*?first hit: a\.md.*?<p>a</p>.*?first hit: a\.md.*?<p>c</p>"
    assert re.search(both, page, re.DOTALL), "first hits side by side"
    avoided = 100 * (1 - (1 - 1 / 6) / (1 - 1 / 3))
    assert f"<td>all questions</td><td>3</td><td>{avoided:+.0f} [" in page
    assert "<td>elsewhere</td><td>3</td>" in page
    assert "35 %" in page
    assert "<th>ms a question</th>" in page


def test_where_nothing_fails_nothing_is_avoided(comparison):
    perfect = compare({"plain": Fixed("a"), "contexts": Fixed("a")}, [Question("q", (Passage(text="a"),))], top_k=[1])
    assert "Failures avoided" not in html_report(perfect)
