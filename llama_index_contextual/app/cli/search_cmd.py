"""The commands that answer a question: ``search`` with hits, ``ask`` with sentences, ``context`` with a digest."""

from __future__ import annotations

import sys
import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llama_index_contextual.app.cli import output
from llama_index_contextual.app.cli.options import AsJson, Narrowed, Question, Target, question_of, with_options
from llama_index_contextual.app.settings.loading import user_storage
from llama_index_contextual.errors import AnswerError, ContextualWarning
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.app.serve.answering import Sentence
    from llama_index_contextual.app.serve.hits import ShownHit
    from llama_index_contextual.keyword import Analyzer
    from llama_index_contextual.memory import MemoryDigest

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
    from llama_index_contextual.keyword import Analyzer

    text, filters = question_of(question), narrowed.filters()
    with target.open(create=False) as index, BackgroundRefresh(index, "never") as keeper:
        output.tell_freshness(keeper.look())
        explanation, hits = find(index, text, filters=filters)
        if not hits:
            output.tell("Nothing found.")
        _print_remarks(explanation.remarks)
        if as_json:
            output.print_json(explanation.to_dict() if explain else [_as_data(index, hit) for hit in hits])
        elif explain and hits:
            output.print_text(str(explanation))
        else:
            analyzer = Analyzer()
            for number, hit in enumerate(hits, 1):
                _print_hit(index, number, hit, analyzer, full=full)


def _print_remarks(lines: Sequence[str]) -> None:
    """Write what of a question was changed, and which hits were left out by which option."""
    for line in lines:
        output.tell(line.replace("min_score=", "--min-score "))


def _as_data(index: ContextualIndex, hit: ShownHit) -> dict[str, Any]:
    descriptions = _descriptions(index, hit)
    return {**hit.to_dict(), **({"description": descriptions} if descriptions else {})}


def _descriptions(index: ContextualIndex, hit: ShownHit) -> list[str]:
    from llama_index_contextual.retrieval.contextual import descriptions_of

    return descriptions_of(index.settings.pipeline.contexts.descriptions, hit.path)


def _print_hit(index: ContextualIndex, number: int, hit: ShownHit, analyzer: Analyzer, *, full: bool) -> None:
    """Print a hit: name and citation, headings, three lines around the match, and how many more its document has."""
    place = index.settings.folders.place(hit.path) if hit.path else None
    link = f" link {place.as_uri()}" if place and sys.stdout.isatty() and place.is_file() else ""
    output.print_styled(
        (f"{number}. ", "bold"),
        (output.shown(hit.name, one_line=True), "bold"),
        "  ",
        (output.shown(hit.citation, one_line=True), f"cyan{link}"),
        (f"  {hit.hit.score:.2f}", "dim"),
    )
    for line in (hit.headings, *_descriptions(index, hit)):
        if line:
            output.print_styled((output.shown(line, one_line=True), "dim"), indent=_MARGIN)
    terms = {term.term for term in hit.hit.terms}
    for line in hit.node.get_content().strip().splitlines() if full else hit.excerpt(analyzer.tokens):
        output.print_styled(*_marked(line, terms, analyzer), indent=_MARGIN)
    if hit.more:
        output.print_styled((f"{counted(hit.more, 'more hit')} in it; --per-file 0 shows them", "dim"), indent=_MARGIN)
    if sys.stdout.isatty():
        output.print_styled("")


def _marked(line: str, terms: set[str], analyzer: Analyzer) -> list[str | tuple[str, str]]:
    """A line in parts, of which the words that match have a style; all of it as it is where nobody sees styles."""
    from llama_index_contextual.app.serve.hits import pieces

    if not sys.stdout.isatty():
        return [line]
    return [(part, "bold yellow") if matched else part for matched, part in pieces(line, terms, analyzer.tokens)]


@with_options("context_options.llm", "retrieval.top_k")
def ask(
    question: Question,
    target: Target,
    narrowed: Narrowed,
    *,
    as_json: AsJson = False,
) -> None:
    """Answer a question with a language model, each sentence with the number of its source."""
    from llama_index.core.schema import MetadataMode

    from llama_index_contextual.app.serve.answering import NOTHING, CitedSynthesizer
    from llama_index_contextual.app.serve.hits import ask as find

    text, filters = question_of(question), narrowed.filters()
    with target.open(create=False) as index:
        configuration = index.settings.configuration
        writer = CitedSynthesizer(configuration["context_options.llm"], timeout=configuration["timeout"])
        explanation, hits = find(index, text, filters=filters, per_file=0)
        _print_remarks(explanation.remarks)
    if not hits:
        output.tell(NOTHING)
    answer: list[Sentence] = []
    sources = [hit.node.get_content(MetadataMode.LLM) for hit in hits]
    try:
        for sentence in writer.sentences(text, sources) if hits else ():
            answer.append(sentence)
            if not as_json:
                output.print_part(str(sentence))
    except AnswerError as error:
        if answer and not as_json:
            output.print_part("\n")
        raise AnswerError(str(error)) from error
    if as_json:
        output.print_json(_answer_to_dict(text, answer, hits, writer.name))
    elif answer:
        output.print_text("\n")
        _print_sources(answer, hits)


def _print_sources(answer: Sequence[Sentence], hits: Sequence[ShownHit]) -> None:
    """Print the sources that an answer cites; all where it cites none."""
    from llama_index_contextual.metadata import HEADER_PATH, value_of

    for number in sorted({number for sentence in answer for number in sentence.sources}) or range(1, len(hits) + 1):
        hit = hits[number - 1]
        output.print_text(
            output.shown(
                f"[{number}] {hit.citation}  {value_of(hit.node.metadata, HEADER_PATH) or hit.name}", one_line=True
            )
        )


def _answer_to_dict(question: str, answer: Sequence[Sentence], hits: Sequence[ShownHit], model: str) -> dict[str, Any]:
    """An answer as plain data; the text of a source is the displayed one."""
    return {
        "question": question,
        "llm": model if hits else None,
        "answer": "".join(one.text for one in answer),
        "sentences": [asdict(one) for one in answer],
        "sources": [{"number": number, **hit.to_dict()} for number, hit in enumerate(hits, 1)],
    }


@with_options("memory.max_results", "memory.min_relevance", "memory.include_recency", "memory.refresh")
def context(
    message: Annotated[list[str], typer.Argument(help="What the user wrote.")],
    target: Target,
    *,
    as_json: AsJson = False,
) -> None:
    """Print the digest of notes that an agent reads before it answers a message."""
    text = question_of(message)
    from llama_index_contextual.app.index import BackgroundRefresh
    from llama_index_contextual.memory import MemoryContext, gate_digest

    may_make = False
    if target.folders or not target.storage:  # else only the index knows its folder, and so its configuration
        refresh = target.configuration(target.folder or user_storage())["memory.refresh"]
        digest = gate_digest(text)  # small talk needs no index
        if digest is not None:
            _print_digest(digest, as_json=as_json)
            return
        may_make = refresh not in (None, "never")
    with target.open(create=may_make) as index:
        keeper = BackgroundRefresh(index, index.settings.configuration["memory.refresh"] or "never")
        output.tell_freshness(keeper.look())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ContextualWarning)  # the digest says the same
            digest = MemoryContext(index).get(text)
        _print_digest(digest, as_json=as_json)
        keeper.close()


def _print_digest(digest: MemoryDigest, *, as_json: bool) -> None:
    output.print_report(digest, digest.markdown, as_json=as_json)
    if not digest.applicable and not as_json:
        output.tell(f"not searched: {digest.reason}", "note:")
