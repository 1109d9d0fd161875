"""LlamaIndex's chat and query engines over our retrievers, and over the stock ones."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import (
    CitationQueryEngine,
    RetrieverQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
)
from llama_index.core.question_gen.types import BaseQuestionGenerator, SubQuestion
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import QueryFusionRetriever, VectorIndexRetriever
from llama_index.core.schema import MetadataMode
from llama_index.core.selectors import EmbeddingSingleSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.retrievers.bm25 import BM25Retriever
from notes import EMBEDDING, ids, index, notes
from side_by_side import compare, comparison

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualVectorRetriever,
)

GREETING = "Hello World!"
QUESTION = "how long does the gateway wait for 60 seconds"
STOCK = {"vector": VectorIndexRetriever, "keyword": BM25Retriever, "fusion": QueryFusionRetriever}
OURS = {
    "vector": ContextualVectorRetriever,
    "keyword": ContextualBM25Retriever,
    "fusion": ContextualFusionRetriever,
}


class Splits(BaseQuestionGenerator):
    """A question generator that sends two questions to the only tool, as a model would."""

    def _get_prompts(self):
        return {}

    def _update_prompts(self, prompts):
        pass

    def generate(self, tools, query):
        return [
            SubQuestion(sub_question=question, tool_name="notes")
            for question in (QUESTION, "carrots")
        ]

    async def agenerate(self, tools, query):
        return self.generate(tools, query)


def retriever(kinds, kind, size=2):
    if kind == "vector":
        return kinds[kind](index(), similarity_top_k=size)
    if kind == "keyword":
        return kinds[kind](nodes=notes(), similarity_top_k=size)
    retrievers = [retriever(kinds, "vector", 6), retriever(kinds, "keyword", 6)]
    return kinds["fusion"](
        retrievers,
        llm=MockLLM(),
        num_queries=1,
        mode="reciprocal_rerank",
        similarity_top_k=size,
        use_async=False,
    )


def chat(kinds, kind, *messages, engine=CondensePlusContextChatEngine):
    """Return for each message whether there was an answer, and from how many nodes."""
    made = engine.from_defaults(retriever=retriever(kinds, kind), llm=MockLLM())
    answers = [made.chat(message) for message in messages]
    return [(str(response) != "Empty Response", len(response.source_nodes)) for response in answers]


def streamed(kinds, kind):
    made = CondensePlusContextChatEngine.from_defaults(
        retriever=retriever(kinds, kind), llm=MockLLM()
    )
    return "".join(made.stream_chat(GREETING).response_gen) != "Empty Response"


def astreamed(kinds, kind):
    async def run():
        made = CondensePlusContextChatEngine.from_defaults(
            retriever=retriever(kinds, kind), llm=MockLLM()
        )
        return "".join(
            [token async for token in (await made.astream_chat(GREETING)).async_response_gen()]
        )

    return asyncio.run(run()) != "Empty Response"


def without_match(kind, stock, ours):
    """Return what is expected of a greeting, which has no word in common with the nodes."""
    if kind == "keyword":
        return {"stock": stock, "ours": ours, "differs": "bm25-padding"}
    return {"gives": stock}


def answer(kinds, **settings):
    response = RetrieverQueryEngine.from_args(
        retriever(kinds, "vector"), llm=MockLLM(), **settings
    ).query(QUESTION)
    return str(response), ids(response.source_nodes)


def cited(kinds, kind):
    engine = CitationQueryEngine(
        retriever(kinds, kind), llm=MockLLM(), metadata_mode=MetadataMode.LLM
    )
    response = engine.query(QUESTION)
    return str(response).count("team: net"), [
        hit.node.get_content().split("\n")[0] for hit in response.source_nodes
    ]


compared = comparison(STOCK, OURS)


@pytest.mark.parametrize(
    "mode", [ResponseMode.COMPACT, ResponseMode.REFINE, ResponseMode.TREE_SUMMARIZE]
)
def test_a_query_engine(mode):
    compare(lambda kinds: answer(kinds, response_mode=mode), STOCK, OURS)


@pytest.mark.parametrize("kind", STOCK)
def test_a_streamed_greeting_has_an_answer(kind):
    compare(
        lambda kinds: (streamed(kinds, kind), astreamed(kinds, kind)),
        STOCK,
        OURS,
        **without_match(kind, (True, True), (False, False)),
    )


@pytest.mark.parametrize("kind", STOCK)
def test_a_context_chat_answers(kind):
    compare(
        lambda kinds: chat(kinds, kind, GREETING, engine=ContextChatEngine),
        STOCK,
        OURS,
        **without_match(kind, [(True, 2)], [(False, 0)]),
    )


@pytest.mark.parametrize("kind", STOCK)
def test_a_chat_goes_on(kind):
    compare(lambda kinds: chat(kinds, kind, QUESTION, GREETING)[1], STOCK, OURS, gives=(True, 2))


@pytest.mark.parametrize("kind", STOCK)
def test_a_chat_answers_a_greeting(kind):
    compare(
        lambda kinds: chat(kinds, kind, GREETING),
        STOCK,
        OURS,
        **without_match(kind, [(True, 2)], [(False, 0)]),
    )


@compared()
def test_a_citation_engine_shows_what_the_metadata_says(kinds):
    return cited(kinds, "vector")


@compared()
def test_a_citation_engine_over_keywords(kinds):
    return cited(kinds, "keyword")


@compared()
def test_a_citation_engine_numbers_what_a_fusion_finds(kinds):
    return cited(kinds, "fusion")[1]


@compared()
def test_a_question_in_parts(kinds):
    tool = QueryEngineTool.from_defaults(
        RetrieverQueryEngine.from_args(retriever(kinds, "vector", 1), llm=MockLLM()),
        name="notes",
        description="notes",
    )
    engine = SubQuestionQueryEngine.from_defaults(
        [tool], llm=MockLLM(), question_gen=Splits(), use_async=False, verbose=False
    )
    return ids(engine.query("both").source_nodes)[-2:]


@compared()
def test_a_router_chooses_an_engine(kinds):
    tools = [
        QueryEngineTool.from_defaults(
            RetrieverQueryEngine.from_args(retriever(kinds, kind, 1), llm=MockLLM()),
            name=kind,
            description=kind,
        )
        for kind in ("vector", "keyword")
    ]
    engine = RouterQueryEngine.from_defaults(
        tools, llm=MockLLM(), selector=EmbeddingSingleSelector.from_defaults(embed_model=EMBEDDING)
    )
    return ids(engine.query("gateway vector").source_nodes)
