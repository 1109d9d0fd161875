"""Chunks of chunks: one parser splits the chunks of another, and their offsets can disagree."""

from __future__ import annotations

import pytest
from llama_index.core import Document
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter, TokenTextSplitter
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser
from llama_index_contextual.context.documents import group_by_document

SECTIONS = [
    f"## Part {part}\n\n" + " ".join(f"Sentence {part}.{n} stands here." for n in range(40))
    for part in "ABC"
]


def test_no_chunk_is_lost_if_offsets_contradict_each_other():
    sections = MarkdownNodeParser()(
        [Document(text="\n\n".join(SECTIONS), metadata={"path": "book.md"})]
    )
    nodes = HeadingAwareMarkdownNodeParser(chunk_size=100, chunk_overlap=0)(sections)
    for node in nodes:  # like parsers that count from the section
        section = next(section for section in sections if node.text in section.text)
        node.start_char_idx = section.text.index(node.text)
        node.end_char_idx = node.start_char_idx + len(node.text)
    [chunks] = group_by_document(nodes)
    assert list(chunks.nodes) == nodes
    assert all(node.text in chunks.document.text for node in nodes)


@pytest.mark.long
def test_chunks_of_our_chunks_make_up_the_document():
    document = Document(text="\n\n".join(SECTIONS), metadata={"path": "book.md"})
    nodes = HeadingAwareMarkdownNodeParser(chunk_size=100, chunk_overlap=0)(
        MarkdownNodeParser()([document])
    )
    [chunks] = group_by_document(nodes)
    assert chunks.document.text.split() == document.text.split()


LINES = [f"Line {number} of the note is long enough to be split." for number in range(40)]
NOTE = Document(text="\n".join(["# Plan", "", *LINES]), metadata={"path": "plan.md"})


@pytest.mark.parametrize("context", ["headings", "off"])
@pytest.mark.parametrize(
    "splitter",
    [
        SentenceSplitter(chunk_size=100, chunk_overlap=0),
        SentenceSplitter(chunk_size=100, chunk_overlap=30),
        TokenTextSplitter(chunk_size=100, chunk_overlap=0),
    ],
)
def test_a_piece_of_a_chunk_does_not_keep_the_lines_of_the_whole_chunk(splitter, context):
    [chunk] = HeadingAwareMarkdownNodeParser(chunk_size=1000)([NOTE])
    pieces = splitter([chunk])
    assert len(pieces) > 2
    for node in ContextualNodePostprocessor(context)(pieces):
        assert not {"start_line", "end_line", "token_count"} & node.metadata.keys()
        assert node.metadata["header_path"] == "Plan"


def test_a_piece_of_a_chunk_loses_its_lines_in_a_copy_at_query_time():
    pieces = SentenceSplitter(chunk_size=100, chunk_overlap=0)(
        HeadingAwareMarkdownNodeParser(chunk_size=1000)([NOTE])
    )
    hits = ContextualNodePostprocessor().postprocess_nodes(
        [NodeWithScore(node=node, score=1.0) for node in pieces]
    )
    assert all("start_line" not in hit.node.metadata for hit in hits)
    assert all("start_line" in node.metadata for node in pieces)


def test_lines_that_are_still_valid_are_kept():
    whole = HeadingAwareMarkdownNodeParser(chunk_size=200, chunk_overlap=0)([NOTE])
    pieces = SentenceSplitter(chunk_size=2000)(whole)
    for node in ContextualNodePostprocessor()(pieces):
        lines = NOTE.text.splitlines()[node.metadata["start_line"] - 1 : node.metadata["end_line"]]
        assert node.text.strip() == "\n".join(lines).strip()


def test_a_step_that_only_changes_words_keeps_the_lines():
    nodes = HeadingAwareMarkdownNodeParser()([NOTE])
    for node in nodes:
        node.text = node.text.replace("note", "[hidden]")
    assert all("end_line" in node.metadata for node in ContextualNodePostprocessor()(nodes))


def test_lines_from_a_reader_are_not_changed():
    node = TextNode(text="One line.", metadata={"start_line": 3, "end_line": 9})
    [written] = ContextualNodePostprocessor()([node])
    assert (written.metadata["start_line"], written.metadata["end_line"]) == (3, 9)


def test_a_piece_that_lacks_one_line_of_its_chunk_has_no_lines():
    text = "One stands here.\nTwo stands here.\nThree stands here.\n"
    [chunk] = HeadingAwareMarkdownNodeParser()([Document(text=text, metadata={"path": "a.md"})])
    assert (chunk.metadata["start_line"], chunk.metadata["end_line"]) == (1, 3)
    piece = chunk.model_copy(update={"metadata": dict(chunk.metadata)})
    piece.set_content("One stands here.\nTwo stands here.")
    ContextualNodePostprocessor()([chunk])
    ContextualNodePostprocessor()([piece])
    assert "start_line" in chunk.metadata
    assert "start_line" not in piece.metadata
