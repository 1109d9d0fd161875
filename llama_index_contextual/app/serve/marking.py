"""The words of a text that match a question: in parts for a terminal, and as HTML."""

from __future__ import annotations

import re
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_WORD: Final = re.compile(r"\w+|\W+")
_WIDE: Final = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")


def pieces(text: str, terms: Collection[str], split: Callable[[str], Collection[str]]) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a text, each with whether it matches; languages without spaces have terms within words.

    Args:
        text: Any.
        terms: As the keyword arm writes them.
        split: Gives the terms of a text.
    """
    if not terms:
        yield False, text
        return
    marked = [part for word in _WORD.findall(text) for part in _pieces(word, frozenset(terms), split)]
    for matched, run in groupby(marked, lambda part: part[0]):
        yield matched, "".join(part for _, part in run)


def _pieces(word: str, terms: frozenset[str], split: Callable[[str], Collection[str]]) -> list[tuple[bool, str]]:
    found = terms.intersection(split(word)) if word[0].isalnum() or word[0] == "_" else frozenset()
    if not found or not _WIDE.search(word):
        return [(bool(found), word)]
    matched = [False] * len(word)
    for term in found:
        for at in (match.start() for match in re.finditer(re.escape(term), word)):
            matched[at : at + len(term)] = [True] * len(term)
    return list(zip(matched, word, strict=True))


class Marker:
    """Writes texts as HTML with their matched words marked.

    Args:
        terms: As the keyword arm writes them.
        split: Gives the terms of a text; None marks nothing.

    Attributes:
        words: For each term the first word of the texts that is one.
    """

    def __init__(self, terms: Collection[str] = (), split: Callable[[str], Collection[str]] | None = None) -> None:
        self._terms, self._split = frozenset(terms), split
        self.words: dict[str, str] = {}

    def html(self, text: str) -> Markup:
        """A text as HTML."""
        if self._split is None or not self._terms:
            return Markup(escape(text))  # noqa: S704  escaped
        parts: list[str] = []
        for matched, part in pieces(text, self._terms, self._split):
            if matched:
                for term in self._terms.intersection(self._split(part)):
                    self.words.setdefault(term, part)
            parts.append(f"<mark>{escape(part)}</mark>" if matched else escape(part))
        return Markup("".join(parts))  # noqa: S704  escaped
