"""Excerpts of chunks: the lines around the words that match a query, and these words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import groupby

from llama_index_contextual.memory.snippets import choose_snippet
from llama_index_contextual.retrievers.query_dates import HAS_CJK
from llama_index_contextual.retrievers.terms import finder_of, query_groups
from llama_index_contextual.utils.text import WIKI_LINK, wiki_text

_LINES = 3  # of an excerpt
_CHARS = 400
_HEADING = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_BULLET = re.compile(r"^(?:[-*+>] |\[[ xX]\] |\[![\w-]{1,40}\][+-]? ?){1,4}")
_LINK = re.compile(r"!?\[([^\[\]]{1,200})\]\([^()\s]{0,500}\)")  # also over two lines
_EMPHASIS = re.compile(
    r"`([^`\n]+)`|(?<![\w*=~])(\*{1,3}|==|~~)(?=[^\s*=~])((?:(?!\2).){1,200})(?<=\S)\2(?![\w*=~])"
)
_CELLS = re.compile(r"(`[^`\n]+`)|(?<!\\)\|")
_RULES = frozenset("-*_=|:…· ")
_FENCES = ("```", "~~~")
_WORD = re.compile(r"(?P<word>\w+)|\W+")


def excerpt(text: str, terms: frozenset[str]) -> list[str]:
    """Return up to three plain lines of a chunk around the terms that match."""
    find = finder_of(terms)
    weights = dict.fromkeys(terms, 1.0)
    snippet, _ = choose_snippet(text, weights, find, limit=_CHARS)
    snippet = _LINK.sub(r"\1", snippet)
    snippet = WIKI_LINK.sub(lambda link: wiki_text(link) or link[1], snippet)

    # Prefer prose to headings and rules.
    lines = []
    prose = []
    for line in snippet.splitlines():
        plain_line = _plain_line(line)
        is_fence = line.lstrip().startswith(_FENCES)
        if is_fence or not plain_line:
            continue
        lines.append(plain_line)
        is_rule = _RULES.issuperset(plain_line)
        if not (is_rule or _HEADING.match(plain_line)):
            prose.append(plain_line)

    # Start at the first line that matches, or earlier if the excerpt would be too short.
    matching = (position for position, line in enumerate(prose) if find(line))
    first = min(next(matching, 0), len(prose) - _LINES)
    first = max(first, 0)
    return prose[first : first + _LINES] or lines[:_LINES]


def _plain_line(line: str) -> str:
    """Return a line without its bullet, the bars of a table and marks of emphasis."""
    without_bullet = _BULLET.sub("", line.strip())
    return _EMPHASIS.sub(_without_marks, _without_bars(without_bullet))


def _without_marks(part: re.Match[str]) -> str:
    return part[1] or _EMPHASIS.sub(_without_marks, part[3])


def _without_bars(line: str) -> str:
    """Return the cells of a table row, and any other line unchanged."""
    if not line[:1] == line[-1:] == "|":
        return line
    cells = _CELLS.sub(lambda part: part[1] or "\n", line).split("\n")
    return " · ".join(cell.strip() for cell in cells if cell.strip())


def marked(text: str, terms: Collection[str]) -> Iterator[tuple[bool, str]]:
    """Yield whether each part of a text matches, and the part.

    Parts are words. In languages without spaces, words are split where a match starts or ends.
    """
    find = finder_of(terms)
    for match in _WORD.finditer(text):
        part = match[0]
        matching_terms = find(part) if match["word"] else ()
        if matching_terms and HAS_CJK.search(part):
            yield from _parts_of_word(part, matching_terms)
        else:
            yield bool(matching_terms), part


def _parts_of_word(word: str, terms: Collection[str]) -> Iterator[tuple[bool, str]]:
    """Yield whether each part of a word consists of matching terms, and the part."""
    is_match = [False] * len(word)
    for term in terms:
        for match in re.finditer(re.escape(term), word):
            is_match[match.start() : match.end()] = [True] * len(term)
    start = 0
    for matches, run in groupby(is_match):
        end = start + len(list(run))
        yield matches, word[start:end]
        start = end


def searched_terms(question: str) -> set[str]:
    """Return the terms of a query in all languages that it may be in."""
    return {term for group in query_groups(question) for term in group}
