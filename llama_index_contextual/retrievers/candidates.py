"""What an arm of a hybrid retriever answers: ids and scores first, nodes only where they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llama_index.core.schema import BaseNode, QueryBundle


class Candidate(NamedTuple):
    """One hit of one arm. A tuple, because a query makes hundreds, and a frozen dataclass takes four times as long.

    Args:
        node_id: Its id.
        score: As the arm gave it; None where the arm gives none.
        node: The node, where the arm had it at hand.
    """

    node_id: str
    score: float | None
    node: BaseNode | None = None


@runtime_checkable
class CandidateRetriever(Protocol):
    """A retriever that can answer with ids: of a pool of 100 candidates, 10 nodes are read instead of 100."""

    def candidates(self, query: QueryBundle, top_k: int) -> list[Candidate]:
        """The best ``top_k``, best first."""

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """New node objects for those of the ids that exist."""
