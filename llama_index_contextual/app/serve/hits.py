"""Hits as people are shown them: few of one document, each with a name, a citation and an excerpt whose words match."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.metadata import (
    DATE,
    END_LINE,
    HEADER_PATH,
    PAGE_LABEL,
    START_LINE,
    TITLE,
    citation_of,
    path_of,
    value_of,
)
from llama_index_contextual.text import readable

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.retrieval import Explanation, Hit

Split: TypeAlias = Callable[[str], Collection[str]]
_T = TypeVar("_T")

PER_FILE: Final = 2
TOP_K: Final = 5
_POOL: Final = 50  # hits of which those of one document are counted
_LINES: Final = 3
_WIDTH: Final = 240  # characters of a line of an excerpt
_WORD: Final = re.compile(r"\w+|\W+")
_WIDE: Final = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_HEADING: Final = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_BULLET: Final = re.compile(r"^(?:[-*+>] |\[[ xX]\] ){1,4}")
_LINK: Final = re.compile(r"!?\[([^\[\]]{1,200})\]\([^()\s]{0,500}\)")
_WIKI_LINK: Final = re.compile(r"!?\[\[([^\[\]|]{1,200})(?:\|([^\[\]|]{1,200}))?\]\]")
_EMPHASIS: Final = re.compile(r"(?:\*\*|__)(?=\S)([^*_]{1,200})(?<=\S)(?:\*\*|__)")
_RULES: Final = frozenset("-*_=|: ")


@dataclass(frozen=True)
class ShownHit:
    """A hit with what is shown of it.

    Attributes:
        hit: The hit.
        more: How many further hits of its document are not shown; 0 but for the last shown hit of a document.
    """

    hit: Hit
    more: int = 0

    @property
    def node(self) -> BaseNode:
        """The chunk."""
        return self.hit.node.node

    @property
    def path(self) -> str:
        """The path of its document."""
        return path_of(self.node.metadata)

    @property
    def name(self) -> str:
        """The title of its document, else the name of the file."""
        return note_name(self.node)

    @property
    def headings(self) -> str:
        """The headings that it stands under, without one that repeats the name."""
        headings = str(value_of(self.node.metadata, HEADER_PATH) or "")
        return "" if headings.casefold() == self.name.casefold() else headings

    @property
    def citation(self) -> str:
        """``a.md#L3-L9``, ``report.pdf#page=4``."""
        return citation_of(self.node.metadata) or self.node.node_id

    @property
    def terms(self) -> frozenset[str]:
        """The terms of the question that it holds."""
        return frozenset(term.term for term in self.hit.terms)

    def excerpt(self, split: Split) -> list[str]:
        """Up to three lines around the words that match."""
        return excerpt(readable(self.node.get_content()), self.terms, split)

    def to_dict(self) -> dict[str, Any]:
        """Plain data. The text is the displayed one, without its context."""
        meta = self.node.metadata
        keys = ("path", START_LINE, END_LINE, HEADER_PATH, DATE, *([PAGE_LABEL] if PAGE_LABEL in meta else []))
        return {
            "score": self.hit.score,
            "citation": self.citation,
            "name": self.name,
            **{key: value_of(meta, key) for key in keys},
            "id": self.node.node_id,
            "text": self.node.get_content(),
            "more_in_document": self.more,
        }


def note_name(node: BaseNode) -> str:
    """The title of a chunk's document, else the name of its file without the suffix."""
    title = str(value_of(node.metadata, TITLE) or "").strip()
    path = path_of(node.metadata)
    return title or (PurePosixPath(path).stem if path else str(node.ref_doc_id or node.node_id))


def ask(
    index: ContextualIndex,
    question: str,
    most: int | None = None,
    filters: MetadataFilters | None = None,
    *,
    per_file: int | None = None,
    min_score: float | None = None,
) -> tuple[Explanation, list[ShownHit]]:
    """The hits of a question as people are shown them: without those that are hardly relevant, few of one document.

    Args:
        index: The index.
        question: The question.
        most: Most hits; None is what the configuration sets, else 5.
        filters: LlamaIndex's.
        per_file: Most hits of one document; 0 is no limit, None is what the configuration sets, else 2.
        min_score: The relevance that a hit needs; None is what the configuration sets, else 0.05 of the best hit.

    Raises:
        SettingError: A setting is wrong.
    """
    configuration = index.settings.configuration
    most = most or configuration["retrieval.top_k"] or TOP_K
    if per_file is None:
        per_file = configuration.values.get("retrieval.per_file", PER_FILE)
    least = configuration.values.get("retrieval.min_score", "auto") if min_score is None else min_score
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextualWarning)  # the explanation says the same
        retriever = index.as_retriever(max(most, _POOL) if per_file else most, filters=filters, min_score=least)
        explanation = retriever.explain(question)
    kept = few_of_each(explanation.hits, lambda hit: path_of(hit.node.node.metadata) or hit.node_id, per_file, most)
    shown = [ShownHit(hit, more) for hit, more in kept]
    return replace(explanation, hits=tuple(one.hit for one in shown)), shown


def few_of_each(
    items: Iterable[_T], document_of: Callable[[_T], Hashable], per_file: int, most: int
) -> list[tuple[_T, int]]:
    """The best items, of which one document has at most ``per_file``; the last of a document counts the others."""
    counts, left = Counter[Hashable](), Counter[Hashable]()
    shown: list[_T] = []
    for item in items:
        key = document_of(item)
        if len(shown) >= most or (per_file and counts[key] >= per_file):
            left[key] += 1
        else:
            counts[key] += 1
            shown.append(item)
    last = {document_of(item): at for at, item in enumerate(shown)}
    return [(item, left[document_of(item)] * (last[document_of(item)] == at)) for at, item in enumerate(shown)]


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
