"""The answer to a query, with the reasons for each hit, as text and as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llama_index_contextual.utils.metadata import HEADER_PATH, citation_of, value_of
from llama_index_contextual.utils.text import printable_lines, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index.core.schema import NodeWithScore

    from llama_index_contextual.retrievers.bm25_index import TermEvidence
    from llama_index_contextual.retrievers.rankings import Credit
    from llama_index_contextual.retrievers.relevance import Judgement

_MAX_SNIPPET = 60  # characters
_MAX_TERMS = 6


@dataclass(frozen=True, slots=True)
class Hit:
    """A hit and its reasons.

    Attributes:
        rank: The rank, from 1.
        node: The node with its final score.
        fused: The fused score, before postprocessors. None if a postprocessor added the node.
        credits: The summand of each retriever or feature in the fused score.
        relevance: The probability that the hit answers the query, 0 to 1. None means unknown.
        terms: The terms of the query that the node contains, most important first.
        also_at: The citations of other chunks with the same text. They are not hits of their own.
    """

    rank: int
    node: NodeWithScore
    fused: float | None = None
    credits: tuple[Credit, ...] = ()
    relevance: float | None = None
    terms: tuple[TermEvidence, ...] = ()
    also_at: tuple[str, ...] = ()

    @property
    def node_id(self) -> str:
        """Return the id of the node."""
        return self.node.node.node_id

    @property
    def score(self) -> float:
        """Return the final score."""
        return self.node.score or 0.0

    @property
    def source(self) -> str:
        """Return the citation, ``path#L3-L5`` or ``path#page=12``, else the id of the node."""
        return citation_of(self.node.node.metadata) or self.node_id

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "rank": self.rank,
            "node_id": self.node_id,
            "source": self.source,
            "score": self.score,
            "fused": self.fused,
            "relevance": self.relevance,
            "header_path": value_of(self.node.node.metadata, HEADER_PATH),
            "credits": [credit._asdict() for credit in self.credits],
            "terms": [term._asdict() for term in self.terms],
            "also_at": list(self.also_at),
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to a query, with the reasons for each hit.

    ``print`` shows a line for each hit. ``to_dict`` returns data.

    Attributes:
        queries: The original query, then its variants.
        operators: The operators of the query that were applied, such as ``path:notes/``.
        retrievers: The weight of each retriever by name.
        mode: The mode of the fusion.
        left_out: The number of candidates that are not relevant enough.
        warnings: Notes about failed retrievers, ignored operators and hits that were left out.
        judgement: The relevance of the best hit, and the evidence for it.
        hits: The hits, best first.
    """

    queries: tuple[str, ...]
    operators: tuple[str, ...]
    retrievers: dict[str, float]
    mode: str
    left_out: int
    warnings: tuple[str, ...]
    judgement: Judgement
    hits: tuple[Hit, ...] = ()

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def relevance(self) -> float | None:
        """Return the probability that the index answers the query, 0 to 1. None means unknown."""
        return self.judgement.relevance

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return the warnings, and the note on unknown words if there are any."""
        unknown_words = self.judgement.unknown_words
        return (*self.warnings, unknown_words) if unknown_words else self.warnings

    @property
    def nodes(self) -> list[NodeWithScore]:
        """Return the answer as ``retrieve`` returns it."""
        return [hit.node for hit in self.hits]

    def with_results(self, results: Sequence[NodeWithScore]) -> Explanation:
        """Return the answer with the results of postprocessors as its hits."""
        hit_of = {hit.node_id: hit for hit in self.hits}
        hits = []
        for rank, result in enumerate(results, start=1):
            hit = hit_of.get(result.node.node_id, Hit(rank, result))
            hits.append(replace(hit, rank=rank, node=result))
        return replace(self, hits=tuple(hits))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        evidence = self.judgement.evidence
        return {
            "queries": list(self.queries),
            "operators": list(self.operators),
            "warnings": list(self.warnings),
            "retrievers": self.retrievers,
            "mode": self.mode,
            "relevance": self.relevance,
            "evidence": evidence._asdict() if evidence else None,
            "unknown": self.judgement.unknown_words,
            "hits": [hit.to_dict() for hit in self.hits],
        }

    def __str__(self) -> str:
        weights = ", ".join(f"{name} {weight:.2f}" for name, weight in self.retrievers.items())
        question = " ".join((" | ".join(self.queries), *self.operators))
        lines = [f"{question}   ({self.mode}; {weights})"]
        lines += [_line_of(hit) for hit in self.hits]
        lines += [f"! {remark}" for remark in self.remarks]
        return printable_lines(lines)

    __repr__ = __str__  # whole nodes would fill the screen


def _line_of(hit: Hit) -> str:
    """Return a line with the hit and its reasons: credits, terms and places of the same text."""
    reasons = []
    for credit in hit.credits:
        rank = f" #{credit.rank} {credit.value:.3f}" if credit.rank else ""
        added = f" {credit.credit:+.2f}" if round(credit.credit, 2) else ""
        if rank or added:
            reasons.append(f"{credit.name}{rank}{added}")
    reasons += [f"{term.term} ({term.document_frequency})" for term in hit.terms[:_MAX_TERMS]]
    reasons += [f"also at {citation}" for citation in hit.also_at]
    text = " ".join(readable(hit.node.node.get_content()).split())
    if len(text) > _MAX_SNIPPET:
        text = text[: _MAX_SNIPPET - 1] + "…"
    relevance = "" if hit.relevance is None else f"  relevance {hit.relevance:.2f}"
    return f"{hit.rank}  {hit.score:.3f}{relevance}  {hit.source}  [{'; '.join(reasons)}]  {text}"
