"""HTML that runs nothing and loads nothing: pages, Markdown with matched words marked, and the preview of a file.

HTML in a document is shown as text. Images and embedded notes are named and not loaded. A link leads to a page of the
web in another window, or to another document where the caller says how that is addressed.
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
_WITHIN_LIST: Final = re.compile(r"\n*([ \t]+)(?:[-*+]|\d{1,9}[.)])[ \t]")
_WEB: Final = ("http://", "https://", "mailto:")
_PICTURES: Final = (".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".bmp", ".avif")
_FACTS: Final = {
    "continues": "continues",
    LEFT_OUT: "left out:",
}  # of a chunk, and what stands before each
_TEMPLATES: Final = Environment(
    loader=PackageLoader("llama_index_contextual", "app/serve"),
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def marked_html(text: str, terms: Collection[str] = ()) -> Markup:
    """A text as HTML in which the words that match are marked.

    Args:
        text: Any text.
        terms: As the keyword arm writes them.
    """
    parts = ((matched, escape(part)) for matched, part in marked(text, terms))
    return Markup("".join(f"<mark>{part}</mark>" if matched else part for matched, part in parts))  # noqa: S704


def render(template: str, **values: object) -> str:
    """A page from one of this folder's templates; every value is escaped."""
    return _TEMPLATES.get_template(f"templates/{template}").render(**values)


# Markdown


def node_html(
    node: BaseNode,
    address: Callable[[str], str],
    terms: Collection[str] = (),
    text: str | None = None,
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
    html = _markdown().render(_whole(text, values), {"address": address, "path": path})
    parts = re.split(r"(<[^<>]*>)", html)  # of tags alone: those of a text are escaped
    return Markup().join(
        Markup(part) if part[:1] == "<" else marked_html(unescape(part), terms)  # noqa: S704
        for part in parts  # noqa: RUF100, S704
    )


def _whole(text: str, values: Mapping[str, Any]) -> str:
    """A later piece of a table with its header row, one of a fence with its fence, one of a list at its left margin."""
    before = str(values.get(metadata.CONTINUES) or "")
    if "|" in before and before not in (" ".join(line.split()) for line in text.splitlines()):
        return f"{before}\n{'|---' * before.strip().strip('|').count('|')}|---|\n{text}"
    if within := _WITHIN_LIST.match(text):  # further in it would be code
        text = "\n".join(line.removeprefix(within[1]) for line in text.split("\n"))
    is_code = values.get(metadata.CONTENT_TYPE) == "code" and not text.startswith("    ")
    is_fence = "|" not in before and (before or (is_code and not _FENCE.search(text)))
    return f"```{before}\n{text}" if is_fence else text


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    markdown.inline.ruler.before("link", "wiki_link", _read_wiki_link)
    markdown.add_render_rule("image", _image)
    markdown.add_render_rule("link_open", _link)
    return markdown


def _read_wiki_link(state: StateInline, silent: bool) -> bool:
    """Read ``[[Name]]`` or ``![[Name]]`` where it stands, as a link or as a picture."""
    match = WIKI_LINK.match(state.src, state.pos, state.posMax)
    if (
        match is None or not (match[1].strip() or match[2]) or match[1].startswith(" ")
    ):  # "[[ -f x ]]" is code
        return False
    if not silent:
        name, heading, text = match[1].strip(), (match[2] or "").strip(), wiki_text(match)
        if match[0].startswith("!") and name.lower().endswith(_PICTURES):
            state.push("image", "img", 0).content = name
        else:
            state.push("link_open", "a", 1).attrs = {
                "href": f"[[{name or state.env['path']}{heading}]]"
            }
            state.push("text", "", 0).content = text or " > ".join(
                filter(None, (name, *heading.split("#")))
            )
            state.push("link_close", "a", -1)
    state.pos = match.end()
    return True


def _image(_: RendererHTML, tokens: Sequence[Token], at: int, *__: Any) -> str:
    return f'<span class="image">{escape(tokens[at].content or unquote(str(tokens[at].attrGet("src") or "")))}</span>'


def _link(
    _: RendererHTML, tokens: Sequence[Token], at: int, __: Any, env: Mapping[str, Any]
) -> str:
    """The opening tag of a link to a page of the web or to another document, or of one that leads nowhere."""
    target = str(tokens[at].attrGet("href") or "")
    if target.lower().startswith(_WEB):
        return f'<a href="{escape(target)}" target="_blank" rel="noopener noreferrer">'
    path = normpath(join(dirname(env["path"]), unquote(re.split(r"[#?]", target)[0])))
    leads_out = _SCHEME.match(target) or target.startswith(("/", "#")) or path.startswith("..")
    place = target if target.startswith("[[") else "" if leads_out else path
    return (
        f'<a href="{escape(env["address"](place))}" rel="noopener noreferrer">'
        if place
        else '<a class="nowhere">'
    )


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
        keys = (
            metadata.DATE,
            metadata.CONTENT_TYPE,
            metadata.CONTEXT_SOURCE,
            metadata.CONTINUES,
            LEFT_OUT,
        )
        chunks.append(
            {
                "number": number,
                "headings": str(values.get(metadata.HEADER_PATH) or ""),
                "citation": metadata.citation_of(values) or metadata.citation("", *lines),
                "tokens": int(values.get(metadata.TOKEN_COUNT) or 0),
                **{key.removeprefix("_"): str(values.get(key) or "") for key in keys},
                "over_budget": bool(values.get(metadata.OVERFLOW)),
                "embedded": node.get_content(MetadataMode.EMBED)
                .removesuffix(overlap + text)
                .strip(),
                "overlap": overlap,
                "text": text,
            }
        )
    return chunks


@dataclass(frozen=True)
class Preview:
    """The chunks of one file.

    Attributes:
        name: The file's path.
        nodes: Its chunks in order, with their contexts.
        budget: The most tokens of a chunk, or None where the parser has no such setting.
    """

    name: str
    nodes: tuple[TextNode, ...] = field(repr=False)
    budget: int | None

    def to_html(self) -> str:
        """A self-contained page: boundaries, overlaps and contexts. It holds each text once."""
        return render(
            "chunks.html", title=self.name, budget=self.budget, chunks=chunk_data(self.nodes)
        )

    def __str__(self) -> str:
        chunks = chunk_data(self.nodes)
        tokens = counted(sum(chunk["tokens"] for chunk in chunks), "token")
        name = printable(self.name, one_line=True)
        lines = [
            f"{name}: {counted(len(chunks), 'chunk')}, {tokens}" if chunks else f"{name}: no text"
        ]
        for chunk in chunks:
            facts = [
                chunk["citation"].rpartition("#")[2],
                counted(chunk["tokens"], "token"),
                chunk["content_type"],
            ]
            facts += [chunk["date"], "over chunk_size" * chunk["over_budget"]]
            facts += [f"{words} {chunk[key]}" for key, words in _FACTS.items() if chunk[key]]
            lines += [
                "",
                f"── {chunk['number']} {chunk['headings']} ── {' · '.join(filter(None, facts))}",
            ]
            lines += [
                f"+ {line}" for line in chunk["embedded"].split("\n") if chunk["context_source"]
            ]
            lines.append(chunk["overlap"] + chunk["text"])
        return "\n".join(lines)


def preview_of(
    name: str,
    documents: Sequence[Document],
    parser: NodeParser,
    contexts: ContextualNodePostprocessor | None = None,
) -> Preview:
    """The chunks of a file, as an index of these settings would have them.

    Args:
        name: Of the file.
        documents: What it is read as: the pages of a PDF.
        parser: Cuts them.
        contexts: The step that writes contexts, or None for chunks alone. A context that costs something is replaced by
            a free one, because a preview pays for nothing.
    """
    nodes = [
        node for node in parser.get_nodes_from_documents(documents) if isinstance(node, TextNode)
    ]
    if contexts is not None and contexts.generator is not None and nodes:
        contexts.model_copy(
            update={"generator": contexts.generator.at_query_time(), "documents": documents}
        )(nodes)
    return Preview(name, tuple(nodes), getattr(parser, "chunk_size", None))
