"""Measure retrieval on one's own documents: questions with known answers, recall and comparisons."""

from llama_index_contextual.app.evaluation.comparison import Comparison, compare, evaluate, html_report
from llama_index_contextual.app.evaluation.questions import Passage, Question, load_questions

__all__ = ["Comparison", "Passage", "Question", "compare", "evaluate", "html_report", "load_questions"]
