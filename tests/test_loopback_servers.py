"""The model on loopback that other tests rely on, called through LlamaIndex's classes."""

from __future__ import annotations

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import similarity
from llama_index.core.llms import ChatMessage
from llama_index.core.schema import MetadataMode
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser


def test_through_the_openai_compatible_class(llama_server):
    llm = OpenAILike(
        model=llama_server.model,
        api_base=llama_server.api_base,
        api_key="none",
        is_chat_model=True,
        max_tokens=8,
    )
    answer = llm.chat([ChatMessage("Say hello.")])
    assert answer.message.content
    assert answer.raw.usage.prompt_tokens > 0


def test_through_the_ollama_class(ollama_server):
    llm = Ollama(
        model=ollama_server.model,
        base_url=ollama_server.url,
        request_timeout=60,
        additional_kwargs={"num_predict": 8},
    )
    answer = llm.chat([ChatMessage("Say hello.")])
    assert answer.message.content
    assert answer.raw["usage"]["prompt_tokens"] > 0
    assert llm.metadata.context_window == ollama_server.context


@pytest.mark.server
def test_embeddings_through_the_ollama_class(ollama_embedding_server):
    embedding = OllamaEmbedding(
        model_name=ollama_embedding_server.model,
        base_url=ollama_embedding_server.url,
        text_instruction="search_document:",
    )
    first, second = embedding.get_text_embedding_batch(
        ["context: Document: a.md\n\nHello.", "Good night."]
    )
    assert len(first) == len(second) == 576
    assert first != second


@pytest.mark.server
def test_an_index_embeds_contexts_through_the_ollama_class_and_displays_the_text(
    ollama_embedding_server,
):
    page = "# Gateway\n\n## Timeout\n\nThe default value is 60.\n"
    document = Document(text=page, id_="gateway", metadata={"path": "docs/gateway.md"})
    [node] = ContextualNodePostprocessor()(HeadingAwareMarkdownNodeParser()([document]))
    embedding = OllamaEmbedding(
        model_name=ollama_embedding_server.model, base_url=ollama_embedding_server.url
    )

    index = VectorStoreIndex([node], embed_model=embedding)

    vector = index.vector_store.get(node.node_id)
    embedded = node.get_content(MetadataMode.EMBED)
    assert embedded.startswith("context: Document: docs/gateway.md > Gateway > Timeout")
    assert similarity(vector, embedding.get_text_embedding(embedded)) > 0.999
    assert similarity(vector, embedding.get_text_embedding(node.text)) < 0.999
    [hit] = index.as_retriever().retrieve("What is the timeout of the gateway?")
    assert hit.node.text in page
    assert "Document:" not in hit.node.text
