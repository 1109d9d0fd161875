"""The commands that read: ``search``, ``context``, ``mcp``, ``preview``, ``status`` and their like."""

from __future__ import annotations

import math
import os
import socket
import sys
import warnings
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from llama_index_contextual.cli.common import (
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    RERANKERS,
    AsJson,
    ChunkSize,
    Config,
    EmbedModel,
    Folder,
    Indexed,
    ListSkipped,
    Overlap,
    Page,
    PathPart,
    Since,
    Storage,
    TagPart,
    Until,
    as_option,
    open_index,
    print_json,
    print_report,
    print_text,
    tell,
    tell_freshness,
    tell_skipped,
    write_page,
)
from llama_index_contextual.config import descriptions_of, load_configuration
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.metadata import PAGE_LABEL, citation, value_of
from llama_index_contextual.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.schema import NodeWithScore, TextNode

    from llama_index_contextual.memory import MemoryDigest

Results = Annotated[int | None, typer.Option("--max-results", help="Most hits of a digest. Default: 4")]
HalfLife = Annotated[
    float | None, typer.Option(help="Days after which a dated note's recency factor is a half. Default: 30")
]
Recency = Annotated[
    bool | None, typer.Option("--recency/--no-recency", help="Whether newer notes win among near equals.")
]
Enabled = Annotated[
    bool | None, typer.Option("--enabled/--disabled", help="Disabled, memory says so in one line and stops.")
]
MinRelevance = Annotated[
    float | None, typer.Option(help="How likely a hit has to answer, 0 to 1; 0 leaves out none. Default: as search")
]
Refresh = Annotated[
    Literal["auto", "never", "wait"] | None,
    typer.Option(help="Bring the index up to date: in the background, never, or before the answer."),
]


def search(
    question: Annotated[str, typer.Argument(help="What you want to find.")],
    folder: Folder = None,
    storage: Storage = None,
    config: Config = None,
    embed_model: EmbedModel = None,
    top_k: Annotated[int | None, typer.Option(help="How many hits. Default: 5")] = None,
    per_file: Annotated[int | None, typer.Option(help="At most so many hits of one file.")] = None,
    path: PathPart = "",
    tag: TagPart = "",
    since: Since = "",
    until: Until = "",
    min_score: Annotated[
        float | None,
        typer.Option(help="The relevance that a hit needs, 0 to 1; 0 shows all. Default: 0.05, or 0 with filters"),
    ] = None,
    recency: Recency = None,
    rerank: Annotated[str | None, typer.Option(help=f"{RERANKERS}.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Each arm's rank and score, and the matched terms.")
    ] = False,
    html: Page = None,
    as_json: AsJson = False,
) -> None:
    """Find the chunks that answer a question, with the lines they stand in."""
    from llama_index_contextual.memory import note_filters
    from llama_index_contextual.retrievers.relevance import said_least

    if not question.strip():
        raise SettingError("the question is empty. Cure: say what you want to find.")
    filters = note_filters(path=path, tag=tag, since=since, until=until)
    settings = {
        "embedding.model": embed_model,
        "retrieval.top_k": top_k,
        "retrieval.per_file": per_file,
        "retrieval.min_score": min_score,
        "retrieval.recency": recency,
        "retrieval.rerank": rerank,
    }
    with open_index(folder, storage, config, settings, create=False) as contextual:
        retrieval = contextual.settings.configuration.retrieval
        least = said_least(retrieval.min_score)
        retriever = contextual.as_retriever(similarity_top_k=retrieval.top_k or 5, filters=filters, min_score=least)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ContextualWarning)  # the explanation says the same
            explanation = retriever.explain(question)
        tell_freshness(contextual.freshness())
        descriptions = contextual.settings.configuration.descriptions
    if html:
        from llama_index_contextual.keyword import Analyzer
        from llama_index_contextual.report import hits_page

        write_page(html, hits_page(explanation, Analyzer()))
    for line in (*([] if explanation.hits else ["Nothing found."]), *explanation.said):
        tell(printable(as_option(line)))
    if as_json:
        print_json(explanation.to_dict() if explain else [_hit_to_dict(hit, descriptions) for hit in explanation.nodes])
    elif explain and explanation.hits:
        print_text(str(explanation))
    else:
        for rank, hit in enumerate(explanation.nodes, 1):
            print_text(_hit_to_text(rank, hit, descriptions))


def _hit_to_dict(hit: NodeWithScore, descriptions: Mapping[str, str]) -> dict[str, Any]:
    """Return a hit as plain data. The text is the displayed one, without its context."""
    meta = hit.node.metadata
    keys = ("path", "start_line", "end_line", "header_path", "date")
    data = {key: value_of(meta, key) for key in keys}
    if PAGE_LABEL in meta:
        data[PAGE_LABEL] = meta[PAGE_LABEL]
    if lines := descriptions_of(descriptions, str(meta.get("path"))):
        data["description"] = lines
    return {"score": hit.score, **data, "id": hit.node.node_id, "text": hit.node.get_content()}


def _hit_to_text(rank: int, hit: NodeWithScore, descriptions: Mapping[str, str]) -> str:
    meta = hit.node.metadata
    path = printable(str(meta.get("path")), one_line=True)
    place = citation(path, value_of(meta, "start_line"), value_of(meta, "end_line"), meta.get(PAGE_LABEL))
    lines = [f"{rank}. {hit.score or 0:.2f}  {place}"]
    if headings := value_of(meta, "header_path"):
        lines.append(f"   {printable(str(headings), one_line=True)}")
    lines += [f"   {printable(line, one_line=True)}" for line in descriptions_of(descriptions, str(meta.get("path")))]
    snippet = _snippet(hit.node.get_content())
    if sys.stdout.isatty():
        lines += wrap(snippet, get_terminal_size().columns, initial_indent="   ", subsequent_indent="   ")
    else:  # a line each, for grep and the like
        lines.append(f"   {snippet}")
    return "\n".join(lines)


def _snippet(text: str, width: int = 200) -> str:
    """Return the start of a chunk on one line, without its headings and without control characters."""
    body = [line for line in text.splitlines() if not line.lstrip().startswith("#")] or text.splitlines()
    flat = " ".join("".join(char if char.isprintable() else " " for char in " ".join(body)).split())
    return flat if len(flat) <= width else flat[: width - 1].rsplit(" ", 1)[0] + "…"


def context(
    message: Annotated[str, typer.Argument(help="What the user wrote.")],
    folder: Folder = None,
    storage: Storage = None,
    config: Config = None,
    embed_model: EmbedModel = None,
    max_results: Results = None,
    min_relevance: MinRelevance = None,
    half_life_days: HalfLife = None,
    recency: Recency = None,
    enabled: Enabled = None,
    refresh: Refresh = None,
    as_json: AsJson = False,
) -> None:
    """Print the digest of notes that an agent reads before it answers a message."""
    from llama_index_contextual.index import BackgroundRefresh
    from llama_index_contextual.memory import MemoryContext, MemorySettings
    from llama_index_contextual.memory.context import gate_digest

    options = _memory_options(max_results, min_relevance, half_life_days, recency, enabled, refresh)
    may_make = False
    if folder or not storage:  # else only the index knows its folder, and so its configuration
        memory = load_configuration(folder or Path(), file=config, options=options).memory
        digest = gate_digest(message, MemorySettings.configured(memory.given()))  # small talk needs no index
        if digest is not None:
            _print_digest(digest, as_json=as_json)
            return
        may_make = memory.refresh not in (None, "never")
    settings = {**options, "embedding.model": embed_model}
    with open_index(folder, storage, config, settings, create=may_make) as index:
        keeper = BackgroundRefresh(index, index.settings.configuration.memory.refresh or "never")
        tell_freshness(keeper.look())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ContextualWarning)  # the digest says the same
            digest = MemoryContext(index).get(message)
        _print_digest(digest, as_json=as_json)
        keeper.close()


def _print_digest(digest: MemoryDigest, *, as_json: bool) -> None:
    if as_json:
        print_json(digest.to_dict())
    else:
        print_text(digest.markdown)


def mcp(
    folder: Folder = None,
    storage: Storage = None,
    config: Config = None,
    embed_model: EmbedModel = None,
    transport: Annotated[Literal["stdio", "http"], typer.Option(help="How the client speaks to it.")] = "stdio",
    port: Annotated[int, typer.Option(min=1, max=65535, help="For http, on 127.0.0.1.")] = 8765,
    max_results: Results = None,
    min_relevance: MinRelevance = None,
    half_life_days: HalfLife = None,
    recency: Recency = None,
    enabled: Enabled = None,
    refresh: Refresh = None,
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Let agents append to the note of the day. Default: they only read")
    ] = False,
) -> None:
    """Serve a folder of notes to agents over the Model Context Protocol."""
    from llama_index_contextual.mcp_server import serve

    options = _memory_options(max_results, min_relevance, half_life_days, recency, enabled, refresh)
    options["embedding.model"] = embed_model
    if transport == "http":
        _require_port(port)
    try:
        serve(
            folder if folder or storage else Path(),
            transport=transport,
            port=port,
            allow_write=allow_write,
            storage=storage,
            config=partial(load_configuration, file=config, options=options),
        )
    except KeyboardInterrupt:
        _end_at_once(EXIT_INTERRUPTED)
        raise
    _end_at_once(0)


def _end_at_once(code: int) -> None:
    """End the process without waiting where a refresh is at work, perhaps for minutes.

    To end its thread with the interpreter could end in a crash.
    """
    from llama_index_contextual.index import is_refreshing

    if is_refreshing():
        sys.stderr.flush()
        os._exit(code)


def _require_port(port: int) -> None:
    """Refuse a port that another program has; the server itself would end without saying so."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SettingError(f"--port={port} cannot be used ({error.strerror}). Cure: another --port") from error


def _memory_options(
    max_results: int | None,
    min_relevance: float | None,
    half_life_days: float | None,
    recency: bool | None,
    enabled: bool | None,
    refresh: str | None,
) -> dict[str, Any]:
    if half_life_days is not None and not math.isfinite(half_life_days):
        raise SettingError(f"--half-life-days={half_life_days} is not finite. Cure: days, such as 30, or --no-recency")
    return {
        "memory.max_results": max_results,
        "memory.min_relevance": min_relevance,
        "memory.half_life_days": half_life_days,
        "memory.recency": recency,
        "memory.enabled": enabled,
        "memory.refresh": refresh,
    }


def preview(
    file: Annotated[Path, typer.Argument(help="A Markdown file.", exists=True, dir_okay=False)],
    chunk_size: ChunkSize = None,
    overlap: Overlap = None,
    tokenizer: Annotated[str | None, typer.Option(help="minilm, cl100k or estimate.")] = None,
    context: Annotated[bool, typer.Option("--context", help="Show what is embedded before each text.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", "-f", help="The folder whose index and settings count. Default: the file's own"),
    ] = None,
    config: Config = None,
    html: Page = None,
    as_json: AsJson = False,
) -> None:
    """Show how a file is cut: boundaries, lines, token counts, header paths."""
    from llama_index_contextual.preview import preview_file

    settings = {"chunks.size": chunk_size, "chunks.overlap": overlap, "chunks.tokenizer": tokenizer}
    file = file.resolve()
    with open_index(folder or file.parent, None, config, settings, reindex="ignore") as index:
        pipeline = index.settings.pipeline
        contexts, reader = pipeline.contexts if context or html else None, index.settings.reading.reader_of(file.name)
        result = preview_file(file, pipeline.parser, contexts, index.folder, reader)
    if html:
        write_page(html, result.to_html())
    elif as_json:
        print_json([_chunk_to_dict(node) for node in result.nodes])
    else:
        Console(highlight=False).print(result)


def _chunk_to_dict(node: TextNode) -> dict[str, Any]:
    from llama_index.core.schema import MetadataMode

    keys = ("start_line", "end_line", "header_path", "date", "token_count", "context")
    data = {key: value_of(node.metadata, key) for key in keys}
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    return {**data, "text": text, "embedded": node.get_content(metadata_mode=MetadataMode.EMBED)}


def status(
    folder: Indexed = None, storage: Storage = None, list_skipped: ListSkipped = False, as_json: AsJson = False
) -> None:
    """Show what an index holds, what made it, and what a refresh would do."""
    with open_index(folder, storage, create=False, reindex="ignore") as index:
        print_report(index.status(), as_json=as_json)
        tell_skipped(index, names=list_skipped)


def verify(folder: Indexed = None, storage: Storage = None, as_json: AsJson = False) -> None:
    """Check that files, database and engines agree. Exit code 3 if they do not."""
    with open_index(folder, storage, create=False, reindex="ignore") as index:
        verification = index.verify()
    print_report(verification, as_json=as_json)
    if not verification.ok:
        raise typer.Exit(EXIT_INCOMPLETE)


def export(
    folder: Indexed = None,
    storage: Storage = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file. Default: standard output")] = None,
) -> None:
    """Write every chunk with its metadata as a line of JSON."""
    with open_index(folder, storage, create=False, reindex="ignore") as index:
        index.export(out or sys.stdout)
