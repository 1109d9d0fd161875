"""Why each hit is one, as text and as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.utils.metadata import HEADER_PATH, citation_of, value_of
from llama_index_contextual.utils.text import printable_lines, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index.core.schema import NodeWithScore

    from llama_index_contextual.retrievers.bm25_index import TermEvidence
    from llama_index_contextual.retrievers.rankings import Credit
    from llama_index_contextual.retrievers.relevance import Judgement

_SNIPPET: Final = 60  # characters
_TERMS: Final = 6


@dataclass(frozen=True, slots=True)
class Hit:
    """A hit and its reasons.

    Attributes:
        rank: From 1.
        node: The node with its final score.
        fused: The fused score, which postprocessors may have changed; None where one of them
        brought the node.
        credits: What each retriever or feature adds to the fused score.
        relevance: How likely the hit answers the query, 0 to 1; None where it is not known.
        terms: The terms of the query that the node holds, with their rarity, most important first.
        also_at: Citations of other chunks with the same text, which are no hits of their own.
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
        """Return ``path#L3-L5`` or ``path#page=12`` if metadata say so, else the node's id."""
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
    """Everything that led to an answer.

    ``print`` shows a line for each hit, ``to_dict`` returns data.

    Attributes:
        queries: The original query first, then its variants.
        operators: The operators of the query that the answer obeys, such as ``path:notes/``.
        retrievers: The weight of each retriever by name.
        mode: How the retrievers were fused.
        left_out: How many candidates are not relevant enough.
        warnings: What failed, was ignored or was left out.
        judgement: How likely the index answers the query at all.
        hits: Best first.
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
        """Return how likely the index answers the query, 0 to 1; None where it is not known."""
        return self.judgement.relevance

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return the warnings and the line on unknown words."""
        unknown_words = self.judgement.unknown_words
        return (*self.warnings, unknown_words) if unknown_words else self.warnings

    @property
    def nodes(self) -> list[NodeWithScore]:
        """Return the answer as ``retrieve`` returns it."""
        return [hit.node for hit in self.hits]

    def with_results(self, results: Sequence[NodeWithScore]) -> Explanation:
        """Return the answer with what postprocessors made of its hits."""
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
    """Return a hit and its reasons.

    Ranks and what each feature adds, terms with their frequencies, twins.
    """
    reasons = []
    for credit in hit.credits:
        rank = f" #{credit.rank} {credit.value:.3f}" if credit.rank else ""
        added = f" {credit.credit:+.2f}" if round(credit.credit, 2) else ""
        if rank or added:
            reasons.append(f"{credit.name}{rank}{added}")
    reasons += [f"{term.term} ({term.document_frequency})" for term in hit.terms[:_TERMS]]
    reasons += [f"also at {citation}" for citation in hit.also_at]
    text = " ".join(readable(hit.node.node.get_content()).split())
    if len(text) > _SNIPPET:
        text = text[: _SNIPPET - 1] + "…"
    relevance = "" if hit.relevance is None else f"  relevance {hit.relevance:.2f}"
    return f"{hit.rank}  {hit.score:.3f}{relevance}  {hit.source}  [{'; '.join(reasons)}]  {text}"
