"""Values, places and dates in the metadata of nodes."""

from __future__ import annotations

from datetime import date

import pytest

from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.dates import Period


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("-4", -4),
        ("0", 0),
        ("4.50", 4.5),
        ("True", True),
        ("false", False),
        ("007", "007"),
        ("1.2.3", "1.2.3"),
        ("4 ", "4 "),
        ("9" * 15, 10**15 - 1),
        ("9" * 16, "9" * 16),  # a number that a float cannot represent
    ],
)
def test_the_type_of_a_text_is_that_of_its_value(text, value):
    assert meta.typed(text) == value
    assert type(meta.typed(text)) is type(value)


# Lengths


@pytest.mark.parametrize(
    ("most", "text"), [(9, "four five"), (8, "four fi…"), (6, "four…"), (5, "four…")]
)
def test_a_text_is_shortened_to_its_limit(most, text):
    assert meta.shortened("four five", most) == text


@pytest.mark.parametrize(("most", "tags"), [(8, "a, bb, c"), (7, "a, bb"), (5, "a"), (1, "")])
def test_only_whole_tags_are_kept(most, tags):
    assert meta.short_tags("a, bb, c", most) == tags


@pytest.mark.parametrize(
    ("most", "path"),
    [
        (17, "one > two > three"),
        (16, "… > two > three"),
        (15, "… > two > three"),
        (14, "… > three"),
        (8, "three"),
        (4, "thr…"),
    ],
)
def test_outer_headings_are_dropped_first(most, path):
    assert meta.short_header_path(["one", "two", "three"], most) == path


# Headings


@pytest.mark.parametrize(
    ("values", "titles"),
    [
        ({"header_path": "A > B", "heading_level": 2}, ["A", "B"]),
        ({"header_path": "A  >\nB", "heading_level": 2}, ["A", "B"]),
        ({"header_path": "/A/B/"}, ["A", "B"]),  # as LlamaIndex writes it
        ({"header_path": "/api/v1/", "heading_level": 1}, ["/api/v1/"]),
        ({"header_path": "/api"}, ["/api"]),
        ({"header_path": ""}, []),
        ({"header_path": "x", "contextual_header_path": "A > B", "heading_level": 2}, ["A", "B"]),
    ],
)
def test_headings_are_read_from_both_kinds_of_paths(values, titles):
    assert meta.heading_titles(values) == titles


# Pages


@pytest.mark.parametrize(
    ("values", "page"),
    [
        ({"page_label": "7"}, "7"),
        ({"page_number": 0}, 0),
        ({"page_label": "", "page": 3}, 3),
        ({"total_pages": 9, "source": "4"}, "4"),
        ({"source": "4"}, None),
        ({"total_pages": 9, "source": "a.pdf"}, None),
        ({}, None),
    ],
)
def test_a_page_is_known_by_its_label_in_any_reader(values, page):
    assert meta.page_of(values) == page


@pytest.mark.parametrize(
    ("values", "file"),
    [
        ({"path": "b.md", "file_name": "a.md"}, "b.md"),
        ({"file_name": "a.md", "source": "b.md"}, "a.md"),
        ({"source": "b.md"}, ""),  # only the source of a page is its file
        ({"source": "x\\b.pdf", "page": 2}, "x/b.pdf"),
        ({"filename": "b.pdf", "page_number": 2}, "b.pdf"),
    ],
)
def test_the_file_of_a_page_is_named_by_any_reader(values, file):
    assert meta.file_of(values) == file


@pytest.mark.parametrize(
    ("path", "page", "citation"),
    [
        ("a.pdf", 12, "a.pdf#page=12"),
        ("plan.pptx", "3", "plan.pptx#slide=3"),
        ("FEES.XLSX", "Q 1/2", "FEES.XLSX#sheet=Q%201%2F2"),
        ("a.ipynb", 4, "a.ipynb#cell=4"),
    ],
)
def test_a_citation_of_a_page_names_its_part_and_is_split_again(path, page, citation):
    assert meta.citation(path, 3, 5, page) == citation
    assert meta.split_page(citation) == (path, str(page))


@pytest.mark.parametrize("path", ["a.md", "a#b.md", "#page=3", "a.md#L3", "a.md#part=3"])
def test_a_path_without_a_page_is_not_split(path):
    assert meta.split_page(path) == (path, "")


def test_a_citation_of_a_node_needs_a_path():
    lines = {"start_line": 3, "end_line": 5}
    assert meta.citation_of({"path": "a.md", **lines}) == "a.md#L3-L5"
    assert meta.citation_of({"file_path": "file:///a.md", **lines}) == "/a.md#L3-L5"
    assert meta.citation_of(lines) == ""


def test_a_path_is_shown_relative_to_its_root():
    values = {"file_path": "/home/me/notes/deep/a.md"}
    assert meta.display_path(values, "/home/me/notes") == "deep/a.md"
    assert meta.display_path(values, "/home/you") == "deep/a.md"
    assert meta.display_path(values, "/home") == "me/notes/deep/a.md"
    assert meta.display_path(values, "/") == "deep/a.md"


# Dates


@pytest.mark.parametrize(
    ("values", "day"),
    [
        ({"date": "2026-04-09", "date_ts": 0}, date(2026, 4, 9)),
        ({"date_ts": 1775692800}, date(2026, 4, 9)),
        ({"header_path": "2026-01-05 > 2026-01-06 > Tea", "heading_level": 3}, date(2026, 1, 6)),
        ({"path": "log/2026-03-01.md"}, date(2026, 3, 1)),
        (
            {"path": "2026-03-01.md", "header_path": "2026-01-05", "heading_level": 1},
            date(2026, 1, 5),
        ),
        ({"path": "a.md"}, None),
    ],
)
def test_a_day_is_read_from_the_metadata_the_innermost_heading_or_the_path(values, day):
    assert meta.day_of(values) == day


@pytest.mark.parametrize(
    ("values", "last"),
    [
        ({"date": "2026-04-01/2026-04-30"}, 30),
        ({"path": "2026-04.md"}, 30),
        ({"date": "2026-04-01", "path": "2026-04.md"}, 1),
        ({"header_path": "2026-04-01", "heading_level": 1, "path": "2026-05.md"}, 1),
    ],
)
def test_a_period_is_that_of_the_day(values, last):
    assert meta.period_of(values) == Period(date(2026, 4, 1), date(2026, 4, last))


def test_a_node_without_a_day_has_no_period():
    assert meta.period_of({"path": "a.md"}) is None


def test_another_key_can_hold_the_date():
    values = {"updated": "2026-04-10", "date": "2026-04-09"}
    assert meta.date_of(values, "updated") == date(2026, 4, 10)


# Keys


def test_a_key_of_a_document_keeps_its_name_and_ours_gets_a_prefix():
    merged, names = meta.merge_metadata(
        {"title": "Mine", "date": "2026-04-09"}, {"title": "Ours", "date": "2026-04-09", "n": 1}
    )
    assert merged == {"title": "Mine", "date": "2026-04-09", "contextual_title": "Ours", "n": 1}
    assert names == {"title": "contextual_title", "n": "n"}
    assert meta.value_of(merged, "title") == "Ours"
    assert meta.text_value(merged, "n") == "1"
    assert meta.text_value(merged, "m") == ""


@pytest.mark.parametrize(("path", "is_evergreen"), [("people/a.md", True), ("log/a.md", False)])
def test_a_note_is_evergreen_if_any_pattern_matches(path, is_evergreen):
    assert meta.is_evergreen(path, ["tea/*", "people/*"]) == is_evergreen
