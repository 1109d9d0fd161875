"""``HeadingAwareMarkdownNodeParser``: LlamaIndex's adapter around :mod:`llama_index_contextual.node_parser`."""

from __future__ import annotations

import asyncio
import pickle
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from llama_index.core import schema
from llama_index.core.bridge.pydantic import field_serializer
from llama_index.core.node_parser.interface import NodeParser
from llama_index.core.node_parser.node_utils import default_id_func
from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.utils import get_tqdm_iterable

from llama_index_contextual.node_parser import node_metadata
from llama_index_contextual.node_parser.blocks import FrontMatter, read_front_matter
from llama_index_contextual.node_parser.packing import ChunkSettings, Span, split_markdown
from llama_index_contextual.utils import errors, metadata
from llama_index_contextual.utils import text as normalize

if TYPE_CHECKING:
    from llama_index_contextual.node_parser.sections import Path

_ANYTHING: Final = "*"
_DEFAULT_ID: Final = default_id_func.__name__
_PICTURE: Final = Span(0, 0, (), "image", 0)  # of an image without text


class HeadingAwareMarkdownNodeParser(ChunkSettings, NodeParser):
    r"""Split Markdown into nodes that know their headings, lines and day; what belongs together stays together.

    Every node's text is a slice of the document, at most ``chunk_size`` tokens long. Code fences, tables, list items
    and sentences stay whole where they fit; small sections merge with a neighbour. Metadata names are those of
    :mod:`llama_index_contextual.utils.metadata`; what a document brought under such a name stays, and ours then begins
    with ``contextual_``.

    **Ids** are hashes of the document's id, the chunk's text, and its ordinal among equal texts of the document. So
    they are the same on each run where the document's id is, as with ``SimpleDirectoryReader(filename_as_id=True)``.
    LlamaIndex gives other documents random ids.

    **Pages** of one file (its path or name, and a ``page_label`` or ``page_number``) are read by number: a page begins
    under the headings that are open at the end of the page before it. Pages that come in another call, or to another
    worker of an ``IngestionPipeline``, are not known here: there a page begins under no heading.

    An image keeps its chunks' text and stays an image. A node that holds no text, and an ``IndexNode``, pass as they
    are. A document of more than ``most_chunks`` (80,000) raises a
    :class:`~llama_index_contextual.utils.errors.DocumentError`.

    Args:
        **settings: Those of :class:`~llama_index_contextual.chunking.ChunkSettings`, and these. By default
            ``chunk_overlap`` is 80, or a fifth of ``chunk_size`` where that is less, and ``min_chunk_size`` 50, or an
            eighth. Of pages that ``DocumentReader`` converts, ``min_chunk_size`` is half of ``chunk_size`` at least.
        preserve_headers: Whether nodes carry the path of headings above them.
        markdown_suffixes: Suffixes of the files that are Markdown, such as ``(".md", ".mdx")``; ``"*"`` is any, ``()``
            is none. Other files have paragraphs, and no headings.
        typed_front_matter: Whether numbers and truth values of front matter are such in metadata. Otherwise all is
            text: a store such as LanceDB refuses a note with ``rating: high`` after one with ``rating: 4``.

    Examples:
        >>> from llama_index.core import Document
        >>> parser = HeadingAwareMarkdownNodeParser()
        >>> [node] = parser.get_nodes_from_documents([Document(text="# Notes\n\nCookie loves carrots.")])
        >>> node.metadata["header_path"], node.metadata["start_line"], node.metadata["end_line"]
        ('Notes', 1, 3)
    """

    revision: ClassVar[int] = 10
    """Raised when the same settings give other nodes, so that an index makes its own again."""
    most_chunks: ClassVar[int] = 80_000
    """Of one document: each needs 5 KB of memory, and text of which ten megabytes are so many is none to read."""

    preserve_headers: bool = True
    markdown_suffixes: tuple[str, ...] = (_ANYTHING,)
    typed_front_matter: bool = False

    if not TYPE_CHECKING:  # a type checker reads the fields instead

        def __init__(self, **settings: Any) -> None:
            if (
                isinstance(settings.get("id_func"), dict)
                and settings["id_func"].get("id_func_name") == _DEFAULT_ID
            ):
                settings.pop("id_func")
            for name in ("tokenizer", "id_func"):
                if isinstance(settings.get(name), dict):  # of to_dict()
                    raise errors.SettingError(
                        f"`{name}` was a callable and cannot be read back (got {settings[name]!r}). "
                        "Pass the callable again."
                    )
            size = settings.get("chunk_size", type(self).model_fields["chunk_size"].default)
            for name, part in (("chunk_overlap", 5), ("min_chunk_size", 8)):
                if settings.get(name) is None:
                    usual = type(self).model_fields[name].default
                    settings[name] = min(usual, size // part) if isinstance(size, int) else usual
            super().__init__(**settings)
            if wrong := [
                one
                for one in self.markdown_suffixes
                if one != _ANYTHING and not one.startswith(".")
            ]:
                raise errors.SettingError(
                    '`markdown_suffixes` must each begin with a dot, as in (".md",), or be "*" '
                    f"for all files (got {wrong!r})."
                )

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle. LlamaIndex would leave out what cannot be pickled, and so use the defaults."""
        callables = {"tokenizer": self.tokenizer, "id_func": self.id_func}
        try:
            pickle.dumps(callables)
        except Exception as error:
            raise errors.SettingError(
                f"`tokenizer` or `id_func` cannot be pickled for another process ({error}). "
                "Pass a function that a module defines by name."
            ) from error
        state: dict[str, Any] = super().__getstate__()
        return state

    @field_serializer("tokenizer")
    def _name_tokenizer(self, value: str | Callable[[str], Any] | None) -> Any:
        return (
            {"callable": getattr(value, "__qualname__", type(value).__name__)}
            if callable(value)
            else value
        )

    @classmethod
    def from_defaults(cls, **settings: Any) -> HeadingAwareMarkdownNodeParser:
        """Make a parser, as LlamaIndex's parsers are made."""
        return cls(**settings)

    def split_document(
        self, document: BaseNode, above: Path | None = None
    ) -> tuple[str, FrontMatter, list[Span]]:
        """A document's text (lone surrogates replaced), its front matter, and the spans of its nodes.

        Args:
            document: A document, or a node that is cut again.
            above: Of a page that follows another one, the headings that are open where it begins.
        """
        path = metadata.path_of(document.metadata)
        name = path or document.node_id
        text = normalize.without_surrogates(
            document.get_content(metadata_mode=MetadataMode.NONE), name
        )
        settings, markdown = self, self._is_markdown(document)
        if _has_markdown_type(document) and metadata.PAGE_LABEL in document.metadata:
            # A converted page: its headings are guesses, and many sections are short.
            settings = self.model_copy(
                update={"min_chunk_size": max(self.min_chunk_size, self.chunk_size // 2)}
            )
        has_front = markdown and self.semantic and above is None
        front = read_front_matter(text, name) if has_front else FrontMatter()
        above = above or node_metadata.path_above(document)
        spans = split_markdown(text, settings=settings, front=front, above=above, markdown=markdown)
        if not spans and front.values:  # a note of properties alone: they are all there is to find
            spans = split_markdown(text, settings=self, front=FrontMatter(), markdown=False)
        return text, front, spans

    def _is_markdown(self, document: BaseNode) -> bool:
        path = metadata.path_of(document.metadata)
        return _has_markdown_type(document) or normalize.is_markdown(path, self.markdown_suffixes)

    def _parse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **_kwargs: Any
    ) -> list[BaseNode]:
        parsed: dict[int, list[BaseNode]] = {}
        ends: dict[int, Path] = {}
        seen: Counter[tuple[str, str]] = Counter()  # for all documents: two may have one id
        for position, before in get_tqdm_iterable(
            node_metadata.reading_order(nodes), show_progress, "Parsing nodes"
        ):
            above = None if before is None else ends[before]
            parsed[position], ends[position] = self._parse_document(nodes[position], seen, above)
        return [node for position in range(len(nodes)) for node in parsed[position]]

    async def _aparse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        """Parse in a thread: LlamaIndex would parse on the event loop."""
        return await asyncio.to_thread(self._parse_nodes, nodes, show_progress, **kwargs)

    def _postprocess_parsed_nodes(
        self,
        nodes: list[BaseNode],
        parent_doc_map: dict[str, schema.Document],  # noqa: ARG002  LlamaIndex's signature
    ) -> list[BaseNode]:
        """The nodes as they are: LlamaIndex would search for offsets, and copy metadata into links."""
        return nodes

    def _parse_document(
        self, document: BaseNode, seen: Counter[tuple[str, str]], above: Path | None
    ) -> tuple[list[BaseNode], Path]:
        """The nodes of a document, and the headings that are open at its end."""
        if isinstance(document, schema.IndexNode):  # cut, it would lose what it stands for
            return [document], above or ()
        document = node_metadata.with_clean_metadata(document)
        text, front, spans = self.split_document(document, above)
        if len(spans) > self.most_chunks:
            name = metadata.path_of(document.metadata) or document.node_id
            raise errors.DocumentError(
                f"{name} would be {len(spans):,} chunks, more than {self.most_chunks:,}. "
                f"Split it, or raise `chunk_size` (now {self.chunk_size})."
            )
        if not spans and isinstance(document, schema.ImageDocument | schema.ImageNode):
            spans = [_PICTURE]
        elif not spans and _holds_more_than_text(document):
            return [document], above or ()
        if text != document.get_content(metadata_mode=MetadataMode.NONE):
            document = (
                document.model_copy()
            )  # the caller's document stays as it is; only its hash needs clean text
            document.set_content(text)
        nodes = self._nodes(document, text, front, spans, seen)
        if self.include_prev_next_rel:
            _link(nodes)
        return [*nodes], spans[-1].open if spans and spans[-1] is not _PICTURE else above or ()

    def _nodes(
        self,
        document: BaseNode,
        text: str,
        front: FrontMatter,
        spans: list[Span],
        seen: Counter[tuple[str, str]],
    ) -> list[TextNode]:
        """A node for each span of a document.

        Args:
            document: Its text is clean.
            text: The same.
            front: Its front matter.
            spans: Its chunks.
            seen: How often each text came before, by the identity of a document.
        """
        theirs, ours = node_metadata.document_metadata(document, front)
        source = document.source_node or schema.RelatedNodeInfo(
            node_id=document.node_id, node_type=document.get_type(), hash=document.hash
        )
        tags = normalize.inline_tags(text[front.end :]) if self._is_markdown(document) else []
        filters = node_metadata.filter_metadata(front, tags, theirs, typed=self.typed_front_matter)
        identity, (offset, line) = (
            node_metadata.identity_of(document),
            node_metadata.place_of(document),
        )
        ends = node_metadata.line_ends(text)
        has_day, headers, size = metadata.DATE_TS in ours, self.preserve_headers, self.chunk_size
        about: dict[str, Any] = {"has_day": has_day, "headers": headers, "size": size}
        kind, shared = _class_and_fields(document)
        nodes: list[TextNode] = []
        for number, span in enumerate(spans):
            chunk = text[span.start : span.end]
            places = (
                line + bisect_right(ends, at) if line and span.end else 0
                for at in (span.start, span.end - 1)
            )
            node_id = node_metadata.node_id_of(identity, chunk, seen[identity, chunk])
            seen[identity, chunk] += 1
            values = node_metadata.span_metadata(chunk, span, tuple(places), theirs, **about)
            shown = normalize.readable(text, span.start, span.end)
            first = {} if number else node_metadata.first_metadata(document, front, span)
            merged, names = metadata.merge_metadata(theirs, {**filters, **ours, **first, **values})
            node = kind(
                id_=node_id if self.id_func is default_id_func else self.id_func(number, document),
                text=chunk,
                start_char_idx=offset + span.start,
                end_char_idx=offset + span.end,
                metadata=merged if self.include_metadata else {},
                relationships={schema.NodeRelationship.SOURCE: source},
                **shared,
            )
            node_metadata.hide_keys(node, document, names if self.include_metadata else {}, filters)
            if shown != chunk:
                node_metadata.hide_encoded_bytes(node, shown)
            nodes.append(node)
        return nodes


def _has_markdown_type(document: BaseNode) -> bool:
    """Whether a document has the media type of Markdown."""
    resource = getattr(document, "text_resource", None)
    return resource is not None and resource.mimetype == normalize.MARKDOWN_TYPE


def _holds_more_than_text(document: BaseNode) -> bool:
    """Whether a node without text is something else: a sound, a film, or of a class that we do not know."""
    resources = ("image_resource", "audio_resource", "video_resource")
    is_known = isinstance(document, schema.Document | TextNode)
    return not is_known or any(getattr(document, name, None) is not None for name in resources)


def _class_and_fields(document: BaseNode) -> tuple[type[TextNode], dict[str, Any]]:
    """The class of a document's nodes, and what they have of the document."""
    names = ["metadata_separator", "metadata_template", "text_template"]
    kind = (
        schema.ImageNode
        if isinstance(document, schema.ImageDocument | schema.ImageNode)
        else TextNode
    )
    if kind is schema.ImageNode:
        names += ["image", "image_path", "image_url", "image_mimetype", "text_embedding"]
    return kind, {name: getattr(document, name) for name in names if hasattr(document, name)}


def _link(nodes: Sequence[TextNode]) -> None:
    """Link neighbours by id only: their metadata in each link would triple what is stored."""
    links = [
        schema.RelatedNodeInfo(node_id=node.node_id, node_type=schema.ObjectType.TEXT, metadata={})
        for node in nodes
    ]
    for node, previous in zip(nodes[1:], links, strict=False):
        node.relationships[schema.NodeRelationship.PREVIOUS] = previous
    for node, following in zip(nodes, links[1:], strict=False):
        node.relationships[schema.NodeRelationship.NEXT] = following
