"""The features of the ranking: each changes an order, and has the values that it documents."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

import numpy as np
import pytest
from llama_index.core.schema import TextNode
from results import Fixed

from llama_index_contextual.retrievers import features
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.chunk_info import (
    ChunkInfoIndex,
    InfoCollector,
    describe_chunk,
)
from llama_index_contextual.retrievers.features import FEATURES, Candidates, Query
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.utils.errors import SettingError


class Case(NamedTuple):
    """A query, and chunks of which the feature puts another one first.

    Attributes:
        query: The query.
        chunks: Text and metadata by id. Equal scores are ranked by id.
        vectors: Vector scores by id; by default all are equal.
    """

    query: str
    chunks: dict[str, tuple[str, dict[str, str]]]
    vectors: dict[str, float] = {}  # noqa: RUF012  nothing changes it


def code(path, text):
    return text, {"path": path}


FAR = "one two three four five six seven eight nine"  # enough words to keep terms apart
PARITY = {
    **{
        f"links{number}": (f"hard links, links that are hard{' wood' * number}", {})
        for number in range(8)
    },
    **{f"parity{number}": (f"parity of {number}", {}) for number in range(9)},
    **{f"check{number}": (f"check of {number}", {}) for number in range(9)},
    "parity": ("The check of a parity.", {}),
}

CASES = {
    "vector": Case("kite", {"a": ("kite", {}), "b": ("kite", {})}, {"a": 0.2, "b": 0.9}),
    "keyword": Case(
        "red kite",
        {"a": ("red kite over green hills", {}), "b": ("red kite over hills", {})},
        {"a": 0.9, "b": 0.89},
    ),
    "match": Case(
        "red kite wing tail",
        {
            "a": (f"blue {FAR} kite {FAR} wing {FAR} tail", {}),
            "b": (f"red {FAR} kite {FAR} wing {FAR} tail", {}),
            "c": (f"tail {FAR} {FAR} {FAR} {FAR}", {}),
        },
        {"a": 0.9, "b": 0.2, "c": 0.1},
    ),
    "nearness": Case(
        "red kite", {"a": ("red hills green kite", {}), "b": ("hills green red kite", {})}
    ),
    "date": Case(
        "tests of 9 March 2026",
        {
            "a": ("tests failed", {"date": "2026-01-01"}),
            "b": ("tests failed", {"date": "2026-03-09"}),
        },
    ),
    "heading": Case(
        "retries of the worker",
        {
            "a": ("retries of the worker and storage", {"header_path": "Jobs > Storage"}),
            "b": ("retries of the worker and storage", {"header_path": "Jobs > Worker"}),
        },
    ),
    "proper name": Case(
        "which songs does Ana like",
        {
            "a": ("songs that Ben likes", {"date": "2026-03-01"}),
            "b": (f"likes {FAR} songs, Ana", {"date": "2026-03-01"}),
            **{f"c{number}": (f"Ana {number}", {"date": "2026-03-01"}) for number in range(9)},
        },
        {"a": 0.9, "b": 0.85},
    ),
    "file name": Case(
        "fill the retry queue",
        {
            "a": code("src/app.py", "fill retry queue"),
            "b": code("src/queue.py", "fill retry queue"),
        },
    ),
    "defines": Case(
        "retry the queue",
        {
            "a": code("src/a.py", "pass\nRetryQueue class"),
            "b": code("src/b.py", "class RetryQueue:\npass"),
        },
    ),
    "exact": Case(
        "see RetryQueue",
        {
            "a": code("src/a.py", "class Retry_Queue:\npass RetryQueue"),
            "b": code("src/b.py", "class RetryQueue:\npass Retry_Queue"),
        },
    ),
    "file vector": Case(
        "kite",
        {
            "a": code("src/a.py", "pass"),
            "b": code("src/b.py", "one"),
            "b2": code("src/b.py", "two"),
            "b3": code("src/b.py", "three"),
            "c": ("four", {}),
            "d": ("five", {}),
        },
        {"a": 0.9, "b": 0.89, "b2": 0.89, "b3": 0.89, "c": 0.1, "d": 0.1},
    ),
    "tests": Case(
        "kite",
        {
            "a": code("tests/a.py", "kite"),
            "b": code("src/b.py", "kite"),
        },
    ),
    "names": Case(
        "GIL", {"a": ("GIL GIL", {"path": "a.md"}), "b": ("GIL", {"path": "notes/GIL.md"})}
    ),
    "further chunk": Case(
        "kite",
        {
            "a": code("src/a.py", "kite kite kite"),
            "a2": code("src/a.py", "kite kite"),
            "b": code("src/b.py", "kite"),
        },
    ),
    "part": Case("hard links and parity check", PARITY),
}


def ranking(case):
    """Return the ids of the hits of a case, best first."""
    nodes = [
        TextNode(
            id_=node_id, text=text, metadata=metadata, excluded_embed_metadata_keys=[*metadata]
        )
        for node_id, (text, metadata) in case.chunks.items()
    ]
    noise = [TextNode(id_=f"z{number}", text=f"filler {number}") for number in range(6)]
    vectors = Fixed(dict.fromkeys(case.chunks, 0.5) | case.vectors)
    fusion = ContextualFusionRetriever(
        [vectors, ContextualBM25Retriever([*nodes, *noise])], mode="learned"
    )
    return [hit.node.node_id for hit in fusion.retrieve(case.query)]


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_removing_a_feature_changes_the_ranking(feature, monkeypatch):
    case = CASES[feature.name]
    with_feature = ranking(case)
    monkeypatch.setattr(feature, "weight", 0.0)
    assert ranking(case) != with_feature


def test_each_feature_has_a_weight_a_name_and_a_case_of_its_own():
    names = [feature.name for feature in FEATURES]
    assert sorted(names) == sorted(CASES)
    assert all(feature.weight for feature in FEATURES)


def test_only_further_chunks_and_tests_have_negative_weights():
    against = {feature.name for feature in FEATURES if feature.weight < 0}
    assert against == {"further chunk", "tests"}


# Values


def query_of(text, **idf):
    """Return a query whose terms have these weights."""
    return Query(
        text=text,
        today=date(2026, 3, 3),
        groups=tuple((term,) for term in idf),
        idf=np.array([*idf.values()]),
    )


def known_chunks(chunks):
    """Return the descriptions of chunks by metadata and text. None is an unknown chunk."""
    collector = InfoCollector()
    rows = [row for row, chunk in enumerate(chunks) if chunk]
    for row in rows:
        collector.add(str(row), describe_chunk(*chunks[row]))
    return ChunkInfoIndex().with_chunks(rows, collector).read(range(len(chunks)))


def candidates_of(chunks, *, counts=None, cosines=None, **known):
    """Return candidates with only these data."""
    size = len(chunks)
    nothing = np.zeros(size)
    values = {
        "node_ids": [str(number) for number in range(size)],
        "vector_scores": nothing,
        "keyword_scores": nothing,
        "matched": nothing,
        "term_counts": np.zeros((size, 0)) if counts is None else np.array(counts, float),
        "nearness": nothing,
        "chunks": known_chunks(chunks),
        "named": {},
        "matching_ids": frozenset(map(str, range(size))),
        "cosines": nothing if cosines is None else np.array(cosines),
        "scores": nothing,
    }
    return Candidates(**(values | known))


DAYS = ["2026-03-02", "2026-03-06", "2026-03-01", "2026-03-20", None]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("the kite of 2 March 2026", [1.0, 0.5, 0.0, 0.0, 0.0]),
        ("the kite of yesterday", [1.0, 0.5, 0.0, 0.0, 0.0]),
        ("the kite", [0.0] * 5),
    ],
)
def test_a_named_day_and_the_week_after_it_have_a_value(query, expected):
    candidates = candidates_of([({"date": day} if day else {}, "kite") for day in DAYS])
    assert features.DateFeature().values(query_of(query), candidates).tolist() == expected


NOTE = ({"path": "2026-03-01.md"}, "text")
HEADINGS = ["Retries", "Retries > Limits", "Retries > Storage"]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((2, 1), [1.0, 1.0, 0.0, 0.0, 0.0]),
        (
            (1, 1),
            [0.25, 0.25, 0.0, 0.0, 0.0],
        ),  # "retries" is once in the context and never in the text
        ((0, 0), [0.0] * 5),
    ],
)
def test_a_heading_counts_by_the_query_terms_in_the_text_below_it(counts, expected):
    page = {"path": "a.md", "context": "Document: a.md > Retries"}
    chunks = [({**page, "header_path": path}, "text") for path in HEADINGS]
    candidates = candidates_of([*chunks, None, ({"path": "a.py"}, "x")], counts=[counts] * 5)
    values = features.HeadingFeature().values(query_of("q", retri=3.0, limit=1.0), candidates)
    assert values.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Where did Ana meet Ben?", [1.0, 0.5, 0.0, 0.0, 0.0]),
        ("Where? Ana met Ben.", [1.0, 0.0, 0.0, 0.0, 0.0]),  # a sentence begins with Ana
        ("where did ana meet ben?", [0.0] * 5),
    ],
)
def test_a_note_counts_by_the_names_of_the_query_in_it(query, expected):
    chunks = [NOTE, NOTE, None, ({"path": "2026-03-01/retry.py"}, "text"), NOTE]
    counts = [(1, 1), (2, 0), (1, 1), (1, 1), (0, 0)]
    candidates = candidates_of(chunks, counts=counts)
    values = features.ProperNameFeature().values(query_of(query, ana=1.0, ben=3.0), candidates)
    assert values.tolist() == expected


@pytest.mark.parametrize(("dated", "expected"), [(1, [0.0] * 4), (2, [0.0] * 4), (3, [1.0] * 4)])
def test_names_count_if_most_notes_are_dated(dated, expected):
    chunks = [*[NOTE] * dated, *[FILES[3]] * (4 - dated), ({"path": "2026-03-01/a.py"}, "text")]
    candidates = candidates_of(chunks, counts=[(1,)] * 5)
    values = features.ProperNameFeature().values(query_of("Where is Ana?", ana=1.0), candidates)
    assert values.tolist() == [*expected, 0.0]


def test_a_name_counts_once_in_any_of_its_languages():
    query = query_of("¿qué pidió Ana en mayo?", **{"ana": 1.0, "es:ana": 1.0})
    candidates = candidates_of([NOTE, NOTE], counts=[(1, 1), (1, 0)])
    assert features.ProperNameFeature().values(query, candidates).tolist() == [1.0, 1.0]


FILES = [
    ({"path": "src/retry_queue.py"}, "class RetryQueue:\n"),
    ({"path": "src/retry_queue.py"}, "x = 1\n"),
    ({"path": "tests/test_retry.py"}, "def test_retry_queue():\n"),
    ({"path": "note.md"}, ""),
]


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        (features.FileNameFeature(), [1.0, 1.0, 0.5, 0.0]),
        (features.DefinesFeature(), [1.0, 1.0, 2 / 3, 0.0]),
        (features.ExactFeature(), [1.0, 0.0, 0.0, 0.0]),
        (features.FileVectorFeature(), [0.5, 0.5, 0.1, 0.0]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_values_of_source_files(feature, expected):
    query = query_of("how does the RetryQueue wait", retri=2.0, queue=2.0)
    candidates = candidates_of(FILES, cosines=[0.9, 0.6, 0.3, 1.0])
    assert feature.values(query, candidates).tolist() == pytest.approx(expected)
    prose = query_of("how does the RetryQueue wait?", retri=2.0, queue=2.0)
    halves = [value / 2 for value in expected]
    assert feature.values(prose, candidates).tolist() == pytest.approx(halves)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("tests/retry.py", 1.0),
        ("src/_examples/retry/main.go", 1.0),
        ("src/test_retry.py", 1.0),
        ("mux_test.go", 1.0),
        ("src/RetryTest.java", 1.0),
        ("src/retry.spec.ts", 1.0),
        ("src/latest.py", 0.0),
        ("src/testimony.py", 0.0),
        ("src/contest/retry.py", 0.0),
        ("tests/notes.md", 0.0),
    ],
)
def test_tests_and_examples_have_a_value_unless_the_query_asks_for_them(path, expected):
    feature = features.TestsFeature()
    candidates = candidates_of([({"path": path}, "retry")])
    assert feature.values(query_of("how retries wait"), candidates).tolist() == [expected]
    assert feature.values(query_of("how retries wait?"), candidates).tolist() == [expected / 2]
    for query in ("example of a retry", "tests of the retry"):
        assert feature.values(query_of(query), candidates).tolist() == [0.0]


@pytest.mark.parametrize(
    "name", ["Jobs::Queue", "jobs.Queue", "app.jobs.Queue", "jobs->Queue", "Jobs#Queue"]
)
def test_a_qualified_name_matches_the_definition_of_its_last_part(name):
    files = [({"path": "jobs.py"}, "class Jobs:\n"), ({"path": "queue.py"}, "class Queue:\n")]
    query = query_of(f"late entries of {name}", queue=2.0)
    assert features.ExactFeature().values(query, candidates_of(files)).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("query", "text", "expected"),
    [
        ("queue", "class Queue:\n", 1.0),
        ("retry queue", "class Queue:\n", 0.5),  # one of its two words may be chance
        ("fill the retry queue", "class Queue:\n", 0.5),
        ("retry queue", "class Queue:\n    pass\nclass RetryQueue:\n    pass\n", 1.0),
        ("retry queue", "class RetryQueue:\n    pass\nclass Queue:\n    pass\n", 1.0),
        ("fill the retry queue", "class FillRetryQueue:\n", 1.0),
    ],
)
def test_the_best_matching_name_in_a_file_counts(query, text, expected):
    candidates = candidates_of([({"path": "src/app.py"}, text)])
    values = features.DefinesFeature().values(query_of(query), candidates)
    assert values.tolist() == pytest.approx([expected])


def test_a_frequent_word_of_a_file_name_counts_less():
    query = query_of("the RetryQueue", retri=2.0, queue=1.0)
    values = features.FileNameFeature().values(query, candidates_of(FILES))
    assert values[0] == pytest.approx(0.875)


def test_a_word_of_a_file_name_that_is_in_no_chunk_counts_fully():
    values = features.FileNameFeature().values(
        query_of("the RetryQueue", queue=1.0), candidates_of(FILES)
    )
    assert values[0] == 1.0


def test_a_file_whose_name_has_no_words_has_no_value():
    values = features.FileNameFeature().values(
        query_of("the queue", queue=1.0), candidates_of([({"path": "src/_.py"}, "queue")])
    )
    assert values.tolist() == [0.0]


def test_the_three_best_chunks_represent_a_file():
    candidates = candidates_of([FILES[0]] * 5, cosines=[0.1, 0.9, 0.3, 0.6, 0.2])
    values = features.FileVectorFeature().values(query_of("retry queue"), candidates)
    assert values.tolist() == pytest.approx([0.6] * 5)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("retry queue", [0, 1, 2, 3, 3]),
        ("How?", [0, 0, 0, 0, 0]),
        ("How? I have a queue of retries", [0, 0, 0, 0, 0]),
    ],
)
def test_further_chunks_of_a_file_count_up_to_three_and_not_for_a_question(query, expected):
    candidates = candidates_of([FILES[0]] * 5)
    candidates.scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    values = features.FurtherChunkFeature().values(query_of(query), candidates)
    assert values.tolist() == expected


def test_further_chunks_with_equal_scores_are_sorted_by_row():
    values = features.FurtherChunkFeature().values(
        query_of("retry queue"), candidates_of([FILES[0]] * 3)
    )
    assert values.tolist() == [0, 1, 2]


def test_further_chunks_of_notes_are_not_counted():
    page = ({"path": "note.md"}, "text")
    candidates = candidates_of([page, page, FILES[0], None, page])
    candidates.scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    values = features.FurtherChunkFeature().values(query_of("retry queue"), candidates)
    assert not values.any()


@pytest.mark.parametrize("query", ["retry_queue", "RetryQueue", "retry queue", "RetryQueue()"])
def test_the_chunk_that_defines_the_name_comes_first(query):
    chunks = {
        "use": code("src/retry_queue.py", "RetryQueue RetryQueue RetryQueue: the retry queue"),
        "definition": code("src/retry_queue.py", "class RetryQueue:\n    def push(self): ..."),
        "other": code("src/app.py", "RetryQueue RetryQueue queue retry"),
    }
    assert ranking(Case(query, chunks))[0] == "definition"


def test_the_chunk_that_defines_the_last_part_of_a_qualified_name_comes_first():
    chunks = {
        "use": code("jobs/queue.rb", "# Jobs::Queue, a Jobs::Queue, the Jobs::Queue"),
        "definition": code("jobs/queue.rb", "class Queue\n  def push(job)\n  end\nend"),
        "other": code("jobs/app.rb", "Jobs::Queue.push(job)"),
    }
    assert ranking(Case("Jobs::Queue", chunks))[0] == "definition"


@pytest.mark.parametrize("query", ["Plans", "Plans()"])
def test_a_type_comes_before_a_variable_and_before_its_implementations(query):
    chunks = {
        "variable": code("src/day.rs", "let plans = Plans::new(); use_of(plans, Plans); Plans"),
        "trait": code("src/day.rs", "impl Plans for Week { fn plans(&self) {} } // Plans Plans"),
        "type": code("src/day.rs", "pub trait Plans {\n    fn first(&self) -> Day;\n}"),
    }
    assert ranking(Case(query, chunks))[0] == "type"


@pytest.mark.parametrize(
    "query",
    [
        "hard links and parity check",
        "parity check, hard links",
        "hard links vs parity check",
        "hard links & parity check",
    ],
)
def test_the_best_chunk_for_each_part_follows_the_first_three(query):
    assert ranking(Case(query, PARITY))[3] == "parity"


def test_a_chunk_with_one_word_of_a_part_does_not_cover_it():
    query = query_of("links and parity check", link=1.0, pariti=1.0, check=1.0)
    counts = [[1, 0, 1]] * 3 + [[0, 1, 0], [0, 1, 1]]
    candidates = candidates_of([({}, "x")] * 5, counts=counts)
    candidates.scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    lifts = features.PartFeature().values(query, candidates)
    assert np.flatnonzero(lifts).tolist() == [4]


def test_the_chunk_with_the_most_of_a_part_is_lifted():
    query = query_of("links and parity check bit", link=1.0, pariti=1.0, check=1.0, bit=1.0)
    counts = [[1, 0, 0, 0]] * 3 + [[0, 1, 1, 0], [0, 1, 1, 1]]
    candidates = candidates_of([({}, "x")] * 5, counts=counts)
    candidates.scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    lifts = features.PartFeature().values(query, candidates)
    assert np.flatnonzero(lifts).tolist() == [4]


def test_a_lifted_chunk_follows_the_third_hit_whatever_its_id():
    query = query_of("links and parity check", link=1.0, pariti=1.0, check=1.0)
    counts = [[0, 1, 1], *[[1, 0, 0]] * 4]
    candidates = candidates_of([({}, "x")] * 5, counts=counts)
    candidates.scores = np.array([1.0, 5.0, 4.0, 3.0, 2.0])
    raised = candidates.scores + features.PartFeature().values(query, candidates)
    assert np.argsort(-raised, kind="stable").tolist() == [1, 2, 3, 0, 4]


@pytest.mark.parametrize(
    "between",
    [" and ", " or ", " und ", " oder ", " et ", " ou ", " y ", " и ", ", ", "; ", " / ", "、"],
)
def test_parts_are_recognized_in_several_languages(between):
    query = query_of(f"kite{between}wing", kite=1.0, wing=1.0)
    candidates = candidates_of([({}, "x")] * 4, counts=[[1, 0]] * 3 + [[0, 1]])
    candidates.scores = np.array([4.0, 3.0, 2.0, 1.0])
    lifts = features.PartFeature().values(query, candidates)
    assert np.flatnonzero(lifts).tolist() == [3]


def lifts_of(query, counts, scores):
    """Return the lifts of chunks with these terms and scores."""
    candidates = candidates_of([({}, "x")] * len(scores), counts=counts, scores=np.array(scores))
    return features.PartFeature().values(query, candidates)


def test_a_part_with_little_information_is_ignored():
    query = query_of("kite and wing", kite=9.0, wing=1.5)
    assert not lifts_of(query, [[1, 0]] * 3 + [[0, 1]], [4.0, 3.0, 2.0, 1.0]).any()


def test_a_part_that_no_chunk_is_about_lifts_nothing():
    query = query_of("kite and wing", kite=1.0, wing=1.0)
    assert not lifts_of(query, [[1, 0]] * 4, [1.0, 4.0, 3.0, 2.0]).any()


@pytest.mark.parametrize("text", ["kite", "kite and that", "kite, or not"])
def test_a_question_of_one_part_lifts_nothing(text):
    lifts = lifts_of(query_of(text, kite=1.0), [[0]] * 3 + [[1]], [4.0, 3.0, 2.0, 1.0])
    assert not lifts.any()


def test_without_candidates_no_part_is_lifted():
    query = query_of("kite and wing", kite=1.0, wing=1.0)
    candidates = candidates_of([], counts=np.zeros((0, 2)))
    assert features.PartFeature().values(query, candidates).tolist() == []


@pytest.mark.parametrize(("bit", "lifted"), [(2.0, [3]), (2.1, [])])
def test_a_chunk_with_three_fifths_of_a_part_covers_it(bit, lifted):
    query = query_of("kite and check bit", kite=1.0, check=3.0, bit=bit)
    lifts = lifts_of(query, [[1, 0, 0]] * 3 + [[0, 1, 0]], [4.0, 3.0, 2.0, 1.0])
    assert np.flatnonzero(lifts).tolist() == lifted


def test_the_best_of_equally_matching_chunks_is_lifted_for_a_part():
    query = query_of("kite and wing", kite=1.0, wing=1.0)
    lifts = lifts_of(query, [[1, 0]] * 3 + [[0, 1]] * 2, [5.0, 4.0, 3.0, 1.0, 2.0])
    assert np.flatnonzero(lifts).tolist() == [4]


def test_a_chunk_can_be_lifted_for_two_parts():
    query = query_of("links, kite and wing", link=1.0, kite=1.0, wing=1.0)
    counts = [[1, 0, 0]] * 3 + [[0, 1, 1], [0, 0, 1]]
    lifts = lifts_of(query, counts, [5.0, 4.0, 3.0, 1.0, 2.0])
    assert np.flatnonzero(lifts).tolist() == [3]


def test_a_chunk_that_has_the_score_of_the_third_is_not_lowered():
    query = query_of("kite and wing", kite=1.0, wing=1.0)
    lifts = lifts_of(query, [[1, 0]] * 3 + [[0, 1]], [5.0, 4.0, 3.0, 3.0])
    assert lifts.tolist() == [0.0] * 4


def test_only_the_best_chunk_of_a_named_document_has_the_value():
    candidates = candidates_of([({"path": "notes/GIL.md"}, "text")] * 3, named={"0": 1.0})
    candidates.scores = np.array([1.0, 3.0, 2.0])
    values = features.NameFeature().values(query_of("GIL"), candidates)
    assert values.tolist() == [0.0, 1.0, 0.0]


def test_the_best_chunk_that_matches_the_filters_has_the_value_of_the_name_too():
    page = ({"path": "notes/GIL.md"}, "text")
    candidates = candidates_of([page] * 3, named={"0": 1.0}, matching_ids=frozenset("2"))
    candidates.scores = np.array([3.0, 2.0, 1.0])
    values = features.NameFeature().values(query_of("GIL"), candidates)
    assert values.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(("length", "value"), [(200, 1.0), (201, 0.0)])
def test_a_query_of_more_than_two_hundred_characters_is_no_name(length, value):
    candidates = candidates_of([({"path": "notes/GIL.md"}, "text")], named={"0": 1.0})
    values = features.NameFeature().values(query_of("x" * length), candidates)
    assert values.tolist() == [value]


@pytest.mark.parametrize(
    ("question", "first", "last"),
    [("how many retries?", "top", "other"), ("how many retries by the worker?", "asked", "other")],
)
def test_a_chunk_below_the_named_title_or_heading_comes_before_others(question, first, last):
    text = "A job of the worker is tried three times, retry limits say so, whichever it is."
    paths = {"other": "Retries > Storage", "asked": "Retries > Worker", "top": "Retries"}
    nodes = [
        TextNode(
            id_=name,
            text=text,
            metadata={"path": f"{name}.md", "header_path": path, "date": f"2026-01-0{day}"},
        )
        for day, (name, path) in enumerate(paths.items(), 1)
    ]
    for node in nodes:
        node.excluded_embed_metadata_keys = list(node.metadata)
    hits = ContextualFusionRetriever([ContextualBM25Retriever(nodes)], mode="learned").explain(
        question
    )
    credits_of = {
        hit.node_id: {credit.name: credit.credit for credit in hit.credits} for hit in hits
    }
    order = [*credits_of]
    assert first in order[: order.index(last)]
    assert order[-1] == last
    assert "heading" in credits_of["top"]
    assert "heading" not in credits_of["other"], "its page's name is no merit of its"
    assert credits_of[first]["heading"] == pytest.approx(credits_of["top"]["heading"])


TEXT = "The gateway waits thirty seconds before it closes a connection that is idle and says so."


def test_chunks_with_the_same_text_are_one_hit_that_names_the_other_places():
    chunks = {
        "a": (TEXT, {"path": "a.md", "start_line": 1, "end_line": 2}),
        "b": (TEXT.upper(), {"path": "b.md", "start_line": 5, "end_line": 5}),
        "other": ("A gateway restarts at night; connections are closed then.", {}),
        "day": (TEXT, {"path": "2026-04-09.md"}),
    }
    nodes = [TextNode(id_=id_, text=text, metadata=meta) for id_, (text, meta) in chunks.items()]
    keywords = ContextualBM25Retriever(nodes)
    fusion = ContextualFusionRetriever([keywords], mode="learned")
    hits = fusion.explain("gateway connection idle").hits
    assert {hit.node_id for hit in hits} in ({"a", "other", "day"}, {"b", "other", "day"})
    twins = {hit.node_id: hit.also_at for hit in hits}
    assert twins.get("a", twins.get("b")) in (("b.md#L5",), ("a.md#L1-L2",))
    assert twins["other"] == twins["day"] == (), "a note of a day is news of that day"
    assert "also at" in str(fusion.explain("gateway connection idle"))
    assert hits[0].to_dict()["also_at"] == list(hits[0].also_at)
    assert hits[0].node.node.metadata == dict(chunks[hits[0].node_id][1]), (
        "metadata stay the user's"
    )
    ranks = ContextualFusionRetriever([keywords], mode="reciprocal_rerank")
    assert len(ranks.retrieve("gateway connection idle")) == 4


# A feature of a user's own


class CatFeature:
    """Whether a chunk is about the cat."""

    name = "cat"
    weight = 5.0

    def values(self, query, candidates):
        """Return 1 for the chunk about the cat, 0 for all others."""
        return np.array([float(node_id == "cat") for node_id in candidates.node_ids])


def test_a_users_own_feature_ranks_and_is_explained(nodes):
    keywords = ContextualBM25Retriever(nodes)
    plain = ContextualFusionRetriever([keywords], mode="learned")
    features = (*FEATURES, CatFeature())
    fusion = ContextualFusionRetriever([keywords], mode="learned", features=features)
    question = "the cat or the budget of the house"
    assert plain.explain(question).hits[0].node.node.node_id == "meeting"
    best = fusion.explain(question).hits[0]
    assert best.node.node.node_id == "cat"
    assert ("cat", 5.0) in [(credit.name, credit.credit) for credit in best.credits]


def test_invalid_features_are_rejected(nodes):
    keywords = ContextualBM25Retriever(nodes)
    twice = (*FEATURES, CatFeature(), CatFeature())
    with pytest.raises(SettingError, match=r"different names .*'cat' twice"):
        ContextualFusionRetriever([keywords], features=twice)
    with pytest.raises(SettingError, match="without name, weight, values"):
        ContextualFusionRetriever([keywords], features=["cat"])


class ConstantFeature:
    """Values that do not depend on the question."""

    name = "constant"
    weight = 1.0

    def __init__(self, values):
        self.constant_values = values

    def values(self, query, candidates):
        """Return the values for the four candidates."""
        return self.constant_values


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0], r"of the shape \(1,\)"),
        (1.0, r"of the shape \(\)"),
        ([0.0, 0.0, float("nan"), 0.0], "NaN or infinity"),
        ([0.0, 0.0, float("inf"), 0.0], "NaN or infinity"),
    ],
)
def test_a_feature_has_one_finite_value_per_candidate(values, reason):
    keywords = ContextualBM25Retriever([TextNode(text=f"kite {number}") for number in range(4)])
    question = "kite"
    plain = ContextualFusionRetriever([keywords], mode="learned")
    hits = plain.retrieve(question)
    assert len(hits) == 4
    accepted = ContextualFusionRetriever(
        [keywords], mode="learned", features=(*FEATURES, ConstantFeature([0.0] * 4))
    )
    assert accepted.retrieve(question) == hits
    refused = ContextualFusionRetriever(
        [keywords], mode="learned", features=(*FEATURES, ConstantFeature(values))
    )
    with pytest.raises(SettingError, match=f"'constant' must return .* {reason}"):
        refused.retrieve(question)
