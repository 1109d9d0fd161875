"""``ContextualFusionRetriever`` in place of ``QueryFusionRetriever``."""

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
from side_by_side import compare, comparison, refusal

from llama_index_contextual import ContextualBM25Retriever, ContextualFusionRetriever

LLM = MockLLM()
GARDEN = [
    TextNode(id_="a", text="An apple of the garden."),
    TextNode(id_="b", text="An apple, a pear."),
]


class Fixed(BaseRetriever):
    """A retriever that returns fixed hits, or fails."""

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
        nodes = [
            ImageNode(id_="image", image_path="a.png"),
            IndexNode(id_="link", text="x", index_id="x", obj=TextNode(id_="target", text="all")),
        ]
        return [NodeWithScore(node=node, score=0.5) for node in nodes]


def fused(cls, retrievers, mode="reciprocal_rerank", **settings):
    settings = {
        "llm": LLM,
        "num_queries": 1,
        "mode": mode,
        "similarity_top_k": 9,
        "use_async": False,
    } | settings
    return cls(retrievers, **settings)


def fused_ids(cls, *retrievers, mode="reciprocal_rerank", **settings):
    return ids(fused(cls, retrievers, mode, **settings).retrieve("carrots"))


def left():
    return Fixed(a=0.9, b=0.5, c=0.1)


def right():
    return Fixed(c=0.9, b=0.85, d=0.1)


def summary():
    return SummaryIndex(notes()).as_retriever()


def table():
    return SimpleKeywordTableIndex(notes(), llm=LLM).as_retriever(retriever_mode="simple")


def variants(cls):
    """Return how many queries a keyword retriever receives if a model writes variants."""
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


compared = comparison(QueryFusionRetriever, ContextualFusionRetriever)


@pytest.mark.parametrize(
    "mode", ["reciprocal_rerank", "relative_score", "dist_based_score", "simple"]
)
def test_nodes_of_both_retrievers_are_returned(mode):
    compare(
        lambda cls: sorted(fused_ids(cls, left(), right(), mode=mode)),
        QueryFusionRetriever,
        ContextualFusionRetriever,
    )


@pytest.mark.parametrize(
    "mode", ["reciprocal_rerank", "relative_score", "dist_based_score", "simple"]
)
def test_one_retriever_keeps_its_order(mode):
    compare(
        lambda cls: fused_ids(cls, left(), mode=mode),
        QueryFusionRetriever,
        ContextualFusionRetriever,
        gives=["a", "b", "c"],
    )


@compared()
def test_relative_scores_and_weights(cls):
    return fused_ids(cls, left(), right(), mode="relative_score", retriever_weights=[0.9, 0.1])


@compared(gives=["a", "b"])
def test_similarity_top_k_cuts(cls):
    return fused_ids(cls, left(), similarity_top_k=2)


@compared()
def test_async_gives_the_same(cls):
    return ids(asyncio.run(fused(cls, [left()]).aretrieve("carrots")))


@compared()
def test_retrievers_of_any_kind(cls):
    return sorted(fused_ids(cls, index().as_retriever(similarity_top_k=9), table()))


@compared(differs="fusion-operators", stock=["a", "b"], ours=["a"])
def test_operators(cls):
    phrase = '"apple of the garden" pear'
    return ids(fused(cls, [ContextualBM25Retriever(GARDEN)]).retrieve(phrase))


@compared()
def test_a_retriever_without_scores_counts(cls):
    return sorted(fused_ids(cls, summary()))


@compared()
def test_a_keyword_table_counts(cls):
    return names(fused(cls, [table()]).retrieve("budget gateway"))


@compared(gives=["image", "target"])
def test_images_are_kept_and_an_indexnode_is_followed(cls):
    return sorted(fused_ids(cls, Kinds()))


@compared(gives=(True, True))
def test_a_model_writes_variants_of_the_question(kind):
    return variants(kind)


@compared()
def test_its_prompt_can_be_changed(cls):
    return fused(cls, [left()], query_gen_prompt="say {num_queries} {query}").query_gen_prompt


@compared(stock="TypeError", ours="2", differs="fusion-missing-scores")
def test_scores_that_are_missing_where_scores_are_compared(cls):
    return refusal(lambda: len(fused_ids(cls, Fixed(a=0.9, b=None), mode="relative_score")))


@compared(
    stock=["a", "b", "budget", "c", "dog", "freeze", "meeting"],
    ours=["a", "b", "c", "dog", "freeze"],
    differs="fusion-zeros",
)
def test_nodes_that_a_keyword_retriever_scores_0(cls):
    return sorted(fused_ids(cls, BM25Retriever(nodes=notes(), similarity_top_k=4), left()))


@compared(stock="OSError", ours="['a', 'b', 'c']", differs="fusion-failing-retriever")
def test_a_retriever_that_fails(cls):
    return quietly(lambda: fused_ids(cls, Fixed(), left()))


@compared(stock=["c", "c"], ours=["a", "c"], differs="fusion-weights")
def test_weights_by_rank(cls):
    return [
        fused_ids(cls, left(), right(), retriever_weights=weights)[0]
        for weights in ([99, 1], [1, 99])
    ]


@compared(stock=4, ours=1, differs="fusion-num-queries")
def test_without_num_queries(cls):
    return cls([left()], llm=LLM).num_queries


@compared(stock="simple", ours="reciprocal_rerank", differs="fusion-mode")
def test_without_a_mode(cls):
    return cls([left()], llm=LLM).mode.value
