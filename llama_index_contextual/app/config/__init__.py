"""The configuration of a folder: one file that Python, the command line and the MCP server read alike.

The file is ``contextual.toml`` in the folder, or the table ``[tool.llama-index-contextual]`` of its
``pyproject.toml``. A value is taken from the first place that says it: an argument in Python, an option of the command
line, an environment variable (``LLAMA_INDEX_CONTEXTUAL_CHUNKS__CHUNK_SIZE``), the file, the user's own file, the index,
the default. A folder's own file says servers, models, stores, paths and secrets only where the user trusts it.

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
    folder_config,
    load_configuration,
)
from llama_index_contextual.app.config.trust import (
    digest_of,
    is_safe,
    is_sealed,
    is_strange,
    is_trusted,
    may_say,
    seal_of,
    user_folder,
    user_storage,
)
