"""HTML that runs nothing and loads nothing.

Pages, Markdown with matched words marked, and the preview of a file.

HTML in a document is shown as text. Images and embedded notes are named and not loaded. A link
leads to a page of the web in another window, or to another document where the caller says how that
is addressed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape, unescape
from posixpath import dirname, join, normpath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from jinja2 import Environment, PackageLoader, StrictUndefined
from llama_index.core.schema import BaseNode, Document, MetadataMode, TextNode
from markdown_it import MarkdownIt
from markupsafe import Markup

from llama_index_contextual.app.serve.excerpts import marked
from llama_index_contextual.app.serve.formulas import read_formulas
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.metadata import LEFT_OUT
from llama_index_contextual.utils.text import (
    WIKI_LINK,
    counted,
    is_markdown,
    printable,
    readable,
    wiki_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.node_parser import NodeParser
    from markdown_it.renderer import RendererHTML
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

    from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor

_FENCE: Final = re.compile(r"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,})", re.MULTILINE)
# A tag, or a whole formula.
_TAG: Final = re.compile(r"(<math\b[^<]*(?:<(?!/?math\b)[^<]*)*</math>|<[^<>]*>)")
_WITHIN_LIST: Final = re.compile(r"\n*([ \t]+)(?:[-*+]|\d{1,9}[.)])[ \t]")
_WEB: Final = ("http://", "https://", "mailto:")
PICTURES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".avif")
_FACTS: Final = {
    "continues": "continues",
    LEFT_OUT: "left out:",
}  # of a chunk, and what stands before each
_CHUNK_KEYS: Final = (
    metadata.DATE,
    metadata.CONTENT_TYPE,
    metadata.CONTEXT_SOURCE,
    metadata.CONTINUES,
    LEFT_OUT,
)
_TEMPLATES: Final = Environment(
    loader=PackageLoader("llama_index_contextual", "app/serve"),
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
_AFTER_PATH: Final = re.compile(r"[#?]")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def marked_html(text: str, terms: Collection[str] = ()) -> Markup:
    """Return a text as HTML in which the words that match are marked.

    Args:
        text: Any text.
        terms: As the keyword index writes them.
    """
    parts = ((matched, escape(part)) for matched, part in marked(text, terms))
    return Markup("".join(f"<mark>{part}</mark>" if matched else part for matched, part in parts))  # noqa: S704


def render(template: str, **values: object) -> str:
    """Return a page from one of this folder's templates; every value is escaped."""
    return _TEMPLATES.get_template(f"templates/{template}").render(**values)


# Markdown


def node_html(
    node: BaseNode,
    address: Callable[[str], str],
    terms: Collection[str] = (),
    text: str | None = None,
) -> Markup:
    """Return a chunk as HTML: what Markdown means, which PDF and others were converted to.

    Else its lines.

    Args:
        node: The chunk.
        address: Gives the link to another document of the folder, by its path or as
            ``[[Name#Heading]]``; "" for none.
        terms: Words with these are marked.
        text: Replaces its own.
    """
    values = {key: metadata.value_of(node.metadata, key) for key in node.metadata}
    path = metadata.path_of(values)
    text = readable(node.get_content() if text is None else text)
    # Plain text has neither.
    is_converted = values.get(metadata.HEADER_PATH) or values.get(metadata.CONTENT_TYPE) == "table"
    if not is_markdown(path) and not is_converted:
        return Markup("<pre>{}</pre>").format(marked_html(text, terms))
    html = _markdown().render(_completed(text, values), {"address": address, "path": path})
    parts = list[Markup]()
    for part in _TAG.split(html):
        is_tag = part.startswith("<")  # those of a text are escaped
        parts.append(Markup(part) if is_tag else marked_html(unescape(part), terms))  # noqa: S704
    return Markup().join(parts)


def _completed(text: str, values: Mapping[str, Any]) -> str:
    """Complete a piece: of a table by its header row, of a fence by its fence."""
    continues = str(values.get(metadata.CONTINUES) or "")
    is_table = "|" in continues
    lines = [" ".join(line.split()) for line in text.splitlines()]
    if is_table and continues not in lines:
        columns = continues.strip().strip("|").count("|")
        return f"{continues}\n{'|---' * columns}|---|\n{text}"
    within_list = _WITHIN_LIST.match(text)
    if within_list:  # further from the margin it would be code
        text = "\n".join(line.removeprefix(within_list[1]) for line in text.split("\n"))
    is_code = values.get(metadata.CONTENT_TYPE) == "code" and not text.startswith("    ")
    is_fence = not is_table and (continues or (is_code and not _FENCE.search(text)))
    return f"```{continues}\n{text}" if is_fence else text


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    markdown.inline.ruler.before("link", "wiki_link", _read_wiki_link)
    read_formulas(markdown)
    markdown.add_render_rule("image", _image)
    markdown.add_render_rule("link_open", _link)
    return markdown


def _read_wiki_link(state: StateInline, silent: bool) -> bool:
    """Read ``[[Name]]`` or ``![[Name]]`` where it stands, as a link or as a picture."""
    match = WIKI_LINK.match(state.src, state.pos, state.posMax)
    if match is None or match[1].startswith(" ") or not (match[1].strip() or match[2]):
        return False  # "[[ -f x ]]" is code
    if not silent:
        name = match[1].strip()
        heading = (match[2] or "").strip()
        if match[0].startswith("!") and name.lower().endswith(PICTURES):
            picture = state.push("image", "img", 0)
            picture.content = name
            picture.attrs = {"src": name}
        else:
            link = f"[[{name or state.env['path']}{heading}]]"
            words = [part for part in (name, *heading.split("#")) if part]
            state.push("link_open", "a", 1).attrs = {"href": link}
            state.push("text", "", 0).content = wiki_text(match) or " > ".join(words)
            state.push("link_close", "a", -1)
    state.pos = match.end()
    return True


def _image(
    _: RendererHTML, tokens: Sequence[Token], index: int, __: Any, env: Mapping[str, Any]
) -> str:
    """Return a picture of the folder for the page to load, or the name of one elsewhere."""
    source = unquote(str(tokens[index].attrGet("src") or ""))
    name = escape(tokens[index].content or source)
    path = _path_beside(env["path"], source)
    is_shown = path and source.lower().endswith(PICTURES)
    place = f' data-picture="{escape(path)}"' if is_shown else ""
    return f'<span class="image"{place}>{name}</span>'


def _link(
    _: RendererHTML, tokens: Sequence[Token], index: int, __: Any, env: Mapping[str, Any]
) -> str:
    """Return the opening tag of a link to the web or to a document, or a tag without a target."""
    target = str(tokens[index].attrGet("href") or "")
    if target.lower().startswith(_WEB):
        return f'<a href="{escape(target)}" target="_blank" rel="noopener noreferrer">'
    place = target if target.startswith("[[") else _path_beside(env["path"], target)
    if not place:
        return '<a class="nowhere">'
    return f'<a href="{escape(env["address"](place))}" rel="noopener noreferrer">'


def _path_beside(path: str, target: str) -> str:
    """Return the path in the folder that a link in a document means.

    "" if it leads out of the folder.
    """
    if _SCHEME.match(target) or target.startswith(("/", "#")):
        return ""
    place = normpath(join(dirname(path), unquote(_AFTER_PATH.split(target)[0])))
    return "" if place.startswith("..") else place


# Chunks of a file


def chunk_views(nodes: Iterable[BaseNode]) -> Iterator[tuple[TextNode, str, str]]:
    """Yield the chunks of one document or its pages.

    Of each the start that the chunk before has too, and the rest.
    """
    end = 0
    document = None
    for node in nodes:
        if isinstance(node, TextNode):
            text = node.get_content(MetadataMode.NONE)
            start = node.start_char_idx
            is_next = start is not None and node.ref_doc_id == document
            overlap = max(0, end - start) if is_next and start is not None else 0
            end = node.end_char_idx or 0
            document = node.ref_doc_id
            yield node, text[:overlap], text[overlap:]


def chunk_data(nodes: Iterable[BaseNode]) -> list[dict[str, Any]]:
    """Return the chunks of one document as plain data, with what is embedded before their texts."""
    chunks = list[dict[str, Any]]()
    for number, (node, overlap, text) in enumerate(chunk_views(nodes), 1):
        values = {key: metadata.value_of(node.metadata, key) for key in node.metadata}
        lines = values.get(metadata.START_LINE), values.get(metadata.END_LINE)
        embedded = node.get_content(MetadataMode.EMBED).removesuffix(overlap + text).strip()
        chunk = {
            "number": number,
            "headings": str(values.get(metadata.HEADER_PATH) or ""),
            "citation": metadata.citation_of(values) or metadata.citation("", *lines),
            "tokens": int(values.get(metadata.TOKEN_COUNT) or 0),
            "over_budget": bool(values.get(metadata.OVERFLOW)),
            "embedded": embedded,
            "overlap": overlap,
            "text": text,
        }
        chunks.append(chunk | {key: str(values.get(key) or "") for key in _CHUNK_KEYS})
    return chunks


@dataclass(frozen=True)
class Preview:
    """The chunks of one file.

    Attributes:
        name: The file's path.
        nodes: Its chunks in order, with their contexts.
        budget: The most tokens of a chunk, or None if the parser has no such setting.
    """

    name: str
    nodes: tuple[TextNode, ...] = field(repr=False)
    budget: int | None

    def to_html(self) -> str:
        """Return a self-contained page: boundaries, overlaps and contexts.

        It holds each text once.
        """
        chunks = chunk_data(self.nodes)
        return render("chunks.html", title=self.name, budget=self.budget, chunks=chunks)

    def __str__(self) -> str:
        chunks = chunk_data(self.nodes)
        name = printable(self.name, one_line=True)
        if not chunks:
            return f"{name}: no text"
        tokens = counted(sum(chunk["tokens"] for chunk in chunks), "token")
        lines = [f"{name}: {counted(len(chunks), 'chunk')}, {tokens}"]
        for chunk in chunks:
            lines += _lines_of(chunk)
        return "\n".join(lines)


def _lines_of(chunk: Mapping[str, Any]) -> list[str]:
    """Return a chunk as the command line shows it.

    A heading with facts, the context behind ``+``, the text.
    """
    facts = [
        chunk["citation"].rpartition("#")[2],
        counted(chunk["tokens"], "token"),
        chunk["content_type"],
        chunk["date"],
        "over chunk_size" if chunk["over_budget"] else "",
    ]
    facts += [f"{words} {chunk[key]}" for key, words in _FACTS.items() if chunk[key]]
    shown_facts = " · ".join(fact for fact in facts if fact)
    lines = ["", f"── {chunk['number']} {chunk['headings']} ── {shown_facts}"]
    if chunk["embedded"]:
        lines += [f"+ {line}" for line in chunk["embedded"].split("\n")]
    return [*lines, chunk["overlap"] + chunk["text"]]


def preview_of(
    name: str,
    documents: Sequence[Document],
    parser: NodeParser,
    contexts: ContextualNodePostprocessor | None = None,
    indexed: Iterable[BaseNode] = (),
) -> Preview:
    """Return the chunks of a file as an index of these settings has them.

    Args:
        name: Of the file.
        documents: What it is read as: the pages of a PDF.
        parser: Cuts them.
        contexts: The step that writes contexts, or None for chunks alone. A context that costs
            something is replaced by a free one, because a preview pays for nothing.
        indexed: The chunks of the file in the index. A chunk that is still the same is shown with
            its context there.
    """
    nodes = [
        node for node in parser.get_nodes_from_documents(documents) if isinstance(node, TextNode)
    ]
    if contexts is not None and contexts.generator is not None and nodes:
        free = {"generator": contexts.generator.at_query_time(), "documents": documents}
        contexts.model_copy(update=free)(nodes)
    known = {node.node_id: node for node in indexed if isinstance(node, TextNode)}
    shown = list[TextNode]()
    for node in nodes:
        stored = known.get(node.node_id)
        shown.append(node if stored is None or stored.text != node.text else stored)
    return Preview(name, tuple(shown), getattr(parser, "chunk_size", None))
