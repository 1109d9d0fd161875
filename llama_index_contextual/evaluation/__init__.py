"""Measure retrieval: metrics on plain lists of ids."""

from llama_index_contextual.evaluation.metrics import mean_reciprocal_rank, recall_at

__all__ = ["mean_reciprocal_rank", "recall_at"]
