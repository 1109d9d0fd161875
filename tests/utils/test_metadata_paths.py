import pytest

from llama_index_contextual.utils.metadata import citation, display_path, join_header_path, path_of


@pytest.mark.parametrize(
    ("titles", "path"),
    [
        (["Guide", "Install"], "Guide > Install"),
        (["Guide", "A > B"], "Guide > A / B"),
        (["a -> b", "x>y"], "a -> b > x>y"),
        (["Guide", "", "Install"], "Guide > Install"),
        ([], ""),
    ],
)
def test_titles_are_joined_to_a_header_path(titles, path):
    assert join_header_path(titles) == path


@pytest.mark.parametrize(
    ("metadata", "path", "shown"),
    [
        ({"path": "notes/a.md", "file_path": "/home/me/notes/a.md"}, "notes/a.md", "notes/a.md"),
        (
            {"file_path": "/home/me/notes/a.md", "file_name": "a.md"},
            "/home/me/notes/a.md",
            "notes/a.md",
        ),
        ({"file_path": "C:\\Users\\me\\a.md"}, "C:/Users/me/a.md", "me/a.md"),
        ({"file_path": "C:/a.md"}, "C:/a.md", "a.md"),
        ({"file_path": "/a.md"}, "/a.md", "a.md"),
        ({"path": "notes\\a.md"}, "notes/a.md", "notes/a.md"),
        ({"file_name": "a.md"}, "", "a.md"),
        (
            {"file_path": "https://example.org/docs/a.md"},
            "https://example.org/docs/a.md",
            "https://example.org/docs/a.md",
        ),
        ({"file_path": "s3://bucket/a.md"}, "s3://bucket/a.md", "s3://bucket/a.md"),
        ({"file_path": "file:///home/me/notes/a.md"}, "file:///home/me/notes/a.md", "notes/a.md"),
        ({}, "", ""),
    ],
)
def test_a_path_is_found_and_an_absolute_one_is_not_shown(metadata, path, shown):
    assert path_of(metadata) == path
    assert display_path(metadata) == shown


def test_a_citation_names_the_lines_that_are_known():
    assert citation("a.md", 3, 5) == "a.md#L3-L5"
    assert citation("a.md", 3, 3) == citation("a.md", 3, None) == "a.md#L3"
    assert citation("a.md", None, None) == "a.md"
