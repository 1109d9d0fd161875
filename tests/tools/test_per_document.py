"""A limit for the items of each document, and for all items."""

import pytest

from llama_index_contextual.tools.per_document import limit_per_document


@pytest.mark.parametrize(
    ("per_file", "most", "kept"),
    [(1, 9, "ab"), (2, 9, "aabb"), (0, 9, "aaabbb"), (0, 4, "aaab"), (1, 1, "a"), (2, 3, "aab")],
)
def test_the_best_of_each_document_are_kept_up_to_both_limits(per_file, most, kept):
    assert limit_per_document("aaabbb", str, per_file, most) == [*kept]
