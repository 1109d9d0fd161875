import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llama_index_contextual.metadata import join_header_path, split_header_path

TITLES = st.lists(st.text(st.sampled_from(" >\\aé/\n"), min_size=1, max_size=8), max_size=4)


@given(TITLES)
@example(["A > B", "C"])
@example(["A \\> B", "> x", "y >", ">"])
def test_any_titles_survive_join_and_split(titles):
    assert split_header_path(join_header_path(titles)) == titles


@pytest.mark.parametrize(
    ("titles", "path"),
    [
        (["Guide", "Install"], "Guide > Install"),
        (["Guide", "A > B"], "Guide > A \\> B"),
        (["a -> b", "x>y"], "a -> b > x>y"),
        (["Guide", "", "Install"], "Guide > Install"),
        ([], ""),
    ],
)
def test_a_path_reads_as_one_would_write_it(titles, path):
    assert join_header_path(titles) == path
