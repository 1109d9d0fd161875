"""Embeddings: those that run on this machine, those that see a whole document, and the names that choose one."""

from llama_index_contextual.app.embeddings.documents import DocumentEmbedding, EmbedDocuments
from llama_index_contextual.app.embeddings.local import MODEL_NAME, E5Embedding, LocalEmbedding
from llama_index_contextual.app.embeddings.onnx import send_no_telemetry
from llama_index_contextual.app.embeddings.resolve import (
    EmbeddingEstimate,
    NoEmbedding,
    embedding_limit,
    estimate_embedding,
    model_id,
    resolve_embedding,
)
from llama_index_contextual.app.embeddings.services import (
    JinaDocumentEmbedding,
    LlamaCppDocumentEmbedding,
    VendorEmbedding,
    VoyageDocumentEmbedding,
)

__all__ = [  # what users import
    "DocumentEmbedding",
    "E5Embedding",
    "EmbedDocuments",
    "EmbeddingEstimate",
    "JinaDocumentEmbedding",
    "LlamaCppDocumentEmbedding",
    "LocalEmbedding",
    "NoEmbedding",
    "VendorEmbedding",
    "VoyageDocumentEmbedding",
    "embedding_limit",
    "estimate_embedding",
    "model_id",
    "resolve_embedding",
]
