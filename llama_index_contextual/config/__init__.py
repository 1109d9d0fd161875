"""The configuration of a folder: one file that Python, the command line and the MCP server read alike.

The file is ``contextual.toml`` in the folder, or the table ``[tool.llama-index-contextual]`` of its
``pyproject.toml``. A value is taken from the first place that says it: an argument in Python, an option of the command
line, an environment variable (``LLAMA_INDEX_CONTEXTUAL_CHUNKS__CHUNK_SIZE``), the file, the user's own file, the index,
the default. A folder's own file says servers, models, stores, paths and secrets only where the user trusts it.

This room knows these places but for the argument and the index. ``Configuration.get`` gives None for what none of them
says: then the index or the default decides.
"""

from llama_index_contextual.config.declaring import MOST_HITS, Setting
from llama_index_contextual.config.keys import (
    SETTINGS,
    Configuration,
    MemorySettings,
    Refreshing,
    Retrieval,
    descriptions_of,
)
from llama_index_contextual.config.places import FILE, PREFIX, USER_FILE, folder_config, load_configuration
from llama_index_contextual.config.trust import is_safe, user_folder

__all__ = [
    "FILE",
    "MOST_HITS",
    "PREFIX",
    "SETTINGS",
    "USER_FILE",
    "Configuration",
    "MemorySettings",
    "Refreshing",
    "Retrieval",
    "Setting",
    "descriptions_of",
    "folder_config",
    "is_safe",
    "load_configuration",
    "user_folder",
]
