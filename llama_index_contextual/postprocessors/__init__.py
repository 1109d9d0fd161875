"""Postprocessors that rank hits by age, limit hits per document, or rerank hits with context."""

from llama_index_contextual.postprocessors.grouping import GroupingPostprocessor
from llama_index_contextual.postprocessors.recency import RecencyPostprocessor
from llama_index_contextual.postprocessors.rerank import RerankWithContext

__all__ = ["GroupingPostprocessor", "RecencyPostprocessor", "RerankWithContext"]
