"""Contexts of headings: where in its document a chunk stands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.context.base import ChunkContext, ContextGenerator, SourceDocument
from llama_index_contextual.utils import dates, metadata

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

_LONGEST_BREADCRUMB: Final = 300  # characters; the outer headings go first, the chunk's own last

_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_NUMBER: Final = re.compile(r"\d+")
_YEAR: Final = re.compile(r"(19|20)\d\d")
_HASH: Final = re.compile(r"[0-9a-f-]{8,}", re.IGNORECASE)
_COUNTER_DIGITS: Final = 3  # a shorter number, as in "GPT-4" and "chapter-3", says something


class HeadingContextGenerator(ContextGenerator):
    """Write ``Document: memory/2026-01-28.md > Morning Check-in``, then title and date.

    The breadcrumb carries identity and no phrase that every chunk would share, because shared
    phrases pull the vectors of small embedding models together. The title from front matter follows
    unless a heading or the path says it, then the date in words, and what an earlier piece of a
    split table or fence holds. Where nothing but a path is known and it is an id
    (``urteil-001.md``), only keyword search reads it: see :func:`is_id`.
    """

    name = "headings"
    description = "path and headings, then title and date where known"
    version = "4"  # raise it when the same chunk would get other words

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext]:
        """Return one context per node; empty where no heading, title, date or path is known."""
        return [_describe(node.metadata, document) for node in nodes]


def _describe(values: Mapping[str, Any], document: SourceDocument) -> ChunkContext:
    values = {**document.metadata, **values}
    headings = metadata.heading_titles(values)
    title = " ".join(metadata.text_value(values, metadata.TITLE).split())
    details = [
        _new_title(metadata.shortened(title), document.path, headings),
        dates.date_in_words(metadata.value_of(values, metadata.DATE)),
        metadata.text_value(values, metadata.CONTINUES).strip(),
    ]
    lines = [detail for detail in details if detail]
    says_more_than_path = bool(headings or lines)
    breadcrumb = _breadcrumb(document.path, headings)
    if breadcrumb:
        lines.insert(0, f"Document: {breadcrumb}")
    text = "\n".join(lines)
    if says_more_than_path or not is_id(document.path):
        return ChunkContext(text)
    return ChunkContext("", lexical=text)


def _breadcrumb(path: str, headings: Sequence[str]) -> str:
    """Return path and headings in a bounded number of characters."""
    separator = metadata.HEADER_SEPARATOR
    most = max(1, _LONGEST_BREADCRUMB - len(path) - len(separator))
    header_path = metadata.short_header_path(headings, most)
    breadcrumb = separator.join(filter(None, [path, header_path]))
    return metadata.shortened(breadcrumb, _LONGEST_BREADCRUMB)


def _new_title(title: str, path: str, headings: Sequence[str]) -> str:
    """Return a title if it adds words: in many documents it is the first heading."""
    if not title or title in headings:
        return ""
    known_names = [*headings, path, PurePosixPath(path).stem]
    is_known = title.casefold() in map(str.casefold, known_names)
    return "" if is_known else title


def is_id(path: str) -> bool:
    """Return whether a path says nothing about its file: ``urteil-001.md``, ``0042.txt``, a hash.

    Such a name is a number, a hash, or one word with a number of three digits or more that is no
    year, in no folder with a word. Embedded, it costs more than it gives
    (``benchmarks/results/languages.md``).
    """
    file = PurePosixPath(path)
    name = file.stem
    numbers = _NUMBER.findall(name)
    if not numbers or _WORD.search(str(file.parent)):
        return False
    if _HASH.fullmatch(name):
        return True
    most_words = 1 if any(map(_is_counter, numbers)) else 0
    return len(_WORD.findall(name)) <= most_words


def _is_counter(number: str) -> bool:
    return len(number) >= _COUNTER_DIGITS and not _YEAR.fullmatch(number)
