"""Which terms of a query a document holds, how rare they are, what each added to its score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index_contextual.retrievers.lexical_index import Group, Snapshot


@dataclass(frozen=True, slots=True)
class TermEvidence:
    """A query term found in a document.

    Args:
        term: As the analyzer writes it.
        document_frequency: Documents of the index that hold it.
        idf: Its weight, from its rarity: ln(1 + (N - df + .5) / (df + .5)).
        score: What it added to the document's BM25 score.
    """

    term: str
    document_frequency: int
    idf: float
    score: float


def evidence_in(snapshot: Snapshot, groups: Sequence[Group], node_ids: Iterable[str]) -> dict[str, list[TermEvidence]]:
    """For each document, the terms of a query that it holds, most important first; [] where it holds none."""
    found: dict[str, list[TermEvidence]] = {node_id: [] for node_id in node_ids}
    places = {place: node_id for node_id in found if (place := snapshot.locate(node_id))}
    for group in dict.fromkeys(groups):
        entries = snapshot.entries(group)
        frequency = sum(len(rows) for rows, _ in entries)
        for (number, row), node_id in places.items():
            rows, counts = entries[number]
            at = int(rows.searchsorted(rows.dtype.type(row)))
            if at < len(rows) and rows[at] == row:
                idf = snapshot.idf(frequency)
                share = float(counts[at] / (counts[at] + snapshot.norms[number][row]))
                found[node_id].append(TermEvidence(group[0], frequency, idf, idf * share))
    return {node_id: sorted(terms, key=lambda one: (-one.score, one.term)) for node_id, terms in found.items()}
