"""cl100k by tiktoken and by gigatoken: the same tokens, so the same chunks, whichever is installed."""

import importlib.util
import itertools
import re
import sys
import threading
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_index_contextual.text import tokens

HARD = [
    "",
    "\n",
    "A page.\n\n    code\n\n\n  two  spaces\t\ttabs \r\n\r\nlone\rCR",
    "<|endoftext|> is text here, and so is <|fim_prefix|>.",
    "naïve café e\u0301 中文。ok 😀👩‍👩‍👧 עברית \u202eRTL\u202c \ufeff \x00",
    "getUserName HTTPServer2 a.b.c 1234567890 I'm WE'LL \u017f'\u017f",
    "x" * 50_000,
]


@pytest.fixture(scope="module")
def encoders():
    """(tiktoken, gigatoken)."""
    pytest.importorskip("gigatoken")
    return tokens.with_tiktoken(), tokens.Gigatoken()


@pytest.mark.parametrize("text", HARD, ids=range(len(HARD)))
def test_hard_texts_have_the_same_tokens(encoders, text):
    slow, fast = encoders
    assert slow(text).tolist() == fast(text).tolist()


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=400))
def test_any_text_has_the_same_tokens(encoders, text):
    slow, fast = encoders
    assert slow(text).tolist() == fast(text).tolist()


def test_real_pages_have_the_same_tokens(encoders, data):
    slow, fast = encoders
    pages = sorted(data("markdown").rglob("*.md"))[::10]
    assert pages
    for page in pages:
        text = page.read_text("utf-8")
        assert slow(text).tolist() == fast(text).tolist(), page


def test_words_are_forgotten_before_they_fill_the_memory(encoders, monkeypatch):
    slow, fast = encoders
    monkeypatch.setattr(tokens, "_FORGET_AFTER", 1000)
    loaded = []
    load = type(fast)._load
    monkeypatch.setattr(type(fast), "_load", lambda self: loaded.append(1) or load(self))
    text = "Cookie loves carrots. " * 20
    expected = slow(text).tolist()
    results = []
    threads = [threading.Thread(target=lambda: results.append(fast(text).tolist())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loaded
    assert results == [expected] * 8


@pytest.mark.parametrize("installed", [True, False])
def test_tiktoken_serves_where_gigatoken_is_not_installed(installed, monkeypatch):
    if installed:
        pytest.importorskip("gigatoken")
    else:
        find = importlib.util.find_spec
        monkeypatch.setattr(tokens, "find_spec", lambda name: None if name == "gigatoken" else find(name))
        monkeypatch.setitem(sys.modules, "gigatoken", None)
    encode = tokens.cl100k.__wrapped__()
    assert isinstance(encode, tokens.Gigatoken) is installed
    assert len(encode("# Title\n\nSome words.\n")) == 6


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


def test_counts_add_up_only_where_every_mark_between_is_a_seam():
    """cl100k has one token for blank lines that two parts share, here between the sixth title and the last."""
    parts = ["# Title\n\n"] * 6 + ["\r\n", "\r\n", "# Title"]
    text, offsets = "".join(parts), [0, *itertools.accumulate(map(len, parts))]
    scale = tokens.make_scale(text, "cl100k")
    scale.cumulative(offsets)
    assert scale.exact(9, len(text)) == len(tokens.cl100k()(text[9:]))


@pytest.mark.parametrize("tokenizer", ["cl100k", "minilm", "estimate", len])
@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=12), st.data())
def test_a_slice_counts_as_it_does_alone(tokenizer, parts, data):
    text = "".join(parts)
    offsets = [0, *itertools.accumulate(map(len, parts))]
    scale = tokens.make_scale(text, tokenizer)
    assert scale.cumulative(offsets)[0] == 0
    start, stop = sorted(data.draw(st.tuples(st.sampled_from(offsets), st.sampled_from(offsets))))
    end = start + len(text[start:stop].rstrip())
    assert scale.exact(start, end) == tokens.make_scale(text[start:end], tokenizer).exact(0, end - start)


@given(
    st.lists(st.sampled_from([*PIECES, "naïve", "un", "\x00\u0301", "\u00a0", "y" * 120, " " * 30]), max_size=12).map(
        "".join
    )
)
def test_long_texts_are_counted_in_pieces_to_the_same_number(text):
    whole = tokens.count_word_pieces(text)
    with mock.patch.multiple(tokens, _PIECE=4, _WORDS=re.compile(tokens._WORDS.pattern.replace("{1,10000}", "{1,4}"))):
        assert tokens.count_word_pieces(text) == whole


@given(
    st.lists(st.sampled_from([*PIECES, "(" * 17, "[]" * 9, "a1" * 110, "\u0301", "\x00", "漢", "…", "İ"]), max_size=30)
)
def test_a_dense_text_counts_as_the_tokenizer_counts_it(parts):
    text = "".join(parts)
    assert tokens.count_word_pieces(text) == len(tokens.minilm_tokenizer().encode(text, add_special_tokens=False))


@pytest.mark.parametrize("unit", ["!?", "[", "…", "漢", "abc", "\u0301a"])
def test_a_text_without_white_space_is_counted_in_pieces(unit):
    with mock.patch.object(tokens, "minilm_tokenizer", return_value=mock.Mock(wraps=tokens.minilm_tokenizer())) as made:
        tokens.count_word_pieces(unit * (200_000 // len(unit)))
    assert max(len(call.args[0]) for call in made.return_value.encode.call_args_list) <= 2 * tokens._PIECE
