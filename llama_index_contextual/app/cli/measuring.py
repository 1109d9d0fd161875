"""The commands that measure with questions: ``evaluate`` and ``tune``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llama_index_contextual.app.cli import common as cli
from llama_index_contextual.app.config import FILE
from llama_index_contextual.errors import SettingError
from llama_index_contextual.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_index_contextual.app.evaluation import Comparison, Question

_SHOWN: Final = 3  # questions gained and lost, of each context


@dataclass(frozen=True)
class MeasuringOptions:
    """What is measured, and with which questions: a group of options."""

    argument: Annotated[Path | None, typer.Argument(metavar="folder", help="A folder of documents.")] = None
    named: Annotated[Path | None, typer.Option("--folder", "-f", metavar="PATH", help="The same.")] = None
    questions: Annotated[
        Path | None,
        typer.Option(
            "--questions",
            "-q",
            help="JSON lines or CSV: question, and path (with lines) or text of the answer. Default: --llm makes them",
        ),
    ] = None
    context: Annotated[
        list[str] | None,
        typer.Option(help="off (LlamaIndex metadata), headings, pattern, llm; several times. Default: the first three"),
    ] = None
    llm: Annotated[
        str | None,
        typer.Option(help="For --context llm, as for index, and for questions. It costs what the LLM costs."),
    ] = None
    made: Annotated[int, typer.Option(min=1, help="Without --questions: the most questions that --llm makes.")] = 100
    config: cli.Config = None
    embed_model: cli.option_of("embed_model") = None  # type: ignore[valid-type]
    top_k: Annotated[
        list[int] | None, typer.Option("--top-k", "-k", min=1, help="Hits to count; several times. Default: 5, 10, 20")
    ] = None

    @property
    def folder(self) -> Path:
        """Return the folder."""
        folders = [folder for folder in (self.argument, self.named) if folder]
        if len(folders) != 1:
            raise typer.BadParameter("the folder is named twice" if folders else "no folder is named")
        return folders[0]

    @property
    def maker(self) -> str:
        """Return the language model that makes the questions; "" where a file has them."""
        return "" if self.questions else str(self.llm)

    def run(self, measure: Callable[..., Any], **options: Any) -> Any:
        """Measure with the questions of the file, or with those that a language model makes."""
        options |= {"contexts": self.context, "top_k": self.top_k, "llm": self.llm, "config": self.config}
        options |= {"embed_model": self.embed_model, "show_progress": cli.messages.is_terminal}
        return measure(
            self.folder, self._questions(), say=cli.tell, **{key: one for key, one in options.items() if one}
        )

    def _questions(self) -> list[Question]:
        from llama_index_contextual.app.evaluation import load_questions, make_questions

        if self.questions is not None:
            return load_questions(self.questions)
        if self.llm is None:
            raise SettingError("there are no questions. Cure: --questions FILE, or --llm MODEL, which makes some.")
        config = {"config": self.config} if self.config else {}
        questions = make_questions(self.folder, self.llm, most=self.made, say=cli.tell, **config)
        cli.tell(f"{counted(len(questions), 'question')}, such as: {questions[0].text}")
        return questions


@cli.with_options()
def evaluate(
    options: MeasuringOptions,
    *,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE: a row with the settings of FILE, like contextual.toml; several times."),
    ] = None,
    rerank: Annotated[
        list[str] | None, typer.Option(help=f"A row with a reranker: {cli.RERANKERS}; several times.")
    ] = None,
    storage: Annotated[
        Path | None, typer.Option(help="Keeps the indexes, so that a second run is fast. Default: nothing is kept")
    ] = None,
    html: cli.Page = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown to this file.")] = None,
    as_json: cli.AsJson = False,
) -> None:
    """Ask your own questions with and without contexts, and show what each kind finds."""
    from llama_index_contextual.app.evaluation import evaluate as run
    from llama_index_contextual.app.evaluation import html_report, markdown_report

    variants = dict(map(_variant, variant or []))
    comparison = options.run(run, made=options.maker, storage=storage, variants=variants, rerank=rerank)
    for file, make in ((html, html_report), (markdown, markdown_report)):
        if file:
            cli.write_page(file, make(comparison, f"What contexts find in {options.folder}"))
    names = [row.name for row in comparison.rows]
    changes = [line for name in names[1 + names.index(comparison.baseline) :] for line in _changes(comparison, name)]
    cli.print_report(comparison, "\n".join([str(comparison), *changes]), as_json=as_json)


@cli.with_options()
def tune(
    options: MeasuringOptions,
    *,
    write: Annotated[
        bool,
        typer.Option("--write", help="Write the best settings into contextual.toml, if more than chance."),
    ] = False,
    as_json: cli.AsJson = False,
) -> None:
    """Choose contexts, fusion and grouping by questions, and say what that gains on questions that did not choose."""
    from llama_index_contextual.app.evaluation import tune as run

    result = options.run(run)
    note = f"\n{options.maker} made the questions: people may ask otherwise." if options.maker else ""
    cli.print_result({**result.to_dict(), "made": options.maker}, f"{result}{note}", as_json=as_json)
    if write and not result.is_more_than_chance:
        cli.tell("Nothing is written: the present settings stay.")
    elif write:
        file = options.config or options.folder / FILE
        result.write(file)
        cli.tell(f"Written: {file}")


def _variant(text: str) -> tuple[str, Path]:
    name, _, file = text.partition("=")
    if not name.strip() or not file:
        raise SettingError(f"--variant={text!r} is not NAME=FILE. Cure: as in --variant small=small.toml")
    return name.strip(), Path(file)


def _changes(comparison: Comparison, name: str) -> Iterator[str]:
    for kind, questions in comparison.changes(name).items():
        yield f"\n{name} {kind} {len(questions)} at {comparison.top_k[0]}{':' if questions else ''}"
        yield from (f"  {printable(question.text, one_line=True)}" for question in questions[:_SHOWN])
        if len(questions) > _SHOWN:
            yield f"  … and {len(questions) - _SHOWN} more"
