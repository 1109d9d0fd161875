"""What becomes a term."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.retrievers.terms import query_groups, terms_of


def terms_of_query(query):
    """All alternatives of a query's terms, each once."""
    return list(dict.fromkeys(term for group in query_groups(query) for term in group))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("getUserName", ["getusernam", "get", "user", "name"]),
        ("max_results", ["maxresult", "max", "result"]),
        ("HTTPServer2", ["httpserver2", "http", "server", "2"]),
        ("kebab-case", ["kebabcas", "kebab", "case"]),
        ("a.b.c", ["abc"]),
        ("self.max_results", ["selfmaxresult", "maxresult", "self", "max", "result"]),
        ("std::fs", ["stdfs", "std", "fs"]),
        ("src/main.rs", ["srcmainr", "src", "main", "rs"]),
        ("__init__", ["init"]),
        ("1,000 3.14 v1.2.3 9th", ["1000", "3.14", "1.2.3", "9"]),
        ("Caroline's plan", ["carolin", "plan"]),
        ("don't", []),
        ("R&D at AT&T", ["rd", "att"]),
        ("C++ and C# or C", ["c++", "c", "c#", "c", "c"]),
        ("Notepad++ Tom&amp;Jerry", ["notepad", "tom", "amp", "jerri"]),
        (
            "naïve Straße \uff26\uff35\uff2c\uff2c",
            ["naive", "de:naiv", "strasse", "de:strass", "full", "de:full"],
        ),
        ("Cafe\u0301", ["cafe", "ru:cafe"]),
        ("日本語", ["日本", "本語"]),
        ("中", ["中"]),
        ("hello世界", ["世界", "hello"]),
        ("added adding adds add erring", ["add", "add", "add", "add", "err"]),
        ("v1.2.2024 03/04/2026", ["1.2.2024", "03/04/2026", "03", "04", "2026"]),
        ("", []),
        ("?!…", []),
    ],
)
def test_terms_of_a_text(text, terms):
    assert terms_of(text) == terms


@pytest.mark.parametrize("name", ["getUserName", "get_user_name", "get-user-name", "GetUserName"])
def test_one_name_in_every_convention_shares_the_whole_and_the_parts(name):
    assert terms_of(name) == ["getusernam", "get", "user", "name"]


@pytest.mark.parametrize(
    ("document", "query"),
    [
        ("on April 9, 2026 we met", "2026-04-09"),
        ("am 21.04.2026 in Bonn", "2026-04-21"),
        ("las organizaciones", "organización"),
        ("la organizacion", "organizaciones"),
        ("me gustan las canciones", "cancion"),
        ("JC's dog loves carrots", "carrot"),
        ("Al perro le encantan las zanahorias y la comida", "zanahoria"),
        ("the getUserName function", "user names"),
    ],
)
def test_a_query_finds_a_document(document, query):
    terms = set(terms_of(document))
    assert any(terms & set(group) for group in query_groups(query))


@pytest.mark.parametrize(
    "day", ["2022-11-15", "15.11.2022", "15/11/2022", "11/15/2022", "2022_11_15"]
)
@pytest.mark.parametrize("question", ["{}", "views of {}", "Was war am {}?"])
def test_a_day_in_numbers_is_a_term_and_its_year_month_and_number(day, question):
    groups = query_groups(question.format(day))[-4:]
    assert [group[0] for group in groups] == ["2022-11-15", "2022", "novemb", "15"]
    assert "es:noviembr" in groups[2], "the names of a month count as one term"


def test_a_spanish_stem_is_not_mistaken_for_an_english_word():
    # The Spanish stem of "hello" is "hell".
    assert not set(terms_of_query("hello")) & set(terms_of("the hell of it"))


@pytest.mark.parametrize(
    "note", ["TODO: running tests", "todos: gateway, scheduler", "North Sea wind", "OS upgrades"]
)
def test_a_spanish_word_that_english_writers_use_makes_no_note_spanish(note):
    assert not any(term.startswith("es:") for term in terms_of(note))
    assert query_groups(note)[0][0] == terms_of(note)[0], "the word is looked for"


@pytest.mark.parametrize("note", ["Reunión con Pedro", "todo sobre los perros"])
def test_one_spanish_stop_word_makes_a_short_note_spanish(note):
    terms = terms_of(note)
    assert terms
    assert all(term.startswith("es:") for term in terms)


def test_a_query_of_stop_words_alone_keeps_them():
    assert [group[0] for group in query_groups("to be or not to be")] == [
        "to",
        "be",
        "or",
        "not",
        "to",
        "be",
    ]
    assert [group[0] for group in query_groups("the dog")] == ["dog"]


GERMAN = "Das Gericht hat die Kündigungen der Angestellten für unwirksam erklärt."


@pytest.mark.parametrize(
    ("document", "query"),
    [
        (GERMAN, "Wann ist eine Kündigung unwirksam?"),
        (
            "Les réunions de mardi sont annulées pour toute l'équipe.",
            "Quand la réunion est-elle annulée ?",
        ),
        (
            "Врач рассказал про новые лекарства для пациентов.",
            "Про какое лекарство рассказал врач?",
        ),
    ],
)
def test_a_question_finds_other_forms_of_its_words_in_its_language(document, query):
    terms = set(terms_of(document))
    assert sum(bool(terms & set(group)) for group in query_groups(query)) >= 2


def test_the_exact_word_counts_for_more_than_another_form_of_it():
    groups = query_groups("Wann ist die Kündigung der Angestellten unwirksam?")
    exact, other = (
        sum(bool(set(terms_of(text)) & set(group)) for group in groups)
        for text in (GERMAN.replace("Kündigungen", "Kündigung"), GERMAN)
    )
    assert exact == other + 1


def test_a_note_in_two_languages_is_read_in_both():
    english = "The gateway times out after sixty seconds, and the connections of all the clients are closed at once."
    spanish = "Las conexiones de los clientes se cierran cuando la pasarela no responde en sesenta segundos o más."
    german = "Die Verbindungen der Kunden werden geschlossen, wenn die Schnittstelle sechzig Sekunden nicht antwortet."
    terms = terms_of(f"{english}\n\n{spanish}\n\n{german}\n")
    assert {"connect", "es:conexion", "de:verbind", "verbindungen"} <= set(terms)
    assert not {"of", "los", "es:los"} & set(terms)


def test_a_short_question_in_another_language_finds_the_words_as_they_are_written():
    terms = set(terms_of(GERMAN))
    assert all(terms & set(group) for group in query_groups("Angestellten Gericht"))


def test_threads_get_the_same_terms():
    texts = [f"running dogs {i} canciones getUserName{i} organizaciones" for i in range(200)]
    expected = [terms_of(text) for text in texts]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(terms_of, texts)) == expected


@given(st.text())
def test_any_text_gives_non_empty_terms_and_twice_the_same(text):
    terms = terms_of(text)
    assert all(terms)
    assert terms_of(text) == terms


@given(st.text())
def test_a_text_as_query_finds_itself(text):
    terms = set(terms_of(text))
    groups = query_groups(text)
    assert all(terms & set(group) for group in groups) or not terms


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("\u0663\u0664\u0665", "345"),
        ("Donau\u00addampf\u00adschiff", "Donaudampfschiff"),
        ("zero\u200bwidth", "zerowidth"),
    ],
)
def test_digits_of_any_script_and_what_has_no_width(written, asked):
    assert all(set(terms_of(written)) & set(group) for group in query_groups(asked))
