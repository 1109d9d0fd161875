"""Retrievers: the keyword arm and the vector arm, their fusion, and why each hit is one."""

from llama_index_contextual.retrieval.arms import keyword_of
from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrieval.contextual import ContextualNodePostprocessor
from llama_index_contextual.retrieval.explain import Explanation, Hit
from llama_index_contextual.retrieval.fusion import Mode
from llama_index_contextual.retrieval.fusion_retriever import POOL, ContextualFusionRetriever
from llama_index_contextual.retrieval.postprocessors import (
    GroupingPostprocessor,
    RecencyPostprocessor,
    RerankWithContext,
    decay,
)
from llama_index_contextual.retrieval.question import Question, answer_question
from llama_index_contextual.retrieval.signals import NearDuplicates
from llama_index_contextual.retrieval.stores import run, stored_nodes
from llama_index_contextual.retrieval.vector import ContextualVectorRetriever
