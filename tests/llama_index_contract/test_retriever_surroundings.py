"""What surrounds a retriever: events, callbacks, tools, agents, recursion, evaluation; stock and ours side by side."""

from __future__ import annotations

import asyncio

import pytest
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
from side_by_side import Case, compare

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
    arms = [vector(kinds), keyword(kinds)]
    settings = {
        "llm": MockLLM(),
        "num_queries": 1,
        "similarity_top_k": 1,
        "use_async": False,
    } | settings
    return kinds[2](arms, **settings)


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
    found = tool.call(QUESTION)
    return ids(found.raw_output), asyncio.run(tool.acall(QUESTION)).content == found.content


def by_agent(retriever):
    """Return whether an agent takes the retriever as a tool and answers."""
    tool = RetrieverTool.from_defaults(retriever, name="notes", description="the notes")

    async def run():
        agent = FunctionAgent(tools=[tool], llm=MockFunctionCallingLLM())
        return str(await agent.run("hello"))

    return "hello" in asyncio.run(run()), [one.metadata.name for one in [tool]]


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


def routed(kinds):
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


def transformed(retriever):
    return TransformRetriever(retriever, IdentityQueryTransform())


def evaluated(retriever):
    judge = RetrieverEvaluator.from_metric_names(["hit_rate", "mrr"], retriever=retriever)
    return judge.evaluate(QUESTION, ["cat"]).metric_vals_dict


CASES = [
    Case("events begin and end a question, vectors", lambda kinds: events(vector(kinds))),
    Case("events begin and end a question, keywords", lambda kinds: events(keyword(kinds))),
    Case("events begin and end a question, fusion", lambda kinds: events(fusion(kinds))),
    Case(
        "callbacks hear a question, vectors",
        lambda kinds: called_back(lambda m: vector(kinds, callback_manager=m)),
    ),
    Case(
        "callbacks hear a question, fusion",
        lambda kinds: called_back(lambda m: fusion(kinds, callback_manager=m)),
    ),
    Case("a tool over vectors", lambda kinds: by_tool(vector(kinds))),
    Case("a tool over keywords", lambda kinds: by_tool(keyword(kinds))),
    Case("a tool over a fusion", lambda kinds: by_tool(fusion(kinds))),
    Case("an agent takes it as a tool", lambda kinds: by_agent(fusion(kinds))),
    Case("a recursive retriever goes through it", recursive, gives=["inside"]),
    Case("a router chooses it", routed),
    Case(
        "a transformed question",
        lambda kinds: ids(
            TransformRetriever(vector(kinds), IdentityQueryTransform()).retrieve(QUESTION)
        ),
    ),
    Case(
        "an evaluator asks it",
        lambda kinds: [evaluated(one(kinds)) for one in (vector, keyword, fusion)],
    ),
    Case("prompts of a fusion are listed", lambda kinds: sorted(fusion(kinds).get_prompts())),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_retriever_surroundings(case):
    compare(case, STOCK, OURS)
