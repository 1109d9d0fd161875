import doctest
import inspect
import math
import pickle
from datetime import date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor import FixedRecencyPostprocessor, TimeWeightedPostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

from llama_index_contextual.postprocessors import recency as postprocessors
from llama_index_contextual.postprocessors.recency import (
    RecencyPostprocessor,
    age_in_days,
    apply_multipliers,
    decay,
)
from llama_index_contextual.utils.errors import SettingError

NOW = datetime(2026, 4, 10, 12, tzinfo=timezone.utc)


def hit(node_id, score, **metadata):
    return NodeWithScore(
        node=TextNode(id_=node_id, text=f"note {node_id}", metadata=metadata), score=score
    )


def order(hits):
    return [scored_node.node.node_id for scored_node in hits]


def scores_of(hits):
    return [(scored_node.node.node_id, scored_node.score) for scored_node in hits]


def test_the_example_in_the_docstring():
    assert doctest.testmod(postprocessors).failed == 0


@pytest.mark.parametrize(
    ("age", "expected"),
    [(0, 1), (30, 0.5), (60, 0.25), (15, 0.7071), (-5, 1), (1e9, 0)],
    ids=lambda v: f"{v:g}",
)
def test_half_is_left_after_each_half_life(age, expected):
    assert decay(age, 30) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (date(2026, 4, 10), 0),  # today, at any hour
        (date(2026, 4, 9), 1),
        (date(2026, 4, 12), -2),
        (datetime(2026, 4, 10, 0, tzinfo=timezone.utc), 0.5),
        (datetime(2026, 4, 10, 0), 0.5),  # noqa: DTZ001  naive: in the zone of now
        (datetime(2026, 4, 10, 2, tzinfo=timezone(timedelta(hours=2))), 0.5),
    ],
)
def test_the_age_of_dates_and_of_naive_and_aware_times(when, expected):
    assert age_in_days(when, NOW) == expected


def test_a_naive_time_is_read_in_the_time_zone_of_now():
    now = datetime(2026, 4, 10, 12, tzinfo=timezone(timedelta(hours=9)))
    assert age_in_days(datetime(2026, 4, 10, 0), now) == 0.5  # noqa: DTZ001


@pytest.mark.parametrize(
    ("metadata", "age"),
    [
        ({"date": "2026-04-09"}, 1),
        ({"date": "2026-04-09", "path": "memory/2020-01-01.md"}, 1),  # front matter beats the path
        ({"date_ts": 1775692800}, 1),
        (
            {"date_ts": 1775692800000, "path": "2026-04-09.md"},
            1,
        ),  # milliseconds are not read as seconds
        ({"header_path": "Log > 2026-04-09 > Standup", "path": "log.md"}, 1),
        ({"header_path": "2026-04-01 > 2026-04-09", "path": "2020-01-01.md"}, 1),
        ({"path": "a/b/2026/04/09-standup.md"}, 1),
        ({"file_path": "C:\\notes\\2026_04_09"}, 1),
        ({"date": "2026-04-12"}, -2),  # the future
        ({"date": "April 9, 2026"}, 1),
        ({"date": "9th Apr. 2026"}, 1),
        ({"date": "9 de abril de 2026"}, 1),
        ({"date": "Thu, 09 Apr 2026 10:11:12 GMT"}, 1),
        ({"date": "February 31, 2026"}, None),
        ({"date": "04/09/2026"}, None),  # April or September
        ({"date": 1775736000}, 1),  # seconds since the epoch: noon of 9 April
        ({"date": 1775736000.0}, 1),
        ({"date": 2026, "path": "2026-04-09.md"}, 1),  # a year is not read as seconds
        ({"date": True}, None),
        ({"last_modified_date": "2026-04-09"}, None),  # a Git checkout changes it
        ({"file_name": "2026-04-09.pdf"}, 1),
        ({"date": "2026-02-31"}, None),
        ({"path": "memory/2026-02-31.md"}, None),
        ({"path": "people.md"}, None),
        ({"path": "MEMORY.md", "header_path": "2020-01-01"}, None),
        ({"path": "team/MEMORY.md", "date": "2020-01-01"}, None),
        ({}, None),
    ],
)
def test_the_sources_of_a_date_in_order(metadata, age):
    [(_, measured_age)] = RecencyPostprocessor(now=NOW).aged_scores([hit("n", 1.0, **metadata)])
    assert measured_age == age


@pytest.mark.parametrize(
    "scores",
    [
        {"new": 0.50, "old": 0.52},  # cosines
        {"new": 0.40 / 22, "old": 0.40 / 21, "off": 0.40 / 120},  # RRF
        {"new": 0.50, "old": 0.52, "off": 0.01},
        {"new": -3.1, "old": -3.0, "off": -11.0},  # a reranker's logits
        {"new": -3.1, "old": -3.0},
        {"new": 0.0, "old": 0.0},
        {"new": None, "old": None},
    ],
)
def test_the_newer_of_two_nearly_equal_notes_wins(scores):
    dates = {"new": "2026-04-08", "old": "2026-01-08", "off": "2026-04-10"}
    pool = [hit(name, score, date=dates[name]) for name, score in scores.items()]
    ids = order(RecencyPostprocessor(now=NOW).postprocess_nodes(pool))
    assert ids[:2] == ["new", "old"]


def test_the_newer_of_two_notes_with_negative_scores_wins_at_full_weight_too():
    """A product would raise a negative score."""
    pool = [hit("old", -3.0, date="2026-01-08"), hit("new", -3.1, date="2026-04-08")]
    recency = RecencyPostprocessor(now=NOW, weight=1)
    assert order(recency.postprocess_nodes(pool)) == ["new", "old"]


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_a_missing_score_is_the_lowest_of_the_pool(missing):
    pool = [hit("missing", missing), hit("low", -3.0), hit("high", -1.0)]
    hits = RecencyPostprocessor(now=NOW).postprocess_nodes(pool)
    assert scores_of(hits) == [
        ("high", -1.0),
        ("low", -3.0),
        ("missing", -3.0),
    ]


def test_the_date_can_have_another_key():
    recency = RecencyPostprocessor(now=NOW, date_key="updated")
    [(_, age)] = recency.aged_scores([hit("n", 1.0, date="2020-01-01", updated="2026-04-09")])
    assert age == 1


@pytest.mark.parametrize("best", [0.9, 9.0])
def test_a_much_better_old_note_is_not_pushed_below_an_irrelevant_new_one(best):
    pool = [hit("old", best, date="2026-03-11"), hit("new", best / 9, date="2026-04-10")]
    assert order(RecencyPostprocessor(now=NOW).postprocess_nodes(pool)) == ["old", "new"]


def test_undated_and_evergreen_notes_keep_their_scores():
    pool = [
        hit("a", 0.4, path="people.md"),
        hit("b", 0.3, path="MEMORY.md"),
        hit("c", 0.5, date="2026-01-10"),
    ]
    scores = dict(scores_of(RecencyPostprocessor(now=NOW).postprocess_nodes(pool)))
    assert (scores["a"], scores["b"]) == (0.4, 0.3)
    assert scores["c"] < 0.5


def test_the_weight_limits_the_effect_of_age():
    ancient = [hit("ancient", 1.0, date="1990-01-01"), hit("base", 0.0, date="2026-04-10")]

    def left(weight):
        return RecencyPostprocessor(now=NOW, weight=weight).aged_scores(ancient)[0][0]

    assert left(1.0) == pytest.approx(0)
    assert left(0.2) == pytest.approx(0.8)
    assert left(0.0) == 1.0


def test_top_k_cuts_after_weighting():
    pool = [hit("old", 0.52, date="2026-01-01"), hit("new", 0.5, date="2026-04-10")]
    assert order(RecencyPostprocessor(now=NOW, top_k=1).postprocess_nodes(pool)) == ["new"]


def test_ties_break_by_recency_then_id():
    pool = [hit("b", 0.5), hit("a", 0.5), hit("old", 0.5, date="2026-01-01")]
    assert order(RecencyPostprocessor(now=NOW).postprocess_nodes(pool)) == ["a", "b", "old"]


def test_ties_of_very_old_notes_break_by_recency_too():
    """After about fifty half-lives both scores are equal, and the newer note still comes first."""
    days = {"c": "2001-01-02", "a": "2001-01-01", "b": "2000-12-31", "d": "1999-01-01"}
    pool = [hit(name, 0.5, date=day) for name, day in sorted(days.items())]
    assert order(RecencyPostprocessor(now=NOW).postprocess_nodes(pool)) == ["c", "a", "b", "d"]
    future = [hit("a", 0.5, date="2026-05-01"), hit("b", 0.5, date="2026-06-01")]
    assert order(RecencyPostprocessor(now=NOW).postprocess_nodes(future)) == ["b", "a"]


def test_by_default_a_tenth_of_the_score_has_a_half_life_of_a_month():
    recency = RecencyPostprocessor()
    assert (recency.weight, recency.half_life_days) == (0.1, 30)


def test_the_callback_manager_that_is_passed_is_used():
    manager = CallbackManager([])
    assert RecencyPostprocessor(callback_manager=manager).callback_manager is manager
    assert RecencyPostprocessor().callback_manager.handlers == []


def test_the_settings_are_in_the_signature():
    assert set(inspect.signature(RecencyPostprocessor).parameters) == set(
        RecencyPostprocessor.model_fields
    )


@pytest.mark.parametrize("now", [date(2026, 4, 10), datetime(2026, 4, 10, 9)])  # noqa: DTZ001
def test_now_can_be_a_day_or_a_time(now):
    [(_, age)] = RecencyPostprocessor(now=now).aged_scores([hit("n", 1.0, date="2026-04-09")])
    assert age == 1


def test_now_is_the_clock_by_default():
    yesterday = datetime.now().astimezone().date() - timedelta(days=1)
    [(_, age)] = RecencyPostprocessor().aged_scores([hit("n", 1.0, date=yesterday.isoformat())])
    assert age in {1, 2}  # midnight can pass in between


@pytest.mark.parametrize(
    "setting",
    [{"half_life_days": 0}, {"half_life_days": math.nan}, {"weight": 1.5}, {"top_k": 0}],
    ids=str,
)
def test_an_invalid_setting_is_named(setting):
    with pytest.raises(SettingError, match=next(iter(setting))):
        RecencyPostprocessor(**setting)


def test_a_setting_that_does_not_exist_is_named():
    with pytest.raises(SettingError, match=r"does not take bogus\. It takes .*half_life_days"):
        RecencyPostprocessor(bogus=1)


def test_it_can_be_serialized_and_read_back():
    postprocessor = RecencyPostprocessor(half_life_days=7)
    assert (
        RecencyPostprocessor.from_dict(postprocessor.to_dict()).to_dict() == postprocessor.to_dict()
    )
    assert RecencyPostprocessor.from_json(postprocessor.to_json()).half_life_days == 7


def test_the_input_is_not_changed():
    pool = [hit("old", 0.5, date="2026-01-01", path="x.md"), hit("new", 0.4, date="2026-04-10")]
    before = [
        (scored_node.score, scored_node.node.hash, scored_node.node.get_content(MetadataMode.ALL))
        for scored_node in pool
    ]
    RecencyPostprocessor(now=NOW).postprocess_nodes(pool)
    assert [
        (scored_node.score, scored_node.node.hash, scored_node.node.get_content(MetadataMode.ALL))
        for scored_node in pool
    ] == before


async def test_async_returns_the_same():
    pool = [hit(str(n), n / 10, date=f"2026-03-{n + 1:02}") for n in range(10)]
    weigher = RecencyPostprocessor(now=NOW)
    sync_hits = weigher.postprocess_nodes(pool)
    async_hits = await weigher.apostprocess_nodes(pool)
    assert scores_of(async_hits) == scores_of(sync_hits)


def test_it_pickles_and_is_rebuilt_from_its_settings():
    weigher = RecencyPostprocessor(half_life_days=7, evergreen=("people/*",))
    copies = pickle.loads(pickle.dumps(weigher)), RecencyPostprocessor.from_dict(weigher.to_dict())  # noqa: S301
    for copy in copies:
        assert (copy.half_life_days, copy.evergreen, copy.to_dict()) == (
            7,
            ("people/*",),
            weigher.to_dict(),
        )


def test_the_recency_of_llama_index_fails_where_this_does_not():
    undated, future = hit("undated", 0.5), hit("future", 0.4, date="2999-01-01")
    with pytest.raises(
        (KeyError, ImportError)
    ):  # ImportError where pandas, which it does not declare, is missing
        FixedRecencyPostprocessor().postprocess_nodes([undated], query_str="q")
    before = undated.node.hash
    TimeWeightedPostprocessor(top_k=1).postprocess_nodes([undated])
    assert undated.node.hash != before  # it wrote into the metadata
    assert len(RecencyPostprocessor(now=NOW).postprocess_nodes([undated, future])) == 2


@given(
    st.lists(
        st.tuples(st.floats(-100, 100), st.floats(0, 1)),
        min_size=1,
        max_size=30,
    )
)
def test_age_only_lowers_scores_and_never_below_the_baseline(pool):
    scores, multipliers = [score for score, _ in pool], [multiplier for _, multiplier in pool]
    weighed = apply_multipliers(scores, multipliers)
    baseline = max(scores) - max(max(scores) - min(scores), 0.5 * abs(max(scores)))
    for before, after in zip(scores, weighed, strict=True):
        assert baseline - 1e-9 <= after <= before + 1e-9


@given(
    st.lists(st.floats(0.001, 1), min_size=2, max_size=20), st.integers(0, 400), st.integers(1, 400)
)
def test_the_older_of_two_equals_never_comes_first(other_scores, age, more):
    dates = [NOW.date() - timedelta(days=days) for days in (age, age + more)]
    pool = [hit(f"z{n}", score) for n, score in enumerate(other_scores)]
    pool += [
        hit("b-new", 0.5, date=dates[0].isoformat()),
        hit("a-old", 0.5, date=dates[1].isoformat()),
    ]
    ids = order(RecencyPostprocessor(now=NOW).postprocess_nodes(pool))
    assert ids.index("b-new") < ids.index("a-old")


@pytest.mark.parametrize("now", [NOW, datetime(2026, 4, 10)])  # noqa: DTZ001
def test_now_survives_serialization(now):
    given = RecencyPostprocessor(now=now, weight=1)
    for copied in (
        RecencyPostprocessor.from_dict(given.to_dict()),
        RecencyPostprocessor.from_json(given.to_json()),
    ):
        assert copied.now == now
        assert copied.weight == given.weight


def test_a_naive_now_is_compared_with_aware_times():
    noon = datetime(2026, 4, 10, 12)  # noqa: DTZ001
    [(_, age)] = RecencyPostprocessor(now=noon).aged_scores(
        [hit("n", 1.0, date="2026-04-08T12:00:00+00:00")]
    )
    assert 1 < age < 3


def test_a_note_from_today_and_an_undated_note_can_have_the_same_score():
    pool = [hit("b", 0.5), hit("a", 0.5, date="2026-04-10"), hit("c", 0.5)]
    assert order(RecencyPostprocessor(now=NOW).postprocess_nodes(pool)) == ["a", "b", "c"]


def test_two_hits_can_have_the_same_id_and_score():
    pool = [hit("a", 0.5, status="open"), hit("a", 0.5, status="done")]
    assert order(RecencyPostprocessor(now=NOW).postprocess_nodes(pool)) == ["a", "a"]
