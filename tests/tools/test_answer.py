"""How much of an answer fits."""

import pytest

from llama_index_contextual.tools.answer import fitting


@pytest.mark.parametrize(
    ("max_chars", "gap", "fit"),
    [(5, 1, ["ab", "cd"]), (4, 1, ["ab"]), (6, 2, ["ab", "cd"]), (5, 2, ["ab"]), (1, 1, [])],
)
def test_texts_fit_with_the_gaps_between_them(max_chars, gap, fit):
    assert fitting(["ab", "cd", "efghij"], max_chars, gap) == fit


def test_nothing_follows_a_text_that_does_not_fit():
    assert fitting(["ab", "cdefgh", "i"], 6) == ["ab"]
