"""Run a command, and show each error or warning as one line."""

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

__all__ = ["app", "commands", "index_cmd", "main"]  # importing these modules adds their commands


class _WarningLines(logging.Handler):
    """A handler that shows log messages of this package like its warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(record.getMessage(), "warning:")


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Show a warning of this package as a line.

    Warnings of libraries are hidden, because users cannot fix their causes.
    """
    if issubclass(category, ContextualWarning):
        tell(str(message), "warning:")


def main() -> None:
    """Run the command line, and exit with its code."""
    _set_up_output()
    try:
        exit_code = app(standalone_mode=False) or 0
    except SystemExit:  # click raises it if the reader of the output ends, such as `head`
        exit_code = 0
    except click.ClickException as error:
        # A wildcard may have made the name of a file an argument.
        error.message = printable(error.message, one_line=True)  # type: ignore[misc]
        error.show()
        if isinstance(error, click.NoSuchOption):
            tell("Put -- before a question that begins with a dash: search -- -word")
        exit_code = error.exit_code
    except click.Abort:  # Ctrl-C
        tell("interrupted")
        exit_code = INTERRUPTED
    except (ContextualError, OSError) as error:  # an OSError names the file or the disk
        tell(str(error), "error:", "red")
        exit_code = 1
    sys.exit(exit_code)


def _set_up_output() -> None:
    """Show only this package's warnings and log, and escape unencodable characters."""
    warnings.showwarning = _show_warning
    logging.getLogger().addHandler(logging.NullHandler())  # hides the log of libraries
    logger = logging.getLogger("llama_index_contextual")
    logger.handlers[:] = [_WarningLines(logging.WARNING)]
    logger.propagate = False
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe on Windows, a terminal in Latin-1
        sys.stdout.reconfigure(errors="backslashreplace")
