"""One moment of the BM25 index, and the scores of its documents, which equal those of a full rebuild.

Segments hold term frequencies. Document frequencies, the average length and so every weight are computed from the live
documents when a query comes. (bm25s cannot follow single edits: rebuilding it from token ids costs half a build.)

The score is Lucene's BM25: ``sum over terms of idf * tf / (tf + k1 * (1 - b + b * length / average))`` with
``idf = ln(1 + (N - df + .5) / (df + .5))``, in [0, infinity).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from llama_index_contextual.keyword.filters import Bools
from llama_index_contextual.keyword.segments import Codes, Counts, Ints, Segment, code_of

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

_AT_ONCE: Final = 2_000_000  # entries scored together: some 50 MB for the moment of a query
_SHORT: Final = 8  # rows a block below which a maximum a block saves nothing
_REACH: Final = 8  # terms apart that still count as near
MOST_TERMS: Final = 200  # of a query, beyond which nearness says nothing new; at most 255, which fit into a byte
_MOST_FREQUENCIES: Final = 10_000  # terms whose frequency a snapshot remembers
_NO_CODES: Final[Codes] = np.empty(0, dtype=np.uint16)

Group = tuple[str, ...]  # one term of a query: its alternatives count as the same term
Masks = Sequence[Bools]  # one a segment: rows that a filter admits


class Terms:
    """Give numbers to terms. It only grows, so older snapshots stay true; loading from disk starts a new one."""

    def __init__(self, terms: Iterable[str] = ()) -> None:
        self._numbers = {term: number for number, term in enumerate(terms)}

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Any:
        return iter(list(self._numbers))

    def __reduce__(self) -> tuple[type[Terms], tuple[list[str]]]:
        return (Terms, (list(self),))  # at once: a writer may add one meanwhile

    def number(self, term: str) -> int:
        """Return the term's number, a new one for a new term. Only writers call it."""
        return self._numbers.setdefault(term, len(self._numbers))

    def find(self, term: str) -> int | None:
        """Return the term's number, None for an unknown term."""
        return self._numbers.get(term)


class Match(NamedTuple):
    """Hold a document that matched.

    Args:
        node_id: Its id.
        score: BM25, greater than 0.
    """

    node_id: str
    score: float


@dataclass(frozen=True, slots=True)
class TermEvidence:
    """Hold a query term that was found in a document.

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
    """Hold what each term of a query adds to the score of each of some documents.

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
        found = (
            [
                TermEvidence(names[at], self.frequencies[at], self.idfs[at], float(row[at]))
                for at in np.flatnonzero(row).tolist()
            ]
            for row in self.scores
        )
        return [sorted(terms, key=lambda one: (-one.score, one.term)) for terms in found]


class Nearness(NamedTuple):
    """Hold how near to each other the terms of a query stand in each of some documents.

    Args:
        weight: The summed idf of the query's terms, which no BM25 score exceeds.
        shares: Of each document, 0 to 1: the mean over neighbouring terms of the query of 1 / (their smallest distance
            in the document, in either order), weighted by the smaller idf of the two. A distance above 8 counts as
            none. 1 says that the document holds the query as a phrase.
    """

    weight: float
    shares: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Snapshot:
    """Hold one moment of the index; every reader works on one."""

    segments: tuple[Segment, ...]
    terms: Terms
    k1: float
    b: float

    def __reduce__(self) -> tuple[type[Snapshot], tuple[Any, ...]]:
        return (Snapshot, (self.segments, self.terms, self.k1, self.b))  # what is remembered grows meanwhile

    @cached_property
    def count(self) -> int:
        """Return the number of live documents."""
        return sum(segment.live_count for segment in self.segments)

    @cached_property
    def average_length(self) -> float:
        """Return the number of terms in an average live document."""
        return sum(segment.live_length for segment in self.segments) / self.count if self.count else 0.0

    def idf(self, frequency: int) -> float:
        """Return the weight of a term that ``frequency`` live documents hold."""
        return math.log(1 + (self.count - frequency + 0.5) / (frequency + 0.5))

    def frequency(self, group: Group) -> int:
        """Return how many live documents hold any of a term's alternatives."""
        known = self._frequencies.get(group)
        if known is None:
            if len(self._frequencies) >= _MOST_FREQUENCIES:
                self._frequencies.clear()
            known = self._frequencies[group] = sum(len(rows) for rows, _ in self.entries(group))
        return known

    @cached_property
    def _frequencies(self) -> dict[Group, int]:
        """Return what :meth:`frequency` remembers."""
        return {}

    def entries(self, group: Group) -> list[tuple[Ints, Counts]]:
        """Return for each segment the live rows that hold any of the alternatives, ascending, and how often they do."""
        return [self.entries_in(segment, group) for segment in self.segments]

    def entries_in(self, segment: Segment, group: Group) -> tuple[Ints, Counts]:
        """Return the live rows of one segment that hold any of the alternatives, and how often they do."""
        numbers = [number for term in group if (number := self.terms.find(term)) is not None]
        return _union([segment.entries(number) for number in numbers])

    @cached_property
    def norms(self) -> list[npt.NDArray[np.float64]]:
        """Return for each segment and row what BM25 adds to a frequency in the divisor: more in longer documents."""
        average = self.average_length or 1.0
        lengths = (segment.lengths.astype(np.float64) for segment in self.segments)
        return [self.k1 * (1 - self.b + self.b * own / average) for own in lengths]

    def scores(self, groups: Iterable[Group]) -> list[npt.NDArray[np.float64]]:
        """Return for each segment the score of every row: 0 where no term matches."""
        found: list[list[tuple[Ints, Counts, float]]] = [[] for _ in self.segments]
        for group in dict.fromkeys(groups):  # a term counts once, however often a query repeats it
            entries = self.entries(group)
            idf = self.idf(sum(len(rows) for rows, _ in entries))
            for own, (rows, counts) in zip(found, entries, strict=True):
                if len(rows):
                    own.append((rows, counts, idf))
        return [_totals(own, norms) for own, norms in zip(found, self.norms, strict=True)]

    def search(self, groups: Iterable[Group], top_k: int, masks: Masks | None = None) -> list[Match]:
        """Return the best documents with at least one matching term, best first, ties by id."""
        scores = self.scores(groups)
        if masks is not None:
            scores = [np.where(mask, score, 0.0) for mask, score in zip(masks, scores, strict=True)]
        if top_k <= 0 or not scores:
            return []
        floor = _floor(scores, top_k)
        rows = [np.flatnonzero(score >= floor if floor else score) for score in scores]
        values = np.concatenate([score[found] for score, found in zip(scores, rows, strict=True)])
        owners = np.repeat(np.arange(len(rows)), [len(found) for found in rows])
        everything = np.concatenate(rows)
        if len(values) > top_k:
            # All that reach the k-th score, so that ties at the cut are broken by id and not by chance.
            keep = values >= np.partition(values, len(values) - top_k)[len(values) - top_k]
            values, owners, everything = values[keep], owners[keep], everything[keep]
        matches = [
            Match(self.segments[owner].ids[row], score)
            for owner, row, score in zip(owners.tolist(), everything.tolist(), values.tolist(), strict=True)
        ]
        return sorted(matches, key=lambda match: (-match.score, match.node_id))[:top_k]

    def term_scores(self, groups: Sequence[Group], node_ids: Sequence[str]) -> TermScores:
        """Return what each term of a query adds to the score of each document; repeated terms count once."""
        distinct = tuple(dict.fromkeys(groups))
        places = [self.locate(node_id) or (-1, -1) for node_id in node_ids]
        owners = np.array([number for number, _ in places], dtype=np.int64)
        wanted = np.array([row for _, row in places], dtype=np.int64)
        found = np.zeros((len(node_ids), len(distinct)))
        frequencies = []
        for column, group in enumerate(distinct):
            entries = self.entries(group)
            frequencies.append(sum(len(rows) for rows, _ in entries))
            idf = self.idf(frequencies[-1])
            for number, (rows, counts) in enumerate(entries):
                own = np.flatnonzero(owners == number)
                if len(own) and len(rows):
                    at = np.minimum(rows.searchsorted(wanted[own].astype(rows.dtype)), len(rows) - 1)
                    count = np.where(rows[at] == wanted[own], counts[at], 0).astype(np.float64)
                    found[own, column] = idf * count / (count + self.norms[number][wanted[own]])
        return TermScores(distinct, tuple(frequencies), tuple(map(self.idf, frequencies)), found)

    def nearness(self, groups: Sequence[Group], node_ids: Sequence[str]) -> Nearness:
        """Return how near to each other neighbouring terms of a query stand in each document."""
        distinct = tuple(dict.fromkeys(groups))[:MOST_TERMS]
        idfs = [self.idf(self.frequency(group)) for group in distinct]
        return nearness_of(distinct, idfs, len(node_ids), lambda: self._order_of(node_ids))

    def _order_of(self, node_ids: Sequence[str]) -> tuple[Codes, npt.NDArray[np.int64]]:
        """Return the codes of the terms of some documents one after the other, and how many each has."""
        if len(self.segments) == 1:  # the usual case
            (segment,) = self.segments
            return segment.order.of(segment.rows_of(node_ids))
        places = [self.locate(node_id) for node_id in node_ids]
        parts = [self.segments[place[0]].order[place[1]] if place else _NO_CODES for place in places]
        return np.concatenate([_NO_CODES, *parts]), np.array([len(part) for part in parts], dtype=np.int64)

    def values(self, key: str, node_ids: Iterable[str]) -> dict[str, Any]:
        """Return the documents' values of a metadata key without reading any node; None where one has none.

        The keys of :data:`~llama_index_contextual.keyword.filters.NOT_COLUMNS` have no values here.
        """
        places = {node_id: place for node_id in node_ids if (place := self.locate(node_id))}
        return {node_id: self.segments[number].columns.value(key, row) for node_id, (number, row) in places.items()}

    def locate(self, node_id: str) -> tuple[int, int] | None:
        """Return the segment and the row of a live document."""
        for number, segment in enumerate(self.segments):
            if (row := segment.row_of(node_id)) is not None:
                return number, row
        return None

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that exist."""
        places = {node_id: place for node_id in node_ids if (place := self.locate(node_id))}
        return {node_id: self.segments[number].records.node(row) for node_id, (number, row) in places.items()}

    def ids(self, masks: Masks | None = None) -> list[str]:
        """Return the ids of all live documents, or of those that a filter admits, in the order they were added."""
        found: list[str] = []
        for number, segment in enumerate(self.segments):
            keep = segment.live if masks is None else segment.live & masks[number]
            found += [segment.ids[row] for row in np.flatnonzero(keep).tolist()]
        return found


def nearness_of(
    groups: Sequence[Group],
    idfs: Sequence[float],
    count: int,
    order: Callable[[], tuple[Codes, npt.NDArray[np.int64]]],
) -> Nearness:
    """Return how near to each other neighbouring terms of a query stand in each document.

    Args:
        groups: The distinct terms of the query.
        idfs: The weight of each term.
        count: How many documents there are.
        order: Returns the codes of their terms, one document after the other, and how many each has.
    """
    weights = np.array(idfs, dtype=np.float64)
    pairs = np.minimum(weights[1:], weights[:-1])  # a pair is as rare as its more frequent term
    total = float(pairs.sum())
    if not total:
        return Nearness(float(weights.sum()), np.zeros(count))
    return Nearness(float(weights.sum()), _closeness(*order(), groups) @ pairs / total)


def _closeness(codes: Codes, lengths: npt.NDArray[np.int64], groups: Sequence[Group]) -> npt.NDArray[np.float64]:
    """Return for each document and each neighbouring pair of terms 1 / their smallest distance, 0 if it is too large.

    Args:
        codes: Of the terms of all documents, in order.
        lengths: How many codes each document has.
        groups: The terms of the query.
    """
    numbers = np.zeros(1 << 16, dtype=np.uint8)
    for number, group in enumerate(groups, start=1):
        numbers[[code_of(term) for term in group]] = number
    found = numbers.take(codes)  # faster than numbers[codes]
    places = np.flatnonzero(found != 0)  # faster than of numbers
    terms = found[places].astype(np.int16)
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


def _totals(entries: Sequence[tuple[Ints, Counts, float]], norms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the score of every row of a segment, given rows, frequencies and weight of each term of a query.

    All terms are added at once, because one pass over memory is faster than one for each term. Long queries are added
    in parts, which bounds the memory.
    """
    totals = np.zeros(len(norms), dtype=np.float64)
    part: list[tuple[Ints, Counts, float]] = []
    for number, entry in enumerate(entries, start=1):
        part.append(entry)
        if number == len(entries) or sum(len(rows) for rows, _, _ in part) > _AT_ONCE:
            rows = np.concatenate([rows for rows, _, _ in part])
            earned = np.concatenate([counts for _, counts, _ in part]).astype(np.float64)
            earned /= earned + norms[rows]
            earned *= np.repeat([idf for _, _, idf in part], [len(rows) for rows, _, _ in part])
            totals += np.bincount(rows, weights=earned, minlength=len(norms))
            part = []
    return totals


def _floor(scores: Sequence[npt.NDArray[np.float64]], top_k: int) -> float:
    """Return a score that at least ``top_k`` rows reach, so that others can be skipped; 0 where none is known.

    It is the k-th largest of the maxima of many blocks: reading the scores once is faster than partitioning all.
    """
    block = sum(map(len, scores)) // (4 * top_k)
    if block < _SHORT:
        return 0.0
    whole = [score[: len(score) // block * block].reshape(-1, block).max(axis=1) for score in scores]
    maxima = np.concatenate(whole)
    return float(np.partition(maxima, len(maxima) - top_k)[len(maxima) - top_k]) if len(maxima) >= top_k else 0.0


def _union(parts: Sequence[tuple[Ints, Counts]]) -> tuple[Ints, Counts]:
    """Return the entries of several alternatives as those of one term: rows ascending, counts added."""
    found = [part for part in parts if len(part[0])]
    if len(found) == 1:
        return found[0]
    if not found:
        return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.uint16)
    rows = np.concatenate([rows for rows, _ in found])
    order = rows.argsort(kind="stable")  # merges what is sorted already, and takes a third of the time of np.unique
    rows, counts = rows[order], np.concatenate([counts for _, counts in found])[order]
    first = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
    return rows[first], np.add.reduceat(counts, first, dtype=np.int64).astype(np.uint16)
