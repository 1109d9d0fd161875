"""Measure retrieval on one's own documents: questions with known answers, metrics and comparisons."""

from llama_index_contextual.app.evaluation.comparison import (
    Comparison,
    RetrieverScores,
    compare,
    html_report,
    mean_reciprocal_rank,
    recall_at,
)
from llama_index_contextual.app.evaluation.folder import evaluate
from llama_index_contextual.app.evaluation.questions import Passage, Question, load_questions

__all__ = [
    "Comparison",
    "Passage",
    "Question",
    "RetrieverScores",
    "compare",
    "evaluate",
    "html_report",
    "load_questions",
    "mean_reciprocal_rank",
    "recall_at",
]
