"""The fusion of ranked lists: pure functions on plain data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from tables import ranked

from llama_index_contextual.retrievers.base import Candidate
from llama_index_contextual.retrievers.rankings import Ranking, rank_candidates, stretch
from llama_index_contextual.retrievers.rankings import fuse as fuse_into_a_table

SETTINGS = {"mode": FUSION_MODES.RECIPROCAL_RANK, "k": 60.0, "pool": 100}


def fuse(rankings, **given):
    return ranked(fuse_into_a_table(rankings, **given))


def ranking(retriever, weight, *scored, query=0):
    ids, scores = rank_candidates([Candidate(name, score) for name, score in scored])
    return Ranking(retriever, query, weight, ids, scores, len(ids))


def test_reciprocal_ranks_by_weight():
    left = ranking("left", 0.4, ("a", 9.0), ("b", 8.0))
    right = ranking("right", 0.6, ("b", 0.9), ("c", 0.8))
    raw_scores = {candidate.node_id: candidate.raw for candidate in fuse([left, right], **SETTINGS)}
    assert raw_scores == pytest.approx({"a": 0.4 / 61, "b": 0.4 / 62 + 0.6 / 61, "c": 0.6 / 62})


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (FUSION_MODES.RELATIVE_SCORE, {"a": 0.4, "b": 0.4 * 0.5 + 0.6, "c": 0.0, "d": 0.0}),
        (FUSION_MODES.SIMPLE, {"a": 0.4 * 9, "b": 0.4 * 8, "c": 0.4 * 7, "d": 0.6 * 0.8}),
    ],
)
def test_modes_by_score(mode, expected):
    left = ranking("left", 0.4, ("a", 9.0), ("b", 8.0), ("c", 7.0))
    right = ranking("right", 0.6, ("b", 0.9), ("d", 0.8))
    raw_scores = {
        candidate.node_id: candidate.raw
        for candidate in fuse([left, right], **(SETTINGS | {"mode": mode}))
    }
    assert raw_scores == pytest.approx(expected)


def test_distance_based_scores_lie_within_three_deviations():
    only = ranking("one", 1.0, ("a", 3.0), ("b", 2.0), ("c", 1.0))
    raw_scores = {
        candidate.node_id: candidate.raw
        for candidate in fuse([only], **(SETTINGS | {"mode": FUSION_MODES.DIST_BASED_SCORE}))
    }
    spread = 3 * math.sqrt(2 / 3)
    assert raw_scores == pytest.approx(
        {"a": (1 + spread) / (2 * spread), "b": 0.5, "c": (spread - 1) / (2 * spread)}
    )


@pytest.mark.parametrize("missing", [None, math.nan])
def test_candidates_without_scores_follow_in_order(missing):
    mixed = ranking(
        "one", 1.0, ("z", missing), ("a", 2.0), ("y", missing), ("b", 1.0), ("a", missing)
    )
    assert [candidate.node_id for candidate in fuse([mixed], **SETTINGS)] == ["a", "b", "z", "y"]
    unscored = ranking("one", 1.0, ("z", missing), ("a", missing), ("y", missing), ("z", missing))
    for mode in FUSION_MODES:
        fused = fuse([unscored], **(SETTINGS | {"mode": mode}))
        assert [candidate.node_id for candidate in fused] == ["z", "a", "y"], mode


def test_candidates_without_scores_get_the_lowest_score():
    mixed = ranking("one", 1.0, ("z", None), ("a", 2.0), ("y", None), ("b", 1.0))
    simple = SETTINGS | {"mode": FUSION_MODES.SIMPLE}
    assert {hit.node_id: hit.raw for hit in fuse([mixed], **simple)} == {
        "a": 2.0,
        "b": 1.0,
        "y": 1.0,
        "z": 1.0,
    }
    unscored = ranking("one", 1.0, ("z", None), ("a", None), ("y", None), ("b", None))
    assert [hit.raw for hit in fuse([unscored], **simple)] == [1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize("mode", FUSION_MODES)
def test_a_node_that_a_retriever_returns_twice_counts_once_with_its_best_score(mode):
    repeated = ranking("one", 1.0, ("a", 1.0), ("b", 5.0), ("a", 9.0))
    assert [hit.node_id for hit in fuse([repeated], **(SETTINGS | {"mode": mode}))] == ["a", "b"]


def test_scores_below_the_scale_are_stretched_to_0():
    scale = np.array([4.0, 3.0, 2.0])
    scores = np.array([4.0, 3.0, 2.0, -9.0])
    assert stretch(scores, scale, by_range=True).tolist() == [1.0, 0.5, 0.0, 0.0]
    by_deviation = stretch(scores, scale)
    assert by_deviation[1] == pytest.approx(0.5)
    assert by_deviation[3] == 0.0


def test_a_score_of_zero_among_negative_ones_is_the_best():
    logits = ranking("one", 1.0, ("a", -1.0), ("b", 0.0))
    assert [candidate.node_id for candidate in fuse([logits], **SETTINGS)] == ["b", "a"]


def test_the_last_possible_rank_is_just_above_the_floor_of_scores():
    everything = ranking("one", 1.0, *((f"{number:03}", -number) for number in range(100)))
    last = fuse([everything], **SETTINGS)[-1]
    assert last.score == pytest.approx((1 / 160 - 1 / 161) / (1 / 61 - 1 / 161))


def test_the_last_rank_of_a_retriever_with_a_small_weight_still_counts():
    names = [f"{number:03}" for number in range(100)]
    heavy = ranking("heavy", 1.0, *((name, -place) for place, name in enumerate(names)))
    light = ranking("light", 0.1, *((f"l{name}", -place) for place, name in enumerate(names)))
    hits = fuse([heavy, light], **SETTINGS)
    assert hits[-1].node_id == "l099"
    assert hits[-1].score > 0


@pytest.mark.parametrize("mode", FUSION_MODES)
def test_a_retriever_with_weight_0_adds_no_candidates(mode):
    silent = ranking("silent", 0.0, ("b", 9.0))
    hits = fuse([ranking("one", 1.0, ("a", 2.0)), silent], **(SETTINGS | {"mode": mode}))
    assert [hit.node_id for hit in hits] == ["a"]


def test_a_node_found_by_two_queries_can_beat_a_better_rank():
    lists = [
        ranking("one", 0.5, ("a", 2.0), ("b", 1.0)),
        ranking("one", 0.5, ("c", 2.0), ("b", 1.0), query=1),
    ]
    best = fuse(lists, **SETTINGS)[0]
    assert (best.node_id, best.score) == ("b", 1.0)


def test_a_score_does_not_depend_on_how_many_candidates_there_are():
    few = [ranking("one", 1.0, *((str(i), 10.0 - i) for i in range(2)))]
    many = [ranking("one", 1.0, *((str(i), 10.0 - i) for i in range(9)))]
    assert [candidate.score for candidate in fuse(few, **SETTINGS)] == [
        candidate.score for candidate in fuse(many, **SETTINGS)
    ][:2]


LISTS = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abcdefgh"), st.one_of(st.none(), st.floats(-1, 10))), max_size=8
    ),
    max_size=4,
)


# Sums that differ in the last bit and are equal as scores.
ALMOST_EQUAL = [
    [("b", 1.0), ("d", None), ("a", 0.0)],
    [],
    [("a", None), ("b", 0.0), ("c", -2.639149722190787e-23)],
    [],
]


@given(LISTS, st.sampled_from(list(FUSION_MODES)), st.floats(0, 100))
@example(ALMOST_EQUAL, FUSION_MODES.DIST_BASED_SCORE, 0.0)
def test_any_lists_can_be_fused(lists, mode, k):
    rankings = [
        ranking(str(i), 1 / len(lists), *candidates, query=i % 2)
        for i, candidates in enumerate(lists)
    ]
    fused = fuse(rankings, mode=mode, k=k, pool=8)
    names = [candidate.node_id for candidate in fused]
    assert len(set(names)) == len(names)
    assert fused == sorted(fused, key=lambda candidate: (-candidate.score, candidate.node_id))
    assert all(candidate.score <= 1 for candidate in fused) or mode is FUSION_MODES.SIMPLE
    if mode is FUSION_MODES.RECIPROCAL_RANK:
        assert all(candidate.score > 0 for candidate in fused)
        assert not fused or fused[0].score == 1
    turned = {
        candidate.node_id: candidate.score
        for candidate in fuse(rankings[::-1], mode=mode, k=k, pool=8)
    }
    assert turned == pytest.approx({candidate.node_id: candidate.score for candidate in fused})
