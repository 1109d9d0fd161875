"""``index``: the command that writes."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_index_contextual.cli.common import (
    EXIT_INCOMPLETE,
    AsJson,
    Documents,
    EmbedModel,
    Storage,
    messages,
    open_index,
    plain,
    print_json,
)
from llama_index_contextual.errors import SettingError

if TYPE_CHECKING:
    from llama_index_contextual.context.usage import ContextEstimate, Prices


def index(
    folder: Documents,
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
    if price is not None and not dry_run:  # who asks for a price does not want to pay yet
        raise SettingError(f"--price={price!r} is only for an estimate. Cure: add --dry-run, or leave it out")
    options: dict[str, Any] = {"llm": llm} if llm else {}
    with open_index(folder, storage, embed_model, context=context, reindex=reindex, **options) as contextual:
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
