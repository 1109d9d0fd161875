import re

import numpy as np
import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_contextual import ContextualBM25Retriever
from llama_index_contextual.app.evaluation import (
    Comparison,
    Passage,
    Question,
    RetrieverScores,
    compare,
)
from llama_index_contextual.utils.errors import SettingError


class Fixed(BaseRetriever):
    """A retriever that answers every question with the same texts."""

    def __init__(self, *texts):
        super().__init__()
        self.texts = texts

    def _retrieve(self, _):
        return [NodeWithScore(node=TextNode(text=text), score=1.0) for text in self.texts]


def question(text, *gold):
    return Question(text, tuple(Passage(text=passage_text) for passage_text in gold))


QUESTIONS = [question("one", "a"), question("two", "b", "c"), question("three", "x")]


def test_recalls_ranks_and_who_found_more():
    comparison = compare(
        {"first": Fixed("a", "b"), "other": Fixed("c", "b", "x")}, QUESTIONS, top_k=[2, 1, 2]
    )
    assert comparison.top_k == (1, 2)
    first, other = comparison.rows
    assert first.recalls.tolist() == [[1, 1], [0, 0.5], [0, 0]]
    assert other.recalls.tolist() == [[0, 0], [0.5, 1], [0, 0]]
    assert (first.mrr, other.mrr) == (
        pytest.approx((1 + 1 / 2) / 3),
        pytest.approx((1 + 1 / 3) / 3),
    )
    assert comparison.to_dict()["baseline"] == "first"


def test_the_interval_holds_the_difference_and_narrows_with_more_questions():
    def widths(count):
        rng = np.random.default_rng(1)
        recalls = [
            RetrieverScores(name, (rng.random((count, 1)) < p).astype(float), 0.0)
            for name, p in (("a", 0.4), ("b", 0.7))
        ]
        asked = tuple(question(str(n), "x") for n in range(count))
        mean, low, high = Comparison(asked, (5,), tuple(recalls)).to_dict()["rows"][1][
            "difference"
        ]["5"]
        assert low < mean < high
        return high - low

    assert widths(4000) < widths(400) / 2 < widths(40) / 4


def test_text_html_and_data_show_the_same_table():
    comparison = compare(
        {"<mine>": Fixed("a"), "other [x]": Fixed("c", "b")}, QUESTIONS, top_k=[1, 2]
    )
    lines = str(comparison).splitlines()
    assert lines[0].split() == ["recall,", "%", "@1", "@2", "MRR@10"]
    assert lines[1].split() == ["<mine>", "33.3", "33.3", "33.3"]
    assert lines[2].split() == ["other", "[x]", "16.7", "33.3", "33.3"]
    assert lines[3].startswith("other [x] less <mine>: @1 -16.7 [")
    assert repr(comparison) == str(comparison)
    html = comparison.to_html()
    assert "<td>&lt;mine&gt;</td><td>33.3</td>" in html
    data = comparison.to_dict()
    assert data["rows"][1]["recall"] == {"1": pytest.approx(1 / 6), "2": pytest.approx(1 / 3)}
    assert data["rows"][1]["difference"]["1"][0] == pytest.approx(-1 / 6)
    assert (data["rows"][1]["gained"], data["rows"][1]["lost"]) == (["two"], ["one"])
    assert "difference" not in data["rows"][0]


def comparison(*recalls, top_k=(1, 2)):
    """Return a comparison of retrievers with these recalls of each question."""
    names = ["first", "second"]
    rows = [
        RetrieverScores(name, np.array(values, float), 0.5)
        for name, values in zip(names, recalls, strict=False)
    ]
    questions = tuple(question(f"question  {number}", "x") for number in range(len(recalls[0])))
    return Comparison(questions, top_k, tuple(rows))


def test_5_10_and_20_hits_are_counted_by_default():
    assert compare({"mine": Fixed("a")}, QUESTIONS).top_k == (5, 10, 20)


def test_columns_of_numbers_are_aligned_to_the_right():
    header, row, *_ = str(comparison([[1, 1]])).splitlines()
    assert header == "recall, %     @1     @2  MRR@10"
    assert row == "first      100.0  100.0    50.0"


@pytest.mark.parametrize(("count", "few"), [(29, True), (30, False)])
def test_fewer_than_thirty_questions_are_too_few(count, few):
    *_, remark = comparison([[1, 1]] * count, [[0, 1]] * count).remarks()
    assert remark.startswith("In brackets: ")
    assert remark.endswith(f" {count} questions are too few to draw a conclusion.") == few


def test_a_single_retriever_is_compared_with_nothing():
    assert comparison([[1, 1]]).remarks() == []


def test_the_lower_end_of_an_interval_is_named_first():
    [remark, _] = comparison([[0, 0]] * 40, [[0, 1], [1, 0]] * 20).remarks()
    mean, low, high = map(float, re.findall(r"[-+][\d.]+", remark)[:3])
    assert low < mean == 50 < high


@pytest.mark.parametrize(("count", "last"), [(3, "  question 2"), (5, "  … and 2 more")])
def test_three_questions_are_named_and_the_others_counted(count, last):
    gained = comparison([[0, 0]] * count, [[1, 0]] * count)
    lines = str(gained).splitlines()
    named = lines[lines.index(f"second gained {count} at 1:") + 1 :]
    assert named[:3] == ["  question 0", "  question 1", "  question 2"]
    assert named[-1] == last


def test_lost_and_missed_questions_are_those_at_the_smallest_top_k():
    rows = comparison([[1, 1], [0, 1]], [[0, 1], [0, 0]]).to_dict()["rows"]
    assert rows[1]["lost"] == ["question  0"]
    assert rows[1]["missed"] == ["question  0", "question  1"]


def test_an_answer_that_is_found_in_part_is_missed():
    rows = comparison([[0.5, 1]]).to_dict()["rows"]
    assert rows[0]["missed"] == ["question  0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"retrievers": {}}, "is empty"),
        ({"questions": []}, "no questions"),
        ({"top_k": []}, "`top_k` is empty"),
        ({"top_k": [0]}, "whole number"),
        ({"top_k": [2.5]}, "whole number"),
        ({"top_k": [True]}, "whole number"),
        (
            {
                "retrievers": {
                    "mine": ContextualBM25Retriever([TextNode(text="a")], similarity_top_k=7)
                },
                "top_k": [5, 10],
            },
            "'mine' returns 7 hits, but 10 are needed",
        ),
        (
            {
                "retrievers": {
                    "mine": ContextualBM25Retriever([TextNode(text="a")], similarity_top_k=4)
                }
            },
            "'mine' returns 4",
        ),
    ],
)
def test_a_comparison_that_cannot_be_made_is_an_error(arguments, message):
    with pytest.raises(SettingError, match=message):
        compare(**{"retrievers": {"mine": Fixed("a")}, "questions": QUESTIONS, **arguments})


def test_mrr_uses_the_same_depth_for_any_top_k():
    late = Fixed(*"ghijklmnopq", "a")
    for top_k in ([1], [20]):
        assert compare({"late": late}, QUESTIONS, top_k=top_k).rows[0].mrr == 0, (
            "its first hit is the twelfth"
        )
