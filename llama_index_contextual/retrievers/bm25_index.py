"""BM25 over arrays with the positions of each term in each row.

The score of a row is the sum over the query's terms of ``idf * count / (count + norm)``, Lucene's
formula, where ``norm = K1 * (1 - B + B * length / average length)``. Document frequencies and the
average length are those of all live rows. Scores are therefore the same as after a full rebuild,
with and without filters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

import numpy as np

from llama_index_contextual.retrievers.arrays import (
    ArrayIndex,
    Floats,
    Ints,
    Numbers,
    Part,
    RowArrays,
    Rows,
    ScoredRows,
    are_offsets,
    find_sorted,
    require,
)
from llama_index_contextual.retrievers.terms import Group, groups_of, is_day, language_of
from llama_index_contextual.retrievers.words import words_of

K1 = 1.2
B = 0.75
_MAX_CACHED = 8  # queries whose postings are cached, because each is read several times
_REACH = 8  # terms further apart are not near each other
_NUMBER = np.dtype("<u8")  # the type of term numbers


def idf(documents: int, document_frequency: int) -> float:
    """Return the weight of a term. A rare term has a high weight."""
    return float(np.log(1 + (documents - document_frequency + 0.5) / (document_frequency + 0.5)))


class TermEvidence(NamedTuple):
    """A query term in a node, in the form of the index, with its summand in the BM25 score."""

    term: str
    document_frequency: int
    idf: float
    score: float


class TermScores(NamedTuple):
    """The distinct terms of a query, and their summands in the scores of some nodes.

    Attributes:
        groups: The terms.
        frequencies: The number of nodes in the index that contain each term.
        idfs: The weight of each term.
        scores: The summand of each term in the score of each node, shape (nodes, terms).
        counts: The number of occurrences of each term in each node, shape (nodes, terms).
    """

    groups: tuple[Group, ...]
    frequencies: tuple[int, ...]
    idfs: tuple[float, ...]
    scores: Floats
    counts: Floats

    def of_nodes(self, node_ids: Sequence[str], chosen: Sequence[str]) -> TermScores:
        """Return the scores of the chosen nodes.

        Args:
            node_ids: The ids of all nodes of these scores.
            chosen: The ids of the chosen nodes.
        """
        rows = [node_ids.index(node_id) for node_id in chosen]
        return self._replace(scores=self.scores[rows], counts=self.counts[rows])

    def shares(self) -> list[float] | None:
        """Return the share of the terms in each node, by weight. None means that no term counts."""
        total = math.fsum(self.idfs)
        if not total:
            return None
        shares: list[float] = ((self.scores > 0) @ np.array(self.idfs) / total).tolist()
        return shares

    def evidence(self) -> list[list[TermEvidence]]:
        """Return the terms that each node contains, most important first."""
        terms = [group[0] for group in self.groups]
        evidence_by_node = []
        for node_scores in self.scores.tolist():
            columns = zip(terms, self.frequencies, self.idfs, node_scores, strict=True)
            evidence = [TermEvidence(*column) for column in columns if column[-1]]
            evidence.sort(key=lambda term: (-term.score, term.term))
            evidence_by_node.append(evidence)
        return evidence_by_node


def term_number(term: str) -> int:
    """Return the 64-bit number of a term. It is the same in every process."""
    return int.from_bytes(_term_bytes(term), "little")


@lru_cache(maxsize=10_000)
def _term_bytes(term: str) -> bytes:
    return blake2b(term.encode("utf-8", "surrogatepass"), digest_size=_NUMBER.itemsize).digest()


class _NumbersByWord(dict[str, bytes]):
    """A cache of the numbers of the terms of each word in a language."""

    def __init__(self, language: str) -> None:
        self.language = language

    def __missing__(self, word: str) -> bytes:
        terms = chain.from_iterable(groups_of(self.language, word))
        numbers = self[word] = b"".join(map(_term_bytes, terms))
        return numbers


@dataclass(frozen=True, eq=False)
class TermArrays(RowArrays):
    """The occurrences of terms in some rows.

    Attributes:
        ids: The number of each row.
        lengths: The number of terms in each row, including repeated ones.
        terms: The numbers of all distinct terms, ascending.
        starts: The offset of the first occurrence of each term, followed by the end of the last.
        places: For each occurrence, the position of its row in ``ids``, ascending within a term.
        positions: The number of terms before each occurrence in its row.
    """

    lengths: Ints
    terms: Numbers
    starts: Ints
    places: Numbers
    positions: Numbers

    @classmethod
    def merge(cls, parts: Sequence[Part]) -> TermArrays:
        """Merge the live rows of several arrays."""
        start = 0
        numbers = []
        places = []
        for arrays, live in parts:
            numbers.append(np.repeat(arrays.terms, np.diff(arrays.starts)))
            places.append(start + arrays.places.astype(np.int64))
            start += len(live)
        live_rows = np.concatenate([live for _, live in parts])
        new_places = np.cumsum(live_rows) - 1
        all_places = np.concatenate(places)
        is_kept = live_rows[all_places]
        return cls.by_term(
            ids=np.concatenate([arrays.ids for arrays, _ in parts])[live_rows],
            lengths=np.concatenate([arrays.lengths for arrays, _ in parts])[live_rows],
            numbers=np.concatenate(numbers)[is_kept],
            places=new_places[all_places[is_kept]],
            positions=np.concatenate([arrays.positions for arrays, _ in parts])[is_kept],
        )

    @classmethod
    def by_term(
        cls, ids: Ints, lengths: Ints, numbers: Numbers, places: Ints, positions: Ints
    ) -> TermArrays:
        """Sort occurrences by term. Within each term they must already ascend by place."""
        order = np.argsort(numbers, kind="stable")
        sorted_numbers = numbers[order]
        is_first = np.append(True, sorted_numbers[1:] != sorted_numbers[:-1])
        starts = np.flatnonzero(is_first[: len(numbers)])
        return cls(
            ids=ids,
            lengths=lengths,
            terms=sorted_numbers[starts],
            starts=np.append(starts, len(numbers)),
            places=_compact(places[order]),
            positions=_compact(positions[order]),
        )

    def check(self) -> None:
        """Raise a ValueError if the arrays are inconsistent."""
        ascending_ids = np.sort(self.ids)
        require(bool((ascending_ids[1:] > ascending_ids[:-1]).all()))
        require(len(self.ids) == len(self.lengths))
        require(self.terms.dtype == np.uint64 and bool((self.terms[1:] > self.terms[:-1]).all()))
        require(len(self.starts) == len(self.terms) + 1)
        require(are_offsets(self.starts, len(self.places)))
        # Each position of a row must occur once.
        require(len(self.places) == len(self.positions) == self.lengths.sum())
        require(np.array_equal(np.bincount(self.places, minlength=len(self.ids)), self.lengths))
        require(bool((self.positions < _compact(self.lengths)[self.places]).all()))

    def span_of(self, number: np.uint64) -> slice:
        """Return the span of the occurrences of a term. It is empty if no row has the term."""
        term = int(self.terms.searchsorted(number))
        if term == len(self.terms) or self.terms[term] != number:
            return slice(0)
        return slice(int(self.starts[term]), int(self.starts[term + 1]))


class TermCollector:
    """Collects the terms of texts, and turns them into arrays at once."""

    def __init__(self) -> None:
        self._numbers = bytearray()
        self._ends = [0]
        self._numbers_by_language: dict[str, _NumbersByWord] = {}

    def add(self, text: str) -> str:
        """Add the terms of a text and return its language."""
        language = language_of(text)
        numbers_of = self._numbers_by_language.setdefault(language, _NumbersByWord(language))
        self._numbers += b"".join(map(numbers_of.__getitem__, words_of(text)))
        self._ends.append(len(self._numbers) // _NUMBER.itemsize)
        return language

    def arrays(self, ids: Ints) -> TermArrays:
        """Return the arrays of rows.

        Args:
            ids: The number of the row of each added text.

        Raises:
            ValueError: The numbers of rows and texts differ.
        """
        lengths = np.diff(self._ends)
        if len(lengths) != len(ids):
            raise ValueError(f"{len(ids)} rows have {len(lengths)} texts")
        numbers = np.frombuffer(self._numbers, _NUMBER).astype(np.uint64, copy=False)
        places = np.repeat(np.arange(len(ids)), lengths)
        positions = np.arange(len(numbers)) - np.array(self._ends)[places]
        return TermArrays.by_term(ids, lengths, numbers, places, positions)


def _compact(values: Ints) -> Numbers:
    """Return numbers from 0 in the smallest integer type that fits."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


@dataclass(frozen=True, slots=True, eq=False)
class QueryTerm:
    """A term of a query, and its occurrences in an index.

    Attributes:
        group: The term.
        idf: The weight of the term.
        token_places: For each occurrence in a live row, the position of the row in
            :attr:`Bm25Index.all_rows`.
        positions: The number of terms before each occurrence in its row.
        places: The positions of the rows that contain the term, ascending.
        counts: The number of occurrences in each of these rows.
        scores: The summand of the term in the score of each of these rows.
    """

    group: Group
    idf: float
    token_places: Ints
    positions: Ints
    places: Ints
    counts: Floats
    scores: Floats


class Bm25Index(ArrayIndex):
    """A BM25 index of rows."""

    arrays_type = TermArrays

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        super().__init__(parts)
        self._cached_terms: dict[tuple[Group, ...], Sequence[QueryTerm]] = {}
        self._lengths = np.concatenate([np.empty(0), *(arrays.lengths for arrays, _ in parts)])
        average_length = self._lengths[self.live].sum() / max(len(self), 1) or 1.0
        self._norms = K1 * (1 - B + B * self._lengths / average_length)
        self._has_dead_rows = not self.live.all()

    def with_terms(self, rows: Rows, terms: TermCollector) -> Bm25Index:
        """Return the index with further rows. A known row is replaced.

        Raises:
            ValueError: The numbers of rows and texts differ.
        """
        if not len(rows):
            return self
        ids = np.asarray(rows, np.int64)
        return self.changed(ids, terms.arrays(ids))

    def search(
        self, groups: Sequence[Group], top_k: int, among: Ints | None = None
    ) -> list[ScoredRows]:
        """Return the best rows with at least one matching term, best first, and their scores.

        All rows that tie with the last row are included, so that the caller can break ties.

        Args:
            groups: The terms of the query. Repeated terms are used once.
            top_k: The number of rows.
            among: If given, the result has a second list with the best of these rows.
        """
        scores = np.zeros(len(self.all_rows))
        for term in self.query_terms(groups):  # always in the same order, so that equal texts tie
            scores[term.places] += term.scores
        places = np.flatnonzero(scores)
        lists = [self.best(scores[places], top_k, places)]
        if among is not None:
            places = places[np.isin(self.all_rows[places], among)]
            lists.append(self.best(scores[places], top_k, places))
        return lists

    def rows_with_all(self, groups: Sequence[Group]) -> Ints:
        """Return the rows that contain every term, ascending. Without terms, return none."""
        rows = self.rows if groups else self.rows[:0]
        for term in self.query_terms(groups):
            rows = np.intersect1d(rows, self.all_rows[term.places])
        return rows

    def term_scores(self, groups: Sequence[Group], rows: Rows) -> TermScores:
        """Return the summand of each term in the score of each row. Unknown rows have no terms."""
        terms = self.query_terms(groups)
        places, positions = self.find(rows)
        scores = np.zeros((len(rows), len(terms)))
        counts = np.zeros_like(scores)
        for column, term in enumerate(terms):
            entries, with_term = find_sorted(term.places, places)
            cells = (positions[with_term], column)
            counts[cells] = term.counts[entries]
            scores[cells] = term.scores[entries]
        return TermScores(
            groups=tuple(term.group for term in terms),
            frequencies=tuple(len(term.places) for term in terms),
            idfs=tuple(term.idf for term in terms),
            scores=scores,
            counts=counts,
        )

    def nearness(self, groups: Sequence[Group], rows: Rows) -> Floats:
        """Return how close together the terms of a query are in each row, 0 to 1.

        This is the mean of 1 / (smallest distance in the row) over pairs of neighbouring terms. A
        pair is weighted by the smaller idf, because it is as rare as its more frequent term.
        """
        terms = self.query_terms(groups)
        idfs = np.array([term.idf for term in terms], np.float64)
        weights = np.minimum(idfs[1:], idfs[:-1])
        total = float(weights.sum())
        if not total:
            return np.zeros(len(rows))

        # Number the tokens of all rows, with gaps so that tokens of different rows are never near.
        places, positions = self.find(rows)
        row_of_place = np.full(len(self.all_rows), -1)
        row_of_place[places] = positions
        row_size = int(self._lengths.max(initial=0)) + _REACH
        tokens = []
        for term in terms:
            token_rows = row_of_place[term.token_places]
            read = np.flatnonzero(token_rows >= 0)
            tokens.append(np.sort(token_rows[read] * row_size + term.positions[read]))

        # Compare all pairs of neighbouring terms at once, with a range of token numbers for each.
        starts = np.arange(len(weights)) * len(rows) * row_size
        first_tokens = np.concatenate([*map(np.add, tokens[:-1], starts)])
        second_tokens = np.concatenate([*map(np.add, tokens[1:], starts)])
        near_tokens, distances = _nearby(first_tokens, second_tokens)
        closest = np.zeros(len(weights) * len(rows))
        np.maximum.at(closest, near_tokens // row_size, 1 / distances)
        by_pair = closest.reshape(len(weights), len(rows))
        nearness: Floats = (weights[:, None] * by_pair).sum(axis=0) / total
        return nearness

    def query_terms(self, groups: Sequence[Group]) -> Sequence[QueryTerm]:
        """Return the distinct terms of a query in order, with the rows that contain them."""
        distinct = tuple(dict.fromkeys(groups))
        terms = self._cached_terms.get(distinct)
        if terms is None:
            terms = [self._read_term(group) for group in distinct]
            kept = self._cached_terms if len(self._cached_terms) < _MAX_CACHED else {}
            # Replace the dictionary, because other threads can be reading the old one.
            self._cached_terms = {**kept, distinct: terms}
        return terms

    def _read_term(self, group: Group) -> QueryTerm:
        token_places, positions = self._occurrences(group)
        is_first = np.ones(len(token_places), np.bool_)  # the first token of each row
        is_first[1:] = token_places[1:] != token_places[:-1]
        starts = np.flatnonzero(is_first)
        places = token_places[starts]
        counts = np.diff(np.append(starts, len(token_places))).astype(np.float64)
        weight = idf(len(self.rows), len(places))
        if not len(places) and is_day(group):
            weight = 0.0  # the year, month and number of the day are terms of their own
        scores = counts / (counts + self._norms[places]) * weight
        return QueryTerm(group, weight, token_places, positions, places, counts, scores)

    def _occurrences(self, group: Group) -> tuple[Ints, Ints]:
        """Return the place and the position of each occurrence of a term in live rows.

        Places ascend.
        """
        numbers = {term_number(term) for term in group}
        start = 0
        places = [np.empty(0, np.int64)]
        positions = [np.empty(0, np.int64)]
        for arrays, live in self.parts:
            for number in numbers:
                span = arrays.span_of(np.uint64(number))
                places.append(start + arrays.places[span].astype(np.int64))
                positions.append(arrays.positions[span])
            start += len(live)
        all_places = np.concatenate(places)
        all_positions = np.concatenate(positions)
        if self._has_dead_rows:
            is_live = self.live[all_places]
            all_places = all_places[is_live]
            all_positions = all_positions[is_live]
        if len(numbers) > 1:
            order = np.argsort(all_places, kind="stable")
            all_places = all_places[order]
            all_positions = all_positions[order]
        return all_places, all_positions


def _nearby(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Return the first tokens that are near a second one, and their distances.

    Both arrays must ascend.
    """
    if not len(second):
        return first[:0], first[:0]
    following = np.minimum(second.searchsorted(first), len(second) - 1)
    preceding = np.maximum(following - 1, 0)
    distances = np.minimum(np.abs(second[following] - first), np.abs(first - second[preceding]))
    is_near = distances <= _REACH
    # A token that is an alternative of both terms has distance 0. Treat it as 1.
    return first[is_near], np.maximum(distances[is_near], 1)
