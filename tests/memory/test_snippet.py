from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.memory.snippets import choose_snippet, split_sentences
from llama_index_contextual.retrievers.query_dates import split_words


def terms(text):
    return {word.casefold() for word in split_words(text)}


def snippet(text, query, limit):
    return choose_snippet(text, dict.fromkeys(terms(query), 1.0), terms, limit=limit)[0]


CHUNK = """## Wednesday

- Rain all day. We stayed in and read.
- **JC**: Cookie, my dog, loves carrots. He hates ginger though.
- Bought paint for the shed, blue this time."""

ATLAS = """# Atlas

Atlas is our billing service. It stores everything in PostgreSQL 15. The staging host is atlas.stage.local.

## Open questions

- Who pays for the second region?
- When does the contract end?
"""  # noqa: E501


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("carrots dog", "- **JC**: Cookie, my dog, loves carrots. He hates ginger though."),
        ("ginger", "He hates ginger though.\n- Bought paint for the shed, blue this time."),
        (
            "rain paint",
            "- Rain all day. We stayed in and read.\n- **JC**: Cookie, my dog, loves carrots.",
        ),
        ("wednesday", "## Wednesday\n\n- Rain all day. We stayed in and read."),
    ],
)
def test_the_sentences_about_the_query_are_chosen(query, expected):
    assert snippet(CHUNK, query, 80) == expected


def test_a_heading_is_only_shown_with_its_first_lines():
    questions = (
        "## Open questions\n\n- Who pays for the second region?\n- When does the contract end?"
    )
    weights = {"open": 3.0, "questions": 3.0}
    assert choose_snippet(ATLAS, weights, terms, limit=105)[0] == questions
    for limit in range(60, 250):
        shown = choose_snippet(ATLAS, weights, terms, limit=limit)[0]
        assert not shown.endswith(("Open questions", "Open questions:"))


def test_following_sentences_are_shown_while_they_fit():
    assert "PostgreSQL 15" in snippet(
        ATLAS, "atlas database use", 120
    )  # it does not contain "database"


@pytest.mark.parametrize(
    ("text", "query", "shown"),
    [
        (
            "Groceries.\n\nMarta asked: what do we plant? Tomatoes and beans.\n\nRain.",
            "plant marta",
            "Tomatoes and beans.",
        ),
        (
            "We talked of the shed.\n\nColours for the fence:\n\n- blue\n- dark green\n\nThen tea.",
            "fence",
            "dark green",
        ),
    ],
)
def test_text_after_a_question_or_a_colon_is_shown(text, query, shown):
    assert shown in snippet(text, query, 60)


def test_different_days_never_share_a_snippet():
    text = (
        "## 2026-11-18\n\nWe fixed the boiler.\n\n## 2026-11-19\n\nWe painted the shed and "
        "the boiler room.\n"
    )
    assert choose_snippet(text, {"shed": 2.0, "boiler": 1.0}, terms, limit=400) == (
        "## 2026-11-19\n\nWe painted the shed and the boiler room.",
        date(2026, 11, 19),
    )
    assert choose_snippet(text, {"fixed": 2.0, "shed": 1.0}, terms, limit=400) == (
        "## 2026-11-18\n\nWe fixed the boiler.",
        date(2026, 11, 18),
    )


def test_a_heading_without_a_date_ends_the_day_above_it():
    text = "## 2026-11-18\n\nBoiler.\n\n### Costs\n\nMuch.\n\n## Later\n\nShed.\n"
    days = [sentence.day and sentence.day.day for sentence in split_sentences(text)]
    assert days == [18, 18, 18, 18, None, None]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Sie wohnt in der Nähe von z. B. Köln und ist nicht weit. Am 3. Mai zieht sie um.", 2),
        ("El Sr. Gómez vive en la calle que está cerca. No vuelve hasta el lunes.", 2),
        ("Dr. Smith is in the office. He is back at 5 p.m. on Monday.", 2),
    ],
)
def test_sentences_are_split_by_the_language_of_the_text(text, sentences):
    assert len(split_sentences(text)) == sentences


def test_a_sentence_continues_across_the_lines_of_a_paragraph():
    text = "# Note\n\nJC told us that his dog\nhates ginger. We laughed\nfor a while.\n"
    assert snippet(text, "ginger", 45) == "JC told us that his dog\nhates ginger."


def test_a_rare_word_weighs_more_than_a_common_one():
    assert (
        "ginger"
        in choose_snippet(CHUNK, {"ginger": 5.0, "dog": 1.0, "cookie": 1.0}, terms, limit=30)[0]
    )


def test_without_a_matching_word_the_snippet_starts_at_the_first_text():
    assert snippet(CHUNK, "", 35) == "- Rain all day."


def test_a_long_sentence_is_cut_around_the_word():
    text = "word " * 100 + "ginger " + "tail " * 100
    shown = snippet(text, "ginger", 80)
    assert "ginger" in shown.split()
    assert len(shown) <= 80


NOTE = st.lists(
    st.sampled_from(
        [
            "# A day",
            "- an item. Two",
            "  more",
            "",
            "```",
            "ginger [[B]]",
            "    deep.  Far",
            "---",
            "\t|a|",
            "?",
        ]
    )
).map("\n".join)


@given(NOTE, st.sampled_from(["", "ginger", "item more", "deep"]), st.integers(20, 300))
def test_a_snippet_is_a_slice_of_the_chunk(text, query, limit):
    assert snippet(text, query, limit) in text


@given(st.text(), st.text(max_size=20), st.integers(20, 300))
def test_a_snippet_stays_within_its_limit(text, query, limit):
    assert len(snippet(text, query, limit)) <= limit


class SameHash(str):
    """A term with a fixed hash, so that sets of terms have the order of insertion."""

    __slots__ = ()

    def __hash__(self):
        return 0


def test_the_first_of_two_equal_sentences_is_chosen_in_any_order_of_terms():
    def in_order(text):
        return [SameHash(word.casefold()) for word in split_words(text)]

    weights = {
        SameHash("ann"): 0.1,
        SameHash("bob"): 0.2,
        SameHash("carol"): 0.3,
        SameHash("dan"): 0.4,
    }
    text = "Carol, Bob, Ann.\n\nAnn, Bob, Carol."
    assert choose_snippet(text, weights, in_order, limit=20)[0].startswith("Carol")


def test_a_heading_at_the_end_of_a_snippet_is_not_shown():
    text = "Tea is at four.\n\n## Lunch\n\n" + "It was soup, and there was much of it. " * 3
    for limit in range(30, 60):
        assert snippet(text, "tea", limit) == "Tea is at four."
