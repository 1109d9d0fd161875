"""What a message asks for: keywords, names, and the queries made of them."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.keyword.lexicon import lexicon
from llama_index_contextual.memory.message import derive_queries, find_keywords, find_names

TODAY = date(2026, 4, 10)

NAMES = [
    ("¿le gusta el jengibre a JC?", ["JC"]),
    ("Hi! Did JC call? Please ask.", ["JC"]),  # the original took Hi, Did and Please for names
    ("Did you see my iPhone?", ["iPhone"]),
    ("Caroline loves ginger", ["Caroline"]),
    ("What did Caroline's sister say to McDonald?", ["Caroline", "McDonald"]),
    ("Thanks! Melanie and Nate came.", ["Melanie", "Nate"]),
    ("Remember that I'm meeting Dr. Smith on Monday", ["Dr", "Smith"]),
    ("Oye, ¿Pedro viene mañana?", ["Pedro"]),
    ("Oye, ¿viene Pedro mañana?", ["Pedro"]),
    ("¿Dónde vive Marta? Dime, por favor. Gracias", ["Marta"]),
    ("Cuéntame qué dijo Álvaro", ["Álvaro"]),
    ("Yesterday we met at Blue Bottle.", ["Blue", "Bottle"]),
    ("In April JC moved to Lima", ["JC", "Lima"]),
    ("What did April say?", ["April"]),
    ("REMIND ME WHAT JC SAID", []),  # all in capitals: they mean nothing
    ("What Did Melanie Paint Last Year", []),
    ("ok, FYI: the API of GitHub is down", ["API", "GitHub"]),
    ("see https://Example.com/JC and `FooBar` or Me@Mail.com", []),
    ("what is the weather", []),
    ("", []),
]
KEYWORDS = [
    ("¿le gusta el jengibre a JC?", ["gusta", "jengibre"]),
    ("what did JC say about the dairy-free ice cream", ["dairy-free", "ice", "cream"]),
    ("¿A Marta le gusta el té?", ["gusta", "té"]),  # té is tea, te is a stop word
    ("dime como se llama el perro", ["llama", "perro"]),
    ("What happened last Friday with the car's engine?", ["car", "engine"]),
    ("one two three alpha beta gamma delta epsilon zeta", ["two", "three", "alpha", "beta", "gamma"]),
    ("tea, tea and tea", ["tea"]),
    ("what is it?", []),
    ("杰西喜欢吃什么", []),
]


@pytest.mark.parametrize(("message", "expected"), NAMES)
def test_names(message, expected):
    queries = derive_queries(message, lexicon(), TODAY)
    assert find_names(message, lexicon(), queries.dates) == expected


@pytest.mark.parametrize(("message", "expected"), KEYWORDS)
def test_keywords(message, expected):
    dates = derive_queries(message, lexicon(), TODAY).dates
    names = find_names(message, lexicon(), dates)
    assert find_keywords(message, lexicon(), dates=dates, names=names) == expected


def test_the_rarest_words_are_taken_where_the_index_is_known():
    rarity = {"alpha": 0.1, "beta": 0.9, "gamma": 1.0, "delta": 0.8, "epsilon": 0.7, "zeta": 0.6, "eta": 0.5}
    text = "alpha beta gamma delta epsilon zeta eta"  # gamma is in no note at all
    assert find_keywords(text, lexicon(), rarity=rarity.__getitem__) == ["beta", "delta", "epsilon", "zeta", "eta"]


def test_the_example_of_the_source():
    derived = derive_queries("¿le gusta el jengibre a JC?", lexicon(), TODAY)
    assert [(query.kind, query.text) for query in derived.queries] == [
        ("original", "¿le gusta el jengibre a JC?"),
        ("keywords", "gusta jengibre"),
        ("names", "JC"),
    ]


@pytest.mark.parametrize(
    ("message", "kinds"), [("ginger tea?", ["original"]), ("JC?", ["original"]), ("what?", ["original"])]
)
def test_a_query_is_added_only_where_it_differs(message, kinds):
    assert [query.kind for query in derive_queries(message, lexicon(), TODAY).queries] == kinds


@given(st.text(max_size=200))
def test_any_message_has_an_original_and_at_most_three_queries(message):
    derived = derive_queries(message, lexicon(), TODAY)
    assert 1 <= len(derived.queries) <= 3
    assert derived.queries[0].kind == "original"
