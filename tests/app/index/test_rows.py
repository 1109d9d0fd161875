"""Nodes are written as rows and read back as they were."""

import json
import math

import pytest
from llama_index.core.schema import (
    Document,
    IndexNode,
    MediaResource,
    Node,
    NodeRelationship,
    RelatedNodeInfo,
    TextNode,
)

from llama_index_contextual.app.index import rows
from llama_index_contextual.app.index.rows import DocumentRow, fields_of, row_of, to_node
from llama_index_contextual.utils.errors import DocumentError

NODE = TextNode(
    text="It rained.",
    id_="a.md#1",
    metadata={"path": "a.md", "tags": ["x"]},
    start_char_idx=3,
    excluded_embed_metadata_keys=["tags"],
    relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="a.md")},
)


def test_a_node_is_read_back_as_it_was():
    row = row_of(NODE, "embedded text")
    assert to_node(row).to_dict() == NODE.to_dict()
    assert (row.row, row.node_id, row.ref_doc_id, row.text) == (0, "a.md#1", "a.md", "It rained.")


@pytest.mark.parametrize("kind", [Node, Document])
def test_a_node_with_resources_is_read_back_as_it_was(kind):
    node = kind(id_="1", text_resource=MediaResource(text="It rained."))
    row = row_of(node, "")
    assert row.text == "It rained."
    read = to_node(row)
    assert type(read) is kind
    assert read.to_dict() == node.to_dict()


def test_a_node_without_a_document_stays_without_one():
    row = row_of(TextNode(text="It rained."), "")
    assert row.ref_doc_id is None
    assert to_node(row).ref_doc_id is None


def test_text_and_vector_are_not_kept_twice():
    node = NODE.model_copy(update={"embedding": [1.0, 2.0]})
    fields = json.dumps(fields_of(row_of(node, "")))
    assert "It rained" not in fields
    assert "embedding" not in fields
    assert to_node(row_of(node, "")).embedding is None


def test_the_source_of_a_context_is_a_column():
    node = TextNode(text="It rained.", metadata={"context_source": "headings"})
    assert row_of(node, "").context_source == "headings"
    assert row_of(NODE, "").context_source == ""


def test_equal_embedded_texts_have_equal_hashes():
    texts = ("The harbour.", "The harbour.", "The harbor.", "The harbour.\ud800")
    hashes = [row_of(NODE, text).embed_hash for text in texts]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3
    assert {len(value) for value in hashes} == {32}


def test_numbers_that_json_lacks_become_text():
    node = TextNode(text="It rained.", metadata={"low": -math.inf, "none": math.nan})
    assert to_node(row_of(node, "")).metadata == {"low": "-Infinity", "none": "NaN"}


def test_characters_that_databases_reject_are_replaced():
    row = row_of(TextNode(text="It\0rained.", id_="a\ud800"), "")
    assert (row.text, row.node_id) == ("It\ufffdrained.", "a\ufffd")


def test_the_object_of_an_index_node_is_not_written():
    node = IndexNode(text="See there.", index_id="other", obj=TextNode(text="It rained."))
    read = to_node(row_of(node, ""))
    assert isinstance(read, IndexNode)
    assert (read.text, read.index_id, read.obj) == ("See there.", "other", None)


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (1, False)])
def test_the_other_fields_of_a_node_are_bounded(monkeypatch, spare, fits):
    size = len(json.dumps(fields_of(row_of(NODE, ""))))
    monkeypatch.setattr(rows, "MAX_FIELDS_BYTES", size - spare)
    if fits:
        assert fields_of(row_of(NODE, ""))
    else:
        with pytest.raises(DocumentError, match=r"'a\.md#1' has more than .*Remove large fields"):
            row_of(NODE, "")


def test_the_bound_of_the_other_fields_is_20_megabytes():
    node = NODE.model_copy(update={"mimetype": "x" * 20_000_000})
    with pytest.raises(DocumentError, match="more than 20,000,000 bytes"):
        row_of(node, "")


def test_a_small_row_cannot_become_gigabytes(monkeypatch):
    row = row_of(NODE, "")
    monkeypatch.setattr(rows, "MAX_FIELDS_BYTES", 50)
    with pytest.raises(ValueError, match="exceed 50 bytes"):
        fields_of(row)


def test_a_document_counts_as_indexed_once_its_nodes_were_made():
    assert not DocumentRow("a.md", sha256="1", failed="it is binary").is_indexed
    assert DocumentRow("a.md", made_with="settings").is_indexed
