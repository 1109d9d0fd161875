"""What each step of README's pipeline finds on the example questions.

``python benchmarks/pipeline.py``.

All rows have the same notes, the same embedding, a Chroma on disk and 10 hits. A passage counts as
found where a hit holds its text.
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


def retrievers(folder: str) -> dict[str, BaseRetriever]:
    """Return the rows, each with one thing changed."""

    def nodes_of(transformations: tuple[TransformComponent, ...]) -> list[BaseNode]:
        documents = SimpleDirectoryReader(
            str(EXAMPLES / "notes"), recursive=True, filename_as_id=True
        ).load_data()
        return list(
            IngestionPipeline(transformations=list(transformations)).run(documents=documents)
        )

    plain, contextual = nodes_of(STOCK), nodes_of(OURS)
    before, after = (
        chroma(nodes, folder).as_retriever(similarity_top_k=TOP_K) for nodes in (plain, contextual)
    )
    stock_words = [
        BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=TOP_K)
        for nodes in (plain, contextual)
    ]
    vectors, keywords = ContextualVectorRetriever(after._index), ContextualBM25Retriever(contextual)  # noqa: SLF001
    return {
        "stock pipeline": stock_hybrid([before, stock_words[0]], TOP_K),
        "stock, with the parser and contexts of this package": stock_hybrid(
            [after, stock_words[1]], TOP_K
        ),
        "the same, `ContextualBM25Retriever`": stock_hybrid([after, keywords], TOP_K),
        "the same, `ContextualVectorRetriever`": stock_hybrid([vectors, keywords], TOP_K),
        "both, and `ContextualFusionRetriever`": ContextualFusionRetriever(
            [vectors, keywords], similarity_top_k=TOP_K
        ),
    }


def table() -> str:
    """Return recall of each row in per cent, as Markdown."""
    questions = load_questions(EXAMPLES / "questions.jsonl")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        comparison = compare(retrievers(folder), questions, top_k=[1, 3, 5])
    rows = [
        [row.name, *(f"{100 * share:.1f}" for share in row.recalls.mean(axis=0)), f"{row.mrr:.3f}"]
        for row in comparison.rows
    ]
    return markdown_table(
        [f"{len(questions)} example questions, recall in %", "@1", "@3", "@5", "MRR"], rows
    )


if __name__ == "__main__":
    print(f"{machine()}\n\n{table()}")
