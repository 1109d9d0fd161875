"""Make sparse vectors from the analyzer's terms, for a server that scores them (Qdrant with its IDF modifier)."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from llama_index_contextual.keyword.analyzer import Analyzer

SparseVectors = tuple[list[list[int]], list[list[float]]]


@lru_cache(maxsize=1 << 15)
def dimension_of(term: str) -> int:
    """Return a term's dimension: 31 bits of a hash, which needs no vocabulary and is equal in every process."""
    return int.from_bytes(hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big") >> 1


@dataclass(frozen=True)
class SparseEncoder:
    """Write BM25 as sparse vectors: term saturation is in the documents, the server weights terms by their rarity.

    Args:
        analyzer: Makes the terms.
        k1: BM25's term saturation.
        b: BM25's length normalisation.
        average_length: Terms in an average document. It is fixed, because stored vectors do not follow the corpus.

    Example:
        ``QdrantVectorStore(..., enable_hybrid=True, sparse_doc_fn=encoder.documents, sparse_query_fn=encoder.queries)``
    """

    analyzer: Analyzer = field(default_factory=Analyzer)
    k1: float = 1.2
    b: float = 0.75
    average_length: float = 200.0

    def documents(self, texts: list[str]) -> SparseVectors:
        """Return the indices and the values of each document's sparse vector."""
        return self._encode([self._saturated(self.analyzer.tokens(text)) for text in texts])

    def queries(self, texts: list[str]) -> SparseVectors:
        """Return the indices and the values of each query's sparse vector: 1.0 for each term."""
        return self._encode([dict.fromkeys(self.analyzer.query_tokens(text), 1.0) for text in texts])

    def _saturated(self, terms: list[str]) -> dict[str, float]:
        norm = self.k1 * (1 - self.b + self.b * len(terms) / self.average_length)
        return {term: count / (count + norm) for term, count in Counter(terms).items()}

    @staticmethod
    def _encode(weights: list[dict[str, float]]) -> SparseVectors:
        indices, values = [], []
        for document in weights:
            by_dimension: dict[int, float] = {}
            for term, weight in document.items():
                dimension = dimension_of(term)
                by_dimension[dimension] = by_dimension.get(dimension, 0.0) + weight
            indices.append(list(by_dimension))
            values.append(list(by_dimension.values()))
        return indices, values
