"""Contexts from headings, which say where in its document a chunk is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from llama_index_contextual.context.base import ChunkContext, ContextGenerator, SourceDocument
from llama_index_contextual.utils import dates, metadata

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

_LONGEST_BREADCRUMB = 300  # characters; outer headings are dropped before inner ones

_WORD = re.compile(r"[^\W\d_]{2,}")
_NUMBER = re.compile(r"\d")
# Not a year, and not so short that it has a meaning, as in "GPT-4" and "chapter-3".
_COUNTER = re.compile(r"(?<!\d)(?!(?:19|20)\d\d(?!\d))\d{3}")
_HASH = re.compile(r"[0-9a-f-]{8,}", re.IGNORECASE)


class HeadingContextGenerator(ContextGenerator):
    """Write ``Document: memory/2026-01-28.md > Morning Check-in``, then the title and the date.

    The breadcrumb identifies the chunk and has no phrase that all chunks share, because shared
    phrases pull the vectors of small embedding models together. Up to three lines follow: the title
    from front matter, unless a heading or the path repeats it; the date in words; and the header
    row or language of a table or fence that the chunk continues. If only a path is known and it is
    an id (``urteil-001.md``), it is left to keyword search. See :func:`is_id`.
    """

    name = "headings"
    description = "path and headings, then title and date if known"
    version = "4"  # increase it when the same chunk would get a different text

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext]:
        """Return one context per node, empty if no heading, title, date or path is known."""
        return [_describe(node.metadata, document) for node in nodes]


def _describe(values: Mapping[str, Any], document: SourceDocument) -> ChunkContext:
    values = {**document.metadata, **values}
    path = document.path
    headings = metadata.heading_titles(values)
    breadcrumb = _breadcrumb(path, headings)
    title = metadata.shortened(" ".join(metadata.text_value(values, metadata.TITLE).split()))
    day = metadata.value_of(values, metadata.DATE)
    lines = [
        f"Document: {breadcrumb}" if breadcrumb else "",
        title if _is_new(title, path, headings) else "",
        dates.date_in_words(day),
        metadata.text_value(values, metadata.CONTINUES).strip(),
    ]
    text = "\n".join(filter(None, lines))
    says_path_alone = not headings and not any(lines[1:])
    if says_path_alone and is_id(path):
        return ChunkContext("", lexical=text)
    return ChunkContext(text)


def _breadcrumb(path: str, headings: Sequence[str]) -> str:
    """Return the path and the headings in a bounded number of characters."""
    separator = metadata.HEADER_SEPARATOR
    most = max(1, _LONGEST_BREADCRUMB - len(path) - len(separator))
    header_path = metadata.short_header_path(headings, most)
    parts = [part for part in (path, header_path) if part]
    return metadata.shortened(separator.join(parts), _LONGEST_BREADCRUMB)


def _is_new(title: str, path: str, headings: Sequence[str]) -> bool:
    """Return whether a title is new. In many documents it equals the first heading."""
    known_names = [*headings, path, PurePosixPath(path).stem]
    return title.casefold() not in map(str.casefold, known_names)


def is_id(path: str) -> bool:
    """Return whether a path says nothing about its file: ``urteil-001.md``, ``0042.txt``, a hash.

    The file name is then a number, a hash, or a single word with a number of three or more digits
    that is not a year, and the names of its folders contain no words. Embedding such a path lowers
    recall (``benchmarks/results/languages.md``).
    """
    file = PurePosixPath(path)
    name = file.stem
    if _WORD.search(str(file.parent)) or not _NUMBER.search(name):
        return False
    if _HASH.fullmatch(name):
        return True
    words = _WORD.findall(name)
    if _COUNTER.search(name):
        return len(words) <= 1
    return not words
