"""The configuration of a folder: one file that Python, the command line and the MCP server read alike.

The file is ``contextual.toml`` in the folder, or the table ``[tool.llama-index-contextual]`` of its
``pyproject.toml``. A value is taken from the first place that says it: an argument in Python, an option of the command
line, an environment variable (``LLAMA_INDEX_CONTEXTUAL_CHUNKS__CHUNK_SIZE``), the file, the user's own file, the index,
the default. A folder's own file sets harmless keys only: no servers, models, stores, paths or secrets.

This room knows these places but for the argument and the index. ``Configuration.get`` gives None for what none of them
says: then the index or the default decides.
"""

from llama_index_contextual.app.config.declaring import MOST_HITS, Calls, Setting, Size
from llama_index_contextual.app.config.keys import (
    SETTINGS,
    Chunks,
    Collection,
    Configuration,
    ContextOptions,
    Files,
    MemorySettings,
    Refreshing,
    Retrieval,
    Reuse,
    descriptions_of,
)
from llama_index_contextual.app.config.places import (
    FILE,
    PREFIX,
    USER_FILE,
    Entry,
    checked,
    completed,
    load_configuration,
)
from llama_index_contextual.app.config.trust import (
    is_safe,
    is_strange,
    may_say,
    user_folder,
    user_storage,
)
