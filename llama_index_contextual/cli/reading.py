"""The commands that read: ``search``, ``context``, ``mcp``, ``evaluate``, ``preview``, ``status`` and their like."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.console import Console

from llama_index_contextual.cli.common import (
    EXIT_INCOMPLETE,
    AsJson,
    Documents,
    EmbedModel,
    Folder,
    Indexed,
    Storage,
    messages,
    open_index,
    plain,
    print_json,
)
from llama_index_contextual.errors import DocumentError, SettingError
from llama_index_contextual.metadata import END_LINE, START_LINE, citation, path_of

if TYPE_CHECKING:
    from llama_index.core.schema import NodeWithScore

    from llama_index_contextual.evaluation import Comparison

_SHOWN: Final = 3  # questions gained and lost, of each context
Results = Annotated[int, typer.Option("--max-results", min=1, help="Most hits of a digest.")]
HalfLife = Annotated[float, typer.Option(min=0.01, help="Days after which a dated note's recency factor is a half.")]
Recency = Annotated[bool, typer.Option("--recency/--no-recency", help="Whether newer notes win among near equals.")]
Enabled = Annotated[bool, typer.Option("--enabled/--disabled", help="Disabled, memory says so in one line and stops.")]


def search(
    question: Annotated[str, typer.Argument(help="What you want to find.")],
    folder: Folder = Path(),
    storage: Storage = None,
    embed_model: EmbedModel = None,
    top_k: Annotated[int, typer.Option(min=1, help="How many hits.")] = 5,
    per_file: Annotated[int | None, typer.Option(min=1, help="At most so many hits of one file.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Each arm's rank and score, and the matched terms.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the chunks that answer a question, with the lines they stand in."""
    from llama_index_contextual.postprocessor import GroupingPostprocessor

    with open_index(folder, storage, embed_model, create=False) as contextual:
        grouping = [] if per_file is None else [GroupingPostprocessor(group_size=per_file)]
        explanation = contextual.as_retriever(similarity_top_k=top_k, node_postprocessors=grouping).explain(question)
    if as_json:
        print_json(explanation.to_dict() if explain else [_hit_to_dict(hit) for hit in explanation.nodes])
        return
    if not explanation.hits:
        messages.print("Nothing found.")
    elif explain:
        typer.echo(str(explanation))
    else:
        for rank, hit in enumerate(explanation.nodes, 1):
            typer.echo(_hit_to_text(rank, hit))


def _hit_to_dict(hit: NodeWithScore) -> dict[str, Any]:
    """Return a hit as plain data. The text is the displayed one, without its context."""
    meta = hit.node.metadata
    keys = ("path", "start_line", "end_line", "header_path", "date")
    known = {key: meta.get(key) for key in keys}
    return {"score": hit.score, **known, "id": hit.node.node_id, "text": hit.node.get_content()}


def _hit_to_text(rank: int, hit: NodeWithScore) -> str:
    meta = hit.node.metadata
    place = citation(path_of(meta), meta.get(START_LINE), meta.get(END_LINE))
    lines = [f"{rank}. {hit.score or 0:.2f}  {place}"]
    if meta.get("header_path"):
        lines.append(f"   {meta['header_path']}")
    lines.append(f"   {_snippet(hit.node.get_content())}")
    return "\n".join(lines)


def _snippet(text: str, width: int = 200) -> str:
    """Return the start of a chunk on one line, without its headings and without control characters."""
    body = [line for line in text.splitlines() if not line.lstrip().startswith("#")] or text.splitlines()
    flat = " ".join("".join(char if char.isprintable() else " " for char in " ".join(body)).split())
    return flat if len(flat) <= width else flat[: width - 1].rsplit(" ", 1)[0] + "…"


def context(
    message: Annotated[str, typer.Argument(help="What the user wrote.")],
    folder: Folder = Path(),
    storage: Storage = None,
    embed_model: EmbedModel = None,
    max_results: Results = 4,
    half_life_days: HalfLife = 30.0,
    recency: Recency = True,
    enabled: Enabled = True,
    as_json: AsJson = False,
) -> None:
    """Print the digest of notes that an agent reads before it answers a message."""
    from llama_index_contextual.mcp_server import run_context

    settings = _memory_settings(max_results, half_life_days, recency=recency, enabled=enabled)
    digest = run_context(folder, message, settings=settings, storage=storage, embed_model=embed_model)
    if as_json:
        print_json(digest.to_dict())
    else:
        typer.echo(digest.markdown)


def mcp(
    folder: Folder = Path(),
    storage: Storage = None,
    embed_model: EmbedModel = None,
    transport: Annotated[Literal["stdio", "http"], typer.Option(help="How the client speaks to it.")] = "stdio",
    port: Annotated[int, typer.Option(min=1, max=65535, help="For http, on 127.0.0.1.")] = 8765,
    max_results: Results = 4,
    half_life_days: HalfLife = 30.0,
    recency: Recency = True,
    enabled: Enabled = True,
) -> None:
    """Serve a folder of notes to agents over the Model Context Protocol."""
    from llama_index_contextual.mcp_server import serve

    settings = _memory_settings(max_results, half_life_days, recency=recency, enabled=enabled)
    serve(folder, transport=transport, port=port, settings=settings, storage=storage, embed_model=embed_model)


def _memory_settings(max_results: int, half_life_days: float, *, recency: bool, enabled: bool) -> Any:
    from llama_index_contextual.memory import MemorySettings

    if not math.isfinite(half_life_days):
        raise SettingError(f"--half-life-days={half_life_days} is not finite. Cure: days, such as 30, or --no-recency")
    return MemorySettings(
        enabled=enabled,
        max_results=max_results,
        half_life_days=half_life_days,
        include_recency=recency,
        candidate_pool=max(MemorySettings().candidate_pool, max_results),
    )


def evaluate(
    folder: Documents,
    questions: Annotated[
        Path,
        typer.Option(
            "--questions", "-q", help="JSON lines or CSV: question, and path (with lines) or text of the answer."
        ),
    ],
    context: Annotated[
        list[str] | None, typer.Option(help="headings, pattern or llm; several times. Default: headings and pattern")
    ] = None,
    llm: Annotated[
        str | None, typer.Option(help="For --context llm, as for index. It costs what the LLM costs.")
    ] = None,
    storage: Annotated[
        Path | None, typer.Option(help="Keeps the indexes, so that a second run is fast. Default: nothing is kept")
    ] = None,
    embed_model: EmbedModel = None,
    top_k: Annotated[
        list[int] | None, typer.Option(min=1, help="Hits to count; several times. Default: 5, 10, 20")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask your own questions with and without contexts, and show what each kind finds."""
    from llama_index_contextual.evaluation import evaluate as run
    from llama_index_contextual.evaluation import load_questions

    given: dict[str, Any] = {"contexts": context, "top_k": top_k, "llm": llm}
    comparison = run(
        folder,
        load_questions(questions),
        storage=storage,
        embed_model=embed_model,
        say=lambda line: messages.print(plain(line)),
        show_progress=messages.is_terminal,
        **{key: value for key, value in given.items() if value},
    )
    if as_json:
        print_json(comparison.to_dict())
        return
    typer.echo(str(comparison))
    for row in comparison.rows[2:]:  # the first two are vectors alone and the baseline
        _print_changes(comparison, row.name)


def _print_changes(comparison: Comparison, name: str) -> None:
    for what, found in (("gained", comparison.gained(name)), ("lost", comparison.lost(name))):
        typer.echo(f"\n{name} {what} {len(found)} at {comparison.top_k[0]}{':' if found else ''}")
        for question in found[:_SHOWN]:
            typer.echo(f"  {question.text}")
        if len(found) > _SHOWN:
            typer.echo(f"  … and {len(found) - _SHOWN} more")


def preview(
    file: Annotated[Path, typer.Argument(help="A Markdown file.", exists=True, dir_okay=False)],
    chunk_size: Annotated[int | None, typer.Option(min=1, help="Tokens. Default: what the local index uses")] = None,
    tokenizer: Annotated[str, typer.Option(help="minilm, cl100k or estimate.")] = "minilm",
) -> None:
    """Show how a file is cut: boundaries, lines, token counts, header paths."""
    from llama_index_contextual.embedding import LocalEmbedding
    from llama_index_contextual.index.pipeline import default_parser
    from llama_index_contextual.node_parser import HeadingAwareMarkdownNodeParser
    from llama_index_contextual.preview import render_preview

    if chunk_size is None and tokenizer == "minilm":
        parser = default_parser(LocalEmbedding())
    else:
        size = chunk_size or 400
        parser = HeadingAwareMarkdownNodeParser(
            chunk_size=size, chunk_overlap=size // 5, min_chunk_size=size // 8, tokenizer=tokenizer
        )
    try:
        shown = render_preview(file, parser)
    except UnicodeDecodeError as error:
        raise DocumentError(f"{file} is not UTF-8 ({error}). Cure: save it as UTF-8") from error
    Console(highlight=False).print(shown)


def status(folder: Indexed = Path(), storage: Storage = None, as_json: AsJson = False) -> None:
    """Show what an index holds, what made it, and what a refresh would do."""
    with open_index(folder, storage, create=False, reindex="ignore") as index:
        found = index.status()
    if as_json:
        print_json(found.as_dict())
    else:
        typer.echo(str(found))


def verify(folder: Indexed = Path(), storage: Storage = None, as_json: AsJson = False) -> None:
    """Check that files, manifest, vectors and keyword index agree. Exit code 3 if they do not."""
    with open_index(folder, storage, create=False, reindex="ignore") as index:
        found = index.verify()
    if as_json:
        print_json(found.as_dict())
    else:
        typer.echo(str(found))
    if not found.ok:
        raise typer.Exit(EXIT_INCOMPLETE)


def export(
    folder: Indexed = Path(),
    storage: Storage = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file. Default: standard output")] = None,
) -> None:
    """Write every chunk with its metadata as a line of JSON."""
    with open_index(folder, storage, create=False, reindex="ignore") as index:
        index.export(out or sys.stdout)
