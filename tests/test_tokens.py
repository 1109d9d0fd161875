"""cl100k by tiktoken and by gigatoken: the same tokens, so the same chunks, whichever is installed."""

import importlib.util
import sys
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual import tokens

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
    """(tiktoken, gigatoken), each an encoder and the widths of its tokens."""
    pytest.importorskip("gigatoken")
    return tokens.with_tiktoken(), tokens.with_gigatoken()


def test_a_token_has_as_many_bytes_in_both(encoders):
    (_, slow), (_, fast) = encoders
    assert np.array_equal(slow[: len(fast)], fast)
    assert not slow[len(fast) :].any()  # special tokens, which text never becomes


@pytest.mark.parametrize("text", HARD, ids=range(len(HARD)))
def test_hard_texts_have_the_same_tokens(encoders, text):
    (slow, _), (fast, widths) = encoders
    assert slow(text).tolist() == fast(text).tolist()
    assert widths[fast(text)].sum() == len(text.encode())


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=400))
def test_any_text_has_the_same_tokens(encoders, text):
    (slow, _), (fast, _) = encoders
    assert slow(text).tolist() == fast(text).tolist()


def test_real_pages_have_the_same_tokens(encoders, data):
    (slow, _), (fast, _) = encoders
    pages = sorted(data("markdown").rglob("*.md"))[::10]
    assert pages
    for page in pages:
        text = page.read_text("utf-8")
        assert slow(text).tolist() == fast(text).tolist(), page


def test_words_are_forgotten_before_they_fill_the_memory(encoders, monkeypatch):
    (slow, _), (fast, _) = encoders
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
    encode, widths = tokens.cl100k.__wrapped__()
    assert isinstance(encode, tokens._Gigatoken) is installed
    scale = tokens.BytePairScale("# Title\n\nSome words.\n", encode, widths)
    assert scale.exact(0, 20, 21) == 6
    assert scale.cumulative([0, 9, 21]) == [0, 3, 6]


@pytest.mark.parametrize(
    "text", ["# Heading\n\nSome text.\n" * 20_000, "# Título\n\nMás texto.\n" * 20_000], ids=["ascii", "accents"]
)
def test_counting_one_chunk_does_not_copy_the_document(text):
    scale = tokens.BytePairScale(text, *tokens.with_tiktoken())
    offsets = [0, 200, 400]
    tracemalloc.start()
    try:
        scale.cumulative(offsets)
        scale.exact(200, 400, 401)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000  # the ends of its tokens alone are 480,000 bytes or more
