"""What keeps vectors by row number beside the matrix: the seam, and Chroma and Qdrant behind it."""

from llama_index_contextual.app.vector_stores.engine import VectorEngine

__all__ = ["VectorEngine"]
