"""Tools with which an agent works in notes.

`retrieve`, `grep`, `list`, `read` and `memory_context`.
"""

from llama_index_contextual.tools.function_tools import contextual_tools

__all__ = ["contextual_tools"]
