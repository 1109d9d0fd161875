"""The document for a chunk's context: a given one, or one that matches the offsets."""

from __future__ import annotations

import pytest
from llama_index.core import Document
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.context.documents import group_by_document
from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser

NOTE = "---\ntitle: The harbour log of the town of Bergen, in its second and larger edition\n---\n\n# Log\n\nIt rained.\n"  # noqa: E501
METHOD = '    def run(self):\n        return "the same"'
TWINS = f"class A:\n{METHOD}\n\n\nclass B:\n{METHOD}\n"


def slices(text, *spans, path="code.py"):
    """Return chunks of a document with their offsets."""
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=path)}
    return [
        TextNode(
            text=text[a:b],
            start_char_idx=a,
            end_char_idx=b,
            metadata={"path": path},
            relationships=source,
        )
        for a, b in spans
    ]


def twins():
    first = TWINS.index(METHOD)
    second = TWINS.index(METHOD, first + 1)
    return slices(TWINS, (first, first + len(METHOD)), (second, second + len(METHOD)))


@pytest.mark.parametrize(
    "documents", [None, [Document(text=TWINS, id_="code.py")]], ids=["nodes alone", "document"]
)
def test_equal_chunks_are_placed_by_their_offsets(documents):
    nodes = twins()
    ContextualNodePostprocessor("pattern")(nodes, documents)
    contexts = [node.metadata["context"] for node in nodes]
    if documents:
        assert ["class A" in contexts[0], "class B" in contexts[1]] == [True, True]
    [chunks] = group_by_document(nodes, documents=documents)
    assert [chunks.document.text[n.start_char_idx : n.end_char_idx] for n in nodes] == [
        METHOD,
        METHOD,
    ]


def test_offsets_are_valid_if_only_nodes_are_known():
    text = "x" * 300 + "one two three" + "y" * 5000 + "four five six"
    nodes = slices(text, (300, 313), (5313, 5326))
    [chunks] = group_by_document(nodes)
    assert [chunks.document.text[n.start_char_idx : n.end_char_idx] for n in nodes] == [
        "one two three",
        "four five six",
    ]


def test_chunks_are_sorted_by_their_offsets():
    first, second = slices("One. Two.", (0, 5), (5, 9))
    [chunks] = group_by_document([second, first])
    assert [node.text for node in chunks.nodes] == ["One. ", "Two."]
    assert chunks.document.text == "One. Two."


def test_overlapping_chunks_are_joined_without_repeating_the_overlap():
    nodes = slices("One. Two. Three.", (0, 9), (5, 16))
    [chunks] = group_by_document(nodes)
    assert chunks.document.text == "One. Two. Three."


def test_facts_come_from_the_document_and_the_first_chunk():
    [node] = slices("One.", (0, 4), path="a.md")
    node.metadata.update(title="Of the chunk", date="2026-01-28", author="Bo")
    facts = {"title": "Of the document", "tags": "harbour", "author": "Ana"}
    [chunks] = group_by_document(
        [node], documents=[Document(text="One.", id_="a.md", metadata=facts)]
    )
    assert chunks.document.metadata == {
        "path": "a.md",
        "title": "Of the chunk",
        "tags": "harbour",
        "author": "Ana",
    }


def test_of_two_documents_with_one_path_the_first_is_used():
    node = TextNode(text="Two.", metadata={"path": "a.md"})
    documents = [
        Document(text=f"{word}. Two.", metadata={"path": "a.md"}) for word in ("One", "No")
    ]
    [chunks] = group_by_document([node], documents=documents)
    assert chunks.document.text == "One. Two."


def test_an_id_counts_before_a_path():
    [node] = slices("Two.", (0, 4), path="a.md")
    by_path = Document(text="One. Two.", metadata={"path": "a.md"})
    by_id = Document(text="Zero. Two.", id_="a.md")
    [chunks] = group_by_document([node], documents=[by_path, by_id])
    assert chunks.document.text == "Zero. Two."


def test_a_wrong_offset_costs_no_memory():
    nodes = slices("one two", (0, 3), (4, 7))
    nodes[1].start_char_idx, nodes[1].end_char_idx = 10**12, 10**12 + 3
    [chunks] = group_by_document(nodes)
    assert chunks.document.text == "one\n\ntwo"


def test_a_model_sees_the_document_and_not_its_joined_chunks(step, fake_model):
    document = Document(text=NOTE, metadata={"path": "log.md"})
    nodes = HeadingAwareMarkdownNodeParser()([document])
    step()(nodes, [document])
    assert NOTE.strip() in fake_model.requests[0].prompt


def test_padding_is_not_paid_for(step, fake_model):
    nodes = slices(
        "x" * 2000 + "A ferry." + "y" * 2000 + "A harbour.", (2000, 2008), (4008, 4018), path="a.md"
    )
    step()(nodes)
    assert "\n\n\n\n" not in fake_model.requests[0].prompt


async def test_documents_can_be_passed_to_the_async_call_too(step, fake_model):
    document = Document(text=NOTE, metadata={"path": "log.md"})
    nodes = HeadingAwareMarkdownNodeParser()([document])
    await step().acall(nodes, [document])
    assert "second and larger edition" in fake_model.requests[0].prompt


def test_an_estimate_finds_the_stored_contexts_of_a_run(step):
    document = Document(text=NOTE, metadata={"path": "log.md"})
    postprocessor = step()
    nodes = HeadingAwareMarkdownNodeParser()([document])
    postprocessor(nodes, [document])
    reparsed_nodes = HeadingAwareMarkdownNodeParser()([document])
    assert postprocessor.estimate(reparsed_nodes, [document]).from_cache == len(nodes)
