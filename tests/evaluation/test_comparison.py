import numpy as np
import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_contextual import ContextualBM25Retriever
from llama_index_contextual.app.evaluation import Comparison, Passage, Question, RetrieverScores, compare
from llama_index_contextual.errors import SettingError


class Fixed(BaseRetriever):
    """Answers every question with the same texts."""

    def __init__(self, *texts):
        super().__init__()
        self.texts = texts

    def _retrieve(self, _):
        return [NodeWithScore(node=TextNode(text=text), score=1.0) for text in self.texts]


def question(text, *gold):
    return Question(text, tuple(Passage(text=one) for one in gold))


QUESTIONS = [question("one", "a"), question("two", "b", "c"), question("three", "x")]


def test_recalls_ranks_and_who_found_more():
    found = compare({"first": Fixed("a", "b"), "other": Fixed("c", "b", "x")}, QUESTIONS, top_k=[2, 1, 2])
    assert found.top_k == (1, 2)
    first, other = found.rows
    assert first.recalls.tolist() == [[1, 1], [0, 0.5], [0, 0]]
    assert other.recalls.tolist() == [[0, 0], [0.5, 1], [0, 0]]
    assert (first.mrr, other.mrr) == (pytest.approx((1 + 1 / 2) / 3), pytest.approx((1 + 1 / 3) / 3))
    assert found.baseline == "first"
    assert [q.text for q in found.gained("other")] == ["two"]
    assert [q.text for q in found.lost("other", k=2)] == ["one"]
    assert [q.text for q in found.gained("first", "other", k=1)] == ["one"]
    assert found.difference("other")[0][0] == pytest.approx(-100 / 6)


def test_the_interval_holds_the_difference_and_narrows_with_more_questions():
    def widths(count):
        rng = np.random.default_rng(1)
        recalls = [
            RetrieverScores(name, (rng.random((count, 1)) < p).astype(float), 0.0)
            for name, p in (("a", 0.4), ("b", 0.7))
        ]
        asked = tuple(question(str(n), "x") for n in range(count))
        ((mean, low, high),) = Comparison(asked, (5,), tuple(recalls), "a").difference("b")
        assert low < mean < high
        return high - low

    assert widths(4000) < widths(400) / 2 < widths(40) / 4


def test_prints_a_table_a_notebook_shows_one_and_data_says_the_same():
    found = compare({"<mine>": Fixed("a"), "other [x]": Fixed("c", "b")}, QUESTIONS, top_k=[1, 2])
    lines = str(found).splitlines()
    assert lines[0].split() == ["recall,", "%", "@1", "@2", "MRR@10", "nDCG@10"]
    assert lines[1].split() == ["<mine>", "33.3", "33.3", "33.3", "33.3"]
    assert lines[2].split() == ["other", "[x]", "16.7", "33.3", "33.3", "33.3"]
    assert lines[3].startswith("other [x] less <mine>: @1 -16.7 [")
    assert any("3 questions are few" in line for line in lines)
    assert "1 question is few. Cure: ask" in str(compare({"<mine>": Fixed("a")}, QUESTIONS[:1], top_k=[1]))
    assert repr(found) == str(found)
    html = found._repr_html_()
    assert "<td>&lt;mine&gt;</td><td>33.3</td>" in html
    data = found.to_dict()
    assert data["rows"][1]["recall"] == {"1": pytest.approx(1 / 6), "2": pytest.approx(1 / 3)}
    assert data["rows"][1]["difference"]["1"][0] == pytest.approx(-1 / 6)
    assert (data["rows"][1]["gained"], data["rows"][1]["lost"]) == (["two"], ["one"])
    assert "difference" not in data["rows"][0]


def test_failures_avoided_are_told_for_the_questions_that_need_context_and_for_the_others():
    texts = ["The value is 60.", "Listens on port 80.", *(f"Bread number {n}." for n in range(8))]
    chunks = [TextNode(text=one, metadata={"path": "gateway.md", "header_path": "Timeout > Long"}) for one in texts[:1]]
    chunks += [TextNode(text=one, metadata={"path": "food.md"}) for one in [*texts[1:], "Mind the timeout."]]
    asked = [question("Is there a timeout value?", "value is 60"), question("Which port?", "port 80")]
    rows = {"alone": Fixed(texts[2], texts[1]), "with": Fixed(texts[0], texts[3])}
    found = compare(rows, asked, top_k=[1, 2], nodes=chunks)
    assert found.parts["context needed"] == (True, False)
    assert found.failures_avoided("with")["context needed"] == [(100, 100, 100), (100, 100, 100)]
    assert found.failures_avoided("with")["elsewhere"][0] == (0, 0, 0)
    assert found.failures_avoided("with")["elsewhere"][1] is None, "the baseline finds it among two"
    needed = next(line for line in str(found).splitlines() if "context needed" in line)
    assert " ".join(needed.split()) == "with context needed 1 +100 [+100, +100] +100 [+100, +100]"
    assert "elsewhere" not in str(found), "rows of zeros say nothing"
    assert "<td>context needed</td><td>1</td>" in found._repr_html_()
    data = found.to_dict()["rows"][1]["failures_avoided"]
    assert data["context needed"] == {"questions": 1, "1": [1, 1, 1], "2": [1, 1, 1]}
    assert data["elsewhere"]["2"] is None
    assert set(compare(rows, asked, top_k=[1]).failures_avoided("with")) == {"all questions"}, "no chunks, no parts"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"retrievers": {}}, "is empty"),
        ({"questions": []}, "no questions"),
        ({"top_k": []}, "counts nothing"),
        ({"top_k": [0]}, "whole number"),
        ({"top_k": [2.5]}, "whole number"),
        ({"top_k": [True]}, "whole number"),
        (
            {"retrievers": {"mine": ContextualBM25Retriever([TextNode(text="a")], similarity_top_k=4)}},
            "'mine' returns 4",
        ),
    ],
)
def test_what_cannot_be_compared_is_said(arguments, message):
    with pytest.raises(SettingError, match=message):
        compare(**{"retrievers": {"mine": Fixed("a")}, "questions": QUESTIONS, **arguments})


def test_a_row_or_a_k_that_does_not_exist_is_named():
    found = compare({"mine": Fixed("a")}, QUESTIONS)
    with pytest.raises(SettingError, match=r"no row 'yours'.*\['mine'\]"):
        found.gained("yours")
    with pytest.raises(SettingError, match=r"k=7 was not counted.*\[5, 10, 20\]"):
        found.lost("mine", k=7)


def test_the_rank_counts_to_the_same_depth_whatever_is_counted_besides():
    late = Fixed(*"ghijklmnopq", "a")
    for top_k in ([1], [20]):
        assert compare({"late": late}, QUESTIONS, top_k=top_k).rows[0].mrr == 0, "its first hit is the twelfth"


def test_a_comparison_is_a_data_frame():
    frame = compare({"first": Fixed("a", "b"), "other": Fixed("c", "b", "x")}, QUESTIONS, top_k=[1, 2]).to_pandas()
    assert list(frame.columns) == ["@1", "@2", "MRR", "nDCG"]
    assert frame.loc["first", "@2"] == pytest.approx(0.5)
    assert frame.loc["other", "MRR"] == pytest.approx((1 + 1 / 3) / 3)
