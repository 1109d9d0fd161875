"""An embedding that needs no model."""

from __future__ import annotations

import hashlib

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding


class HashedWords(BaseEmbedding):
    """Unit vectors of hashed words: deterministic, and close where words are shared."""

    def _vector(self, text: str) -> list[float]:
        vector = np.full(64, 0.01)
        for word in text.lower().split():
            vector[int(hashlib.sha256(word.encode()).hexdigest(), 16) % 64] += 1
        return (vector / np.linalg.norm(vector)).tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vector(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._vector(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vector(text)
