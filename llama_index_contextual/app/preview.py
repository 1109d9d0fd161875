"""Show a file's chunks in the terminal or as a page, so that a person can judge them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.schema import MetadataMode, TextNode
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from llama_index_contextual import metadata
from llama_index_contextual.app.folder.formats import LEFT_OUT
from llama_index_contextual.app.serve.html import render
from llama_index_contextual.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from llama_index.core.node_parser import NodeParser
    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.retrieval import ContextualNodePostprocessor


class ChunkView(NamedTuple):
    """A chunk as it is shown.

    Attributes:
        number: From 1.
        node: The chunk.
        overlap: The start of its text that stands in the chunk before, too.
        text: The rest of its text.
    """

    number: int
    node: TextNode
    overlap: str
    text: str

    def to_dict(self) -> dict[str, Any]:
        """The chunk as plain data, with what is embedded before its text."""
        values = {key: metadata.value_of(self.node.metadata, key) for key in self.node.metadata}
        lines = values.get(metadata.START_LINE), values.get(metadata.END_LINE)
        embedded = self.node.get_content(MetadataMode.EMBED).removesuffix(self.overlap + self.text).strip()
        keys = (metadata.DATE, metadata.CONTENT_TYPE, metadata.CONTEXT_SOURCE, metadata.CONTINUES, LEFT_OUT)
        return {
            "number": self.number,
            "headings": str(values.get(metadata.HEADER_PATH) or ""),
            "citation": metadata.citation_of(values) or metadata.citation("", *lines),
            "tokens": int(values.get(metadata.TOKEN_COUNT) or 0),
            **{key.removeprefix("_"): str(values.get(key) or "") for key in keys},
            "over_budget": bool(values.get(metadata.OVERFLOW)),
            "embedded": embedded,
            "overlap": self.overlap,
            "text": self.text,
        }


def chunk_views(nodes: Iterable[BaseNode]) -> Iterator[ChunkView]:
    """Yield the chunks of one document, or of the pages of one, as they are shown; ``nodes`` are in order."""
    end, page = 0, None
    for number, node in enumerate((node for node in nodes if isinstance(node, TextNode)), start=1):
        text = node.get_content(MetadataMode.NONE)
        overlap = 0 if node.start_char_idx is None or node.ref_doc_id != page else max(0, end - node.start_char_idx)
        end, page = node.end_char_idx or 0, node.ref_doc_id
        yield ChunkView(number, node, text[:overlap], text[overlap:])


def _panel(chunk: dict[str, Any]) -> Panel:
    """A chunk as a panel in the terminal: headings, lines, tokens, overlap, overflow and context."""
    title = Text(f"{chunk['number']} ", style="bold")
    title.append(printable(chunk["headings"], one_line=True) or "(no heading)")
    facts = [chunk["citation"].rpartition("#")[2], counted(chunk["tokens"], "token"), chunk[metadata.CONTENT_TYPE]]
    facts += [chunk[metadata.DATE], chunk[metadata.CONTINUES] and f"continues {chunk[metadata.CONTINUES]}"]
    facts += ["over chunk_size"] if chunk["over_budget"] else []
    subtitle = Text(" · ".join(printable(fact, one_line=True) for fact in facts if fact), style="dim")
    body = Text(printable(f"{chunk['embedded']}\n\n") if chunk["context_source"] else "", style="green")
    body.append(printable(chunk["overlap"]), style="dim italic").append(printable(chunk["text"]), style="default")
    return Panel(body, title=title, title_align="left", subtitle=subtitle, subtitle_align="right")


@dataclass(frozen=True)
class Preview:
    """The chunks of one file. ``rich`` draws them in a terminal.

    Attributes:
        name: The file's path.
        nodes: Its chunks in order, with their contexts.
        budget: The most tokens of a chunk, or None where the parser has no such setting.
    """

    name: str
    nodes: tuple[TextNode, ...] = field(repr=False)
    budget: int | None

    @property
    def left_out(self) -> str:
        """What the chunks lack of the file: ``"2 pictures; 1 script"``; "" where it is all in them."""
        return next((str(parts) for node in self.nodes if (parts := node.metadata.get(LEFT_OUT))), "")

    def to_html(self) -> str:
        """A self-contained page: boundaries, overlaps and contexts. It holds each text once."""
        chunks, remark = [chunk.to_dict() for chunk in chunk_views(self.nodes)], f"Left out: {self.left_out}"
        values = {"budget": self.budget, "remark": remark if self.left_out else "", "chunks": chunks}
        return render("chunks.html", title=self.name, **values)

    def __rich__(self) -> Group:
        chunks = [chunk.to_dict() for chunk in chunk_views(self.nodes)]
        tokens = counted(sum(chunk["tokens"] for chunk in chunks), "token")
        summary = f"{counted(len(chunks), 'chunk')}, {tokens}" if chunks else "no text, no chunks"
        heading = Text(printable(self.name, one_line=True), style="bold").append(f": {summary}", style="dim")
        if self.left_out:
            heading.append(f"; left out: {printable(self.left_out, one_line=True)}", style="yellow")
        return Group(heading, *map(_panel, chunks))


def preview_of(
    name: str, documents: Sequence[Document], parser: NodeParser, contexts: ContextualNodePostprocessor | None = None
) -> Preview:
    """The chunks of a file, as an index of these settings would have them.

    Args:
        name: Of the file.
        documents: What it is read as: the pages of a PDF.
        parser: Cuts them.
        contexts: The step that writes contexts, or None for chunks alone. A context that costs something is replaced by
            a free one, because a preview pays for nothing.
    """
    nodes = [node for node in parser.get_nodes_from_documents(documents) if isinstance(node, TextNode)]
    if contexts is not None and contexts.generator is not None and nodes:
        contexts.model_copy(update={"generator": contexts.generator.at_query_time(), "documents": documents})(nodes)
    return Preview(name, tuple(nodes), getattr(parser, "chunk_size", None))
