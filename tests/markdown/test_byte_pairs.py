"""Our faster cl100k gives tiktoken's own tokens, for every text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_index_contextual.markdown.byte_pairs import cl100k, encode

WHITE = [
    " ",
    "  ",
    "    ",
    "\n",
    "\r\n",
    "\r",
    "\t",
    "\x0b",
    "\x85",
    "\xa0",
    "\u2003",
    "\u2028",
    "\u3000",
    "\x01",
    "\x1c",
]
WORDS = [
    "a",
    "word",
    "It's",
    "WE'LL",
    "'\u017f",
    "é",
    "漢字",
    "😀",
    "1",
    "12345",
    "½",
    ".",
    "**",
    "#",
    "```",
    "<|endoftext|>",
]
PARTS = st.sampled_from(WHITE + WORDS)


@settings(deadline=None, max_examples=300)
@given(st.lists(PARTS, max_size=40).map("".join))
def test_white_space_words_digits_and_marks_in_any_order(text):
    assert encode(text).tolist() == cl100k().encode_ordinary(text)


@settings(deadline=None, max_examples=300)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text(text):
    assert encode(text).tolist() == cl100k().encode_ordinary(text)


@pytest.mark.parametrize("folder", ["markdown", "kubernetes-docs"])
def test_real_pages(data, folder):
    for path in sorted(data(folder).rglob("*.md"))[::20]:
        text = path.read_bytes().decode()
        assert encode(text).tolist() == cl100k().encode_ordinary(text), path
