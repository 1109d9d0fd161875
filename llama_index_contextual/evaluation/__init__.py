"""Measure retrieval on one's own documents: metrics, questions with known answers, and comparisons."""

from llama_index_contextual.evaluation.comparison import Comparison, Measured, compare
from llama_index_contextual.evaluation.folder import evaluate
from llama_index_contextual.evaluation.metrics import mean_reciprocal_rank, recall_at
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
