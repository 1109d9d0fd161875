"""Recall of an index in Qdrant beside one in Chroma with BM25, on the same chunks and vectors.

    python benchmarks/stores.py [--sets codebases locomo-notes] [--collections N] [--url URL] [--out FILE]

Both have our contexts and the learned fusion. In Qdrant keywords are sparse vectors that the store scores. Without
``--url`` it is Qdrant's local mode, which compares every vector; a server's answers may differ a little, as its index
of vectors is approximate.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from common import RememberingEmbedding, intervals, machine, markdown_table
from datasets import first_collections
from llama_index.core.schema import MetadataMode
from llama_index_contextual.index.qdrant import QdrantDatabase
from qdrant_client import QdrantClient
from retrieval import POOL, SETS, Bench, Row, measure

from llama_index_contextual.index import store as seam
from llama_index_contextual.retrievers import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualVectorRetriever,
)
from llama_index_contextual.retrievers.search import Unchanging

if TYPE_CHECKING:
    from llama_index.core.base.base_retriever import BaseRetriever


class QdrantBench(Bench):
    """The same nodes and vectors in Qdrant."""

    database: Any = None

    def _store(self, context: str) -> Any:
        nodes = self.nodes(context)
        vectors = self.embedding.get_text_embedding_batch([n.get_content(MetadataMode.EMBED) for n in nodes])
        store = self.database.collection(f"bench_{uuid4().hex}", "bench")
        store.upsert(
            [
                seam.Row(node, seam.store_metadata(node, node.ref_doc_id or "", "file"), vector=vector)
                for node, vector in zip(nodes, vectors, strict=True)
            ]
        )
        return store

    def retriever(self, row: Row) -> BaseRetriever:
        """Put the row's arms together over one collection."""
        reader = Unchanging(self.store(row.dense or row.sparse).keywords())
        vector = ContextualVectorRetriever.over(reader, self.embedding, similarity_top_k=POOL)
        keyword = ContextualBM25Retriever.over(reader, similarity_top_k=POOL)
        arms = [arm for arm, wanted in ((vector, row.dense), (keyword, row.sparse)) if wanted]
        return arms[0] if len(arms) == 1 else ContextualFusionRetriever(arms, similarity_top_k=POOL)


def main() -> None:
    """Measure the sets that were asked for and print a table each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=["codebases", "course-lessons"])
    parser.add_argument("--collections", type=int, help="of sets with an index each, the first ones; all by default")
    parser.add_argument("--url", help="a Qdrant server; local mode by default")
    parser.add_argument("--out", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    QdrantBench.database = (
        QdrantDatabase.served(options.url) if options.url else QdrantDatabase(QdrantClient(":memory:"))
    )
    where = f"server at {options.url}" if options.url else "local mode"
    parts = [
        f"# Stores\n\nMachine: {machine()}; embedding all-MiniLM-L6-v2-int8; Qdrant: {where}. `benchmarks/stores.py`"
    ]
    embedding = RememberingEmbedding()
    for name in options.sets:
        started, data = time.monotonic(), first_collections(SETS[name](), options.collections)
        context = "pattern" if data.chunks else "headings"
        texts = [question.text for question in data.questions]
        vectors = dict(zip(texts, embedding.get_text_embedding_batch(texts), strict=True))
        rows, found = [], {}
        kinds = {
            "vector arm": Row("", context),
            "keyword arm": Row("", sparse=context),
            "fused": Row("", context, context),
        }
        for store, make in (("Chroma and BM25", Bench), ("Qdrant", QdrantBench)):
            benches = {collection: make(data, collection, embedding) for collection in data.documents}
            for kind, row in kinds.items():
                one = found[store, kind] = measure(data, row, benches, vectors)
                rows.append([store, kind, *(100 * one.recalls.mean(axis=0)).tolist(), 100 * one.mrr])
        for kind in kinds:
            difference = found["Qdrant", kind].recalls - found["Chroma and BM25", kind].recalls
            rows.append(["Qdrant less Chroma", kind, *intervals(100 * difference), ""])
        table = markdown_table(["store", "", "recall@5, %", "@10", "@20", "MRR"], rows)
        asked = f"{name}: {len(data.documents)} indexes, {len(texts)} questions"
        parts.append(f"## {asked}\n\n{table}")
        print(f"{parts[-1]}\n{time.monotonic() - started:.0f} s", flush=True)
    if options.out:
        options.out.write_text("\n\n".join(parts) + "\n", "utf-8")


if __name__ == "__main__":
    main()
