"""``HeadingAwareMarkdownNodeParser`` where ``MarkdownNodeParser`` stood. Many cases are LlamaIndex's own."""

from __future__ import annotations

import pytest
from llama_index.core import Document
from llama_index.core.node_parser import MarkdownNodeParser
from side_by_side import Case, compare

from llama_index_contextual import HeadingAwareMarkdownNodeParser

FENCE = "# Real\n\n~~~sh\n# comment\nmake\n~~~\n\nSetext\n------\n\nWords."


def texts(parser, text, **metadata):
    return [node.text for node in parser.get_nodes_from_documents([Document(text=text, metadata=metadata)])]


CASES = [
    Case("a text without a heading is one node", lambda parser: texts(parser, "Some words.\n\nMore words.")),
    Case("a heading and its text are one node", lambda parser: texts(parser, "# One\n\nText under it.")),
    Case("an empty document has no node", lambda parser: texts(parser, ""), gives=[]),
    Case(
        "a comment in a fence is no heading, and an underlined line is one",
        lambda parser: texts(parser, FENCE),
        stock=["# Real\n\n~~~sh", "# comment\nmake\n~~~\n\nSetext\n------\n\nWords."],
        gives=["# Real\n\n~~~sh\n# comment\nmake\n~~~", "Setext\n------\n\nWords."],
        differs="false-headings",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_markdown_node_parser(case):
    compare(case, MarkdownNodeParser(), HeadingAwareMarkdownNodeParser(min_chunk_size=0))
