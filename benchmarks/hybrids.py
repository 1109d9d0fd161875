"""The hybrids that benchmarks/latency.py compares, ours and LlamaIndex's own, and the collection that both search."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chromadb
import numpy as np
from datasets import kubernetes_docs
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import TextNode
from llama_index.core.utils import iter_batch
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual import (
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    HeadingAwareMarkdownNodeParser,
)
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index import RefreshReport
from llama_index_contextual.app.index.writer import writing
from llama_index_contextual.app.store.database import Chunk, DocumentRow
from llama_index_contextual.retrieval import stored_nodes

if TYPE_CHECKING:
    from llama_index.retrievers.bm25 import BM25Retriever

DIMENSIONS = 384
TOP_K = 10
WORD = re.compile(r"[a-z]{5,}")


class Synthetic(BaseEmbedding):
    """A unit vector for each query, the same one every time."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return unit_vectors(1, seed=sum(query.encode()))[0].tolist()  # type: ignore[no-any-return]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_query_embedding(text)


def unit_vectors(count: int, seed: int) -> Any:
    """Random directions, one a row."""
    vectors = np.random.default_rng(seed).normal(size=(count, DIMENSIONS)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def chunks(count: int) -> list[TextNode]:
    """Chunks of real pages with heading context; beyond what exists, repeated with a third of the words changed."""
    parser = HeadingAwareMarkdownNodeParser(chunk_size=256, chunk_overlap=0)
    nodes = ContextualNodePostprocessor(context="headings")(
        parser.get_nodes_from_documents(kubernetes_docs(min(1568, max(40, count // 4))).documents[""])
    )
    turns = ((nodes[number % len(nodes)], number // len(nodes)) for number in range(count))
    return [_changed(node, turn) for node, turn in turns if isinstance(node, TextNode)]


def _changed(node: TextNode, turn: int) -> TextNode:
    if not turn:
        return node
    rng = random.Random(f"{node.node_id}{turn}")  # noqa: S311  no secret
    text = WORD.sub(lambda match: f"{match.group()}{turn}" if rng.random() < 1 / 3 else match.group(), node.text)
    return node.model_copy(update={"id_": f"{node.node_id}-{turn}", "text": text})


def store_in(folder: str) -> ChromaVectorStore:
    """The collection in a folder."""
    client = chromadb.PersistentClient(folder, chromadb.Settings(anonymized_telemetry=False))
    return ChromaVectorStore(chroma_collection=client.get_or_create_collection("chunks"))


def fill(folder: str, nodes: list[TextNode]) -> None:
    """Put the nodes into Chroma with synthetic vectors."""
    store = store_in(folder)
    for start in range(0, len(nodes), 2000):
        part = nodes[start : start + 2000]
        vectors = unit_vectors(len(part), seed=start)
        store.add([n.model_copy(update={"embedding": v.tolist()}) for n, v in zip(part, vectors, strict=True)])


def fill_index(folder: str) -> None:
    """Make an index of the chunks of the collection in a folder, with vectors of the same kind."""
    pages = Path(folder, "pages")
    pages.mkdir()
    documents: dict[str, list[Chunk]] = {}
    for node in stored_nodes(store_in(folder)):
        documents.setdefault(str(node.ref_doc_id), []).append(Chunk.of(node))
    settings = {"embed_model": Synthetic(), "context": "off"}
    with ContextualIndex.open(pages, **settings) as index, writing(index._reader) as writer:  # noqa: SLF001
        made_with = index.settings.made_with
        rows = [(DocumentRow(key, "document", key, "", made_with(key), len(c)), c) for key, c in documents.items()]
        for part in iter_batch(rows, 200):
            writer.write(part, RefreshReport(), lambda _: None)
        writer.finish()


def ours(folder: str, mode: str = "learned") -> ContextualFusionRetriever:
    """The retriever of that index, as a user gets it."""
    index = ContextualIndex.open(Path(folder, "pages"), embed_model=Synthetic())
    return index.as_retriever(TOP_K, mode=mode)


def stock(store: ChromaVectorStore, keyword: BM25Retriever, per_arm: int = TOP_K) -> QueryFusionRetriever:
    """LlamaIndex's; each arm proposes as many as are returned, unless told otherwise."""
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex([], storage_context=context, embed_model=Synthetic())
    keyword.similarity_top_k = per_arm
    return QueryFusionRetriever(
        [index.as_retriever(similarity_top_k=per_arm), keyword],
        llm=MockLLM(),
        num_queries=1,
        use_async=False,
        mode="reciprocal_rerank",  # type: ignore[arg-type]
        similarity_top_k=TOP_K,
    )
