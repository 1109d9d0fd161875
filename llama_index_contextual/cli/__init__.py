"""The command line: thin shells over ``ContextualIndex`` and ``MemoryContext``.

Results go to standard output. Progress and messages go to standard error.

Exit codes: 0 done. 1 an error that was explained. 2 a command line that cannot be understood. 3 done, but some files
could not be read, or ``verify`` found a disagreement. 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import typer

from llama_index_contextual.cli import reading, writing
from llama_index_contextual.cli.common import escape_unencodable, messages, plain, show_warning
from llama_index_contextual.errors import ContextualError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app", "main"]

EXIT_ERROR: Final = 1
EXIT_INTERRUPTED: Final = 130  # what a shell reports for a program that SIGINT ended

app = typer.Typer(
    name="llama-index-contextual",
    help="Give every chunk of your Markdown its context back, and find it again. No key, no network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """End a command on Ctrl-C with one line. The versions of typer differ in what they say and return."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            kept = ": what was finished is kept, and the same command goes on" if command is writing.index else ""
            messages.print(f"[yellow]interrupted[/]{kept}")
            raise typer.Exit(EXIT_INTERRUPTED) from None

    return run


for command in (
    writing.index,
    reading.search,
    reading.preview,
    reading.evaluate,
    reading.context,
    reading.mcp,
    reading.status,
    reading.verify,
    reading.export,
):
    app.command()(_interruptible(command))


def main() -> None:
    """Run the command line. Each error of ours ends as one clear line."""
    os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")  # chromadb's
    warnings.showwarning = show_warning
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe on Windows, a terminal in Latin-1
        sys.stdout.reconfigure(errors=escape_unencodable)
    try:
        app()
    except BrokenPipeError:  # `… | head` closed the pipe, which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ContextualError, OSError) as error:  # an OSError names the file or the disk
        messages.print(f"[red]error:[/] {plain(str(error))}")
        sys.exit(EXIT_ERROR)
