"""A comparison as a page and as Markdown."""

import re

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_contextual.app.evaluation import Passage, Question, compare

HOSTILE = "<script>alert(1)</script> | x"


class Fixed(BaseRetriever):
    """A retriever that answers every question with the same texts."""

    def __init__(self, *texts):
        super().__init__()
        self.texts = texts

    def _retrieve(self, _):
        return [
            NodeWithScore(node=TextNode(text=text, metadata={"path": "a.md"}))
            for text in self.texts
        ]


@pytest.fixture
def comparison():
    questions = [
        Question(text, tuple(Passage(text=passage_text) for passage_text in gold))
        for text, gold in ((f"first {HOSTILE}", "a"), ("second", "bc"), ("third", "x"))
    ]
    return compare(
        {"plain": Fixed("a", "b"), "contexts": Fixed("c", "b", "x")}, questions, top_k=[1, 2]
    )


def test_a_page_with_the_table_and_changed_questions(comparison):
    page = comparison.to_html("My <notes>")
    assert "My &lt;notes&gt;" in page
    assert "<script" not in page
    assert 'contexts: <span class="good">1 gained</span>, <span class="warn">1 lost</span>' in page
    same = compare({"plain": Fixed("a"), "contexts": Fixed("a")}, comparison.questions, top_k=[1])
    assert "gained" not in same.to_html() + str(same), "rows of zeros are left out"
    assert re.findall(r"<summary>(\w+)</summary>\n<ul><li>(\w+)", page) == [
        ("gained", "second"),
        ("lost", "first"),
    ]


def test_the_page_has_a_chart_with_intervals_and_the_questions_that_each_row_misses(comparison):
    page = comparison.to_html()
    assert page.count('class="bar"') == page.count('class="interval"') == 4
    missed = dict(re.findall(r"<summary>(\w+): (\d) missed</summary>", page))
    assert missed == {"plain": "2", "contexts": "3"}
    assert [len(row["missed"]) for row in comparison.to_dict()["rows"]] == [2, 3]
