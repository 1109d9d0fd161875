"""The commands that read: ``context``, ``mcp``, ``preview``, ``status`` and their like."""

from __future__ import annotations

import os
import re
import sys
import warnings
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.console import Console

import llama_index_contextual
from llama_index_contextual.app.cli import common as cli
from llama_index_contextual.app.config import user_storage
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.metadata import value_of

if TYPE_CHECKING:
    from llama_index.core.schema import TextNode

    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.memory import MemoryDigest

_MEMORY: Final = (
    "embed_model",
    "memory.max_results",
    "memory.min_relevance",
    "memory.half_life_days",
    "memory.include_recency",
    "memory.enabled",
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
    from llama_index_contextual.memory import MemoryContext, gate_digest

    may_make = False
    if target.folders or not target.storage:  # else only the index knows its folder, and so its configuration
        memory = target.configuration(target.folder or user_storage()).memory
        digest = gate_digest(text, memory)  # small talk needs no index
        if digest is not None:
            _print_digest(digest, as_json=as_json)
            return
        may_make = memory.refresh not in (None, "never")
    with target.open(create=may_make) as index:
        keeper = BackgroundRefresh(index, index.settings.configuration.memory.refresh or "never")
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
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Let agents add to notes and correct them. Default: they only read")
    ] = False,
) -> None:
    """Serve a folder of notes to agents over the Model Context Protocol."""
    from llama_index_contextual.app.mcp_server import serve

    try:
        serve(
            target.folder,
            transport=transport,
            port=port,
            allow_write=allow_write,
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


@cli.with_options("chunks.chunk_size", "chunks.chunk_overlap", "chunks.tokenizer")
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
    as_json: cli.AsJson = False,
) -> None:
    """Show what an index holds, and what a refresh would do."""
    with target.open(create=False, reindex="ignore") as index:
        report = index.status()
        cli.print_report(report, report.to_text(settings=all_), as_json=as_json)
        cli.tell_skipped(index, names=list_skipped)


@cli.with_options()
def get(
    place: Annotated[
        str, typer.Argument(metavar="TARGET", help="A path, path#L3-L9, report.pdf#page=4, or [[its name]].")
    ],
    target: cli.Target,
    *,
    as_json: cli.AsJson = False,
) -> None:
    """Print a document, or what a hit cites: lines or a page of one."""
    from llama_index_contextual.app.notes import part_of

    with target.open(create=False, reindex="ignore") as index:
        part = part_of(index, _as_indexed(index, place), whole=True)
    cli.print_report(part, part.text, as_json=as_json)
    if part.extent and not as_json:
        cli.tell(f"{part.path}: {part.extent}")


def _as_indexed(index: ContextualIndex, target: str) -> str:
    """Return a path as the index names it, where it is one from where the user stands; all else as it is."""
    name, sign, part = target.partition("#")
    path = index.settings.folders.path_of(Path(name).resolve())
    if not path or path not in index.files(path) or name in index.files(name):
        return target
    return f"{path}{sign}{part}"


@cli.with_options()
def related(
    note: Annotated[str, typer.Argument(help="Its path, its name, or [[its name]].")],
    target: cli.Target,
    *,
    as_json: cli.AsJson = False,
) -> None:
    """Show what a note links to, what links to it, and which of its links are broken."""
    from llama_index_contextual.app.notes import related as find_related

    with target.open(create=False, reindex="ignore") as index:
        cli.print_report(find_related(index, _as_indexed(index, note)), as_json=as_json)


@cli.with_options()
def verify(target: cli.NamedTarget, *, as_json: cli.AsJson = False) -> None:
    """Check that files, database and engines agree. Exit code 3 if they do not."""
    with target.open(create=False, reindex="ignore") as index:
        verification = index.verify()
    cli.print_report(verification, as_json=as_json)
    if not verification.ok:
        raise typer.Exit(cli.EXIT_INCOMPLETE)


@cli.with_options()
def export(
    target: cli.NamedTarget,
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file. Default: standard output")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write over a file that is there already.")] = False,
) -> None:
    """Write every chunk with its metadata as a line of JSON."""
    if out is not None and out.exists() and not yes:
        raise SettingError(f"{out} is there already. Cure: another --out, or --yes to write over it.")
    with target.open(create=False, reindex="ignore") as index:
        index.export(out or sys.stdout)


_API: Final = re.compile(r"^::: ([\w.]+)\.(\w+)\n(?: {4}options: .*\n)?", re.MULTILINE)
_HEADING: Final = re.compile(r"^##? (.+)", re.MULTILINE)


def docs(topic: Annotated[str, typer.Argument(help="A page, such as memory. Default: a list of them")] = "") -> None:
    """Print a page of the documentation, or a list of its pages."""
    package = Path(llama_index_contextual.__path__[0])
    folder = next(place for place in (package / "docs", package.parent / "docs") if place.is_dir())  # a wheel, a clone
    pages = {file.stem: file for file in sorted(folder.glob("*.md"))}
    if not topic:
        width = max(map(len, pages))
        cli.print_text(
            "\n".join(f"{name:{width}}  {_contents(file.read_text('utf-8'))}" for name, file in pages.items())
        )
        return
    name = Path(topic.partition("#")[0]).stem.lower()  # of a link, too
    if name not in pages:
        near = "".join(get_close_matches(name, pages, 1)) or "(it lists the pages)"
        raise SettingError(f"there is no page {topic!r}. Cure: llama-index-contextual docs {near}")
    text = _API.sub(_summary, pages[name].read_text("utf-8"))
    if sys.stdout.isatty():
        from rich.markdown import Markdown

        Console().print(Markdown(text, hyperlinks=False))
    else:
        cli.print_text(text.rstrip())


def _contents(page: str) -> str:
    """Return the title of a page and its headings, as one line that may be cut."""
    title, *headings = _HEADING.findall("".join(page.split("```")[::2]).replace("`", ""))
    return shorten(": ".join(filter(None, (title, ", ".join(headings)))), 100, placeholder=" …")


def _summary(name: re.Match[str]) -> str:
    """Return a name of the page ``api`` with the first line of its documentation, which the site has in full."""
    thing = getattr(import_module(name[1]), name[2])
    return f"- `{name[2]}`: {str(thing.__doc__).strip().partition(chr(10))[0]}\n"
