"""Keyword search: the analyzer, the BM25 index that it feeds, metadata filters, and what a question says of both.

:class:`Analyzer` turns text into terms, in the same way for documents and for queries; :class:`KeywordIndex` scores
them.
"""

from llama_index_contextual.keyword.analyzer import Analyzer
from llama_index_contextual.keyword.arrays import ArrayIndex, Floats, Ints, RowArrays
from llama_index_contextual.keyword.bm25_index import Bm25Index, Candidate, Group, TermEvidence, TermScores
from llama_index_contextual.keyword.dates import (
    HAS_CJK,
    Lexicon,
    NamedDate,
    closeness,
    find_dates,
    lexicon_of,
    split_words,
    unaccented,
)
from llama_index_contextual.keyword.filters import (
    ITEMS,
    admits,
    both,
    check_filters,
    condition_of,
    filter_in_words,
    items_of,
    nearest_names,
)
from llama_index_contextual.keyword.node_index import KeywordIndex, KeywordView, lexical_text
from llama_index_contextual.keyword.query import days_filter, note_filters, parse_query, unknown_words_note

__all__ = ["Analyzer", "KeywordIndex", "TermEvidence"]  # what users import
