"""Retrievers over a store that is maintained elsewhere."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters, VectorStoreQuery
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual.retrievers.any_store import AnyStore
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.node_index import KeywordIndex
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever
from llama_index_contextual.utils.errors import SettingError

NEW = MetadataFilters(filters=[MetadataFilter(key="n", value=3, operator=">=")])


class Newest:
    """A reader that returns a new view for each question, like an index."""

    def __init__(self, view, keyword):
        self.view, self.keyword = view, keyword

    def snapshot(self):
        return nullcontext()

    def ask(self, work):
        return work(self.view())


class Vectors:
    """A custom store that is searched by vector."""

    def __init__(self, collection, keyword):
        self.collection, self.keyword = collection, keyword
        self.nodes, self.matching_ids = keyword.state.nodes, keyword.state.matching_ids

    def dense_queries(self, embeddings, top_k, filters=None):
        store = AnyStore(ChromaVectorStore(chroma_collection=self.collection))
        asked = [
            VectorStoreQuery(list(embedding), similarity_top_k=top_k, filters=filters)
            for embedding in embeddings
        ]
        return store.pools(asked, top_k)


def pairs(hits):
    return [(hit.node.node_id, hit.score, hit.node.hash) for hit in hits]


@pytest.fixture
def readers(index, nodes, collection):
    keyword = KeywordIndex()
    keyword.add(nodes)
    return Newest(lambda: Vectors(collection, keyword), keyword), Newest(
        lambda: keyword.state, keyword
    )


@pytest.mark.parametrize("filters", [None, NEW])
def test_retrievers_over_a_reader_return_the_same(readers, index, embedding, filters):
    keyword = ContextualBM25Retriever.from_defaults(index=index)
    vector = ContextualVectorRetriever(index, embed_model=embedding)
    vectors, keywords = readers
    over_readers = (
        ContextualVectorRetriever.over(vectors, embedding),
        ContextualBM25Retriever.over(keywords),
    )
    for own, over in zip((vector, keyword), over_readers, strict=True):
        expected = pairs(own.with_filters(filters).retrieve("the budget of the house"))
        assert expected
        assert pairs(over.with_filters(filters).retrieve("the budget of the house")) == expected
    whole = (
        ContextualFusionRetriever([vector, keyword])
        .with_filters(filters)
        .explain("Cookie and the budget")
    )
    over = (
        ContextualFusionRetriever(over_readers)
        .with_filters(filters)
        .explain("Cookie and the budget")
    )
    assert over.to_dict() == whole.to_dict()


def test_retrievers_see_later_changes_of_the_store(readers):
    retriever = ContextualBM25Retriever.over(readers[1])
    twin = copy.copy(retriever)
    readers[1].keyword.add([TextNode(id_="new", text="carrots")])
    for keyword_retriever in (retriever, twin):
        assert {hit.node.node_id for hit in keyword_retriever.retrieve("carrots")} == {"dog", "new"}
        assert len(keyword_retriever) == 7
        assert keyword_retriever.term_scores("carrots zebra", []).frequencies == (2, 0)


def test_a_retriever_over_a_reader_cannot_change_the_store(readers, nodes, tmp_path):
    retriever = ContextualBM25Retriever.over(readers[1])
    for change in (
        lambda: retriever.add(nodes),
        lambda: retriever.delete(["dog"]),
        lambda: retriever.persist(tmp_path),
    ):
        with pytest.raises(SettingError, match=r"only reads its store"):
            change()
