"""The commands that read: ``context``, ``mcp``, ``preview``, ``status`` and their like."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.console import Console

from llama_index_contextual.app.cli import common as cli
from llama_index_contextual.app.settings.loading import user_storage
from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.metadata import value_of

if TYPE_CHECKING:
    from llama_index.core.schema import TextNode

    from llama_index_contextual.memory import MemoryDigest

_MEMORY: Final = (
    "embed_model",
    "memory.max_results",
    "memory.min_relevance",
    "memory.include_recency",
    "memory.refresh",
)


@cli.with_options(*_MEMORY)
def context(
    message: Annotated[list[str], typer.Argument(help="What the user wrote.")],
    target: cli.Target,
    *,
    as_json: cli.AsJson = False,
) -> None:
    """Print the digest of notes that an agent reads before it answers a message."""
    text = cli.question_of(message)
    from llama_index_contextual.app.index import BackgroundRefresh
    from llama_index_contextual.memory import MemoryContext, MemorySettings, gate_digest

    may_make = False
    if target.folders or not target.storage:  # else only the index knows its folder, and so its configuration
        memory = target.configuration(target.folder or user_storage()).table("memory")
        refresh = memory.pop("refresh", None)
        digest = gate_digest(text, MemorySettings(**memory))  # small talk needs no index
        if digest is not None:
            _print_digest(digest, as_json=as_json)
            return
        may_make = refresh not in (None, "never")
    with target.open(create=may_make) as index:
        keeper = BackgroundRefresh(index, index.settings.configuration["memory.refresh"] or "never")
        cli.tell_freshness(keeper.look())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ContextualWarning)  # the digest says the same
            digest = MemoryContext(index).get(text)
        _print_digest(digest, as_json=as_json)
        keeper.close()


def _print_digest(digest: MemoryDigest, *, as_json: bool) -> None:
    cli.print_report(digest, digest.markdown, as_json=as_json)
    if not digest.applicable and not as_json:
        cli.tell(f"not searched: {digest.reason}", "note:")


@cli.with_options(*_MEMORY)
def mcp(
    target: cli.NamedTarget,
    *,
    transport: Annotated[Literal["stdio", "http"], typer.Option(help="How the client speaks to it.")] = "stdio",
    port: Annotated[int, typer.Option(min=1, max=65535, help="For http, on 127.0.0.1.")] = 8765,
) -> None:
    """Serve a folder of notes to agents over the Model Context Protocol."""
    from llama_index_contextual.app.mcp_server import serve

    try:
        serve(
            target.folder,
            transport=transport,
            port=port,
            storage=target.storage,
            config=target.configuration,
        )
    except KeyboardInterrupt:
        _end_at_once(cli.EXIT_INTERRUPTED)
        raise
    _end_at_once(0)


def _end_at_once(code: int) -> None:
    """End the process without waiting where a refresh is at work, perhaps for minutes.

    To end its thread with the interpreter could end in a crash.
    """
    from llama_index_contextual.app.index import is_refreshing

    if is_refreshing():
        sys.stderr.flush()
        os._exit(code)


@cli.with_options("chunks.chunk_size")
def preview(
    file: Annotated[Path, typer.Argument(help="A Markdown file.", exists=True, dir_okay=False)],
    target: cli.Target,
    *,
    context: Annotated[bool, typer.Option("--context", help="Show what is embedded before each text.")] = False,
    html: cli.Page = None,
    as_json: cli.AsJson = False,
) -> None:
    """Show how a file is cut: boundaries, lines, token counts, header paths."""
    from llama_index_contextual.app.preview import preview_of

    file = file.resolve()
    with target.open(folder=target.named or (None if target.storage else file.parent), reindex="ignore") as index:
        pipeline = index.settings.pipeline
        contexts = pipeline.contexts if context or html else None
        result = preview_of(*index.settings.reading.load_file(file), pipeline.parser, contexts)
    if html:
        cli.write_page(html, result.to_html())
    elif as_json:
        cli.print_json([_chunk_to_dict(node) for node in result.nodes])
    else:
        Console(highlight=False).print(result)


def _chunk_to_dict(node: TextNode) -> dict[str, Any]:
    from llama_index.core.schema import MetadataMode

    keys = ("start_line", "end_line", "header_path", "date", "token_count", "context")
    data = {key: value_of(node.metadata, key) for key in keys}
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    return {**data, "text": text, "embedded": node.get_content(metadata_mode=MetadataMode.EMBED)}


@cli.with_options()
def status(
    target: cli.NamedTarget,
    *,
    list_skipped: cli.ListSkipped = False,
    all_: cli.All = False,
    check: Annotated[bool, typer.Option("--check", help="Check that files, database and caches agree.")] = False,
    as_json: cli.AsJson = False,
) -> None:
    """Show what an index holds, and what a refresh would do. Exit code 3 where --check finds a disagreement."""
    with target.open(create=False, reindex="ignore") as index:
        if check:
            verification = index.verify()
            cli.print_report(verification, as_json=as_json)
            if not verification.ok:
                raise typer.Exit(cli.EXIT_INCOMPLETE)
            return
        report = index.status()
        cli.print_report(report, report.to_text(settings=all_), as_json=as_json)
        cli.tell_skipped(index, names=list_skipped)
