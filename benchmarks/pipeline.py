"""Measure what each step of the README's pipeline adds, on the example questions.

    python benchmarks/pipeline.py

All rows have the same notes, the same embedding, a Chroma store on disk and 10 hits. A passage is
found if a hit contains its text.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import chromadb
from common import machine, markdown_table, stock_hybrid
from llama_index.core import SimpleDirectoryReader, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    ContextualVectorRetriever,
    HeadingAwareMarkdownNodeParser,
)
from llama_index_contextual.app import LocalEmbedding
from llama_index_contextual.app.evaluation import compare, load_questions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import BaseNode, TransformComponent

EXAMPLES = Path(__file__).parents[1] / "examples"
TOP_K = 10
STOCK = (MarkdownNodeParser(), SentenceSplitter(chunk_size=512))
OURS = (HeadingAwareMarkdownNodeParser(), ContextualNodePostprocessor())


def chroma(nodes: list[BaseNode], folder: str) -> VectorStoreIndex:
    """Return an index of nodes on a Chroma of its own folder."""
    collection = chromadb.PersistentClient(tempfile.mkdtemp(dir=folder)).create_collection("notes")
    storage = StorageContext.from_defaults(
        vector_store=ChromaVectorStore(chroma_collection=collection)
    )
    return VectorStoreIndex(nodes, storage_context=storage, embed_model=LocalEmbedding())


def nodes_of(transformations: Sequence[TransformComponent]) -> list[BaseNode]:
    """Return the chunks that a pipeline makes of the example notes."""
    reader = SimpleDirectoryReader(str(EXAMPLES / "notes"), recursive=True, filename_as_id=True)
    pipeline = IngestionPipeline(transformations=list(transformations))
    return list(pipeline.run(documents=reader.load_data()))


def retrievers(folder: str) -> dict[str, BaseRetriever]:
    """Return the retrievers by their name in the table. Each changes one thing of the one before.

    Args:
        folder: The folder for the vector stores.
    """
    stock_nodes = nodes_of(STOCK)
    our_nodes = nodes_of(OURS)
    our_index = chroma(our_nodes, folder)
    stock_vectors = chroma(stock_nodes, folder).as_retriever(similarity_top_k=TOP_K)
    stock_vectors_of_ours = our_index.as_retriever(similarity_top_k=TOP_K)
    stock_keywords = BM25Retriever.from_defaults(nodes=stock_nodes, similarity_top_k=TOP_K)
    stock_keywords_of_ours = BM25Retriever.from_defaults(nodes=our_nodes, similarity_top_k=TOP_K)
    vectors = ContextualVectorRetriever(our_index)
    keywords = ContextualBM25Retriever(our_nodes)
    return {
        "stock pipeline": stock_hybrid([stock_vectors, stock_keywords], TOP_K),
        "stock, with the parser and contexts of this package": stock_hybrid(
            [stock_vectors_of_ours, stock_keywords_of_ours], TOP_K
        ),
        "the same, `ContextualBM25Retriever`": stock_hybrid(
            [stock_vectors_of_ours, keywords], TOP_K
        ),
        "the same, `ContextualVectorRetriever`": stock_hybrid([vectors, keywords], TOP_K),
        "both, and `ContextualFusionRetriever`": ContextualFusionRetriever(
            [vectors, keywords], similarity_top_k=TOP_K
        ),
    }


def table() -> str:
    """Return a table of the recall of each retriever in percent."""
    questions = load_questions(EXAMPLES / "questions.jsonl")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        comparison = compare(retrievers(folder), questions, top_k=[1, 3, 5])
    rows = []
    for row in comparison.rows:
        shares = [f"{100 * share:.1f}" for share in row.recalls.mean(axis=0)]
        rows.append([row.name, *shares, f"{row.mrr:.3f}"])
    title = f"{len(questions)} example questions, recall in %"
    return markdown_table([title, "@1", "@3", "@5", "MRR"], rows)


if __name__ == "__main__":
    print(f"{machine()}\n\n{table()}")
