"""Documents that are joined from their nodes: order, lines, pages, names and days."""

from __future__ import annotations

import pytest
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.tools.notes import NodeNotes, Passage
from llama_index_contextual.utils.dates import epoch_seconds, parse_day


def notes_of(*nodes):
    return NodeNotes(lambda: nodes)


def node(text, start=None, **metadata):
    """Return a node of ``a.md`` that starts at an offset."""
    return TextNode(text=text, start_char_idx=start, metadata={"path": "a.md", **metadata})


def passages(*nodes):
    """Return the first line and the text of each passage."""
    matching = notes_of(*nodes).matching(lambda _: True)
    return [(passage.first_line, passage.text) for passage in matching]


# Order and lines


def test_nodes_are_sorted_by_line():
    later = node("three", start_line=3)
    assert notes_of(later, node("one", start_line=1)).text("a.md") == "one\n\nthree"


def test_nodes_without_lines_are_sorted_by_offset():
    assert notes_of(node("two", 10), node("one", 0)).text("a.md") == "one\ntwo"


def test_a_node_without_a_line_follows_the_previous_node():
    first = node("one\ntwo", 0)
    assert passages(first, node("three", 8)) == [(1, "one\ntwo"), (3, "three")]


def test_a_node_that_begins_in_the_last_line_of_another_is_joined_by_a_space():
    first = node("one\ntwo", start_line=1)
    assert notes_of(first, node("words", start_line=2)).text("a.md") == "one\ntwo words"


@pytest.mark.parametrize("line", [0, -4, "3", 2.5, 10**9])
def test_an_impossible_line_number_is_ignored(line):
    assert notes_of(node("one", start_line=line)).text("a.md") == "one"


def test_the_overlap_with_the_previous_node_is_removed():
    first = node("one\ntwo\n", 0, start_line=1)
    second = node("two\nthree", 4, start_line=2)
    third = node("three\nfour", 8, start_line=3)
    assert passages(first, second, third) == [(1, "one\ntwo\n"), (3, "three"), (3, "\nfour")]


def test_a_node_whose_offset_is_wrong_keeps_its_text():
    assert passages(node("one two", 0), node("three", 4)) == [(1, "one two"), (2, "three")]


def test_a_node_after_a_gap_keeps_its_text():
    assert passages(node("one two", 0), node("two!", 8)) == [(1, "one two"), (2, "two!")]


# Pages


def test_pages_are_sorted_by_number_else_by_name():
    labels = ["10", "9", "ii", "i", "1" * 5000]
    places = [Passage("a.pdf", label, 1, "", {}).place for label in labels]
    assert [labels.index(page) for _, _, page, _ in sorted(places)] == [4, 3, 2, 1, 0]


def test_the_chunks_of_a_page_are_sorted_by_line():
    first, second = (Passage("a.pdf", "2", line, "", {}).place for line in (5, 10))
    assert first < second


def test_pages_are_separated_by_a_blank_line_and_can_be_read_alone():
    notes = notes_of(node("One.", page_label="1"), node("Two.", page_label="2"))
    assert notes.text("a.md") == "One.\n\nTwo."
    assert notes.text("a.md#page=2") == "Two."
    assert notes.text("a.md#page=3") is None
    assert notes.text("b.md") is None


def test_the_case_of_a_page_name_does_not_matter():
    sheet = TextNode(text="bolts", metadata={"path": "stock.xlsx", "page_label": "Parts"})
    assert notes_of(sheet).text("stock.xlsx#sheet=PARTS") == "bolts"


def test_a_stored_chunk_without_a_line_starts_at_line_1():
    assert Passage.of("text", {"path": "a.md"}).first_line == 1
    assert Passage.of("text", {"path": "a.md", "start_line": 7}).first_line == 7


# Paths, names and days


def test_the_path_of_a_node_is_its_file_else_its_document_else_its_id():
    source = RelatedNodeInfo(node_id="diary")
    notes = notes_of(
        TextNode(text="x", metadata={"file_path": "file:///srv/a.md"}),
        TextNode(text="x", id_="n", relationships={NodeRelationship.SOURCE: source}),
        TextNode(text="x", id_="alone"),
    )
    assert sorted(notes.paths()) == ["/srv/a.md", "alone", "diary"]
    assert notes.has("diary")
    assert not notes.has("n")


def test_documents_are_named_by_titles_and_aliases_in_order():
    notes = notes_of(
        node("x", title="Pumps", aliases="Motors"),
        TextNode(text="x", metadata={"path": "b.md", "title": "Engines"}),
    )
    assert notes.names() == [("Engines", "b.md"), ("Motors", "a.md"), ("Pumps", "a.md")]


def test_title_and_front_matter_are_properties_and_are_searched():
    values = {"title": "Pumps", "front_matter": "status: open; owner: Marta"}
    [passage] = notes_of(node("Red.", **values)).matching("owner: Marta".__eq__)
    assert passage.properties == ["title: Pumps", "status: open", "owner: Marta"]


@pytest.mark.parametrize(
    ("lines_above", "text"),
    [
        (0, "Red."),
        (1, "status: open; owner: Marta\nRed."),
        (3, "status: open\nowner: Marta\n\nRed."),
    ],
)
def test_the_lines_above_the_first_node_contain_the_front_matter(lines_above, text):
    first = node("Red.", start_line=lines_above + 1, front_matter="status: open; owner: Marta")
    assert notes_of(first).text("a.md") == text


def test_filters_can_use_the_date_in_a_path():
    dated = TextNode(text="x", metadata={"path": "memory/2026-04-09.md"})
    [values] = notes_of(dated).metadata()
    assert values["date"] == "2026-04-09"
    assert values["date_ts"] == epoch_seconds(parse_day("2026-04-09"))


def test_a_date_in_the_metadata_is_unchanged():
    [values] = notes_of(node("x", date="9 April 2026")).metadata()
    assert values["date"] == "9 April 2026"


def test_notes_are_dated_if_any_of_them_is():
    undated = TextNode(text="x", metadata={"path": "b.md"})
    assert notes_of(undated, node("x", date="2026-04-09")).are_dated
    assert not notes_of(undated).are_dated
