"""Contexts of chunks: their generators, and the postprocessor that writes them into nodes."""

from llama_index_contextual.context.base import ChunkContext, ContextGenerator, SourceDocument
from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor

__all__ = ["ChunkContext", "ContextGenerator", "ContextualNodePostprocessor", "SourceDocument"]
