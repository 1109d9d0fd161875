"""Hits for people: only relevant ones, few from each document, with the matching lines."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_contextual.app.serve.excerpts import excerpt
from llama_index_contextual.retrievers.asking import keyword_member_of
from llama_index_contextual.tools.per_document import limit_per_document
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import ContextualWarning, SettingError
from llama_index_contextual.utils.text import readable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.app.index.index import ContextualIndex
    from llama_index_contextual.retrievers.explanation import Explanation, Hit

TOP_K = 5
_POOL = 50  # hits among which further hits of each document are counted
_RELEVANT_SHARE = 0.3  # share of the best score that a further hit needs to be counted
_PLACE = (
    metadata.START_LINE,
    metadata.END_LINE,
    metadata.HEADER_PATH,
    metadata.DATE,
    metadata.PAGE_LABEL,
)


@dataclass(frozen=True)
class ShownHit:
    """A hit in the form in which it is shown.

    Attributes:
        hit: The hit.
        more: The number of further hits in its document, given only with the last shown one.
    """

    hit: Hit
    more: int

    @property
    def node(self) -> BaseNode:
        """Return the chunk."""
        return self.hit.node.node

    @property
    def path(self) -> str:
        """Return the path of its document."""
        return metadata.path_of(self.node.metadata)

    @property
    def name(self) -> str:
        """Return the title of its document, or the name of the file without a title."""
        return note_name(self.node)

    @property
    def date(self) -> str:
        """Return its date; "" if it has none."""
        return str(metadata.value_of(self.node.metadata, metadata.DATE) or "")

    @property
    def headings(self) -> str:
        """Return the headings above the chunk; "" if they only repeat the name."""
        headings = str(metadata.value_of(self.node.metadata, metadata.HEADER_PATH) or "")
        return "" if headings.casefold() == self.name.casefold() else headings

    @property
    def terms(self) -> frozenset[str]:
        """Return the terms of the query that the chunk contains."""
        return frozenset(term.term for term in self.hit.terms)

    @property
    def excerpt(self) -> list[str]:
        """Return up to three lines around the words that match."""
        return excerpt(readable(self.node.get_content()), self.terms)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with the text but without its context."""
        place = {key: metadata.value_of(self.node.metadata, key) for key in _PLACE}
        return {
            "score": self.hit.score,
            "citation": self.hit.source,
            "name": self.name,
            "path": self.path,
            **place,
            "id": self.node.node_id,
            "text": self.node.get_content(),
            "more_in_document": self.more,
            "also_at": list(self.hit.also_at),
        }


class FoundHits(NamedTuple):
    """The hits of a question.

    Attributes:
        explanation: The explanation of their ranking.
        hits: The shown hits, best first.
        suggestions: Names and words of the index that a misspelt query may mean.
    """

    explanation: Explanation
    hits: list[ShownHit]
    suggestions: list[str]


def note_name(node: BaseNode) -> str:
    """Return the title of a chunk's document, or its file name without suffix."""
    title = str(metadata.value_of(node.metadata, metadata.TITLE) or "").strip()
    path = metadata.path_of(node.metadata)
    return title or (PurePosixPath(path).stem if path else str(node.ref_doc_id or node.node_id))


def find_hits(
    index: ContextualIndex,
    question: str,
    max_hits: int | None = None,
    filters: MetadataFilters | None = None,
    *,
    per_file: int | None = None,
    min_score: float | None = None,
) -> FoundHits:
    """Return the relevant hits of a question, with few from each document.

    Args:
        index: The index.
        question: The question.
        max_hits: The largest number of hits. None means the configured number, else 5.
        filters: LlamaIndex metadata filters.
        per_file: The largest number of hits from one document. 0 means no limit, and None the
            configured number.
        min_score: The relevance that a hit needs. None means the configured value, else 0.05 of
            the best hit.

    Raises:
        SettingError: The question is empty.
    """
    if not question.strip():
        raise SettingError(f"`question` is empty (got {question!r}). Say what to look for.")
    configuration = index.settings.configuration
    max_hits = max_hits or configuration["retrieval.top_k"] or TOP_K
    if per_file is None:
        per_file = configuration["retrieval.per_file"]
    if min_score is None:
        min_score = configuration.values.get("retrieval.min_score", "auto")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextualWarning)  # the explanation contains them, too
        pool = max(max_hits, _POOL) if per_file else max_hits
        retriever = index.as_retriever(pool, filters=filters, min_score=min_score)
        explanation = retriever.explain(question)
    suggestions = list[str]()
    if explanation.judgement.unknown_words or not explanation.hits:
        keywords = keyword_member_of(retriever.members)
        if keywords is not None:
            suggestions = keywords.retriever.suggest(question)
    shown = limit_per_document(explanation.hits, _document_of, per_file, max_hits)
    further = _further_hits(explanation.hits, {hit.node_id for hit in shown})
    shown_hits = [ShownHit(hit, 0) for hit in shown]
    last_places = {_document_of(hit): place for place, hit in enumerate(shown)}
    for document, place in last_places.items():
        shown_hits[place] = ShownHit(shown[place], further[document])
    return FoundHits(replace(explanation, hits=tuple(shown)), shown_hits, suggestions)


def _further_hits(hits: Sequence[Hit], shown_ids: Collection[str]) -> Counter[str]:
    """Return the number of hits by document that are relevant, but not shown."""
    return Counter(
        _document_of(hit)
        for hit in hits
        if hit.node_id not in shown_ids and hit.score >= _RELEVANT_SHARE * hits[0].score
    )


def _document_of(hit: Hit) -> str:
    return metadata.path_of(hit.node.node.metadata) or hit.node_id
