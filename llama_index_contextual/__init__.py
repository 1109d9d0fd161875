"""Contextual retrieval for LlamaIndex: chunks keep the context that chunking removes.

The names below are the public interface. Importing LlamaIndex takes most of a second, so each name
is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_contextual.utils import lazy

if TYPE_CHECKING:
    from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor
    from llama_index_contextual.memory import MemoryContext
    from llama_index_contextual.node_parser import HeadingAwareMarkdownNodeParser
    from llama_index_contextual.postprocessors import (
        GroupingPostprocessor,
        RecencyPostprocessor,
        RerankWithContext,
    )
    from llama_index_contextual.retrievers import (
        ContextualBM25Retriever,
        ContextualFusionRetriever,
        ContextualVectorRetriever,
    )
    from llama_index_contextual.tools import contextual_tools
    from llama_index_contextual.utils.errors import ContextualError, ContextualWarning

__all__ = [
    "ContextualBM25Retriever",
    "ContextualError",
    "ContextualFusionRetriever",
    "ContextualNodePostprocessor",
    "ContextualVectorRetriever",
    "ContextualWarning",
    "GroupingPostprocessor",
    "HeadingAwareMarkdownNodeParser",
    "MemoryContext",
    "RecencyPostprocessor",
    "RerankWithContext",
    "contextual_tools",
]

__version__ = "0.1.0"

_MODULES = {
    "ContextualBM25Retriever": "retrievers.bm25",
    "ContextualError": "utils.errors",
    "ContextualFusionRetriever": "retrievers.fusion",
    "ContextualNodePostprocessor": "context.postprocessor",
    "ContextualVectorRetriever": "retrievers.vector",
    "ContextualWarning": "utils.errors",
    "GroupingPostprocessor": "postprocessors.grouping",
    "HeadingAwareMarkdownNodeParser": "node_parser.parser",
    "MemoryContext": "memory.context",
    "RecencyPostprocessor": "postprocessors.recency",
    "RerankWithContext": "postprocessors.rerank",
    "contextual_tools": "tools.function_tools",
    # These names belong to the application. The plug-in never imports it.
    "ContextualIndex": "app",
    "LocalEmbedding": "app",
}

__getattr__, __dir__ = lazy.attach(__name__, _MODULES)
