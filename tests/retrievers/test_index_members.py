"""A keyword retriever over an index follows the index."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest
from llama_index.core import (
    Document,
    DocumentSummaryIndex,
    SimpleKeywordTableIndex,
    SummaryIndex,
    VectorStoreIndex,
)
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode

from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.index_members import IndexMembers
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever
from llama_index_contextual.utils.errors import ContextualWarning, SettingError

DOCUMENTS = [
    Document(text=f"The kangaroo number {number} jumps.", id_=f"d{number}") for number in range(4)
]


def documents_of(results):
    return sorted(result.node.ref_doc_id for result in results)


@pytest.fixture(params=["simple", "chroma", "summary"])
def any_index(request, embedding):
    if request.param == "chroma":
        index = VectorStoreIndex.from_vector_store(
            request.getfixturevalue("store"), embed_model=embedding
        )
        for document in DOCUMENTS:
            index.insert(document)
        return index
    if request.param == "summary":
        return SummaryIndex.from_documents(DOCUMENTS)
    return VectorStoreIndex.from_documents(DOCUMENTS, embed_model=embedding)


def test_a_deleted_document_is_not_returned(any_index):
    retriever = ContextualBM25Retriever.from_defaults(index=any_index, similarity_top_k=2)
    fusion = ContextualFusionRetriever([retriever], similarity_top_k=4)
    assert documents_of(fusion.retrieve("kangaroo")) == ["d0", "d1", "d2", "d3"]
    any_index.delete_ref_doc("d1")
    results = retriever.retrieve("number 1 kangaroo")
    assert len(results) == 2, "another node takes the place"
    assert "d1" not in documents_of(results)
    any_index.delete_ref_doc("d2", delete_from_docstore=True)
    assert documents_of(fusion.retrieve("kangaroo")) == ["d0", "d3"]
    assert documents_of(asyncio.run(retriever.aretrieve("kangaroo"))) == ["d0", "d3"]
    assert documents_of(copy.copy(retriever).retrieve("kangaroo")) == ["d0", "d3"]


@pytest.mark.parametrize("kind", ["vector", "list", "keywords", "document summaries"])
def test_all_documents_of_an_index_can_be_deleted(kind, embedding):
    index = {
        "vector": lambda: VectorStoreIndex.from_documents(DOCUMENTS, embed_model=embedding),
        "list": lambda: SummaryIndex.from_documents(DOCUMENTS),
        "keywords": lambda: SimpleKeywordTableIndex.from_documents(DOCUMENTS, llm=MockLLM()),
        "document summaries": lambda: DocumentSummaryIndex.from_documents(
            DOCUMENTS, llm=MockLLM(), embed_model=embedding
        ),
    }[kind]()
    retriever = ContextualBM25Retriever.from_defaults(index=index)
    assert documents_of(retriever.retrieve("kangaroo")) == ["d0", "d1", "d2", "d3"]
    for number in range(4):
        index.delete_ref_doc(f"d{number}")
        left = [f"d{other}" for other in range(number + 1, 4)]
        assert documents_of(retriever.retrieve("kangaroo")) == left
    assert not ContextualBM25Retriever.from_defaults(index=index).retrieve("kangaroo")


def test_an_index_can_be_empty_at_first(embedding):
    index = VectorStoreIndex([], embed_model=embedding)
    retriever = ContextualBM25Retriever.from_defaults(index=index)
    assert retriever.retrieve("kangaroo") == []
    node = TextNode(text="The kangaroo jumps.", id_="later")
    index.insert_nodes([node])
    retriever.add([node])
    assert [result.node.node_id for result in retriever.retrieve("kangaroo")] == ["later"]


def test_nodes_that_were_deleted_before_are_not_indexed(any_index):
    any_index.delete_ref_doc("d1")
    retriever = ContextualBM25Retriever.from_defaults(index=any_index)
    assert len(retriever) == 3


def test_a_copy_in_another_process_does_not_follow_the_index(embedding):
    index = VectorStoreIndex.from_documents(DOCUMENTS, embed_model=embedding)
    retriever = ContextualBM25Retriever.from_defaults(index=index)
    sent = pickle.loads(pickle.dumps(retriever))  # noqa: S301
    assert documents_of(sent.retrieve("kangaroo")) == ["d0", "d1", "d2", "d3"]


def test_anything_but_an_index_is_rejected():
    with pytest.raises(SettingError, match="must be a LlamaIndex index"):
        IndexMembers("nothing")


@pytest.mark.parametrize("kind", ["vector", "list", "document summaries"])
def test_inserted_documents_are_found(kind, embedding):
    index = {
        "vector": lambda: VectorStoreIndex.from_documents(DOCUMENTS, embed_model=embedding),
        "list": lambda: SummaryIndex.from_documents(DOCUMENTS),
        "document summaries": lambda: DocumentSummaryIndex.from_documents(
            DOCUMENTS, llm=MockLLM(), embed_model=embedding
        ),
    }[kind]()
    retriever = ContextualBM25Retriever.from_defaults(index=index)
    fusion = ContextualFusionRetriever([retriever])
    index.insert(Document(text="A wombat digs.", id_="new"))
    assert documents_of(retriever.retrieve("wombat")) == ["new"]
    index.update_ref_doc(Document(text="A quokka smiles.", id_="new"))
    assert documents_of(fusion.retrieve("quokka")) == ["new"]
    assert documents_of(fusion.retrieve("wombat")) == []
    index.delete_ref_doc("new")
    index.insert(Document(text="A quokka naps.", id_="newer"))
    assert documents_of(asyncio.run(fusion.aretrieve("quokka"))) == ["newer"]


def test_a_copy_and_the_original_both_find_inserted_documents(embedding):
    index = VectorStoreIndex.from_documents(DOCUMENTS, embed_model=embedding)
    retriever = ContextualBM25Retriever.from_defaults(index=index)
    copies = [copy.deepcopy(retriever), copy.copy(retriever), retriever]
    index.insert(Document(text="A wombat digs.", id_="new"))
    assert [documents_of(member.retrieve("wombat")) for member in copies] == [["new"]] * 3


def test_a_node_that_is_not_yet_in_the_document_store_is_found_later(embedding):
    index = VectorStoreIndex.from_documents(DOCUMENTS, embed_model=embedding)
    retriever = ContextualBM25Retriever.from_defaults(index=index)
    node = TextNode(text="A wombat digs.", id_="new")
    index.index_struct.add_node(node)
    assert retriever.retrieve("wombat") == []
    index.docstore.add_documents([node])
    assert [result.node.node_id for result in retriever.retrieve("wombat")] == ["new"]


def test_a_fusion_warns_if_the_keyword_retriever_lacks_new_nodes(store, embedding):
    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    for document in DOCUMENTS:
        index.insert(document)
    keywords = ContextualBM25Retriever.from_defaults(index=index)
    fusion = ContextualFusionRetriever([ContextualVectorRetriever(index), keywords])
    fusion.retrieve("kangaroo")
    index.insert(Document(text="A wombat digs.", id_="new"))
    with pytest.warns(ContextualWarning, match=r"lacks nodes .* ContextualBM25Retriever.add"):
        explanation = fusion.explain("who digs?")
    assert "lacks nodes" in str(explanation)
    other = ContextualFusionRetriever(
        [ContextualVectorRetriever(index), ContextualBM25Retriever([TextNode(text="A quokka.")])]
    )
    assert other.retrieve("who digs?"), "other documents are no reason for a warning"
