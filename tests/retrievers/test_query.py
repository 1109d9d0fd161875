"""The operators of a query ("exact phrase", path:, tag:). Ordinary questions are unchanged."""

from __future__ import annotations

import asyncio
from datetime import date

import pytest
from llama_index.core.schema import TextNode

from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.filters import metadata_match
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.query import (
    note_filters,
    parse_query,
    unknown_words_note,
)
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever
from llama_index_contextual.utils.dates import epoch_seconds
from llama_index_contextual.utils.errors import ContextualWarning, SettingError

QUESTIONS = [
    'What is "Little Women" about according to Joanna?',
    'When did Joanna first watch "Eternal Sunshine of the Spotless Mind?',
    (
        "What is the purpose of the `kubectl get pods --namespace=kube-system -l "
        "k8s-app=cilium` command?"
    ),
    "What is the purpose of the WasmEdge::PO namespace?",
    "how do I use find -name on a folder",
    "What does path: mean, and tag: too?",
    "well-known follow-up e-mail",
    '¿Qué dijo "mañana" en la reunión?',
    '"',
    "- -- -x",
    "-alone",
    "budget -kitchen",
    "rm -rf build",
    "freezer -18 degrees",
    "docker run -it",
    "how does xpath:div match",
    'what of path:"my notes/"s',
    f"{'word ' * 400}tag:home",
    "",
]


@pytest.fixture
def keyword(nodes):
    return ContextualBM25Retriever(nodes)


@pytest.fixture
def hybrid(index, embedding):
    keyword = ContextualBM25Retriever.from_defaults(index=index)
    return ContextualFusionRetriever(
        [ContextualVectorRetriever(index, embed_model=embedding), keyword]
    )


def ids(hits):
    return {hit.node.node_id for hit in hits}


@pytest.mark.parametrize("text", QUESTIONS)
def test_an_ordinary_question_has_no_operators(text):
    parsed = parse_query(text)
    assert (parsed.text, parsed.operators, parsed.filters) == (text, (), None)


@pytest.mark.parametrize(
    ("text", "remaining_text", "operators"),
    [
        ('"warm sofa" cat', "warm sofa cat", ('"warm sofa"',)),
        (
            "what did we agree on path:notes/meeting",
            "what did we agree on",
            ("path:notes/meeting",),
        ),
        ('budget path:"my notes/" tag:#work', "budget", ('path:"my notes/"', "tag:#work")),
        ("tag:home path:notes/", "home notes/", ("tag:home", "path:notes/")),
    ],
)
def test_operators_are_removed_from_the_text(text, remaining_text, operators):
    parsed = parse_query(text)
    assert (parsed.text, parsed.operators) == (remaining_text, operators)


CASES = [
    ('"budget of the house"', {"meeting"}),
    ('"Budget of the House" kitchen', {"meeting"}),
    ("budget path:notes/bud", {"budget"}),
    ("budget path:notes/ path:MEETING", {"meeting"}),
    ("the dog or the budget tag:home", {"dog"}),
    ("“Budget of the House” kitchen", {"meeting"}),
    ("path:notes/budget", {"budget"}),
    ('"max_results"', {"config"}),
]


@pytest.mark.parametrize(("query", "expected"), CASES)
def test_operators_apply_to_an_answer_by_keywords(keyword, query, expected):
    assert ids(ContextualFusionRetriever([keyword]).retrieve(query)) == expected


@pytest.mark.parametrize(("query", "expected"), CASES)
def test_operators_apply_to_every_retriever_of_a_hybrid_answer(hybrid, keyword, query, expected):
    admitted = set(keyword.matching_ids(parse_query(query).filters))
    explanation = hybrid.explain(query)
    assert expected <= ids(explanation.nodes) == admitted
    assert explanation.operators
    assert all(operator in str(explanation).splitlines()[0] for operator in explanation.operators)
    assert explanation.to_dict()["operators"] == list(explanation.operators)
    assert ids(asyncio.run(hybrid.aretrieve(query))) == admitted


@pytest.mark.parametrize(
    "query", ['"house of the budget" kitchen', "budget path:nowhere/", "budget tag:nothing"]
)
def test_operators_that_match_nothing_are_ignored_with_a_warning(hybrid, keyword, query):
    with pytest.warns(ContextualWarning, match="ignored .* because no node matches"):
        explanation = hybrid.explain(query)
    assert ids(explanation.nodes) >= {"budget", "meeting"}
    assert not explanation.operators
    assert any("ignored" in warning for warning in explanation.warnings)


def test_a_warning_names_the_query_and_the_operators_that_are_ignored(hybrid):
    warning = r"Query 'budget': ignored path:nowhere/ tag:nothing, because no node matches\."
    with pytest.warns(ContextualWarning, match=warning):
        hybrid.explain("budget path:nowhere/ tag:nothing")


def test_an_operator_that_is_ignored_is_not_searched_for_as_words(hybrid):
    with pytest.warns(ContextualWarning, match="ignored tag:budget"):
        ignored = hybrid.explain("kitchen tag:budget")
    assert ignored.relevance == hybrid.explain("kitchen").relevance
    assert ids(ignored.nodes[:1]) == ids(hybrid.explain("kitchen").nodes[:1])


def test_a_phrase_is_found_whatever_its_case_accents_and_punctuation():
    nodes = [
        TextNode(id_="side by side", text="Una CANCIÓN,\n\ntriste."),
        TextNode(id_="apart", text="Una triste historia y una canción."),
    ]
    assert ids(
        ContextualFusionRetriever([ContextualBM25Retriever(nodes)]).retrieve('"cancion triste"')
    ) == {"side by side"}


def test_operators_respect_filters_of_a_view_and_later_changes(keyword):
    fusion = ContextualFusionRetriever([keyword])
    keyword.add(
        [
            TextNode(
                id_="new", text="the budget of the house, again", metadata={"path": "later/new.md"}
            )
        ]
    )
    assert ids(fusion.retrieve('"budget of the house"')) == {"meeting", "new"}
    keyword.delete(["meeting"])
    assert ids(fusion.retrieve('"budget of the house"')) == {"new"}
    view = fusion.with_filters(parse_query("x path:notes").filters)
    assert "new" not in ids(view.retrieve('budget -"zebra"'))


@pytest.mark.parametrize("key", ["path", "file_path"])
def test_a_filter_on_paths_reads_the_path_and_the_file_path_of_a_reader(key):
    nodes = [
        TextNode(id_="a", text="alpha", metadata={key: "/notes/Work/a.md"}),
        TextNode(id_="b", text="alpha", metadata={key: "/notes/home/b.md"}),
    ]
    retriever = ContextualBM25Retriever(nodes)
    assert retriever.matching_ids(note_filters(path="work/")) == ["a"]
    assert retriever.matching_ids(note_filters(path=["work/", "home/b"])) == ["a", "b"]


@pytest.mark.parametrize("text", ["2025-W41", "week 41 of 2025", "KW 41 2025"])
def test_since_and_until_accept_a_week(text):
    [since] = note_filters(since=text).filters
    [until] = note_filters(until=text).filters
    assert (since.key, since.value) == ("date_ts", epoch_seconds(date(2025, 10, 6)))
    assert (until.key, until.value) == ("date_ts", epoch_seconds(date(2025, 10, 12)))


def test_since_and_until_may_be_one_day_and_not_in_the_other_order():
    assert len(note_filters(since="2026-04-09", until="2026-04-09").filters) == 2
    with pytest.raises(SettingError, match=r"`since` must not be after `until` .*'2026-04-10'"):
        note_filters(since="2026-04-10", until="2026-04-09")


def test_a_day_that_cannot_be_read_is_named():
    with pytest.raises(SettingError, match=r"`until` must be a date .*got 'gateway'"):
        note_filters(until="gateway")


def test_the_first_and_the_last_day_of_a_range_are_in_it():
    filters = note_filters(since="2026-04-09", until="2026-04-10")
    days = [f"2026-04-{day:02}" for day in (8, 9, 10, 11)]
    seconds = [epoch_seconds(date.fromisoformat(day)) for day in days]
    assert [metadata_match(filters, {"date_ts": value}) for value in seconds] == [
        False,
        True,
        True,
        False,
    ]


def test_surrounding_white_space_is_ignored():
    assert note_filters(path=" work/ ", tag=[" home "]) == note_filters(path="work/", tag="home")
    assert note_filters(since=" 2026-04-09 ") == note_filters(since="2026-04-09")
    assert note_filters(path=" ", tag=["", " "], since=" ") is None


@pytest.mark.parametrize(
    ("condition", "matching"),
    [
        ("status=open", {"open"}),
        (" Status = OPEN ", {"open"}),
        ("status!=open", {"done", "none"}),
        ("status=", {"none"}),
        ("status!=", {"open", "done"}),
        ("status~pe", {"open"}),
        ("rating>=4", {"open"}),
        ("rating>4", set()),
        ("rating<4", {"done"}),
        ("rating<=4", {"open", "done"}),
        ("version~2", {"open"}),
        ("draft=true", {"done"}),
        ("topics=ml", {"done"}),
    ],
)
def test_a_condition_on_front_matter(condition, matching):
    rows = {
        "open": {"status": "open", "rating": 4, "version": "v2.1"},
        "done": {"status": "done", "rating": 3, "draft": True, "topics": "art, ML"},
        "none": {},
    }
    filters = note_filters(where=[condition])
    assert {name for name, values in rows.items() if metadata_match(filters, values)} == matching


def test_a_condition_that_cannot_be_read_is_named():
    with pytest.raises(SettingError, match=r"`where` must be KEY=VALUE.*got 'open'"):
        note_filters(where=["open"])


def test_a_note_needs_one_of_several_paths_and_all_of_several_tags():
    rows = {
        "a": {"path": "work/a.md", "tags": "home, plan"},
        "b": {"path": "notes/b.md", "tags": "home"},
        "c": {"path": "private/c.md", "tags": "home, plan"},
    }

    def matching(**written):
        return {name for name, row in rows.items() if metadata_match(note_filters(**written), row)}

    assert matching(path=["work/", "notes/"]) == {"a", "b"}
    assert matching(tag=["home", "plan"]) == {"a", "c"}
    assert matching(path=["work/", "notes/"], tag=["home", "plan"]) == {"a"}


def note_on_unknown_words(text):
    keywords = ContextualBM25Retriever([TextNode(text="The gateway waits.")])
    return unknown_words_note(text, keywords.term_scores(text, []))


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("what is the gateway", ""),
        ("what is fnord", 'the index does not know "fnord"'),
        ("fnord gnix fnord", 'the index does not know "fnord", "gnix"'),
        ("fnord gnix blarg zork", 'the index does not know "fnord", "gnix", "blarg"'),
        ("the __ gateway", ""),
    ],
)
def test_the_first_three_words_that_no_node_contains_are_named(text, note):
    assert note_on_unknown_words(text) == note


def test_until_a_quarter_includes_its_last_day():
    [until] = note_filters(until="2025-Q3").filters
    assert until.value == epoch_seconds(date(2025, 9, 30))
