import numpy as np
import pytest

from llama_index_contextual.app.evaluation import interval, mean_reciprocal_rank, recall_at


@pytest.mark.parametrize(
    ("k", "hits", "gold", "expected"),
    [
        (1, ["a", "b"], "a", 1.0),
        (1, ["b", "a"], "a", 0.0),
        (2, ["b", "a"], "a", 1.0),
        (5, ["a", "a", "c"], "abcd", 0.5),  # the same item twice counts once
        (1, [("a", "b")], "abc", 2 / 3),  # one chunk may hold two gold lines
        (3, [], "a", 0.0),
        (2, [(), "x", "a"], "a", 0.0),
    ],
)
def test_recall(k, hits, gold, expected):
    assert recall_at(k, hits, gold) == pytest.approx(expected)


def test_the_gold_items_are_counted_once():
    assert recall_at(1, ["a"], ["a", "a", "b"]) == 0.5


def test_an_interval_holds_19_of_20_means_and_is_the_same_on_each_call():
    values = np.repeat([[0.0], [1.0]], 50, axis=0)
    [mean_interval] = interval(values)
    assert mean_interval.mean == 0.5
    # The normal approximation: 1.96 standard errors.
    assert (mean_interval.low, mean_interval.high) == (
        pytest.approx(0.402, abs=0.02),
        pytest.approx(0.598, abs=0.02),
    )
    assert interval(values) == [mean_interval]


def test_mean_reciprocal_rank():
    assert mean_reciprocal_rank([["a"], ["b", "a"], ["x"]], ["a", "a", "a"]) == pytest.approx(
        (1 + 0.5 + 0) / 3
    )
