"""The terms of texts and queries."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import TextNode

from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.terms import query_groups, terms_of


def terms_of_query(query):
    """Return all alternatives of a query's terms, without duplicates."""
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
            ["naiv", "de:naiv", "strass", "de:strass", "full", "de:full"],
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
def test_a_name_has_the_same_terms_in_every_naming_convention(name):
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
def test_the_terms_of_a_date_are_the_date_year_month_and_day(day, question):
    groups = query_groups(question.format(day))[-4:]
    assert [group[0] for group in groups] == ["2022-11-15", "2022", "novemb", "15"]
    assert "noviembr" in groups[2], "the names of a month count as one term"


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


def test_stems_of_other_languages_are_not_mistaken_for_english_words():
    assert "hell" not in terms_of("Buenos días, hello a todos los que escuchan la radio hoy")
    assert "es:seman" in terms_of("Las semanas de trabajo y la reunión con Pedro")


def test_a_short_question_in_another_language_finds_exact_words():
    terms = set(terms_of(GERMAN))
    assert all(terms & set(group) for group in query_groups("Angestellten Gericht"))


def test_threads_get_the_same_terms():
    texts = [f"running dogs {i} canciones getUserName{i} organizaciones" for i in range(200)]
    expected = [terms_of(text) for text in texts]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(terms_of, texts)) == expected


@given(st.text())
def test_any_text_has_non_empty_terms_that_never_change(text):
    terms = terms_of(text)
    assert all(terms)
    assert terms_of(text) == terms


@given(st.text())
def test_a_text_used_as_a_query_finds_itself(text):
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
def test_digits_of_any_script_and_characters_without_width(written, asked):
    assert all(set(terms_of(written)) & set(group) for group in query_groups(asked))


@pytest.mark.parametrize(
    ("written", "query"),
    [
        ("the address 192.168.3.24/24 on eth0", "192.168.3.24"),
        ("Route 172.16.0.0/12 goes over the gate", "172.16.0.0"),
        ("version 10.4.2-beta", "10.4.2"),
        ("the tag v2.4.1-rc1", "2.4.1"),
        ("nginx:1.25.3-alpine", "1.25.3"),
        ("the gem 7.8.9.pre", "7.8.9"),
        ("python3.11 and node@18.2.0", "3.11"),
        ("python3.11 and node@18.2.0", "18.2.0"),
        ("10.0.0.1:8080", "10.0.0.1"),
        ("10.0.0.1:8080", "8080"),
        ("$1,250.00 in total", "1250"),
        ("$1,250.00 in total", "1,250"),
        ("$1,250.00 in total", "1250.00"),
        ("auf 3.450,00 Euro", "3450"),
        ("CHF 1'250.50 im Monat", "1250"),
        ("CHF 12\u2019500", "12500"),
        ("Rs 1,25,000 a year", "125000"),
        ("12\u00a0345,60 € par an", "12345"),
        ("2\u202f500 €", "2500"),
        ("MOST = 1_000_000", "1000000"),
        ("auf 1.000.000 Euro", "1000000"),
    ],
)
def test_a_number_is_found_with_a_suffix(written, query):
    assert all(set(group) & set(terms_of(written)) for group in query_groups(query))


def test_a_whole_number_is_a_term_in_addition_to_its_parts():
    terms = terms_of("192.168.3.24/24")
    assert terms == ["192.168.3.24/24", "192.168.3.24", "24"]
    assert len(set(terms) & set(terms_of("192.168.3.24/16"))) == 1


@pytest.mark.parametrize(
    ("written", "query"),
    [
        ("การประชุมวันจันทร์เรื่องงบประมาณของโครงการ", "งบประมาณ"),
        ("ກອງປະຊຸມກ່ຽວກັບງົບປະມານໂຄງການ", "ງົບປະມານ"),
        ("ការប្រជុំអំពីថវិកាគម្រោង", "ថវិកា"),
        ("စီမံကိန်းဘတ်ဂျက်အစည်းအဝေး", "ဘတ်ဂျက်"),
    ],
    ids=["Thai", "Lao", "Khmer", "Burmese"],
)
def test_a_word_is_found_inside_a_run_without_spaces(written, query):
    groups = query_groups(query)
    assert len(groups) > 1
    assert all(set(group) & set(terms_of(written)) for group in groups)


@pytest.mark.parametrize(
    ("written", "query"),
    [
        ("**Kuber**netes", "Kubernetes"),
        ("un*believ*able", "unbelievable"),
        ("H<sub>2</sub>O", "H2O"),
        ("हिन्दी में", "हिन्दी"),
        ("x̄y", "x̄y"),
    ],
)
def test_marks_and_markup_inside_a_word_do_not_split_it(written, query):
    assert query_groups(query)[0][0] in terms_of(written)


def test_parts_beside_markup_are_terms_too():
    assert terms_of("**width***height*") == ["widthheight", "width", "height"]


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("السِّلْسِلَة قديمة", "السلسلة"),
        ("שָׁלוֹם", "שלום"),
        ("We took the train to Łódź.", "lodz"),
        ("أحمد في البيت", "احمد"),
        ("مدرسة الأطفال", "مدرسه"),
        ("کتابخانه بزرگ", "كتابخانه"),
        ("Smørrebrød in Ærø", "aero smorrebrod"),
        ("Release 🚀 party", "🚀"),
        ("🇩🇪 and 🇫🇷", "🇫🇷"),
        ("done ✅", "✅"),
    ],
)
def test_words_are_found_without_accents_and_emoji_are_found(text, question):
    other = [TextNode(id_=str(number), text=f"Nothing here {number} 🎉") for number in range(3)]
    words = ContextualBM25Retriever([*other, TextNode(id_="it", text=text)])
    [best, *_] = words.retrieve(question)
    assert (best.node.node_id, (best.score or 0) > 0) == ("it", True)


def test_an_emoji_is_one_term():
    assert terms_of("b🚀 👩‍💻 ✅") == ["b", "🚀", "👩", "💻", "✅"]


def test_only_the_first_256_characters_of_a_word_are_a_term():
    assert terms_of("x" * 300) == ["x" * 256]
