"""The metadata, ids and positions of the nodes of a document.

The "document" can itself be a part: a chunk that is split again, or a page of a file. Metadata that
a document brought is never changed. Each function returns our own metadata under the names in
:mod:`llama_index_contextual.utils.metadata`, and
:func:`~llama_index_contextual.utils.metadata.merge_metadata` adds it to that of the document.
"""

from __future__ import annotations

import re
import warnings
from array import array
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from llama_index.core.schema import (
    DEFAULT_TEXT_NODE_TMPL,
    BaseNode,
    MetadataMode,
    RelatedNodeInfo,
    TextNode,
)

from llama_index_contextual.node_parser.front_matter import FrontMatter, read_front_matter
from llama_index_contextual.node_parser.sections import Heading, Path, outline_of
from llama_index_contextual.utils import dates, metadata
from llama_index_contextual.utils.errors import ContextualWarning
from llama_index_contextual.utils.metadata import (
    CONTENT_TYPE,
    CONTINUES,
    DATE,
    DATE_TS,
    DESCRIPTION,
    ENCODED_CHARS,
    END_LINE,
    FRONT_MATTER,
    HEADER_PATH,
    HEADING_LEVEL,
    INLINE_TAGS,
    MOST_CHARS,
    NAMES_TAKEN,
    OVERFLOW,
    PATH,
    START_LINE,
    TAGS,
    TITLE,
    TOKEN_COUNT,
)
from llama_index_contextual.utils.text import lines_of, without_surrogates

if TYPE_CHECKING:
    from llama_index_contextual.node_parser.packing import Span

_LONGEST_PAGE_NUMBER = 10  # digits
# Counts and levels mean nothing to an embedding model or an LLM.
BOOKKEEPING = (
    HEADING_LEVEL,
    CONTENT_TYPE,
    TOKEN_COUNT,
    OVERFLOW,
    CONTINUES,
    DATE_TS,
    FRONT_MATTER,
)
# Tags and descriptions from front matter would make the chunks of a document too similar. The
# keyword index reads them once per document.
_HIDDEN_FROM_EMBEDDING = (
    *BOOKKEEPING,
    START_LINE,
    END_LINE,
    TAGS,
    DESCRIPTION,
)
# Metadata of a chunk that is wrong for the pieces that it is split into. Our parser writes more of
# it than other parsers.
_OF_A_CHUNK = (HEADER_PATH, START_LINE, END_LINE)
_OF_OUR_CHUNK = (*_OF_A_CHUNK, *BOOKKEEPING)
# Front matter keys that contain the date of a note, the most reliable first. Keys such as ``due``
# and ``updated`` contain other dates.
_DAY_KEYS = (
    re.compile("date|datum|fecha|дата|日付|日期|날짜"),
    re.compile(
        "(?:date[-_ ]?)?(?:creat(?:ed|ion)|erstellt|creado|créé)(?:[-_ ]?(?:at|on|date|time|am))*"
    ),
    re.compile("(?:date[-_ ]?)?pub(?:lish|lished)?(?:[-_ ]?(?:at|on|date|time|am))*"),
)
_LOOSE_DAY_KEY = re.compile("data|dato|day")  # these words have other meanings, too
_WHOLE_DAY = re.compile(r"\W{0,9}\d[\w .,/:-]{4,30}\d\W{0,9}")
_FILTER_NAME = re.compile(r"\w[\w .-]{0,99}")
_MOST_FILTERS = 50
_MOST_TAG_CHARS = 2000  # of inline tags
_IN_ALL_CONTEXTS = (TITLE, DATE)  # in every context, so not needed on the first chunk
_MOST_FRONT_MATTER_CHARS = 1000  # for the keyword index


class Place(NamedTuple):
    """The position at which a node begins in its document."""

    offset: int  # in characters
    line: int  # from 1; 0 if it is unknown


def headings_of(text: str) -> list[tuple[str, int, int]]:
    """Return the title, the level (1 to 6) and the line (from 1) of each heading in a text."""
    front = read_front_matter(text, None)
    ends = line_ends(text)
    outline = outline_of(text, front.end, front.unread)
    return [
        (heading.title, heading.level, bisect_right(ends, heading.start) + 1)
        for heading in outline.headings
    ]


def line_ends(text: str) -> array[int]:
    """Return the offset after each line of a text."""
    return array("q", accumulate(map(len, lines_of(text))))


def source_of(node: BaseNode) -> RelatedNodeInfo | None:
    """Return the document that a node was split from, or None for a document."""
    source = node.source_node
    return None if source is None or source.node_id == node.node_id else source


def identity_of(document: BaseNode) -> str:
    """Return the identity that the ids of a document's chunks are derived from.

    It is the document's id. For a node that was split from a document, it is that document's id
    with the node's offsets, or the node's own id if its offsets are unknown.
    """
    source = source_of(document)
    start = getattr(document, "start_char_idx", None)
    end = getattr(document, "end_char_idx", None)
    if source is None or start is None:
        return str(document.node_id)
    return f"{source.node_id}\0{start}-{end}"


def node_id_of(identity: str, chunk: str, ordinal: int) -> str:
    """Return the id of a chunk: a hash in the form of a UUID, which Qdrant requires.

    Args:
        identity: The identity of its document.
        chunk: Its text.
        ordinal: The number of earlier chunks of the document with the same text.
    """
    content = f"{identity}\0{ordinal}\0{chunk}".encode("utf-8", "surrogatepass")
    digest = blake2b(content, digest_size=16).digest()
    return str(UUID(bytes=digest))


def place_of(node: BaseNode) -> Place:
    """Return the position at which a node begins in its document.

    LlamaIndex's parsers store the character offset of a chunk but not its line. Without a
    ``start_line``, the line is known only for a chunk at the beginning of the document.
    """
    start = getattr(node, "start_char_idx", None)
    end = getattr(node, "end_char_idx", None)
    if source_of(node) is None or start is None or end is None:
        return Place(0, 1)
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    if len(text) != end - start:  # the text was changed since
        return Place(0, 1)
    line = metadata.value_of(node.metadata, START_LINE)
    return Place(start, _positive_or(line, 0 if start else 1))


def path_above(node: BaseNode) -> Path:
    """Return the headings above a node that is split again. Only the innermost has a level."""
    titles = metadata.heading_titles(node.metadata) if source_of(node) else []
    headings = [Heading(0, title, dates.date_from_heading(title)) for title in titles]
    if headings:
        level = _positive_or(metadata.value_of(node.metadata, HEADING_LEVEL), 0)
        headings[-1] = headings[-1]._replace(level=level)
    return tuple(headings)


def _positive_or(value: object, default: int) -> int:
    """Return a value if it is a positive int, else the default."""
    return value if isinstance(value, int) and value > 0 else default


def reading_order(documents: Sequence[BaseNode]) -> list[tuple[int, int | None]]:
    """Return the order in which to parse documents, so that the pages of a file are in sequence.

    Pages of one file have the same path or file name, and a page label. They are sorted by number,
    or keep the order of the list if any label is not a number. Gaps in the numbering are allowed.
    If a label occurs twice, the pages belong to different files with the same path, and no page is
    treated as following another.

    Returns:
        The index of each document, with the index of the page before it or None.
    """
    files: dict[object, list[tuple[str, int]]] = {}  # labels and positions
    for position, document in enumerate(documents):
        path = metadata.file_of(document.metadata)
        label = metadata.page_of(document.metadata)
        is_page = path and label is not None and source_of(document) is None
        files.setdefault(path if is_page else position, []).append((str(label), position))
    order: list[tuple[int, int | None]] = []
    for pages in files.values():
        if all(label.isdecimal() and len(label) < _LONGEST_PAGE_NUMBER for label, _ in pages):
            pages.sort(key=lambda page: int(page[0]))
        is_one_file = len(dict(pages)) == len(pages)
        before: int | None = None
        for _, position in pages:
            order.append((position, before))
            before = position if is_one_file else None
    return order


def with_clean_metadata(document: BaseNode) -> BaseNode:
    """Return a document whose metadata is within bounds and free of lone surrogates.

    Each change causes a warning. The bounds matter because LlamaIndex converts all metadata to text
    when it hashes a document.
    """
    values, notes = metadata.bounded(document.metadata)
    if notes:
        name = metadata.file_of(values) or document.node_id
        message = f"The metadata of {name}: {'; '.join(notes)}"
        warnings.warn(message, ContextualWarning, stacklevel=2)
    for key, value in values.items():
        if isinstance(value, str):
            values[key] = without_surrogates(value, f"metadata[{key!r}]")
    if values == document.metadata:
        return document
    return document.model_copy(update={"metadata": values})


def metadata_for_chunks(document: BaseNode) -> dict[str, Any]:
    """Return the metadata that the chunks of a document inherit from it.

    For a node that is split again, metadata that describes only the node itself is left out.
    """
    values = dict(document.metadata)
    if source_of(document) is not None:
        is_ours = metadata.is_of_our_parser(values)
        for key in _OF_OUR_CHUNK if is_ours else _OF_A_CHUNK:
            values.pop(metadata.key_in(values, key), None)
    return values


def document_metadata(
    document: BaseNode, front: FrontMatter, brought: Mapping[str, Any]
) -> dict[str, Any]:
    """Return our metadata that all chunks of a document share.

    Args:
        document: The document.
        front: Its front matter.
        brought: The metadata from :func:`metadata_for_chunks`.
    """
    values: dict[str, Any] = {}
    path = metadata.file_of(brought)
    if path and PATH not in brought:
        values[PATH] = path
    for key in (TITLE, DESCRIPTION):
        value = front.text(key)
        if value and not brought.get(key):
            values[key] = metadata.shortened(value)
    tags = front.tags()
    if tags and not brought.get(TAGS):
        values[TAGS] = metadata.short_tags(tags)
    period = _period_of(document, front)
    if period:
        values.update(_date_metadata(period, brought))
    return values


def _period_of(document: BaseNode, front: FrontMatter) -> dates.Period | None:
    """Return the date or period of a document, from its metadata, its front matter or its path."""
    candidates = [metadata.value_of(document.metadata, DATE)]
    moments = front.values.get("date")
    if isinstance(moments, dict):  # MkDocs: {created: 2025-10-05, updated: 2025-11-01}
        front = FrontMatter(values={**moments, **front.values})
    keys = sorted(front.values)
    for pattern in _DAY_KEYS:
        candidates += [front.text(key) for key in keys if pattern.fullmatch(key)]
    loose_days = [front.text(key) for key in keys if _LOOSE_DAY_KEY.fullmatch(key)]
    candidates += filter(_WHOLE_DAY.fullmatch, loose_days)
    for value in candidates:
        period = dates.parse_period(value)
        if period:
            return period
    return dates.period_from_path(metadata.path_of(document.metadata))


def filter_metadata(
    front: FrontMatter, tags: Sequence[str], brought: Mapping[str, Any], *, typed: bool
) -> dict[str, Any]:
    """Return the metadata that only filters use, from front matter and inline tags.

    Every chunk has it, but no view shows it. Lists become comma-separated text. Nested values,
    values of more than 300 characters, keys after the first 50, and keys that the document brought
    or that have a reserved meaning are left out. The keyword index still contains their words.

    Args:
        front: The front matter of the document.
        tags: The tags in its text.
        brought: The metadata that the document brought.
        typed: Whether numbers and booleans keep their types. Otherwise all values are text.
    """
    values: dict[str, Any] = {}
    for key, value in front.values.items():
        text = front.text(key)
        is_usable = text and len(text) <= MOST_CHARS and _FILTER_NAME.fullmatch(key)
        is_free = key not in NAMES_TAKEN and key not in brought
        if is_usable and is_free and len(values) < _MOST_FILTERS:
            if isinstance(value, bool):
                text = text.lower()
            values[key] = metadata.typed(text) if typed else text
    if tags:
        values[INLINE_TAGS] = metadata.short_tags(", ".join(tags), _MOST_TAG_CHARS)
    return values


def first_chunk_metadata(document: BaseNode, front: FrontMatter, span: Span) -> dict[str, str]:
    """Return the front matter for the keyword index, which is stored on the first chunk only.

    On every chunk, its words would be counted many times. If the document is itself a chunk that is
    split again, its first piece inherits them.
    """
    if span.start < front.end:
        return {}
    words = front.other_values(_IN_ALL_CONTEXTS)
    if not words and source_of(document):
        words = metadata.text_value(document.metadata, FRONT_MATTER)
    return {FRONT_MATTER: words[:_MOST_FRONT_MATTER_CHARS]} if words else {}


def span_metadata(
    span: Span, brought: Mapping[str, Any], *, document_has_date: bool, chunk_size: int
) -> dict[str, Any]:
    """Return the metadata of one chunk.

    Args:
        span: The position of the chunk in its document.
        brought: The metadata that its document brought.
        document_has_date: Whether its document has a date. If so, a heading such as "Plan for
            2026-06-30" does not change it.
        chunk_size: The intended maximum of tokens. A larger chunk is marked as overflow.
    """
    values: dict[str, Any] = {
        HEADING_LEVEL: span.path[-1].level if span.path else 0,
        CONTENT_TYPE: span.kind,
        TOKEN_COUNT: span.tokens,
    }
    if span.tokens > chunk_size:
        values[OVERFLOW] = True
    if span.continues:
        values[CONTINUES] = span.continues
    for heading in reversed(span.path):
        is_passing_mention = document_has_date and dates.mentions_date_in_passing(heading.title)
        if heading.day and not is_passing_mention:
            values.update(_date_metadata(dates.Period(heading.day, heading.day), brought))
            break
    return values


def excluded_keys(
    document: BaseNode,
    values: Mapping[str, Any],
    our_names: Mapping[str, str],
    filters: Collection[str],
) -> dict[str, list[str]]:
    """Return the fields of a node that exclude metadata from the views that do not need it.

    Args:
        document: The node's document. The node also excludes everything that the document excludes.
        values: The metadata of the node.
        our_names: The names that our keys have in the metadata.
        filters: The keys that only filters use.
    """
    # The path is added to the name that the document brought.
    hidden = [*filters, PATH]
    if not values.get(our_names.get(HEADER_PATH, "")):
        hidden.append(HEADER_PATH)
    fields: dict[str, list[str]] = {}
    for view, keys in (("embed", _HIDDEN_FROM_EMBEDDING), ("llm", BOOKKEEPING)):
        field = f"excluded_{view}_metadata_keys"
        names = [our_names[key] for key in (*keys, *hidden) if key in our_names]
        brought = getattr(document, field)
        fields[field] = list(dict.fromkeys([*brought, *names]))
    return fields


def hide_encoded_bytes(node: TextNode, shown: str) -> None:
    """Hide encoded bytes in the views of a node. Its text stays an exact slice of the document.

    LlamaIndex applies the text template only if a view has metadata to show, so ``encoded_chars``
    is shown in a view that would have none.

    Args:
        node: The node. Its ``text_template`` and ``metadata["encoded_chars"]`` are changed.
        shown: The text without encoded bytes, from
            :func:`~llama_index_contextual.utils.text.readable`.
    """
    node.metadata[ENCODED_CHARS] = len(node.text) - len(shown)
    template = node.text_template
    if "{content}" not in template:
        template = DEFAULT_TEXT_NODE_TMPL
    escaped = shown.replace("{", "{{").replace("}", "}}")
    node.text_template = template.replace("{content}", escaped)
    for mode in (MetadataMode.EMBED, MetadataMode.LLM):
        field = f"excluded_{mode.value}_metadata_keys"
        other_keys = [key for key in getattr(node, field) if key != ENCODED_CHARS]
        setattr(node, field, [*other_keys, ENCODED_CHARS])
        if not node.get_metadata_str(mode).strip():
            setattr(node, field, other_keys)


def _date_metadata(period: dates.Period, brought: Mapping[str, Any]) -> dict[str, Any]:
    """Return a date as text and number, or only as number if the document has the text already."""
    values: dict[str, Any] = {DATE_TS: dates.epoch_seconds(period.first)}
    if dates.parse_day(brought.get(DATE)) != period.first:
        values[DATE] = period.isoformat()
    return values
