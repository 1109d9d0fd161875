"""HTML that runs nothing and loads nothing: pages, Markdown with matched words marked, and the preview of a file.

HTML in a document is shown as text. Images and embedded notes are named and not loaded. A link leads to a page of the
web in another window, or to another document where the caller says how that is addressed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from posixpath import dirname, join, normpath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from jinja2 import Environment, PackageLoader, StrictUndefined
from llama_index.core.schema import MetadataMode, TextNode
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markupsafe import Markup
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from llama_index_contextual import metadata
from llama_index_contextual.app.folder.formats import LEFT_OUT
from llama_index_contextual.memory import SPLIT, marked
from llama_index_contextual.text import WIKI_LINK, counted, is_markdown, printable, readable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.node_parser import NodeParser
    from llama_index.core.schema import BaseNode, Document
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

    from llama_index_contextual.retrieval import ContextualNodePostprocessor

_FENCE: Final = re.compile(r"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,})", re.MULTILINE)
_WEB: Final = ("http://", "https://", "mailto:")
_PICTURES: Final = (".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".bmp", ".avif")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def marked_html(text: str, terms: Collection[str] = ()) -> Markup:
    """A text as HTML in which the words that match are marked.

    Args:
        text: Any text.
        terms: As the keyword arm writes them.
    """
    parts = ((matched, escape(part)) for matched, part in marked(text, terms, SPLIT))
    return Markup("".join(f"<mark>{part}</mark>" if matched else part for matched, part in parts))  # noqa: S704


def render(template: str, **values: object) -> str:
    """A page from one of this folder's templates; every value is escaped."""
    return _environment().get_template(template).render(**values)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    loader = PackageLoader("llama_index_contextual", "app/serve/templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


# Markdown


def node_html(
    node: BaseNode, address: Callable[[str], str], terms: Collection[str] = (), text: str | None = None
) -> Markup:
    """A chunk as HTML: of Markdown, which PDF and others were converted to, what it means; else its lines.

    Args:
        node: The chunk.
        address: Gives the link to another document of the folder, by its path or as ``[[Name#Heading]]``; "" for none.
        terms: Words with these are marked.
        text: Replaces its own.
    """
    values = {key: metadata.value_of(node.metadata, key) for key in node.metadata}
    path, text = metadata.path_of(values), readable(node.get_content() if text is None else text)
    # no plain text has either
    is_converted = values.get(metadata.HEADER_PATH) or values.get(metadata.CONTENT_TYPE) == "table"
    if not is_markdown(path) and not is_converted:
        return Markup("<pre>{}</pre>").format(marked_html(text, terms))
    environment = {"terms": terms, "address": address, "path": path}
    return Markup(_markdown().render(_whole(text, values), environment))  # noqa: S704  html is off


def _whole(text: str, values: Mapping[str, Any]) -> str:
    """A later piece of a table with its header row, and one of a fence with its fence."""
    before = str(values.get(metadata.CONTINUES) or "")
    if "|" in before:
        return f"{before}\n{'|---' * before.strip().strip('|').count('|')}|---|\n{text}"
    fences = _FENCE.findall(text)
    ends_a_fence = len(fences) % 2 and text.rstrip().endswith(fences[-1])
    is_code = values.get(metadata.CONTENT_TYPE) == "code" and not text.startswith("    ")
    is_later = before or (is_code and (not fences or ends_a_fence))
    return f"```{before}\n{text}" if is_later and not _FENCE.match(text) else text


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable(["table", "strikethrough"])
    markdown.inline.ruler.before("link", "wiki_link", _read_wiki_link)
    return markdown


class _Renderer(RendererHTML):
    """Writes the tokens of Markdown as HTML: a method for each kind that looks other than usual."""

    def text(self, tokens: Sequence[Token], at: int, _: Any, env: Mapping[str, Any]) -> str:
        return str(marked_html(tokens[at].content, env["terms"]))

    def code_inline(self, *where: Any) -> str:
        return f"<code>{self.text(*where)}</code>"

    def code_block(self, *where: Any) -> str:
        return f"<pre>{self.code_inline(*where)}</pre>\n"

    def fence(self, *where: Any) -> str:
        return self.code_block(*where)

    def image(self, tokens: Sequence[Token], at: int, _: Any, env: Mapping[str, Any]) -> str:
        return _image(tokens[at].content or unquote(str(tokens[at].attrGet("src") or "")), env)

    def heading_open(self, tokens: Sequence[Token], at: int, *_: Any) -> str:
        """A heading as a paragraph that looks like one: the outline of the page is the page's own."""
        return f'<p class="title level{tokens[at].tag[1:]}">'

    def heading_close(self, *_: Any) -> str:
        return "</p>\n"

    def link_open(self, tokens: Sequence[Token], at: int, _: Any, env: Mapping[str, Any]) -> str:
        target = str(tokens[at].attrGet("href") or "")
        if target.lower().startswith(_WEB):
            return f'<a href="{escape(target)}" target="_blank" rel="noopener noreferrer">'
        path = normpath(join(dirname(env["path"]), unquote(re.split(r"[#?]", target)[0])))
        leads_out = _SCHEME.match(target) or target.startswith(("/", "#")) or path.startswith("..")
        return _link("" if leads_out else env["address"](path))

    def wiki_link(self, tokens: Sequence[Token], at: int, _: Any, env: Mapping[str, Any]) -> str:
        name, heading, text = tokens[at].meta["parts"]
        if tokens[at].content.startswith("!") and name.lower().endswith(_PICTURES):
            return _image(name, env)
        shown = marked_html(text or " > ".join(filter(None, (name, *heading.split("#")))), env["terms"])
        return _link(env["address"](f"[[{name or env['path']}{heading}]]")) + f"{shown}</a>"


def _image(name: str, env: Mapping[str, Any]) -> str:
    return f'<span class="image">{marked_html(name, env["terms"])}</span>'


def _link(address: str) -> str:
    """The opening tag of a link to another document; of one that leads nowhere where there is no address."""
    return f'<a href="{escape(address)}" rel="noopener noreferrer">' if address else '<a class="nowhere">'


def _read_wiki_link(state: StateInline, silent: bool) -> bool:
    """Read ``[[Name]]`` or ``![[Name]]`` where it stands."""
    match = WIKI_LINK.match(state.src, state.pos, state.posMax)
    if match is None or not (match[1].strip() or match[2]) or match[1].startswith(" "):  # "[[ -f x ]]" is code
        return False
    if not silent:
        token = state.push("wiki_link", "", 0)
        token.content, token.meta = match[0], {"parts": [(part or "").strip() for part in match.groups()]}
    state.pos = match.end()
    return True


# Chunks of a file


def chunk_views(nodes: Iterable[BaseNode]) -> Iterator[tuple[TextNode, str, str]]:
    """Yield the chunks of one document or its pages; of each the start that the chunk before has too, and the rest."""
    end, page = 0, None
    for node in nodes:
        if isinstance(node, TextNode):
            text, start = node.get_content(MetadataMode.NONE), node.start_char_idx
            overlap = 0 if start is None or node.ref_doc_id != page else max(0, end - start)
            end, page = node.end_char_idx or 0, node.ref_doc_id
            yield node, text[:overlap], text[overlap:]


def chunk_data(nodes: Iterable[BaseNode]) -> list[dict[str, Any]]:
    """The chunks of one document as plain data, with what is embedded before their texts."""
    chunks = list[dict[str, Any]]()
    for number, (node, overlap, text) in enumerate(chunk_views(nodes), 1):
        values = {key: metadata.value_of(node.metadata, key) for key in node.metadata}
        lines = values.get(metadata.START_LINE), values.get(metadata.END_LINE)
        keys = (metadata.DATE, metadata.CONTENT_TYPE, metadata.CONTEXT_SOURCE, metadata.CONTINUES, LEFT_OUT)
        chunks.append(
            {
                "number": number,
                "headings": str(values.get(metadata.HEADER_PATH) or ""),
                "citation": metadata.citation_of(values) or metadata.citation("", *lines),
                "tokens": int(values.get(metadata.TOKEN_COUNT) or 0),
                **{key.removeprefix("_"): str(values.get(key) or "") for key in keys},
                "over_budget": bool(values.get(metadata.OVERFLOW)),
                "embedded": node.get_content(MetadataMode.EMBED).removesuffix(overlap + text).strip(),
                "overlap": overlap,
                "text": text,
            }
        )
    return chunks


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
        remark = f"Left out: {self.left_out}" if self.left_out else ""
        values = {"budget": self.budget, "remark": remark, "chunks": chunk_data(self.nodes)}
        return render("chunks.html", title=self.name, **values)

    def __rich__(self) -> Group:
        chunks = chunk_data(self.nodes)
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
