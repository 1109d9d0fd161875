"""The commands that measure with questions: ``evaluate`` and ``tune``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llama_index_contextual.cli.common import (
    RERANKERS,
    AsJson,
    Config,
    Documents,
    EmbedModel,
    Page,
    messages,
    print_json,
    print_text,
    tell,
    write_page,
)
from llama_index_contextual.config import FILE
from llama_index_contextual.errors import SettingError
from llama_index_contextual.text import counted, printable

if TYPE_CHECKING:
    from llama_index_contextual.evaluation import Comparison, Question

_SHOWN: Final = 3  # questions gained and lost, of each context
Questions = Annotated[
    Path | None,
    typer.Option(
        "--questions",
        "-q",
        help="JSON lines or CSV: question, and path (with lines) or text of the answer. Default: --llm makes them",
    ),
]
Made = Annotated[int, typer.Option("--made", min=1, help="Without --questions: the most questions that --llm makes.")]


def evaluate(
    folder: Documents,
    questions: Questions = None,
    context: Annotated[
        list[str] | None,
        typer.Option(help="off (LlamaIndex metadata), headings, pattern, llm; several times. Default: the first three"),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(help="For --context llm, as for index, and for questions. It costs what the LLM costs."),
    ] = None,
    made: Made = 100,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE: a row with the settings of FILE, like contextual.toml; several times."),
    ] = None,
    rerank: Annotated[
        list[str] | None, typer.Option(help=f"A row with a reranker: {RERANKERS}; several times.")
    ] = None,
    storage: Annotated[
        Path | None, typer.Option(help="Keeps the indexes, so that a second run is fast. Default: nothing is kept")
    ] = None,
    config: Config = None,
    embed_model: EmbedModel = None,
    top_k: Annotated[
        list[int] | None, typer.Option(min=1, help="Hits to count; several times. Default: 5, 10, 20")
    ] = None,
    html: Page = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask your own questions with and without contexts, and show what each kind finds."""
    from llama_index_contextual.evaluation import evaluate as run
    from llama_index_contextual.evaluation import html_report, markdown_report

    options: dict[str, Any] = {"contexts": context, "top_k": top_k, "llm": llm, "config": config, "rerank": rerank}
    comparison = run(
        folder,
        _questions(folder, questions, llm, made, config),
        made="" if questions else str(llm),
        storage=storage,
        embed_model=embed_model,
        variants=dict(map(_variant, variant or [])),
        say=tell,
        show_progress=messages.is_terminal,
        **{key: value for key, value in options.items() if value},
    )
    for file, make in ((html, html_report), (markdown, markdown_report)):
        if file:
            write_page(file, make(comparison, f"What contexts find in {folder}"))
    if as_json:
        print_json(comparison.to_dict())
        return
    print_text(str(comparison))
    names = [row.name for row in comparison.rows]
    for name in names[1 + names.index(comparison.baseline) :]:
        _print_changes(comparison, name)


def tune(
    folder: Documents,
    questions: Questions = None,
    context: Annotated[
        list[str] | None, typer.Option(help="Contexts to try; several times. Default: off, headings and pattern")
    ] = None,
    llm: Annotated[str | None, typer.Option(help="For --context llm, and for questions, as for evaluate.")] = None,
    made: Made = 100,
    config: Config = None,
    embed_model: EmbedModel = None,
    top_k: Annotated[
        list[int] | None, typer.Option(min=1, help="Hits to count; several times. Default: 5, 10, 20")
    ] = None,
    write: Annotated[
        bool,
        typer.Option("--write", help="Write the best settings into contextual.toml, if more than chance."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Choose contexts, fusion and grouping by questions, and say what that gains on questions that did not choose."""
    from llama_index_contextual.evaluation import tune as run

    options: dict[str, Any] = {"contexts": context, "top_k": top_k, "llm": llm, "config": config}
    result = run(
        folder,
        _questions(folder, questions, llm, made, config),
        embed_model=embed_model,
        say=tell,
        show_progress=messages.is_terminal,
        **{key: value for key, value in options.items() if value},
    )
    if as_json:
        print_json({**result.to_dict(), "made": "" if questions else str(llm)})
    else:
        print_text(str(result))
        if not questions:
            print_text(f"{llm} made the questions: people may ask otherwise.")
    if write and not result.is_more_than_chance:
        tell("Nothing is written: the present settings stay.")
    elif write:
        file = config or folder / FILE
        result.write(file)
        tell(f"Written: {file}")


def _questions(folder: Path, file: Path | None, llm: str | None, made: int, config: Path | None) -> list[Question]:
    """Read questions from a file, or have a language model make them."""
    from llama_index_contextual.evaluation import load_questions, make_questions

    if file is not None:
        return load_questions(file)
    if llm is None:
        raise SettingError("there are no questions. Cure: --questions FILE, or --llm MODEL, which makes some.")
    questions = make_questions(folder, llm, most=made, say=tell, **({"config": config} if config else {}))
    tell(f"{counted(len(questions), 'question')}, such as: {questions[0].text}")
    return questions


def _variant(text: str) -> tuple[str, Path]:
    name, _, file = text.partition("=")
    if not name.strip() or not file:
        raise SettingError(f"--variant={text!r} is not NAME=FILE. Cure: as in --variant small=small.toml")
    return name.strip(), Path(file)


def _print_changes(comparison: Comparison, name: str) -> None:
    for kind, questions in comparison.changes(name).items():
        print_text(f"\n{name} {kind} {len(questions)} at {comparison.top_k[0]}{':' if questions else ''}")
        for text, *_ in questions[:_SHOWN]:
            print_text(f"  {printable(text, one_line=True)}")
        if len(questions) > _SHOWN:
            print_text(f"  … and {len(questions) - _SHOWN} more")
