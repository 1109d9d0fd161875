"""A dash before a word is an operator only where nothing else explains it; terms of rare scripts."""

from __future__ import annotations

import pytest
from llama_index.core.schema import TextNode

from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.terms import terms_of

NOTES = {
    "shell": "Run `rm -rf build` to remove the folder. Unpack with `tar -xzf backup.tgz`.",
    "cold": "The freezer alarm rings at -18 degrees.",
    "docker": "Mount a folder: `docker run -it image`. Show it: java -version",
    "find": "find . -name config lists files.",
    "plot": "Little Women: the plot of the book.",
    "film": "Little Women: the plot of the film.",
}


@pytest.fixture(scope="module")
def words():
    return ContextualBM25Retriever([TextNode(id_=name, text=text) for name, text in NOTES.items()])


@pytest.mark.parametrize(
    ("question", "best"),
    [
        ("rm -rf build", "shell"),
        ("tar -xzf backup", "shell"),
        ("freezer -18 degrees", "cold"),
        ("docker run -it", "docker"),
        ("java -version", "docker"),
        ("find . -name config", "find"),
        ("alarm -18", "cold"),
        ("git commit --amend -m docker", "docker"),
        ("-xzf", "shell"),
    ],
)
def test_flags_and_negative_numbers_exclude_nothing(words, question, best):
    explanation = ContextualFusionRetriever([words]).explain(question)
    assert explanation.hits[0].node_id == best
    assert explanation.operators == ()


@pytest.mark.parametrize("question", ['"Little Women" plot -film', "plot Women -film"])
def test_an_excluded_word_is_left_out_and_that_is_said(words, question):
    explanation = ContextualFusionRetriever([words]).explain(question)
    assert [hit.node_id for hit in explanation] == ["plot"]
    assert "-film leaves chunks out" in explanation.remarks


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("السِّلْسِلَة قديمة", "السلسلة"),
        ("שָׁלוֹם", "שלום"),
        ("We took the train to Łódź.", "lodz"),
        ("أحمد في البيت", "احمد"),
        ("مدرسة الأطفال", "مدرسه"),
        ("کتابخانه بزرگ", "كتابخانه"),
        ("Smørrebrød in Ærø", "aero smorrebrod"),
        ("Release 🚀 party", "🚀"),
        ("🇩🇪 and 🇫🇷", "🇫🇷"),
        ("done ✅", "✅"),
    ],
)
def test_words_are_found_without_signs_strokes_and_as_pictures(text, question):
    other = [TextNode(id_=str(number), text=f"Nothing here {number} 🎉") for number in range(3)]
    words = ContextualBM25Retriever([*other, TextNode(id_="it", text=text)])
    [best, *_] = words.retrieve(question)
    assert (best.node.node_id, (best.score or 0) > 0) == ("it", True)


def test_a_picture_is_one_term():
    assert terms_of("b🚀 👩‍💻 ✅") == ["b", "🚀", "👩", "💻", "✅"]
