"""Hits with their surroundings, as one citation where they touch."""

from __future__ import annotations

import pytest
from llama_index.core.schema import Document

from llama_index_contextual import HeadingAwareMarkdownNodeParser
from llama_index_contextual.retrieval import ContextualBM25Retriever, ContextualFusionRetriever

PAGE = """# Garden

The apple trees were planted in spring. They need water every week.

The roses were cut in March. They bloom late this year.

## Tools

The spade stands in the shed beside the ladder, and it is new.

# Kitchen

The oven is broken and the plumber comes on Friday morning at nine.
"""


@pytest.fixture(scope="module")
def retrieve():
    parser = HeadingAwareMarkdownNodeParser(chunk_size=22, chunk_overlap=0, min_chunk_size=1, tokenizer="cl100k")
    nodes = parser.get_nodes_from_documents([Document(text=PAGE, metadata={"path": "home.md"})])
    assert len(nodes) >= 4

    def answer(query, expand, top_k=2):
        keyword = ContextualBM25Retriever(nodes)
        return ContextualFusionRetriever([keyword], expand=expand, similarity_top_k=top_k).retrieve(query)

    return answer


def lines(hit):
    return hit.node.metadata["start_line"], hit.node.metadata["end_line"]


def test_without_it_a_hit_is_a_chunk(retrieve):
    (hit,) = retrieve("apple", 0)
    assert "roses" not in hit.node.text


@pytest.mark.parametrize("expand", [1, 2, 50, "section"])
def test_an_expanded_hit_is_still_a_slice_with_its_lines(retrieve, expand):
    for hit in retrieve("apple oven", expand):
        node = hit.node
        assert PAGE[node.start_char_idx : node.end_char_idx] == node.text
        start, end = lines(hit)
        assert PAGE.splitlines()[start - 1] == node.text.splitlines()[0]
        assert PAGE.splitlines()[end - 1] == node.text.rstrip("\n").splitlines()[-1]


def test_adjacent_chunks_come_along(retrieve):
    (hit,) = retrieve("every week", 1)  # the second half of a paragraph
    assert "apple" in hit.node.text
    assert "roses" in hit.node.text
    assert "oven" not in hit.node.text


def test_a_section_ends_where_the_next_begins(retrieve):
    (hit,) = retrieve("apple", "section")
    assert "spade" in hit.node.text  # a subsection belongs to it
    assert "oven" not in hit.node.text


def test_hits_that_touch_become_one_citation_with_the_better_score(retrieve):
    apart = retrieve("apple roses", 0)
    (together,) = retrieve("apple roses", 1)
    assert len(apart) == 2
    assert together.score == apart[0].score
    assert together.node.node_id == apart[0].node.node_id
    assert "apple" in together.node.text
    assert "roses" in together.node.text


def test_nodes_without_neighbours_stay_as_they_are(nodes):
    keyword = ContextualBM25Retriever(nodes)
    plain = ContextualFusionRetriever([keyword]).retrieve("budget")
    expanded = ContextualFusionRetriever([keyword], expand=2).retrieve("budget")
    assert [one.node for one in expanded] == [one.node for one in plain]


async def test_async_expands_the_same(nodes, retrieve):
    keyword = ContextualBM25Retriever(nodes)
    retriever = ContextualFusionRetriever([keyword], expand="section")
    assert await retriever.aretrieve("budget") == retriever.retrieve("budget")
