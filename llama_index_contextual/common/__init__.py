"""What every room needs: errors, the names of metadata, texts and their languages, days and tokens, SQLite files.

All names of these modules are names of this package, but for ``tracing``, which imports LlamaIndex.
"""

from llama_index_contextual.common.dates import *
from llama_index_contextual.common.errors import *
from llama_index_contextual.common.language import *
from llama_index_contextual.common.metadata import *
from llama_index_contextual.common.normalize import *
from llama_index_contextual.common.sqlite_file import *
from llama_index_contextual.common.tokens import *
