"""``LLMRerank`` by itself and inside ``RerankWithContext``."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from side_by_side import Case, compare, refusal

from llama_index_contextual import ContextualNodePostprocessor
from llama_index_contextual.postprocessors.rerank import RerankWithContext

ALL = "Doc: 2, Relevance: 9\nDoc: 1, Relevance: 7\nDoc: 3, Relevance: 2"


class Says(MockLLM):
    """Answers the same at each call, and keeps what it was shown."""

    answer: str = ALL
    shown: list = []  # noqa: RUF012  a pydantic field

    def predict(self, prompt, **fields):
        self.shown.append(prompt.format(**fields))
        return self.answer

    async def apredict(self, prompt, **fields):
        return self.predict(prompt, **fields)


def saying(answer=ALL):
    llm = Says()
    llm.answer = answer
    llm.shown.clear()
    return llm


def hits(count=3, step=None):
    made = [
        TextNode(text=f"Text {n}.", id_=str(n), metadata={"path": f"note {chr(97 + n)}.md"})
        for n in range(count)
    ]
    return [NodeWithScore(node=node, score=1.0) for node in (made if step is None else step(made))]


def ranked(found):
    return [(one.node.node_id, one.score, one.node.get_content()) for one in found]


def stock(llm, top_n=10):
    return LLMRerank(llm=llm, top_n=top_n)


def ours(llm, top_n=10):
    return RerankWithContext(LLMRerank(llm=llm, top_n=top_n), most=30)


def prompt(make):
    llm = saying()
    make(llm).postprocess_nodes(hits(step=ContextualNodePostprocessor()), query_str="Which?")
    return [
        "Document: note b.md" in llm.shown[0],
        "Which?" in llm.shown[0],
        "Text 1." in llm.shown[0],
    ]


def calls(make):
    llm = saying()
    make(llm).postprocess_nodes(hits(25), query_str="Which?")
    return len(llm.shown)


def engine(make):
    index = VectorStoreIndex([one.node for one in hits()], embed_model=MockEmbedding(4))
    retriever = index.as_retriever(similarity_top_k=3)
    return RetrieverQueryEngine.from_args(
        retriever, llm=MockLLM(), node_postprocessors=[make(saying())]
    )


def untouched(make):
    given = hits()
    before = [one.to_dict() for one in given]
    make(saying()).postprocess_nodes(given, query_str="x")
    return [one.to_dict() for one in given] == before


SHARED = [
    Case(
        "the order is the model's",
        lambda make: ranked(make(saying()).postprocess_nodes(hits(), query_str="x")),
    ),
    Case(
        "a query bundle does as well",
        lambda make: ranked(make(saying()).postprocess_nodes(hits(), QueryBundle("x"))),
    ),
    Case(
        "async",
        lambda make: ranked(asyncio.run(make(saying()).apostprocess_nodes(hits(), query_str="x"))),
    ),
    Case(
        "nothing in, nothing out",
        lambda make: make(saying()).postprocess_nodes([], query_str="x"),
        gives=[],
    ),
    Case("how many a call reads", calls),
    Case("what is given stays as it is", untouched, gives=True),
    Case(
        "sources of an engine",
        lambda make: [one.node_id for one in engine(make).query("x").source_nodes],
    ),
    Case(
        "of one in async",
        lambda make: [one.node_id for one in asyncio.run(engine(make).aquery("x")).source_nodes],
    ),
    Case("its prompts are the engine's", lambda make: sorted(engine(make)._get_prompt_modules())),
    Case(
        "its class's name is in its dictionary",
        lambda make: make(saying()).to_dict()["class_name"] == make(saying()).class_name(),
    ),
]
CASES = [
    *SHARED,
    Case(
        "whether its prompt shows context, question and text",
        prompt,
        stock=[False, True, True],
        gives=[True] * 3,
        differs="rerank-contexts",
    ),
    Case(
        "what the model does not name",
        lambda make: ranked(
            make(saying("Doc: 2, Relevance: 9")).postprocess_nodes(hits(), query_str="x")
        ),
        stock=[("1", 9.0, "Text 1.")],
        gives=[("1", 9.0, "Text 1."), ("0", 0.0, "Text 0."), ("2", 0.0, "Text 2.")],
        differs="rerank-unnamed",
    ),
    Case(
        "no question",
        lambda make: refusal(lambda: make(saying()).postprocess_nodes(hits())),
        stock="ValueError",
        gives="RetrievalError",
        differs="rerank-no-question",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_llm_rerank(case):
    compare(case, stock, ours)
