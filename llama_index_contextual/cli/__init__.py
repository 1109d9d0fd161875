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
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llama_index_contextual import __version__
from llama_index_contextual.cli import measuring, reading, settings, writing
from llama_index_contextual.cli.common import (
    EXIT_INTERRUPTED,
    escape_unencodable,
    tell,
    tell_error,
    tell_log,
    tell_warning,
)
from llama_index_contextual.cli.imports import import_late
from llama_index_contextual.errors import ContextualError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app", "main"]

EXIT_ERROR: Final = 1

app = typer.Typer(
    name="llama-index-contextual",
    help="Give every chunk of your Markdown its context back, and find it again. No key, no network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llama-index-contextual {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Give every chunk of your Markdown its context back, and find it again. No key, no network."""
    del version


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """End a command on Ctrl-C with one line. The versions of typer differ in what they say and return."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            kept = "what was finished is kept, and the same command goes on" if command is writing.index else ""
            tell(kept, "interrupted:" if kept else "interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from None

    return run


for command in (
    writing.index,
    reading.search,
    reading.preview,
    measuring.evaluate,
    measuring.tune,
    reading.context,
    reading.mcp,
    reading.status,
    reading.verify,
    reading.export,
    settings.config,
    settings.trust,
):
    app.command()(_interruptible(command))


def main() -> None:
    """Run the command line. Each error of ours ends as one clear line."""
    import_late()
    os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")  # chromadb's
    warnings.showwarning = tell_warning
    tell_log()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe on Windows, a terminal in Latin-1
        sys.stdout.reconfigure(errors=escape_unencodable)
    try:
        app()
    except BrokenPipeError:  # `… | head` closed the pipe, which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ContextualError, OSError) as error:  # an OSError names the file or the disk
        tell_error(error)
        sys.exit(EXIT_ERROR)
