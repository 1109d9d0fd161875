"""Node postprocessors: context for nodes, recency for scores, few of each document, and rerankers."""

from llama_index_contextual.postprocessor.contextual import ContextualNodePostprocessor
from llama_index_contextual.postprocessor.reorder import (
    CollectionWeights,
    GroupingPostprocessor,
    RecencyExplanation,
    RecencyPostprocessor,
)
from llama_index_contextual.postprocessor.rerank import reranker

__all__ = [  # what users import
    "ContextualNodePostprocessor",
    "GroupingPostprocessor",
    "RecencyExplanation",
    "RecencyPostprocessor",
]
