"""Rerankers that read the context."""

from __future__ import annotations

import pytest
from llama_index.core.llms import ChatMessage, ChatResponse, MockLLM
from llama_index.core.postprocessor import LLMRerank, StructuredLLMRerank
from llama_index.core.postprocessor.rankGPT_rerank import RankGPTRerank
from llama_index.core.postprocessor.structured_llm_rerank import (
    DocumentRelevanceList,
    DocumentWithRelevance,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.settings.models import NamedModel
from llama_index_contextual.context.views import set_views, write_context
from llama_index_contextual.postprocessors.rerank import RerankWithContext
from llama_index_contextual.utils.errors import RetrievalError, SettingError

QUESTION = "What is the default timeout of the gateway?"


def chunk(name, context):
    node = TextNode(id_=name, text="The default value is 60.")
    write_context(node, context, "headings", "1")
    set_views(node)
    return NodeWithScore(node=node, score=1.0)


@pytest.fixture
def hits():
    """Return three chunks with the same text, which only differ in their contexts."""
    return [
        chunk("archive", "Archive"),
        chunk("scheduler", "Scheduler"),
        chunk("gateway", "Gateway > Timeout"),
    ]


def names(hits):
    return [hit.node.node_id for hit in hits]


# A language model


class Ranks(MockLLM):
    """A model that ranks the last passage first and records its input."""

    said: list = []  # noqa: RUF012  a pydantic field

    def chat(self, messages, **_):
        self.said.append("\n".join(str(message.content) for message in messages))
        return ChatResponse(message=ChatMessage(role="assistant", content="[3] > [1] > [2]"))

    def predict(self, prompt, **kwargs):
        self.said.append(kwargs["context_str"])
        return "Doc: 3, Relevance: 9\nDoc: 1, Relevance: 5"

    def structured_predict(self, output_cls, prompt, **kwargs):
        self.said.append(kwargs["context_str"])
        chosen = [
            DocumentWithRelevance(document_number=3, relevance=9),
            DocumentWithRelevance(document_number=1, relevance=5),
        ]
        return DocumentRelevanceList(documents=chosen)


STOCK = {
    "RankGPTRerank": lambda llm: RankGPTRerank(llm=llm, top_n=2),
    "LLMRerank": lambda llm: LLMRerank(llm=llm, top_n=2),
    "StructuredLLMRerank": lambda llm: StructuredLLMRerank(llm=llm, top_n=2),
}


@pytest.mark.parametrize("make", STOCK.values(), ids=STOCK)
async def test_a_stock_reranker_that_hides_contexts_reads_them_when_wrapped(make, hits):
    llm = Ranks()
    llm.said.clear()
    assert names(make(llm).postprocess_nodes(hits, query_str=QUESTION)) == ["gateway", "archive"]
    assert "Gateway > Timeout" not in llm.said.pop(), (
        "LlamaIndex has changed: it shows contexts now"
    )
    reranked = RerankWithContext(make(llm)).postprocess_nodes(hits, query_str=QUESTION)
    assert "context: Gateway > Timeout The default value is 60." in " ".join(llm.said.pop().split())
    assert [hit.node for hit in reranked] == [hits[2].node, hits[0].node], "the hits themselves"
    assert [hit.node.get_content() for hit in reranked] == ["The default value is 60."] * 2
    assert [hit.score for hit in reranked] == [
        hit.score for hit in make(llm).postprocess_nodes(hits, query_str=QUESTION)
    ]
    assert (
        names(await RerankWithContext(make(MockLLM())).apostprocess_nodes([], query_str=QUESTION))
        == []
    )


class Reads(BaseNodePostprocessor):
    """A reranker that records the embedded view, the LLM view and the text of the hits."""

    views: list = []  # noqa: RUF012  a pydantic field

    def _postprocess_nodes(self, nodes, query_bundle=None):
        modes = (MetadataMode.EMBED, MetadataMode.LLM, MetadataMode.NONE)
        self.views += [hit.node.get_content(mode) for hit in nodes for mode in modes]
        return nodes


def test_every_view_of_a_reranker_is_the_embedded_one(hits):
    reranker = Reads()
    [hit] = RerankWithContext(reranker).postprocess_nodes(hits[2:], query_str=QUESTION)
    assert hit.node is hits[2].node
    embedded = hit.node.get_content(MetadataMode.EMBED)
    assert reranker.views == [embedded] * 3


class Marks(BaseNodePostprocessor):
    """A reranker that changes metadata, like SentenceTransformerRerank, and adds a node."""

    def _postprocess_nodes(self, nodes, query_bundle=None):
        for hit in nodes:
            hit.node.metadata["retrieval_score"] = hit.score
        return [NodeWithScore(node=TextNode(text="new", id_="new"), score=3.0), *nodes]


def test_metadata_that_a_reranker_adds_is_kept_and_the_input_is_unchanged(hits):
    reranked = RerankWithContext(Marks()).postprocess_nodes(hits, query_str=QUESTION)
    assert names(reranked) == ["new", "archive", "scheduler", "gateway"]
    assert [hit.node.metadata.get("retrieval_score") for hit in reranked] == [None, 1.0, 1.0, 1.0]
    assert [hit.node.metadata["context"] for hit in reranked[1:]] == [
        hit.node.metadata["context"] for hit in hits
    ]
    assert not any("retrieval_score" in hit.node.metadata for hit in hits)
    text = reranked[3].node.get_content(metadata_mode=MetadataMode.NONE)
    assert text == "The default value is 60."


def test_anything_but_a_reranker_is_rejected():
    with pytest.raises(SettingError, match=r"`reranker` must be .*'llm'"):
        RerankWithContext("llm")


def test_a_reranker_that_cannot_be_read_back_is_named():
    with pytest.raises(SettingError, match=r"cannot be read back .* Pass the object again"):
        RerankWithContext.from_dict(RerankWithContext(Marks()).to_dict())


def test_an_unreachable_language_model_is_named(hits, fake_model):
    fake_model.stop()
    step = RerankWithContext(LLMRerank(llm=NamedModel(fake_model.llm, 200)(), top_n=3))
    with pytest.raises(RetrievalError, match="The reranker failed"):
        step.postprocess_nodes(hits, query_str=QUESTION)


# In an index


def test_an_index_can_rerank_by_any_postprocessor(tmp_path):
    for name in ("gateway", "scheduler", "archive"):
        (tmp_path / f"{name}.md").write_text(
            f"# {name.title()}\n\n## Timeout\n\nThe default value is 60.\n", "utf-8"
        )
    with ContextualIndex.open(tmp_path) as index:
        index.refresh()
        plain = index.as_retriever(3).retrieve(QUESTION)
        assert plain[0].node.metadata["path"] == "gateway.md"
        assert names(index.as_retriever(3, rerank=Marks()).retrieve(QUESTION)) == [
            "new",
            *names(plain)[:2],
        ]
        hidden = index.as_retriever(3, rerank=LLMRerank(llm=MockLLM())).node_postprocessors
        assert [type(postprocessor) for postprocessor in hidden] == [RerankWithContext]
        with pytest.raises(SettingError, match=r"`rerank` must be a LlamaIndex .*'flashrank'"):
            index.as_retriever(rerank="flashrank")


def test_from_dict_needs_the_reranker_again():
    reranker = LLMRerank(llm=MockLLM(), top_n=3)
    step = RerankWithContext(reranker)
    with pytest.raises(SettingError, match=r"`reranker` cannot be read back .*from_dict\(data"):
        RerankWithContext.from_dict(step.to_dict())
    copy = RerankWithContext.from_dict(step.to_dict(), reranker=reranker)
    assert copy.reranker == reranker
