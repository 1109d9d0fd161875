"""Filters leave out chunks and change no score: relevance depends on the question and the chunk."""

from __future__ import annotations

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualVectorRetriever,
)
from llama_index_contextual.app import ContextualIndex, LocalEmbedding
from llama_index_contextual.app.index.query import IndexView
from llama_index_contextual.app.index.vectors import VectorIndex
from llama_index_contextual.retrievers.node_index import State
from llama_index_contextual.retrievers.query import note_filters

TOPICS = (
    "gateway timeout",
    "payroll run",
    "retry of the queue",
    "colour of the logo",
    "lunch on Friday",
)


@pytest.fixture(scope="module")
def retrievers():
    nodes = [
        TextNode(
            id_=f"{topic}-{number}",
            text=f"Note {number} on the {topic}: it is set to {number * 7} in the office of "
            f"team {number % 3}.",
            metadata={"team": number % 3, "path": f"team{number % 3}/{topic}-{number}.md"},
            excluded_embed_metadata_keys=["team", "path"],
        )
        for topic in TOPICS
        for number in range(12)
    ]
    words = ContextualBM25Retriever(nodes)
    return ContextualVectorRetriever(VectorStoreIndex(nodes, embed_model=LocalEmbedding())), words


def scores(hits):
    return {hit.node.node_id: hit.score for hit in hits}


@pytest.mark.parametrize("mode", ["learned", "message"])
@pytest.mark.parametrize(
    "question", ["what is the timeout of the gateway set to?", "lunch of team 2 on Friday"]
)
def test_scores_are_the_same_with_and_without_a_filter(retrievers, mode, question):
    retriever = ContextualFusionRetriever(retrievers, mode=mode, similarity_top_k=60)
    everything = scores(retriever.retrieve(question))
    only = MetadataFilters(filters=[MetadataFilter(key="team", value=1)])
    filtered = scores(retriever.with_filters(only).retrieve(question))
    assert len(filtered) == 20
    assert filtered == pytest.approx({node_id: everything[node_id] for node_id in filtered})
    assert list(filtered) == [node_id for node_id in everything if node_id in filtered]


def test_scores_are_the_same_with_an_operator(retrievers):
    retriever = ContextualFusionRetriever(retrievers, similarity_top_k=60)
    everything, narrowed = (
        scores(retriever.retrieve(f"gateway timeout{more}")) for more in ("", " path:team2/")
    )
    assert len(narrowed) == 20
    assert narrowed == pytest.approx({node_id: everything[node_id] for node_id in narrowed})


def test_nodes_beyond_the_pool_have_scores(retrievers):
    retriever = ContextualFusionRetriever(retrievers, similarity_top_k=5, candidate_pool=5)
    only = MetadataFilters(filters=[MetadataFilter(key="path", value="team0/lunch on Friday-9.md")])
    [hit] = retriever.with_filters(only).retrieve("what is the timeout of the gateway?")
    first = retriever.retrieve("what is the timeout of the gateway?")[0]
    assert 0 < (hit.score or 0) < (first.score or 0)


# Queries of the stores


@pytest.fixture
def queries_of(monkeypatch):
    """Return a function that counts the queries of a method from now on."""

    def count(owner, name):
        real = getattr(owner, name)
        calls = []

        def counted(*arguments, **options):
            calls.append(arguments)
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)
        return calls

    return count


@pytest.mark.parametrize("filtered", [False, True])
def test_a_question_queries_each_store_of_a_folder_once(tmp_path, queries_of, filtered):
    for number in range(30):
        (tmp_path / f"{number}.md").write_text(f"# Note {number}\n\nThe gateway waits.\n", "utf-8")
    only = note_filters(path="7.md") if filtered else None
    with ContextualIndex.open(tmp_path, embed_model=LocalEmbedding()) as index:
        index.refresh()
        by_words = queries_of(IndexView, "keyword_query")
        by_vector = queries_of(IndexView, "dense_queries")
        scored = queries_of(VectorIndex, "nearest")
        hits = index.as_retriever(filters=only).retrieve("how long does the gateway wait?")
    assert len(hits) == (3 if filtered else 10)
    assert [len(calls) for calls in (by_words, by_vector, scored)] == [1, 1, 1]


@pytest.mark.parametrize("team", [None, 1])
def test_a_question_queries_a_store_of_another_package_once_if_enough_hits_match(
    retrievers, queries_of, team
):
    only = team and MetadataFilters(filters=[MetadataFilter(key="team", value=team)])
    retriever = ContextualFusionRetriever(retrievers, filters=only or None, similarity_top_k=10)
    by_vector = queries_of(SimpleVectorStore, "query")
    by_words = queries_of(State, "keyword_query")
    assert len(retriever.retrieve("what is the timeout of the gateway set to?")) == 10
    assert (len(by_vector), len(by_words)) == (1, 1)
