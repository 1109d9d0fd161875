"""Stores with an asynchronous query, and stores that decide on the number of hits themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar
from uuid import UUID

import pytest
from hashed_words import HashedWords
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore, VectorStoreQueryResult
from llama_index.core.vector_stores.types import VectorStoreQueryMode
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import AsyncQdrantClient

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualVectorRetriever,
)
from llama_index_contextual.utils.errors import SettingError

TEXTS = {
    "a": "The gateway waits 30 seconds.",
    "b": "Lunch is at noon.",
    "c": "The gateway restarts at night.",
}


def nodes():
    embedding = HashedWords()
    return [
        TextNode(id_=str(UUID(int=number)), text=text, embedding=embedding.get_text_embedding(text))
        for number, text in enumerate(TEXTS.values())
    ]


@pytest.fixture
async def only_async():
    store = QdrantVectorStore("notes", aclient=AsyncQdrantClient(":memory:"))
    await store.async_add(nodes())
    return VectorStoreIndex.from_vector_store(store, embed_model=HashedWords())


async def test_a_store_with_an_async_client_alone_is_awaited(only_async):
    retriever = ContextualVectorRetriever(only_async, similarity_top_k=2)
    hits = await retriever.aretrieve("when does the gateway restart?")
    assert {hit.node.get_content() for hit in hits} == {TEXTS["a"], TEXTS["c"]}
    stock = await only_async.as_retriever(similarity_top_k=2).aretrieve(
        "when does the gateway restart?"
    )
    assert {hit.node.node_id for hit in hits} == {hit.node.node_id for hit in stock}


async def test_a_fusion_awaits_it_with_the_keyword_retriever(only_async):
    fusion = ContextualFusionRetriever(
        [ContextualVectorRetriever(only_async), ContextualBM25Retriever(nodes())]
    )
    explanation = await fusion.aexplain("when does the gateway restart?")
    assert not explanation.warnings
    assert {credit.name for credit in explanation.hits[0].credits} >= {"vector", "bm25"}


class Hybrid(SimpleVectorStore):
    """A store that returns the hits of two halves, like pgvector, whatever the top k is."""

    def query(self, query, **kwargs):
        result = super().query(replace(query, mode=VectorStoreQueryMode.DEFAULT), **kwargs)
        every = list(self.data.embedding_dict)
        ids = [*result.ids, *(node_id for node_id in every if node_id not in result.ids)][
            : query.hybrid_top_k or None
        ]
        return VectorStoreQueryResult(
            ids=ids, similarities=[1.0 / (1 + place) for place in range(len(ids))]
        )


@pytest.mark.parametrize(("given", "many"), [({}, 3), ({"hybrid_top_k": 2}, 2)])
async def test_a_hybrid_query_returns_all_hits_of_the_store(given, many):
    context = StorageContext.from_defaults(vector_store=Hybrid())
    index = VectorStoreIndex(nodes(), storage_context=context, embed_model=HashedWords())
    retriever = ContextualVectorRetriever(
        index, similarity_top_k=1, vector_store_query_mode="hybrid", **given
    )
    assert len(retriever.retrieve("gateway")) == many
    assert len(await retriever.aretrieve("gateway")) == many


def test_arguments_have_the_names_of_llama_index():
    index = VectorStoreIndex(nodes(), embed_model=HashedWords())
    assert len(ContextualVectorRetriever(index=index, similarity_top_k=2).retrieve("gateway")) == 2
    assert len(ContextualVectorRetriever(index, 1).retrieve("gateway")) == 1


class Unlisted(SimpleVectorStore):
    """A store that contains text and cannot list it, with the error of Milvus."""

    stores_text: bool = True
    problems: ClassVar[list[type[Exception]]] = []

    def get_nodes(self, node_ids=None, filters=None):
        raise self.problems[-1]("Either node_ids or filters must be provided")


@pytest.mark.parametrize(
    "problem", [AssertionError, ValueError, NotImplementedError, AttributeError]
)
def test_a_store_that_cannot_list_its_nodes_is_named_with_a_hint(problem):
    Unlisted.problems.append(problem)
    index = VectorStoreIndex.from_vector_store(Unlisted(), embed_model=HashedWords())
    with pytest.raises(SettingError, match=r"Unlisted cannot list its nodes .* Pass nodes="):
        ContextualBM25Retriever.from_defaults(index=index)


class Filtered(Unlisted):
    """A store that lists its nodes only with a filter, like pgvector. An empty filter is enough."""

    def get_nodes(self, node_ids=None, filters=None):
        assert node_ids is not None or filters is not None
        return nodes()


def test_a_store_that_needs_a_filter_to_list_nodes_gets_an_empty_one():
    index = VectorStoreIndex.from_vector_store(Filtered(), embed_model=HashedWords())
    keywords = ContextualBM25Retriever.from_defaults(index=index)
    assert len(keywords) == 3
    assert keywords.retrieve("restarts")[0].node.get_content() == TEXTS["c"]
