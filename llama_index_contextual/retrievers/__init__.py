"""Retrievers: the keyword arm and the vector arm, their fusion, and why each hit is one."""

from llama_index_contextual.keyword import TermEvidence
from llama_index_contextual.retrievers.arms import KEYWORD_WEIGHT, keyword_of
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.chroma import (
    ENOUGH,
    GRAPH,
    TOP,
    found_share,
    made_questions,
    pages,
    queried,
)
from llama_index_contextual.retrievers.explain import Explanation, Hit, hit_views
from llama_index_contextual.retrievers.fusion import Mode, Ranking, fuse
from llama_index_contextual.retrievers.hybrid import POOL, RRF_K, ContextualFusionRetriever, search_of
from llama_index_contextual.retrievers.pipeline import Search
from llama_index_contextual.retrievers.relevance import AUTO, Least, least_relevance, said_least
from llama_index_contextual.retrievers.search import DenseSearch, KeywordSearch, SearchStore, StoreReader
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever

__all__ = [  # what users import
    "KEYWORD_WEIGHT",
    "POOL",
    "ContextualBM25Retriever",
    "ContextualFusionRetriever",
    "ContextualVectorRetriever",
    "DenseSearch",
    "Explanation",
    "Hit",
    "KeywordSearch",
    "SearchStore",
    "StoreReader",
    "TermEvidence",
]
