"""A filter leaves chunks out and changes no score: a relevance is of the question and the chunk."""

from __future__ import annotations

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualVectorRetriever,
)
from llama_index_contextual.app import LocalEmbedding

TOPICS = (
    "gateway timeout",
    "payroll run",
    "retry of the queue",
    "colour of the logo",
    "lunch on Friday",
)


@pytest.fixture(scope="module")
def arms():
    nodes = [
        TextNode(
            id_=f"{topic}-{number}",
            text=f"Note {number} on the {topic}: it is set to {number * 7} in the office of team {number % 3}.",
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
def test_scores_are_the_same_with_and_without_a_filter(arms, mode, question):
    retriever = ContextualFusionRetriever(arms, mode=mode, similarity_top_k=60)
    everything = scores(retriever.retrieve(question))
    only = MetadataFilters(filters=[MetadataFilter(key="team", value=1)])
    filtered = scores(retriever.with_filters(only).retrieve(question))
    assert len(filtered) == 20
    assert filtered == pytest.approx({node_id: everything[node_id] for node_id in filtered})
    assert list(filtered) == [node_id for node_id in everything if node_id in filtered]


def test_scores_are_the_same_with_an_operator(arms):
    retriever = ContextualFusionRetriever(arms, similarity_top_k=60)
    everything, narrowed = (
        scores(retriever.retrieve(f"gateway timeout{more}")) for more in ("", " path:team2/")
    )
    assert len(narrowed) == 20
    assert narrowed == pytest.approx({node_id: everything[node_id] for node_id in narrowed})


def test_what_is_beyond_the_pool_has_a_score_too(arms):
    retriever = ContextualFusionRetriever(arms, similarity_top_k=5, candidate_pool=5)
    only = MetadataFilters(filters=[MetadataFilter(key="path", value="team0/lunch on Friday-9.md")])
    [hit] = retriever.with_filters(only).retrieve("what is the timeout of the gateway?")
    first = retriever.retrieve("what is the timeout of the gateway?")[0]
    assert 0 < (hit.score or 0) < (first.score or 0)
