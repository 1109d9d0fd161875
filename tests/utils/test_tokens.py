"""Token counts: exact, in little memory, and with encoded bytes as one character."""

import itertools
import tracemalloc

import llama_index.core
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core import Document, Settings

from llama_index_contextual import HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils import tokens
from llama_index_contextual.utils.errors import SettingError

PIECES = [
    "# Title\n\n",
    "Some words.\n",
    "    code\n\n",
    "- item.\n",
    "\r\n",
    "漢字。\n",
    "\t tab\n",
    "```\n",
    "x\n\n\n",
    "😀\n",
]


@pytest.mark.parametrize("tokenizer", ["cl100k", "minilm", len])
@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=12), st.data())
def test_a_slice_has_the_same_count_as_its_text_alone(tokenizer, parts, data):
    text = "".join(parts)
    offsets = [0, *itertools.accumulate(map(len, parts))]
    counter = tokens.make_counter(text, tokenizer)
    assert len(counter.costs(offsets)) == len(parts)
    start, stop = sorted(data.draw(st.tuples(st.sampled_from(offsets), st.sampled_from(offsets))))
    end = start + len(text[start:stop].rstrip())
    assert counter.tokens(start, end) == tokens.make_counter(text[start:end], tokenizer).tokens(
        0, end - start
    )


@settings(deadline=None)
@given(
    st.text(
        st.sampled_from("aZ.}'7 \t\n\r\x0b\x0c\x1c\x85\xa0\u2028\u3000é\u0301日😀\ufeff-="),
        max_size=40,
    ),
    st.data(),
)
def test_any_slice_has_the_tokens_that_cl100k_gives_it(text, data):
    offsets = st.integers(0, len(text))
    start, end = sorted(data.draw(st.tuples(offsets, offsets)))
    assert tokens.make_counter(text, "cl100k").tokens(start, end) == tokens.count_cl100k(
        text[start:end]
    )


def test_word_pieces_of_real_pages_agree_with_the_tokenizer(data):
    pages = sorted(data("markdown").rglob("*.md"))[::10]
    assert pages
    for page in pages:
        text = tokens.without_repeats(page.read_text("utf-8"))
        assert tokens.count_word_pieces(text) == len(
            tokens.minilm_tokenizer().encode(text, add_special_tokens=False)
        )


def test_the_padding_of_a_table_and_dots_of_a_contents_page_count_as_three_signs():
    for short, padded in (
        ("| a | b |\n| --- | --- |", f"| a{' ' * 99}| b |\n| {'-' * 99} | {'-' * 9} |"),
        ("Tides ... 7", f"Tides {'.' * 80} 7"),
        ("a\n===\nb", f"a\n{'=' * 80}\nb"),
    ):
        assert tokens.count_word_pieces(padded) == tokens.count_word_pieces(short)
    assert tokens.without_repeats("aaaaa 11111 __main__ **** ---") == "aaaaa 11111 __main__ *** ---"


@pytest.mark.parametrize("unit", ["!?", "[", "…", "漢", "abc", "abc ", "\u0301a"])
def test_counting_takes_few_bytes_per_letter(unit):
    text = unit * (300_000 // len(unit))
    tokens.count_word_pieces(unit)
    tracemalloc.start()
    tokens.count_word_pieces(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 * len(text)  # the tokenizer takes 550 for each piece


def test_a_megabyte_of_white_space_is_counted():
    assert tokens.count_cl100k("x" + " " * 1_000_000) > 1000


@pytest.fixture
def global_tokenizer():
    before = llama_index.core.global_tokenizer
    yield
    llama_index.core.global_tokenizer = before


@pytest.mark.usefixtures("global_tokenizer")
def test_the_tokenizer_of_settings_counts_unless_another_is_named():
    Settings.tokenizer = str.split
    text = " ".join(f"word{number}" for number in range(50))
    [node] = HeadingAwareMarkdownNodeParser(chunk_size=60)([Document(text=text)])
    assert node.metadata["token_count"] == 50
    [node] = HeadingAwareMarkdownNodeParser(chunk_size=200, tokenizer="cl100k")(
        [Document(text=text)]
    )
    assert node.metadata["token_count"] == tokens.count_cl100k(text)
    parser = HeadingAwareMarkdownNodeParser.from_dict(
        HeadingAwareMarkdownNodeParser(chunk_size=60).to_dict()
    )
    assert parser([Document(text=text)])[0].metadata["token_count"] == 50


@pytest.mark.usefixtures("global_tokenizer")
def test_the_default_is_cl100k_as_in_llama_index():
    for before in (None, Settings.tokenizer):
        llama_index.core.global_tokenizer = before
        counter = tokens.make_counter("Cookie loves carrots.")
        assert counter.tokens(0, 21) == tokens.count_cl100k("Cookie loves carrots.")


def one_token(_):
    return 1


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("x" * 8, 1),
        ("x" * 9, 2),
        ("x" * 80 + " \n" * 40, 10),  # white space at the end costs nothing
        (f"{'x' * 8}{' ' * 32}{'x' * 8}", 3),
        (f"{'x' * 8}{' ' * 33}{'x' * 8}", 4),
    ],
)
def test_a_long_token_costs_as_many_as_its_characters_need(text, cost):
    counter = tokens.make_counter(text, one_token)
    assert counter.tokens(0, len(text)) == 1
    assert counter.cost(0, len(text)) == cost
    assert counter.exceeds(cost - 1, 0, len(text))
    assert not counter.exceeds(cost, 0, len(text))


def test_encoded_bytes_count_as_one_character_and_are_not_cut():
    run = "aB3x" * 40
    counter = tokens.make_counter(f"ab {run} cd", len)
    end = 3 + len(run)
    assert counter.tokens(0, end + 3) == len("ab … cd")
    assert [counter.cuts_run(offset) for offset in (3, 4, end - 1, end)] == [
        False,
        True,
        True,
        False,
    ]
    assert not counter.is_text(3, end)
    assert not counter.is_text(2, end + 1)
    assert counter.is_text(0, end)


@pytest.mark.parametrize("tokenizer", [str.split, lambda text: len(text.split())])
def test_a_tokenizer_returns_tokens_or_their_number(tokenizer):
    assert tokens.make_counter("a b c", tokenizer).tokens(0, 5) == 3


@pytest.mark.parametrize("answer", [{"input_ids": [1, 2]}, 1.5, None])
def test_what_is_no_number_of_tokens_is_an_error_that_names_it(answer):
    counter = tokens.make_counter("a b", lambda _: answer)
    with pytest.raises(SettingError, match=rf"\(it returned {type(answer).__name__}\)"):
        counter.tokens(0, 3)


@pytest.mark.parametrize(
    ("text", "is_spelled"),
    [("WEATHER qqzx", True), ("the qqzx", False), ("asdfghjk", False), ("", False)],
)
def test_a_text_is_spelled_if_a_word_of_four_letters_is_known(text, is_spelled):
    assert tokens.is_spelled(text) == is_spelled


@pytest.mark.parametrize(
    ("text", "share"), [("weather qqzxqqz", 0.5), ("Weather", 1.0), ("qqzx", 0.0), ("42", 1.0)]
)
def test_the_share_of_letters_in_known_words(text, share):
    assert tokens.share_spelled(text) == share
