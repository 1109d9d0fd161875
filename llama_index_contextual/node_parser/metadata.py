"""What the nodes of a document say: what the document brought, as it was, and what the parser found.

Each function returns what is ours by the names of :mod:`llama_index_contextual.metadata`.
:func:`~llama_index_contextual.metadata.with_ours` puts both together.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual import metadata
from llama_index_contextual.node_parser.identity import source_of
from llama_index_contextual.text import dates, without_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.markdown import FrontMatter, Span

# Counts and hashes say nothing to an embedding or an LLM.
BOOKKEEPING: Final = (
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
# Front matter under these names is no filter: they are ours or LlamaIndex's, and mean something else there.
_NAMES_TAKEN: Final = frozenset(
    {
        *BOOKKEEPING,
        *(metadata.PATH, metadata.TITLE, metadata.TAGS, metadata.INLINE_TAGS, metadata.DESCRIPTION, metadata.DATE),
        *(metadata.COLLECTION, metadata.HEADER_PATH, metadata.START_LINE, metadata.END_LINE, metadata.PAGE_LABEL),
        *(metadata.CONTEXT, metadata.CONTEXT_SOURCE, metadata.CONTEXT_VERSION, metadata.LEXICAL_CONTEXT),
        *("file_path", "file_name", "doc_id", "document_id", "ref_doc_id"),
    }
)
_FILTER_NAME: Final = re.compile(r"\w[\w .-]{0,99}")
_MOST_FILTERS: Final = 50
_MOST_TAGS: Final = 2000  # characters of inline tags
_MOST_TITLES: Final = 4  # that a chunk of many sections names
_SHOWN_OF_FRONT_MATTER: Final = (metadata.TITLE, metadata.DATE)  # by contexts, on every chunk
_MAX_FRONT_MATTER: Final = 1000  # characters for the keyword arm
# What an earlier parser said of a chunk is not true of the chunks that it is cut into. Ours says more than others.
_OF_OTHERS: Final = (metadata.HEADER_PATH, metadata.START_LINE, metadata.END_LINE)
_OF_ONE_CHUNK: Final = (*_OF_OTHERS, *BOOKKEEPING, metadata.DATE)
HIDDEN_FROM_EMBED: Final = (*BOOKKEEPING, metadata.START_LINE, metadata.END_LINE)


def document_metadata(document: BaseNode, front: FrontMatter) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a document brought, as it is, and what we say of all its chunks."""
    theirs = {
        key: without_surrogates(value, f"metadata[{key!r}]") if isinstance(value, str) else value
        for key, value in document.metadata.items()
    }
    if (source := source_of(document)) is not None:
        _forget(theirs, source.metadata)
    ours: dict[str, Any] = {}
    for key in (metadata.TITLE, metadata.TAGS, metadata.DESCRIPTION):
        if not theirs.get(key) and (value := front.text(key)):
            ours[key] = (metadata.short_tags if key == metadata.TAGS else metadata.shortened)(value)
    day = (
        dates.parse_day(metadata.value_of(document.metadata, metadata.DATE))
        or dates.parse_day(front.values.get(metadata.DATE))
        or dates.date_from_path(metadata.path_of(document.metadata))
    )
    return theirs, {**ours, **(_date_metadata(day, theirs) if day else {})}


def filter_metadata(front: FrontMatter, tags: Sequence[str], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what questions can be narrowed by, on every chunk and in no view: front matter, and inline tags.

    Front matter has text, numbers and truth values as :func:`~llama_index_contextual.metadata.typed` reads them, and
    lists as text with commas. Left out are nested values, more than 300 characters, more than 50 keys, and names that
    the document brought or that mean something else here. The keyword arm reads their words all the same.

    Args:
        front: Of the document.
        tags: In its text.
        theirs: What it brought.
    """
    values: dict[str, Any] = {}
    for key, value in front.values.items():
        text = front.text(key)
        usable = text and len(text) <= metadata.MOST_CHARS and _FILTER_NAME.fullmatch(key)
        if usable and key not in _NAMES_TAKEN and key not in theirs and len(values) < _MOST_FILTERS:
            values[key] = value if isinstance(value, bool | int | float) else metadata.typed(text)
    if tags:
        values[metadata.INLINE_TAGS] = metadata.short_tags(", ".join(tags), _MOST_TAGS)
    return values


def first_metadata(document: BaseNode, front: FrontMatter, span: Span) -> dict[str, str]:
    """Return what the first chunk alone says: the same words on every chunk would count many times."""
    if span.start < front.end:
        return {}
    words = (front.rest(_SHOWN_OF_FRONT_MATTER) or _inherited(document))[:_MAX_FRONT_MATTER]
    return {metadata.FRONT_MATTER: words} if words else {}


def _inherited(document: BaseNode) -> str:
    """Return what a first chunk that is cut again said, where that is ours."""
    source, key = source_of(document), metadata.FRONT_MATTER
    own = key if source is not None and key not in source.metadata else metadata.own_name(key)
    return str(document.metadata.get(own) or "")


def span_metadata(chunk: str, span: Span, theirs: dict[str, Any], *, headers: bool, unread: bool) -> dict[str, Any]:
    """Return what we say of one chunk.

    Args:
        chunk: Its text.
        span: Where it stands.
        theirs: What its document brought.
        headers: Whether it names the headings above it.
        unread: Whether the local model knows hardly any of its words.
    """
    values: dict[str, Any] = {}
    if headers and (path := metadata.short_header_path(span.headings or _joined(span.merged))):
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
    if unread:
        values[metadata.UNREAD] = True
    if span.continues:
        values[metadata.CONTINUES] = span.continues
    for title in reversed(span.headings):
        if day := dates.date_from_heading(title):
            values.update(_date_metadata(day, theirs))
            break
    return values


def brought(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a document brought under names of ours: links to it say so, for when its chunks are cut again."""
    return {key: theirs[key] for key in _OF_ONE_CHUNK if key in theirs}


def _forget(theirs: dict[str, Any], of_document: Mapping[str, Any]) -> None:
    """Take out what an earlier parser said of the chunk that is cut now; what the document had brought stays."""
    by_us = any(key in theirs for key in (metadata.CHUNK_HASH, metadata.own_name(metadata.CHUNK_HASH)))
    for key in _OF_ONE_CHUNK if by_us else _OF_OTHERS:
        theirs.pop(metadata.own_name(key), None)
        if key not in of_document:
            theirs.pop(key, None)


def _joined(titles: Sequence[str]) -> list[str]:
    """Return one title for small sections side by side, which have no heading in common."""
    shown = titles if len(titles) <= _MOST_TITLES else [*titles[: _MOST_TITLES - 1], "…", titles[-1]]
    return [metadata.TITLE_SEPARATOR.join(title for title in shown if title)]


def _date_metadata(day: date, theirs: dict[str, Any]) -> dict[str, Any]:
    """Return a day as text and as a number; as a number alone where the document's own ``date`` says the day."""
    said = dates.parse_day(theirs.get(metadata.DATE)) == day
    return {**({} if said else {metadata.DATE: day.isoformat()}), metadata.DATE_TS: dates.epoch_seconds(day)}


def excluded(given: Sequence[str], ours: Iterable[str], names: dict[str, str]) -> list[str]:
    """Return the keys that a view leaves out: those given, and some of ours under the names that they have."""
    return [*given, *(names[key] for key in ours if key in names and names[key] not in given)]
