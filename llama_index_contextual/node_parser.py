"""``HeadingAwareMarkdownNodeParser``: LlamaIndex's adapter around :mod:`llama_index_contextual.markdown`."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Final

from llama_index.core.bridge.pydantic import Field, field_serializer
from llama_index.core.callbacks import CallbackManager
from llama_index.core.node_parser.interface import NodeParser
from llama_index.core.schema import (
    BaseNode,
    Document,
    MetadataMode,
    NodeRelationship,
    ObjectType,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.utils import get_tqdm_iterable

from llama_index_contextual import dates, metadata
from llama_index_contextual.checks import explained, refuse_unknown
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.identity import (
    Origin,
    given_id_func,
    hash_id,
    identity_of,
    node_id_of,
    origin_of,
)
from llama_index_contextual.markdown import ChunkSettings, FrontMatter, Span, read_front_matter
from llama_index_contextual.markdown.spans import split_markdown
from llama_index_contextual.text import is_markdown, without_surrogates
from llama_index_contextual.tokens import is_unread

if TYPE_CHECKING:
    from datetime import date

# Counts and hashes say nothing to an embedding or an LLM.
_BOOKKEEPING: Final = (
    metadata.HEADING_LEVEL,
    metadata.CONTENT_TYPE,
    metadata.TOKEN_COUNT,
    metadata.CHUNK_HASH,
    metadata.OVERFLOW,
    metadata.UNREAD,
    metadata.CONTINUES,
    metadata.DATE_TS,
    metadata.FRONT_MATTER,
)
_MOST_TITLES: Final = 4  # that a chunk of many sections names
_SHOWN_OF_FRONT_MATTER: Final = (metadata.TITLE, metadata.DATE)  # by contexts, on every chunk
_MAX_FRONT_MATTER: Final = 1000  # characters for the keyword arm
_OF_ONE_CHUNK: Final = (
    metadata.HEADER_PATH,
    metadata.OVERFLOW,
    metadata.UNREAD,
    metadata.CONTINUES,
    metadata.FRONT_MATTER,
)
# The same words each time, so that Python shows the warning once.
_UNREAD: Final = (
    "Some chunks are mostly in a script that the local model does not know, or in words of over 100 letters. Their "
    "vectors say little; they have unread=True, and keywords still find them. Cure: a multilingual embedding."
)
_HIDDEN_FROM_EMBED: Final = (*_BOOKKEEPING, metadata.START_LINE, metadata.END_LINE)


class HeadingAwareMarkdownNodeParser(NodeParser):
    r"""Split Markdown into nodes that know their headings, lines and day; what belongs together stays together.

    Every node's text is a slice of the document, at most ``chunk_size`` tokens long. Code fences, tables, list items
    and sentences stay whole where they fit; small sections merge with a neighbour. Metadata names are those of
    :mod:`llama_index_contextual.metadata`. Node ids are hashes of the document's identity (an id that the user set,
    else ``metadata["path"]``, else ``metadata["file_path"]``, else its content), the chunk's text, and its ordinal
    among equal texts.

    Examples:
        >>> from llama_index.core import Document
        >>> parser = HeadingAwareMarkdownNodeParser()
        >>> [node] = parser.get_nodes_from_documents([Document(text="# Notes\n\nCookie loves carrots.")])
        >>> node.metadata["header_path"], node.metadata["start_line"], node.metadata["end_line"]
        ('Notes', 1, 3)
    """

    revision: ClassVar[int] = 3
    """Raised when the same settings give other nodes, so that an index makes its own again."""

    chunk_size: int = Field(default=400, description="The most tokens of a chunk.")
    chunk_overlap: int = Field(default=80, description="The most tokens repeated from the chunk before, 0 for none.")
    min_chunk_size: int = Field(default=50, description="Smaller sections merge with a neighbour.")
    max_chunk_size: int | None = Field(
        default=None, description="What cannot be cut may have this many tokens; None is twice chunk_size."
    )
    keep_blocks: bool = Field(
        default=False, description="Whether code fences and tables stay whole up to max_chunk_size."
    )
    cut_at_rules: bool = Field(default=False, description="Whether every rule (---) ends a chunk.")
    tokenizer: str | Callable[[str], Any] = Field(
        default="cl100k",
        description='"cl100k", "minilm", "estimate", or a callable: the tokens of a text, or how many.',
    )
    preserve_headers: bool = Field(default=True, description="Whether nodes carry the path of headings above them.")
    semantic: bool = Field(default=True, description="False packs lines to the budget and ignores structure.")

    def __init__(self, **data: Any) -> None:
        data["id_func"] = given_id_func(data.get("id_func"))
        if isinstance(data.get("tokenizer"), dict):
            raise SettingError(
                f"tokenizer={data['tokenizer']!r} was a callable and cannot be read back. "
                "Cure: pass the callable again, or use a named tokenizer"
            )
        refuse_unknown(type(self).__name__, set(data) - {"class_name"}, type(self).model_fields)
        with explained():
            super().__init__(**data)
        self._settings()  # raises SettingError, which pydantic would wrap if this were a validator

    @field_serializer("tokenizer")
    def _name_tokenizer(self, value: str | Callable[[str], Any]) -> Any:
        return value if isinstance(value, str) else {"callable": getattr(value, "__qualname__", type(value).__name__)}

    @classmethod
    def from_defaults(
        cls, callback_manager: CallbackManager | None = None, **settings: Any
    ) -> HeadingAwareMarkdownNodeParser:
        """Make a parser, as LlamaIndex's parsers are made."""
        return cls(callback_manager=callback_manager or CallbackManager([]), **settings)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises it."""
        return "HeadingAwareMarkdownNodeParser"

    def _settings(self, *, markdown: bool = True) -> ChunkSettings:
        return ChunkSettings(
            chunk_size=self.chunk_size,
            chunk_overlap=self.chunk_overlap,
            min_chunk_size=self.min_chunk_size,
            max_chunk_size=self.max_chunk_size,
            keep_blocks=self.keep_blocks,
            cut_at_rules=self.cut_at_rules,
            tokenizer=self.tokenizer,
            semantic=self.semantic,
            markdown=markdown,
        )

    def split_document(self, document: BaseNode) -> tuple[str, FrontMatter, list[Span]]:
        """Return a document's text (lone surrogates replaced), its front matter, and the spans of its nodes."""
        name = metadata.path_of(document.metadata) or document.node_id
        text = without_surrogates(document.get_content(metadata_mode=MetadataMode.NONE), name)
        settings = self._settings(markdown=is_markdown(metadata.path_of(document.metadata)))
        has_front = settings.markdown and settings.semantic
        front = read_front_matter(text, name) if has_front else FrontMatter()
        spans = split_markdown(text, settings=settings, body=front.end)
        if not spans and front.values:  # a note of properties alone: they are all there is to find
            spans = split_markdown(text, settings=self._settings(markdown=False), body=0)
        return text, front, spans

    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **_kwargs: Any) -> list[BaseNode]:
        parsed: list[BaseNode] = []
        seen: Counter[tuple[str, str]] = Counter()  # for all documents: the pages of a PDF have one path
        for document in get_tqdm_iterable(nodes, show_progress, "Parsing nodes"):
            parsed.extend(self._parse_document(document, seen))
        if any(metadata.UNREAD in node.metadata for node in parsed):
            warnings.warn(_UNREAD, ContextualWarning, stacklevel=2)
        return parsed

    async def _aparse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        """Parse in a thread: LlamaIndex would parse on the event loop."""
        return await asyncio.to_thread(self._parse_nodes, nodes, show_progress, **kwargs)

    def _postprocess_parsed_nodes(
        self,
        nodes: list[BaseNode],
        parent_doc_map: dict[str, Document],  # noqa: ARG002  LlamaIndex's signature
    ) -> list[BaseNode]:
        """Return the nodes as they are: LlamaIndex would search for offsets, and copy metadata into links."""
        return nodes

    def _parse_document(self, document: BaseNode, seen: Counter[tuple[str, str]]) -> list[TextNode]:
        text, front, spans = self.split_document(document)
        if text != document.get_content(metadata_mode=MetadataMode.NONE):
            document = document.model_copy()  # the caller's document stays as it is; only its hash needs clean text
            document.set_content(text)
        shared = self._document_metadata(document, front)
        digest = str(document.hash)  # once: LlamaIndex computes it anew at each access
        source = document.source_node or RelatedNodeInfo(
            node_id=document.node_id,
            node_type=document.get_type(),
            hash=digest,
            metadata=metadata.of_front_matter(key for key in shared if key not in document.metadata),
        )
        identity = identity_of(document, digest)
        origin = origin_of(document)
        nodes: list[TextNode] = []
        for number, span in enumerate(spans):
            chunk = text[span.start : span.end]
            ordinal = seen[identity, chunk]
            seen[identity, chunk] += 1
            named = self.id_func is not hash_id
            node_id = self.id_func(number, document) if named else node_id_of(identity, chunk, ordinal)
            own = shared if number else {**shared, **self._first_metadata(document, front, span)}
            nodes.append(self._node(node_id, chunk, _placed(span, origin), document, own, source))
        if self.include_prev_next_rel:
            _link(nodes)
        return nodes

    def _document_metadata(self, document: BaseNode, front: FrontMatter) -> dict[str, Any]:
        if not self.include_metadata:
            return {}
        shared = {
            key: without_surrogates(value, f"metadata[{key!r}]") if isinstance(value, str) else value
            for key, value in document.metadata.items()
        }
        if document.source_node is not None:  # itself a chunk: what was said of it is not true of all its chunks
            for key in _OF_ONE_CHUNK:
                shared.pop(key, None)
        for key in (metadata.TITLE, metadata.TAGS, metadata.DESCRIPTION):
            if value := shared.get(key) or front.text(key):
                short = metadata.short_tags if key == metadata.TAGS else metadata.shortened
                shared[key] = short(value) if isinstance(value, str) else value
        day = (
            dates.parse_day(shared.get(metadata.DATE))
            or dates.parse_day(front.values.get(metadata.DATE))
            or dates.date_from_path(metadata.path_of(document.metadata))
        )
        if day:
            shared.update(_date_metadata(day))
        return shared

    def _first_metadata(self, document: BaseNode, front: FrontMatter, span: Span) -> dict[str, str]:
        """Return what the first chunk alone says: the same words on every chunk would count many times."""
        if not self.include_metadata or span.start < front.end:
            return {}
        inherited = str(document.metadata.get(metadata.FRONT_MATTER) or "")  # of a document that is itself a chunk
        words = (front.rest(_SHOWN_OF_FRONT_MATTER) or inherited)[:_MAX_FRONT_MATTER]
        return {metadata.FRONT_MATTER: words} if words else {}

    def _node(
        self,
        node_id: str,
        chunk: str,
        span: Span,
        document: BaseNode,
        shared: dict[str, Any],
        source: RelatedNodeInfo,
    ) -> TextNode:
        values = self._span_metadata(chunk, span, shared)
        return TextNode(
            id_=node_id,
            text=chunk,
            start_char_idx=span.start,
            end_char_idx=span.end,
            metadata=values,
            excluded_embed_metadata_keys=_excluded(document.excluded_embed_metadata_keys, _HIDDEN_FROM_EMBED, values),
            excluded_llm_metadata_keys=_excluded(document.excluded_llm_metadata_keys, _BOOKKEEPING, values),
            metadata_separator=getattr(document, "metadata_separator", "\n"),
            metadata_template=getattr(document, "metadata_template", "{key}: {value}"),
            text_template=getattr(document, "text_template", "{metadata_str}\n\n{content}"),
            relationships={NodeRelationship.SOURCE: source},
        )

    def _span_metadata(self, chunk: str, span: Span, shared: dict[str, Any]) -> dict[str, Any]:
        if not self.include_metadata:
            return {}
        values = dict(shared)
        if self.preserve_headers and (path := metadata.short_header_path(span.headings or _joined(span.merged))):
            values[metadata.HEADER_PATH] = path
        values[metadata.HEADING_LEVEL] = span.level
        if span.start_line:
            values[metadata.START_LINE] = span.start_line
            values[metadata.END_LINE] = span.end_line
        values[metadata.CONTENT_TYPE] = span.kind
        values[metadata.TOKEN_COUNT] = span.tokens
        values[metadata.CHUNK_HASH] = blake2b(chunk.encode(), digest_size=16).hexdigest()
        if span.overflow:
            values[metadata.OVERFLOW] = True
        if self.tokenizer == "minilm" and is_unread(chunk):
            values[metadata.UNREAD] = True
        if span.continues:
            values[metadata.CONTINUES] = span.continues
        for title in reversed(span.headings):
            if day := dates.date_from_heading(title):
                values.update(_date_metadata(day))
                break
        return values


def _placed(span: Span, origin: Origin) -> Span:
    """Return a span of a chunk counted from the beginning of the chunk's document; line 0 where it is unknown."""
    if origin == Origin():
        return span
    return span._replace(
        start=origin.offset + span.start,
        end=origin.offset + span.end,
        start_line=origin.line and origin.line + span.start_line - 1,
        end_line=origin.line and origin.line + span.end_line - 1,
        headings=origin.path(span.headings),
        level=span.level or origin.level,
    )


def _joined(titles: Sequence[str]) -> list[str]:
    """Return one title for small sections side by side, which have no heading in common."""
    shown = titles if len(titles) <= _MOST_TITLES else [*titles[: _MOST_TITLES - 1], "…", titles[-1]]
    return [metadata.TITLE_SEPARATOR.join(title for title in shown if title)]


def _date_metadata(day: date) -> dict[str, Any]:
    return {metadata.DATE: day.isoformat(), metadata.DATE_TS: dates.epoch_seconds(day)}


def _excluded(given: Sequence[str], ours: Sequence[str], values: dict[str, Any]) -> list[str]:
    return [*given, *(key for key in ours if key in values and key not in given)]


def _link(nodes: Sequence[TextNode]) -> None:
    """Link neighbours by id only: their metadata in each link would triple what is stored."""
    links = [RelatedNodeInfo(node_id=node.node_id, node_type=ObjectType.TEXT, metadata={}) for node in nodes]
    for node, previous in zip(nodes[1:], links, strict=False):
        node.relationships[NodeRelationship.PREVIOUS] = previous
    for node, following in zip(nodes, links[1:], strict=False):
        node.relationships[NodeRelationship.NEXT] = following
