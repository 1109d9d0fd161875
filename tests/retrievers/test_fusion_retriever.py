"""Hybrid retrieval: faults of the stock class, and what this package does instead."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from llama_index.core import Settings, SimpleKeywordTableIndex, SummaryIndex
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import TextNode
from llama_index.retrievers.bm25 import BM25Retriever
from results import Fixed, hit, ids, pairs

from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever
from llama_index_contextual.utils.errors import ContextualWarning, RetrievalError, SettingError


@pytest.fixture
def retrievers(index, embedding):
    keyword = ContextualBM25Retriever.from_defaults(index=index)
    return ContextualVectorRetriever(index, embed_model=embedding), keyword


def stock(retrievers, **settings):
    given = {"num_queries": 1, "use_async": False, "llm": MockLLM(), "mode": "reciprocal_rerank"}
    return QueryFusionRetriever(retrievers, **(given | settings))


# Traps of the stock class


def test_it_needs_no_llm_and_no_key(retrievers, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(Settings, "_llm", None)
    with pytest.raises((ValueError, ImportError)):
        QueryFusionRetriever(list(retrievers), num_queries=1)
    assert ids(ContextualFusionRetriever(retrievers).retrieve("carrots"))[0] == "dog"


@pytest.mark.parametrize(
    "mode", ["reciprocal_rerank", "relative_score", "dist_based_score", "simple"]
)
def test_weights_are_used_in_every_mode(mode):
    left, right = Fixed([hit("a", 1.0), hit("x", 0.1)]), Fixed([hit("b", 1.0), hit("y", 0.1)])
    first = {
        weights: ids(
            ContextualFusionRetriever([left, right], retriever_weights=weights, mode=mode).retrieve(
                "q"
            )
        )[0]
        for weights in ((0.9, 0.1), (0.1, 0.9))
    }
    assert first == {(0.9, 0.1): "a", (0.1, 0.9): "b"}


def test_stock_rrf_ignores_weights():
    left, right = Fixed([hit("a", 1.0)]), Fixed([hit("b", 1.0)])
    assert {
        ids(stock([left, right], retriever_weights=w).retrieve("q"))[0] for w in ([9, 1], [1, 9])
    } == {"a"}


def test_nodes_that_a_keyword_retriever_scores_zero_are_not_hits():
    def retrievers():
        return [
            Fixed([hit("found", 0.5)]),
            BM25Retriever(nodes=[TextNode(id_="noise", text="some noise")]),
        ]

    assert ids(ContextualFusionRetriever(retrievers()).retrieve("q")) == ["found"]
    assert set(ids(stock(retrievers()).retrieve("q"))) == {"found", "noise"}


@pytest.mark.parametrize("score", [0.0, None, float("nan")])
@pytest.mark.parametrize(
    "mode", ["reciprocal_rerank", "relative_score", "dist_based_score", "simple"]
)
def test_a_retriever_without_scores_counts_by_its_order(score, mode):
    ours = ContextualFusionRetriever(
        [Fixed([hit("z", score), hit("a", score), hit("y", score)])], mode=mode
    )
    assert ids(ours.retrieve("q")) == ["z", "a", "y"]


@pytest.mark.parametrize("kind", [SummaryIndex, SimpleKeywordTableIndex])
async def test_retrievers_of_llama_index_without_scores_can_be_fused(kind):
    nodes = [TextNode(id_=name, text=f"carrot {name}") for name in ("soup", "cake", "juice")]
    retriever = kind(nodes, llm=MockLLM()).as_retriever()
    expected = ids(retriever.retrieve("carrot"))
    assert len(expected) == 3
    ours = ContextualFusionRetriever([retriever])
    assert ids(ours.retrieve("carrot")) == ids(await ours.aretrieve("carrot")) == expected
    assert "carrot" in str(ours.explain("carrot"))


def test_a_node_counts_once_by_its_id():
    left, right = (
        Fixed([hit("a", 1.0, seen="left"), hit("b", 0.9)]),
        Fixed([hit("a", 1.0, seen="right")]),
    )
    # Different metadata give different hashes. The stock class has two hits, and its base class
    # hides one of them after the cut.
    assert ids(stock([left, right], similarity_top_k=2).retrieve("q")) == ["a"]
    assert ids(ContextualFusionRetriever([left, right], similarity_top_k=2).retrieve("q")) == [
        "a",
        "b",
    ]


def test_input_scores_are_not_changed():
    given = [hit("a", 3.0), hit("b", 2.0)]
    ContextualFusionRetriever([Fixed(given)]).retrieve("q")
    assert [scored_node.score for scored_node in given] == [3.0, 2.0]
    stock([Fixed(given)]).retrieve("q")
    assert [scored_node.score for scored_node in given] != [3.0, 2.0]


def test_a_failing_retriever_degrades_with_a_warning():
    retrievers = [Fixed([hit("a", 1.0)]), Fixed(error=OSError("disk gone"))]
    with pytest.raises(OSError, match="disk gone"):
        stock(retrievers).retrieve("q")
    ours = ContextualFusionRetriever(retrievers)
    with pytest.warns(
        ContextualWarning,
        match=r"Retriever 'Fixed 2' failed: OSError: disk gone\. The results come from the other",
    ):
        assert ids(ours.retrieve("q")) == ["a"]
    with pytest.warns(ContextualWarning, match="disk gone"):
        assert ids(asyncio.run(ours.aretrieve("q"))) == ["a"]


def test_all_retrievers_failing_is_an_error():
    retrievers = [Fixed([hit("a", 1.0)]), Fixed(error=OSError("disk gone"))]
    with pytest.raises(RetrievalError, match=r"All retrievers failed: .*disk gone"):
        ContextualFusionRetriever(retrievers[1:]).retrieve("q")


# Promises


def test_our_retrievers_fit_the_stock_fusion(retrievers):
    hits = stock(retrievers).retrieve("the dog Cookie")
    assert ids(hits)[0] == "dog"
    assert (
        hits[0].score > 1 / 60
    )  # credit from both retrievers: to the stock class, equal hashes are the same node


async def test_sync_async_and_fifty_callers_agree(retrievers):
    ours = ContextualFusionRetriever(retrievers)
    expected = pairs(ours.retrieve("budget of the house"))
    answers = await asyncio.gather(*(ours.aretrieve("budget of the house") for _ in range(50)))
    assert all(pairs(answer) == expected for answer in answers)


@pytest.mark.parametrize("mode", ["reciprocal_rerank", "learned"])
def test_the_top_is_a_prefix_and_scores_descend_from_the_best(retrievers, mode):
    def top(size):
        return ContextualFusionRetriever(retrievers, similarity_top_k=size, mode=mode)

    full = pairs(top(6).retrieve("budget of the house"))
    for size in range(1, 6):
        assert pairs(top(size).retrieve("budget of the house")) == full[:size]
    scores = [score for _, score in full]
    assert scores[0] == (
        top(6).explain("budget of the house").hits[0].relevance if mode == "learned" else 1
    )
    assert scores == sorted(scores, reverse=True)
    assert min(scores) > 0


def test_an_empty_index_returns_nothing(store, embedding):
    keyword = ContextualBM25Retriever([])
    assert (
        ContextualFusionRetriever(
            [ContextualVectorRetriever(store, embed_model=embedding), keyword]
        ).retrieve("q")
        == []
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"retrievers": []},
        {"retriever_weights": [1, 2]},
        {"retriever_weights": [-1]},
    ],
)
def test_an_invalid_setting_is_an_error(wrong):
    with pytest.raises(SettingError):
        ContextualFusionRetriever(**({"retrievers": [Fixed()]} | wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        {"retriever_weights": [math.nan]},
        {"retriever_weights": [math.inf]},
        {"retriever_weights": ["1"]},
        {"candidate_pool": 0},
        {"similarity_top_k": 0},
        {"num_queries": 0},
        {"rrf_k": -1},
        {"min_score": 2},
    ],
    ids=str,
)
def test_an_invalid_setting_is_named_with_a_hint(wrong):
    with pytest.raises(SettingError, match=f"`{next(iter(wrong))}` must be "):
        ContextualFusionRetriever([Fixed()], **wrong)


def test_what_is_no_postprocessor_is_rejected_with_a_hint():
    message = r"`node_postprocessors` must be .*node postprocessors.*RecencyPostprocessor"
    with pytest.raises(SettingError, match=message):
        ContextualFusionRetriever([Fixed()], node_postprocessors=[7])


def test_a_hundred_candidates_and_a_constant_of_twenty_are_the_default():
    fusion = ContextualFusionRetriever([Fixed()])
    assert (fusion.candidate_pool, fusion.rrf_k) == (100, 20)


def test_the_modes_are_listed_as_they_are_written():
    with pytest.raises(SettingError, match=r"`mode` must be one of 'reciprocal_rerank', "):
        ContextualFusionRetriever([Fixed()], mode="rrf")


@pytest.mark.parametrize("mode", list(FUSION_MODES))
def test_llamaindex_names_of_the_modes_are_accepted(mode):
    assert ContextualFusionRetriever([Fixed()], mode=mode).mode is mode


def test_an_object_that_is_passed_replaces_that_of_a_retriever():
    keyword = ContextualBM25Retriever([], object_map={"index": "old", "other": "kept"})
    fusion = ContextualFusionRetriever([keyword], object_map={"index": "new"})
    assert fusion.object_map == {"index": "new", "other": "kept"}


def test_each_retriever_proposes_at_least_as_many_candidates_as_are_returned():
    fusion = ContextualFusionRetriever([Fixed()], similarity_top_k=20, candidate_pool=5)
    assert fusion.candidate_pool == 20


def test_numbers_of_numpy_are_accepted():
    retriever = ContextualFusionRetriever([Fixed()], retriever_weights=np.float32([1]))
    assert retriever.retrieve("q") == []


def test_anything_but_a_list_of_retrievers_is_rejected_with_a_hint(index, nodes):
    retriever = ContextualBM25Retriever(nodes)
    for given in (retriever, index, 7, [], [retriever, index], [retriever, "bm25"]):
        with pytest.raises(
            SettingError,
            match=r"must be a list of at least one retriever .*\. Pass .*\(\[index\.as_retriever\(\), ",  # noqa: E501
        ):
            ContextualFusionRetriever(given)
