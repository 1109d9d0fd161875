"""HTML pages from templates: the chunks of a document, and tables with remarks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from llama_index.core.schema import MetadataMode, TextNode
from rich.console import Console
from rich.panel import Panel
from rich.table import Table as Grid
from rich.text import Text

from llama_index_contextual import metadata
from llama_index_contextual.report.markdown import rendered
from llama_index_contextual.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.report.markdown import Marker


def render(template: str, **values: object) -> str:
    """Return a page from one of this folder's templates; every value is escaped."""
    return _environment().get_template(template).render(**values)


def framed(page: str) -> str:
    """Return a page as a notebook shows it: in a frame of its own, which nothing of the page can leave."""
    rights = "allow-scripts allow-popups allow-popups-to-escape-sandbox"  # links open beside the notebook
    style = "width:100%;height:36rem;border:0;resize:vertical"
    return f'<iframe srcdoc="{escape(page)}" sandbox="{rights}" style="{style}"></iframe>'


def node_html(node: BaseNode, marker: Marker, address: Callable[[str], str], text: str | None = None) -> str:
    """Return a chunk as HTML that nothing of it can leave; ``text`` replaces its own."""
    values = {key: metadata.value_of(node.metadata, key) for key in node.metadata}
    return rendered(node.get_content(MetadataMode.NONE) if text is None else text, values, marker, address)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    loader = PackageLoader("llama_index_contextual", "report/templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


_WIDTH = 200  # characters


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts, and what there is to know of its figures. ``str`` of it is plain text.

    Attributes:
        title: The heading of its section in a report; "" for none.
        header: The names of the columns.
        rows: One text for each column. The first names the row.
        remarks: Sentences about the table.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()

    def __str__(self) -> str:
        grid = Grid(self.header[0], box=None, pad_edge=False)
        for column in self.header[1:]:
            grid.add_column(column, justify="right")
        for row in self.rows:
            grid.add_row(*map(Text, row))
        console = Console(file=StringIO(), width=_WIDTH, record=True, force_jupyter=False)
        console.print(grid)
        return "\n".join([*(line.rstrip() for line in console.export_text().splitlines()), *self.remarks])

    def to_html(self) -> str:
        """Return an HTML fragment."""
        return render("table.html", table=self)

    def to_markdown(self) -> str:
        """Return a section of a Markdown page."""
        lines = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (self.header, *self.rows)]
        lines.insert(1, ["---"] * len(self.header))
        heading = f"## {self.title}\n\n" if self.title else ""
        return heading + "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", *self.remarks, ""])


_COLOURS: Final = {"code": "magenta", "table": "cyan", "list": "green", "heading": "red", "html": "yellow"}


class ChunkView(NamedTuple):
    """A chunk as it is shown.

    Attributes:
        number: From 1.
        node: The chunk.
        values: Its metadata, under our names of the keys.
        overlap: The start of its text that stands in the chunk before, too.
        text: The rest of its text.
    """

    number: int
    node: TextNode
    values: dict[str, Any]
    overlap: str
    text: str

    @property
    def headings(self) -> str:
        """The headings that it stands under; "" where there are none."""
        return str(self.values.get(metadata.HEADER_PATH) or "")

    @property
    def citation(self) -> str:
        """Its document and lines, as far as they are known."""
        lines = self.values.get(metadata.START_LINE), self.values.get(metadata.END_LINE)
        return metadata.citation_of(self.values) or metadata.citation("", *lines)

    @property
    def tokens(self) -> int:
        """How many tokens its text has; 0 where its parser has not counted them."""
        return int(self.values.get(metadata.TOKEN_COUNT) or 0)

    @property
    def facts(self) -> list[str]:
        """Its size, kind and day."""
        tokens = f"{self.tokens} tokens" if self.tokens else ""
        facts = tokens, self.values.get(metadata.CONTENT_TYPE), self.values.get(metadata.DATE)
        return [str(fact) for fact in facts if fact]

    @property
    def added(self) -> dict[str, str]:
        """What is added to its text where it is embedded, indexed by keywords, and shown to a language model."""
        text = self.overlap + self.text
        embedded, prompt = (
            self.node.get_content(mode).removesuffix(text).strip() for mode in (MetadataMode.EMBED, MetadataMode.LLM)
        )
        lexical = str(self.values.get(metadata.LEXICAL_CONTEXT) or "")
        front = str(self.node.metadata.get(metadata.FRONT_MATTER, ""))
        keywords = "\n".join(filter(None, (embedded, lexical, front)))
        return {"Embedded": embedded, "Keywords": keywords, "Language model": prompt}

    def to_dict(self) -> dict[str, Any]:
        """Return what a page shows, as plain data."""
        continues, source = (self.values.get(key) for key in (metadata.CONTINUES, metadata.CONTEXT_SOURCE))
        facts = [*self.facts, *([f"context: {source}"] if source else [])]
        warnings = ["over the budget"] if self.values.get(metadata.OVERFLOW) else []
        return {
            "number": self.number,
            "headings": self.headings,
            "source": self.citation,
            "facts": facts,
            "warnings": [*warnings, *([f"continues {continues}"] if continues else [])],
            "tokens": self.tokens,
            "overlap": self.overlap,
            "text": self.text,
            "added": self.added,
        }


def chunk_views(nodes: Iterable[BaseNode]) -> Iterator[ChunkView]:
    """Yield the chunks of one document, or of the pages of one, as they are shown; ``nodes`` are in order."""
    end, page = 0, None
    for number, node in enumerate((node for node in nodes if isinstance(node, TextNode)), start=1):
        text = node.get_content(MetadataMode.NONE)
        overlap = 0 if node.start_char_idx is None or node.ref_doc_id != page else max(0, end - node.start_char_idx)
        end, page = node.end_char_idx or 0, node.ref_doc_id
        values = {key: metadata.value_of(node.metadata, key) for key in node.metadata}
        yield ChunkView(number, node, values, text[:overlap], text[overlap:])


def chunks_page(nodes: Iterable[BaseNode], *, title: str, budget: int | None = None, remark: str = "") -> str:
    """Return a page that shows chunks, their boundaries and overlaps, and what is added to each in its other views.

    The page holds each text once, and draws some chunks at a time.

    Args:
        nodes: The chunks of one document, in order.
        title: What the page is called, such as the document's path.
        budget: The most tokens of a chunk, as it was set. None leaves the bars out.
        remark: A sentence about all chunks.
    """
    chunks = [chunk.to_dict() for chunk in chunk_views(nodes)]
    return render("chunks.html", title=title, budget=budget, remark=remark, chunks=chunks)


def chunk_panel(chunk: ChunkView) -> Panel:
    """Return a chunk as a panel in the terminal: headings, lines, tokens, overlap, overflow and context."""
    title = Text(f"{chunk.number} ", style="bold")
    title.append(printable(chunk.headings, one_line=True) or "(no heading)")
    lines = chunk.citation.rpartition("#")[2]
    continued = printable(str(chunk.values.get(metadata.CONTINUES) or ""), one_line=True)
    subtitle = Text(" · ".join([lines, *chunk.facts, *([f"continues {continued}"] if continued else [])]), style="dim")
    if chunk.values.get(metadata.OVERFLOW):
        subtitle.append(" · over chunk_size", style="bold red")
    body = Text()
    if context := metadata.context_of(chunk.values):
        body.append(f"{printable(context)}\n\n", style="green")
    body.append(printable(chunk.overlap), style="dim italic")
    body.append(printable(chunk.text))
    colour = _COLOURS.get(str(chunk.values.get(metadata.CONTENT_TYPE)), "blue")
    return Panel(body, title=title, title_align="left", subtitle=subtitle, subtitle_align="right", border_style=colour)
