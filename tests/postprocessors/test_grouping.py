import doctest
import pickle

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from llama_index_contextual import ContextualBM25Retriever, ContextualFusionRetriever
from llama_index_contextual.app import LocalEmbedding
from llama_index_contextual.postprocessors import grouping
from llama_index_contextual.postprocessors.grouping import GroupingPostprocessor
from llama_index_contextual.utils.errors import SettingError


def node(node_id, document=None, text="", **metadata):
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=document)} if document else {}
    return TextNode(id_=node_id, text=text or node_id, metadata=metadata, relationships=source)


def ids(hits):
    return [hit.node.node_id for hit in hits]


POOL = [
    NodeWithScore(node=node(name, document, tags=tags), score=score)
    for name, document, tags, score in [
        ("a1", "a", ["x"], 0.9), ("a2", "a", ["x"], 0.8), ("b1", "b", ["y"], 0.7), ("loose1", None,
        None, 0.6),
        ("a3", "a", ["y"], 0.5), ("loose2", None, None, 0.4), ("b2", "b", ["x"], None),
    ]
]  # fmt: skip


def test_the_example_in_the_docstring():
    assert doctest.testmod(grouping).failed == 0


@pytest.mark.parametrize(
    ("size", "kept"),
    [
        (1, "a1 b1 loose1 loose2"),
        (2, "a1 a2 b1 loose1 loose2 b2"),
        (9, "a1 a2 b1 loose1 a3 loose2 b2"),
    ],
)
def test_the_best_nodes_of_each_document_stay_in_order_and_all_without_one(size, kept):
    before = [hit.model_copy() for hit in POOL]
    assert ids(GroupingPostprocessor(group_size=size).postprocess_nodes(POOL)) == kept.split()
    assert before == POOL


def test_nodes_can_be_grouped_by_a_field_even_if_it_has_lists():
    assert ids(GroupingPostprocessor(group_by="tags").postprocess_nodes(POOL)) == [
        "a1",
        "b1",
        "loose1",
        "loose2",
    ]


async def test_async_and_pickled_answers_are_the_same():
    grouped = GroupingPostprocessor(group_size=2)
    assert await grouped.apostprocess_nodes(POOL) == grouped.postprocess_nodes(POOL)
    unpickled = pickle.loads(pickle.dumps(grouped))  # noqa: S301  our own bytes
    assert unpickled.postprocess_nodes(POOL) == grouped.postprocess_nodes(POOL)


def test_values_of_different_types_are_different_groups():
    pool = [
        NodeWithScore(node=node("number", n=1), score=0.9),
        NodeWithScore(node=node("text", n="1"), score=0.8),
    ]
    assert ids(GroupingPostprocessor(group_by="n").postprocess_nodes(pool)) == ["number", "text"]


def test_the_callback_manager_that_is_passed_is_used():
    manager = CallbackManager([])
    assert GroupingPostprocessor(callback_manager=manager).callback_manager is manager
    assert GroupingPostprocessor().callback_manager.handlers == []


def test_a_group_size_of_0_is_rejected():
    with pytest.raises(SettingError, match="`group_size` must be"):
        GroupingPostprocessor(group_size=0)


def test_a_setting_that_does_not_exist_is_named():
    with pytest.raises(SettingError, match="does not take group_key"):
        GroupingPostprocessor(group_key="path")


def test_other_documents_move_up_if_the_whole_pool_is_passed():
    chunks = [node(f"{page}{n}", page, f"The {word} gateway, part {n}.") for page, word, n in [
        *(("alpha", "busy", n) for n in range(8)), ("beta", "quiet", 0), ("gamma", "old", 0),
    ]]  # fmt: skip
    vectors = VectorStoreIndex(chunks, embed_model=LocalEmbedding())
    retrievers = [vectors.as_retriever(similarity_top_k=10), ContextualBM25Retriever(chunks)]
    plain = ContextualFusionRetriever(retrievers, similarity_top_k=3)
    assert {hit.node.ref_doc_id for hit in plain.retrieve("busy gateway")} == {"alpha"}

    grouped = ContextualFusionRetriever(
        retrievers, similarity_top_k=3, node_postprocessors=[GroupingPostprocessor()]
    )
    hits = grouped.retrieve("busy gateway")
    assert {hit.node.ref_doc_id for hit in hits} == {"alpha", "beta", "gamma"}
    assert hits[0] == plain.retrieve("busy gateway")[0]
    assert ids(grouped.explain("busy gateway").nodes) == ids(hits)
