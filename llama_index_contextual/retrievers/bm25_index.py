"""BM25 over arrays: for each term the rows that contain it, as a sparse matrix keeps them (CSR).

The score of a row is the sum over the query's terms of ``idf(term) * saturation(count, norm)``,
Lucene's form. Document frequencies and the average length are those of all living rows, so scores
equal those of a full rebuild, whatever filters leave out.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from llama_index_contextual.retrievers.arrays import (
    ArrayIndex,
    Floats,
    Ints,
    Numbers,
    Part,
    RowArrays,
    matches,
    require,
)
from llama_index_contextual.retrievers.terms import Group, is_day, terms_of

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode


K1: Final = 1.2
B: Final = 0.75
_MOST_REMEMBERED: Final = 8  # queries whose postings are kept: each is read several times
_REACH: Final = 8  # terms further apart are not near each other


def idf(documents: int, document_frequency: int) -> float:
    """Return the weight of a term: the rarer, the higher."""
    return float(np.log(1 + (documents - document_frequency + 0.5) / (document_frequency + 0.5)))


def length_norm(lengths: Numbers, average: float) -> Floats:
    """Return what BM25 adds to a term frequency in the divisor: the longer the text, the more."""
    return K1 * (1 - B + B * lengths.astype(np.float64) / average)


def saturation(counts: Floats, norm: Floats) -> Floats:
    """Return the share of a term's weight that a row gets; it grows ever less with the count."""
    return counts / (counts + norm)


class Candidate(NamedTuple):
    """A hit of a retriever.

    Attributes:
        node_id: The id of the node.
        score: The score of the retriever; None where it gives none.
        node: The node, where the retriever had it at hand.
    """

    node_id: str
    score: float | None
    node: BaseNode | None = None


class Pool(NamedTuple):
    """The best nodes of a retriever for one query: those that match its filters, and those of all.

    The scores of the latter set the scale, so that a filter changes no score.
    """

    matching: list[Candidate]
    unfiltered: list[Candidate]


class TermEvidence(NamedTuple):
    """A query term that a node contains, as the index writes it, and its part of the BM25 score."""

    term: str
    document_frequency: int
    idf: float
    score: float


class TermScores(NamedTuple):
    """What each distinct term of a query adds to the score of each of some nodes.

    Attributes:
        groups: The terms.
        frequencies: In how many nodes of the index each occurs.
        idfs: The weight of each.
        scores: The part of each term in the score of each node; shape (nodes, terms).
        counts: How often each term occurs in each node; shape (nodes, terms).
    """

    groups: tuple[Group, ...]
    frequencies: tuple[int, ...]
    idfs: tuple[float, ...]
    scores: Floats
    counts: Floats

    def shares(self) -> list[float] | None:
        """Return the share of the terms that each node contains, by weight; None without terms."""
        total = math.fsum(self.idfs)
        if not total:
            return None
        shares: list[float] = ((self.scores > 0) @ np.array(self.idfs) / total).tolist()
        return shares

    def evidence(self) -> list[list[TermEvidence]]:
        """Return the terms that each node contains, the most important first."""
        terms = [group[0] for group in self.groups]
        evidence_by_node = []
        for node_scores in self.scores.tolist():
            columns = zip(terms, self.frequencies, self.idfs, node_scores, strict=True)
            evidence = [TermEvidence(*column) for column in columns if column[-1]]
            evidence.sort(key=lambda term: (-term.score, term.term))
            evidence_by_node.append(evidence)
        return evidence_by_node


@lru_cache(maxsize=1 << 15)
def term_number(term: str) -> int:
    """Return a number of 64 bits for a term, the same in every process."""
    digest = blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True, eq=False)
class TermArrays(RowArrays):
    """The terms of some rows.

    Attributes:
        ids: The number of each row.
        bounds: Where the tokens of each row begin, and where the last ones end.
        terms: The numbers of all distinct terms, ascending.
        tokens: The terms of all rows in their order, each as its place in ``terms``.
        starts: Where the postings of each term begin, and where the last ones end.
        places: Postings: the place of a row in ``ids``, ascending within a term.
        counts: Postings: how often the row contains the term.
    """

    bounds: Ints
    terms: Numbers
    tokens: Numbers
    starts: Numbers
    places: Numbers
    counts: Numbers

    @classmethod
    def build(cls, ids: Ints, texts: Iterable[Iterable[str]]) -> TermArrays:
        """Return the arrays of rows, from the terms of each in their order.

        Raises:
            ValueError: There are fewer texts than rows, or more.
        """
        place_of = defaultdict[str, int]()
        place_of.default_factory = place_of.__len__
        tokens = array("i")
        bounds = array("q", [0])
        for terms in texts:
            tokens.extend(map(place_of.__getitem__, terms))
            bounds.append(len(tokens))
        if len(bounds) != len(ids) + 1:
            raise ValueError(f"{len(ids)} rows have {len(bounds) - 1} texts")
        numbers = np.fromiter(map(term_number, place_of), np.uint64, len(place_of))
        vocabulary, rank = np.unique(numbers, return_inverse=True)
        ranks = rank[np.frombuffer(tokens, np.int32)]
        return cls._from_tokens(ids, np.array(bounds), vocabulary, ranks)

    @classmethod
    def merge(cls, parts: Sequence[Part]) -> TermArrays:
        """Return the living rows of several arrays as one."""
        terms = np.unique(np.concatenate([arrays.terms for arrays, _ in parts]))
        ids = []
        lengths = [np.zeros(1, np.int64)]
        tokens = []
        for arrays, live in parts:
            row_lengths = np.diff(arrays.bounds)
            is_kept = np.repeat(live, row_lengths)
            ids.append(arrays.ids[live])
            lengths.append(row_lengths[live])
            tokens.append(terms.searchsorted(arrays.terms)[arrays.tokens[is_kept]])
        bounds = np.cumsum(np.concatenate(lengths))
        return cls._from_tokens(np.concatenate(ids), bounds, terms, np.concatenate(tokens))

    @classmethod
    def _from_tokens(cls, ids: Ints, bounds: Ints, terms: Numbers, tokens: Numbers) -> TermArrays:
        """Return the arrays of rows, without terms that no row contains."""
        size = max(len(ids), 1)
        rows = np.repeat(np.arange(len(ids)), np.diff(bounds))
        postings, counts = np.unique(tokens * size + rows, return_counts=True)
        owners, places = np.divmod(postings, size)
        starts = owners.searchsorted(np.arange(len(terms) + 1))
        is_used = np.diff(starts) > 0
        new_places = np.cumsum(is_used) - 1
        return cls(
            ids=np.asarray(ids, np.int64),
            bounds=bounds,
            terms=terms[is_used],
            tokens=new_places[tokens].astype(np.int32),
            starts=np.append(starts[:-1][is_used], len(places)),
            places=places.astype(np.int32),
            counts=counts.astype(np.min_scalar_type(int(counts.max(initial=0)))),
        )

    def check(self) -> None:
        """Raise a ValueError where the arrays do not fit together."""
        require(len(np.unique(self.ids)) == len(self.ids))
        require(self.terms.dtype == np.uint64 and _ascends(self.terms, strictly=True))
        require(len(self.bounds) == len(self.ids) + 1 and len(self.starts) == len(self.terms) + 1)
        require(len(self.places) == len(self.counts))
        for bounds, values in ((self.bounds, self.tokens), (self.starts, self.places)):
            require(bounds[0] == 0 and bounds[-1] == len(values) and _ascends(bounds))
        for places, size in ((self.tokens, len(self.terms)), (self.places, len(self.ids))):
            require(not len(places) or (places.min() >= 0 and places.max() < size))

    def places_of(self, group: Group) -> Ints:
        """Return the places in ``terms`` of the alternatives of a term that a row contains."""
        numbers = [term_number(term) for term in dict.fromkeys(group)]
        return matches(self.terms, np.array(numbers, np.uint64))[0]

    def postings(self, terms: Ints) -> tuple[Numbers, Numbers]:
        """Return the places of the rows that contain a term, ascending, and how often each does.

        Args:
            terms: The places in ``terms`` of the alternatives of the term.
        """
        places = [self.places[:0]]
        counts = [self.counts[:0]]
        for term in terms:
            posting = slice(int(self.starts[term]), int(self.starts[term + 1]))
            places.append(self.places[posting])
            counts.append(self.counts[posting])
        if len(places) <= 2:  # noqa: PLR2004  the postings of a single alternative
            return places[-1], counts[-1].astype(np.float64)
        rows, inverse = np.unique(np.concatenate(places), return_inverse=True)
        return rows, np.bincount(inverse, np.concatenate(counts), len(rows))

    def closeness(self, places: Ints, query_terms: Sequence[Ints]) -> Floats:
        """Return 1 / the smallest distance of each neighbouring pair of terms in rows.

        Args:
            places: The places of the rows.
            query_terms: For each term, the places in ``terms`` of its alternatives.

        Returns:
            An array of the shape (rows, pairs), 0 where the distance is larger than ``_REACH``.
        """
        # Gather the tokens of the rows.
        starts = self.bounds[places]
        lengths = self.bounds[places + 1] - starts
        ends = np.cumsum(lengths)
        offsets = np.arange(lengths.sum()) + np.repeat(starts - ends + lengths, lengths)
        tokens = self.tokens.take(offsets)

        # Keep those that are terms of the query; take() is faster than indexing.
        query_places = np.zeros(len(self.terms), dtype=np.int16)
        for number, alternatives in enumerate(query_terms, start=1):
            query_places[alternatives] = number
        token_terms = query_places.take(tokens)
        positions = np.flatnonzero(token_terms != 0)
        terms = token_terms[positions]
        rows = ends.searchsorted(positions, side="right")
        positions += rows * _REACH  # tokens of different rows are out of each other's reach

        # Compare each token with the next ones; fewer than _REACH stand between near ones.
        closeness = np.zeros((len(places), len(query_terms) - 1))
        for lag in range(1, _REACH + 1):
            distances = positions[lag:] - positions[:-lag]
            left = terms[:-lag]
            right = terms[lag:]
            is_near = (distances <= _REACH) & (np.abs(left - right) == 1)
            pairs = np.minimum(left, right)[is_near] - 1
            cells = (rows[:-lag][is_near], pairs)
            np.maximum.at(closeness, cells, 1 / distances[is_near])
        return closeness


def _ascends(values: Numbers, *, strictly: bool = False) -> bool:
    if strictly:
        return bool((values[1:] > values[:-1]).all())
    return bool((values[1:] >= values[:-1]).all())


@dataclass(frozen=True, slots=True, eq=False)
class QueryTerm:
    """A term of a query, and where an index contains it.

    Attributes:
        group: The term.
        idf: Its weight.
        places: The places in :attr:`Bm25Index.every` of the living rows that contain it, ascending.
        counts: How often each of them contains it.
        shares: The share of the weight that each of them gets.
        vocabulary: For each part of the index, the places of its alternatives in ``terms``.
    """

    group: Group
    idf: float
    places: Ints
    counts: Floats
    shares: Floats
    vocabulary: Sequence[Ints]


class Bm25Index(ArrayIndex):
    """BM25 over rows."""

    made_of = TermArrays

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        super().__init__(parts)
        self._remembered: dict[tuple[Group, ...], Sequence[QueryTerm]] = {}
        part_lengths = [np.diff(arrays.bounds) for arrays, _ in parts]
        lengths = np.concatenate([np.empty(0, np.int64), *part_lengths])
        average = int(lengths[self.live].sum()) / max(len(self), 1) or 1.0
        self._norms = length_norm(lengths, average)

    def with_texts(self, rows: Sequence[int] | Ints, texts: Iterable[str]) -> Bm25Index:
        """Return the index with more rows; a known row gets the new text.

        Raises:
            ValueError: There are fewer texts than rows, or more.
        """
        if not len(rows):
            return self
        ids = np.asarray(rows, np.int64)
        return self.changed(ids, TermArrays.build(ids, map(terms_of, texts)))

    def search(
        self, groups: Sequence[Group], top_k: int, among: Ints | None = None
    ) -> list[tuple[Ints, Floats]]:
        """Return the best rows with at least one matching term, best first, and their scores.

        Rows that tie with the last of them are added, so that the caller can break ties.

        Args:
            groups: The terms of the query; each counts once.
            top_k: How many rows.
            among: Rows for which there is a second list: the best of these.
        """
        scores = np.zeros(len(self.every))
        for term in self.read(groups):  # in turn, so that equal texts have equal scores
            scores[term.places] += term.shares * term.idf
        places = np.flatnonzero(scores)
        hits = [self.best(scores[places], top_k, places)]
        if among is not None:
            places = places[np.isin(self.every[places], among)]
            hits.append(self.best(scores[places], top_k, places))
        return hits

    def holding(self, groups: Sequence[Group]) -> Ints:
        """Return the rows that contain every term, ascending; none without terms."""
        rows = self.rows if groups else self.rows[:0]
        for term in self.read(groups):
            rows = np.intersect1d(rows, self.every[term.places])
        return rows

    def term_scores(self, groups: Sequence[Group], rows: Sequence[int] | Ints) -> TermScores:
        """Return what each term adds to the score of each row; unknown rows contain no term."""
        terms = self.read(groups)
        row_places, row_hits = self.find(rows)
        scores = np.zeros((len(rows), len(terms)))
        counts = np.zeros_like(scores)
        for column, term in enumerate(terms):
            postings, hits = matches(term.places, row_places)
            cells = (row_hits[hits], column)
            counts[cells] = term.counts[postings]
            scores[cells] = term.shares[postings] * term.idf
        return TermScores(
            groups=tuple(term.group for term in terms),
            frequencies=tuple(len(term.places) for term in terms),
            idfs=tuple(term.idf for term in terms),
            scores=scores,
            counts=counts,
        )

    def nearness(self, groups: Sequence[Group], rows: Sequence[int] | Ints) -> Floats:
        """Return how near to each other the terms of a query stand in each row, 0 to 1.

        It is the mean over neighbouring terms of 1 / (their smallest distance in the row),
        weighted by the smaller idf: a pair is as rare as its more frequent term.
        """
        terms = self.read(groups)
        shares = np.zeros(len(rows))
        idfs = np.array([term.idf for term in terms], np.float64)
        weights = np.minimum(idfs[1:], idfs[:-1])
        total = float(weights.sum())
        if not total:
            return shares
        places, hits = self.find(rows)
        for number, (arrays, inside, part_hits) in enumerate(self.by_part(places)):
            vocabulary = [term.vocabulary[number] for term in terms]
            # Not a product of matrices: there the sum of a row depends on how many there are.
            closeness = np.einsum("ij,j->i", arrays.closeness(inside, vocabulary), weights)
            shares[hits[part_hits]] = closeness / total
        return shares

    def read(self, groups: Sequence[Group]) -> Sequence[QueryTerm]:
        """Return the distinct terms of a query in their order, with the rows that contain them."""
        distinct = tuple(dict.fromkeys(groups))
        terms = self._remembered.get(distinct)
        if terms is None:
            terms = [self._read_term(group) for group in distinct]
            kept = self._remembered if len(self._remembered) < _MOST_REMEMBERED else {}
            # A new dictionary, as other threads may read the old one.
            self._remembered = {**kept, distinct: terms}
        return terms

    def _read_term(self, group: Group) -> QueryTerm:
        vocabulary = []
        all_places = [np.empty(0, np.int64)]
        all_counts = [np.empty(0)]
        start = 0
        for arrays, live in self.parts:
            alternatives = arrays.places_of(group)
            places, counts = arrays.postings(alternatives)
            is_live = live[places]
            vocabulary.append(alternatives)
            all_places.append(places[is_live] + start)
            all_counts.append(counts[is_live])
            start += len(live)
        places = np.concatenate(all_places)
        counts = np.concatenate(all_counts)
        weight = idf(len(self.rows), len(places))
        if not len(places) and is_day(group):
            weight = 0.0  # the year, the month and the number of a day are terms as well
        shares = saturation(counts, self._norms[places])
        return QueryTerm(group, weight, places, counts, shares, vocabulary)
