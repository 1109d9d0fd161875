"""Why each hit is one, as text and as data."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index_contextual.metadata import HEADER_PATH, citation_of, value_of
from llama_index_contextual.retrieval.relevance import Judgement
from llama_index_contextual.text import readable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index.core.schema import NodeWithScore

    from llama_index_contextual.keyword import TermEvidence
    from llama_index_contextual.retrieval.fusion import Fused

_SNIPPET: Final = 60  # characters
_TERMS: Final = 6


class Step(NamedTuple):
    """What one postprocessor made of a score.

    Args:
        name: Its class.
        before: The score before.
        after: The score after.
    """

    name: str
    before: float
    after: float

    @property
    def factor(self) -> float:
        """``after / before``: a decay is below 1."""
        return self.after / self.before if self.before else 0.0


@dataclass(frozen=True, slots=True)
class Hit:
    """One hit and its reasons.

    Args:
        rank: From 1.
        node: The node with its final score.
        fused: Its place in the fusion: each arm's rank, score and credit, and the fused score.
        cosine: The vector arm's score for the original query; None where no vector arm found it.
        relevance: How likely it answers the question, 0 to 1; None where that is not known.
        terms: Query terms that it holds, with their rarity; most important first.
        steps: What postprocessors did to the score before the cut.
    """

    rank: int
    node: NodeWithScore
    fused: Fused | None
    cosine: float | None
    relevance: float | None = None
    terms: tuple[TermEvidence, ...] = ()
    steps: tuple[Step, ...] = ()

    @property
    def node_id(self) -> str:
        """The node's id."""
        return self.node.node.node_id

    @property
    def score(self) -> float:
        """The final score."""
        return self.node.score or 0.0

    @property
    def source(self) -> str:
        """``path#L3-L5`` or ``path#page=12`` where the metadata say so, else the node's id."""
        return citation_of(self.node.node.metadata) or self.node_id

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "rank": self.rank,
            "node_id": self.node_id,
            "source": self.source,
            "header_path": value_of(self.node.node.metadata, HEADER_PATH),
            "score": self.score,
            "relevance": self.relevance,
            "cosine": self.cosine,
            "fused": self.fused
            and {**self.fused._asdict(), "credits": [credit._asdict() for credit in self.fused.credits]},
            "terms": [asdict(term) for term in self.terms],
            "steps": [{**step._asdict(), "factor": step.factor} for step in self.steps],
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that led to an answer.

    ``print(explanation)`` shows a line a hit, ``to_dict`` and ``to_json`` give data.

    Args:
        queries: The original query first, then its variants.
        arms: Name and weight of each arm.
        mode: How the arms were fused.
        k: RRF's constant.
        hits: Best first.
        pool_size: Documents that any arm proposed.
        warnings: What was degraded, ignored or left out: arms that failed, operators that nothing satisfies, hits that
            are less relevant than they have to be.
        operators: Operators of the query that the answer obeys, such as ``path:notes/``.
        judgement: How likely the index answers the question at all.
        left_out: How many candidates are not relevant enough.
    """

    queries: tuple[str, ...]
    arms: dict[str, float]
    mode: str
    k: float
    hits: tuple[Hit, ...]
    pool_size: int
    warnings: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    judgement: Judgement = field(default_factory=Judgement)
    left_out: int = 0

    @property
    def relevance(self) -> float | None:
        """The relevance of the index to the question, 0 to 1; None where that is not known."""
        return self.judgement.relevance

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The warnings and the line on unknown words."""
        unknown = self.judgement.unknown_words
        return (*self.warnings, unknown) if unknown else self.warnings

    @property
    def nodes(self) -> list[NodeWithScore]:
        """The answer itself, as ``retrieve`` gives it."""
        return [hit.node for hit in self.hits]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "queries": list(self.queries),
            "operators": list(self.operators),
            "arms": self.arms,
            "mode": self.mode,
            "k": self.k,
            "pool_size": self.pool_size,
            "relevance": self.relevance,
            "evidence": self.judgement.evidence and self.judgement.evidence._asdict(),
            "unknown": self.judgement.unknown_words,
            "warnings": list(self.warnings),
            "hits": [hit.to_dict() for hit in self.hits],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """:meth:`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def __str__(self) -> str:
        arms = ", ".join(f"{name} {weight:.2f}" for name, weight in self.arms.items())
        question = " ".join((" | ".join(self.queries), *self.operators))
        heading = f"{question}   ({self.mode}, k={self.k:g}; {arms}; pool of {self.pool_size})"
        lines = [heading, *map(_line_of, self.hits), *(f"! {remark}" for remark in self.remarks)]
        return "\n".join(map(one_line, lines))

    __repr__ = __str__  # whole nodes would fill the screen


def one_line(text: str) -> str:
    """Text on one line: breaks are spaces, what cannot be printed is U+FFFD."""
    return "".join(char if char.isprintable() else "\ufffd" for char in re.sub(r"\s", " ", text))


def _line_of(hit: Hit) -> str:
    """A hit and its reasons: ranks and what each arm or feature adds, terms with their frequencies, postprocessors."""
    credits_ = hit.fused.credits if hit.fused else ()
    reasons = [f"{one.arm} #{one.rank} {one.score:.3f}" if one.rank else one.arm for one in credits_]
    reasons = [f"{name} {one.credit:+.2f}" if one.credit else name for name, one in zip(reasons, credits_, strict=True)]
    reasons += [f"{term.term} ({term.document_frequency})" for term in hit.terms[:_TERMS]]
    reasons += [f"{step.name} x{step.factor:.2f}" for step in hit.steps if step.before != step.after]
    text = " ".join(readable(hit.node.node.get_content()).split())
    shown = text if len(text) <= _SNIPPET else text[: _SNIPPET - 1] + "…"
    relevance = "" if hit.relevance is None else f"  relevance {hit.relevance:.2f}"
    return f"{hit.rank}  {hit.score:.3f}{relevance}  {hit.source}  [{'; '.join(reasons)}]  {shown}"
