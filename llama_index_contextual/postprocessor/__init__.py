"""Node postprocessors: context for nodes, recency for scores, and few of each document."""

from llama_index_contextual.postprocessor.contextual import ContextualNodePostprocessor
from llama_index_contextual.postprocessor.reorder import GroupingPostprocessor, RecencyExplanation, RecencyPostprocessor

__all__ = ["ContextualNodePostprocessor", "GroupingPostprocessor", "RecencyExplanation", "RecencyPostprocessor"]
