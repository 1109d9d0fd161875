"""The commands with which people read: ``ask`` in a terminal, ``serve`` in a browser."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_index_contextual.cli.common import (
    AsJson,
    Config,
    Folder,
    In,
    Options,
    PathPart,
    Question,
    Since,
    Storage,
    TagPart,
    Until,
    Where,
    indexed_folder,
    open_index,
    print_json,
    print_text,
    question_of,
    tell,
    tell_freshness,
    with_options,
)
from llama_index_contextual.config import load_configuration
from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.metadata import HEADER_PATH, citation_of, value_of
from llama_index_contextual.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.answering import Sentence

Llm = Annotated[
    str | None,
    typer.Option(help="ollama:MODEL, openai:MODEL or openai:MODEL@URL. Default: that of the contexts, else qwen3:0.6b"),
]


@with_options("embedding.model", "store.database", "retrieval.top_k")
def ask(
    question: Question,
    llm: Llm = None,
    folder: Folder = None,
    storage: Storage = None,
    config: Config = None,
    *,
    settings: Options,
    in_: In = None,
    path: PathPart = "",
    tag: TagPart = "",
    since: Since = "",
    until: Until = "",
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question with a language model, each sentence with the number of its source."""
    from llama_index.core.schema import MetadataMode

    from llama_index_contextual.answering import NOTHING, CitedSynthesizer
    from llama_index_contextual.memory import note_filters
    from llama_index_contextual.retrievers.relevance import said_least

    text = question_of(question)
    filters = note_filters(path=path, tag=tag, since=since, until=until, collections=in_ or (), where=where or ())
    with open_index(folder, storage, config, settings, create=False) as index:
        index.settings.folders.check(in_ or ())
        configuration = index.settings.configuration
        writer = CitedSynthesizer(llm or configuration.context.llm.llm)
        least = said_least(configuration.retrieval.min_score)
        retriever = index.as_retriever(configuration.retrieval.top_k or 5, filters=filters, min_score=least)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ContextualWarning)  # the explanation says the same
            explanation = retriever.explain(text)
        tell_freshness(index.freshness())
    nodes = [hit.node.node for hit in explanation]
    for line in explanation.said:
        tell(printable(line))
    if not nodes:
        tell(NOTHING)
    answer = []
    for sentence in writer.sentences(text, [node.get_content(MetadataMode.LLM) for node in nodes]) if nodes else ():
        answer.append(sentence)
        if not as_json:
            typer.echo(printable(str(sentence)), nl=False)
    if as_json:
        print_json(_to_dict(text, answer, nodes, writer.name))
    elif answer:
        typer.echo("\n")
        named = sorted({number for sentence in answer for number in sentence.sources}) or range(1, len(nodes) + 1)
        for number in named:
            node = nodes[number - 1]
            headings = str(value_of(node.metadata, HEADER_PATH) or "")
            print_text(printable(f"[{number}] {citation_of(node.metadata)}  {headings}".rstrip(), one_line=True))


@with_options("embedding.model")
def serve(
    folder: Folder = None,
    storage: Storage = None,
    config: Config = None,
    *,
    settings: Options,
    llm: Annotated[
        str | None, typer.Option(help="Answers questions. Default: that of the contexts, else nobody")
    ] = None,
    host: Annotated[
        str, typer.Option(help="An address of this machine. Others than 127.0.0.1 let others read.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is one that is free.")] = 8766,
) -> None:
    """Show a page to search, read and ask on, at the address that is printed. Ctrl-C ends it."""
    from llama_index_contextual.page import serve as run

    read = partial(load_configuration, file=config, options=settings)
    run(indexed_folder(folder, storage), storage=storage, llm=llm, host=host, port=port, config=read)


def _to_dict(question: str, answer: Sequence[Sentence], nodes: Sequence[BaseNode], model: str) -> dict[str, Any]:
    """Return an answer as plain data; the text of a source is the displayed one."""
    sources = [
        {
            "number": number,
            "source": citation_of(node.metadata),
            "header_path": value_of(node.metadata, HEADER_PATH),
            "id": node.node_id,
            "text": node.get_content(),
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
