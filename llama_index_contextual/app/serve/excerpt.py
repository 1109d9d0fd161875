"""The lines of a text around the words that match a question, and those words."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from itertools import groupby
from typing import Final, TypeAlias

Split: TypeAlias = Callable[[str], Collection[str]]

_LINES: Final = 3
_WIDTH: Final = 240  # characters of a line of an excerpt
_WORD: Final = re.compile(r"\w+|\W+")
_WIDE: Final = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_HEADING: Final = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_BULLET: Final = re.compile(r"^(?:[-*+>] |\[[ xX]\] |\[![\w-]{1,40}\][+-]? ?){1,4}")
_LINK: Final = re.compile(r"!?\[([^\[\]]{1,200})\]\([^()\s]{0,500}\)")
_WIKI_LINK: Final = re.compile(r"!?\[\[([^\[\]|]{1,200})(?:\|([^\[\]|]{1,200}))?\]\]")
_EMPHASIS: Final = re.compile(r"(?:\*\*|__)(?=\S)([^*_]{1,200})(?<=\S)(?:\*\*|__)")
_RULES: Final = frozenset("-*_=|: ")


def excerpt(text: str, terms: Collection[str], split: Split, count: int = _LINES) -> list[str]:
    """Some lines of a text around the words that match; headings, rules, fences and blank lines are left out.

    Args:
        text: Of a chunk.
        terms: Those of the question that it holds, as ``split`` writes them.
        split: Gives the terms of a text.
        count: Most lines.
    """
    lines = [_plain(line.strip()) for line in text.splitlines() if not line.lstrip().startswith(("```", "~~~"))]
    kept = [line for line in lines if not (_HEADING.match(line) or _RULES.issuperset(line))] or list(
        filter(None, lines)
    )
    found = [frozenset(terms).intersection(split(line)) if terms else frozenset[str]() for line in kept]
    starts = range(max(1, len(kept) - count + 1))
    best = max(starts, key=lambda at: (len(frozenset().union(*found[at : at + count])), -at), default=0)
    return [_cut(line, words, split) for line, words in zip(kept, found, strict=True)][best : best + count]


def _plain(line: str) -> str:
    """A line of Markdown without the marks of lists, links, code and emphasis."""
    line = _BULLET.sub("", line).replace("`", "")
    return _EMPHASIS.sub(r"\1", _WIKI_LINK.sub(lambda link: link[2] or link[1], _LINK.sub(r"\1", line)))


def _cut(line: str, terms: frozenset[str], split: Split) -> str:
    """A long line from shortly before its first word that matches."""
    if len(line) <= _WIDTH:
        return line
    first = next((word.start() for word in _WORD.finditer(line) if terms.intersection(split(word[0]))), 0)
    start = 0 if first < _WIDTH // 2 else line.rfind(" ", 0, first - _WIDTH // 4) + 1
    end = start + _WIDTH
    return f"{'…' if start else ''}{line[start:end].rstrip()}{'…' if end < len(line) else ''}"


def pieces(text: str, terms: Collection[str], split: Split) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a text, each with whether it matches; languages without spaces have terms within words."""
    words = _WORD.findall(text) if terms else [text]
    marked = [part for word in words for part in _pieces(word, frozenset(terms), split)]
    for matched, run in groupby(marked, lambda part: part[0]):
        yield matched, "".join(part for _, part in run)


def _pieces(word: str, terms: frozenset[str], split: Split) -> list[tuple[bool, str]]:
    found = terms.intersection(split(word)) if terms and (word[0].isalnum() or word[0] == "_") else frozenset()
    if not found or not _WIDE.search(word):
        return [(bool(found), word)]
    matched = [False] * len(word)
    for term in found:
        for at in (match.start() for match in re.finditer(re.escape(term), word)):
            matched[at : at + len(term)] = [True] * len(term)
    return list(zip(matched, word, strict=True))
