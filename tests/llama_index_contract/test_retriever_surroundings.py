"""What LlamaIndex connects to a retriever: events, callbacks, tools, agents, recursion, evaluation.

Stock and ours are compared.
"""

from __future__ import annotations

import asyncio

from llama_index.core import VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.evaluation import RetrieverEvaluator
from llama_index.core.indices.query.query_transform.base import IdentityQueryTransform
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.llms import MockLLM
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.retrievers import (
    QueryFusionRetriever,
    RecursiveRetriever,
    RouterRetriever,
    TransformRetriever,
    VectorIndexRetriever,
)
from llama_index.core.schema import IndexNode, TextNode
from llama_index.core.selectors import EmbeddingSingleSelector
from llama_index.core.tools import RetrieverTool
from llama_index.retrievers.bm25 import BM25Retriever
from notes import EMBEDDING, ids, index, notes
from side_by_side import comparison

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualVectorRetriever,
)

STOCK = (VectorIndexRetriever, BM25Retriever, QueryFusionRetriever)
OURS = (ContextualVectorRetriever, ContextualBM25Retriever, ContextualFusionRetriever)
QUESTION = "cat sofa"


def vector(kinds, **settings):
    return kinds[0](index(), similarity_top_k=2, **settings)


def keyword(kinds):
    return kinds[1](nodes=notes(), similarity_top_k=1)


def fusion(kinds, **settings):
    retrievers = [vector(kinds), keyword(kinds)]
    settings = {
        "llm": MockLLM(),
        "num_queries": 1,
        "similarity_top_k": 1,
        "use_async": False,
    } | settings
    return kinds[2](retrievers, **settings)


def events(retriever):
    """Return the events of one question, as a handler of LlamaIndex's instrumentation sees them."""

    class Heard(BaseEventHandler):
        def handle(self, event, **kwargs):
            if isinstance(event, RetrievalStartEvent | RetrievalEndEvent):
                heard.append((type(event).__name__, len(getattr(event, "nodes", []))))

    heard: list[tuple[str, int]] = []
    root, handler = get_dispatcher(), Heard()
    root.add_event_handler(handler)
    try:
        retriever.retrieve(QUESTION)
    finally:
        root.event_handlers.remove(handler)
    return [heard[0], heard[-1]]


def called_back(make):
    debug = LlamaDebugHandler(print_trace_on_end=False)
    make(CallbackManager([debug])).retrieve(QUESTION)
    return [start.event_type for start, _ in debug.get_event_pairs(CBEventType.RETRIEVE)][:1]


def by_tool(retriever):
    tool = RetrieverTool.from_defaults(
        retriever, node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.0)]
    )
    output = tool.call(QUESTION)
    return ids(output.raw_output), asyncio.run(tool.acall(QUESTION)).content == output.content


def by_agent(retriever):
    """Return whether an agent takes the retriever as a tool and answers."""
    tool = RetrieverTool.from_defaults(retriever, name="notes", description="the notes")

    async def run():
        agent = FunctionAgent(tools=[tool], llm=MockFunctionCallingLLM())
        return str(await agent.run("hello"))

    return "hello" in asyncio.run(run()), [tool.metadata.name]


def recursive(kinds):
    chapter = VectorStoreIndex(
        [TextNode(id_="inside", text="the whole chapter")], embed_model=EMBEDDING
    )
    outer = VectorStoreIndex([IndexNode(text="chapter", index_id="inner")], embed_model=EMBEDDING)
    retrievers = {
        "root": kinds[0](outer, similarity_top_k=1),
        "inner": kinds[0](chapter, similarity_top_k=1),
    }
    return ids(RecursiveRetriever("root", retriever_dict=retrievers).retrieve("chapter"))


def transformed(retriever):
    return TransformRetriever(retriever, IdentityQueryTransform())


def evaluated(retriever):
    judge = RetrieverEvaluator.from_metric_names(["hit_rate", "mrr"], retriever=retriever)
    return judge.evaluate(QUESTION, ["cat"]).metric_vals_dict


compared = comparison(STOCK, OURS)


@compared()
def test_events_begin_and_end_a_question_vectors(kinds):
    return events(vector(kinds))


@compared()
def test_events_begin_and_end_a_question_keywords(kinds):
    return events(keyword(kinds))


@compared()
def test_events_begin_and_end_a_question_fusion(kinds):
    return events(fusion(kinds))


@compared()
def test_callbacks_receive_a_question_vectors(kinds):
    return called_back(lambda m: vector(kinds, callback_manager=m))


@compared()
def test_callbacks_receive_a_question_fusion(kinds):
    return called_back(lambda m: fusion(kinds, callback_manager=m))


@compared()
def test_a_tool_over_vectors(kinds):
    return by_tool(vector(kinds))


@compared()
def test_a_tool_over_keywords(kinds):
    return by_tool(keyword(kinds))


@compared()
def test_a_tool_over_a_fusion(kinds):
    return by_tool(fusion(kinds))


@compared()
def test_an_agent_takes_it_as_a_tool(kinds):
    return by_agent(fusion(kinds))


@compared(gives=["inside"])
def test_a_recursive_retriever_can_use_it(kind):
    return recursive(kind)


@compared()
def test_a_router_chooses_it(kinds):
    tools = [
        RetrieverTool.from_defaults(vector(kinds), description="vector"),
        RetrieverTool.from_defaults(keyword(kinds), description="keyword"),
    ]
    selector = EmbeddingSingleSelector.from_defaults(embed_model=EMBEDDING)
    return ids(
        RouterRetriever(selector=selector, retriever_tools=tools, llm=MockLLM()).retrieve(
            "keyword sofa"
        )
    )


@compared()
def test_a_transformed_question(kinds):
    return ids(TransformRetriever(vector(kinds), IdentityQueryTransform()).retrieve(QUESTION))


@compared()
def test_an_evaluator_can_use_it(kinds):
    return [evaluated(make_retriever(kinds)) for make_retriever in (vector, keyword, fusion)]


@compared()
def test_prompts_of_a_fusion_are_listed(kinds):
    return sorted(fusion(kinds).get_prompts())
