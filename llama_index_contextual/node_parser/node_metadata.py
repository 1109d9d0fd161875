"""The metadata, ids and places of the nodes of a document.

A document may itself be a part: a chunk that is cut again, or a page of a file. What a document
brought stays as it was. Each function returns our metadata by the names of
:mod:`llama_index_contextual.utils.metadata`, and
:func:`~llama_index_contextual.utils.metadata.merge_metadata` adds them to the document's.
"""

from __future__ import annotations

import re
import warnings
from array import array
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple
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

_LONGEST_PAGE_NUMBER: Final = 10  # digits
# Counts and levels say nothing to an embedding or an LLM.
BOOKKEEPING: Final = (
    HEADING_LEVEL,
    CONTENT_TYPE,
    TOKEN_COUNT,
    OVERFLOW,
    CONTINUES,
    DATE_TS,
    FRONT_MATTER,
)
# Tags and description of front matter would make the chunks of a document more alike; the keyword
# index reads them once.
_HIDDEN_FROM_EMBEDDING: Final = (
    *BOOKKEEPING,
    START_LINE,
    END_LINE,
    TAGS,
    DESCRIPTION,
)
# Metadata of a chunk that are not true of the chunks that it is cut into. Our parser writes more of
# them than others do.
_OF_A_CHUNK: Final = (HEADER_PATH, START_LINE, END_LINE)
_OF_OUR_CHUNK: Final = (*_OF_A_CHUNK, *BOOKKEEPING)
# Keys of front matter that name the day that a note is of, the surest first. Keys such as ``due``
# and ``updated`` name other days.
_DAY_KEYS: Final = (
    re.compile("date|datum|fecha|дата|日付|日期|날짜"),
    re.compile(
        "(?:date[-_ ]?)?(?:creat(?:ed|ion)|erstellt|creado|créé)(?:[-_ ]?(?:at|on|date|time|am))*"
    ),
    re.compile("(?:date[-_ ]?)?pub(?:lish|lished)?(?:[-_ ]?(?:at|on|date|time|am))*"),
)
_LOOSE_DAY_KEY: Final = re.compile("data|dato|day")  # they mean other things, too
_WHOLE_DAY: Final = re.compile(r"\W{0,9}\d[\w .,/:-]{4,30}\d\W{0,9}")
_FILTER_NAME: Final = re.compile(r"\w[\w .-]{0,99}")
_MOST_FILTERS: Final = 50
_MOST_TAG_CHARS: Final = 2000  # of inline tags
_IN_ALL_CONTEXTS: Final = (TITLE, DATE)  # these need no words on the first chunk
_MOST_FRONT_MATTER_CHARS: Final = 1000  # for the keyword index


class Place(NamedTuple):
    """Where a node begins in its document."""

    offset: int  # in characters
    line: int  # from 1; 0 where it is not known


def headings_of(text: str) -> list[tuple[str, int, int]]:
    """Return the title, the level (1 to 6) and the line (from 1) of each heading of a text."""
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
    """Return the document that a node was cut from; None for a document."""
    source = node.source_node
    return None if source is None or source.node_id == node.node_id else source


def identity_of(document: BaseNode) -> str:
    """Return the identity from which the ids of a document's chunks are made.

    It is the id of the document. For a node that was cut from a document it is that document's id
    with the node's place, or the node's own id if its place is not known.
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
        ordinal: How many chunks of the document with the same text stand before it.
    """
    content = f"{identity}\0{ordinal}\0{chunk}".encode("utf-8", "surrogatepass")
    digest = blake2b(content, digest_size=16).digest()
    return str(UUID(bytes=digest))


def place_of(node: BaseNode) -> Place:
    """Return the place in its document at which a node begins.

    LlamaIndex's parsers store at which character a chunk starts, but not on which line. Without a
    ``start_line`` the line is known at the beginning of the document only.
    """
    start = getattr(node, "start_char_idx", None)
    end = getattr(node, "end_char_idx", None)
    if source_of(node) is None or start is None or end is None:
        return Place(0, 1)
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    if len(text) != end - start:  # changed since
        return Place(0, 1)
    line = metadata.value_of(node.metadata, START_LINE)
    return Place(start, _positive_or(line, 0 if start else 1))


def path_above(node: BaseNode) -> Path:
    """Return the headings above a node that is cut again; only the innermost has a known level."""
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
    """Return the order in which documents are read, which matters for the pages of one file.

    Pages of one file have the same path or file name, and a page label. They are read by number, or
    in the order of the list if a label is no number. Numbers may be left out. Where a label comes
    twice, there are two files of one path, and no page follows another.

    Returns:
        The position of each document, with the position of the page before it, if there is one.
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

    Warnings name what was changed. LlamaIndex makes a text of all metadata to hash a document.
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
    """Return the metadata that a document brought, as its chunks have them.

    A node that is cut again loses what its parser wrote about it alone.
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
        brought: What :func:`metadata_for_chunks` returned.
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
    """Return the days that a document is of: by its metadata, its front matter or its path."""
    candidates = [metadata.value_of(document.metadata, DATE)]
    moments = front.values.get("date")
    if isinstance(moments, dict):  # {created: 2025-10-05, updated: 2025-11-01}, as MkDocs has it
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
    """Return metadata for filters, on every chunk and in no view: front matter and inline tags.

    Lists are text with commas. Left out are nested values, more than 300 characters, more than 50
    keys, and names that the document brought or that mean something else here. The keyword index
    reads their words all the same.

    Args:
        front: The front matter of the document.
        tags: The tags in its text.
        brought: The metadata that the document brought.
        typed: Whether numbers and truth values are such. Otherwise all values are text.
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
    """Return the words of front matter for the first chunk: on every chunk they would count often.

    A first chunk that is cut again has them from the parser that cut it.
    """
    if span.start < front.end:
        return {}
    words = front.other_values(_IN_ALL_CONTEXTS)
    if not words and source_of(document):
        words = metadata.text_value(document.metadata, FRONT_MATTER)
    return {FRONT_MATTER: words[:_MOST_FRONT_MATTER_CHARS]} if words else {}


def span_metadata(
    span: Span, brought: Mapping[str, Any], *, is_of_day: bool, chunk_size: int
) -> dict[str, Any]:
    """Return the metadata of one chunk.

    Args:
        span: Where it stands in its document.
        brought: The metadata that its document brought.
        is_of_day: Whether its document has a day. Then "Plan for 2026-06-30" names another one.
        chunk_size: The tokens that it should have at most.
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
        if heading.day and not (is_of_day and dates.names_in_passing(heading.title)):
            values.update(_date_metadata(dates.Period(heading.day, heading.day), brought))
            break
    return values


def excluded_keys(
    document: BaseNode,
    values: Mapping[str, Any],
    our_names: Mapping[str, str],
    filters: Collection[str],
) -> dict[str, list[str]]:
    """Return the fields of a node that exclude metadata from views in which they say nothing.

    Args:
        document: Its document; what this excludes, the node excludes, too.
        values: The metadata of the node.
        our_names: The names that our keys have in them.
        filters: Keys for filters alone.
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
    """Let the views of a node show its text without encoded bytes; the text stays an exact slice.

    LlamaIndex fills in the template of a view only where there is metadata to show, so some is
    shown.

    Args:
        node: The node. Its ``text_template`` and ``metadata["encoded_chars"]`` are changed.
        shown: Its text as :func:`~llama_index_contextual.utils.text.readable` returns it.
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
    """Return a day as text and number; as a number alone if the document's ``date`` is that day."""
    values: dict[str, Any] = {DATE_TS: dates.epoch_seconds(period.first)}
    if dates.parse_day(brought.get(DATE)) != period.first:
        values[DATE] = period.isoformat()
    return values
