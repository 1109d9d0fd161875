"""The command line: thin wrappers around the index, its memory and its servers.

Results go to standard output. Progress and messages go to standard error.

Exit codes: 0 success. 1 an error with a message. 2 a command line that is not valid. 3 success, but
some files could not be read, or ``status --check`` found an inconsistency. 130 interrupted by
Ctrl-C.
"""

from llama_index_contextual.app.cli.run import app, main

__all__ = ["app", "main"]
