"""Wrong objects are refused with a message that says what to pass."""

from __future__ import annotations

import re

import pytest
from llama_index.core import MockEmbedding, SummaryIndex, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    ContextualVectorRetriever,
    MemoryContext,
    RerankWithContext,
)
from llama_index_contextual.utils.errors import SettingError


@pytest.fixture
def node():
    return TextNode(text="The pump runs.", id_="n1")


@pytest.fixture
def retriever(node):
    return ContextualBM25Retriever([node])


def refused(message):
    return pytest.raises(SettingError, match=re.escape(message))


def test_a_keyword_retriever_needs_nodes_and_ids(node, retriever):
    with refused(
        "`nodes` must be a list of LlamaIndex nodes (got str). Create a node from a text with"
    ):
        ContextualBM25Retriever(["a"])
    with refused("`nodes` must be a list of LlamaIndex nodes (got NoneType)."):
        ContextualBM25Retriever([node, None])
    with refused("`node_ids` must be a list of ids. Pass ['n1']."):
        retriever.delete("n1")


def test_a_source_of_another_kind_is_named(node):
    index = SummaryIndex([node])
    with refused("`docstore` must be a BaseDocumentStore (got SummaryIndex). For an index, pass"):
        ContextualBM25Retriever.from_defaults(docstore=index)
    with refused("`vector_store` must be a BasePydanticVectorStore (got str)."):
        ContextualBM25Retriever.from_defaults(vector_store="chroma")


def test_a_name_is_neither_an_embedding_nor_a_postprocessor(node, retriever):
    with refused("`embed_model` must be an embedding of LlamaIndex (got 'small')."):
        ContextualVectorRetriever(
            VectorStoreIndex([node], embed_model=MockEmbedding(8)), embed_model="small"
        )
    with refused("`node_postprocessors` must be a list of node postprocessors (got str)."):
        ContextualFusionRetriever([retriever], node_postprocessors=["recency"])


def test_descriptions_are_a_mapping():
    with refused("`descriptions` must be a mapping of paths to texts"):
        ContextualNodePostprocessor(descriptions=["api/"])


def test_memory_needs_a_text_and_has_two_formats(retriever):
    memory = MemoryContext(retriever)
    with refused("`message` must be a text (got NoneType)."):
        memory.get(None)
    with refused("`format` must be one of 'markdown', 'json' (got 'xml')."):
        memory.get("thanks").render("xml")


def test_a_long_value_is_shown_as_its_class():
    with refused("(got MockLLM)."):
        RerankWithContext(MockLLM(system_prompt="long " * 100))
