"""The configuration of a folder: one file that Python, the command line and the MCP server read alike.

The file is ``contextual.toml`` in the folder, or the table ``[tool.llama-index-contextual]`` of its
``pyproject.toml``. A value is taken from the first place that says it: an argument in Python, an option of the command
line, an environment variable (``LLAMA_INDEX_CONTEXTUAL_CHUNKS__SIZE``), the file, the index, the default.

This room knows the first four places below the argument. Where none of them says a value, it is None here, and the
index or the default decides.
"""

from llama_index_contextual.config.keys import Configuration, Memory, Retrieval, descriptions_of, fields_of, shown_of
from llama_index_contextual.config.places import FILE, PREFIX, load_configuration

__all__ = [
    "FILE",
    "PREFIX",
    "Configuration",
    "Memory",
    "Retrieval",
    "descriptions_of",
    "fields_of",
    "load_configuration",
    "shown_of",
]
