"""BM25 over arrays: for each term the rows that hold it, as a sparse matrix keeps them (CSR).

``score(query, row) = sum over terms of idf(term) * saturation(tf, norm of the row's length)``, Lucene's form.

Document frequencies and the average length are those of all living rows, so that scores equal those of a full rebuild.
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
)
from llama_index_contextual.retrievers.terms import Group, is_day, terms_of

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode


K1: Final = 1.2
B: Final = 0.75
_RECENT: Final = 32  # terms whose postings it remembers
_REACH: Final = 8  # terms apart that still count as near


def idf(documents: int, document_frequency: int) -> float:
    """Weight of a term: more for a rarer one."""
    return float(np.log(1 + (documents - document_frequency + 0.5) / (document_frequency + 0.5)))


def length_norm(lengths: Numbers, average: float) -> Floats:
    """What BM25 adds to a term frequency in the divisor: more for longer texts."""
    return K1 * (1 - B + B * lengths.astype(np.float64) / average)


def saturation(tf: Floats, norm: Floats) -> Floats:
    """Share of a term's weight that a row gets, which grows ever less with the term frequency."""
    return tf / (tf + norm)


class Candidate(NamedTuple):
    """One hit of one arm: a tuple, because a query makes hundreds."""

    node_id: str
    score: float | None
    """As the arm gave it; None where the arm gives none."""
    node: BaseNode | None = None
    """Where the arm had it at hand."""


class TermEvidence(NamedTuple):
    """A query term that a document holds: as the keyword index writes it, and what it added to the BM25 score."""

    term: str
    document_frequency: int
    idf: float
    score: float


class TermScores(NamedTuple):
    """What each distinct term of a query adds to the score of each of some documents.

    ``scores`` has the shape (documents, terms), and 0 where a document does not hold a term. ``counts`` has the same
    shape, and tells how often it does.
    """

    groups: tuple[Group, ...]
    frequencies: tuple[int, ...]
    idfs: tuple[float, ...]
    scores: Floats
    counts: Floats

    def shares(self) -> list[float] | None:
        """Share of the terms that each document holds, weighted by rarity; None without terms."""
        total = math.fsum(self.idfs)
        return ((self.scores > 0) @ np.array(self.idfs) / total).tolist() if total > 0 else None

    def evidence(self) -> list[list[TermEvidence]]:
        """Terms that each document holds, most important first."""
        terms = [group[0] for group in self.groups]
        rows = (
            map(TermEvidence, terms, self.frequencies, self.idfs, row)
            for row in self.scores.tolist()
        )
        return [
            sorted((one for one in row if one.score), key=lambda one: (-one.score, one.term))
            for row in rows
        ]


@lru_cache(maxsize=1 << 15)
def term_number(term: str) -> int:
    """Number of 64 bits for a term, the same in every process."""
    return int.from_bytes(
        blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
    )


@dataclass(frozen=True, eq=False)
class TermArrays(RowArrays):
    """Terms of some rows.

    Args:
        ids: Number of each row.
        bounds: Where the tokens of each row begin, and where the last ones end.
        terms: Numbers of all distinct terms, ascending.
        tokens: The terms of all rows in their order, each as its place in ``terms``.
        starts: Where the postings of each term begin, and where the last ones end.
        places: Postings: the place of a row in ``ids``, ascending within a term.
        counts: Postings: how often the row holds the term.
    """

    bounds: Ints
    terms: Numbers
    tokens: Numbers
    starts: Numbers
    places: Numbers
    counts: Numbers

    @classmethod
    def build(cls, ids: Ints, texts: Iterable[Iterable[str]]) -> TermArrays:
        """Arrays of rows, by the terms of each in their order."""
        place = defaultdict[str, int]()
        place.default_factory = place.__len__
        found, bounds = array("i"), array("q", [0])
        for terms in texts:
            found.extend(map(place.__getitem__, terms))
            bounds.append(len(found))
        if len(bounds) != len(ids) + 1:
            raise ValueError(f"{len(ids)} rows have {len(bounds) - 1} texts")
        numbers = np.fromiter(map(term_number, place), np.uint64, len(place))
        vocabulary, rank = np.unique(numbers, return_inverse=True)
        return cls._from_tokens(
            ids, np.array(bounds), vocabulary, rank[np.frombuffer(found, np.int32)]
        )

    @classmethod
    def merge(cls, parts: Sequence[Part]) -> TermArrays:
        """Those rows of some arrays that live, as one."""
        terms = np.unique(np.concatenate([one.terms for one, _ in parts]))
        ids, lengths, tokens = [], [np.zeros(1, np.int64)], []
        for one, live in parts:
            of_rows = np.diff(one.bounds)
            ids.append(one.ids[live])
            lengths.append(of_rows[live])
            tokens.append(terms.searchsorted(one.terms)[one.tokens[np.repeat(live, of_rows)]])
        bounds = np.cumsum(np.concatenate(lengths))
        return cls._from_tokens(np.concatenate(ids), bounds, terms, np.concatenate(tokens))

    @classmethod
    def _from_tokens(cls, ids: Ints, bounds: Ints, terms: Numbers, tokens: Numbers) -> TermArrays:
        """Arrays of rows; terms that no row holds are left out."""
        rows, size = np.repeat(np.arange(len(ids)), np.diff(bounds)), max(len(ids), 1)
        postings, counts = np.unique(tokens * size + rows, return_counts=True)
        owners, places = np.divmod(postings, size)
        starts = owners.searchsorted(np.arange(len(terms) + 1))
        used = np.diff(starts) > 0
        return cls(
            np.asarray(ids, np.int64),
            bounds,
            terms[used],
            (np.cumsum(used) - 1)[tokens].astype(np.int32),
            np.append(starts[:-1][used], len(places)),
            places.astype(np.int32),
            counts.astype(np.min_scalar_type(int(counts.max(initial=0)))),
        )

    def numbers_of(self, group: Group) -> Ints:
        """Places in ``terms`` of those of a term's alternatives that a row holds."""
        return matches(self.terms, np.array([*map(term_number, dict.fromkeys(group))], np.uint64))[
            0
        ]

    def postings(self, group: Group) -> tuple[Numbers, Numbers]:
        """Places of the rows that hold any of a term's alternatives, ascending, and how often each does."""
        found = [
            slice(int(self.starts[one]), int(self.starts[one + 1]))
            for one in self.numbers_of(group)
        ]
        places = np.concatenate([self.places[:0], *(self.places[one] for one in found)])
        counts = np.concatenate([self.counts[:0], *(self.counts[one] for one in found)])
        if len(found) < 2:  # noqa: PLR2004
            return places, counts
        places, inverse = np.unique(places, return_inverse=True)
        return places, np.bincount(inverse, counts, len(places))

    def closeness(self, places: Ints, groups: Sequence[Group]) -> Floats:
        """1 / the smallest distance of each neighbouring pair of terms in some rows, 0 if it is too large."""
        starts = self.bounds[places]
        lengths = self.bounds[places + 1] - starts
        ends = np.cumsum(lengths)
        tokens = self.tokens.take(
            np.arange(lengths.sum()) + np.repeat(starts - ends + lengths, lengths)
        )
        numbers = np.zeros(len(self.terms), dtype=np.int16)
        for number, group in enumerate(groups, start=1):
            numbers[self.numbers_of(group)] = number
        numbers_at = numbers.take(tokens)  # faster than numbers[tokens]
        at = np.flatnonzero(numbers_at != 0)  # faster than of numbers
        terms = numbers_at[at]
        owners = ends.searchsorted(at, side="right")
        at += owners * _REACH  # so that tokens of different rows are out of each other's reach
        closeness = np.zeros((len(places), len(groups) - 1))
        for lag in range(
            1, _REACH + 1
        ):  # between two tokens at most _REACH apart there are fewer than _REACH others
            distance = at[lag:] - at[:-lag]
            left, right = terms[:-lag], terms[lag:]
            near = np.flatnonzero((distance <= _REACH) & (np.abs(left - right) == 1))
            np.maximum.at(
                closeness, (owners[near], np.minimum(left, right)[near] - 1), 1 / distance[near]
            )
        return closeness


class Bm25Index(ArrayIndex):
    """BM25 over rows."""

    made_of = TermArrays

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        super().__init__(parts)
        self._recent: dict[Group, tuple[Ints, Floats]] = {}
        lengths = np.concatenate(
            [np.empty(0, np.int64), *(np.diff(arrays.bounds) for arrays, _ in parts)]
        )
        average = int(lengths[self.live].sum()) / max(len(self), 1) or 1.0
        self._norms = length_norm(lengths, average)

    def with_texts(self, rows: Sequence[int] | Ints, texts: Iterable[str]) -> Bm25Index:
        """Index with more rows; a row that is there already gets the new text.

        Raises:
            ValueError: There are fewer texts than rows.
        """
        ids = np.asarray(rows, np.int64)
        return self.changed(ids, TermArrays.build(ids, map(terms_of, texts))) if len(ids) else self

    def search(
        self, groups: Iterable[Group], top_k: int, among: Ints | None = None
    ) -> tuple[Ints, Floats]:
        """The best rows with at least one matching term, best first, and their scores.

        Args:
            groups: The query's terms, as :func:`~.keyword.query_groups` gives them; a term counts once.
            top_k: How many. Rows whose score ties with the last of them are added, so that the caller can break ties.
            among: Only these rows; those that are not there are ignored. By default all.
        """
        scores = np.zeros(len(self.every))
        for group in dict.fromkeys(
            groups
        ):  # term by term, so that equal texts have equal scores in any part
            places, tf = self._postings(group)
            scores[places] += saturation(tf, self._norms[places]) * idf(len(self), len(places))
        if among is not None:
            scores[~np.isin(self.every, among)] = 0.0
        places = np.flatnonzero(scores)
        return self.best(scores[places], top_k, places)

    def holding(self, groups: Iterable[Group]) -> Ints:
        """Rows that hold every term, ascending; none without terms."""
        distinct = tuple(dict.fromkeys(groups))
        rows = self.rows if distinct else self.rows[:0]
        for group in distinct:
            rows = np.intersect1d(rows, self.every[self._postings(group)[0]])
        return rows

    def term_scores(self, groups: Iterable[Group], rows: Sequence[int] | Ints) -> TermScores:
        """What each term adds to the score of each row; a row that is not there holds no term."""
        distinct = tuple(dict.fromkeys(groups))
        frequencies = tuple(map(self.frequency, distinct))
        idfs = tuple(map(self.rarity, distinct))
        places, found = self.find(rows)
        scores, counts = np.zeros((2, len(rows), len(distinct)))
        for column, group in enumerate(distinct):
            holders, tf = self._postings(group)
            at, hits = matches(holders, places)
            counts[found[hits], column] = tf[at]
            scores[found[hits], column] = (
                saturation(tf[at], self._norms[holders[at]]) * idfs[column]
            )
        return TermScores(distinct, frequencies, idfs, scores, counts)

    def nearness(self, groups: Iterable[Group], rows: Sequence[int] | Ints) -> Floats:
        """How near to each other the terms of a query stand in each row: 1 where the row holds the query as a phrase.

        The mean over neighbouring terms of 1 / (their smallest distance in the row), weighted by the smaller idf.
        """
        distinct, shares = tuple(dict.fromkeys(groups)), np.zeros(len(rows))
        weights = np.array([*map(self.rarity, distinct)], np.float64)
        pairs = np.minimum(weights[1:], weights[:-1])  # a pair is as rare as its more frequent term
        places, found = self.find(rows)
        for arrays, inside, at in self.by_part(places) if (total := float(pairs.sum())) else ():
            # Not as a product of matrices: there the sum of a row depends on how many there are.
            shares[found[at]] = (
                np.einsum("ij,j->i", arrays.closeness(inside, distinct), pairs) / total
            )
        return shares

    def frequency(self, group: Group) -> int:
        """How many rows hold any of a term's alternatives."""
        return len(self._postings(group)[0])

    def rarity(self, group: Group) -> float:
        """Idf of a term; 0 of a day that no row writes in numbers, whose year, month and number are terms as well."""
        frequency = self.frequency(group)
        return idf(len(self), frequency) if frequency or not is_day(group) else 0.0

    def _postings(self, group: Group) -> tuple[Ints, Floats]:
        """Places in :attr:`every` of the living rows that hold a term, ascending, and how often each does."""
        if (known := self._recent.get(group)) is not None:  # a question needs them three times
            return known
        found, start = [(self.every[:0], np.empty(0))], 0
        for arrays, live in self.parts:
            places, tf = arrays.postings(group)
            alive = (
                slice(None) if len(self) == len(self.every) else live[places]
            )  # mostly all rows live
            found.append((places[alive] + start, tf[alive].astype(np.float64)))
            start += len(live)
        places, tf = map(np.concatenate, zip(*found, strict=True))
        self._recent = (
            {**self._recent, group: (places, tf)}
            if len(self._recent) < _RECENT
            else {group: (places, tf)}
        )
        return places, tf
