"""The command line: thin shells over the index, its memory, and what serves them.

Results go to standard output. Progress and messages go to standard error.

Exit codes: 0 done. 1 an error that was explained. 2 a command line that cannot be understood. 3 done, but some files
could not be read, or ``status --check`` found a disagreement. 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from typing import Any

import click

from llama_index_contextual.app.cli import commands, index_cmd
from llama_index_contextual.app.cli.options import INTERRUPTED, app, tell
from llama_index_contextual.utils.errors import ContextualError, ContextualWarning
from llama_index_contextual.utils.text import printable

__all__ = ["app", "commands", "index_cmd", "main"]


class _Log(logging.Handler):
    """Writes what this package logs in the same way as its warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(record.getMessage(), "warning:")


def _tell_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Show our own warnings as one line. A user cannot mend those of libraries, so they are not shown."""
    if issubclass(category, ContextualWarning):
        tell(str(message), "warning:")


def main() -> None:
    """Run the command line. Each error of ours ends as one clear line."""
    warnings.showwarning = _tell_warning
    logging.getLogger().addHandler(logging.NullHandler())  # what libraries log is not shown either
    logger = logging.getLogger("llama_index_contextual")
    logger.handlers[:], logger.propagate = [_Log(logging.WARNING)], False
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe on Windows, a terminal in Latin-1
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False) or 0
    except SystemExit:  # of click alone, where who read the output has left: head
        code = 0
    except click.ClickException as error:
        # An argument may be the name of a file, by a star.
        error.message = printable(error.message, one_line=True)  # type: ignore[misc]
        error.show()
        if isinstance(error, click.NoSuchOption):
            tell("A question that begins with a dash stands after --: search -- -word")
        sys.exit(error.exit_code)
    except click.Abort:  # Ctrl-C
        tell("interrupted")
        sys.exit(INTERRUPTED)
    except (ContextualError, OSError) as error:  # an OSError names the file or the disk
        tell(str(error), "error:", "red")
        sys.exit(1)
    sys.exit(code)
