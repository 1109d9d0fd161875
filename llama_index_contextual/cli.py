"""The command line: a thin shell over :class:`~llama_index_contextual.index.ContextualIndex`.

Results go to standard output, progress and messages to standard error.

Exit codes: 0 done, 1 an error that was explained,
2 a command line that cannot be understood, 3 done, but some files could not be read.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from llama_index_contextual.errors import ContextualError, ContextualWarning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index.core.schema import NodeWithScore

    from llama_index_contextual.index import ContextualIndex

EXIT_ERROR, EXIT_SOME_FAILED = 1, 3

app = typer.Typer(
    name="llama-index-contextual",
    help="Give every chunk of your Markdown its context back, and find it again. No key, no network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
messages = Console(stderr=True, soft_wrap=True, highlight=False)

Storage = Annotated[Path | None, typer.Option(help="Where the index lives. Default: FOLDER/.contextual")]
Model = Annotated[
    str,
    typer.Option(
        help="local, ollama:MODEL, openai:MODEL or huggingface:MODEL.", envvar="LLAMA_INDEX_CONTEXTUAL_EMBED_MODEL"
    ),
]
Folder = Annotated[Path, typer.Option("--folder", "-f", help="The folder that was indexed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def main() -> None:
    """Run the command line, and turn every error we know into one clear line."""
    os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")
    warnings.showwarning = _show_warning
    try:
        app()
    except ContextualError as error:
        messages.print(f"[red]error:[/] {_plain(str(error))}")
        sys.exit(EXIT_ERROR)
    except BrokenPipeError:  # `… | head` closed the pipe: not our error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


@app.command()
def index(
    folder: Annotated[Path, typer.Argument(help="A folder of Markdown and text files.")],
    storage: Storage = None,
    embed_model: Model = "local",
    context: Annotated[str, typer.Option(help="off, headings or pattern.")] = "headings",
    as_json: AsJson = False,
) -> None:
    """Index a folder, or bring its index up to date: only what changed is embedded."""
    with _opened(folder, storage, embed_model, context=context) as opened:
        report = opened.refresh(show_progress=messages.is_terminal)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        typer.echo(str(report))
    for failure in report.failed:
        messages.print(f"[yellow]not indexed:[/] {_plain(str(failure))}")
    if not report.chunks and not report.failed:
        messages.print(f"{_plain(str(folder))} holds no files to index: Markdown (.md) and text (.txt) are read.")
    if report.failed:
        raise typer.Exit(EXIT_SOME_FAILED)


@app.command()
def search(
    question: Annotated[str, typer.Argument(help="What you want to find.")],
    folder: Folder = Path(),
    storage: Storage = None,
    embed_model: Model = "local",
    top_k: Annotated[int, typer.Option(min=1, help="How many hits.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Find the chunks that answer a question, with the lines they stand in."""
    with _opened(folder, storage, embed_model, create=False) as opened:
        hits = opened.as_retriever(similarity_top_k=top_k).retrieve(question)
    if as_json:
        typer.echo(json.dumps([_as_dict(hit) for hit in hits], indent=2, ensure_ascii=False))
        return
    if not hits:
        messages.print("Nothing found.")
    for rank, hit in enumerate(hits, 1):
        typer.echo(_as_text(rank, hit))


@contextmanager
def _opened(folder: Path, storage: Path | None, embed_model: str, **options: Any) -> Iterator[ContextualIndex]:
    from llama_index_contextual.index import ContextualIndex  # slow: brings chromadb

    with ContextualIndex.open(folder, storage=storage, embed_model=embed_model, **options) as opened:
        yield opened


def _as_dict(hit: NodeWithScore) -> dict[str, Any]:
    """What a program wants to know of a hit; the text is as displayed, without its context."""
    meta = hit.node.metadata
    keys = ("path", "start_line", "end_line", "header_path", "date")
    return {
        "score": hit.score,
        **{key: meta.get(key) for key in keys},
        "id": hit.node.node_id,
        "text": hit.node.get_content(),
    }


def _as_text(rank: int, hit: NodeWithScore) -> str:
    meta = hit.node.metadata
    place = f"{meta.get('path')}#L{meta.get('start_line')}-L{meta.get('end_line')}"
    lines = [f"{rank}. {hit.score or 0:.2f}  {place}"]
    if meta.get("header_path"):
        lines.append(f"   {meta['header_path']}")
    lines.append(f"   {_snippet(hit.node.get_content())}")
    return "\n".join(lines)


def _snippet(text: str, width: int = 200) -> str:
    """The start of a chunk on one line, without its headings and without control characters."""
    body = [line for line in text.splitlines() if not line.lstrip().startswith("#")] or text.splitlines()
    flat = "".join(char if char.isprintable() else " " for char in " ".join(body))
    flat = " ".join(flat.split())
    return flat if len(flat) <= width else flat[: width - 1].rsplit(" ", 1)[0] + "…"


def _plain(text: str) -> str:
    return text.replace("[", r"\[")  # rich would take [local] for a style


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, ContextualWarning):
        messages.print(f"[yellow]warning:[/] {_plain(str(message))}")
