"""Hits as people are shown them: few of one document, each with a name, a citation and an excerpt."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar

from llama_index_contextual import metadata
from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.memory.snippet import LINES_GAP, SPLIT, choose_snippet
from llama_index_contextual.text import WIKI_LINK, readable

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.retrieval import Explanation, Hit

_T = TypeVar("_T")

PER_FILE: Final = 2
TOP_K: Final = 5
_POOL: Final = 50  # hits of which those of one document are counted
_LINES: Final = 3  # of an excerpt
_CHARS: Final = 400
_HEADING: Final = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_BULLET: Final = re.compile(r"^(?:[-*+>] |\[[ xX]\] |\[![\w-]{1,40}\][+-]? ?){1,4}")
_LINK: Final = re.compile(r"!?\[([^\[\]]{1,200})\]\([^()\s]{0,500}\)")
_EMPHASIS: Final = re.compile(r"(?:\*\*|__)(?=\S)([^*_]{1,200})(?<=\S)(?:\*\*|__)")
_RULES: Final = frozenset("-*_=|:… ")


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
        return metadata.path_of(self.node.metadata)

    @property
    def name(self) -> str:
        """The title of its document, else the name of the file."""
        return note_name(self.node)

    @property
    def headings(self) -> str:
        """The headings that it stands under, without one that repeats the name."""
        headings = str(metadata.value_of(self.node.metadata, metadata.HEADER_PATH) or "")
        return "" if headings.casefold() == self.name.casefold() else headings

    @property
    def citation(self) -> str:
        """``a.md#L3-L9``, ``report.pdf#page=4``."""
        return metadata.citation_of(self.node.metadata) or self.node.node_id

    @property
    def terms(self) -> frozenset[str]:
        """The terms of the question that it holds."""
        return frozenset(term.term for term in self.hit.terms)

    @property
    def excerpt(self) -> list[str]:
        """Up to three lines around the words that match."""
        return excerpt(readable(self.node.get_content()), self.terms)

    def to_dict(self) -> dict[str, Any]:
        """Plain data. The text is the displayed one, without its context."""
        meta = self.node.metadata
        keys = (
            "path",
            metadata.START_LINE,
            metadata.END_LINE,
            metadata.HEADER_PATH,
            metadata.DATE,
            *([metadata.PAGE_LABEL] if metadata.PAGE_LABEL in meta else []),
        )
        return {
            "score": self.hit.score,
            "citation": self.citation,
            "name": self.name,
            **{key: metadata.value_of(meta, key) for key in keys},
            "id": self.node.node_id,
            "text": self.node.get_content(),
            "more_in_document": self.more,
        }


def excerpt(text: str, terms: frozenset[str]) -> list[str]:
    """Up to three lines of a chunk around the words that match, without headings, rules, fences and marks of Markdown.

    Args:
        text: Of the chunk.
        terms: Those of the question that it holds.
    """
    chosen, _ = choose_snippet(text, dict.fromkeys(terms, 1.0), SPLIT, limit=_CHARS)
    whole = chosen.replace(LINES_GAP, " …\n").splitlines()  # a gap takes no line
    lines = [_plain(line.strip()) for line in whole if not line.lstrip().startswith(("```", "~~~"))]
    kept = [line for line in lines if not (_HEADING.match(line) or _RULES.issuperset(line))]
    first = next((at for at, line in enumerate(kept) if terms.intersection(SPLIT(line))), 0)
    first = max(0, min(first, len(kept) - _LINES))
    return kept[first : first + _LINES] or [line for line in lines if line][:_LINES]


def _plain(line: str) -> str:
    """A line of Markdown without the marks of lists, links, code and emphasis."""
    line = _LINK.sub(r"\1", _BULLET.sub("", line).replace("`", ""))
    return _EMPHASIS.sub(r"\1", WIKI_LINK.sub(lambda link: link[3] or link[1], line))


def note_name(node: BaseNode) -> str:
    """The title of a chunk's document, else the name of its file without the suffix."""
    title = str(metadata.value_of(node.metadata, metadata.TITLE) or "").strip()
    path = metadata.path_of(node.metadata)
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
    kept = few_of_each(
        explanation.hits, lambda hit: metadata.path_of(hit.node.node.metadata) or hit.node_id, per_file, most
    )
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
