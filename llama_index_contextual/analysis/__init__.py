"""Text analysis for keyword search: one analyzer for documents and queries.

:class:`Analyzer` turns text into terms; :class:`SparseEncoder` turns the same terms into sparse vectors for a server.
"""

from llama_index_contextual.analysis.analyzer import Analyzer
from llama_index_contextual.analysis.sparse import SparseEncoder

__all__ = ["Analyzer", "SparseEncoder"]
