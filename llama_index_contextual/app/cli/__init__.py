"""The command line: thin shells over the index, its memory, and what serves them.

Results go to standard output. Progress and messages go to standard error.

Exit codes: 0 done. 1 an error that was explained. 2 a command line that cannot be understood. 3
done, but some files could not be read, or ``status --check`` found a disagreement. 130 interrupted
by Ctrl-C.
"""

from llama_index_contextual.app.cli.run import app, main

__all__ = ["app", "main"]
