"""``LLMRerank`` by itself and inside ``RerankWithContext``."""

from __future__ import annotations

import asyncio

from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from side_by_side import comparison, refusal

from llama_index_contextual import ContextualNodePostprocessor
from llama_index_contextual.postprocessors.rerank import RerankWithContext

ALL = "Doc: 2, Relevance: 9\nDoc: 1, Relevance: 7\nDoc: 3, Relevance: 2"


class Says(MockLLM):
    """A model that gives the same answer to each call, and records its input."""

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


def ranked(results):
    return [(hit.node.node_id, hit.score, hit.node.get_content()) for hit in results]


def stock(llm, top_n=10):
    return LLMRerank(llm=llm, top_n=top_n)


def ours(llm, top_n=10):
    return RerankWithContext(LLMRerank(llm=llm, top_n=top_n))


def prompt(make):
    llm = saying()
    make(llm).postprocess_nodes(hits(step=ContextualNodePostprocessor()), query_str="Which?")
    return [
        "Document: note b.md" in llm.shown[0],
        "Which?" in llm.shown[0],
        "Text 1." in llm.shown[0],
    ]


def engine(make):
    index = VectorStoreIndex([hit.node for hit in hits()], embed_model=MockEmbedding(4))
    retriever = index.as_retriever(similarity_top_k=3)
    return RetrieverQueryEngine.from_args(
        retriever, llm=MockLLM(), node_postprocessors=[make(saying())]
    )


compared = comparison(stock, ours)


@compared()
def test_the_model_decides_the_order(make):
    return ranked(make(saying()).postprocess_nodes(hits(), query_str="x"))


@compared()
def test_a_query_bundle_works_too(make):
    return ranked(make(saying()).postprocess_nodes(hits(), QueryBundle("x")))


@compared()
def test_async(make):
    return ranked(asyncio.run(make(saying()).apostprocess_nodes(hits(), query_str="x")))


@compared(gives=[])
def test_nothing_in_nothing_out(make):
    return make(saying()).postprocess_nodes([], query_str="x")


@compared()
def test_how_many_a_call_reads(make):
    llm = saying()
    make(llm).postprocess_nodes(hits(25), query_str="Which?")
    return len(llm.shown)


@compared(gives=True)
def test_the_input_is_not_changed(make):
    given = hits()
    before = [hit.to_dict() for hit in given]
    make(saying()).postprocess_nodes(given, query_str="x")
    return [hit.to_dict() for hit in given] == before


@compared()
def test_sources_of_an_engine(make):
    return [hit.node_id for hit in engine(make).query("x").source_nodes]


@compared()
def test_async_sources_of_an_engine(make):
    return [hit.node_id for hit in asyncio.run(engine(make).aquery("x")).source_nodes]


@compared()
def test_the_prompts_are_those_of_the_engine(make):
    return sorted(engine(make)._get_prompt_modules())


@compared()
def test_the_class_name_is_in_the_dictionary(make):
    return make(saying()).to_dict()["class_name"] == make(saying()).class_name()


@compared(stock=[False, True, True], ours=[True] * 3, differs="rerank-contexts")
def test_whether_its_prompt_shows_context_question_and_text(kind):
    return prompt(kind)


@compared(gives=[("1", 9.0, "Text 1.")])
def test_nodes_that_the_model_does_not_name(make):
    return ranked(make(saying("Doc: 2, Relevance: 9")).postprocess_nodes(hits(), query_str="x"))


@compared(stock="ValueError", ours="RetrievalError", differs="rerank-no-question")
def test_no_question(make):
    return refusal(lambda: make(saying()).postprocess_nodes(hits()))
