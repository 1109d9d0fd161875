"""The pipeline that the README begins with; ``make demo`` runs it."""

import chromadb
from llama_index.core import QueryBundle, SimpleDirectoryReader, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.chroma import ChromaVectorStore

import llama_index_contextual as ctx
from llama_index_contextual.app import LocalEmbedding

question = "What is the default timeout of the gateway?"
documents = SimpleDirectoryReader("examples/notes", recursive=True, filename_as_id=True).load_data()
steps = [
    ctx.HeadingAwareMarkdownNodeParser(),
    ctx.ContextualNodePostprocessor(),
]  # chunks, and their contexts
nodes = IngestionPipeline(transformations=steps).run(documents=documents)

collection = chromadb.PersistentClient(".chroma").get_or_create_collection("notes")
storage = StorageContext.from_defaults(vector_store=ChromaVectorStore(chroma_collection=collection))
index = VectorStoreIndex(nodes, storage_context=storage, embed_model=LocalEmbedding())

arms = [
    index.as_retriever(similarity_top_k=10),
    BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=10),
]
stock = QueryFusionRetriever(
    arms, llm=MockLLM(), num_queries=1, mode="reciprocal_rerank", similarity_top_k=3
)
arms = [ctx.ContextualVectorRetriever(index), ctx.ContextualBM25Retriever(nodes)]
ours = ctx.ContextualFusionRetriever(arms, similarity_top_k=3)

for fusion in (
    stock,
    ours,
):  # each as a query engine; no key is needed before a model writes an answer
    engine = RetrieverQueryEngine.from_args(
        fusion, llm=MockLLM(), node_postprocessors=[ctx.RecencyPostprocessor()]
    )
    print(type(fusion).__name__)
    for hit in engine.retrieve(QueryBundle(question)):
        meta, text = hit.node.metadata, " ".join(hit.node.get_content().split())
        print(
            f"{hit.score:.2f} {meta['file_name']}#L{meta['start_line']}-L{meta['end_line']}  {text[:60]}"
        )
