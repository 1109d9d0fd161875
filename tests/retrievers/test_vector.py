"""What a vector retriever requests from its store and its embedding."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hashed_words import HashedWords
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, QueryBundle, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters, SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQueryMode
from results import ids

from llama_index_contextual.retrievers.vector import E5, MINILM, ContextualVectorRetriever
from llama_index_contextual.utils.errors import SettingError


class Recording(SimpleVectorStore):
    """A store that records the queries, and answers each by its vector alone."""

    queries: list = []  # noqa: RUF012  a pydantic field

    def query(self, query, **options):
        self.queries.append(query)
        return super().query(replace(query, mode=VectorStoreQueryMode.DEFAULT), **options)


class Counting(HashedWords):
    """An embedding that records the texts of the queries that it embeds."""

    asked: list = []  # noqa: RUF012  a pydantic field

    def _get_query_embedding(self, query):
        self.asked.append(query)
        return super()._get_query_embedding(query)


@pytest.fixture
def counting():
    return Counting()


@pytest.fixture
def retriever(store, nodes, counting):
    """Return a retriever over Chroma whose embedding counts its calls."""
    context = StorageContext.from_defaults(vector_store=store)
    return ContextualVectorRetriever(
        VectorStoreIndex(nodes, storage_context=context, embed_model=counting)
    )


# The store


def test_the_options_of_a_hybrid_query_reach_the_store(nodes, embedding):
    store = Recording()
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex(nodes, storage_context=context, embed_model=embedding)
    ContextualVectorRetriever(
        index,
        vector_store_query_mode="hybrid",
        alpha=0.0,
        sparse_top_k=7,
        hybrid_top_k=4,
    ).retrieve("the dog")
    [query] = store.queries
    assert query.mode == VectorStoreQueryMode.HYBRID
    assert (query.alpha, query.sparse_top_k, query.hybrid_top_k) == (0.0, 7, 4)
    assert (query.query_str, query.similarity_top_k) == ("the dog", 10)


@pytest.mark.parametrize(
    "setting",
    [
        {"alpha": 1.5},
        {"alpha": -0.1},
        {"sparse_top_k": 0},
        {"hybrid_top_k": 2.5},
        {"similarity_top_k": 0},
        {"embed_model": "minilm"},
    ],
    ids=str,
)
def test_a_setting_that_cannot_work_is_named(index, setting):
    with pytest.raises(SettingError, match=f"`{next(iter(setting))}` must be"):
        ContextualVectorRetriever(index, **setting)


def test_filters_and_documents_are_obeyed_together(embedding):
    nodes = [
        TextNode(
            id_=f"{document}{number}",
            text="word",
            metadata={"n": number},
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=document)},
        )
        for document in "ab"
        for number in (1, 2)
    ]
    index = VectorStoreIndex(nodes, embed_model=embedding)
    only_first = MetadataFilters(filters=[MetadataFilter(key="n", value=1)])
    retriever = ContextualVectorRetriever(index, filters=only_first, doc_ids=["a"])
    assert ids(retriever.retrieve("word")) == ["a1"]


# The embedding


def test_a_question_that_is_repeated_is_embedded_once(retriever, counting):
    assert ids(retriever.retrieve("the dog")) == ids(retriever.retrieve("the dog"))
    assert counting.asked == ["the dog"]


def test_the_vectors_of_sixteen_questions_are_remembered(retriever, counting):
    questions = [f"dog {number}" for number in range(17)]
    for question in [*questions, *questions[1:], questions[0]]:
        retriever.retrieve(question)
    assert counting.asked == [*questions, questions[0]]


def test_another_model_embeds_a_question_again(index, monkeypatch):
    models = [Counting(), Counting()]
    index._embed_model = None
    retriever = ContextualVectorRetriever(index)
    for model in models:
        monkeypatch.setattr("llama_index.core.Settings._embed_model", model)
        retriever.retrieve("the dog")
    assert [model.asked for model in models] == [["the dog"], ["the dog"]]


def test_equal_queries_are_embedded_once_and_empty_ones_never(retriever, counting):
    queries = [QueryBundle(text) for text in ("the dog", " ", "the cat", "the dog", "")]
    dog, blank, cat, repeated, empty = retriever.candidates(queries, 1)
    assert sorted(counting.asked) == ["the cat", "the dog"]
    assert dog == repeated != cat
    assert blank == empty == []
    assert retriever.retrieve(" ") == []


@pytest.mark.parametrize(
    ("name", "cosines_of"),
    [
        ("sentence-transformers/all-MiniLM-L6-v2", MINILM),
        ("intfloat/multilingual-E5-small", E5),
        ("nomic-embed-text", ""),
    ],
)
def test_cosines_are_known_by_the_name_of_their_model(index, name, cosines_of):
    model = HashedWords(model_name=name)
    assert ContextualVectorRetriever(index, embed_model=model).cosines_of == cosines_of


def test_the_scores_of_a_hybrid_query_are_no_cosines(nodes):
    model = HashedWords(model_name="all-minilm")
    context = StorageContext.from_defaults(vector_store=Recording())
    index = VectorStoreIndex(nodes, storage_context=context, embed_model=model)
    hybrid = ContextualVectorRetriever(index, vector_store_query_mode="hybrid")
    assert hybrid.cosines_of == ""
