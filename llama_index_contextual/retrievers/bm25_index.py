"""BM25 over arrays: for each term the rows that contain it, and where it stands in them.

The score of a row is the sum over the query's terms of ``idf * count / (count + norm)``, Lucene's
form, where ``norm = K1 * (1 - B + B * length / average length)``. Document frequencies and the
average length are those of all living rows, so scores equal those of a full rebuild, whatever
filters leave out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

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
    matches,
    require,
)
from llama_index_contextual.retrievers.terms import Group, groups_of, is_day, language_of
from llama_index_contextual.retrievers.words import words_of

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode


K1: Final = 1.2
B: Final = 0.75
_MOST_REMEMBERED: Final = 8  # queries whose postings are kept: each is read several times
_REACH: Final = 8  # terms further apart are not near each other
_NUMBER: Final = np.dtype("<u8")  # of a term


def idf(documents: int, document_frequency: int) -> float:
    """Return the weight of a term: the rarer, the higher."""
    return float(np.log(1 + (documents - document_frequency + 0.5) / (document_frequency + 0.5)))


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

    def of_nodes(self, node_ids: Sequence[str], chosen: Sequence[str]) -> TermScores:
        """Return the scores of some of the nodes, given the ids of all."""
        rows = [node_ids.index(node_id) for node_id in chosen]
        return self._replace(scores=self.scores[rows], counts=self.counts[rows])

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


def term_number(term: str) -> int:
    """Return a number of 64 bits for a term, the same in every process."""
    return int.from_bytes(_term_bytes(term), "little")


@lru_cache(maxsize=10_000)
def _term_bytes(term: str) -> bytes:
    return blake2b(term.encode("utf-8", "surrogatepass"), digest_size=_NUMBER.itemsize).digest()


class _NumbersByWord(dict[str, bytes]):
    """The numbers of the terms of each word in a language, computed once for each word."""

    def __init__(self, language: str) -> None:
        self.language = language

    def __missing__(self, word: str) -> bytes:
        terms = chain.from_iterable(groups_of(self.language, word))
        numbers = self[word] = b"".join(map(_term_bytes, terms))
        return numbers


@dataclass(frozen=True, eq=False)
class TermArrays(RowArrays):
    """The terms of some rows: for each term where it occurs.

    Attributes:
        ids: The number of each row.
        lengths: How many terms each row has, repeated ones included.
        terms: The numbers of all distinct terms, ascending.
        starts: Where the occurrences of each term begin, and where the last ones end.
        places: The place in ``ids`` of each occurrence, ascending within a term.
        positions: How many terms stand before each occurrence in its row.
    """

    lengths: Ints
    terms: Numbers
    starts: Ints
    places: Numbers
    positions: Numbers

    @classmethod
    def merge(cls, parts: Sequence[Part]) -> TermArrays:
        """Return the living rows of several arrays as one."""
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
        """Return the arrays of rows whose occurrences ascend by place within each term."""
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
        """Raise a ValueError where the arrays do not fit together."""
        require(len(np.unique(self.ids)) == len(self.ids) == len(self.lengths))
        require(self.terms.dtype == np.uint64 and bool((self.terms[1:] > self.terms[:-1]).all()))
        require(len(self.starts) == len(self.terms) + 1)
        require(are_offsets(self.starts, len(self.places)))
        # Each position of each row occurs once.
        require(len(self.places) == len(self.positions) == self.lengths.sum())
        require(np.array_equal(np.bincount(self.places, minlength=len(self.ids)), self.lengths))
        require(bool((self.positions < self.lengths[self.places]).all()))

    def span_of(self, number: np.uint64) -> slice:
        """Return where the occurrences of a term are; an empty span where no row has it."""
        term = int(self.terms.searchsorted(number))
        if term == len(self.terms) or self.terms[term] != number:
            return slice(0)
        return slice(int(self.starts[term]), int(self.starts[term + 1]))


class TermCollector:
    """Collect the terms of texts, which become arrays together."""

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
        """Return the arrays of rows, from a text for each.

        Raises:
            ValueError: There are fewer texts than rows, or more.
        """
        lengths = np.diff(self._ends)
        if len(lengths) != len(ids):
            raise ValueError(f"{len(ids)} rows have {len(lengths)} texts")
        numbers = np.frombuffer(self._numbers, _NUMBER).astype(np.uint64, copy=False)
        places = np.repeat(np.arange(len(ids)), lengths)
        positions = np.arange(len(numbers)) - np.array(self._ends)[places]
        return TermArrays.by_term(ids, lengths, numbers, places, positions)


def _compact(values: Ints) -> Numbers:
    """Return numbers from 0 in the smallest type that holds all of them."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


@dataclass(frozen=True, slots=True, eq=False)
class QueryTerm:
    """A term of a query, and where an index contains it.

    Attributes:
        group: The term.
        idf: Its weight.
        token_places: The place in :attr:`Bm25Index.every` of each occurrence in a living row.
        positions: How many terms stand before each occurrence in its row.
        places: The places of the rows that contain it, ascending.
        counts: How often each of them contains it.
        scores: What it adds to the score of each of them.
    """

    group: Group
    idf: float
    token_places: Ints
    positions: Ints
    places: Ints
    counts: Floats
    scores: Floats


class Bm25Index(ArrayIndex):
    """BM25 over rows."""

    made_of = TermArrays

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        super().__init__(parts)
        self._remembered: dict[tuple[Group, ...], Sequence[QueryTerm]] = {}
        self._lengths = np.concatenate([np.empty(0), *(arrays.lengths for arrays, _ in parts)])
        average_length = self._lengths[self.live].sum() / max(len(self), 1) or 1.0
        self._norms = K1 * (1 - B + B * self._lengths / average_length)
        self._has_dead_rows = not self.live.all()

    def with_terms(self, rows: Rows, terms: TermCollector) -> Bm25Index:
        """Return the index with more rows; a known row gets the terms of the new text.

        Raises:
            ValueError: There are fewer texts than rows, or more.
        """
        if not len(rows):
            return self
        ids = np.asarray(rows, np.int64)
        return self.changed(ids, terms.arrays(ids))

    def search(
        self, groups: Sequence[Group], top_k: int, among: Ints | None = None
    ) -> list[ScoredRows]:
        """Return the best rows with at least one matching term, best first, and their scores.

        Rows that tie with the last of them are added, so that the caller can break ties.

        Args:
            groups: The terms of the query; each counts once.
            top_k: How many rows.
            among: Rows for which there is a second list: the best of these.
        """
        scores = np.zeros(len(self.every))
        for term in self.read(groups):  # in turn, so that equal texts have equal scores
            scores[term.places] += term.scores
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

    def term_scores(self, groups: Sequence[Group], rows: Rows) -> TermScores:
        """Return what each term adds to the score of each row; unknown rows contain no term."""
        terms = self.read(groups)
        places, hits = self.find(rows)
        scores = np.zeros((len(rows), len(terms)))
        counts = np.zeros_like(scores)
        for column, term in enumerate(terms):
            holding, holding_hits = matches(term.places, places)
            cells = (hits[holding_hits], column)
            counts[cells] = term.counts[holding]
            scores[cells] = term.scores[holding]
        return TermScores(
            groups=tuple(term.group for term in terms),
            frequencies=tuple(len(term.places) for term in terms),
            idfs=tuple(term.idf for term in terms),
            scores=scores,
            counts=counts,
        )

    def nearness(self, groups: Sequence[Group], rows: Rows) -> Floats:
        """Return how near to each other the terms of a query stand in each row, 0 to 1.

        It is the mean over neighbouring terms of 1 / (their smallest distance in the row),
        weighted by the smaller idf: a pair is as rare as its more frequent term.
        """
        terms = self.read(groups)
        idfs = np.array([term.idf for term in terms], np.float64)
        weights = np.minimum(idfs[1:], idfs[:-1])
        total = float(weights.sum())
        if not total:
            return np.zeros(len(rows))

        # Number the tokens of all rows, so that those of different rows are out of reach.
        places, hits = self.find(rows)
        row_of_place = np.full(len(self.every), -1)
        row_of_place[places] = hits
        row_size = int(self._lengths.max(initial=0)) + _REACH
        tokens = []
        for term in terms:
            token_rows = row_of_place[term.token_places]
            is_read = token_rows >= 0
            tokens.append(np.sort(token_rows[is_read] * row_size + term.positions[is_read]))

        nearness = np.zeros(len(rows))
        for weight, (first, second) in zip(weights, pairwise(tokens), strict=True):
            near_tokens, distances = _nearby(first, second)
            closest = np.zeros(len(rows))
            np.maximum.at(closest, near_tokens // row_size, 1 / distances)
            nearness += weight * closest
        return nearness / total

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
        token_places, positions = self._occurrences(group)
        is_first = np.append(True, token_places[1:] != token_places[:-1])
        starts = np.flatnonzero(is_first[: len(token_places)])  # none where no row has the term
        places = token_places[starts]
        counts = np.diff(np.append(starts, len(token_places))).astype(np.float64)
        weight = idf(len(self.rows), len(places))
        if not len(places) and is_day(group):
            weight = 0.0  # the year, the month and the number of a day are terms as well
        scores = counts / (counts + self._norms[places]) * weight
        return QueryTerm(group, weight, token_places, positions, places, counts, scores)

    def _occurrences(self, group: Group) -> tuple[Ints, Ints]:
        """Return the place of each occurrence of a term in living rows, and its position there.

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
    """Return those of the first tokens that have a second within reach, and its distance.

    Both ascend.
    """
    if not len(second):
        return first[:0], first[:0]
    following = np.minimum(second.searchsorted(first), len(second) - 1)
    preceding = np.maximum(following - 1, 0)
    distances = np.minimum(np.abs(second[following] - first), np.abs(first - second[preceding]))
    is_near = distances <= _REACH
    # A token that stands for either term is as near as two can be.
    return first[is_near], np.maximum(distances[is_near], 1)
