"""Contexts of chunks: the generators, and the postprocessor that writes contexts into nodes."""

from llama_index_contextual.context.base import ChunkContext, ContextGenerator, SourceDocument

__all__ = ["ChunkContext", "ContextGenerator", "SourceDocument"]
