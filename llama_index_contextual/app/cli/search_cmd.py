"""The commands that answer a question: ``search`` with hits, ``ask`` with sentences, ``context`` with a digest."""

from __future__ import annotations

import shlex
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from llama_index_contextual.app.cli import output
from llama_index_contextual.app.cli.options import AsJson, Narrowed, Target, with_options
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.app.serve.answering import Sentence
    from llama_index_contextual.app.serve.hits import ShownHit

Question = Annotated[list[str], typer.Argument(help="What you want to find; no quotes are needed.")]
Message = Annotated[list[str], typer.Argument(help="What the user wrote.")]
_MARGIN: Final = 3


@with_options("retrieval.top_k", "retrieval.per_file", "retrieval.min_score", "retrieval.recency")
def search(
    question: Question,
    target: Target,
    narrowed: Narrowed,
    *,
    full: Annotated[bool, typer.Option("--full", help="Show the whole text of each hit.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show why each hit is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find the passages that answer a question, with a citation of each."""
    from llama_index_contextual.app.index import BackgroundRefresh
    from llama_index_contextual.app.serve.hits import ask as find

    text, filters = _text_of(question, target), narrowed.filters()
    with target.open(create=False) as index, BackgroundRefresh(index, "never") as keeper:
        output.note(str(keeper.look()))
        explanation, hits = find(index, text, filters=filters)
        if not hits:
            output.tell("Nothing found.")
        _print_remarks(explanation.remarks)
        if as_json:
            output.print_json(explanation.to_dict() if explain else [hit.to_dict() for hit in hits])
        elif explain and hits:
            output.print_text(str(explanation))
        else:
            for number, hit in enumerate(hits, 1):
                _print_hit(index, number, hit, full=full)


def _text_of(words: Sequence[str], target: Target) -> str:
    """A question that was written as one argument or as several.

    Raises:
        SettingError: It is empty, or ends in the folder to search, where none is named and this one has no index.
    """
    text, here = " ".join(words), Path.cwd()
    if words[1:] and Path(words[-1]).is_dir() and target.folder == here and not (here / ".contextual").is_dir():
        raise SettingError(f"there is no index in {here}. Cure: -f {shlex.quote(words[-1])}")
    if not text.strip():
        raise SettingError("the question is empty. Cure: name what you want to find.")
    return text


def _print_remarks(lines: Sequence[str]) -> None:
    """Write what of a question was changed, and which hits were left out by which option."""
    for line in lines:
        output.tell(line.replace("min_score=", "--min-score "))


def _print_hit(index: ContextualIndex, number: int, hit: ShownHit, *, full: bool) -> None:
    """Print a hit: name and citation, headings, three lines around the match, and how many more its document has."""
    from llama_index_contextual.memory.snippet import SPLIT, marked

    is_terminal = sys.stdout.isatty()
    place = index.settings.folders.place(hit.path) if hit.path and is_terminal else None
    link = f" link {place.as_uri()}" if place and place.is_file() else ""
    score = (f"  {hit.hit.score:.2f}", "dim")
    output.print_styled((f"{number}. {hit.name}", "bold"), "  ", (hit.citation, f"cyan{link}"), score)
    if hit.headings:
        output.print_styled((hit.headings, "dim"), indent=_MARGIN)
    for line in hit.node.get_content().strip().splitlines() if full else hit.excerpt:
        parts = marked(line, hit.terms if is_terminal else (), SPLIT)
        output.print_styled(*((part, "bold yellow" if matched else "") for matched, part in parts), indent=_MARGIN)
    if hit.more:
        output.print_styled((f"{counted(hit.more, 'more hit')} in it; --per-file 0 shows them", "dim"), indent=_MARGIN)
    if is_terminal:
        output.print_styled("")


@with_options("context_options.llm", "retrieval.top_k")
def ask(question: Question, target: Target, narrowed: Narrowed, *, as_json: AsJson = False) -> None:
    """Answer a question with a language model, each sentence with the number of its source."""
    from llama_index.core.schema import MetadataMode

    from llama_index_contextual.app.serve.answering import NOTHING, answer, answering_model
    from llama_index_contextual.app.serve.hits import ask as find
    from llama_index_contextual.context.models import model_name

    text, filters = _text_of(question, target), narrowed.filters()
    with target.open(create=False) as index:
        timeout = index.settings.configuration["timeout"]
        model = answering_model(index.settings.configuration["context_options.llm"], timeout)
        explanation, hits = find(index, text, filters=filters, per_file=0)
        _print_remarks(explanation.remarks)
    if not hits:
        output.tell(NOTHING)
    sentences: list[Sentence] = []
    sources = [hit.node.get_content(MetadataMode.LLM) for hit in hits]
    try:
        for sentence in answer(text, sources, model, timeout=timeout) if hits else ():
            sentences.append(sentence)
            if not as_json:
                output.print_text(str(sentence), end="")
    finally:
        if sentences and not as_json:
            output.print_text("")
    if as_json:
        data = {
            "question": text,
            "llm": model_name(model) if hits else None,
            "answer": "".join(one.text for one in sentences),
            "sentences": [asdict(one) for one in sentences],
            "sources": [{"number": number, **hit.to_dict()} for number, hit in enumerate(hits, 1)],
        }
        return output.print_json(data)
    if sentences:
        output.print_text("")
    named = {number for sentence in sentences for number in sentence.sources} or range(1, len(hits) + 1)
    for number in sorted(named) if sentences else ():
        hit = hits[number - 1]
        output.print_styled(f"[{number}] {hit.citation}  {hit.headings or hit.name}")
    return None


@with_options("memory.max_results", "memory.min_relevance", "memory.include_recency", "memory.refresh")
def context(message: Message, target: Target, *, as_json: AsJson = False) -> None:
    """Print the digest of notes that an agent reads before it answers a message."""
    from llama_index_contextual.app.index import BackgroundRefresh
    from llama_index_contextual.memory import MemoryContext, gate_digest

    text = _text_of(message, target)
    digest = gate_digest(text)  # small talk needs no index
    if digest is None:
        with target.open() as index, warnings.catch_warnings():
            warnings.simplefilter("ignore", ContextualWarning)  # the digest says the same
            with BackgroundRefresh(index, index.settings.configuration["memory.refresh"] or "never") as keeper:
                output.note(str(keeper.look()))
                digest = MemoryContext(index).get(text)
    output.print_report(digest, digest.markdown, as_json=as_json)
    if not digest.applicable and not as_json:
        output.note(f"not searched: {digest.reason}")
