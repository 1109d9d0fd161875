"""Front matter can be found by keywords but is not shown."""

import pytest
from llama_index.core import Document
from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    HeadingAwareMarkdownNodeParser,
)
from llama_index_contextual.utils.errors import ContextualWarning
from llama_index_contextual.utils.metadata import DATE, FRONT_MATTER, HEADER_PATH, TITLE

PAGE = """---
title: Kiosk
date: 2026-04-09
description: Where zebras queue
tags: [counter, ticket]
aliases:
- Booth
client: Acme
draft: true
weight: 40
nested: {secret: hidden}
---
# Kiosk

"""
LONG = "There is a line of people here. " * 20


def parsed(text, **settings):
    document = Document(text=text, metadata={"path": "a.md"})
    return HeadingAwareMarkdownNodeParser(
        chunk_size=100, chunk_overlap=0, **settings
    ).get_nodes_from_documents([document])


@pytest.fixture
def nodes():
    nodes = parsed(PAGE + LONG)
    assert len(nodes) > 1
    return nodes


def test_its_words_are_on_the_first_chunk_and_in_no_view(nodes):
    assert nodes[0].metadata[FRONT_MATTER] == (
        "description: Where zebras queue; tags: counter, ticket; aliases: Booth; client: "
        "Acme; weight: 40"
    )
    assert not [node for node in nodes[1:] if FRONT_MATTER in node.metadata]
    for first in (nodes[0], ContextualNodePostprocessor()(nodes)[0]):
        for mode in (MetadataMode.EMBED, MetadataMode.LLM):
            assert "Acme" not in first.get_content(mode)


@pytest.mark.parametrize(
    "context", ["headings", "pattern"]
)  # without one LlamaIndex shows tags to every chunk
@pytest.mark.parametrize("word", ["zebra", "ticket", "booth", "acme", "client", "weight"])
def test_keywords_find_the_first_chunk_by_front_matter(nodes, context, word):
    retriever = ContextualBM25Retriever(
        ContextualNodePostprocessor(context)(nodes), similarity_top_k=9
    )
    assert [hit.node.metadata["start_line"] for hit in retriever.retrieve(word)] == [13]


def test_flags_and_nested_values_are_left_out(nodes):
    retriever = ContextualBM25Retriever(nodes)
    for word in ("true", "hidden", "secret", "draft", "nested"):
        assert not any(hit.score for hit in retriever.retrieve(word))


def test_flags_are_not_words_and_deep_values_do_not_hide_other_values():
    [node] = parsed(
        "---\ndraft: false\npinned: true\nmenu: {main: {top: {left: {weight: 1}}}}\n"
        "client: Acme\n---\nText."
    )
    assert node.metadata[FRONT_MATTER] == "client: Acme"


def test_long_front_matter_is_shortened():
    [node] = parsed(f"---\nsummary: {'word ' * 1000}\n---\nText.")
    assert len(node.metadata[FRONT_MATTER]) == 1000


def test_without_metadata_there_is_none():
    [node] = parsed("---\nsummary: words\n---\nText.", include_metadata=False)
    assert node.metadata == {}


@pytest.mark.parametrize(
    "text",
    [
        "---\ntitle: Only\ndate: 2026-04-09\nclient: Acme\n---\n",
        "\ufeff+++\nclient = 'Acme'\n+++\n\n",
    ],
)
def test_a_note_with_only_front_matter_is_one_chunk(text):
    [node] = parsed(text)
    assert node.text == text[node.start_char_idx : node.end_char_idx]
    assert node.text == text.strip("\ufeff\n")
    assert (node.metadata["start_line"], node.metadata["end_line"]) == (
        1,
        node.text.count("\n") + 1,
    )
    assert node.metadata[HEADER_PATH] == ""
    assert FRONT_MATTER not in node.metadata, "its words count once"
    assert [hit.node.text for hit in ContextualBM25Retriever([node]).retrieve("acme")] == [
        node.text
    ]


def test_its_title_and_date_are_still_metadata():
    [node] = parsed("---\ntitle: Only\ndate: 2026-04-09\n---\n")
    assert (node.metadata[TITLE], node.metadata[DATE]) == ("Only", "2026-04-09")


@pytest.mark.parametrize("text", ["---\n---\n", "---\n# a comment\n---\n\n", " \n"])
def test_empty_front_matter_is_not_a_chunk(text):
    assert parsed(text) == []


def test_a_block_that_is_not_yaml_is_reported_with_its_line():
    with pytest.warns(
        ContextualWarning,
        match=r"a\.md cannot be read as YAML and is read line by line: line 3: map",
    ):
        [node] = parsed("---\ntitle: Kiosk\nnote: this: that\n---\n# Kiosk\n")
    assert (node.metadata[TITLE], node.metadata["note"]) == ("Kiosk", "this: that")


def test_a_question_causes_no_warning_about_front_matter(recwarn):
    """Templates contain ``{{date}}``.

    The parser names the file; chunks of other parsers are only read for headings.
    """
    nodes = [
        TextNode(text=f"---\ncreated: {{{{date}}}}\n---\n# {name}\n\nText of {name}.\n")
        for name in ("Ada", "Bob")
    ]
    retriever = ContextualBM25Retriever(ContextualNodePostprocessor()(nodes))
    assert (
        ContextualFusionRetriever([retriever], mode="learned").retrieve("Text of Bob")[0].node
        is not None
    )
    assert not [warning for warning in recwarn if issubclass(warning.category, ContextualWarning)]


def test_values_of_one_property_have_one_type():
    """A store such as LanceDB fixes the type of a column by the first value."""
    values = ("4", "high", "True", "01234")
    nodes = [parsed(f"---\nrating: {value}\n---\nText.")[0] for value in values]
    assert tuple(node.metadata["rating"] for node in nodes) == values


@pytest.mark.parametrize(
    ("front", "title"),
    [
        ("---\ntitle: 'Ana's day'\n---", "Ana's day"),
        ('---\ntitle: "C:\\path"\n---', "C:\\path"),
    ],
)
@pytest.mark.filterwarnings("ignore::llama_index_contextual.utils.errors.ContextualWarning")
def test_quotes_around_a_title_that_is_not_yaml_are_removed(front, title):
    assert parsed(f"{front}\n\nWater.\n")[0].metadata[TITLE] == title


def test_front_matter_does_not_repeat_what_the_document_brought():
    brought = {"path": "a.md", "title": "Mine", "tags": "my tag"}
    [node] = HeadingAwareMarkdownNodeParser()(
        [Document(text="---\ntitle: Ours\ntags: ours\n---\n\nWords.\n", metadata=brought)]
    )
    assert (node.metadata["title"], node.metadata["tags"]) == ("Mine", "my tag")
    assert not [key for key in node.metadata if key.startswith("contextual_")]


def test_the_first_fifty_properties_can_be_used_in_filters():
    front_matter = "\n".join(f"key{number}: value" for number in range(60))
    [node] = parsed(f"---\n{front_matter}\n---\n\nWords.\n")
    keys = [key for key in node.metadata if key.startswith("key")]
    assert keys == [f"key{number}" for number in range(50)]
