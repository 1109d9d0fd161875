"""Postprocessors that reorder hits: by age, by document, and by a reranker that reads contexts."""

from llama_index_contextual.postprocessors.grouping import GroupingPostprocessor
from llama_index_contextual.postprocessors.recency import RecencyPostprocessor
from llama_index_contextual.postprocessors.rerank import RerankWithContext

__all__ = ["GroupingPostprocessor", "RecencyPostprocessor", "RerankWithContext"]
