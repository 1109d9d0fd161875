"""Measure retrieval on your own documents: compare retrievers and contexts by questions."""

from llama_index_contextual.app.evaluation.comparison import (
    Comparison,
    RetrieverScores,
    checked_depths,
    compare,
)
from llama_index_contextual.app.evaluation.folder import evaluate
from llama_index_contextual.app.evaluation.metrics import (
    interval,
    mean_reciprocal_rank,
    recall_at,
)
from llama_index_contextual.app.evaluation.questions import Passage, Question, load_questions

__all__ = [
    "Comparison",
    "Passage",
    "Question",
    "RetrieverScores",
    "checked_depths",
    "compare",
    "evaluate",
    "interval",
    "load_questions",
    "mean_reciprocal_rank",
    "recall_at",
]
