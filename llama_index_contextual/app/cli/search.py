"""What answers a question: ``search`` with hits, ``ask`` with sentences, ``serve`` with a page in a browser."""

from __future__ import annotations

import re
import sys
from itertools import dropwhile
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from llama_index_contextual.app.cli import common as cli
from llama_index_contextual.app.settings.schema import SETTINGS, Refreshing
from llama_index_contextual.metadata import HEADER_PATH, PAGE_LABEL, citation_of, path_of, value_of
from llama_index_contextual.text import printable, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index.core.schema import BaseNode, NodeWithScore
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.app.answering import Sentence
    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.keyword import Analyzer
    from llama_index_contextual.retrieval import Explanation, Hit

_SHORT: Final = 12  # lines of a chunk that a terminal shows whole
_PART: Final = 6  # lines that it shows of a longer one
_MARGIN: Final = "   "
_WORD: Final = re.compile(r"\w+")


@cli.with_options(
    "embed_model",
    "retrieval.top_k",
    "retrieval.per_file",
    "retrieval.min_score",
    "retrieval.recency",
    "retrieval.rerank",
)
def search(
    question: cli.Question,
    target: cli.Target,
    narrowed: cli.Narrowed,
    *,
    refresh: Annotated[
        Refreshing,
        typer.Option(help="Bring the index up to date: in the background, never, or before the answer."),
    ] = "never",
    full: Annotated[bool, typer.Option("--full", help="Show the whole text of each hit.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Each arm's rank and score, and the matched terms.")
    ] = False,
    obsidian: Annotated[
        bool, typer.Option("--obsidian", help="A link beside each path that opens the note in Obsidian.")
    ] = False,
    html: cli.Page = None,
    as_json: cli.AsJson = False,
) -> None:
    """Find the chunks that answer a question, with the lines they stand in."""
    from llama_index_contextual.app.index import BackgroundRefresh

    text, filters = cli.question_of(question), narrowed.filters()
    with target.open(create=refresh == "wait") as index, BackgroundRefresh(index, refresh) as keeper:
        cli.tell_freshness(keeper.look())
        explanation = _explanation_of(index, text, narrowed, filters)
        if html:
            cli.write_page(html, explanation.to_html(index.place))
        if not explanation.hits:
            cli.tell("Nothing found.")
        _tell_said(explanation)
        shown = _Shown(index, obsidian=obsidian, full=full)
        if as_json:
            cli.print_json(explanation.to_dict() if explain else [shown.as_data(hit) for hit in explanation.nodes])
        elif explain and explanation.hits:
            cli.print_text(str(explanation))
        else:
            shown.print(explanation.hits)


def _explanation_of(
    index: ContextualIndex, question: str, narrowed: cli.Narrowed, filters: MetadataFilters | None
) -> Explanation:
    """Ask an index, with as many hits as the configuration or an option says.

    Raises:
        SettingError: The index has no such folder.
    """
    from llama_index_contextual.app.index import explained

    index.settings.folders.check(narrowed.in_ or ())
    return explained(index, question, index.settings.configuration["retrieval.top_k"] or 5, filters)


def _tell_said(explanation: Explanation) -> None:
    """Say on standard error what of a question was changed, and which hits were left out by which option."""
    for line in explanation.remarks:
        cli.tell(line.replace("min_score=", f"{SETTINGS['retrieval.min_score'].option} "))


class _Shown:
    """How the hits of a question are shown: as data, on lines for a pipe, or on a terminal.

    Args:
        index: That was asked.
        obsidian: Whether each has a link that opens the note in Obsidian.
        full: Whether their whole texts are shown.
    """

    def __init__(self, index: ContextualIndex, *, obsidian: bool, full: bool) -> None:
        self._folders, self._obsidian, self._full = index.settings.folders, obsidian, full
        self._descriptions = index.settings.pipeline.contexts.descriptions

    def as_data(self, hit: NodeWithScore) -> dict[str, Any]:
        """Return a hit as plain data. The text is the displayed one, without its context."""
        from llama_index_contextual.retrieval.contextual import descriptions_of

        meta = hit.node.metadata
        keys = ("path", "start_line", "end_line", "header_path", "date")
        data = {key: value_of(meta, key) for key in keys}
        if PAGE_LABEL in meta:
            data[PAGE_LABEL] = meta[PAGE_LABEL]
        if lines := descriptions_of(self._descriptions, str(meta.get("path"))):
            data["description"] = lines
        if link := self._link(path_of(meta)):
            data["obsidian"] = link
        return {"score": hit.score, **data, "id": hit.node.node_id, "text": readable(hit.node.get_content())}

    def print(self, hits: Sequence[Hit]) -> None:
        """Print hits, as the output can show them."""
        if not sys.stdout.isatty():
            for hit in hits:
                cli.print_text("\n".join(self._lines(hit)))
            return
        from llama_index_contextual.keyword import Analyzer

        analyzer, console = Analyzer(), Console(highlight=False)
        for hit in hits:
            for part in self._parts(hit, analyzer):
                console.print(part)

    def _link(self, path: str) -> str:
        """Return the link that opens a note in Obsidian; "" where none was asked for, or it is in no vault."""
        vault = self._folders.vault_of(path) if self._obsidian else None
        if vault is None:
            return ""
        file = self._folders.place(path).relative_to(vault).as_posix()
        return f"obsidian://open?vault={quote(vault.name, safe='')}&file={quote(file, safe='')}"

    def _about(self, hit: Hit) -> list[str]:
        """Return what stands between a hit's place and its text: its headings, and what is said of its folders."""
        from llama_index_contextual.retrieval.contextual import descriptions_of

        meta = hit.node.node.metadata
        headings = value_of(meta, "header_path")
        lines = [str(headings)] if headings else []
        lines += descriptions_of(self._descriptions, path_of(meta))
        return [printable(line, one_line=True) for line in lines]

    def _lines(self, hit: Hit) -> list[str]:
        """Return a hit for a pipe: its text on one line, for grep and the like, or whole."""
        text, meta = readable(hit.node.node.get_content()), hit.node.node.metadata
        shown = [printable(line) for line in text.splitlines()] if self._full else [_snippet(text)]
        place = printable(citation_of(meta), one_line=True)
        return [
            f"{hit.rank}. {hit.score:.2f}  {place}  {self._link(path_of(meta))}".rstrip(),
            *(f"{_MARGIN}{line}".rstrip() for line in (*self._about(hit), *shown)),
        ]

    def _parts(self, hit: Hit, analyzer: Analyzer) -> Iterator[Text | Padding]:
        """Yield a hit for a terminal: a place that it opens, and lines of the text with the matched words marked."""
        meta = hit.node.node.metadata
        place, note = printable(citation_of(meta), one_line=True), self._link(path_of(meta))
        path = self._folders.place(path_of(meta))
        link = f" link {note or path.as_uri()}" if path.is_file() else ""
        yield Text.assemble((f"{hit.rank}. ", "bold"), (place, f"bold cyan{link}"), (f"  {hit.score:.2f}", "dim"))
        if note:
            yield _indented(Text(note, "dim", no_wrap=True, overflow="fold"))
        for line in self._about(hit):
            yield _indented(Text(line, "dim"))
        terms = {term.term for term in hit.terms}
        texts = readable(hit.node.node.get_content()).strip().splitlines()
        body = texts if self._full else list(dropwhile(_is_heading, texts))  # the line above names the headings
        lines = [_marked(printable(line.rstrip()), terms, analyzer) for line in body or texts]
        for text in lines if self._full else _part(lines):
            yield _indented(text)
        yield Text()


def _snippet(text: str, width: int = 200) -> str:
    """Return the start of a chunk on one line, without its headings and without control characters."""
    body = [line for line in text.splitlines() if not _is_heading(line)] or text.splitlines()
    flat = " ".join("".join(char if char.isprintable() else " " for char in " ".join(body)).split())
    return flat if len(flat) <= width else flat[: width - 1].rsplit(" ", 1)[0] + "…"


def _indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, len(_MARGIN)), expand=False)


def _is_heading(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _marked(line: str, terms: set[str], analyzer: Analyzer) -> Text:
    """Return a line of which the words that the question's terms match stand out; a row of a table is not wrapped."""
    is_row = line.lstrip().startswith("|")
    text = Text(line, no_wrap=is_row, overflow="ellipsis" if is_row else "fold")
    for word in _WORD.finditer(line) if terms else ():
        if terms.intersection(analyzer.tokens(word[0])):
            text.stylize("bold yellow", *word.span())
    return text


def _part(lines: Sequence[Text]) -> Sequence[Text]:
    """Return a short chunk whole, and of a longer one the lines in which most words match."""
    if len(lines) <= _SHORT:
        return lines
    marks = [len(line.spans) for line in lines]
    first = max(range(len(lines) - _PART + 1), key=lambda at: (sum(marks[at : at + _PART]), -at))
    before = [Text("…", "dim")] if first else []
    after = [Text("…", "dim")] if first + _PART < len(lines) else []
    return [*before, *lines[first : first + _PART], *after]


@cli.with_options("embed_model", "retrieval.top_k")
def ask(
    question: cli.Question,
    target: cli.Target,
    narrowed: cli.Narrowed,
    *,
    llm: Annotated[
        str | None,
        typer.Option(
            help="ollama:MODEL, openai:MODEL or openai:MODEL@URL. Default: that of the contexts, else qwen3:0.6b"
        ),
    ] = None,
    as_json: cli.AsJson = False,
) -> None:
    """Answer a question with a language model, each sentence with the number of its source."""
    from llama_index.core.schema import MetadataMode

    from llama_index_contextual.app.answering import NOTHING, CitedSynthesizer

    text, filters = cli.question_of(question), narrowed.filters()
    with target.open(create=False) as index:
        writer = CitedSynthesizer(llm or index.settings.configuration["context_options.llm"])
        explanation = _explanation_of(index, text, narrowed, filters)
        cli.tell_freshness(index.freshness())
    nodes = [hit.node.node for hit in explanation]
    _tell_said(explanation)
    if not nodes:
        cli.tell(NOTHING)
    answer = []
    for sentence in writer.sentences(text, [node.get_content(MetadataMode.LLM) for node in nodes]) if nodes else ():
        answer.append(sentence)
        if not as_json:
            typer.echo(printable(str(sentence)), nl=False)
    if as_json:
        cli.print_json(_answer_to_dict(text, answer, nodes, writer.name))
    elif answer:
        typer.echo("\n")
        _print_sources(answer, nodes)


def _print_sources(answer: Sequence[Sentence], nodes: Sequence[BaseNode]) -> None:
    """Print the sources that an answer cites; all where it cites none."""
    for number in sorted({number for sentence in answer for number in sentence.sources}) or range(1, len(nodes) + 1):
        meta = nodes[number - 1].metadata
        headings = str(value_of(meta, HEADER_PATH) or "")
        cli.print_text(printable(f"[{number}] {citation_of(meta)}  {headings}".rstrip(), one_line=True))


@cli.with_options("embed_model")
def serve(
    target: cli.NamedTarget,
    *,
    llm: Annotated[
        str | None, typer.Option(help="Answers questions. Default: that of the contexts, else nobody")
    ] = None,
    host: Annotated[
        str, typer.Option(help="An address of this machine. Others than 127.0.0.1 let others read.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is one that is free.")] = 8766,
) -> None:
    """Show a page to search, read and ask on, at the address that is printed. Ctrl-C ends it."""
    from llama_index_contextual.app.page import serve as run

    run(target.folder, storage=target.storage, llm=llm, host=host, port=port, config=target.configuration)


def _answer_to_dict(question: str, answer: Sequence[Sentence], nodes: Sequence[BaseNode], model: str) -> dict[str, Any]:
    """Return an answer as plain data; the text of a source is the displayed one."""
    sources = [
        {
            "number": number,
            "source": citation_of(node.metadata),
            "header_path": value_of(node.metadata, HEADER_PATH),
            "id": node.node_id,
            "text": readable(node.get_content()),
        }
        for number, node in enumerate(nodes, 1)
    ]
    return {
        "question": question,
        "llm": model if nodes else None,
        "answer": "".join(one.text for one in answer),
        "sentences": [one.to_dict() for one in answer],
        "sources": sources,
    }
