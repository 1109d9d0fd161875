"""Chunks of chunks: what one parser cut, another cuts again, and its offsets may count from somewhere else."""

from __future__ import annotations

import pytest
from llama_index.core import Document
from llama_index.core.node_parser import MarkdownNodeParser

from llama_index_contextual import HeadingAwareMarkdownNodeParser
from llama_index_contextual.context.documents import group_by_document

SECTIONS = [
    f"## Part {part}\n\n" + " ".join(f"Sentence {part}.{n} stands here." for n in range(40))
    for part in "ABC"
]


def test_no_chunk_is_lost_from_the_document_where_offsets_contradict_each_other():
    sections = MarkdownNodeParser()(
        [Document(text="\n\n".join(SECTIONS), metadata={"path": "book.md"})]
    )
    nodes = HeadingAwareMarkdownNodeParser(chunk_size=100, chunk_overlap=0)(sections)
    for node in nodes:  # as parsers place them that count from the section
        section = next(section for section in sections if node.text in section.text)
        node.start_char_idx = section.text.index(node.text)
        node.end_char_idx = node.start_char_idx + len(node.text)
    [chunks] = group_by_document(nodes)
    assert list(chunks.nodes) == nodes
    assert all(node.text in chunks.document.text for node in nodes)


@pytest.mark.long
def test_chunks_of_chunks_of_ours_make_up_the_document():
    document = Document(text="\n\n".join(SECTIONS), metadata={"path": "book.md"})
    nodes = HeadingAwareMarkdownNodeParser(chunk_size=100, chunk_overlap=0)(
        MarkdownNodeParser()([document])
    )
    [chunks] = group_by_document(nodes)
    assert chunks.document.text.split() == document.text.split()
