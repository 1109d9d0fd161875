"""``evaluate``: whether contexts pay on a folder of one's own."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llama_index_contextual.cli.common import AsJson, EmbedModel, messages, plain, print_json

if TYPE_CHECKING:
    from llama_index_contextual.evaluation import Comparison

_SHOWN: Final = 3  # questions gained and lost, of each context


def evaluate(
    folder: Annotated[Path, typer.Argument(help="A folder of Markdown and text files.")],
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
    """Ask your own questions with and without contexts, and see what each kind finds."""
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
    for row in comparison.rows[2:]:  # before them vectors alone, and the baseline
        _print_changes(comparison, row.name)


def _print_changes(comparison: Comparison, name: str) -> None:
    for what, found in (("gained", comparison.gained(name)), ("lost", comparison.lost(name))):
        typer.echo(f"\n{name} {what} {len(found)} at {comparison.top_k[0]}{':' if found else ''}")
        for question in found[:_SHOWN]:
            typer.echo(f"  {question.text}")
        if len(found) > _SHOWN:
            typer.echo(f"  … and {len(found) - _SHOWN} more")
