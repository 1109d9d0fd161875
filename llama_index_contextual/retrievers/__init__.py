"""Retrievers by keywords and by vectors, and their fusion."""

from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.explanation import Explanation, Hit
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever

__all__ = [
    "ContextualBM25Retriever",
    "ContextualFusionRetriever",
    "ContextualVectorRetriever",
    "Explanation",
    "Hit",
]
