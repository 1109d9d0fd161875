"""The commands that serve, show and measure: ``serve mcp preview evaluate status config``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from llama_index_contextual.app.cli import output
from llama_index_contextual.app.cli.options import (
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    AsJson,
    ListSkipped,
    NamedTarget,
    Page,
    Target,
    interruptible,
    with_options,
)
from llama_index_contextual.app.settings.schema import SETTINGS
from llama_index_contextual.errors import DocumentError
from llama_index_contextual.text import printable

_SHOWN: Final = 3  # questions gained and lost, of each context
_WIDTH: Final = 40  # of the column of values
All = Annotated[bool, typer.Option("--all", help="Show every setting.")]
PagePort = Annotated[int, typer.Option(min=0, max=65535, help="0 is one that is free.")]


@with_options("context_options.llm")
def serve(target: NamedTarget, *, port: PagePort = 8766) -> None:
    """Show a page to search, read and ask on, at the address that is printed. Ctrl-C ends it."""
    from llama_index_contextual.app.serve.page import serve as run

    with interruptible():
        run(target.folder, storage=target.storage, port=port, config=target.configuration)


@with_options("memory.max_results", "memory.min_relevance", "memory.include_recency", "memory.refresh")
def mcp(
    target: NamedTarget,
    *,
    transport: Annotated[Literal["stdio", "http"], typer.Option(help="How the client speaks to it.")] = "stdio",
    port: Annotated[int, typer.Option(min=1, max=65535, help="For http, on 127.0.0.1.")] = 8765,
) -> None:
    """Serve a folder of notes to agents over the Model Context Protocol."""
    from llama_index_contextual.app.index import is_refreshing
    from llama_index_contextual.app.serve.mcp_server import serve as run

    code = 0
    try:
        with interruptible():
            run(target.folder, transport=transport, port=port, storage=target.storage, config=target.configuration)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    if is_refreshing():  # to wait could take minutes, and to end its thread with the interpreter could end in a crash
        sys.stderr.flush()
        os._exit(code)
    if code:
        raise KeyboardInterrupt


@with_options("chunks.chunk_size")
def preview(
    file: Annotated[Path, typer.Argument(help="A document.")],
    target: Target,
    *,
    context: Annotated[bool, typer.Option("--context", help="Show what is embedded before each text.")] = False,
    html: Page = None,
    as_json: AsJson = False,
) -> None:
    """Show how a file is cut: boundaries, lines, token counts, header paths."""
    from rich.console import Console

    from llama_index_contextual.app.preview import chunk_views, preview_of

    file = file.resolve()
    if not file.is_file():
        raise DocumentError(f"{file} is no file. Cure: name one that exists")
    with target.open(folder=target.named or (None if target.storage else file.parent), reindex=True) as index:
        settings = index.settings
        contexts = settings.contexts if context or html else None
        result = preview_of(*settings.reading.load_file(file), settings.parser, contexts)
    if html:
        output.write_page(html, result.to_html())
    elif as_json:
        output.print_json([chunk.to_dict() for chunk in chunk_views(result.nodes)])
    else:
        Console(highlight=False).print(result)


@with_options()
def status(
    target: NamedTarget,
    *,
    list_skipped: ListSkipped = False,
    all_: All = False,
    check: Annotated[bool, typer.Option("--check", help="Check that files, database and caches agree.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what an index holds, and what a refresh would do. Exit code 3 where --check finds a disagreement."""
    with target.open(create=False, reindex=True) as index:
        report = index.status(check=check)
        output.print_report(report, report.to_text(settings=all_), as_json=as_json)
        output.note(output.skipped_line(index, names=list_skipped))
        if not report.ok:
            raise typer.Exit(EXIT_INCOMPLETE)


@with_options()
def config(target: NamedTarget, *, all_: All = False, as_json: AsJson = False) -> None:
    """Show the settings that somebody chose, and where each comes from."""
    from llama_index_contextual.app.places import command_line, places, remembered
    from llama_index_contextual.app.settings.loading import with_remembered
    from llama_index_contextual.app.store.database import Database

    folders, layout = places(target.folder, target.storage)
    database = Database(layout.database, command_line(folders, layout))
    configuration = with_remembered(target.configuration(folders.root), remembered(folders, layout, database))
    database.close()
    rows = dict[str, tuple[Any, str]]()
    for key, setting in SETTINGS.items():
        is_computed = setting.computed and key not in configuration.values
        value = f"({setting.computed})" if is_computed else setting.plain(configuration[key])
        rows[key] = value, configuration.origins.get(key, "default")
    if as_json:
        return output.print_json({key: {"value": value, "from": origin} for key, (value, origin) in rows.items()})
    shown = {key: row for key, row in rows.items() if all_ or row[1] != "default"}
    if len(shown) < len(rows):
        output.tell(f"{len(rows) - len(shown)} of {len(rows)} settings have their default; --all shows them")
    width = max(map(len, shown), default=0)
    for key, (value, origin) in shown.items():
        text = value if str(value)[:1] == "(" else json.dumps(value, ensure_ascii=False)
        output.print_text(f"{key:{width}}  {text:{_WIDTH}}  {origin}")
    return None


@with_options("embed_model")
def evaluate(
    target: NamedTarget,
    *,
    questions: Annotated[
        Path, typer.Option("--questions", "-q", help="JSON lines or CSV: question, and path (with lines) or text.")
    ],
    context: Annotated[
        list[str] | None,
        typer.Option(help="off (LlamaIndex metadata), headings, pattern, llm; several. Default: the first three"),
    ] = None,
    top_k: Annotated[
        list[int] | None, typer.Option("--top-k", "-k", min=1, help="Hits to count; several times. Default: 5, 10, 20")
    ] = None,
    html: Page = None,
    as_json: AsJson = False,
) -> None:
    """Ask your own questions with and without contexts, and show what each kind finds."""
    from llama_index_contextual.app.evaluation import evaluate as measure
    from llama_index_contextual.app.evaluation import html_report, load_questions

    comparison = measure(
        target.named or Path(),
        load_questions(questions),
        contexts=context or ("off", "headings", "pattern"),
        storage=target.storage,
        top_k=top_k or (5, 10, 20),
        say=output.tell,
        show_progress=output.messages.is_terminal,
        embed_model=target.settings["embed_model"],
    )
    if html:
        output.write_page(html, html_report(comparison, f"What contexts find in {target.named}"))
    lines = [str(comparison)]
    for name, changes in comparison.changes().items():
        for kind, changed in changes.items():
            lines.append(f"\n{name} {kind} {len(changed)} at {comparison.top_k[0]}{':' if changed else ''}")
            lines += [f"  {printable(one.text, one_line=True)}" for one in changed[:_SHOWN]]
            lines += [f"  … and {len(changed) - _SHOWN} more"] if len(changed) > _SHOWN else []
    output.print_report(comparison, "\n".join(lines), as_json=as_json)
