"""The LlamaIndex node parser ``HeadingAwareMarkdownNodeParser``."""

from __future__ import annotations

import asyncio
import pickle
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from llama_index.core import schema
from llama_index.core.bridge.pydantic import field_serializer
from llama_index.core.callbacks import CallbackManager
from llama_index.core.node_parser.interface import NodeParser
from llama_index.core.node_parser.node_utils import default_id_func
from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.utils import get_tqdm_iterable

from llama_index_contextual.node_parser import node_metadata
from llama_index_contextual.node_parser.front_matter import FrontMatter, read_front_matter
from llama_index_contextual.node_parser.packing import ChunkSettings, Span, split_markdown
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils import text as text_utils
from llama_index_contextual.utils.errors import (
    Checked,
    DocumentError,
    SettingError,
    objects_of,
    whole,
)
from llama_index_contextual.utils.tokens import COUNTERS

if TYPE_CHECKING:
    from llama_index_contextual.node_parser.sections import Path

_ANY_SUFFIX = "*"
_LARGEST_CHUNK = 1_000_000
_USUAL_OVERLAP = 80
_USUAL_MINIMUM = 50
_IMAGE_WITHOUT_TEXT = Span(0, 0, (), "image", 0)
# The fields besides metadata that nodes inherit from their document.
_TEMPLATES = ("metadata_separator", "metadata_template", "text_template")
_IMAGE_FIELDS = ("image", "image_path", "image_url", "image_mimetype", "text_embedding")


class HeadingAwareMarkdownNodeParser(Checked, NodeParser):
    r"""Split Markdown into nodes that know their headings, lines and date.

    The text of every node is a slice of the document with at most ``chunk_size`` tokens. Each
    section with text of its own starts a new node. Headings without text, tags, rules and
    navigation links join a neighbour. Code fences, tables, list items and sentences stay whole if
    they fit. The names of the metadata are defined in :mod:`llama_index_contextual.utils.metadata`.
    If a document already has metadata under such a name, it is kept, and ours gets the prefix
    ``contextual_``.

    **Ids** are hashes of the document's id, the chunk's text, and the chunk's ordinal among equal
    texts in the document. They are the same in every run if the document's id is, as with
    ``SimpleDirectoryReader(filename_as_id=True)``. By default, LlamaIndex gives documents random
    ids.

    **Pages** of one file, which have its path or name and a page label, are parsed in order of
    their numbers. Each page starts under the headings that are open at the end of the page before
    it. For this, all pages must be in the same call, and not in several workers of an
    ``IngestionPipeline``.

    An image gives image nodes that keep their text. A node without text and an ``IndexNode`` are
    returned unchanged.

    Args:
        chunk_size: The maximum number of tokens in a chunk. A single sentence or code line can have
            twice as many, and its chunk is marked ``overflow``.
        chunk_overlap: The maximum number of tokens that are repeated from the previous chunk of the
            same section, in whole sentences or blocks. They are included in ``chunk_size``. The
            default is 80, or a fifth of ``chunk_size`` if that is less.
        min_chunk_size: Tags and links with fewer tokens join a neighbour, and sections are split
            without leaving a smaller remainder, if possible. The default is 50, or an eighth of
            ``chunk_size`` if that is less.
        min_section_size: Sections with fewer tokens merge with a neighbour that has the same parent
            heading and date. With 0, each section with text starts a chunk. For pages of converted
            files, whose headings are guesses, it is at least half of ``chunk_size``.
        tokenizer: ``"cl100k"``, ``"minilm"``, ``"e5"``, or a callable that returns the tokens of a
            text or their number. The default is LlamaIndex's ``Settings.tokenizer``.
        keep_blocks: Whether code blocks and tables of up to eight times ``chunk_size`` stay whole.
            Otherwise they are split at ``chunk_size``, between lines or rows.
        semantic: Whether to parse Markdown. If False, every document is treated as plain text with
            paragraphs but no headings.
        preserve_headers: Whether nodes carry the path of the headings above them.
        markdown_suffixes: The suffixes of Markdown files, such as ``(".md", ".mdx")``. ``"*"``
            means all files and ``()`` means none. Other files are treated as plain text.
        include_metadata: Whether nodes have metadata.
        include_prev_next_rel: Whether nodes are linked to their neighbours.
        callback_manager: LlamaIndex's callback manager.
        id_func: A function that returns the id of a node, given its index and its document.
        **kwargs: The fields of a subclass.

    Raises:
        SettingError: A setting has an invalid value.

    Examples:
        >>> from llama_index.core import Document
        >>> parser = HeadingAwareMarkdownNodeParser()
        >>> document = Document(text="# Notes\n\nCookie loves carrots.")
        >>> [node] = parser.get_nodes_from_documents([document])
        >>> node.metadata["header_path"], node.metadata["start_line"], node.metadata["end_line"]
        ('Notes', 1, 3)
    """

    revision: ClassVar[int] = 12
    """Increased when the same settings give different nodes, so that an index rebuilds its own."""
    most_chunks: ClassVar[int] = 80_000
    """The maximum number of chunks per document. Each takes 5 KB of memory."""
    typed_front_matter: ClassVar[bool] = False
    """Whether numbers in front matter stay numbers in metadata. They become text by default,
    because LanceDB, for example, rejects ``rating: high`` in a note after ``rating: 4``."""

    chunk_size: int = 400
    chunk_overlap: int = 80
    min_chunk_size: int = 50
    min_section_size: int = 0
    tokenizer: str | Callable[[str], Any] | None = None
    keep_blocks: bool = False
    semantic: bool = True
    preserve_headers: bool = True
    markdown_suffixes: tuple[str, ...] = (_ANY_SUFFIX,)

    def __init__(
        self,
        chunk_size: int = 400,
        chunk_overlap: int | None = None,
        min_chunk_size: int | None = None,
        min_section_size: int = 0,
        tokenizer: str | Callable[[str], Any] | None = None,
        keep_blocks: bool = False,
        semantic: bool = True,
        preserve_headers: bool = True,
        markdown_suffixes: tuple[str, ...] = (_ANY_SUFFIX,),
        include_metadata: bool = True,
        include_prev_next_rel: bool = True,
        callback_manager: CallbackManager | None = None,
        id_func: Callable[[int, BaseNode], str] = default_id_func,
        **kwargs: Any,
    ) -> None:
        size = whole("chunk_size", chunk_size, most=_LARGEST_CHUNK)
        if chunk_overlap is None:
            chunk_overlap = min(_USUAL_OVERLAP, size // 5)
        if min_chunk_size is None:
            min_chunk_size = min(_USUAL_MINIMUM, size // 8)
        super().__init__(
            chunk_size=size,
            chunk_overlap=_part_of_chunk("chunk_overlap", chunk_overlap, size),
            min_chunk_size=_part_of_chunk("min_chunk_size", min_chunk_size, size, may_be_all=True),
            min_section_size=whole("min_section_size", min_section_size, least=0),
            tokenizer=_checked_tokenizer(tokenizer),
            keep_blocks=keep_blocks,
            semantic=semantic,
            preserve_headers=preserve_headers,
            markdown_suffixes=markdown_suffixes,
            include_metadata=include_metadata,
            include_prev_next_rel=include_prev_next_rel,
            callback_manager=callback_manager or CallbackManager([]),
            id_func=_checked_id_func(id_func),
            **kwargs,
        )
        for suffix in self.markdown_suffixes:
            if suffix != _ANY_SUFFIX and not suffix.startswith("."):
                raise SettingError(
                    '`markdown_suffixes` must each begin with a dot, as in (".md",), or be "*" for '
                    f"all files (got {suffix!r})."
                )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle, where LlamaIndex would drop fields that it cannot pickle."""
        try:
            pickle.dumps((self.tokenizer, self.id_func))
        except Exception as error:
            raise SettingError(
                f"`tokenizer` or `id_func` cannot be pickled for another process ({error}). "
                "Pass a function that is defined at the top level of a module."
            ) from error
        state: dict[str, Any] = super().__getstate__()
        return state

    @field_serializer("tokenizer")
    def _serialize_tokenizer(self, value: str | Callable[[str], Any] | None) -> Any:
        if not callable(value):
            return value
        return {"callable": getattr(value, "__qualname__", type(value).__name__)}

    @classmethod
    def from_defaults(
        cls,
        chunk_size: int = 400,
        chunk_overlap: int | None = None,
        min_chunk_size: int | None = None,
        min_section_size: int = 0,
        tokenizer: str | Callable[[str], Any] | None = None,
        keep_blocks: bool = False,
        semantic: bool = True,
        preserve_headers: bool = True,
        markdown_suffixes: tuple[str, ...] = (_ANY_SUFFIX,),
        include_metadata: bool = True,
        include_prev_next_rel: bool = True,
        callback_manager: CallbackManager | None = None,
        id_func: Callable[[int, BaseNode], str] = default_id_func,
        **kwargs: Any,
    ) -> HeadingAwareMarkdownNodeParser:
        """Create a parser in the way of LlamaIndex's parsers, with the arguments of the class."""
        return cls(
            chunk_size=chunk_size,
            chunk_overlap=chunk_overlap,
            min_chunk_size=min_chunk_size,
            min_section_size=min_section_size,
            tokenizer=tokenizer,
            keep_blocks=keep_blocks,
            semantic=semantic,
            preserve_headers=preserve_headers,
            markdown_suffixes=markdown_suffixes,
            include_metadata=include_metadata,
            include_prev_next_rel=include_prev_next_rel,
            callback_manager=callback_manager,
            id_func=id_func,
            **kwargs,
        )

    def get_nodes_from_documents(
        self, documents: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        """Return the nodes of some documents.

        Raises:
            SettingError: An item is not a document, such as a string.
        """
        checked = _checked_documents(documents)
        nodes: list[BaseNode] = super().get_nodes_from_documents(checked, show_progress, **kwargs)
        return nodes

    async def aget_nodes_from_documents(
        self, documents: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        """Parse in a thread, because LlamaIndex would block the event loop."""
        return await asyncio.to_thread(
            self.get_nodes_from_documents, documents, show_progress, **kwargs
        )

    def split_document(
        self, document: BaseNode, above: Path | None = None
    ) -> tuple[str, FrontMatter, list[Span]]:
        """Return a document's text without lone surrogates, its front matter and its spans.

        Args:
            document: A document, or a node to split again.
            above: The headings that are open at the end of the previous page, if there is one.
        """
        name = metadata.path_of(document.metadata) or document.node_id
        content = document.get_content(metadata_mode=MetadataMode.NONE)
        text = text_utils.without_surrogates(content, name)
        is_markdown = self.semantic and self._is_markdown(document)
        front = FrontMatter()
        if is_markdown and above is None:
            front = read_front_matter(text, name)
        settings = self._settings_for(document)
        above = above or node_metadata.path_above(document)
        spans = split_markdown(
            text, settings=settings, front=front, above=above, markdown=is_markdown
        )
        if not spans and front.values:  # a note with only front matter: make that searchable
            spans = split_markdown(text, settings=settings, front=FrontMatter(), markdown=False)
        return text, front, spans

    def _settings_for(self, document: BaseNode) -> ChunkSettings:
        """Return the settings for splitting a document."""
        values = {name: getattr(self, name) for name in ChunkSettings._fields}
        if _has_markdown_type(document) and metadata.PAGE_LABEL in document.metadata:
            # The headings of a converted page are guesses, and many of its sections are short.
            half = self.chunk_size // 2
            values["min_chunk_size"] = max(self.min_chunk_size, half)
            values["min_section_size"] = max(self.min_section_size, half)
        return ChunkSettings(**values)

    def _is_markdown(self, document: BaseNode) -> bool:
        path = metadata.path_of(document.metadata)
        return _has_markdown_type(document) or text_utils.is_markdown(path, self.markdown_suffixes)

    def _parse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **_kwargs: Any
    ) -> list[BaseNode]:
        parsed: dict[int, list[BaseNode]] = {}
        open_paths: dict[int, Path] = {}  # at the ends of documents
        # How often each text has occurred, over all documents because two can have the same id.
        counts: Counter[tuple[str, str]] = Counter()
        order = node_metadata.reading_order(nodes)
        for position, before in get_tqdm_iterable(order, show_progress, "Parsing nodes"):
            above = None if before is None else open_paths[before]
            parsed[position], open_paths[position] = self._parse_document(
                nodes[position], counts, above
            )
        return [node for position in range(len(nodes)) for node in parsed[position]]

    def _postprocess_parsed_nodes(
        self,
        nodes: list[BaseNode],
        parent_doc_map: dict[str, schema.Document],  # noqa: ARG002  LlamaIndex's signature
    ) -> list[BaseNode]:
        """Return the nodes unchanged. LlamaIndex would search for offsets and copy metadata."""
        return nodes

    def _parse_document(
        self, document: BaseNode, counts: Counter[tuple[str, str]], above: Path | None
    ) -> tuple[list[BaseNode], Path]:
        """Return the nodes of a document, and the headings that are open at its end."""
        if isinstance(document, schema.IndexNode):  # its pieces would lose the object it refers to
            return [document], above or ()
        document = node_metadata.with_clean_metadata(document)
        text, front, spans = self.split_document(document, above)
        if len(spans) > self.most_chunks:
            name = metadata.path_of(document.metadata) or document.node_id
            raise DocumentError(
                f"{name} would have {len(spans):,} chunks, more than {self.most_chunks:,}. "
                f"Split it, or increase `chunk_size` (now {self.chunk_size})."
            )
        open_path = spans[-1].open_path if spans else above or ()
        if not spans and isinstance(document, schema.ImageDocument | schema.ImageNode):
            spans = [_IMAGE_WITHOUT_TEXT]
        elif not spans and _has_other_media(document):
            return [document], open_path
        if text != document.get_content(metadata_mode=MetadataMode.NONE):
            document = document.model_copy()  # do not change the caller's document
            document.set_content(text)
        nodes = self._make_nodes(document, text, front, spans, counts)
        if self.include_prev_next_rel:
            _link(nodes)
        return [*nodes], open_path

    def _make_nodes(
        self,
        document: BaseNode,
        text: str,
        front: FrontMatter,
        spans: list[Span],
        counts: Counter[tuple[str, str]],
    ) -> list[TextNode]:
        """Return a node for each span of a document.

        Args:
            document: The document, with clean text.
            text: Its text.
            front: Its front matter.
            spans: Its chunks.
            counts: How often each text has occurred, by document identity and text.
        """
        source = document.source_node or schema.RelatedNodeInfo(
            node_id=document.node_id, node_type=document.get_type(), hash=document.hash
        )
        brought = node_metadata.metadata_for_chunks(document)
        shared = node_metadata.document_metadata(document, front, brought)
        tags = text_utils.inline_tags(text[front.end :]) if self._is_markdown(document) else []
        filters = node_metadata.filter_metadata(front, tags, brought, typed=self.typed_front_matter)
        identity = node_metadata.identity_of(document)
        place = node_metadata.place_of(document)
        line_ends = node_metadata.line_ends(text)
        kind = _node_class(document)
        inherited = _inherited_fields(document, kind)
        nodes: list[TextNode] = []
        for number, span in enumerate(spans):
            chunk = text[span.start : span.end]
            ours = {**filters, **shared}
            if number == 0:
                ours |= node_metadata.first_chunk_metadata(document, front, span)
            path = [heading.title for heading in span.path] if self.preserve_headers else []
            if path or metadata.HEADER_PATH not in brought:
                ours[metadata.HEADER_PATH] = metadata.short_header_path(path)
            if place.line and span.end:
                ours[metadata.START_LINE] = place.line + bisect_right(line_ends, span.start)
                ours[metadata.END_LINE] = place.line + bisect_right(line_ends, span.end - 1)
            ours |= node_metadata.span_metadata(
                span,
                brought,
                document_has_date=metadata.DATE_TS in shared,
                chunk_size=self.chunk_size,
            )
            merged, our_names = metadata.merge_metadata(brought, ours)
            if not self.include_metadata:
                merged.clear()
                our_names.clear()
            if self.id_func is default_id_func:
                node_id = node_metadata.node_id_of(identity, chunk, counts[identity, chunk])
            else:
                node_id = self.id_func(number, document)
            counts[identity, chunk] += 1
            node = kind(
                id_=node_id,
                text=chunk,
                start_char_idx=place.offset + span.start,
                end_char_idx=place.offset + span.end,
                metadata=merged,
                relationships={schema.NodeRelationship.SOURCE: source},
                **inherited,
                **node_metadata.excluded_keys(document, merged, our_names, filters),
            )
            shown = text_utils.readable(text, span.start, span.end)
            if shown != chunk:
                node_metadata.hide_encoded_bytes(node, shown)
            nodes.append(node)
        return nodes


def _part_of_chunk(name: str, value: object, chunk_size: int, *, may_be_all: bool = False) -> int:
    """Return a number of tokens after checking that it is less than ``chunk_size``.

    With ``may_be_all``, it can also be equal.
    """
    number = whole(name, value, least=0)
    if may_be_all and number > chunk_size:
        raise SettingError(f"`{name}` must be at most `chunk_size` (got {number} > {chunk_size}).")
    if not may_be_all and number >= chunk_size:
        raise SettingError(
            f"`{name}` must be less than `chunk_size` (got {number} >= {chunk_size})."
        )
    return number


def _checked_tokenizer(tokenizer: Any) -> Any:
    """Return a usable tokenizer. A callable cannot be restored from ``to_dict()``."""
    if isinstance(tokenizer, dict):
        raise SettingError(
            f"`tokenizer` was a callable and cannot be restored (got {tokenizer!r}). "
            "Pass the callable again."
        )
    if isinstance(tokenizer, str) and tokenizer not in COUNTERS:
        known = ", ".join(map(repr, COUNTERS))
        raise SettingError(
            f"`tokenizer` must be one of {known}, or a callable (got {tokenizer!r})."
        )
    return tokenizer


def _checked_id_func(id_func: Any) -> Any:
    """Return a usable id function. Only the default can be restored from ``to_dict()``."""
    if not isinstance(id_func, dict):
        return id_func
    if id_func.get("id_func_name") == default_id_func.__name__:
        return default_id_func
    raise SettingError(
        f"`id_func` was a callable and cannot be restored (got {id_func!r}). "
        "Pass the callable again."
    )


def _checked_documents(documents: Sequence[BaseNode]) -> list[Any]:
    """Return the documents as a list. A string among them would fail inside LlamaIndex."""
    hint = 'Wrap a text in Document(text="…").'
    return objects_of(BaseNode, documents, "documents", "Document objects or nodes", hint)


def _has_markdown_type(document: BaseNode) -> bool:
    """Return whether a document has the media type of Markdown."""
    resource = getattr(document, "text_resource", None)
    return resource is not None and resource.mimetype == text_utils.MARKDOWN_TYPE


def _has_other_media(document: BaseNode) -> bool:
    """Return whether a node without text is audio, video, an image, or of an unknown class."""
    if not isinstance(document, schema.Document | TextNode):
        return True
    resources = ("image_resource", "audio_resource", "video_resource")
    return any(getattr(document, name, None) is not None for name in resources)


def _node_class(document: BaseNode) -> type[TextNode]:
    """Return the class of a document's nodes."""
    is_image = isinstance(document, schema.ImageDocument | schema.ImageNode)
    return schema.ImageNode if is_image else TextNode


def _inherited_fields(document: BaseNode, kind: type[TextNode]) -> dict[str, Any]:
    """Return the fields besides metadata that nodes inherit from their document."""
    names = (*_TEMPLATES, *_IMAGE_FIELDS) if kind is schema.ImageNode else _TEMPLATES
    return {name: getattr(document, name) for name in names if hasattr(document, name)}


def _link(nodes: Sequence[TextNode]) -> None:
    """Link neighbours by id only. Links with metadata would triple the size of stored nodes."""
    for node, following in pairwise(nodes):
        node.relationships[schema.NodeRelationship.NEXT] = _link_to(following)
        following.relationships[schema.NodeRelationship.PREVIOUS] = _link_to(node)


def _link_to(node: TextNode) -> schema.RelatedNodeInfo:
    return schema.RelatedNodeInfo(node_id=node.node_id, node_type=schema.ObjectType.TEXT)
