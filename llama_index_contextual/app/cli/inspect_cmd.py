"""The commands that serve, show and measure: ``serve mcp preview evaluate status config``."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

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
    with_options,
)
from llama_index_contextual.app.settings.loading import FILE, USER_FILE, user_folder
from llama_index_contextual.app.settings.schema import SETTINGS
from llama_index_contextual.errors import SettingError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index.core.schema import TextNode

    from llama_index_contextual.app.evaluation import Comparison
    from llama_index_contextual.app.settings.schema import Configuration

_SHOWN: Final = 3  # questions gained and lost, of each context
_WIDTH: Final = 60  # characters of a value; --json shows all
All = Annotated[bool, typer.Option("--all", help="Show every setting.")]


@with_options("context_options.llm")
def serve(
    target: NamedTarget,
    *,
    host: Annotated[
        str, typer.Option(help="An address of this machine. Others than 127.0.0.1 let others read.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is one that is free.")] = 8766,
) -> None:
    """Show a page to search, read and ask on, at the address that is printed. Ctrl-C ends it."""
    from llama_index_contextual.app.serve.page_server import serve as run

    run(target.folder, storage=target.storage, host=host, port=port, config=target.configuration)


@with_options("memory.max_results", "memory.min_relevance", "memory.include_recency", "memory.refresh")
def mcp(
    target: NamedTarget,
    *,
    transport: Annotated[Literal["stdio", "http"], typer.Option(help="How the client speaks to it.")] = "stdio",
    port: Annotated[int, typer.Option(min=1, max=65535, help="For http, on 127.0.0.1.")] = 8765,
) -> None:
    """Serve a folder of notes to agents over the Model Context Protocol."""
    from llama_index_contextual.app.serve.mcp_server import serve as run

    try:
        run(target.folder, transport=transport, port=port, storage=target.storage, config=target.configuration)
    except KeyboardInterrupt:
        _end_at_once(EXIT_INTERRUPTED)
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

    from llama_index_contextual.app.preview import preview_of

    file = file.resolve()
    with target.open(folder=target.named or (None if target.storage else file.parent), reindex=True) as index:
        pipeline = index.settings.pipeline
        contexts = pipeline.contexts if context or html else None
        result = preview_of(*index.settings.reading.load_file(file), pipeline.parser, contexts)
    if html:
        output.write_page(html, result.to_html())
    elif as_json:
        output.print_json([_chunk_to_dict(node) for node in result.nodes])
    else:
        Console(highlight=False).print(result)


def _chunk_to_dict(node: TextNode) -> dict[str, Any]:
    from llama_index.core.schema import MetadataMode

    from llama_index_contextual.metadata import value_of

    keys = ("start_line", "end_line", "header_path", "date", "token_count", "context", "left_out")
    data = {key: value_of(node.metadata, key) for key in keys}
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    return {**data, "text": text, "embedded": node.get_content(metadata_mode=MetadataMode.EMBED)}


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
        if line := output.skipped_line(index, names=list_skipped):
            output.tell(line, "note:")
        if not report.ok:
            raise typer.Exit(EXIT_INCOMPLETE)


@with_options()
def config(
    target: NamedTarget,
    *,
    all_: All = False,
    init: Annotated[bool, typer.Option("--init", help=f"Write a commented {FILE} into the folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the settings that somebody chose, and where each comes from."""
    if init:
        path = (target.named or Path()) / FILE
        write_first(path)
        output.print_text(f"{path}: every setting with its default, commented out")
        return
    with target.open(reindex=True) as index:
        rows = in_force(index.settings.configuration)
    if as_json:
        output.print_json({key: {"value": value, "from": origin} for key, value, origin in rows})
        return
    shown = rows if all_ else [row for row in rows if row[2] != "default"]
    if len(shown) < len(rows):
        output.tell(f"{len(rows) - len(shown)} of {len(rows)} settings have their default; --all shows them")
    width = max((len(key) for key, _, _ in shown), default=0)
    lines = [(f"{key:{width}}  {_value(value)}", origin) for key, value, origin in shown]
    column = min(max((len(line) for line, _ in lines), default=0), 70)
    if lines:
        output.print_text("\n".join(f"{line:{column}}  {origin}" for line, origin in lines))


def in_force(configuration: Configuration) -> list[tuple[str, Any, str]]:
    """Key, value and origin of every setting; a default that is computed is in words."""
    rows: list[tuple[str, Any, str]] = []
    for key, setting in SETTINGS.items():
        if key in configuration.values:
            rows.append((key, setting.plain(configuration[key]), configuration.origins[key]))
        else:
            default = f"({setting.computed})" if setting.computed else setting.plain(setting.default)
            rows.append((key, default, "default"))
    return rows


def _value(value: Any) -> str:
    if isinstance(value, str) and value.startswith("("):
        return value
    text = "-" if value is None or value == {} else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def write_first(path: Path) -> None:
    """Write the commented file.

    Raises:
        SettingError: There is one, or a link to one.
        StorageError: It cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(commented_file())
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise SettingError(f"{path} is there already. Cure: edit it, or remove it first.") from error
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        cure = "make its folder one that exists and that you may write, with free space."
        raise StorageError(f"{path} cannot be written ({error.strerror}). Cure: {cure}") from error


def commented_file() -> str:
    """The file that ``config --init`` writes: every key with its meaning and its default, commented out."""
    lines = [
        "# Settings of llama-index-contextual for this folder. Remove a # to change one.",
        "# An argument in Python, an option of the command line and an environment variable come before this file.",
        f"# What names a server, a model on one or a path counts only in {user_folder() / USER_FILE}.",
    ]
    table = None
    for key, setting in SETTINGS.items():
        inside = key if setting.is_table else setting.table
        if inside != table:
            table = inside
            lines += ["", *([f"[{table}]"] if table else [])]
        note = f" Default: {setting.computed}." if setting.computed else ""
        lines.append(f"# {setting.meaning}{note}")
        value = setting.default if setting.example is None else setting.example
        values = {json.dumps(path): text for path, text in value.items()} if setting.is_table else {setting.name: value}
        lines += [f"# {name} = {_toml(value)}" for name, value in values.items()]
    return "\n".join([*lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


@with_options("embed_model")
def evaluate(
    target: NamedTarget,
    *,
    questions: Annotated[
        Path | None,
        typer.Option(
            "--questions", "-q", help="JSON lines or CSV: question, and path (with lines) or text of the answer."
        ),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(help="off (LlamaIndex metadata), headings, pattern, llm; several. Default: the first three"),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE: a row with the settings of FILE, like contextual.toml; several times."),
    ] = None,
    top_k: Annotated[
        list[int] | None, typer.Option("--top-k", "-k", min=1, help="Hits to count; several times. Default: 5, 10, 20")
    ] = None,
    html: Page = None,
    as_json: AsJson = False,
) -> None:
    """Ask your own questions with and without contexts, and show what each kind finds."""
    if target.named is None:
        raise typer.BadParameter("no folder is named")
    if questions is None:
        raise SettingError("there are no questions. Cure: --questions FILE")
    from llama_index_contextual.app.evaluation import evaluate as measure
    from llama_index_contextual.app.evaluation import html_report, load_questions

    options: dict[str, Any] = {
        "contexts": context, "top_k": top_k, "storage": target.storage,
        "variants": dict(map(_variant, variant or [])), "embed_model": target.settings.get("embed_model"),
    }  # fmt: skip
    comparison = measure(
        target.named,
        load_questions(questions),
        say=output.tell,
        show_progress=output.messages.is_terminal,
        **{name: value for name, value in options.items() if value},
    )
    if html:
        output.write_page(html, html_report(comparison, f"What contexts find in {target.named}"))
    names = [row.name for row in comparison.rows]
    changes = [line for name in names[1 + names.index(comparison.baseline) :] for line in _changes(comparison, name)]
    output.print_report(comparison, "\n".join([str(comparison), *changes]), as_json=as_json)


def _variant(text: str) -> tuple[str, Path]:
    name, _, file = text.partition("=")
    if not name.strip() or not file:
        raise SettingError(f"--variant={text!r} is not NAME=FILE. Cure: as in --variant small=small.toml")
    return name.strip(), Path(file)


def _changes(comparison: Comparison, name: str) -> Iterator[str]:
    for kind, questions in comparison.changes(name).items():
        yield f"\n{name} {kind} {len(questions)} at {comparison.top_k[0]}{':' if questions else ''}"
        yield from (f"  {output.shown(question.text, one_line=True)}" for question in questions[:_SHOWN])
        if len(questions) > _SHOWN:
            yield f"  … and {len(questions) - _SHOWN} more"
