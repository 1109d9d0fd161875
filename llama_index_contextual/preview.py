"""Show a file's chunks in the terminal or as a page, so that a person can judge them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index.core.schema import Document, MetadataMode, TextNode
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from llama_index_contextual import metadata
from llama_index_contextual.errors import DocumentError
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.report import chunks_page
from llama_index_contextual.text import decode, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.node_parser import NodeParser
    from llama_index.core.schema import BaseNode
    from rich.console import RenderableType

    from llama_index_contextual.postprocessor import ContextualNodePostprocessor

_FEW: Final = 3  # chunks: a word that so few have is rare, however small the index
_SAMPLE: Final = 2000  # chunks that are looked at
_KEEPS: Final = {"code": "magenta", "table": "cyan", "list": "green", "heading": "red", "html": "yellow"}


class Lacking(NamedTuple):
    """How many chunks do not say what they are about.

    Attributes:
        chunks: Those whose text holds no rare word of their own path and headings.
        of: All chunks with a rare word in path or headings.
    """

    chunks: int
    of: int

    def __str__(self) -> str:
        if not self.of:
            return "no chunk has a rare word in its path or headings"
        share = f"{self.chunks} of {self.of} chunks with a rare word in path or headings"
        lacks = "lacks it in its text" if self.chunks == 1 else "lack it in their text"
        return f"{share} {lacks} ({self.chunks / self.of:.0%}): there a context helps"


def lacking(nodes: Sequence[BaseNode]) -> Lacking:
    """Count the chunks whose text holds no rare word of their own path and headings.

    A word is rare when at most a tenth of the chunks, or three, have it in text, path or headings. Of more than 2,000
    chunks 2,000 are looked at.

    Args:
        nodes: The chunks of an index or of a file; contexts are not read.
    """
    analyzer = Analyzer()
    ordered = sorted(nodes, key=lambda node: node.node_id)  # ids are hashes, so the first are a fair sample
    sample = [
        (set(analyzer.tokens(node.get_content())), set(analyzer.tokens(metadata.place_of(node.metadata))))
        for node in ordered[:_SAMPLE]
    ]
    counts = Counter(word for text, place in sample for word in text | place)
    most = max(_FEW, len(sample) / 10)
    rare = [({word for word in place if counts[word] <= most}, text) for text, place in sample]
    of = [not words & text for words, text in rare if words]
    return Lacking(sum(of), len(of))


def chunks_of(
    path_or_text: Path | str,
    parser: NodeParser,
    contexts: ContextualNodePostprocessor | None = None,
    *,
    root: Path | None = None,
) -> tuple[str, list[TextNode]]:
    """Return the name of a document and its chunks, as an index of these settings would have them.

    Args:
        path_or_text: A file (as a ``Path``) or a text.
        parser: The parser that cuts it.
        contexts: The step that writes contexts, or None for chunks alone. A context that costs something is replaced by
            a free one, because a preview pays for nothing.
        root: The folder that an index would be of. The path in a context is relative to it.

    Raises:
        OSError: The file cannot be read.
        DocumentError: It is binary, or not in the folder.
    """
    if isinstance(path_or_text, Path):
        if root is not None and not path_or_text.absolute().is_relative_to(root):
            raise DocumentError(f"{path_or_text} is not in {root}. Cure: a file of that folder, or another folder.")
        name = path_or_text.as_posix() if root is None else path_or_text.absolute().relative_to(root).as_posix()
        try:
            document = Document(id_=name, text=decode(path_or_text.read_bytes()).text, metadata={metadata.PATH: name})
        except DocumentError as error:
            raise DocumentError(f"{path_or_text}: {error}") from error
    else:
        name, document = "text", Document(id_="text", text=path_or_text)
    nodes = [node for node in parser.get_nodes_from_documents([document]) if isinstance(node, TextNode)]
    if contexts is not None and contexts.generator is not None and nodes:
        contexts.model_copy(update={"generator": contexts.generator.at_query_time(), "documents": [document]})(nodes)
    return name, nodes


@dataclass(frozen=True)
class Preview:
    """The chunks of one file. A notebook draws them as a page.

    Attributes:
        name: The file's path.
        nodes: Its chunks in order, with their contexts.
        budget: The most tokens of a chunk, or None where the parser has no such setting.
    """

    name: str
    nodes: tuple[TextNode, ...]
    budget: int | None

    @property
    def lacking(self) -> Lacking:
        """How many of the chunks hold no rare word of their own path and headings."""
        return lacking(self.nodes)

    def to_html(self) -> str:
        """Return a self-contained page: boundaries, overlaps, and four views of each chunk."""
        return chunks_page(self.nodes, title=self.name, budget=self.budget, remark=str(self.lacking))

    def _repr_html_(self) -> str:
        page = escape(self.to_html(), quote=True)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="width:100%;height:36rem;border:0"></iframe>'


def preview_file(file: Path, parser: NodeParser, contexts: ContextualNodePostprocessor, root: Path) -> Preview:
    """Return the chunks of a file as an index of these settings would have them; see :func:`chunks_of`.

    Raises:
        DocumentError: The file cannot be read, is binary, or is not in the folder.
    """
    try:
        name, nodes = chunks_of(file, parser, contexts, root=root)
    except OSError as error:
        raise DocumentError(f"{file} cannot be read ({error.strerror}).") from error
    return Preview(name, tuple(nodes), getattr(parser, "chunk_size", None))


def render_preview(
    path_or_text: Path | str,
    parser: NodeParser,
    contexts: ContextualNodePostprocessor | None = None,
    *,
    root: Path | None = None,
) -> RenderableType:
    """Return a document's chunks in order, with header path, lines, tokens, overlap, overflow and context.

    Args:
        path_or_text: As for :func:`chunks_of`.
        parser: As for :func:`chunks_of`.
        contexts: As for :func:`chunks_of`.
        root: As for :func:`chunks_of`.

    Returns:
        A renderable for ``rich.print``, in a terminal, in a pipe, or in a page (``Console.export_html``).

    Raises:
        OSError: The file cannot be read.
        DocumentError: It is binary.
    """
    name, nodes = chunks_of(path_or_text, parser, contexts, root=root)
    panels: list[RenderableType] = []
    shown_to = 0
    for number, node in enumerate(nodes, start=1):
        panels.append(_panel(number, node, shown_to))
        shown_to = node.end_char_idx or 0
    return Group(_summary(name, nodes), *panels)


def _summary(name: str, nodes: list[TextNode]) -> Text:
    tokens = [int(metadata.value_of(node.metadata, metadata.TOKEN_COUNT) or 0) for node in nodes]
    summary = Text(printable(name, one_line=True), style="bold")
    if not nodes:
        return summary.append(": no text, no chunks", style="dim")
    count = f"{len(nodes)} chunk" + ("s" if len(nodes) > 1 else "")
    each = f"{min(tokens)} to {max(tokens)} tokens, {sum(tokens)} in all" if len(nodes) > 1 else f"{tokens[0]} tokens"
    sizes = f": {count}, {each}"
    return summary.append(f"{sizes}; {lacking(nodes)}", style="dim")


def _panel(number: int, node: TextNode, shown_to: int) -> Panel:
    """Return one chunk as a panel. ``shown_to`` is the offset at which the chunk before it ends."""
    values = {key: metadata.value_of(node.metadata, key) for key in node.metadata}
    kind = str(values.get(metadata.CONTENT_TYPE, ""))
    title = Text(f"{number} ", style="bold")
    title.append(printable(str(values.get(metadata.HEADER_PATH, "")), one_line=True) or "(no heading)")
    facts = [
        f"L{values.get(metadata.START_LINE)}-L{values.get(metadata.END_LINE)}",
        f"{values.get(metadata.TOKEN_COUNT)} tokens",
        kind,
    ]
    if day := values.get(metadata.DATE):
        facts.append(str(day))
    if continued := values.get(metadata.CONTINUES):
        facts.append(f"continues {printable(str(continued), one_line=True)}")
    subtitle = Text(" · ".join(facts), style="dim")
    if values.get(metadata.OVERFLOW):
        subtitle.append(" · over chunk_size", style="bold red")
    body = Text()
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    overlap = max(0, shown_to - (node.start_char_idx or 0))
    if context := metadata.context_of(values):
        body.append(f"{printable(str(context))}\n\n", style="green")
    body.append(printable(text[:overlap]), style="dim italic")
    body.append(printable(text[overlap:]))
    return Panel(
        body,
        title=title,
        title_align="left",
        subtitle=subtitle,
        subtitle_align="right",
        border_style=_KEEPS.get(kind, "blue"),
    )
