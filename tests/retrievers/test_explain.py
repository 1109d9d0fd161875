"""Explanations of hits as text and data, with variants of a query and with recency decay."""

from __future__ import annotations

import asyncio
import json

import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, TextNode
from results import pairs

from llama_index_contextual.postprocessors.recency import RecencyPostprocessor
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever


@pytest.fixture
def retrievers(index, embedding):
    keyword = ContextualBM25Retriever.from_defaults(index=index)
    return ContextualVectorRetriever(index, embed_model=embedding), keyword


def credit_of(hit, retriever):
    return next((credit for credit in hit.credits if credit.name == retriever), None)


def test_it_explains_the_results_of_retrieve(retrievers):
    retriever = ContextualFusionRetriever(retrievers)
    explanation = retriever.explain("the budget of the house")
    assert pairs(explanation.nodes) == pairs(retriever.retrieve("the budget of the house"))
    assert pairs(asyncio.run(retriever.aexplain("the budget of the house")).nodes) == pairs(
        explanation.nodes
    )


def test_a_hit_has_ranks_scores_and_terms_and_its_credits_add_up(retrievers):
    explanation = ContextualFusionRetriever(
        retrievers, retriever_weights=(0.5, 0.5), rrf_k=10
    ).explain("Cookie the dog")
    hit = explanation.hits[0]
    assert hit.source == "notes/dog.md"
    assert {term.term for term in hit.terms} == {"cooki", "dog"}
    assert {term.document_frequency for term in hit.terms} == {1}
    bm25 = credit_of(hit, "bm25")
    vector = credit_of(hit, "vector")
    assert bm25.credit == pytest.approx(0.5 / (10 + bm25.rank))
    assert hit.credits == (vector, bm25)
    assert sum(term.score for term in hit.terms) == pytest.approx(bm25.value)


def test_a_hit_of_only_one_retriever_says_so(retrievers):
    by_id = {hit.node_id: hit for hit in ContextualFusionRetriever(retrievers).explain("Cookie")}
    assert credit_of(by_id["cat"], "bm25") is None
    assert by_id["cat"].terms == ()
    assert credit_of(by_id["dog"], "bm25").rank == 1


def test_it_prints_a_line_for_each_hit(retrievers):
    text = str(
        ContextualFusionRetriever(retrievers, similarity_top_k=2, rrf_k=20).explain(
            "Cookie the dog"
        )
    )
    heading, first, second = text.splitlines()
    assert heading == "Cookie the dog   (reciprocal_rerank; vector 0.40, bm25 0.60)"
    assert first.startswith("1  1.000  relevance ")
    assert all(
        part in first
        for part in ("  notes/dog.md  [", "vector #", "bm25 #1 ", "; cooki (1)", "loves carrots")
    )
    assert second.startswith("2  ")


def test_an_explanation_can_be_serialized(retrievers):
    explanation = ContextualFusionRetriever(retrievers).explain("Cookie the dog")
    data = json.loads(json.dumps(explanation.to_dict()))
    assert data["retrievers"] == explanation.retrievers
    assert [hit["node_id"] for hit in data["hits"]] == [hit.node_id for hit in explanation]
    assert {credit["name"]: credit["rank"] for credit in data["hits"][0]["credits"]}["bm25"] == 1


class Variants(MockLLM):
    def complete(self, prompt, formatted=False, **kwargs):
        response = super().complete(prompt, formatted, **kwargs)
        response.text = "```\ncarrots\n\n sofa \nhouse\n```"
        return response

    async def acomplete(self, prompt, formatted=False, **kwargs):
        return self.complete(prompt, formatted, **kwargs)


def test_variants_that_an_llm_writes_reach_the_keyword_retriever_only(retrievers):
    retriever = ContextualFusionRetriever(retrievers, num_queries=3, llm=Variants())
    explanation = retriever.explain("Cookie")
    assert explanation.queries == ("Cookie", "carrots", "sofa")
    credits_ = [credit for hit in explanation for credit in hit.credits]
    assert {credit.query for credit in credits_ if credit.name == "vector"} == {0}
    assert {credit.query for credit in credits_ if credit.name == "bm25"} == {0, 1, 2}
    assert pairs(asyncio.run(retriever.aretrieve("Cookie"))) == pairs(retriever.retrieve("Cookie"))


def test_variants_find_more_nodes(retrievers):
    assert [
        hit.node.node_id for hit in ContextualFusionRetriever(retrievers[1:]).retrieve("Cookie")
    ] == ["dog"]
    retriever = ContextualFusionRetriever(retrievers[1:], num_queries=3, llm=Variants())
    assert {hit.node_id for hit in retriever.explain("Cookie")} == {"dog", "cat"}


def test_recency_acts_on_the_pool_before_the_cut(retrievers):
    recency = RecencyPostprocessor(half_life_days=0.5, weight=0.5, now="2026-04-12T00:00:00+00:00")
    plain = ContextualFusionRetriever(retrievers, similarity_top_k=1).retrieve("carrots budget")
    retriever = ContextualFusionRetriever(
        retrievers, similarity_top_k=1, node_postprocessors=[recency]
    )
    explanation = retriever.explain("carrots budget")
    (hit,) = explanation
    assert plain[0].node.node_id == "dog"
    assert hit.node_id == "budget"


def test_a_postprocessor_can_drop_hits(retrievers):
    cut = SimilarityPostprocessor(similarity_cutoff=0.9)
    assert (
        len(
            ContextualFusionRetriever(retrievers, node_postprocessors=[cut]).retrieve(
                "Cookie the dog"
            )
        )
        == 1
    )


class Reversed(BaseNodePostprocessor):
    """A postprocessor that reverses the order and removes the score of the first hit."""

    def _postprocess_nodes(self, nodes, query_bundle=None):
        last, *remaining = reversed(nodes)
        return [NodeWithScore(node=last.node), *remaining]


def test_the_order_of_a_postprocessor_is_kept_if_a_hit_has_no_score(retrievers):
    plain = ContextualFusionRetriever(retrievers).retrieve("Cookie the dog")
    reordered = ContextualFusionRetriever(retrievers, node_postprocessors=[Reversed()])
    hits = reordered.explain("Cookie the dog").hits
    assert [hit.node_id for hit in hits] == [hit.node.node_id for hit in reversed(plain)]
    assert [hit.rank for hit in hits] == list(range(1, len(plain) + 1))


def test_a_name_cannot_forge_a_line_or_reach_the_terminal(retrievers):
    path = "a.md\n1  1.000  forged\x1b[2Jb\u2028.md"
    dog = retrievers[1].nodes(["dog"])["dog"]
    update = {"id_": "evil", "metadata": {"path": path}, "text": "Cookie\x1b]8;;x"}
    keyword = ContextualBM25Retriever([dog, dog.model_copy(update=update)])
    explanation = ContextualFusionRetriever([keyword]).explain("Cookie\n2  \x1b[31m")
    text = str(explanation)
    assert len(text.splitlines()) == 1 + len(explanation) + len(explanation.remarks)
    assert "\x1b" not in text
    assert "a.md\u24241  1.000  forged\u241b[2Jb\\u2028.md" in text
    assert any("\n" in hit["source"] for hit in explanation.to_dict()["hits"]), (
        "data stays as it is"
    )


def test_variants_do_not_make_a_retriever_more_important(retrievers):
    retriever = ContextualFusionRetriever(
        retrievers, num_queries=3, llm=Variants(), mode="reciprocal_rerank", rrf_k=20
    )
    credits_ = [credit for hit in retriever.explain("Cookie") for credit in hit.credits]
    firsts = [credit.credit for credit in credits_ if credit.name == "bm25" and credit.rank == 1]
    assert sum(firsts) == pytest.approx(0.6 / 21)


def test_a_line_has_six_terms_and_the_first_sixty_characters():
    words = "amber birch cedar daisy elder fennel ginger heather"
    text = f"{words} grow in the garden of the harbour."
    fusion = ContextualFusionRetriever([ContextualBM25Retriever([TextNode(text=text)])])
    line = str(fusion.explain(words)).splitlines()[1]
    assert line.count(" (1)") == 6
    assert line.endswith(f"  {text[:59]}…")
