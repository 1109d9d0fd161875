"""Tools for agents that work with notes: `retrieve`, `grep`, `list`, `read`, `memory_context`."""

from llama_index_contextual.tools.function_tools import contextual_tools

__all__ = ["contextual_tools"]
