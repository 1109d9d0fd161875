"""The pipeline of the README; ``make demo`` runs it."""

import chromadb
from llama_index.core import SimpleDirectoryReader, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.chroma import ChromaVectorStore

import llama_index_contextual as ctx
from llama_index_contextual.app import LocalEmbedding

question = "What is the default number of retries of the scheduler?"
embed_model = LocalEmbedding()  # or OllamaEmbedding("nomic-embed-text"), or OpenAIEmbedding()
llm = MockLLM()  # or OpenAI("gpt-4.1-mini"): it writes the answers of engine.query()

# Cut documents along their headings, and write a context into each chunk.
documents = SimpleDirectoryReader("examples/notes", recursive=True, filename_as_id=True).load_data()
steps = [ctx.HeadingAwareMarkdownNodeParser(), ctx.ContextualNodePostprocessor()]
nodes = IngestionPipeline(transformations=steps).run(documents=documents)

# Store text, context and vectors in Chroma.
collection = chromadb.PersistentClient(".chroma").get_or_create_collection("notes")
storage = StorageContext.from_defaults(vector_store=ChromaVectorStore(chroma_collection=collection))
index = VectorStoreIndex(nodes, storage_context=storage, embed_model=embed_model)

# Combine vectors and BM25: first with LlamaIndex's retrievers, then with those of this package.
stock = QueryFusionRetriever(
    [index.as_retriever(), BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=10)],
    llm=llm,
    num_queries=1,
    mode="reciprocal_rerank",
    similarity_top_k=3,
)
contextual = ctx.ContextualFusionRetriever(
    [ctx.ContextualVectorRetriever(index), ctx.ContextualBM25Retriever(nodes)], similarity_top_k=3
)

# Ask a query engine. Recency puts the newest of equally good hits first.
for retriever in (stock, contextual):
    recency = ctx.RecencyPostprocessor()
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm, node_postprocessors=[recency])
    print(type(retriever).__name__)
    for source in engine.query(question).source_nodes:
        lines = "L{start_line}-L{end_line}".format(**source.node.metadata)
        text = " ".join(source.node.text.split())
        print(f"{source.score:.2f} {source.node.metadata['file_name']}#{lines}  {text[:50]}")
