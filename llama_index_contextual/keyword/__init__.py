"""Keyword search: the analyzer, the BM25 index that it feeds, and metadata filters.

:class:`Analyzer` turns text into terms, in the same way for documents and for queries; :class:`KeywordIndex` scores
them.
"""

from llama_index_contextual.keyword.analyzer import Analyzer
from llama_index_contextual.keyword.evidence import TermEvidence
from llama_index_contextual.keyword.index import KeywordIndex

__all__ = ["Analyzer", "KeywordIndex", "TermEvidence"]
