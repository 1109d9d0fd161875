"""Evidence of BM25 for rows: scores by term, and how near to each other the terms of a query stand."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import BaseNode

Codes = npt.NDArray[np.uint16]
Ints = npt.NDArray[np.int64]
Group = tuple[str, ...]  # one term of a query: its alternatives count as the same term

_REACH: Final = 8  # terms apart that still count as near
MOST_TERMS: Final = 200  # of a query, beyond which nearness says nothing new; at most 255, which fit into a byte
_CODE: Final = (1 << 16) - 1


@lru_cache(maxsize=1 << 15)
def code_of(term: str) -> int:
    """Return a number of two bytes for a term, the same in every process; different terms can have one number."""
    return zlib.crc32(term.encode("utf-8", "surrogatepass")) & _CODE


class Candidate(NamedTuple):
    """One hit of one arm.

    It is a tuple because a query makes hundreds, and a frozen dataclass takes four times as long to make.

    Args:
        node_id: Its id.
        score: As the arm gave it; None where the arm gives none.
        node: The node, where the arm had it at hand.
    """

    node_id: str
    score: float | None
    node: BaseNode | None = None


@dataclass(frozen=True, slots=True)
class TermEvidence:
    """A query term that was found in a document.

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


class TermScores(NamedTuple):
    """What each term of a query adds to the score of each of some documents.

    Args:
        groups: The distinct terms of the query, in order.
        frequencies: How many documents of the index hold each term.
        idfs: The weight of each term.
        scores: Shape (documents, terms): 0 where a document does not hold a term.
    """

    groups: tuple[Group, ...]
    frequencies: tuple[int, ...]
    idfs: tuple[float, ...]
    scores: npt.NDArray[np.float64]

    def shares(self) -> list[float] | None:
        """Return for each document the share of the terms that it holds, weighted by rarity; None without terms."""
        total = math.fsum(self.idfs)
        return ((self.scores > 0) @ np.array(self.idfs) / total).tolist() if total > 0 else None

    def evidence(self) -> list[list[TermEvidence]]:
        """Return for each document the terms that it holds, most important first."""
        names = [group[0] for group in self.groups]
        by_document = (
            [
                TermEvidence(names[at], self.frequencies[at], self.idfs[at], float(row[at]))
                for at in np.flatnonzero(row).tolist()
            ]
            for row in self.scores
        )
        return [sorted(terms, key=lambda term: (-term.score, term.term)) for terms in by_document]


class Nearness(NamedTuple):
    """How near to each other the terms of a query stand in each of some documents.

    Args:
        weight: The summed idf of the query's terms, which no BM25 score exceeds.
        shares: Of each document, 0 to 1: the mean over neighbouring terms of the query of 1 / (their smallest distance
            in the document, in either order), weighted by the smaller idf of the two. A distance above 8 counts as
            none. 1 says that the document holds the query as a phrase.
    """

    weight: float
    shares: npt.NDArray[np.float64]


def closeness(codes: Codes, lengths: Ints, groups: Sequence[Group]) -> npt.NDArray[np.float64]:
    """Return for each document and each neighbouring pair of terms 1 / their smallest distance, 0 if it is too large.

    Args:
        codes: Of the terms of all documents, in order.
        lengths: How many codes each document has.
        groups: The terms of the query.
    """
    numbers = np.zeros(1 << 16, dtype=np.uint8)
    for number, group in enumerate(groups, start=1):
        numbers[[code_of(term) for term in group]] = number
    numbers_at = numbers.take(codes)  # faster than numbers[codes]
    places = np.flatnonzero(numbers_at != 0)  # faster than of numbers
    terms = numbers_at[places].astype(np.int16)
    owners = np.cumsum(lengths).searchsorted(places, side="right")
    places += owners * _REACH  # so that places in different documents are out of each other's reach
    closeness = np.zeros((len(lengths), len(groups) - 1))
    for lag in range(1, _REACH + 1):  # between two places at most _REACH apart there are fewer than _REACH others
        distance = places[lag:] - places[:-lag]
        within = np.flatnonzero(distance <= _REACH)
        if not len(within):
            break  # places further on in the list are further away
        left, right = terms[within], terms[within + lag]
        near = np.abs(left - right) == 1
        at = within[near]
        pair = np.minimum(left, right)[near] - 1
        np.maximum.at(closeness, (owners[at], pair), 1 / distance[at])
    return closeness
