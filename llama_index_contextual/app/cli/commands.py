"""All commands but ``index``: those that answer a question, and those that serve, show and measure."""

from __future__ import annotations

import json
import os
import sys
import warnings
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from llama_index_contextual.app.cli import options
from llama_index_contextual.app.cli.options import (
    AsJson,
    ListSkipped,
    NamedTarget,
    Narrowed,
    Page,
    Target,
    with_options,
)
from llama_index_contextual.app.settings import SETTINGS
from llama_index_contextual.errors import ContextualWarning, DocumentError, SettingError
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.app.serve import ShownHit
    from llama_index_contextual.app.serve.answering import Sentence

Question = Annotated[list[str], typer.Argument(help="What you want to find; no quotes are needed.")]
Message = Annotated[list[str], typer.Argument(help="What the user wrote.")]
All = Annotated[bool, typer.Option("--all", help="Show every setting.")]
PagePort = Annotated[int, typer.Option(min=0, max=65535, help="0 is one that is free.")]
_MARGIN: Final = 3
_WIDTH: Final = 40  # of the column of values


@with_options("retrieval.top_k", "retrieval.per_file", "retrieval.min_score", "retrieval.recency")
def search(
    question: Question,
    target: Target,
    narrowed: Narrowed,
    *,
    explain: Annotated[bool, typer.Option("--explain", help="Show why each hit is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find passages that answer a question, each with its citation."""
    from llama_index_contextual.app.index import BackgroundRefresh
    from llama_index_contextual.app.serve import ask as find

    text, filters = _text_of(question), narrowed.filters()
    with target.open(create=False) as index, BackgroundRefresh(index, "never") as keeper:
        options.note(str(keeper.look()))
        explanation, hits = find(index, text, filters=filters)
        _print_remarks([*([] if hits else ["Nothing found."]), *explanation.remarks])
        if as_json:
            options.print_report(explanation.to_dict() if explain else [hit.to_dict() for hit in hits])
        elif explain and hits:
            options.print_text(str(explanation))
        else:
            for number, hit in enumerate(hits, 1):
                _print_hit(index, number, hit)


def _text_of(words: Sequence[str]) -> str:
    """A question that was written as one argument or as several.

    Raises:
        SettingError: It is empty.
    """
    text = " ".join(words)
    if not text.strip():
        raise SettingError("the question is empty. Cure: name what you want to find.")
    return text


def _print_remarks(lines: Sequence[str]) -> None:
    """Write what of a question was changed, and which hits were left out by which option."""
    for line in lines:
        options.tell(line.replace("min_score=", "--min-score "))


def _print_hit(index: ContextualIndex, number: int, hit: ShownHit) -> None:
    """Print a hit: name and citation, headings, three lines around the match, and how many more its document has."""
    from llama_index_contextual.memory import SPLIT, marked

    is_terminal = sys.stdout.isatty()
    place = index.settings.folders.place(hit.path) if hit.path and is_terminal else None
    link = f" link {place.as_uri()}" if place and place.is_file() else ""
    score = (f"  {hit.hit.score:.2f}", "dim")
    options.print_styled((f"{number}. {hit.name}", "bold"), "  ", (hit.hit.source, f"cyan{link}"), score)
    if hit.headings:
        options.print_styled((hit.headings, "dim"), indent=_MARGIN)
    for line in hit.excerpt:
        parts = marked(line, hit.terms if is_terminal else (), SPLIT)
        options.print_styled(*((part, "bold yellow" if matched else "") for matched, part in parts), indent=_MARGIN)
    if hit.more:
        options.print_styled((f"{counted(hit.more, 'more hit')} in it; --per-file 0 shows them", "dim"), indent=_MARGIN)
    if is_terminal:
        options.print_styled("")


@with_options("context_options.llm", "retrieval.top_k")
def ask(question: Question, target: Target, narrowed: Narrowed, *, as_json: AsJson = False) -> None:
    """Answer a question with a language model and name the sources."""
    from llama_index.core.schema import MetadataMode

    from llama_index_contextual.app.serve import ask as find
    from llama_index_contextual.app.serve.answering import NOTHING, answer, answering_model, model_name

    text, filters = _text_of(question), narrowed.filters()
    with target.open(create=False) as index:
        timeout = index.settings.configuration["timeout"]
        model = answering_model(index.settings.configuration["context_options.llm"], timeout)
        explanation, hits = find(index, text, filters=filters, per_file=0)
        _print_remarks([*explanation.remarks, *([] if hits else [NOTHING])])
    sentences: list[Sentence] = []
    sources = [hit.node.get_content(MetadataMode.LLM) for hit in hits]
    try:
        for sentence in answer(text, sources, model, timeout=timeout) if hits else ():
            sentences.append(sentence)
            if not as_json:
                options.print_text(str(sentence), end="")
    finally:
        if sentences and not as_json:
            options.print_text("")
    if as_json:
        data = {
            "question": text,
            "llm": model_name(model) if hits else None,
            "answer": "".join(one.text for one in sentences),
            "sentences": [asdict(one) for one in sentences],
            "sources": [{"number": number, **hit.to_dict()} for number, hit in enumerate(hits, 1)],
        }
        return options.print_report(data)
    if sentences:
        options.print_text("")
    named = {number for sentence in sentences for number in sentence.sources}
    for number, hit in enumerate(hits if sentences else (), 1):
        if number in named or not named:
            options.print_styled(f"[{number}] {hit.hit.source}  {hit.headings or hit.name}")
    return None


@with_options("memory.max_results", "memory.min_relevance", "memory.include_recency", "memory.refresh")
def context(message: Message, target: Target, *, as_json: AsJson = False) -> None:
    """Print what an agent reads of the notes before it answers."""
    from llama_index_contextual.app.index import BackgroundRefresh
    from llama_index_contextual.memory import MemoryContext, gate_digest

    text = _text_of(message)
    digest = gate_digest(text)  # small talk needs no index
    if digest is None:
        with target.open() as index, warnings.catch_warnings():
            warnings.simplefilter("ignore", ContextualWarning)  # the digest says the same
            with BackgroundRefresh(index, index.settings.configuration["memory.refresh"] or "never") as keeper:
                options.note(str(keeper.look()))
                digest = MemoryContext(index).get(text)
    options.print_report(digest, digest.markdown, as_json=as_json)
    if not digest.applicable and not as_json:
        options.note(f"not searched: {digest.reason}")


@with_options("context_options.llm")
def serve(target: NamedTarget, *, port: PagePort = 8766) -> None:
    """Show a page to search, read and ask on. Ctrl-C ends it."""
    from llama_index_contextual.app.serve.page import serve as run

    with options.interruptible():
        run(target.folder, storage=target.storage, port=port, config=target.configuration)


@with_options("memory.max_results", "memory.min_relevance", "memory.include_recency", "memory.refresh")
def mcp(
    target: NamedTarget,
    *,
    transport: Annotated[Literal["stdio", "http"], typer.Option(help="How the client speaks to it.")] = "stdio",
    port: Annotated[int, typer.Option(min=1, max=65535, help="For http, on 127.0.0.1.")] = 8765,
) -> None:
    """Serve a folder of notes to agents over MCP."""
    from llama_index_contextual.app.index import is_refreshing
    from llama_index_contextual.app.serve.mcp_server import serve as run

    code = 0
    try:
        with options.interruptible():
            run(target.folder, transport=transport, port=port, storage=target.storage, config=target.configuration)
    except KeyboardInterrupt:
        code = options.EXIT_INTERRUPTED
    if is_refreshing():  # to wait could take minutes, and to end its thread with the interpreter could end in a crash
        sys.stderr.flush()
        os._exit(code)
    if code:
        raise KeyboardInterrupt


@with_options("chunks.chunk_size")
def preview(
    file: Annotated[Path, typer.Argument(help="A document.")],
    target: Target,
    *,
    html: Page = None,
    as_json: AsJson = False,
) -> None:
    """Show the chunks of a file with their lines and contexts."""
    from rich.console import Console

    from llama_index_contextual.app.serve.html import chunk_data, preview_of

    file = file.resolve()
    if not file.is_file():
        raise DocumentError(f"{file} is no file. Cure: name one that exists")
    here = Path.cwd()
    folder = here if (here / ".contextual").is_dir() and file.is_relative_to(here) else file.parent
    with target.open(folder=target.named or (None if target.storage else folder), reindex=True) as index:
        settings = index.settings
        result = preview_of(*settings.reading.load_file(file), settings.parser, settings.contexts)
    if html:
        options.write_page(html, result.to_html())
    elif as_json:
        options.print_report(chunk_data(result.nodes))
    else:
        Console(highlight=False).print(result)


@with_options()
def status(
    target: NamedTarget,
    *,
    list_skipped: ListSkipped = False,
    all_: All = False,
    check: Annotated[bool, typer.Option("--check", help="Check that files, database and caches agree.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what an index holds, and what a refresh would do. Exit code 3 where --check finds a disagreement."""
    from llama_index_contextual.app.index.settings import open_settings
    from llama_index_contextual.app.index.status import index_status

    with closing(open_settings(target.folder, target.storage, target.configuration, reindex=True)) as settings:
        report = index_status(settings, check=check)
        options.print_report(report, report.to_text(settings=all_), as_json=as_json)
        options.note(options.skipped_line(settings, names=list_skipped))
    if not report.ok:
        raise typer.Exit(options.EXIT_INCOMPLETE)


@with_options()
def config(target: NamedTarget, *, all_: All = False, as_json: AsJson = False) -> None:
    """Show the settings that are no defaults, and their origins."""
    from llama_index_contextual.app.index.settings import open_settings

    with closing(open_settings(target.folder, target.storage, target.configuration)) as settings:
        configuration = settings.configuration
    rows = dict[str, tuple[Any, str]]()
    for key, setting in SETTINGS.items():
        is_computed = setting.computed and key not in configuration.values
        value = f"({setting.computed})" if is_computed else setting.plain(configuration[key])
        rows[key] = value, configuration.origins.get(key, "default")
    if as_json:
        return options.print_report({key: {"value": value, "from": origin} for key, (value, origin) in rows.items()})
    shown = {key: row for key, row in rows.items() if all_ or row[1] != "default"}
    if len(shown) < len(rows):
        options.tell(f"{len(rows) - len(shown)} of {len(rows)} settings have their default; --all shows them")
    width = max(map(len, shown), default=0)
    for key, (value, origin) in shown.items():
        text = value if str(value)[:1] == "(" else json.dumps(value, ensure_ascii=False)
        options.print_text(f"{key:{width}}  {text:{_WIDTH}}  {origin}")
    return None


@with_options("embed_model")
def evaluate(
    target: NamedTarget,
    *,
    questions: Annotated[
        Path, typer.Option("--questions", "-q", help="JSON lines: question, and path (with lines) or text.")
    ],
    context: Annotated[
        list[str] | None,
        typer.Option(help="off (LlamaIndex metadata), headings, pattern, llm; several. Default: the first three"),
    ] = None,
    top_k: Annotated[
        list[int] | None, typer.Option("--top-k", "-k", min=1, help="Hits to count; several times. Default: 5, 10, 20")
    ] = None,
    html: Page = None,
    as_json: AsJson = False,
) -> None:
    """Measure on your own questions what contexts find."""
    from llama_index_contextual.app.evaluation import evaluate as measure
    from llama_index_contextual.app.evaluation import load_questions

    comparison = measure(
        target.named or Path(),
        load_questions(questions),
        contexts=context or ("off", "headings", "pattern"),
        storage=target.storage,
        top_k=top_k or (5, 10, 20),
        say=options.tell,
        show_progress=options.messages.is_terminal,
        embed_model=target.settings["embed_model"],
    )
    if html:
        options.write_page(html, comparison.to_html(f"What contexts find in {target.named}"))
    options.print_report(comparison, str(comparison), as_json=as_json)
