"""All commands except ``index``: those that answer, serve, show and measure."""

from __future__ import annotations

import json
import os
import sys
import warnings
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from llama_index_contextual.app.cli import options
from llama_index_contextual.app.cli.options import (
    Target,
    app,
    as_json,
    command,
    html,
    list_skipped,
    print_line,
    styled,
)
from llama_index_contextual.app.settings.registry import SETTINGS
from llama_index_contextual.context import registry
from llama_index_contextual.utils.errors import ContextualError, ContextualWarning, DocumentError
from llama_index_contextual.utils.text import absolute_path, counted, did_you_mean, printable_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_contextual.app.serve.answering import Sentence
    from llama_index_contextual.app.serve.hits import ShownHit
    from llama_index_contextual.app.settings.registry import Configuration, Refreshing
    from llama_index_contextual.retrievers.explanation import Explanation

all_ = click.option("--all", "all_", is_flag=True, help="Show every setting.")
_MARGIN = 3  # columns before the lines of a hit
_KEY_WIDTH = 27
_VALUE_WIDTH = 40
_CONTEXTS = ", ".join(registry.names())
_LEGEND = (
    "rank, score, relevance (0 to 1), citation; in brackets the share of each retriever or "
    "feature, with its rank and score, and the matching words with the number of their chunks"
)


# The question, and the options that filter documents.
QUESTION = (
    click.option(
        "--where",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only files with this front matter: rating>=4.",
    ),
    click.option("--until", default="", help="Only files dated up to this day."),
    click.option(
        "--since", default="", help="Only files dated from this day: 2026-04-09, or 'last week'."
    ),
    click.option(
        "--tag",
        multiple=True,
        help="Only files with this tag or a tag below it; repeat it to require all.",
    ),
    click.option(
        "--path",
        multiple=True,
        help="Only files with this text in their path; repeat it to allow other texts.",
    ),
    click.argument("words", nargs=-1, required=True, metavar="QUESTION"),
)


@command(
    "retrieval.top_k",
    "retrieval.per_file",
    "retrieval.min_score",
    "retrieval.recency",
    more=QUESTION,
)
@click.option("--explain", is_flag=True, help="Explain the rank of each hit.")
@as_json
def search(
    target: Target, *, words: Sequence[str], explain: bool, as_json: bool, **narrowed: Any
) -> None:
    """Find passages that answer a question, each with its citation."""
    answer = _find_hits(target, words, narrowed, "Nothing found.")
    if explain and (as_json or answer.hits):
        explanation = answer.explanation
        options.print_report(explanation.to_dict(), str(explanation), as_json=as_json)
        options.tell("" if as_json else _LEGEND, "legend:")
    elif as_json:
        options.print_report([hit.to_dict() for hit in answer.hits], "", as_json=True)
    else:
        for number, hit in enumerate(answer.hits, 1):
            _print_hit(number, hit)


class _Answer(NamedTuple):
    """The hits of a question, with their explanation and the configuration of the index."""

    configuration: Configuration
    explanation: Explanation
    hits: list[ShownHit]


def _find_hits(
    target: Target,
    words: Sequence[str],
    narrowed: Mapping[str, Any],
    nothing: str,
    *,
    per_file: int | None = None,
) -> _Answer:
    """Search an index, and write remarks to standard error.

    Args:
        target: The index.
        words: The question.
        narrowed: The options that filter documents.
        nothing: The message if there are no hits.
        per_file: The largest number of hits from one file. None means the configured number.
    """
    from llama_index_contextual.app.serve.hits import find_hits
    from llama_index_contextual.retrievers.query import note_filters

    filters = note_filters(**narrowed)
    with target.open(target.folder, create=False) as index:
        options.tell(str(index.freshness()), "note:")
        explanation, hits, suggestions = find_hits(
            index, " ".join(words), filters=filters, per_file=per_file
        )
    if not hits:
        options.tell(nothing)
    for remark in explanation.remarks:
        options.tell(remark)
    options.tell(did_you_mean(suggestions))
    return _Answer(index.settings.configuration, explanation, hits)


def _print_hit(number: int, hit: ShownHit) -> None:
    """Print a hit with its citation, headings and excerpt, and the number of further hits."""
    from llama_index_contextual.app.serve.excerpts import marked

    name = styled(f"{number}. {hit.name}", bold=True)
    citation = styled(hit.hit.source, fg="cyan")
    print_line(name, "  ", citation, styled(f"  {hit.hit.score:.2f}", dim=True))
    if hit.headings:
        print_line(styled(hit.headings, dim=True), indent=_MARGIN)
    for line in hit.excerpt:
        parts = [
            styled(part, bold=True, fg="yellow") if is_match else styled(part)
            for is_match, part in marked(line, hit.terms)
        ]
        print_line(*parts, indent=_MARGIN)
    if hit.hit.also_at:
        print_line(styled(f"also at {', '.join(hit.hit.also_at)}", dim=True), indent=_MARGIN)
    if hit.more:
        more = f"{counted(hit.more, 'more hit')} in this document; --per-file 0 shows all"
        print_line(styled(more, dim=True), indent=_MARGIN)


@command("context_options.llm", "retrieval.top_k", more=QUESTION)
def ask(target: Target, *, words: Sequence[str], **narrowed: Any) -> None:
    """Answer a question with a language model and name the sources."""
    from llama_index.core.schema import MetadataMode

    from llama_index_contextual.app.serve.answering import NOTHING, answer, answering_model

    configuration, _, hits = _find_hits(target, words, narrowed, NOTHING, per_file=0)
    model = answering_model(configuration["context_options.llm"], configuration["timeout"])
    if not hits:
        return
    sources = [hit.node.get_content(MetadataMode.LLM) for hit in hits]
    sentences: list[Sentence] = []
    try:
        for sentence in answer(" ".join(words), sources, model):
            sentences.append(sentence)
            options.print_text(str(sentence), newline=False)
    finally:
        if sentences:
            options.print_text("\n")
    if sentences:
        options.print_text(_sources_in_words(hits, sentences))


def _sources_in_words(hits: Sequence[ShownHit], sentences: Sequence[Sentence]) -> str:
    """Return the sources that an answer cites, one per line; all sources if it cites none."""
    cited = {number for sentence in sentences for number in sentence.sources}
    lines = [
        f"[{number}] {hit.hit.source}  {hit.headings or hit.name}"
        for number, hit in enumerate(hits, 1)
        if number in cited or not cited
    ]
    return printable_lines(lines)


@command("memory.max_results", "memory.min_relevance", "memory.include_recency", "memory.refresh")
@click.argument("words", nargs=-1, required=True, metavar="MESSAGE")
@as_json
def context(target: Target, *, words: Sequence[str], as_json: bool) -> None:
    """Print the notes that an agent reads before it answers."""
    from llama_index_contextual.app.index import BackgroundRefresh
    from llama_index_contextual.memory.context import MemoryContext

    with target.open(target.folder) as index, warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextualWarning)  # the digest contains the same warnings
        mode: Refreshing = index.settings.configuration["memory.refresh"] or "never"
        with BackgroundRefresh(index, mode) as keeper:
            note = str(keeper.look())
            if not index.exists:
                note = f"nothing is indexed yet. {index.settings.layout.fix}"
            options.tell(note, "note:")
            digest = MemoryContext(index).get(" ".join(words))
    options.print_report(digest.to_dict(), digest.markdown, as_json=as_json)
    options.tell("" if digest.applicable else f"not searched: {digest.reason}", "note:")


@command("context_options.llm", folder="folder")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8766,
    help="The port; 0 means a free one. Default: 8766",
)
def serve(target: Target, *, port: int) -> None:
    """Serve a page to search, read and ask questions. Ctrl-C stops it."""
    from llama_index_contextual.app.serve.page import serve as run

    with options.interruptible():
        run(target.folder, storage=target.storage, port=port, config=target.settings)


@command(
    "memory.max_results",
    "memory.min_relevance",
    "memory.include_recency",
    "memory.refresh",
    folder="folder",
)
@click.option(
    "--transport",
    type=click.Choice(["stdio", "http"]),
    default="stdio",
    help="How clients connect.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8765,
    help="The port on 127.0.0.1, for http. Default: 8765",
)
def mcp(target: Target, **how: Any) -> None:
    """Serve a folder of notes to agents over MCP."""
    from llama_index_contextual.app.index import is_refreshing
    from llama_index_contextual.app.serve.mcp_server import serve as run

    try:
        with options.interruptible():
            run(target.folder, storage=target.storage, config=target.settings, **how)
    finally:
        # Waiting could take minutes, and the thread could crash when the interpreter ends.
        if is_refreshing():
            os._exit(0)


@command("chunks.chunk_size")
@click.argument("file", type=options.PLACE)
@html
@as_json
def preview(target: Target, *, file: Path, html: Path | None, as_json: bool) -> None:
    """Show the chunks of a file with their lines and contexts."""
    from llama_index_contextual.app.serve.html import (
        chunk_data,
        preview_nodes,
        preview_text,
        render,
    )

    file = absolute_path(file)
    if not file.is_file():
        if file.exists():
            raise DocumentError(f"{file} is not a regular file. Name a file with text.")
        raise DocumentError(f"{file} does not exist. Check the path.")
    with target.open(_folder_of(file, target), reindex=True) as index:
        settings = index.settings
        name, documents = settings.folder_reader.load_file(file)
        indexed = index.nodes(name) if index.exists else []
        parser = settings.parser
        chunks = chunk_data(preview_nodes(documents, parser, settings.contexts, indexed))
    if html:
        budget = getattr(parser, "chunk_size", None)
        page = render("chunks.html", title=name, budget=budget, chunks=chunks)
        options.write_page(html, page)
    else:
        options.print_report(chunks, preview_text(name, chunks), as_json=as_json)


def _folder_of(file: Path, target: Target) -> Path | None:
    """Return the folder for the settings of a preview: named, or the nearest indexed one."""
    if target.named or target.storage:
        return target.folder
    for folder in file.parents:
        with suppress(ContextualError), target.open(folder, create=False):
            return folder
    return Path.cwd() if file.is_relative_to(Path.cwd()) else file.parent


@command(folder="folder")
@list_skipped
@all_
@click.option("--check", is_flag=True, help="Check that files, database and caches are consistent.")
@as_json
def status(target: Target, *, list_skipped: bool, all_: bool, check: bool, as_json: bool) -> int:
    """Show the contents of an index, and the work of a refresh.

    The exit code is 3 if --check finds an inconsistency.
    """
    from llama_index_contextual.app.index.settings import open_settings
    from llama_index_contextual.app.index.status import index_status

    with closing(
        open_settings(target.folder, target.storage, target.settings, reindex=True)
    ) as settings:
        report = index_status(settings, check=check)
        options.print_report(report.to_dict(), report.to_text(settings=all_), as_json=as_json)
        options.tell(options.skipped_line(settings, names=list_skipped), "note:")
    return 0 if report.ok else options.EXIT_INCOMPLETE


@command(folder="folder")
@all_
@as_json
def config(target: Target, *, all_: bool, as_json: bool) -> None:
    """Show the settings that are not defaults, and their origins."""
    from llama_index_contextual.app.index.settings import open_settings

    with closing(open_settings(target.folder, target.storage, target.settings)) as settings:
        configuration = settings.configuration
    rows = {
        key: {
            "value": _shown_value(configuration, key),
            "from": configuration.origins.get(key, "default"),
        }
        for key in SETTINGS
    }
    shown = {key: row for key, row in rows.items() if all_ or row["from"] != "default"}
    hidden = len(rows) - len(shown)
    if hidden and not as_json:
        options.tell(f"{hidden} of {len(rows)} settings have their default; --all shows them")
    lines = list[str]()
    for key, row in shown.items():
        value = json.dumps(row["value"], ensure_ascii=False)
        lines.append(f"{key:{_KEY_WIDTH}}  {value:{_VALUE_WIDTH}}  {row['from']}")
    options.print_report(rows, printable_lines(lines), as_json=as_json)


def _shown_value(configuration: Configuration, key: str) -> Any:
    """Return the value of a setting as plain data, or a description of how it is computed."""
    setting = SETTINGS[key]
    if setting.computed and key not in configuration.values:
        return f"({setting.computed})"
    return setting.plain(configuration[key])


@command("embed_model", folder="folder")
@click.option(
    "--questions",
    "-q",
    type=options.PLACE,
    required=True,
    help="A file of JSON lines with a question, and a path or text.",
)
@click.option(
    "--context",
    "contexts",
    multiple=True,
    help=f"Contexts to compare: {_CONTEXTS}. Default: those that cost nothing",
)
@click.option(
    "--top-k", "-k", type=click.IntRange(1), multiple=True, help="Hits to count. Default: 5, 10, 20"
)
@html
@as_json
def evaluate(
    target: Target, *, questions: Path, html: Path | None, as_json: bool, **how: Any
) -> None:
    """Measure with your own questions whether contexts help."""
    from llama_index_contextual.app.evaluation import evaluate as measure
    from llama_index_contextual.app.evaluation import load_questions

    how = {name: value for name, value in how.items() if value}
    how |= {
        "storage": target.storage,
        "embed_model": target.settings["embed_model"],
        "say": options.tell,
    }
    how["show_progress"] = sys.stderr.isatty()
    comparison = measure(target.named or Path(), load_questions(questions), **how)
    if html:
        title = f"Contexts compared on {target.named or Path.cwd().name}"
        options.write_page(html, comparison.to_html(title))
    options.print_report(comparison.to_dict(), str(comparison), as_json=as_json)


@app.command()
@click.option(
    "--prune",
    type=click.FloatRange(0),
    metavar="MB",
    help="Delete the oldest entries until this size is left.",
)
@as_json
def cache(*, prune: float | None, as_json: bool) -> None:
    """Show or prune the cache of vectors, contexts and conversions."""
    from llama_index_contextual.app.index.content_cache import ContentCache
    from llama_index_contextual.app.index.storage import content_file

    with closing(ContentCache(content_file())) as content:
        if prune is not None:
            deleted = content.prune(int(prune * 1e6), shrink=True)
            options.tell(f"{counted(deleted, 'value')} deleted")
        contents = content.contents()
        size = content.used_bytes()
    data = {
        "file": str(content.path),
        "bytes": size,
        "kinds": {kind: part._asdict() for kind, part in contents.items()},
    }
    lines = [f"file         {content.path} ({size / 1e6:.1f} MB)"]
    for kind, part in contents.items():
        lines.append(f"{kind:12} {part.entries:,} ({part.bytes / 1e6:.1f} MB)")
    options.print_report(data, printable_lines(lines), as_json=as_json)
