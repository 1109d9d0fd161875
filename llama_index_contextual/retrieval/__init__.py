"""Retrievers: the keyword arm and the vector arm, their fusion, and why each hit is one."""

from llama_index_contextual.keyword import TermEvidence
from llama_index_contextual.retrieval.any_store import stored_nodes
from llama_index_contextual.retrieval.arms import KEYWORD_WEIGHT, keyword_of
from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrieval.contextual import ContextualNodePostprocessor
from llama_index_contextual.retrieval.explain import Explanation, Hit, hit_views
from llama_index_contextual.retrieval.fusion import Mode, Ranking, fuse
from llama_index_contextual.retrieval.hybrid import POOL, RRF_K, ContextualFusionRetriever, search_of
from llama_index_contextual.retrieval.pipeline import Search
from llama_index_contextual.retrieval.relevance import AUTO, Least, least_relevance, said_least
from llama_index_contextual.retrieval.reorder import (
    CollectionWeights,
    GroupingPostprocessor,
    RecencyExplanation,
    RecencyPostprocessor,
)
from llama_index_contextual.retrieval.search import DenseSearch, KeywordSearch, SearchStore, StoreReader
from llama_index_contextual.retrieval.vector import ContextualVectorRetriever

__all__ = [  # what users import
    "KEYWORD_WEIGHT",
    "POOL",
    "ContextualBM25Retriever",
    "ContextualFusionRetriever",
    "ContextualNodePostprocessor",
    "ContextualVectorRetriever",
    "DenseSearch",
    "Explanation",
    "GroupingPostprocessor",
    "Hit",
    "KeywordSearch",
    "RecencyExplanation",
    "RecencyPostprocessor",
    "SearchStore",
    "StoreReader",
    "TermEvidence",
]
