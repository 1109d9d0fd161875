"""Explain why each hit is one: as a table, and as data."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from llama_index_contextual.metadata import HEADER_PATH, citation_of, value_of
from llama_index_contextual.retrieval.fusion import Credit, Fused, Mode
from llama_index_contextual.retrieval.relevance import Judgement
from llama_index_contextual.text import readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index.core.schema import NodeWithScore

    from llama_index_contextual.keyword import TermEvidence

_SNIPPET = 60  # characters


@dataclass(frozen=True, slots=True)
class Step:
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
        """Return ``after / before``: a decay is below 1."""
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
        """Return the node's id."""
        return self.node.node.node_id

    @property
    def score(self) -> float:
        """Return the final score."""
        return self.node.score or 0.0

    @property
    def source(self) -> str:
        """Return ``path#L3-L5`` or ``path#page=12`` where the metadata say so, else the node's id."""
        return citation_of(self.node.node.metadata) or self.node_id

    def credit(self, arm: str) -> Credit | None:
        """Return the credit of an arm for the original query, else its best for another."""
        of_arm = [credit for credit in self.fused.credits if credit.arm == arm and credit.rank] if self.fused else []
        return min(of_arm, key=lambda credit: (credit.query != 0, credit.rank), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
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
            "steps": [{**asdict(step), "factor": step.factor} for step in self.steps],
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that led to an answer.

    ``print(explanation)`` shows a table, ``to_dict`` and ``to_json`` give data.

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
    """

    queries: tuple[str, ...]
    arms: dict[str, float]
    mode: str
    k: float
    hits: tuple[Hit, ...]
    pool_size: int
    warnings: tuple[str, ...] = field(default=())
    operators: tuple[str, ...] = ()
    judgement: Judgement = field(default_factory=Judgement)

    @property
    def relevance(self) -> float | None:
        """Return the relevance of the index to the question, 0 to 1; None where that is not known."""
        return self.judgement.relevance

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return the warnings and the line on unknown words."""
        unknown = self.judgement.unknown_words
        return (*self.warnings, unknown) if unknown else self.warnings

    @property
    def nodes(self) -> list[NodeWithScore]:
        """Return the answer itself, as ``retrieve`` gives it."""
        return [hit.node for hit in self.hits]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
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
        """Return :meth:`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    @property
    def learned(self) -> bool:
        """Return whether a model made the ranking: it has no use for the weights of the arms."""
        return Mode(self.mode).is_learned

    def _heading(self) -> str:
        arms = ", ".join(name if self.learned else f"{name} {weight:.2f}" for name, weight in self.arms.items())
        question = " ".join((" | ".join(self.queries), *self.operators))
        mode = f"{self.mode}, k={self.k:g}" if self.mode == Mode.RECIPROCAL_RANK else self.mode
        return f"{question}   ({mode}; {arms}; pool of {self.pool_size})"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        header = ["#", "score", "relevance", *self.arms, *(["log-odds"] if self.learned else [])]
        rows = [_row(hit, list(self.arms), learned=self.learned) for hit in self.hits]
        return [*header, "terms (documents)", "steps", "source", "text"], rows

    def __str__(self) -> str:
        header, rows = self._table()
        rows = [[one_line(cell) for cell in row] for row in rows]
        widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        warnings = [f"! {one_line(warning)}" for warning in self.remarks]
        return "\n".join([one_line(self._heading()), *(line.rstrip() for line in lines), *warnings])

    __repr__ = __str__  # whole nodes would fill the screen


def one_line(text: str) -> str:
    """Return a text that stays on its line of a table: breaks are spaces, what cannot be printed is U+FFFD."""
    return "".join(char if char.isprintable() else "\ufffd" for char in re.sub(r"\s", " ", text))


def _row(hit: Hit, arms: Sequence[str], *, learned: bool) -> list[str]:
    steps = [f"{step.name} x{step.factor:.2f}" for step in hit.steps if step.before != step.after]
    text = " ".join(readable(hit.node.node.get_content()).split())
    earned = ", ".join(
        f"{credit.arm} {credit.credit:+.2f}" for credit in (hit.fused.credits if hit.fused else ()) if credit.credit
    )
    return [
        str(hit.rank),
        f"{hit.score:.3f}",
        "-" if hit.relevance is None else f"{hit.relevance:.2f}",
        *(f"{credit.rank}. ({credit.score:.3f})" if credit else "-" for credit in map(hit.credit, arms)),
        *([earned] if learned else []),
        ", ".join(f"{term.term} ({term.document_frequency})" for term in hit.terms[:6]) or "-",
        ", ".join(steps) or "-",
        hit.source,
        text if len(text) <= _SNIPPET else text[: _SNIPPET - 1] + "…",
    ]
