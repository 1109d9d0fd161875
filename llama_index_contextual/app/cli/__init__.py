"""The command line: thin shells over ``ContextualIndex`` and ``MemoryContext``.

Results go to standard output. Progress and messages go to standard error.

Exit codes: 0 done. 1 an error that was explained. 2 a command line that cannot be understood. 3 done, but some files
could not be read, or ``status --check`` found a disagreement. 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from llama_index_contextual import __version__
from llama_index_contextual.app.cli import common, measuring, reading, search, settings, writing
from llama_index_contextual.errors import ContextualError

__all__ = ["app", "main"]

EXIT_ERROR: Final = 1


class _Commands(TyperGroup):
    """Ends a command on Ctrl-C with one line. The versions of typer differ in what they say and return."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if ctx.invoked_subcommand == "index":
                common.tell("what was finished is kept, and the same command goes on", "interrupted:")
            else:
                common.tell("", "interrupted")
            raise typer.Exit(common.EXIT_INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    name="llama-index-contextual",
    help="Give every chunk of your Markdown its context back, and find it again. No key, no network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
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


for command in (
    writing.index,
    search.search,
    search.ask,
    search.serve,
    reading.preview,
    measuring.evaluate,
    reading.context,
    reading.mcp,
    reading.status,
    settings.config,
):
    app.command()(command)


def main() -> None:
    """Run the command line. Each error of ours ends as one clear line."""
    os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")  # chromadb's
    warnings.showwarning = common.tell_warning
    common.tell_log()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe on Windows, a terminal in Latin-1
        sys.stdout.reconfigure(errors=common.escape_unencodable)
    try:
        app()
    except BrokenPipeError:  # `… | head` closed the pipe, which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ContextualError, OSError) as error:  # an OSError names the file or the disk
        common.tell_error(error)
        sys.exit(EXIT_ERROR)
