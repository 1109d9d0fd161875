"""Retrievers: the keyword arm and the vector arm, their fusion, and why each hit is one."""

from llama_index_contextual.keyword import TermEvidence
from llama_index_contextual.retrieval.arms import KEYWORD_WEIGHT, keyword_of
from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrieval.contextual import ContextualNodePostprocessor
from llama_index_contextual.retrieval.explain import (
    AUTO,
    Explanation,
    Hit,
    Judgement,
    MinScore,
    default_min_score,
    min_score_for,
)
from llama_index_contextual.retrieval.fusion import Mode, Ranking, fuse
from llama_index_contextual.retrieval.fusion_retriever import POOL, RRF_K, ContextualFusionRetriever
from llama_index_contextual.retrieval.question import Answer, NearDuplicates, Question, answer_question, explanation_of
from llama_index_contextual.retrieval.recency import (
    CollectionWeights,
    GroupingPostprocessor,
    RecencyExplanation,
    RecencyPostprocessor,
)
from llama_index_contextual.retrieval.stores import StoreReader, run, stored_nodes
from llama_index_contextual.retrieval.vector import ContextualVectorRetriever

__all__ = [  # what users import
    "KEYWORD_WEIGHT",
    "POOL",
    "ContextualBM25Retriever",
    "ContextualFusionRetriever",
    "ContextualNodePostprocessor",
    "ContextualVectorRetriever",
    "Explanation",
    "GroupingPostprocessor",
    "Hit",
    "RecencyExplanation",
    "RecencyPostprocessor",
    "StoreReader",
    "TermEvidence",
]
