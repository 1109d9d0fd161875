from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import TextNode

from llama_index_contextual.memory.digest import MemoryEntry
from llama_index_contextual.memory.snippets import (
    choose_snippet,
    estimate_tokens,
    split_sentences,
    with_snippets,
)
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


def test_a_dated_heading_above_the_whole_chunk_is_not_repeated():
    text = "## 2026-11-18\n\nWe fixed the boiler.\n"
    assert snippet(text, "boiler", 400) == "We fixed the boiler."


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


@pytest.mark.parametrize(("limit", "shown"), [(15, "Tea. Milk. Rain"), (14, "Tea. Milk.")])
def test_a_snippet_can_be_as_long_as_its_limit(limit, shown):
    assert snippet("Tea. Milk. Rain", "tea", limit) == shown


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


# Several hits


def hit_of(text, terms=None, score=0.5, **metadata):
    node = TextNode(text=text, metadata={"path": "a.md", **metadata})
    return MemoryEntry(node, score, terms or {})


DAY_AT_SEA = "It was a long day at sea. " * 60


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("abcd", 1),
        ("abcde", 2),
        ("\u00e9t\u00e9", 1),
        ("\u6f22\u5b57", 2),
        ("\u6f22\u5b57abcde", 4),
    ],
)
def test_four_latin_characters_are_a_token_and_any_other_is_one(text, count):
    assert estimate_tokens(text) == count


def test_the_first_hit_gets_twenty_tokens_however_small_the_budget_is():
    [entry] = with_snippets([hit_of(DAY_AT_SEA)] * 3, [], 1)
    assert (
        entry.snippet
        == "It was a long day at sea. It was a long day at sea. It was a long day at sea."
    )


def test_all_hits_together_fit_in_the_budget():
    path = f"{'voyage/' * 12}log.md"
    entries = with_snippets([hit_of(DAY_AT_SEA, path=path)] * 4, [], 300)
    assert len(entries) == 4
    assert 250 < sum(estimate_tokens(entry.block) for entry in entries) <= 300


def test_a_hit_can_use_what_shorter_hits_before_it_left():
    short, long = with_snippets([hit_of("Tea."), hit_of(DAY_AT_SEA)], [], 200)
    assert short.snippet == "Tea."
    assert len(long.snippet) > 600


def test_the_rarest_term_of_a_hit_decides_what_is_quoted():
    groups = [("cookie",), ("dog",), ("ginger", "ginger root"), ("absent",)]
    weights = {"cookie": 1.0, "dog": 1.0, "ginger": 5.0}
    text = f"Cookie is a dog. {'So it goes on and on. ' * 9}He hates ginger."
    [entry] = with_snippets([hit_of(text, weights)], groups, 1)
    assert entry.snippet.endswith("He hates ginger.")


def test_front_matter_is_quoted_if_only_it_contains_a_term():
    hit = hit_of("The valve is open.", {"marta": 2.0}, front_matter="status: open; owner: Marta")
    [entry] = with_snippets([hit], [("marta",)], 100)
    assert entry.snippet == "owner: Marta\n\nThe valve is open."


def test_a_hit_has_the_date_above_its_snippet_and_a_score_of_at_most_one():
    hit = hit_of("## 2026-11-18\n\nBoiler.\n", score=1.2, date="2026-11-30")
    [entry] = with_snippets([hit], [], 100)
    assert (entry.date, entry.score) == ("2026-11-18", 1.0)


def test_encoded_bytes_are_not_quoted():
    [entry] = with_snippets([hit_of(f"A picture: {'aB3x' * 40}.")], [], 100)
    assert entry.snippet == "A picture: \u2026."
