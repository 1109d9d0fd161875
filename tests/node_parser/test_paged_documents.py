"""Pages of one file: a page starts under the headings that the previous page left open."""

import pytest
from llama_index.core import Document
from llama_index.core.schema import MediaResource

from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils.errors import ContextualWarning
from llama_index_contextual.utils.metadata import citation_of

PAGES = [
    "# Report\n\n## Costs\n\nThey rise.",
    "And they fall.\n\n### Rent\n\nIt is due.",
    "",
    "Still rent.",
]


def pages_of(texts, path="report.pdf", first=1):
    return [
        Document(
            text=text,
            id_=f"{path}#{number}",
            metadata={"file_path": path, "page_label": str(number)},
        )
        for number, text in enumerate(texts, first)
    ]


def paths_of(documents):
    """Return the document, the header path and the heading level of each node."""
    nodes = HeadingAwareMarkdownNodeParser(min_chunk_size=0)(documents)
    return [
        (node.ref_doc_id, node.metadata["header_path"], node.metadata["heading_level"])
        for node in nodes
    ]


def test_a_page_begins_under_the_headings_that_are_open_at_the_end_of_the_page_before():
    assert paths_of(pages_of(PAGES)) == [
        ("report.pdf#1", "Report > Costs", 2),
        ("report.pdf#2", "Report > Costs", 2),
        ("report.pdf#2", "Report > Costs > Rent", 3),
        ("report.pdf#4", "Report > Costs > Rent", 3),
    ]


@pytest.mark.parametrize(
    ("file", "page"),
    [
        ("file_name", "page_number"),
        ("file_name", "page_label"),
        ("path", "page_number"),
        ("filename", "page_number"),
        ("source", "page"),
        ("file_path", "page_idx"),
        ("file_path", "source"),
        ("file_name", "slide"),
    ],
)
def test_pages_are_those_of_one_file_however_readers_name_it(file, page):
    pages = [
        Document(
            text=text,
            id_=str(number),
            metadata={file: "report.pdf", page: number, "total_pages": 4},
        )
        for number, text in enumerate(PAGES, 1)
    ]
    assert [path for _, path, _ in paths_of(pages)] == [
        "Report > Costs",
        "Report > Costs",
        "Report > Costs > Rent",
        "Report > Costs > Rent",
    ]
    nodes = HeadingAwareMarkdownNodeParser()(pages)
    assert citation_of(nodes[-1].metadata) == "report.pdf#page=4"


def test_pages_are_read_by_number_and_their_nodes_stay_in_the_order_that_was_given():
    shuffled = [pages_of(PAGES)[position] for position in (3, 1, 0, 2)]
    assert sorted(paths_of(shuffled)) == sorted(paths_of(pages_of(PAGES)))
    assert [document for document, _, _ in paths_of(shuffled)] == [
        "report.pdf#4",
        "report.pdf#2",
        "report.pdf#2",
        "report.pdf#1",
    ]


def test_page_ten_follows_page_nine():
    texts = ["# First\n\nWords.", "# Ninth\n\nWords.", "More words."]
    pages = [*pages_of(texts[:1]), *pages_of(texts[1:], first=9)]
    assert paths_of(pages)[-1] == ("report.pdf#10", "Ninth", 1)


def test_a_first_page_begins_under_no_heading():
    second = pages_of(PAGES)[1]
    assert paths_of([second])[0] == ("report.pdf#2", "", 0)


def test_page_numbers_can_have_gaps():
    first, _, _, fourth = pages_of(PAGES)
    assert paths_of([first, fourth])[-1] == ("report.pdf#4", "Report > Costs", 2)


def test_a_page_of_another_file_follows_no_page_of_this():
    first = pages_of(PAGES)[0]
    other = pages_of(["Other."], "other.pdf", first=2)
    assert paths_of([first, *other])[-1] == ("other.pdf#2", "", 0)


def test_pages_of_two_files_with_the_same_path_do_not_follow_each_other():
    twice = paths_of([*pages_of(PAGES[:2]), *pages_of(PAGES[:2])])
    second_pages = [path for page, path, _ in twice if page == "report.pdf#2"]
    assert second_pages == ["", "Rent", "", "Rent"]


def test_a_rule_at_the_top_of_a_page_is_not_front_matter():
    pages = pages_of(["# A\n\nWords.", "---\nnote: this\n---\n\nMore words."])
    nodes = HeadingAwareMarkdownNodeParser()(pages)
    assert "note: this" in nodes[1].text


def test_the_next_page_has_the_date_of_the_heading_and_its_own_lines():
    first, second = HeadingAwareMarkdownNodeParser()(
        pages_of(["# 2026-01-31\n\nWalked.", "Slept."])
    )
    assert first.metadata["date"] == second.metadata["date"] == "2026-01-31"
    assert (second.start_char_idx, second.end_char_idx, second.metadata["start_line"]) == (0, 6, 1)


def test_a_page_label_of_thousands_of_digits_is_not_read_as_a_number():
    long_label = Document(text="Last.", metadata={"path": "a.pdf", "page_label": "9" * 5000})
    with pytest.warns(ContextualWarning, match="'page_label' has 5,000 characters"):
        assert len(paths_of([*pages_of(["First."], "a.pdf"), long_label])) == 2


@pytest.mark.parametrize(("words", "count"), [(47, 1), (48, 2)])
def test_small_sections_of_a_converted_page_merge_up_to_half_a_chunk(words, count):
    text = f"## One\n\n{'word ' * words}\n\n## Two\n\n{'word ' * words}"
    page = Document(metadata={"path": "a.pdf", "page_label": "1"})
    page.text_resource = MediaResource(text=text, mimetype="text/markdown")
    parser = HeadingAwareMarkdownNodeParser(
        chunk_size=100, chunk_overlap=0, min_chunk_size=0, tokenizer=str.split
    )
    assert len(parser([page])) == count
