"""What the commands share: options, messages, and an open index."""

from __future__ import annotations

import codecs
import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from llama_index_contextual.errors import ContextualWarning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index_contextual.index import ContextualIndex

EXIT_INCOMPLETE: Final = 3

messages = Console(stderr=True, soft_wrap=True, highlight=False)

Storage = Annotated[Path | None, typer.Option(help="Where the index lives. Default: FOLDER/.contextual")]
EmbedModel = Annotated[
    str | None,
    typer.Option(
        help="local, ollama:MODEL, openai:MODEL or huggingface:MODEL. Default: the index's own, else local",
        envvar="LLAMA_INDEX_CONTEXTUAL_EMBED_MODEL",
    ),
]
Folder = Annotated[Path, typer.Option("--folder", "-f", help="The folder that was indexed.")]
Indexed = Annotated[Path, typer.Argument(help="The folder that was indexed.")]
Documents = Annotated[Path, typer.Argument(help="A folder of Markdown and text files.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def _escape(error: UnicodeError) -> tuple[str, int]:
    r"""Return ``\uXXXX`` for a character that the output's encoding lacks. It is valid inside JSON, too."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


escape_unencodable: Final = "llama-index-contextual.escape"
codecs.register_error(escape_unencodable, _escape)


@contextmanager
def open_index(
    folder: Path, storage: Path | None, embed_model: str | None = None, **options: Any
) -> Iterator[ContextualIndex]:
    """Open an index for the time of a command."""
    from llama_index_contextual.index import ContextualIndex  # slow: it imports chromadb

    with ContextualIndex.open(folder, storage=storage, embed_model=embed_model, **options) as index:
        yield index


def print_json(data: Any) -> None:
    """Print plain data as JSON. With ``--json`` nothing else goes to standard output."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def plain(text: str) -> str:
    """Keep rich from reading ``[local]`` as a style."""
    return text.replace("[", r"\[")


def show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Show our own warnings as one line. A user cannot mend those of libraries, so they are not shown."""
    if issubclass(category, ContextualWarning):
        messages.print(f"[yellow]warning:[/] {plain(str(message))}")
