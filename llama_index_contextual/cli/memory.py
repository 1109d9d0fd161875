"""``context`` and ``mcp``: notes as an agent's memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from llama_index_contextual.cli.common import AsJson, EmbedModel, Folder, Storage, print_json
from llama_index_contextual.errors import SettingError

Results = Annotated[int, typer.Option("--max-results", min=1, help="Most hits of a digest.")]
HalfLife = Annotated[float, typer.Option(min=0.01, help="Days after which a dated note's recency factor is a half.")]
Recency = Annotated[bool, typer.Option("--recency/--no-recency", help="Whether newer notes win among near equals.")]

Enabled = Annotated[bool, typer.Option("--enabled/--disabled", help="Disabled, memory says so in one line and stops.")]


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
    """The digest of notes that an agent reads before it answers a message."""
    from llama_index_contextual.mcp_server import run_context

    settings = _settings(max_results, half_life_days, recency=recency, enabled=enabled)
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

    settings = _settings(max_results, half_life_days, recency=recency, enabled=enabled)
    serve(folder, transport=transport, port=port, settings=settings, storage=storage, embed_model=embed_model)


def _settings(max_results: int, half_life_days: float, *, recency: bool, enabled: bool) -> Any:
    from llama_index_contextual.memory.settings import MemorySettings

    if not math.isfinite(half_life_days):
        raise SettingError(f"--half-life-days={half_life_days} is not finite. Cure: days, such as 30, or --no-recency")
    return MemorySettings(
        enabled=enabled,
        max_results=max_results,
        half_life_days=half_life_days,
        include_recency=recency,
        candidate_pool=max(MemorySettings().candidate_pool, max_results),
    )
