"""The ten commands, and how a run of one ends."""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from llama_index_contextual import __version__
from llama_index_contextual.app.cli import index_cmd, inspect_cmd, output, search_cmd
from llama_index_contextual.app.cli.options import EXIT_INTERRUPTED
from llama_index_contextual.errors import ContextualError

EXIT_ERROR: Final = 1
_ASKING: Final = ("search", "ask", "context")


class _Commands(TyperGroup):
    """Ends a command on Ctrl-C with one line, and explains a question that begins with a dash."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if ctx.invoked_subcommand == "index":
                output.tell("what was finished is kept, and the same command goes on", "interrupted:")
            else:
                output.tell("", "interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except Exception as error:  # typer's own copy of click has the class
            if type(error).__name__ == "NoSuchOption" and ctx.invoked_subcommand in _ASKING:
                command = ctx.invoked_subcommand
                hint = f"A question that begins with a dash stands after --: {command} -- -word"
                vars(error)["message"] = f"{error}. {hint}"
            raise


app = typer.Typer(
    cls=_Commands,
    name="llama-index-contextual",
    help="Give every chunk of your Markdown its context back, and find it again. No key, no network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
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
    index_cmd.index,
    search_cmd.search,
    search_cmd.ask,
    search_cmd.context,
    inspect_cmd.serve,
    inspect_cmd.mcp,
    inspect_cmd.preview,
    inspect_cmd.evaluate,
    inspect_cmd.status,
    inspect_cmd.config,
):
    app.command()(command)


def run() -> None:
    """Run the command line. Each error of ours ends as one clear line."""
    os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")  # chromadb's
    warnings.showwarning = output.tell_warning
    output.write_log()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe on Windows, a terminal in Latin-1
        sys.stdout.reconfigure(errors=output.escape_unencodable)
    try:
        app()
    except KeyboardInterrupt:
        output.tell("", "interrupted")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `… | head` closed the pipe, which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ContextualError, OSError) as error:  # an OSError names the file or the disk
        output.tell_error(error)
        sys.exit(EXIT_ERROR)
