"""Keyword search: texts as terms, the BM25 index of them, metadata filters, and what a question says of both.

All names of these modules are names of this package.
"""

from llama_index_contextual.keyword.arrays import *
from llama_index_contextual.keyword.bm25_index import *
from llama_index_contextual.keyword.dates import *
from llama_index_contextual.keyword.filters import *
from llama_index_contextual.keyword.names import *
from llama_index_contextual.keyword.node_index import *
from llama_index_contextual.keyword.query import *
from llama_index_contextual.keyword.terms import *
