"""Texts and queries that are made to take time.

The keyword index handles them in linear time.
"""

import unicodedata

import pytest
from llama_index.core.schema import TextNode
from test_memory_time import HOSTILE, slows

from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.query import parse_query
from llama_index_contextual.retrievers.terms import terms_of
from llama_index_contextual.utils.language import normalise

SEEDS = [
    *HOSTILE, '"', '"a" ', '-"', "-a ", "path:", "path:a ", 'path:"', "tag:x ", "A", "Aa", "aA",
    "a_", "_", "a-b.",
    "::", "->", "1,000", "v1.", "9th", "\u0301", "\u0315\u0300", "\u05b0\u05c1", "\u0e38\u0e48",
    "\uff26",
    "\ufdfa", "語", "é", "ß",
]  # fmt: skip


def index_and_ask(text):
    retriever = ContextualBM25Retriever([TextNode(text=text)])
    retriever.retrieve(text)
    retriever.term_scores(text, retriever.matching_ids()).evidence()


@pytest.mark.parametrize(
    "step",
    [normalise, terms_of, lambda text: parse_query(text[:2000])],
    ids=["normalise", "tokens", "parse_query"],
)
def test_every_step_is_linear(step):
    assert [seed for seed in SEEDS if slows(step, seed)] == []


def test_indexing_and_asking_are_linear():
    assert [seed for seed in SEEDS[::5] if slows(index_and_ask, seed)] == []


def test_a_letter_keeps_at_most_thirty_marks():
    assert normalise("x" + "\u0315\u0300" * 50) == normalise("x" + "\u0315\u0300" * 15)
    assert normalise("cafe\u0301 " * 30) == "café " * 30
    thai = "ภาษาไทยเป็นภาษาที่มีวรรณยุกต์" * 5
    assert normalise(thai) == unicodedata.normalize("NFKC", thai)
