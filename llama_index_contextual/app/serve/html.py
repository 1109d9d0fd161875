"""HTML of chunks and pages, with matching words marked, and the preview of a file.

Nothing of a document is executed or loaded. HTML in it is shown as text, and images and embedded
notes are only named. Links to the web open in a new window. Links to other documents lead to the
addresses that the caller makes for them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape, unescape
from posixpath import dirname, join, normpath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from jinja2 import Environment, PackageLoader, StrictUndefined
from llama_index.core.schema import BaseNode, Document, MetadataMode, TextNode
from markdown_it import MarkdownIt
from markupsafe import Markup

from llama_index_contextual.app.serve.excerpts import marked
from llama_index_contextual.app.serve.formulas import read_formulas
from llama_index_contextual.utils import metadata
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

_FENCE = re.compile(r"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,})", re.MULTILINE)
# A tag, or a whole formula.
_TAG = re.compile(r"(<math\b[^<]*(?:<(?!/?math\b)[^<]*)*</math>|<[^<>]*>)")
_WITHIN_LIST = re.compile(r"\n*([ \t]+)(?:[-*+]|\d{1,9}[.)])[ \t]")
_WEB = ("http://", "https://", "mailto:")
PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".avif")
# Facts about a chunk, each with the words before its value.
_FACTS = {
    metadata.CONTINUES: "continues",
    metadata.LEFT_OUT: "left out:",
}
_CHUNK_KEYS = (
    metadata.DATE,
    metadata.CONTENT_TYPE,
    metadata.CONTEXT_SOURCE,
    metadata.CONTINUES,
    metadata.LEFT_OUT,
)
_TEMPLATES = Environment(
    loader=PackageLoader("llama_index_contextual", "app/serve"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_AFTER_PATH = re.compile(r"[#?]")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def marked_html(text: str, terms: Collection[str] = ()) -> Markup:
    """Return a text as HTML in which the words that match are marked.

    Args:
        text: Any text.
        terms: The terms to mark, in the form of the keyword index.
    """
    parts = []
    for is_match, part in marked(text, terms):
        escaped = escape(part)
        parts.append(f"<mark>{escaped}</mark>" if is_match else escaped)
    return Markup("".join(parts))  # noqa: S704


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
    """Return a chunk as HTML: rendered if it is Markdown or was converted to it, else as lines.

    Args:
        node: The chunk.
        address: Returns the link to another document, given its path or ``[[Name#Heading]]``.
        terms: The terms to mark.
        text: The text to show instead of that of the chunk.
    """
    values = {key: metadata.value_of(node.metadata, key) for key in node.metadata}
    path = metadata.path_of(values)
    text = readable(node.get_content() if text is None else text)
    # A chunk with headings or a table is Markdown, whatever the suffix of its file.
    is_table = values.get(metadata.CONTENT_TYPE) == "table"
    if not (is_markdown(path) or is_table or values.get(metadata.HEADER_PATH)):
        return Markup("<pre>{}</pre>").format(marked_html(text, terms))

    environment = {"address": address, "path": path}
    html = _markdown().render(_completed(text, values), environment)
    parts = list[str]()
    for part in _TAG.split(html):
        is_tag = part.startswith("<")  # in texts, < is escaped
        parts.append(part if is_tag else marked_html(unescape(part), terms))
    return Markup("".join(parts))  # noqa: S704


def _completed(text: str, values: Mapping[str, Any]) -> str:
    """Add the header row to a piece of a table, and the opening line to a piece of a fence."""
    # This is the header row of a table, or the first line of a fence.
    continues = str(values.get(metadata.CONTINUES) or "")
    is_table = "|" in continues
    if is_table:
        lines = [" ".join(line.split()) for line in text.splitlines()]
        if continues not in lines:
            columns = continues.strip().strip("|").count("|")
            return f"{continues}\n{'|---' * columns}|---|\n{text}"

    within_list = _WITHIN_LIST.match(text)
    if within_list:  # with its indentation it would be code
        indent = within_list[1]
        text = "\n".join(line.removeprefix(indent) for line in text.split("\n"))
    if is_table:
        return text

    is_code = values.get(metadata.CONTENT_TYPE) == "code"
    is_marked_as_code = text.startswith("    ") or _FENCE.search(text)
    needs_fence = continues or (is_code and not is_marked_as_code)
    return f"```{continues}\n{text}" if needs_fence else text


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    markdown.inline.ruler.before("link", "wiki_link", _read_wiki_link)
    read_formulas(markdown)
    markdown.add_render_rule("image", _image)
    markdown.add_render_rule("link_open", _link)
    return markdown


def _read_wiki_link(state: StateInline, silent: bool) -> bool:
    """Read ``[[Name]]`` or ``![[Name]]`` as a link or a picture."""
    match = WIKI_LINK.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    name = match[1].strip()
    heading = (match[2] or "").strip()
    is_code = match[1].startswith(" ")  # "[[ -f x ]]"
    if is_code or not (name or match[2]):
        return False
    state.pos = match.end()
    if silent:
        return True
    if match[0].startswith("!") and name.lower().endswith(PICTURES):
        picture = state.push("image", "img", 0)
        picture.content = name
        picture.attrs = {"src": name}
        return True
    target = name or state.env["path"]
    words = filter(None, [name, *heading.split("#")])
    state.push("link_open", "a", 1).attrs = {"href": f"[[{target}{heading}]]"}
    state.push("text", "", 0).content = wiki_text(match) or " > ".join(words)
    state.push("link_close", "a", -1)
    return True


def _image(
    _: RendererHTML, tokens: Sequence[Token], index: int, __: Any, env: Mapping[str, Any]
) -> str:
    """Return a placeholder for a picture. The page loads those that are in the folder."""
    token = tokens[index]
    source = unquote(str(token.attrGet("src") or ""))
    name = escape(token.content or source)
    path = _path_beside(env["path"], source)
    attributes = 'class="image"'
    if path and source.lower().endswith(PICTURES):
        attributes += f' data-picture="{escape(path)}"'
    return f"<span {attributes}>{name}</span>"


def _link(
    _: RendererHTML, tokens: Sequence[Token], index: int, __: Any, env: Mapping[str, Any]
) -> str:
    """Return the opening tag of a link to the web or to a document, or a tag without a target."""
    target = str(tokens[index].attrGet("href") or "")
    if target.lower().startswith(_WEB):
        return f'<a href="{escape(target)}" target="_blank" rel="noopener noreferrer">'
    is_wiki_link = target.startswith("[[")
    place = target if is_wiki_link else _path_beside(env["path"], target)
    if not place:
        return '<a class="nowhere">'
    link = env["address"](place)
    return f'<a href="{escape(link)}" rel="noopener noreferrer">'


def _path_beside(path: str, target: str) -> str:
    """Return the path in the folder that a link of a document leads to; "" for other links."""
    if _SCHEME.match(target) or target.startswith(("/", "#")):
        return ""
    relative_path, *_ = _AFTER_PATH.split(target)
    place = normpath(join(dirname(path), unquote(relative_path)))
    return "" if place.startswith("..") else place


# Chunks of a file


class ChunkView(NamedTuple):
    """A chunk as it is shown after the previous chunk.

    Attributes:
        node: The chunk.
        overlap: The start of its text, as far as the previous chunk contains it.
        text: The rest of its text.
    """

    node: TextNode
    overlap: str
    text: str


def chunk_views(nodes: Iterable[BaseNode]) -> Iterator[ChunkView]:
    """Yield the views of the chunks of a document or its pages, which are given in order."""
    end = 0
    document = None
    for node in nodes:
        if not isinstance(node, TextNode):
            continue
        if node.ref_doc_id != document or node.start_char_idx is None:
            end = 0
        text = node.get_content(MetadataMode.NONE)
        overlap = max(0, end - (node.start_char_idx or 0))
        yield ChunkView(node, text[:overlap], text[overlap:])
        end = node.end_char_idx or 0
        document = node.ref_doc_id


def chunk_data(nodes: Iterable[BaseNode]) -> list[dict[str, Any]]:
    """Return the chunks of a document as plain data, with the text embedded before each."""
    chunks = list[dict[str, Any]]()
    for number, (node, overlap, text) in enumerate(chunk_views(nodes), start=1):
        values = {key: metadata.value_of(node.metadata, key) for key in node.metadata}
        first_line = values.get(metadata.START_LINE)
        last_line = values.get(metadata.END_LINE)
        citation = metadata.citation_of(values) or metadata.citation("", first_line, last_line)
        embedded = node.get_content(MetadataMode.EMBED)
        chunk = {
            "number": number,
            "headings": str(values.get(metadata.HEADER_PATH) or ""),
            "citation": citation,
            "tokens": int(values.get(metadata.TOKEN_COUNT) or 0),
            "over_budget": bool(values.get(metadata.OVERFLOW)),
            "embedded": embedded.removesuffix(overlap + text).strip(),
            "overlap": overlap,
            "text": text,
        }
        for key in _CHUNK_KEYS:
            chunk[key] = str(values.get(key) or "")
        chunks.append(chunk)
    return chunks


def preview_text(name: str, chunks: Sequence[Mapping[str, Any]]) -> str:
    """Return the chunks of a file as text for a terminal.

    Args:
        name: The path of the file.
        chunks: The chunks, as :func:`chunk_data` returns them.
    """
    name = printable(name, one_line=True)
    if not chunks:
        return f"{name}: no text"
    tokens = counted(sum(chunk["tokens"] for chunk in chunks), "token")
    lines = [f"{name}: {counted(len(chunks), 'chunk')}, {tokens}"]
    for chunk in chunks:
        lines += _lines_of(chunk)
    return "\n".join(lines)


def _lines_of(chunk: Mapping[str, Any]) -> list[str]:
    """Return a chunk as lines: a heading with facts, its context after ``+``, and its text."""
    facts = [
        chunk["citation"].rpartition("#")[2],
        counted(chunk["tokens"], "token"),
        chunk["content_type"],
        chunk["date"],
        "over chunk_size" if chunk["over_budget"] else "",
    ]
    facts += [f"{words} {chunk[key]}" for key, words in _FACTS.items() if chunk[key]]
    shown_facts = " · ".join(filter(None, facts))
    lines = ["", f"── {chunk['number']} {chunk['headings']} ── {shown_facts}"]
    if chunk["embedded"]:
        lines += [f"+ {line}" for line in chunk["embedded"].split("\n")]
    lines.append(chunk["overlap"] + chunk["text"])
    return lines


def preview_nodes(
    documents: Sequence[Document],
    parser: NodeParser,
    contexts: ContextualNodePostprocessor,
    indexed: Iterable[BaseNode] = (),
) -> list[TextNode]:
    """Return the chunks that a file has in an index with these settings.

    Args:
        documents: The documents of the file, such as the pages of a PDF.
        parser: The parser that splits them into chunks.
        contexts: The step that writes contexts. A preview costs nothing: where contexts are paid
            for, chunks get free ones instead.
        indexed: The chunks of the file in the index. A chunk that has not changed is shown with
            the context that it has there.
    """
    nodes = _text_nodes(parser.get_nodes_from_documents(documents))
    if contexts.generator is not None and nodes:
        free_generator = contexts.generator.at_query_time()
        free_contexts = {"generator": free_generator, "documents": documents}
        contexts.model_copy(update=free_contexts)(nodes)
    stored_nodes = {node.node_id: node for node in _text_nodes(indexed)}
    shown = list[TextNode]()
    for node in nodes:
        stored = stored_nodes.get(node.node_id)
        if stored is None or stored.text != node.text:
            shown.append(node)
        else:
            shown.append(stored)
    return shown


def _text_nodes(nodes: Iterable[BaseNode]) -> list[TextNode]:
    return [node for node in nodes if isinstance(node, TextNode)]
