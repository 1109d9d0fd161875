import ir_measures
import numpy as np
import pytest

from llama_index_contextual.app.evaluation import mean_reciprocal_rank, recall_at
from llama_index_contextual.app.evaluation.metrics import ndcg


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
    assert mean_reciprocal_rank([["a"], ["b", "a"], ["x"]], ["a", "a", "a"]) == pytest.approx((1 + 0.5 + 0) / 3)


@pytest.mark.parametrize(
    "call", [lambda: recall_at(0, [], "a"), lambda: recall_at(1, [], ""), lambda: mean_reciprocal_rank([], [])]
)
def test_meaningless_questions_are_errors(call):
    with pytest.raises(ValueError, match="need"):
        call()


def test_ndcg_is_that_of_trec_eval_where_each_hit_covers_one_item_of_its_own():
    rng = np.random.default_rng(3)
    golds = [set(rng.choice(30, size=rng.integers(1, 6), replace=False).tolist()) for _ in range(40)]
    ranked = [rng.permutation(30)[:20].tolist() for _ in golds]
    for k in (1, 5, 10):
        measure = ir_measures.nDCG @ k
        qrels = [ir_measures.Qrel(str(n), str(item), 1) for n, gold in enumerate(golds) for item in gold]
        run = [
            ir_measures.ScoredDoc(str(n), str(d), -float(r))
            for n, hits in enumerate(ranked)
            for r, d in enumerate(hits)
        ]
        theirs = ir_measures.calc_aggregate([measure], qrels, run)[measure]
        assert ndcg(k, [[[item] for item in hits] for hits in ranked], golds) == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("hits", "expected"),
    [
        ([["a", "b"]], 1.0),  # one chunk holds both lines: it cannot be better
        ([["a"], ["a"], ["b"]], (1 + 1 / 2) / (1 + 1 / np.log2(3))),  # the same line again gains nothing
        ([["x"], ["a", "b"]], 1 / np.log2(3)),
        ([], 0.0),
    ],
)
def test_ndcg_counts_each_item_once(hits, expected):
    assert ndcg(10, [hits], ["ab"]) == pytest.approx(expected)
