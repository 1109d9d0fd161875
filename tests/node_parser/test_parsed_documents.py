"""What documents bring with them to the parser.

Ids, pages of a file, kinds of files and nodes, keys named as ours.
"""

import pytest
from llama_index.core import Document
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import (
    ImageDocument,
    ImageNode,
    IndexNode,
    MediaResource,
    MetadataMode,
    Node,
)

from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils.errors import SettingError
from llama_index_contextual.utils.metadata import citation_of

NOTE = """---
title: Field notes
date: 2026-02-03
tags: [dogs, food]
---
# Notes

Intro to a note that is long enough to stand alone, because a section this short would otherwise join the next one.

## 2026-01-31

Cookie loves carrots, and hates the vacuum cleaner, which is why it stays in the cupboard until the walk at ten.

## Later

```sh
# no heading
feed cookie --carrots 3
```
"""  # noqa: E501


def ids(parser, *documents):
    return [node.node_id for node in parser.get_nodes_from_documents(list(documents))]


def test_ids_are_the_same_again_where_the_documents_id_is():
    def note(**given):
        return Document(text=NOTE, metadata={"path": "memory/note.md"}, **given)

    parser = HeadingAwareMarkdownNodeParser(min_chunk_size=10)
    assert ids(parser, note(id_="a")) == ids(parser, note(id_="a"))
    assert not set(ids(parser, note(id_="a"))) & set(ids(parser, note(id_="b"))), (
        "two tenants have one README.md"
    )
    assert not set(ids(parser, note())) & set(ids(parser, note())), (
        "LlamaIndex's ids are random, so ours are"
    )


def test_chunks_of_chunks_keep_their_ids_while_their_document_has_one():
    def chain(doc_id):
        first = SentenceSplitter(chunk_size=40, chunk_overlap=0)
        return ids(HeadingAwareMarkdownNodeParser(), *first([Document(text=NOTE * 2, id_=doc_id)]))

    assert chain("a") == chain("a")
    assert len(set(chain("a"))) == len(chain("a"))
    assert not set(chain("a")) & set(chain("b"))


def test_equal_pages_of_one_file_have_ids_of_their_own():
    """A PDF's pages are documents with one path, and two documents may have the same text and no
    path at all.
    """
    pages = [
        Document(text="Left blank.", metadata={"file_path": "a.pdf", "page_label": page})
        for page in "12"
    ]
    pathless = [Document(text="Hello."), Document(text="Hello.")]
    made = ids(HeadingAwareMarkdownNodeParser(), *pages, *pathless)
    assert len(set(made)) == 4
    assert made == [ids(HeadingAwareMarkdownNodeParser(), one)[0] for one in (*pages, *pathless)]


@pytest.mark.parametrize(
    "name", ["/d/report.pdf", "a.docx", "a.html", "a.txt", "Release 2.0", "a.md", ""]
)
def test_markdown_is_what_is_markdown_whatever_its_file_is_called(name):
    """A converter (LlamaParse, docling, MarkItDown, kreuzberg) writes Markdown and names the file
    that it read.
    """
    text = "# A\n\n## B\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    [node] = HeadingAwareMarkdownNodeParser()([Document(text=text, metadata={"file_path": name})])
    assert (node.metadata["header_path"], node.metadata["content_type"]) == ("A > B", "table")


@pytest.mark.parametrize(
    ("suffixes", "name", "expected"),
    [
        ((".md",), "a.py", ""),
        ((".md",), "a.MD", "A"),
        ((".md",), "", "A"),
        ((".md",), "Release 2.0", "A"),
        ((".md",), ".profile", "A"),
        ((".md", ".pdf"), "d/report.pdf", "A"),
        ((), "a.md", ""),
        ((), "", ""),
    ],
)
def test_a_setting_says_which_files_are_markdown(suffixes, name, expected):
    parser = HeadingAwareMarkdownNodeParser(markdown_suffixes=suffixes)
    [node] = parser([Document(text="# A\n\nWords.\n", metadata={"path": name})])
    assert node.metadata["header_path"] == expected


def test_a_suffix_without_its_dot_is_refused():
    with pytest.raises(SettingError, match="begin with a dot"):
        HeadingAwareMarkdownNodeParser(markdown_suffixes=("md",))


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
    nodes = HeadingAwareMarkdownNodeParser(min_chunk_size=0)(documents)
    return [
        (node.ref_doc_id, node.metadata["header_path"], node.metadata["heading_level"])
        for node in nodes
    ]


PAGES = [
    "# Report\n\n## Costs\n\nThey rise.",
    "And they fall.\n\n### Rent\n\nIt is due.",
    "",
    "Still rent.",
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
    assert [path for _, path, _ in paths_of(pages)] == ["Report > Costs"] * 2 + [
        "Report > Costs > Rent"
    ] * 2
    nodes = HeadingAwareMarkdownNodeParser()(pages)
    assert citation_of(nodes[-1].metadata) == "report.pdf#page=4"


@pytest.mark.parametrize(
    ("brought", "path"),
    [
        ({"file_path": "notes\\a.md"}, "notes/a.md"),
        ({"file_name": "a.pdf"}, "a.pdf"),
        ({"path": "b.md", "file_path": "/x/b.md"}, "b.md"),
        ({}, None),
    ],
)
def test_a_path_is_there_where_the_document_has_and_in_no_view(brought, path):
    [node] = HeadingAwareMarkdownNodeParser()([Document(text="Text.", metadata=brought)])
    assert node.metadata.get("path") == path
    if "path" not in brought:
        assert (
            "\npath: "
            not in f"\n{node.get_content(MetadataMode.EMBED)}\n{node.get_content(MetadataMode.LLM)}"
        )


def test_pages_are_read_by_number_and_their_nodes_stay_in_the_order_that_was_given():
    shuffled = [pages_of(PAGES)[place] for place in (3, 1, 0, 2)]
    assert sorted(paths_of(shuffled)) == sorted(paths_of(pages_of(PAGES)))
    assert [doc for doc, _, _ in paths_of(shuffled)] == [
        "report.pdf#4",
        "report.pdf#2",
        "report.pdf#2",
        "report.pdf#1",
    ]


def test_a_page_goes_on_where_the_last_one_before_it_ended_and_a_first_one_begins_under_no_heading():  # noqa: E501
    one, two, _, four = pages_of(PAGES)
    assert paths_of([two])[0] == ("report.pdf#2", "", 0)
    assert paths_of([one, four])[-1] == ("report.pdf#4", "Report > Costs", 2), (
        "numbers of cells have gaps"
    )
    assert paths_of([one, *pages_of(["Other."], "other.pdf", first=2)])[-1] == (
        "other.pdf#2",
        "",
        0,
    )
    twice = paths_of([one, two, *pages_of(PAGES[:2])])
    second = [path for page, path, _ in twice if page == "report.pdf#2"]
    assert second == ["", "Rent", "", "Rent"], (
        "two files of one path: which page follows which is not known"
    )


def test_a_rule_at_the_top_of_a_page_is_no_front_matter():
    pages = pages_of(["# A\n\nWords.", "---\nnote: this\n---\n\nMore words."])
    nodes = HeadingAwareMarkdownNodeParser()(pages)
    assert "note: this" in nodes[1].text


def test_dates_of_headings_and_lines_hold_on_the_next_page_too():
    first, second = HeadingAwareMarkdownNodeParser()(
        pages_of(["# 2026-01-31\n\nWalked.", "Slept."])
    )
    assert first.metadata["date"] == second.metadata["date"] == "2026-01-31"
    assert (second.start_char_idx, second.end_char_idx, second.metadata["start_line"]) == (0, 6, 1)


BROUGHT = {
    "content_type": "application/pdf",
    "date": "2026-01-02T10:11:12",
    "title": "t" * 300,
    "tags": "",
    "header_path": "Space/Page",
    "start_line": 40,
    "heading_level": 1,
    "token_count": "many",
    "front_matter": 7,
}


def test_what_a_document_brought_stays_and_ours_has_names_of_its_own():
    document = Document(text=NOTE, id_="a", metadata=BROUGHT)
    nodes = HeadingAwareMarkdownNodeParser(min_chunk_size=10)([document])
    assert all(BROUGHT.items() <= node.metadata.items() for node in nodes)
    second = nodes[1].metadata
    assert second["contextual_header_path"] == "Notes > 2026-01-31"
    assert (
        second["contextual_start_line"],
        second["end_line"],
        second["contextual_content_type"],
    ) == (10, 12, "text")
    assert (second["contextual_date"], second["date_ts"]) == ("2026-01-31", 1769817600)
    assert second["contextual_tags"] == "dogs, food"
    assert "contextual_date" not in nodes[0].metadata, "its own date says the same day"
    assert "contextual_heading_level" not in nodes[0].metadata, "its own is the same"
    assert second["contextual_heading_level"] == 2
    shown = nodes[1].get_content(metadata_mode=MetadataMode.EMBED)
    assert "content_type: application/pdf" in shown
    assert "contextual_content_type" not in shown
    assert citation_of({**second, "path": "a.md"}) == "a.md#L10-L12"


def test_cut_again_they_are_told_apart():
    parser = HeadingAwareMarkdownNodeParser(min_chunk_size=10)
    document = Document(
        text=NOTE,
        id_="a",
        metadata={key: BROUGHT[key] for key in ("content_type", "date", "title")},
    )
    once = parser([document])
    again = HeadingAwareMarkdownNodeParser(min_chunk_size=5)(once)
    assert [node.metadata for node in again] == [node.metadata for node in once]
    plain = Document(text=NOTE, id_="a", metadata={"path": "n.md"})
    assert [
        n.metadata for n in HeadingAwareMarkdownNodeParser(min_chunk_size=5)(parser([plain]))
    ] == [n.metadata for n in parser([plain])]


def test_other_kinds_of_nodes_pass():
    image = ImageDocument(image="aGk=", text="# A\n\nA photo.", id_="i")
    [described] = HeadingAwareMarkdownNodeParser()([image])
    assert (type(described), described.image, described.metadata["header_path"]) == (
        ImageNode,
        "aGk=",
        "A",
    )
    [alone] = HeadingAwareMarkdownNodeParser()([ImageDocument(image="aGk=", id_="i")])
    assert (type(alone), alone.image, alone.text, alone.ref_doc_id) == (ImageNode, "aGk=", "", "i")
    [recut] = HeadingAwareMarkdownNodeParser()([described])
    assert (type(recut), recut.image) == (ImageNode, "aGk=")
    others = [
        IndexNode(text="# A\n\nSee there.", index_id="there"),
        Document(audio_resource=MediaResource(data=b"aGk=")),
        Node(image_resource=MediaResource(data=b"aGk=")),
    ]
    assert HeadingAwareMarkdownNodeParser()(others) == others
    [node] = HeadingAwareMarkdownNodeParser()(
        [Node(text_resource=MediaResource(text="# A\n\nOf another class."))]
    )
    assert (node.text, node.metadata["header_path"]) == ("# A\n\nOf another class.", "A")
