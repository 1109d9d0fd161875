import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.memory.message import words
from llama_index_contextual.memory.snippet import choose_snippet


def terms(text):
    return {word.casefold() for word in words(text)}


CHUNK = """## Wednesday

- Rain all day. We stayed in and read.
- **JC**: Cookie, my dog, loves carrots. He hates ginger though.
- Bought paint for the shed, blue this time."""


@pytest.mark.parametrize(
    ("query", "expected", "lines"),
    [
        ("carrots dog", "- **JC**: Cookie, my dog, loves carrots. He hates ginger though.", (3, 3)),
        ("ginger", "He hates ginger though.", (3, 3)),
        ("paint", "- Bought paint for the shed, blue this time.", (4, 4)),
        ("rain paint", "- Rain all day. … - Bought paint for the shed, blue this time.", (2, 4)),
        ("wednesday paint", "Wednesday: - Bought paint for the shed, blue this time.", (0, 4)),
        ("wednesday", "Wednesday: - Rain all day. We stayed in and read.", (0, 2)),
    ],
)
def test_the_sentences_that_the_query_is_about(query, expected, lines):
    snippet = choose_snippet(CHUNK, dict.fromkeys(terms(query), 1.0), terms, limit=70)
    assert (snippet.text, (snippet.first_line, snippet.last_line)) == (expected, lines)


def test_a_sentence_goes_on_over_the_lines_of_a_paragraph():
    text = "# Note\n\nJC told us that his dog\nhates ginger. We laughed\nfor a while.\n"
    snippet = choose_snippet(text, {"ginger": 1.0}, terms, limit=45)
    assert (snippet.text, snippet.first_line, snippet.last_line) == ("JC told us that his dog hates ginger.", 2, 3)


def test_a_rare_word_counts_more_than_a_common_one():
    assert "ginger" in choose_snippet(CHUNK, {"ginger": 5.0, "dog": 1.0, "cookie": 1.0}, terms, limit=30).text


def test_without_a_matching_word_the_text_starts_where_it_starts_to_speak():
    assert choose_snippet(CHUNK, {}, terms, limit=25).text == "- Rain all day."


def test_a_long_sentence_is_cut_around_the_word():
    text = "word " * 100 + "ginger " + "tail " * 100
    snippet = choose_snippet(text, {"ginger": 1.0}, terms, limit=80).text
    assert "ginger" in snippet
    assert len(snippet) <= 80
    assert snippet.startswith("… ")
    assert snippet.endswith(" …")


@given(st.text(), st.text(max_size=20), st.integers(20, 300))
def test_a_snippet_keeps_to_its_limit_and_to_the_lines_of_the_chunk(text, query, limit):
    snippet = choose_snippet(text, dict.fromkeys(terms(query), 1.0), terms, limit=limit)
    assert len(snippet.text) <= limit
    assert 0 <= snippet.first_line <= snippet.last_line <= text.count("\n")
