from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.memory.message import clean_message, count_words, is_question, words


def test_fenced_code_is_left_out_even_when_it_never_closes():
    assert clean_message("Why does this fail?\n```py\nx = 1\n```\nJC wrote it") == "Why does this fail?\nJC wrote it"
    assert clean_message("Why?\n~~~~\n~~~\nx = 1\n") == "Why?"
    assert clean_message("use `x = 1` here") == "use `x = 1` here"


def test_an_earlier_digest_is_left_out_also_when_quoted():
    digest = (
        "## Relevant prior context\n- [memory/2026-04-09.md#L3-L5]\n"
        "  > # Dogs\n  >\n  > ```\n  > JC's dog Cookie loves carrots\n"
    )
    assert clean_message(f"{digest}\nWhat else does he like?") == "What else does he like?"
    assert clean_message("> " + digest.replace("\n", "\n> ") + "\nWhat else?") == "What else?"
    assert clean_message("\n".join(map(str.strip, digest.splitlines())) + "\nWhat else?") == "What else?"
    assert clean_message("(No relevant prior context for this message.) And now?") == "And now?"


def test_long_messages_are_cut_at_a_space():
    cut = clean_message("ginger " * 200)
    assert len(cut) <= 500
    assert set(cut.split()) == {"ginger"}
    assert len(clean_message("x" * 900)) == 500


def test_words_of_scripts_with_and_without_spaces():
    assert words("What’s JC's dairy-free plan?") == ["What's", "JC's", "dairy-free", "plan"]
    assert words("杰西 likes 茶") == ["杰", "西", "likes", "茶"]
    assert count_words("杰西喜欢茶!") == 2.5
    assert is_question("你喜欢茶吗")
    assert is_question("茶が好きですか。")
    assert not is_question("I like tea.")


@given(st.text())
def test_cleaning_never_grows_a_message_and_keeps_to_the_limit(text):
    assert len(clean_message(text)) <= min(500, len(text))


def test_a_line_below_an_earlier_digest_is_left_out_too():
    digest = "## Relevant prior context\n- [a.md#L3]\n  > Cookie\n\n(Index: 3 files changed since; being indexed.)\n"
    assert clean_message(f"{digest}What else does he like?") == "What else does he like?"
