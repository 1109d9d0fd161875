import pytest

from llama_index_contextual.app.evaluation import mean_reciprocal_rank, recall_at


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


def test_mean_reciprocal_rank():
    assert mean_reciprocal_rank([["a"], ["b", "a"], ["x"]], ["a", "a", "a"]) == pytest.approx(
        (1 + 0.5 + 0) / 3
    )
