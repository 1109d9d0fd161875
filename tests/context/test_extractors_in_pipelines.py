"""Extractors before and after the context step, on four stores: no shown metadata is lost."""

from __future__ import annotations

from uuid import uuid4

import chromadb
import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.extractors import KeywordExtractor, TitleExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.schema import MetadataMode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index.vector_stores.lancedb import LanceDBVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualNodePostprocessor,
    HeadingAwareMarkdownNodeParser,
)
from llama_index_contextual.app import LocalEmbedding
from llama_index_contextual.postprocessors.rerank import RerankWithContext

BROUGHT = {
    "author": "Ana",
    "url": "http://intranet/gateway",
    "category": "networking",
    "page_label": "3",
}
FOUND = {"document_title": "text text", "excerpt_keywords": "text text"}
PAGES = {
    "docs/gateway.md": "# Gateway\n\nThe default is 60.",
    "docs/scheduler.md": "# Scheduler\n\nThe default is 900.",
}


class Shown(MockLLM):
    """A model that records the prompts for answers and rankings."""

    prompts: list = []  # noqa: RUF012  a pydantic field

    def complete(self, prompt, **options):
        self.prompts.append(prompt)
        return super().complete("Doc: 1, Relevance: 5", **options)

    def predict(self, prompt, **fields):
        self.prompts.append(prompt.format(**fields))
        return "Doc: 1, Relevance: 5\nDoc: 2, Relevance: 4"


def chroma(_):
    client = chromadb.EphemeralClient()
    return ChromaVectorStore(chroma_collection=client.create_collection(uuid4().hex))


STORES = {
    "simple": lambda _: SimpleVectorStore(),
    "chroma": chroma,
    "qdrant": lambda _: QdrantVectorStore(client=QdrantClient(":memory:"), collection_name="notes"),
    "lancedb": lambda folder: LanceDBVectorStore(
        uri=str(folder), table_name="notes", mode="overwrite"
    ),
}


@pytest.fixture(scope="module")
def embedding():
    return LocalEmbedding()


def documents():
    return [
        Document(text=text, id_=path, metadata={"path": path, **BROUGHT})
        for path, text in PAGES.items()
    ]


def steps(parser, where):
    extractors = [
        TitleExtractor(llm=MockLLM(max_tokens=2), show_progress=False),
        KeywordExtractor(llm=MockLLM(max_tokens=2)),
    ]
    context = ContextualNodePostprocessor()
    order = {
        "before": [*extractors, context],
        "after": [context, *extractors],
        "between": [extractors[0], context, extractors[1]],
    }
    return [parser, *order[where]]


def lines(node, mode):
    return set(node.get_metadata_str(mode).splitlines())


def check(node):
    """Check both views after a round trip through a store."""
    expected = {f"{key}: {value}" for key, value in {**BROUGHT, **FOUND}.items()}
    embedded, prompted = lines(node, MetadataMode.EMBED), lines(node, MetadataMode.LLM)
    assert expected <= embedded
    assert expected <= prompted
    path = node.metadata["path"]
    context = f"context: {node.metadata['context']}"
    assert context.startswith(f"context: Document: {path}")
    assert context in embedded
    assert context not in prompted
    assert f"path: {path}" in prompted - embedded
    assert node.get_content() == PAGES[path]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("where", ["before", "after", "between"])
@pytest.mark.parametrize(
    "parser", [SentenceSplitter(), HeadingAwareMarkdownNodeParser()], ids=["stock", "ours"]
)
def test_metadata_of_extractors_and_documents_is_embedded_stored_and_returned(
    store, where, parser, embedding, tmp_path
):
    kept = STORES[store](tmp_path)
    made = IngestionPipeline(transformations=steps(parser, where)).run(documents=documents())
    index = VectorStoreIndex(
        made, storage_context=StorageContext.from_defaults(vector_store=kept), embed_model=embedding
    )
    llm = Shown()
    llm.prompts.clear()
    engine = index.as_query_engine(
        llm=llm,
        similarity_top_k=2,
        node_postprocessors=[RerankWithContext(LLMRerank(llm=llm, top_n=2))],
    )
    answer = engine.query("What is the default of the gateway?")
    assert {hit.node.metadata["path"] for hit in answer.source_nodes} == set(PAGES)
    for hit in answer.source_nodes:
        check(hit.node)
    ranking, answering = llm.prompts
    for prompt in (ranking, answering):
        assert "author: Ana" in prompt
        assert "excerpt_keywords: text text" in prompt
    assert "context: Document: docs/gateway.md" in ranking
    assert "context: Document:" not in answering
    keywords = ContextualBM25Retriever(made, similarity_top_k=2)
    assert len(keywords.retrieve("networking intranet ana")) == len(PAGES)


def test_at_query_time_over_an_index_without_contexts(embedding):
    index = VectorStoreIndex.from_documents(
        documents(), transformations=steps(SentenceSplitter(), "before")[:-1], embed_model=embedding
    )
    llm = Shown()
    llm.prompts.clear()
    engine = index.as_query_engine(
        llm=llm, similarity_top_k=2, node_postprocessors=[ContextualNodePostprocessor()]
    )
    for hit in engine.query("What is the default of the gateway?").source_nodes:
        check(hit.node)
    assert "category: networking" in llm.prompts[0]
