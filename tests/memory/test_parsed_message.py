from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.memory.gate import (
    clean_message,
    count_words,
    form_of,
    is_question,
    parse_message,
)
from llama_index_contextual.retrievers.query_dates import load_lexicon, split_words


def test_fenced_code_is_left_out_even_when_it_never_closes():
    assert (
        clean_message("Why does this fail?\n```py\nx = 1\n```\nJC wrote it")
        == "Why does this fail?\nJC wrote it"
    )
    assert clean_message("Why?\n~~~~\n~~~\nx = 1\n") == "Why?"
    assert clean_message("use `x = 1` here") == "use `x = 1` here"


def test_an_earlier_digest_is_left_out_even_without_its_margin():
    digest = (
        "## Relevant prior context\n- [memory/2026-04-09.md#L3-L5]\n"
        "  > # Dogs\n  >\n  > ```\n  > JC's dog Cookie loves carrots\n"
    )
    assert clean_message(f"{digest}\nWhat else does he like?") == "What else does he like?"
    assert (
        clean_message("\n".join(map(str.strip, digest.splitlines())) + "\nWhat else?")
        == "What else?"
    )
    assert clean_message("(No relevant prior context for this message.) And now?") == "And now?"


def test_long_messages_are_cut_at_a_space():
    cut = clean_message("ginger " * 400)
    assert len(cut) <= 1000
    assert set(cut.split()) == {"ginger"}
    assert len(clean_message("x" * 3000)) == 1000


def test_words_of_scripts_with_and_without_spaces():
    assert split_words("What’s JC's dairy-free plan?") == ["What's", "JC's", "dairy-free", "plan"]
    assert split_words("杰西 likes 茶") == ["杰", "西", "likes", "茶"]
    assert count_words("杰西喜欢茶!") == 2.5
    assert is_question("你喜欢茶吗")
    assert is_question("茶が好きですか。")
    assert not is_question("I like tea.")


@given(st.text())
def test_cleaning_never_grows_a_message_and_keeps_to_the_limit(text):
    assert len(clean_message(text)) <= min(1000, len(text))


def test_a_line_below_an_earlier_digest_is_left_out_too():
    digest = (
        "## Relevant prior context\n- [a.md#L3]\n  > Cookie\n\n(Index: 3 files changed "
        "since; being indexed.)\n"
    )
    assert clean_message(f"{digest}What else does he like?") == "What else does he like?"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("does JC like ginger?", "question"),
        ("¿le gusta el jengibre a JC?", "question"),
        ("Can you list what we decided about tea? Only three items.", "question"),
        ("where does Marta work", "question"),  # as in a search box
        ("茶が好きですか。", "question"),
        ("My child is sick, I can't study for a few days.", "message"),
        ("I want to improve my app. What do you suggest?", "question"),
        ("I finished the first week. It was hard. What comes next?", "message"),
        ("Hi! Your advice works.\nMy head rarely feels dizzy now", "message"),
        ("What is next? I am done with the book. It was long.", "message"),
        ("I fixed the importer. Now testing it on the old files", "message"),
        ("", "question"),
    ],
)
def test_the_form_of_a_text(text, form):
    assert form_of(text) == form


@pytest.mark.parametrize(
    ("message", "has_subject"),
    [
        ("what did we do yesterday?", False),
        ("what did JC do yesterday?", True),
        ("¿qué hicimos ayer?", False),
    ],
)
def test_a_message_that_only_names_a_day_has_no_subject(message, has_subject):
    asked = parse_message(message, load_lexicon(), date(2026, 4, 10))
    assert asked.has_subject is has_subject
    assert [named.first for named in asked.dates] == [date(2026, 4, 9)]


@given(st.text(max_size=200))
def test_any_text_can_be_parsed(text):
    asked = parse_message(text, load_lexicon(), date(2026, 4, 10))
    assert asked.form in {"question", "message"}
    assert asked.text == clean_message(text)
