"""Node postprocessors: context for nodes, recency for scores."""

from llama_index_contextual.postprocessor.contextual import ContextualNodePostprocessor
from llama_index_contextual.postprocessor.recency import RecencyExplanation, RecencyPostprocessor

__all__ = ["ContextualNodePostprocessor", "RecencyExplanation", "RecencyPostprocessor"]
