"""Suggestions of names and words for a misspelt query."""

from __future__ import annotations

import random
import string

import pytest
from llama_index.core.schema import TextNode

from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.suggestions import Vocabulary

NAMES = ["Dijkstra's Algorithm", "Sorting Algorithms", "Kitchen budget", "Canci\u00f3n de cuna"]
VOCABULARY = Vocabulary.of(["We met the architects.", "A lamp hangs over the table."], NAMES)


@pytest.mark.parametrize(
    ("query", "suggestions"),
    [
        ("dikstra", ["Dijkstra's Algorithm", "Dijkstra"]),
        ("what is dijsktra", ["Dijkstra's Algorithm", "Dijkstra"]),
        ("kitchen buget", ["Kitchen budget", "budget"]),
        ("cancoin", ["Canci\u00f3n de cuna", "Canci\u00f3n"]),
        ("arcitects", ["architects"]),
        ("dijkstra", []),
        ("the architects", []),
        ("zebra", []),
        ("lmp", []),
        ("lapm", ["lamp"]),
        ("", []),
        ("\u2026", []),
    ],
)
def test_suggestions(query, suggestions):
    assert VOCABULARY.suggest(query) == suggestions


@pytest.mark.parametrize(
    ("query", "suggestions"),
    [
        ("cntroler", ["controller"]),
        ("conntrolllar", ["controller"]),
        ("cntrolr", []),
        ("xontroller", ["controller"]),
        ("controllex", ["controller"]),
        ("conxrolzer", ["controller"]),
        ("contrxlyr", []),
    ],
)
def test_a_similar_word_differs_by_at_most_two_characters(query, suggestions):
    assert Vocabulary.of(["A controller."], []).suggest(query) == suggestions


def test_at_most_three_words_are_proposed_for_each_unknown_word():
    vocabulary = Vocabulary.of(["The kettle, nettle, settle and mettle."], [])
    assert len(vocabulary.suggest("hettle")) == 3


def test_at_most_five_suggestions_are_made():
    names = [f"Kettle of house {number}" for number in range(9)]
    assert len(Vocabulary.of([], names).suggest("kettel")) == 5


def test_a_word_is_proposed_without_a_possessive_ending():
    for apostrophe in "'\u2019":
        name = f"Dijkstra{apostrophe}s Algorithm"
        assert Vocabulary.of([], [name]).suggest("dikstra") == [name, "Dijkstra"]


def test_stop_words_are_not_treated_as_misspelt():
    vocabulary = Vocabulary.of(["Wheat grows there and thereabouts."], [])
    assert vocabulary.suggest("wheta") == ["Wheat"]
    assert vocabulary.suggest("what about there?") == []


def test_names_with_more_words_of_the_query_come_first():
    names = ["Algorithm", "The Dijkstra Algorithm for graphs", "Graphs"]
    vocabulary = Vocabulary.of([], names)
    assert vocabulary.suggest("graphs algoritm")[0] == "The Dijkstra Algorithm for graphs"
    assert vocabulary.suggest("algoritm")[0] == "Algorithm"


def test_a_name_with_two_words_of_the_query_comes_before_a_more_similar_one():
    names = ["Controller", "Controlled access of doors"]
    assert Vocabulary.of([], names).suggest("doors controler")[:2] == names[::-1]


def test_a_retriever_suggests_names_of_files_headings_and_words():
    nodes = [
        TextNode(
            text="A path through the graph.",
            metadata={"path": "notes/Dijkstra's Algorithm.md", "header_path": "Graphs > Queues"},
        )
    ]
    retriever = ContextualBM25Retriever(nodes)
    assert retriever.suggest("dikstra") == ["Dijkstra's Algorithm", "Dijkstra"]
    assert retriever.suggest("thruogh") == ["through"]
    assert retriever.suggest("queus") == ["Queues"]
    retriever.add([TextNode(text="A kangaroo")])
    assert retriever.suggest("kangaro") == ["kangaroo"]
    assert ContextualBM25Retriever([]).suggest("dikstra") == []


def test_a_word_that_is_found_in_another_form_is_not_treated_as_misspelt():
    retriever = ContextualBM25Retriever([TextNode(text="The appointment was painted.")])
    assert retriever.suggest("who appointed the chief?") == []
    assert retriever.suggest("who appionted the chief?") != []


def test_a_name_is_found_among_a_hundred_thousand_words():
    rng = random.Random(5)  # noqa: S311  no secret
    words = {
        "".join(rng.choices(string.ascii_lowercase, k=rng.randint(4, 12))) for _ in range(10**5)
    }
    vocabulary = Vocabulary.of([" ".join(words)], ["Dijkstra's Algorithm"])
    assert vocabulary.suggest("dikstra")[0] == "Dijkstra's Algorithm"


def test_a_similar_word_shares_the_first_or_last_letter():
    vocabulary = Vocabulary.of(["scheduler controller"], [])
    assert vocabulary.suggest("shceduler") == ["scheduler"]
    assert vocabulary.suggest("chedulers schedulex") == ["scheduler"]
    assert vocabulary.suggest("xscheduley") == []
