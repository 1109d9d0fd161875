"""Contexts from a language model: what it is asked, how it is asked, and what its answers are worth."""

from llama_index_contextual.context.llm.generator import LLMContextGenerator
from llama_index_contextual.context.llm.request import Patience

__all__ = ["LLMContextGenerator", "Patience"]
