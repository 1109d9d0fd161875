"""Our parts inside existing pipelines: two more lines, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import chromadb
import pytest
from llama_index.core import SimpleDirectoryReader, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import Document, MetadataMode
from llama_index.llms.openai_like import OpenAILike
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    ContextualVectorRetriever,
    HeadingAwareMarkdownNodeParser,
    RecencyPostprocessor,
)
from llama_index_contextual.app import LocalEmbedding

NOTES = Path(__file__).parents[1] / "examples" / "notes"
LLM_KEYS = {"path", "header_path", "start_line", "end_line", "date", "title", "tags"}


@pytest.fixture(scope="module")
def embedding():
    return LocalEmbedding()


@pytest.fixture
def documents():
    paths = sorted(NOTES.rglob("*.md"))
    return [
        Document(text=p.read_text("utf-8"), metadata={"path": p.relative_to(NOTES).as_posix()})
        for p in paths
    ]


@pytest.fixture
def store(tmp_path):
    client = chromadb.PersistentClient(
        str(tmp_path), settings=chromadb.Settings(anonymized_telemetry=False)
    )
    return ChromaVectorStore(chroma_collection=client.create_collection("notes"))


def check_views(node, documents):
    """Check the views after a round trip through Chroma on disk."""
    texts = {document.metadata["path"]: document.text for document in documents}
    path = node.metadata["path"]
    assert (
        node.get_content(MetadataMode.NONE) == texts[path][node.start_char_idx : node.end_char_idx]
    )
    embedded = node.get_content(MetadataMode.EMBED)
    assert embedded == f"context: {node.metadata['context']}\n\n{node.get_content()}"
    assert node.metadata["context"].startswith(f"Document: {path}")
    prompt = node.get_content(MetadataMode.LLM)
    shown = {
        line.partition(": ")[0]
        for line in prompt.removesuffix(node.get_content()).strip().splitlines()
    }
    assert {"path", "header_path"} <= shown <= LLM_KEYS
    assert prompt.endswith(node.get_content())


def test_in_an_ingestion_pipeline_with_chroma(documents, store, embedding):
    pipeline = IngestionPipeline(
        transformations=[
            HeadingAwareMarkdownNodeParser(),
            ContextualNodePostprocessor(),
            embedding,
        ],
        vector_store=store,
    )
    made = pipeline.run(documents=documents)
    retriever = VectorStoreIndex.from_vector_store(store, embed_model=embedding).as_retriever(
        similarity_top_k=3
    )
    hits = retriever.retrieve("What is the default number of retries of the scheduler?")
    assert hits[0].node.metadata["header_path"] == "Scheduler > Retries"
    assert {hit.node.node_id for hit in hits} <= {node.node_id for node in made}
    for hit in hits:
        check_views(hit.node, documents)


def test_in_a_vector_store_index_from_documents(documents, store, embedding):
    index = VectorStoreIndex.from_documents(
        documents,
        storage_context=StorageContext.from_defaults(vector_store=store),
        transformations=[HeadingAwareMarkdownNodeParser(), ContextualNodePostprocessor()],
        embed_model=embedding,
    )
    for hit in index.as_retriever(similarity_top_k=5).retrieve("When is the deployment freeze?"):
        check_views(hit.node, documents)


def test_a_second_run_makes_the_same_ids(documents, embedding):
    pipeline = IngestionPipeline(
        transformations=[HeadingAwareMarkdownNodeParser(), ContextualNodePostprocessor()]
    )
    first = [node.node_id for node in pipeline.run(documents=documents)]
    copies = [Document(text=doc.text, metadata=dict(doc.metadata)) for doc in documents]
    assert [node.node_id for node in pipeline.run(documents=copies)] == first
    assert len(set(first)) == len(first)


def test_with_the_metadata_that_simple_directory_reader_brings(embedding):
    documents = SimpleDirectoryReader(str(NOTES), recursive=True).load_data()
    nodes = IngestionPipeline(
        transformations=[HeadingAwareMarkdownNodeParser(), ContextualNodePostprocessor()]
    ).run(documents=documents)
    for node in nodes:
        assert (
            node.get_content(MetadataMode.EMBED)
            == f"context: {node.metadata['context']}\n\n{node.get_content()}"
        )
        assert "file_size" not in node.get_content(MetadataMode.LLM)
        assert f"file_path: {node.metadata['file_path']}" in node.get_content(MetadataMode.LLM), (
            "else nothing is cited"
        )


def test_context_for_the_nodes_of_an_index_built_without_it(documents, store, embedding):
    index = VectorStoreIndex.from_documents(
        documents,
        storage_context=StorageContext.from_defaults(vector_store=store),
        transformations=[HeadingAwareMarkdownNodeParser()],
        embed_model=embedding,
    )
    plain = index.as_retriever(similarity_top_k=4).retrieve("Which day is a release tagged?")
    assert all("context" not in hit.node.metadata for hit in plain)
    given = ContextualNodePostprocessor().postprocess_nodes(
        plain, query_str="Which day is a release tagged?"
    )
    assert [hit.node.node_id for hit in given] == [hit.node.node_id for hit in plain]
    # A reranker reads the EMBED view: now it sees where each chunk comes from.
    assert all("Document: " in hit.node.get_content(MetadataMode.EMBED) for hit in given)
    assert all("context" not in hit.node.metadata for hit in plain), "the input is not changed"


def test_the_stock_fusion_over_our_retrievers_with_recency_after_it(documents, store, embedding):
    nodes = IngestionPipeline(
        transformations=[
            HeadingAwareMarkdownNodeParser(),
            ContextualNodePostprocessor(),
            embedding,
        ],
        vector_store=store,
    ).run(documents=documents)
    retrievers = [
        ContextualVectorRetriever(store, embed_model=embedding, similarity_top_k=10),
        ContextualBM25Retriever.from_defaults(vector_store=store, similarity_top_k=10),
    ]
    stock = QueryFusionRetriever(
        retrievers,
        llm=MockLLM(),
        num_queries=1,
        use_async=False,
        mode="reciprocal_rerank",
        similarity_top_k=len(nodes),
    )
    hits = stock.retrieve("When does the deployment freeze start?")
    assert len({hit.node.node_id for hit in hits}) == len(hits), (
        "the retrievers' nodes have equal hashes: none comes twice"
    )
    recency = RecencyPostprocessor(now="2026-11-20", weight=0.5)
    first, *_ = recency.postprocess_nodes(hits)
    assert first.node.metadata["path"] == "memory/2026-11-18.md"


@pytest.mark.server
def test_a_query_engine_with_a_real_model_cites_what_it_was_given(
    documents, store, embedding, llama_server
):
    IngestionPipeline(
        transformations=[
            HeadingAwareMarkdownNodeParser(),
            ContextualNodePostprocessor(),
            embedding,
        ],
        vector_store=store,
    ).run(documents=documents)
    retriever = ContextualFusionRetriever(
        [
            ContextualVectorRetriever(store, embed_model=embedding),
            ContextualBM25Retriever.from_defaults(vector_store=store),
        ],
        similarity_top_k=2,
    )
    llm = OpenAILike(
        model="smollm2",
        api_base=llama_server.api_base,
        api_key="none",
        is_chat_model=True,
        max_tokens=24,
    )
    response = RetrieverQueryEngine.from_args(retriever, llm=llm).query(
        "What is the default timeout of the gateway?"
    )
    assert str(response).strip()
    assert response.source_nodes[0].node.metadata["header_path"] == "Gateway > Timeout"
    for source in response.source_nodes:
        check_views(source.node, documents)
