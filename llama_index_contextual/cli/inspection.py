"""``status``, ``verify`` and ``export``: look into an index."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from llama_index_contextual.cli.common import EXIT_INCOMPLETE, AsJson, Storage, opened, print_json

Indexed = Annotated[Path, typer.Argument(help="The folder that was indexed.")]


def status(folder: Indexed = Path(), storage: Storage = None, as_json: AsJson = False) -> None:
    """What an index holds, what it was made with, and what a refresh would do."""
    with opened(folder, storage, create=False, reindex="ignore") as index:
        found = index.status()
    if as_json:
        print_json(found.as_dict())
    else:
        typer.echo(str(found))


def verify(folder: Indexed = Path(), storage: Storage = None, as_json: AsJson = False) -> None:
    """Check that files, manifest, vectors and keyword index agree. Exit code 3 if they do not."""
    with opened(folder, storage, create=False, reindex="ignore") as index:
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
    with opened(folder, storage, create=False, reindex="ignore") as index:
        index.export(out or sys.stdout)
