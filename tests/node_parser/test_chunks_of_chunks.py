"""Our parser after another one: its chunks have offsets in the document, not in the other chunk."""

from __future__ import annotations

import pytest
from llama_index.core import Document
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual import HeadingAwareMarkdownNodeParser

TEXT = (
    "---\ntitle: Pages\n---\n\n# One\n\nThe same line stands here.\n\n## Two\n\n"
    + "".join(f"Sentence {n} stands here.\n" for n in range(60))
    + "\n### 2026-04-09\n\nThe same line stands here.\n\n# Three\n\nThe same line stands here.\n"
)


@pytest.fixture
def document():
    return Document(text=TEXT, metadata={"path": "pages.md"})


def parser():
    return HeadingAwareMarkdownNodeParser(chunk_size=100, chunk_overlap=0, min_chunk_size=5)


@pytest.mark.parametrize(
    "first", [MarkdownNodeParser(), SentenceSplitter(chunk_size=200, chunk_overlap=20)]
)
def test_offsets_are_those_of_the_document(document, first):
    nodes = parser()(first([document]))
    assert len(nodes) > 5
    for node in nodes:
        assert node.ref_doc_id == document.node_id
        assert TEXT[node.start_char_idx : node.end_char_idx] == node.text


def test_headings_above_a_section_stay_above_its_chunks(document):
    paths = [
        node.metadata.get("header_path") for node in parser()(MarkdownNodeParser()([document]))
    ]
    # The first is the front matter: LlamaIndex's parser makes a chunk of it alone.
    assert list(dict.fromkeys(paths)) == ["", "One", "One > Two", "One > Two > 2026-04-09", "Three"]


def test_an_unknown_line_is_not_cited(document):
    nodes = parser()(MarkdownNodeParser()([document]))
    assert all(
        "start_line" not in node.metadata and "end_line" not in node.metadata for node in nodes[1:]
    )


def test_chunks_of_our_own_chunks_know_their_lines_too(document):
    large = HeadingAwareMarkdownNodeParser(chunk_overlap=0, min_chunk_size=5)([document])
    small = parser()(large)
    assert len(small) > len(large)
    lines = TEXT.splitlines()
    for node in small:
        assert TEXT[node.start_char_idx : node.end_char_idx] == node.text
        cited = lines[node.metadata["start_line"] - 1 : node.metadata["end_line"]]
        assert "\n".join(cited) == node.text
    at_once = parser()([document])
    assert [node.metadata["header_path"] for node in small] == [
        node.metadata["header_path"] for node in at_once
    ]
    assert [node.metadata["heading_level"] for node in small] == [
        node.metadata["heading_level"] for node in at_once
    ]


def test_a_node_without_offsets_is_treated_as_a_beginning():
    node = TextNode(
        text=TEXT, relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="pages")}
    )
    for chunk in parser()([node]):
        assert TEXT[chunk.start_char_idx : chunk.end_char_idx] == chunk.text
        assert TEXT.splitlines()[chunk.metadata["start_line"] - 1] == chunk.text.splitlines()[0]


def test_a_node_whose_text_was_changed_has_no_place_to_count_from():
    node = TextNode(
        text="Another text.",
        start_char_idx=40,
        end_char_idx=900,
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="pages")},
    )
    [chunk] = parser()([node])
    assert (chunk.start_char_idx, chunk.end_char_idx) == (0, 13)
