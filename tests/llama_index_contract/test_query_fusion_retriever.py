"""``ContextualFusionRetriever`` where ``QueryFusionRetriever`` stood."""

from __future__ import annotations

import asyncio
import warnings

import pytest
from llama_index.core import SimpleKeywordTableIndex, SummaryIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import ImageNode, IndexNode, NodeWithScore, TextNode
from llama_index.retrievers.bm25 import BM25Retriever
from notes import ids, index, names, notes
from side_by_side import Case, compare, refusal

from llama_index_contextual import ContextualBM25Retriever, ContextualFusionRetriever

LLM = MockLLM()
GARDEN = [
    TextNode(id_="a", text="An apple of the garden."),
    TextNode(id_="b", text="An apple, a pear."),
]


class Fixed(BaseRetriever):
    """Gives what it is told to, or fails."""

    def __init__(self, **scores):
        super().__init__()
        self.scores = scores
        self.asked = []

    def _retrieve(self, query_bundle):
        self.asked.append(query_bundle.query_str)
        if not self.scores:
            raise OSError("away")
        return [
            NodeWithScore(node=TextNode(id_=name, text=name), score=score)
            for name, score in self.scores.items()
        ]


class Kinds(BaseRetriever):
    def _retrieve(self, query_bundle):
        found = [
            ImageNode(id_="image", image_path="a.png"),
            IndexNode(id_="link", text="x", index_id="x", obj=TextNode(id_="target", text="all")),
        ]
        return [NodeWithScore(node=node, score=0.5) for node in found]


def fused(cls, arms, mode="reciprocal_rerank", **settings):
    settings = {
        "llm": LLM,
        "num_queries": 1,
        "mode": mode,
        "similarity_top_k": 9,
        "use_async": False,
    } | settings
    return cls(arms, **settings)


def found(cls, *arms, mode="reciprocal_rerank", **settings):
    return ids(fused(cls, arms, mode, **settings).retrieve("carrots"))


def left():
    return Fixed(a=0.9, b=0.5, c=0.1)


def right():
    return Fixed(c=0.9, b=0.85, d=0.1)


def summary():
    return SummaryIndex(notes()).as_retriever()


def table():
    return SimpleKeywordTableIndex(notes(), llm=LLM).as_retriever(retriever_mode="simple")


def variants(cls):
    """How many questions a keyword arm is asked where a model writes variants."""
    asked = []

    class Keywords(BM25Retriever):
        def _retrieve(self, query_bundle):
            asked.append(query_bundle.query_str)
            return super()._retrieve(query_bundle)

    fused(cls, [Keywords(nodes=notes(), similarity_top_k=2)], num_queries=3).retrieve("carrots")
    return "carrots" in asked, len(asked) > 1


def quietly(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return refusal(call)


CASES = [
    *(
        Case(
            f"one arm keeps its order, {mode}",
            lambda cls, mode=mode: found(cls, left(), mode=mode),
            gives=["a", "b", "c"],
        )
        for mode in ("reciprocal_rerank", "relative_score", "dist_based_score", "simple")
    ),
    *(
        Case(
            f"what both arms find is found, {mode}",
            lambda cls, mode=mode: sorted(found(cls, left(), right(), mode=mode)),
        )
        for mode in ("reciprocal_rerank", "relative_score", "dist_based_score", "simple")
    ),
    Case(
        "relative scores and weights",
        lambda cls: found(
            cls, left(), right(), mode="relative_score", retriever_weights=[0.9, 0.1]
        ),
    ),
    Case(
        "similarity_top_k cuts",
        lambda cls: found(cls, left(), similarity_top_k=2),
        gives=["a", "b"],
    ),
    Case(
        "async gives the same",
        lambda cls: ids(asyncio.run(fused(cls, [left()]).aretrieve("carrots"))),
    ),
    Case(
        "arms of any kind",
        lambda cls: sorted(found(cls, index().as_retriever(similarity_top_k=9), table())),
    ),
    Case(
        "operators",
        lambda cls: ids(fused(cls, [ContextualBM25Retriever(GARDEN)]).retrieve("apple -pear")),
        differs="fusion-operators",
        stock=["b", "a"],
        gives=["a"],
    ),
    Case("an arm without scores counts", lambda cls: sorted(found(cls, summary()))),
    Case(
        "a keyword table counts",
        lambda cls: names(fused(cls, [table()]).retrieve("budget gateway")),
    ),
    Case(
        "images are kept and an IndexNode is followed",
        lambda cls: sorted(found(cls, Kinds())),
        gives=["image", "target"],
    ),
    Case("a model writes variants of the question", variants, gives=(True, True)),
    Case(
        "its prompt can be changed",
        lambda cls: (
            fused(cls, [left()], query_gen_prompt="say {num_queries} {query}").query_gen_prompt
        ),
    ),
    Case(
        "scores that are missing, where scores are compared",
        lambda cls: refusal(lambda: len(found(cls, Fixed(a=0.9, b=None), mode="relative_score"))),
        stock="TypeError",
        gives="2",
        differs="fusion-missing-scores",
    ),
    Case(
        "what a keyword arm scores 0",
        lambda cls: sorted(found(cls, BM25Retriever(nodes=notes(), similarity_top_k=4), left())),
        stock=["a", "b", "budget", "c", "dog", "freeze", "meeting"],
        gives=["a", "b", "c", "dog", "freeze"],
        differs="fusion-zeros",
    ),
    Case(
        "an arm that fails",
        lambda cls: quietly(lambda: found(cls, Fixed(), left())),
        stock="OSError",
        gives="['a', 'b', 'c']",
        differs="fusion-failing-arm",
    ),
    Case(
        "weights by rank",
        lambda cls: [
            found(cls, left(), right(), retriever_weights=weights)[0]
            for weights in ([99, 1], [1, 99])
        ],
        stock=["c", "c"],
        gives=["a", "c"],
        differs="fusion-weights",
    ),
    Case(
        "without num_queries",
        lambda cls: cls([left()], llm=LLM).num_queries,
        stock=4,
        gives=1,
        differs="fusion-num-queries",
    ),
    Case(
        "without a mode",
        lambda cls: cls([left()], llm=LLM).mode.value,
        stock="simple",
        gives="reciprocal_rerank",
        differs="fusion-mode",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_query_fusion_retriever(case):
    compare(case, QueryFusionRetriever, ContextualFusionRetriever)
