"""Retrievers: keyword and vector arms, their fusion, and why each hit is one."""

from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.evidence import TermEvidence
from llama_index_contextual.retrievers.explain import Explanation, Hit
from llama_index_contextual.retrievers.hybrid import ContextualFusionRetriever
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever

__all__ = [
    "ContextualBM25Retriever",
    "ContextualFusionRetriever",
    "ContextualVectorRetriever",
    "Explanation",
    "Hit",
    "TermEvidence",
]
