"""Measure retrieval on one's own documents: questions with known answers, metrics and comparisons."""

from llama_index_contextual.evaluation.comparison import (
    Comparison,
    Measured,
    compare,
    mean_reciprocal_rank,
    recall_at,
)
from llama_index_contextual.evaluation.folder import evaluate
from llama_index_contextual.evaluation.questions import Passage, Question, load_questions

__all__ = [
    "Comparison",
    "Measured",
    "Passage",
    "Question",
    "compare",
    "evaluate",
    "load_questions",
    "mean_reciprocal_rank",
    "recall_at",
]
