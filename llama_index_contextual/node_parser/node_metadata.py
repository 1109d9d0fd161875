"""What documents and nodes are called, where one stands that is itself a part, and what the nodes of a document say.

A part is a chunk that is cut again, or a page of a file. What a document brought stays as it was. Each function returns
what is ours by the names of :mod:`llama_index_contextual.utils.metadata`, and
:func:`~llama_index_contextual.utils.metadata.merge_metadata` puts both together.
"""

from __future__ import annotations

import re
import warnings
from array import array
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from llama_index.core.schema import (
    DEFAULT_TEXT_NODE_TMPL,
    BaseNode,
    MetadataMode,
    RelatedNodeInfo,
    TextNode,
)

from llama_index_contextual.node_parser.blocks import FrontMatter, read_front_matter
from llama_index_contextual.node_parser.sections import Heading, Path, outline_of, titled_headings
from llama_index_contextual.utils import dates, metadata
from llama_index_contextual.utils.errors import ContextualWarning
from llama_index_contextual.utils.text import without_surrogates

if TYPE_CHECKING:
    from llama_index_contextual.node_parser.packing import Span

_LINE_END: Final = re.compile(r"\r\n?|\n")
_LONGEST_NUMBER: Final = 10  # digits of a page
# Counts and hashes say nothing to an embedding or an LLM.
BOOKKEEPING: Final = (
    *(metadata.HEADING_LEVEL, metadata.CONTENT_TYPE, metadata.TOKEN_COUNT, metadata.CHUNK_HASH),
    *(metadata.OVERFLOW, metadata.CONTINUES, metadata.DATE_TS, metadata.FRONT_MATTER),
)
# The day that a note is of. ``due``, ``updated`` and their kind are other days.
_DAY_OF_FRONT_MATTER: Final = re.compile(
    "(date|datum|fecha|дата|日付|日期|날짜)|(?:date[-_ ]?)?"
    "(?:(creat(?:ed|ion)|erstellt|creado|créé)|(pub|publish|published))(?:[-_ ]?(?:at|on|date|time|am))*"
    "|(data|dato|day)"
)
_LOOSE_KEY: Final = 4  # of these, the last group: a word for other things, too
_WHOLE_DAY: Final = re.compile(r"\W{0,9}\d[\w .,/:-]{4,30}\d\W{0,9}")
_FILTER_NAME: Final = re.compile(r"\w[\w .-]{0,99}")
_MOST_FILTERS: Final = 50
_MOST_TAGS: Final = 2000  # characters of inline tags
_SHOWN_OF_FRONT_MATTER: Final = (metadata.TITLE, metadata.DATE)  # by contexts, on every chunk
_MAX_FRONT_MATTER: Final = 1000  # characters for the keyword arm
# Metadata of one chunk, which is not true of the chunks that it is cut into. Our parser writes more of it than others.
_OF_OTHERS: Final = (metadata.HEADER_PATH, metadata.START_LINE, metadata.END_LINE)
_OF_OURS: Final = (*_OF_OTHERS, *BOOKKEEPING)
# Tags and description of front matter would make the chunks of a document more alike; keywords read them once.
HIDDEN_FROM_EMBED: Final = (
    *BOOKKEEPING,
    metadata.START_LINE,
    metadata.END_LINE,
    metadata.TAGS,
    metadata.DESCRIPTION,
)


def headings_of(text: str) -> list[tuple[str, int, int]]:
    """The title, the level (1 to 6) and the line (from 1) of each heading of a Markdown text."""
    front, ends = read_front_matter(text, None), line_ends(text)
    headings = titled_headings(text, outline_of(text, front.end, front.unread))
    return [(title, level, bisect_right(ends, start) + 1) for _, level, start, title in headings]


def line_ends(text: str) -> array[int]:
    """The offset after each line end: LF, CR LF or CR."""
    return array("q", (match.end() for match in _LINE_END.finditer(text)))


def source_of(node: BaseNode) -> RelatedNodeInfo | None:
    """The document that a node was cut from; None for a document."""
    source = node.source_node
    return None if source is None or source.node_id == node.node_id else source


def identity_of(document: BaseNode) -> str:
    """The identity from which the ids of a document's chunks are made: its own id.

    For a node that was cut from a document it is the document's id with the node's place there, or the node's own id
    where it names no place.
    """
    source = source_of(document)
    start, end = (getattr(document, name, None) for name in ("start_char_idx", "end_char_idx"))
    return (
        str(document.node_id)
        if source is None or start is None
        else f"{source.node_id}\0{start}-{end}"
    )


def node_id_of(identity: str, chunk: str, ordinal: int) -> str:
    """The id of a chunk: a hash in the form of a UUID, which Qdrant insists on.

    Args:
        identity: Of its document.
        chunk: Its text.
        ordinal: How many chunks of the document with the same text stand before it.
    """
    content = f"{identity}\0{ordinal}\0{chunk}".encode("utf-8", "surrogatepass")
    return str(UUID(bytes=blake2b(content, digest_size=16).digest()))


def place_of(node: BaseNode) -> tuple[int, int]:
    """The character and the line (from 1; 0 where unknown) of its document at which a node begins.

    LlamaIndex's parsers write down at which character a chunk starts, but not on which line, and nothing can be read
    but its own text. So without a ``start_line`` the line is unknown, except at the beginning.
    """
    start, end = (getattr(node, name, None) for name in ("start_char_idx", "end_char_idx"))
    if source_of(node) is None or start is None or end is None:
        return 0, 1
    if end - start != len(node.get_content(metadata_mode=MetadataMode.NONE)):  # changed since
        return 0, 1
    return start, _positive(
        metadata.value_of(node.metadata, metadata.START_LINE), 0 if start else 1
    )


def path_above(node: BaseNode) -> Path:
    """The headings that a node which is cut again stands under; the level is known of the innermost alone."""
    titles = metadata.heading_titles(node.metadata) if source_of(node) else []
    level = _positive(metadata.value_of(node.metadata, metadata.HEADING_LEVEL), 0)
    levels = [0] * (len(titles) - 1) + [level]
    return tuple(
        Heading(*both, dates.date_from_heading(both[1]))
        for both in zip(levels, titles, strict=False)
    )


def reading_order(documents: Sequence[BaseNode]) -> list[tuple[int, int | None]]:
    """The order in which documents are read, which matters for those that are pages of one file.

    Pages of one file have the same path or file name, and a ``page_label`` or ``page_number``. They are read by number,
    or in the list's order where a label is no number; numbers may be left out, as of cells of a notebook and of empty
    pages. Where a label comes twice, there are two files of one path, and no page follows another.

    Returns:
        For each document its position, and the position of the page before it, if there is one.
    """
    files: dict[object, list[tuple[str, int]]] = {}
    for position, document in enumerate(documents):
        path, label = metadata.file_of(document.metadata), metadata.page_of(document.metadata)
        is_page = path and label is not None and source_of(document) is None
        files.setdefault(path if is_page else position, []).append((str(label), position))
    order: list[tuple[int, int | None]] = []
    for pages in files.values():
        if all(label.isdecimal() and len(label) < _LONGEST_NUMBER for label, _ in pages):
            pages.sort(key=lambda page: int(page[0]))
        is_one_file, positions = len(dict(pages)) == len(pages), [position for _, position in pages]
        order += zip(
            positions, [None, *positions] if is_one_file else [None] * len(pages), strict=False
        )
    return order


def _positive(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and value > 0 else otherwise


def with_clean_metadata(document: BaseNode) -> BaseNode:
    """A document whose metadata is within bounds and without lone surrogates; warnings name what is changed.

    LlamaIndex makes a text of all metadata for the hash of a document.
    """
    values, notes = metadata.bounded(document.metadata)
    if notes:
        name = metadata.file_of(values) or document.node_id
        warnings.warn(
            f"The metadata of {name}: {'; '.join(notes)}", ContextualWarning, stacklevel=2
        )
    for key, value in values.items():
        if isinstance(value, str):
            values[key] = without_surrogates(value, f"metadata[{key!r}]")
    return (
        document
        if values == document.metadata
        else document.model_copy(update={"metadata": values})
    )


def document_metadata(
    document: BaseNode, front: FrontMatter
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata that a document brought, and ours that all its chunks share.

    A node that is cut again loses what its parser found out about it alone.
    """
    theirs = dict(document.metadata)
    if source_of(document) is not None:
        for key in _OF_OURS if metadata.value_of(theirs, metadata.CHUNK_HASH) else _OF_OTHERS:
            theirs.pop(metadata.key_in(theirs, key), None)
    ours: dict[str, Any] = (
        {} if metadata.PATH in theirs else {metadata.PATH: metadata.file_of(theirs)}
    )
    for key in (metadata.TITLE, metadata.DESCRIPTION):
        if not theirs.get(key) and (value := front.text(key)):
            ours[key] = metadata.shortened(value)
    if not theirs.get(metadata.TAGS) and (tags := front.tags()):
        ours[metadata.TAGS] = metadata.short_tags(tags)
    keys = sorted(
        (match.lastindex, key)
        for key in front.values
        if (match := _DAY_OF_FRONT_MATTER.fullmatch(key))
    )
    texts = [
        front.text(key)
        for kind, key in keys
        if kind != _LOOSE_KEY or _WHOLE_DAY.fullmatch(front.text(key))
    ]
    values = [metadata.value_of(document.metadata, metadata.DATE), *texts]
    days = filter(None, map(dates.parse_day, values))
    day = next(days, None) or dates.date_from_path(metadata.path_of(document.metadata))
    return theirs, {**ours, **(_date_metadata(day, theirs) if day else {})}


def filter_metadata(
    front: FrontMatter, tags: Sequence[str], theirs: Mapping[str, Any], *, typed: bool
) -> dict[str, Any]:
    """The metadata for filters, on every chunk and in no view: front matter, and inline tags.

    Front matter is text, and lists are text with commas. Left out are nested values, more than 300 characters, more
    than 50 keys, and names that the document brought or that mean something else here. The keyword arm reads their
    words all the same.

    Args:
        front: Of the document.
        tags: In its text.
        theirs: What it brought.
        typed: Whether numbers and truth values are such, as `metadata.typed` reads them.
            A store that fixes a column's type by the first value refuses a note that has text there.
    """
    values: dict[str, Any] = {}
    for key, value in front.values.items():
        text = front.text(key)
        usable = text and len(text) <= metadata.MOST_CHARS and _FILTER_NAME.fullmatch(key)
        if (
            usable
            and key not in metadata.NAMES_TAKEN
            and key not in theirs
            and len(values) < _MOST_FILTERS
        ):
            plain = text.lower() if isinstance(value, bool) else text
            values[key] = metadata.typed(plain) if typed else plain
    if tags:
        values[metadata.INLINE_TAGS] = metadata.short_tags(", ".join(tags), _MOST_TAGS)
    return values


def first_metadata(document: BaseNode, front: FrontMatter, span: Span) -> dict[str, str]:
    """The words of front matter for the first chunk: on every chunk they would count many times.

    A first chunk that is cut again has them from the parser that cut it.
    """
    if span.start < front.end:
        return {}
    before = (
        metadata.value_of(document.metadata, metadata.FRONT_MATTER) if source_of(document) else ""
    )
    words = (front.rest(_SHOWN_OF_FRONT_MATTER) or str(before or ""))[:_MAX_FRONT_MATTER]
    return {metadata.FRONT_MATTER: words} if words else {}


def span_metadata(
    chunk: str,
    span: Span,
    lines: Sequence[int],
    theirs: dict[str, Any],
    *,
    has_day: bool,
    headers: bool,
    size: int,
) -> dict[str, Any]:
    """The metadata of one chunk.

    Args:
        chunk: Its text.
        span: Where it stands in its document.
        lines: Its first and its last line; 0 where unknown.
        theirs: What its document brought.
        has_day: Whether its document is of a day. Then "Plan for 2026-06-30" names another one.
        headers: Whether it names the headings above it.
        size: The tokens that it should have at most.
    """
    values: dict[str, Any] = {}
    path = metadata.short_header_path([heading.title for heading in span.path]) if headers else ""
    if path or metadata.HEADER_PATH not in theirs:
        values[metadata.HEADER_PATH] = path
    values[metadata.HEADING_LEVEL] = span.path[-1].level if span.path else 0
    if lines[0]:
        values[metadata.START_LINE], values[metadata.END_LINE] = lines
    values[metadata.CONTENT_TYPE] = span.kind
    values[metadata.TOKEN_COUNT] = span.tokens
    values[metadata.CHUNK_HASH] = blake2b(chunk.encode(), digest_size=16).hexdigest()
    if span.tokens > size:
        values[metadata.OVERFLOW] = True
    if span.continues:
        values[metadata.CONTINUES] = span.continues
    dated = (
        one
        for one in reversed(span.path)
        if one.day and not (has_day and dates.names_in_passing(one.title))
    )
    if (heading := next(dated, None)) and heading.day:
        values.update(_date_metadata(heading.day, theirs))
    return values


def hide_keys(
    node: BaseNode, document: BaseNode, ours: Mapping[str, str], filters: Collection[str]
) -> None:
    """Leave metadata out of the views of a node that say nothing there.

    Args:
        node: Changed in place.
        document: What its keys leave out is left out here, too.
        ours: The names that our keys have in the node.
        filters: Keys for filters alone.
    """
    hidden = [*filters, metadata.PATH]  # the path stands beside the name that the document brought
    hidden += [key for key in [metadata.HEADER_PATH] if not node.metadata.get(ours.get(key, ""))]
    for view, keys in (("embed", HIDDEN_FROM_EMBED), ("llm", BOOKKEEPING)):
        name = f"excluded_{view}_metadata_keys"
        left_out = [ours[key] for key in (*keys, *hidden) if key in ours]
        setattr(node, name, [*dict.fromkeys([*getattr(document, name), *left_out])])


def hide_encoded_bytes(node: TextNode, shown: str) -> None:
    """Let the views of a node show its text without encoded bytes; the text itself stays an exact slice.

    LlamaIndex fills in the template of a view only where there is metadata to show, so there is some.

    Args:
        node: Changed in place: its ``text_template``, and ``metadata["encoded_chars"]``.
        shown: Its text as :func:`~llama_index_contextual.common.readable` gives it.
    """
    node.metadata[metadata.ENCODED_CHARS] = len(node.text) - len(shown)
    template = node.text_template if "{content}" in node.text_template else DEFAULT_TEXT_NODE_TMPL
    node.text_template = template.replace("{content}", shown.replace("{", "{{").replace("}", "}}"))
    for mode in (MetadataMode.EMBED, MetadataMode.LLM):
        name = f"excluded_{mode.value}_metadata_keys"
        others = [key for key in getattr(node, name) if key != metadata.ENCODED_CHARS]
        setattr(node, name, [*others, metadata.ENCODED_CHARS])
        if not node.get_metadata_str(mode).strip():
            setattr(node, name, others)


def _date_metadata(day: date, theirs: dict[str, Any]) -> dict[str, Any]:
    """A day as text and as a number; as a number alone where the document's own ``date`` is that day."""
    is_known = dates.parse_day(theirs.get(metadata.DATE)) == day
    return {
        **({} if is_known else {metadata.DATE: day.isoformat()}),
        metadata.DATE_TS: dates.epoch_seconds(day),
    }
