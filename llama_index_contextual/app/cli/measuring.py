"""``evaluate``, which measures with questions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llama_index_contextual.app.cli import common as cli
from llama_index_contextual.errors import SettingError
from llama_index_contextual.text import printable

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
            help="JSON lines or CSV: question, and path (with lines) or text of the answer.",
        ),
    ] = None
    context: Annotated[
        list[str] | None,
        typer.Option(
            help="off (LlamaIndex's metadata), headings (or headers), pattern, llm; several times. "
            "Default: the first three"
        ),
    ] = None
    llm: Annotated[
        str | None,
        typer.Option(help="For --context llm, as for index. It costs what the LLM costs."),
    ] = None
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

    def run(self, measure: Callable[..., Any], **options: Any) -> Any:
        """Measure with the questions of the file."""
        options |= {"contexts": self.context, "top_k": self.top_k, "llm": self.llm, "config": self.config}
        options |= {"embed_model": self.embed_model, "show_progress": cli.messages.is_terminal}
        return measure(
            self.folder, self._questions(), say=cli.tell, **{key: one for key, one in options.items() if one}
        )

    def _questions(self) -> list[Question]:
        from llama_index_contextual.app.evaluation import load_questions

        if self.questions is None:
            raise SettingError("there are no questions. Cure: --questions FILE")
        return load_questions(self.questions)


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
    comparison = options.run(run, storage=storage, variants=variants, rerank=rerank)
    for file, make in ((html, html_report), (markdown, markdown_report)):
        if file:
            cli.write_page(file, make(comparison, f"What contexts find in {options.folder}"))
    names = [row.name for row in comparison.rows]
    changes = [line for name in names[1 + names.index(comparison.baseline) :] for line in _changes(comparison, name)]
    cli.print_report(comparison, "\n".join([str(comparison), *changes]), as_json=as_json)


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
