"""Rerankers.

No model for reranking with weights is on a package registry, so for fastembed a cross-encoder is built here that counts
the word pieces that question and text share.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from llama_index.core.llms import ChatMessage, ChatResponse, MockLLM
from llama_index.core.postprocessor import LLMRerank, StructuredLLMRerank
from llama_index.core.postprocessor.rankGPT_rerank import RankGPTRerank
from llama_index.core.postprocessor.structured_llm_rerank import DocumentRelevanceList, DocumentWithRelevance
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.settings.models import FastEmbedReranker, NamedModel, resolve_reranker
from llama_index_contextual.common.errors import ContextualError, MissingExtraError, RetrievalError, SettingError
from llama_index_contextual.context import put_context, set_views
from llama_index_contextual.retrieval import RerankWithContext

QUESTION = "What is the default timeout of the gateway?"


def chunk(name, context):
    node = TextNode(id_=name, text="The default value is 60.")
    put_context(node.metadata, context, "headings", "1")
    set_views(node)
    return NodeWithScore(node=node, score=1.0)


@pytest.fixture
def hits():
    """Three chunks with the same text: only contexts tell them apart."""
    return [chunk("archive", "Archive"), chunk("scheduler", "Scheduler"), chunk("gateway", "Gateway > Timeout")]


def names(found):
    return [one.node.node_id for one in found]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("magic:x", "names no reranker. Cure: 'fastembed:MODEL'"),
        ("fastembed", "names no reranker"),
        ("openai:gpt-4.1-mini", "names no reranker"),
        ("fastembed:no/such-model", "cannot be loaded"),
    ],
)
def test_what_cannot_work_is_said_before_the_first_question(spec, message, monkeypatch, tmp_path):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "a.md").write_text("# A\n\nText.\n", "utf-8")
    with ContextualIndex.open(tmp_path) as index:
        index.refresh()
        with pytest.raises(ContextualError, match=message):
            index.as_retriever(rerank=spec)


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastembed.rerank.cross_encoder", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'llama-index-contextual\[rerank\]'$"):
        resolve_reranker("fastembed:x")


# A language model


class Ranks(MockLLM):
    """Puts the last passage first, and keeps what it was shown."""

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
async def test_a_stock_reranker_that_hides_contexts_reads_them_inside_ours(make, hits):
    llm = Ranks()
    llm.said.clear()
    assert names(make(llm).postprocess_nodes(hits, query_str=QUESTION)) == ["gateway", "archive"]
    assert "Gateway > Timeout" not in llm.said.pop(), "LlamaIndex has changed: it shows contexts now"
    for step in (RerankWithContext(make(llm)), resolve_reranker(make(llm))):
        found = step.postprocess_nodes(hits, query_str=QUESTION)
        assert "context: Gateway > Timeout The default value is 60." in " ".join(llm.said.pop().split())
        assert [one.node for one in found] == [hits[2].node, hits[0].node], "the hits themselves"
        assert [one.node.get_content() for one in found] == ["The default value is 60."] * 2
    assert [one.score for one in found] == [one.score for one in make(llm).postprocess_nodes(hits, query_str=QUESTION)]
    assert names(await RerankWithContext(make(MockLLM())).apostprocess_nodes([], query_str=QUESTION)) == []


class Marks(BaseNodePostprocessor):
    """Leaves a mark in metadata, as SentenceTransformerRerank does, and adds a node."""

    def _postprocess_nodes(self, nodes, query_bundle=None):
        for one in nodes:
            one.node.metadata["retrieval_score"] = one.score
        return [NodeWithScore(node=TextNode(text="new", id_="new"), score=3.0), *nodes]


def test_what_a_reranker_adds_is_kept_and_the_hits_given_stay_as_they_are(hits):
    found = RerankWithContext(Marks()).postprocess_nodes(hits, query_str=QUESTION)
    assert names(found) == ["new", "archive", "scheduler", "gateway"]
    assert [one.node.metadata.get("retrieval_score") for one in found] == [None, 1.0, 1.0, 1.0]
    assert [one.node.metadata["context"] for one in found[1:]] == [one.node.metadata["context"] for one in hits]
    assert not any("retrieval_score" in one.node.metadata for one in hits)
    assert found[3].node.get_content(metadata_mode=MetadataMode.NONE) == "The default value is 60."


def test_the_wrapper_refuses_what_is_no_reranker():
    with pytest.raises(SettingError, match=r"reranker='llm' cannot work\. Cure: "):
        RerankWithContext("llm")


def test_the_wrapper_names_the_reranker_that_cannot_be_read_back():
    with pytest.raises(SettingError, match=r"is no reranker. Cure: pass the object again"):
        RerankWithContext.from_dict(RerankWithContext(Marks()).to_dict())


def test_one_that_reads_some_loses_no_hit():
    llm, many = Ranks(), [chunk(str(n), "x") for n in range(100)]
    found = RerankWithContext(LLMRerank(llm=llm, top_n=100), most=30).postprocess_nodes(many, query_str=QUESTION)
    assert names(found)[:8] == ["2", "12", "22", "0", "10", "20", "1", "3"]
    assert sorted(names(found)) == sorted(names(many))
    assert names(found)[-1] == "99"


def test_a_language_model_that_is_away_is_named(hits, fake_model):
    fake_model.stop()
    step = RerankWithContext(LLMRerank(llm=NamedModel(fake_model.llm, 200)(), top_n=3))
    with pytest.raises(RetrievalError, match="the reranker failed"):
        step.postprocess_nodes(hits, query_str=QUESTION)


# A model on this machine


@pytest.fixture
def cross_encoder(tmp_path):
    """Build a cross-encoder: its score is how many word pieces question and text have in common."""
    pytest.importorskip("fastembed")
    onnx = pytest.importorskip("onnx")
    from fastembed.common.model_description import ModelSource
    from fastembed.rerank.cross_encoder import TextCrossEncoder
    from onnx import TensorProto, helper
    from tokenizers import BertWordPieceTokenizer

    import llama_index_contextual

    vocabulary = Path(llama_index_contextual.__file__).parent / "data" / "minilm-vocab.txt"
    BertWordPieceTokenizer(str(vocabulary), lowercase=True).save(str(tmp_path / "tokenizer.json"))
    names_of = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (tmp_path / "config.json").write_text(json.dumps({"pad_token_id": 0}), "utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 512, **names_of}), "utf-8")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names_of), "utf-8")
    steps = [
        ("Cast", ["token_type_ids"], "second", {"to": TensorProto.FLOAT}),
        ("Sub", ["one", "second"], "first", {}),
        ("Greater", ["input_ids", "special"], "is_word", {}),
        ("Cast", ["is_word"], "word", {"to": TensorProto.FLOAT}),
        ("Mul", ["first", "word"], "query", {}),
        ("Mul", ["second", "word"], "text", {}),
        ("Unsqueeze", ["input_ids", "two"], "down", {}),
        ("Unsqueeze", ["input_ids", "axis"], "across", {}),
        ("Equal", ["down", "across"], "same", {}),
        ("Cast", ["same"], "pairs", {"to": TensorProto.FLOAT}),
        ("Unsqueeze", ["text", "two"], "texts", {}),
        ("MatMul", ["pairs", "texts"], "counts", {}),
        ("Squeeze", ["counts", "two"], "found", {}),
        ("Mul", ["found", "query"], "kept", {}),
        ("ReduceSum", ["kept", "axis"], "logits", {}),
    ]
    constants = [
        helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
        helper.make_tensor("special", TensorProto.INT64, [], [103]),
        helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        helper.make_tensor("two", TensorProto.INT64, [1], [2]),
    ]
    shape = ["batch", "length"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1])
    nodes = [helper.make_node(kind, given, [made], **options) for kind, given, made, options in steps]
    graph = helper.make_graph(nodes, "overlap", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(tmp_path / "model.onnx"))
    name = f"tests/word-overlap-{tmp_path.name}"
    TextCrossEncoder.add_custom_model(name, sources=ModelSource(hf=name), model_file="model.onnx")
    return FastEmbedReranker(name, specific_model_path=str(tmp_path))


def test_a_cross_encoder_on_this_machine(cross_encoder, hits):
    found = cross_encoder.postprocess_nodes(hits, query_str=QUESTION)
    assert names(found)[0] == "gateway"
    assert found[0].score - found[1].score == 3, "“gateway”, “time” and “##out” stand in its context only"


# In an index


def test_an_index_reranks_by_argument_and_by_the_user_s_settings(tmp_path, run, cross_encoder, users_own):
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("gateway", "scheduler", "archive"):
        (folder / f"{name}.md").write_text(f"# {name.title()}\n\n## Timeout\n\nThe default value is 60.\n", "utf-8")
    with ContextualIndex.open(folder) as index:
        index.refresh()
        plain = index.as_retriever(3).retrieve(QUESTION)
        found = index.as_retriever(3, rerank=cross_encoder).retrieve(QUESTION)
        assert found[0].node.metadata["path"] == "gateway.md"
        assert [one.score for one in found] != [one.score for one in plain]
    (folder / "contextual.toml").write_text('[retrieval]\nrerank = "fastembed:no/such-model"\n', "utf-8")
    users_own(folder)
    assert "cannot be loaded" in run("search", QUESTION, "--folder", folder).stderr
    with ContextualIndex.open(folder) as index:
        step = LLMRerank(llm=MockLLM())
        assert isinstance(index.as_retriever(rerank=step).node_postprocessors[0], RerankWithContext)
        assert index.as_retriever(rerank=False).node_postprocessors == []
