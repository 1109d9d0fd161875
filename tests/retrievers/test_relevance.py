"""Relevance: low where nothing answers, high where words and vectors agree, and a cut by it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.errors import SettingError
from llama_index_contextual.retrievers import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualVectorRetriever,
)
from llama_index_contextual.retrievers.relevance import relevance

SHARES = st.one_of(st.none(), st.floats(0, 1))


@pytest.fixture
def arms(index, embedding):
    keyword = ContextualBM25Retriever.from_defaults(index=index)
    return ContextualVectorRetriever(index, embedding, companion=keyword), keyword


def ids(found):
    return [one.node.node_id for one in found]


@given(SHARES, SHARES, st.floats(0, 0.5))
def test_it_is_a_probability_that_grows_with_both(nearness, words, more):
    value = relevance(nearness, words)
    if nearness is None and words is None:
        assert value is None
        return
    assert 0 < value < 1
    if nearness is not None:
        assert relevance(nearness + more, words) >= value
    if words is not None:
        assert relevance(nearness, words + more) >= value


def test_the_best_hit_of_nonsense_scores_one_and_is_not_relevant(arms):
    nonsense = ContextualFusionRetriever(arms).explain("asdfghjkl qwertz")
    assert nonsense.hits[0].score == 1
    sense = ContextualFusionRetriever(arms).explain("Cookie loves carrots")
    assert sense.hits[0].relevance > 0.3
    assert max(hit.relevance for hit in nonsense) < 0.1
    assert sense.to_dict()["hits"][0]["relevance"] == sense.hits[0].relevance
    assert f"{sense.hits[0].relevance:.2f}" in str(sense).splitlines()[3]


def test_nonsense_finds_nothing_above_a_least_relevance(arms):
    retriever = ContextualFusionRetriever(arms, min_score=0.1)
    assert retriever.retrieve("asdfghjkl qwertz") == []
    assert asyncio.run(retriever.aretrieve("asdfghjkl qwertz")) == []
    everything = ContextualFusionRetriever(arms).explain("Cookie loves carrots")
    kept = [hit.node_id for hit in everything if hit.relevance >= 0.1]
    assert kept[0] == "dog"
    assert len(kept) < len(everything)
    assert ids(retriever.retrieve("Cookie loves carrots")) == kept
    assert retriever.explain("Cookie loves carrots").hits[0].relevance == everything.hits[0].relevance


def test_one_arm_suffices(arms):
    for arm in arms:
        hits = ContextualFusionRetriever([arm]).explain("Cookie loves carrots").hits
        assert hits[0].node_id == "dog"
        assert hits[0].relevance > 0.2


def test_hits_of_unknown_relevance_stay(index):
    stock = ContextualFusionRetriever([index.as_retriever(similarity_top_k=3)], min_score=0.9)
    explanation = stock.explain("dog")
    assert len(explanation) == 3
    assert {hit.relevance for hit in explanation} == {None}


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan"), "high", None])
def test_a_least_relevance_that_cannot_work_is_refused(arms, wrong):
    with pytest.raises(SettingError, match="min_score="):
        ContextualFusionRetriever(arms, min_score=wrong)
