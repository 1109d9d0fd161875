"""``index``, ``search`` and ``preview``: a folder of Markdown."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from llama_index_contextual.cli.common import (
    EXIT_INCOMPLETE,
    AsJson,
    EmbedModel,
    Folder,
    Storage,
    messages,
    opened,
    plain,
    print_json,
)
from llama_index_contextual.errors import DocumentError, SettingError

if TYPE_CHECKING:
    from llama_index.core.schema import NodeWithScore

    from llama_index_contextual.context.usage import ContextEstimate, Prices


def index(
    folder: Annotated[Path, typer.Argument(help="A folder of Markdown and text files.")],
    storage: Storage = None,
    embed_model: EmbedModel = None,
    context: Annotated[
        str | None,
        typer.Option(help="off, headings, pattern or llm. Default: what the index was made with, else headings"),
    ] = None,
    llm: Annotated[
        str | None, typer.Option(help="For --context llm: ollama:MODEL, openai:MODEL or openai:MODEL@http://host/v1.")
    ] = None,
    reindex: Annotated[
        str, typer.Option(help="When settings differ from the index's: auto, error, ignore, or all (re-embed).")
    ] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what LLM contexts would cost; index nothing.")
    ] = False,
    price: Annotated[
        str | None, typer.Option(help="For --dry-run: IN/OUT, money per million tokens, as in 0.4/1.6.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Index a folder, or bring its index up to date: only what changed is embedded."""
    if price is not None and not dry_run:  # who asks for the price does not want to pay it yet
        raise SettingError(f"--price={price!r} is only for an estimate. Cure: add --dry-run, or leave it out")
    options: dict[str, Any] = {"llm": llm} if llm else {}
    with opened(folder, storage, embed_model, context=context, reindex=reindex, **options) as contextual:
        if dry_run:
            estimate, pipeline = contextual.estimate(_prices(price)), contextual.settings.pipeline
            if pipeline.paid_source is None and not as_json:
                typer.echo(f"--context {pipeline.contexts.context} costs nothing: only --context llm asks an LLM")
            else:
                _print_estimate(estimate, as_json=as_json)
            return
        report = contextual.refresh(show_progress=messages.is_terminal)
    if as_json:
        print_json(report.as_dict())
    else:
        typer.echo(str(report))
    for failure in report.failed:
        messages.print(f"[yellow]not indexed:[/] {plain(str(failure))}")
    if not report.chunks and not report.failed:
        messages.print(f"{plain(str(folder))} holds no files to index: Markdown (.md) and text (.txt) are read.")
    if report.failed:
        raise typer.Exit(EXIT_INCOMPLETE)


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

    with opened(folder, storage, embed_model, create=False) as contextual:
        few = [] if per_file is None else [GroupingPostprocessor(group_size=per_file)]
        explanation = contextual.as_retriever(similarity_top_k=top_k, node_postprocessors=few).explain(question)
    if as_json:
        print_json(explanation.to_dict() if explain else [_as_dict(hit) for hit in explanation.nodes])
        return
    if not explanation.hits:
        messages.print("Nothing found.")
    elif explain:
        typer.echo(str(explanation))
    else:
        for rank, hit in enumerate(explanation.nodes, 1):
            typer.echo(_as_text(rank, hit))


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


def _prices(price: str | None) -> Prices | None:
    if price is None:
        return None
    from llama_index_contextual.context.usage import Prices

    try:
        prompt, completion = (float(part) for part in price.split("/"))
    except ValueError:
        prompt = completion = math.nan
    if not (0 <= prompt < math.inf and 0 <= completion < math.inf):
        raise SettingError(f"--price={price!r} is not IN/OUT. Cure: two numbers per million tokens, as in 0.4/1.6")
    return Prices(prompt, completion)


def _print_estimate(estimate: ContextEstimate, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(estimate))
        return
    tokens = estimate.tokens
    lines = [
        f"{estimate.chunks} chunks need a context, {estimate.from_cache} have one in the cache",
        f"{estimate.calls} calls, at most {tokens.prompt:,} tokens in and {tokens.completion:,} out",
        f"{tokens.cached:,} of those in come again, and a server with a prefix cache skips them",
        f"about {max(estimate.seconds / 60, 1):.0f} min, one call after the other",
    ]
    if estimate.price is not None:
        lines.append(f"{estimate.price:.2f} at most, at your prices")
    typer.echo("\n".join(lines))


def _as_dict(hit: NodeWithScore) -> dict[str, Any]:
    """What a program wants to know of a hit; the text is as displayed, without its context."""
    meta = hit.node.metadata
    keys = ("path", "start_line", "end_line", "header_path", "date")
    known = {key: meta.get(key) for key in keys}
    return {"score": hit.score, **known, "id": hit.node.node_id, "text": hit.node.get_content()}


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
    flat = " ".join("".join(char if char.isprintable() else " " for char in " ".join(body)).split())
    return flat if len(flat) <= width else flat[: width - 1].rsplit(" ", 1)[0] + "…"
