"""cl100k by tiktoken and by gigatoken: the same tokens, so the same chunks, whichever is installed."""

import importlib.util
import itertools
import sys
import threading
import tracemalloc

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


@given(st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=400))  # of new letters one may know more
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


WORDS = ["naïve", "un", "\x00\u0301", "\u00a0", "y" * 101, "y" * 100, " " * 30, "[CLS]", "[cls]", "[[MASK]]"]
LETTERS = ["\u0301", "\x00", "\x0b", "\x1c", "\x85", "漢", "…", "İ", "ǆ", "\ufffd", "\U000e0001", "\U0001d165", "ก็"]


@given(st.lists(st.sampled_from([*PIECES, *WORDS, *LETTERS, "(" * 17, "[]" * 9, "a1" * 110]) | st.text(max_size=9)))
def test_a_text_has_as_many_word_pieces_as_the_tokenizer_gives(parts):
    text = "".join(parts).encode(errors="replace").decode()
    assert tokens.count_word_pieces(text) == len(tokens.minilm_tokenizer().encode(text, add_special_tokens=False))


def test_real_pages_have_as_many_word_pieces_as_the_tokenizer_gives(data):
    pages = sorted(data("markdown").rglob("*.md"))[::10]
    assert pages
    for page in pages:
        text = page.read_text("utf-8")
        assert tokens.count_word_pieces(text) == len(tokens.minilm_tokenizer().encode(text, add_special_tokens=False))


@pytest.mark.parametrize("unit", ["!?", "[", "…", "漢", "abc", "abc ", "\u0301a"])
def test_counting_takes_few_bytes_for_each_letter(unit):
    text = unit * (300_000 // len(unit))
    tokens.count_word_pieces(unit)
    tracemalloc.start()
    tokens.count_word_pieces(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 * len(text)  # the tokenizer takes 550 for each piece


def test_words_are_forgotten_before_they_fill_the_memory_of_the_local_model():
    pieces = tokens._Pieces()
    for number in range(tokens._MOST_WORDS + 1):
        assert pieces[str(number)]
    assert pieces["z" * 101] == 1
    assert len(pieces) == 1
