"""Contexts of chunks: what makes them, and the postprocessor that writes them into nodes."""

from llama_index_contextual.context.base import ChunkContext, ContextGenerator, SourceDocument

__all__ = ["ChunkContext", "ContextGenerator", "SourceDocument"]
