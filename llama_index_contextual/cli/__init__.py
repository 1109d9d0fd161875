"""The command line: thin shells over ``ContextualIndex`` and ``MemoryContext``.

Results go to standard output, progress and messages to standard error.

Exit codes: 0 done, 1 an error that was explained, 2 a command line that cannot be understood, 3 done, but some files
could not be read, or ``verify`` found that something does not agree.
"""

from __future__ import annotations

import io
import os
import sys
import warnings

import typer

from llama_index_contextual.cli import evaluation, folder, inspection, memory
from llama_index_contextual.cli.common import escape_unencodable, messages, plain, show_warning
from llama_index_contextual.errors import ContextualError

__all__ = ["app", "main"]

EXIT_ERROR = 1

app = typer.Typer(
    name="llama-index-contextual",
    help="Give every chunk of your Markdown its context back, and find it again. No key, no network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for command in (
    folder.index,
    folder.search,
    folder.preview,
    evaluation.evaluate,
    memory.context,
    memory.mcp,
    inspection.status,
    inspection.verify,
    inspection.export,
):
    app.command()(command)


def main() -> None:
    """Run the command line, and turn every error we know into one clear line."""
    os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")  # chromadb's
    warnings.showwarning = show_warning
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe on Windows, a terminal in Latin-1
        sys.stdout.reconfigure(errors=escape_unencodable)
    try:
        app()
    except ContextualError as error:
        messages.print(f"[red]error:[/] {plain(str(error))}")
        sys.exit(EXIT_ERROR)
    except BrokenPipeError:  # `… | head` closed the pipe: not our error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:  # a file that was named, or a disk: its message says which
        messages.print(f"[red]error:[/] {plain(str(error))}")
        sys.exit(EXIT_ERROR)
