"""The command line: thin shells over the index, its memory, and what serves them.

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
from llama_index_contextual.app.cli import commands, index_cmd, options
from llama_index_contextual.errors import ContextualError

_EXIT_ERROR: Final = 1
_ASKING: Final = ("search", "ask", "context")
_HELP: Final = "Give every chunk of your Markdown its context back, and find it again. No key, no network."


class _Commands(TyperGroup):
    """Explains a question that begins with a dash."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:  # typer's own copy of click has the class
            if type(error).__name__ == "NoSuchOption" and ctx.invoked_subcommand in _ASKING:
                hint = f"A question that begins with a dash stands after --: {ctx.invoked_subcommand} -- -word"
                vars(error)["message"] = f"{error}. {hint}"
            raise


app = typer.Typer(
    cls=_Commands,
    name="llama-index-contextual",
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in sorted(options.COMMANDS, key=lambda command: command.__name__ != "index"):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llama-index-contextual {__version__}")
        raise typer.Exit


@app.callback(help=_HELP)
def _common(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_print_version)
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command line. Each error of ours ends as one clear line."""
    os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")  # chromadb's
    warnings.showwarning = options.tell_warning
    options.write_log()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe on Windows, a terminal in Latin-1
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except (KeyboardInterrupt, SystemExit) as ended:  # typer makes one of the other
        if isinstance(ended, SystemExit) and ended.code != options.EXIT_INTERRUPTED:
            raise
        kept = ": what was finished is kept, and the same command goes on" if sys.argv[1:2] == ["index"] else ""
        options.tell("", f"interrupted{kept}")
        sys.exit(options.EXIT_INTERRUPTED)
    except BrokenPipeError:  # `… | head` closed the pipe, which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ContextualError, OSError) as error:  # an OSError names the file or the disk
        options.tell_error(error)
        sys.exit(_EXIT_ERROR)
