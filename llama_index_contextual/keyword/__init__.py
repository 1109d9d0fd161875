"""Keyword search: texts as terms, the BM25 index of them, metadata filters, and what a question says of both."""

from llama_index_contextual.keyword.arrays import ArrayIndex, Floats, Ints, RowArrays, matches
from llama_index_contextual.keyword.bm25_index import Bm25Index, Candidate, TermEvidence, TermScores
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
    REF_DOC_ALIASES,
    admits,
    both,
    check_filters,
    condition_of,
    filter_in_words,
    items_of,
    nearest_names,
)
from llama_index_contextual.keyword.names import (
    LONGEST_NAME,
    NAMES_VERSION,
    NAMING,
    TOP_HEADING,
    NameIndex,
    document_names,
    folded_name,
    titles_in,
)
from llama_index_contextual.keyword.node_index import KeywordIndex, KeywordView, lexical_text
from llama_index_contextual.keyword.query import days_filter, note_filters, parse_query, unknown_words_note
from llama_index_contextual.keyword.terms import TERMS_VERSION, Group, has_stop_words, query_groups, terms_of
