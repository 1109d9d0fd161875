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
    """The postings of terms in some rows. A posting is a term in a row.

    Attributes:
        ids: The number of each row.
        lengths: The number of terms in each row, including repeated ones.
        terms: The numbers of all distinct terms, ascending.
        starts: The offset of the first posting of each term, followed by the end of the last.
        places: For each posting, the position of its row in ``ids``, ascending within a term.
        counts: For each posting, the number of occurrences of its term in its row.
        position_starts: The offset of the first of the positions of each term, followed by the end
            of the last.
        positions: For each occurrence, the number of terms before it in its row, in the order of
            the postings.
    """

    lengths: Ints
    terms: Numbers
    starts: Ints
    places: Numbers
    counts: Numbers
    position_starts: Ints
    positions: Numbers

    @classmethod
    def merge(cls, parts: Sequence[Part]) -> TermArrays:
        """Merge the live rows of several arrays."""
        start = 0
        numbers = []
        places = []
        for arrays, live in parts:
            numbers.append(np.repeat(arrays.terms, np.diff(arrays.position_starts)))
            places.append(np.repeat(arrays.places + np.int64(start), arrays.counts))
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
        sorted_places = places[order]
        term_starts = _run_starts(sorted_numbers)
        posting_starts = _run_starts(sorted_numbers, sorted_places)
        return cls(
            ids=ids,
            lengths=lengths,
            terms=sorted_numbers[term_starts[:-1]],
            starts=posting_starts.searchsorted(term_starts),
            places=_compact(sorted_places[posting_starts[:-1]]),
            counts=_compact(np.diff(posting_starts)),
            position_starts=term_starts,
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
        require(len(self.places) == len(self.counts) and bool((self.counts > 0).all()))
        ends = np.append(0, np.cumsum(self.counts, dtype=np.int64))
        require(self.position_starts.dtype == np.int64)
        require(np.array_equal(self.position_starts, ends[self.starts]))
        # Each position of a row must occur once.
        require(len(self.positions) == ends[-1] == self.lengths.sum())
        places = np.repeat(self.places, self.counts)
        require(np.array_equal(np.bincount(places, minlength=len(self.ids)), self.lengths))
        require(bool((self.positions < _compact(self.lengths)[places]).all()))

    def spans_of(self, number: int) -> tuple[slice, slice]:
        """Return the spans of the postings and of the positions of a term.

        They are empty if no row has the term.
        """
        term = int(self.terms.searchsorted(np.uint64(number)))
        if term == len(self.terms) or self.terms[term] != number:
            return slice(0), slice(0)
        postings = slice(self.starts[term], self.starts[term + 1])
        return postings, slice(self.position_starts[term], self.position_starts[term + 1])


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


def _run_starts(*columns: Numbers) -> Ints:
    """Return the offset of each run of equal values in all columns, followed by their length."""
    is_start = np.ones(len(columns[0]) + 1, np.bool_)
    is_start[1:-1] = False
    for column in columns:
        is_start[1:-1] |= column[1:] != column[:-1]
    return np.flatnonzero(is_start)


def _compact(values: Ints) -> Numbers:
    """Return numbers from 0 in the smallest integer type that fits."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """The postings of the terms of a query in the live rows of an index, term by term.

    Attributes:
        groups: The distinct terms.
        idfs: The weight of each term.
        frequencies: The number of rows that contain each term.
        first_keys: For each term, the key of a posting in the place 0.
        keys: For each posting, the first key of its term plus its place, ascending.
        places: For each posting, the position of its row in :attr:`Bm25Index.all_rows`.
        counts: For each posting, the number of occurrences of the term in the row.
        scores: For each posting, the summand of the term in the score of the row.
        firsts: For each posting, the offset of its first position.
        positions: For each occurrence, the number of terms before it in its row.
    """

    groups: tuple[Group, ...]
    idfs: tuple[float, ...]
    frequencies: tuple[int, ...]
    first_keys: Ints
    keys: Ints
    places: Ints
    counts: Ints
    scores: Floats
    firsts: Ints
    positions: Numbers

    def find(self, places: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the postings in some rows, term by term.

        Returns:
            The offset of each posting, the number of its term, and the index of its place in
            ``places``.
        """
        keys = np.add.outer(self.first_keys, places).ravel()
        postings, cells = find_sorted(self.keys, keys)
        terms_of_postings, indexes = np.divmod(cells, max(len(places), 1))
        return postings, terms_of_postings, indexes


class Bm25Index(ArrayIndex):
    """A BM25 index of rows."""

    arrays_type = TermArrays

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        super().__init__(parts)
        self._cached_postings: dict[tuple[Group, ...], Postings] = {}
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
        postings = self.postings(groups)
        # Terms are added up in the same order in every row, so that equal texts tie.
        sums = np.bincount(postings.places, postings.scores, len(self.all_rows))
        scores = sums.astype(np.float64, copy=False)  # already so, but not by its annotation
        places = np.flatnonzero(scores)
        lists = [self.best(scores[places], top_k, places)]
        if among is not None:
            places = places[np.isin(self.all_rows[places], among)]
            lists.append(self.best(scores[places], top_k, places))
        return lists

    def rows_with_all(self, groups: Sequence[Group]) -> Ints:
        """Return the rows that contain every term, ascending. Without terms, return none."""
        if not groups:
            return self.rows[:0]
        postings = self.postings(groups)
        terms_of_rows = np.bincount(postings.places, minlength=len(self.all_rows))
        rows: Ints = np.sort(self.all_rows[terms_of_rows == len(postings.groups)])
        return rows

    def term_scores(self, groups: Sequence[Group], rows: Rows) -> TermScores:
        """Return the summand of each term in the score of each row. Unknown rows have no terms."""
        postings = self.postings(groups)
        places, row_indexes = self.find(rows)
        entries, terms, indexes = postings.find(places)
        cells = (row_indexes[indexes], terms)
        scores = np.zeros((len(rows), len(postings.groups)))
        scores[cells] = postings.scores[entries]
        counts = np.zeros_like(scores)
        counts[cells] = postings.counts[entries]
        return TermScores(postings.groups, postings.frequencies, postings.idfs, scores, counts)

    def nearness(self, groups: Sequence[Group], rows: Rows) -> Floats:
        """Return how close together the terms of a query are in each row, 0 to 1.

        This is the mean of 1 / (smallest distance in the row) over pairs of neighbouring terms. A
        pair is weighted by the smaller idf, because it is as rare as its more frequent term.
        """
        postings = self.postings(groups)
        idfs = np.array(postings.idfs, np.float64)
        weights = np.minimum(idfs[1:], idfs[:-1])
        total = float(weights.sum())
        if not total:
            return np.zeros(len(rows))

        # Number the tokens of each term in all rows, with gaps so that tokens of different rows are
        # never near.
        places, row_indexes = self.find(rows)
        entries, terms, indexes = postings.find(places)
        row_size = int(self._lengths.max(initial=0)) + _REACH
        term_size = len(rows) * row_size
        counts = postings.counts[entries]
        skipped = postings.firsts[entries] - (np.cumsum(counts) - counts)
        offsets = np.arange(counts.sum()) + np.repeat(skipped, counts)
        row_starts = terms * term_size + row_indexes[indexes] * row_size
        tokens = np.sort(np.repeat(row_starts, counts) + postings.positions[offsets])

        # Compare all pairs of neighbouring terms at once.
        first_tokens = tokens[tokens < len(weights) * term_size]
        second_tokens = tokens[tokens >= term_size] - term_size
        near_tokens, distances = _nearby(first_tokens, second_tokens)
        closest = np.zeros(len(weights) * len(rows))
        np.maximum.at(closest, near_tokens // row_size, 1 / distances)
        by_pair = closest.reshape(len(weights), len(rows))
        nearness: Floats = (weights[:, None] * by_pair).sum(axis=0) / total
        return nearness

    def postings(self, groups: Sequence[Group]) -> Postings:
        """Return the postings of the distinct terms of a query, in the order of the terms."""
        distinct = tuple(dict.fromkeys(groups))
        postings = self._cached_postings.get(distinct)
        if postings is None:
            postings = self._read_postings(distinct)
            kept = self._cached_postings if len(self._cached_postings) < _MAX_CACHED else {}
            # Replace the dictionary, because other threads can be reading the old one.
            self._cached_postings = {**kept, distinct: postings}
        return postings

    def _read_postings(self, groups: tuple[Group, ...]) -> Postings:
        """Return the postings of distinct terms from all parts of the index."""
        first_keys = np.arange(len(groups)) * len(self.all_rows)
        numbers_of_terms = [{term_number(term) for term in group} for group in groups]
        sizes = [len(live) for _, live in self.parts]
        part_starts = np.cumsum(sizes) - sizes

        # Collect the postings of all terms, term by term.
        parts_of_keys = [np.empty(0, np.int64)]
        parts_of_counts = [np.empty(0, np.int64)]
        parts_of_positions = [np.empty(0, np.uint8)]
        for numbers, first_key in zip(numbers_of_terms, first_keys, strict=True):
            for (arrays, _), part_start in zip(self.parts, part_starts, strict=True):
                for number in numbers:
                    span, position_span = arrays.spans_of(number)
                    parts_of_keys.append(arrays.places[span] + (first_key + part_start))
                    parts_of_counts.append(arrays.counts[span])
                    parts_of_positions.append(arrays.positions[position_span])
        keys = np.concatenate(parts_of_keys)
        counts = np.concatenate(parts_of_counts)
        positions = np.concatenate(parts_of_positions)

        # A row has a single posting for all alternatives of a term.
        if any(len(numbers) > 1 for numbers in numbers_of_terms):
            keys_of_tokens = np.repeat(keys, counts)
            positions = positions[np.argsort(keys_of_tokens, kind="stable")]
            keys, counts = np.unique(keys_of_tokens, return_counts=True)

        # Leave out deleted rows.
        firsts = np.cumsum(counts) - counts
        if self._has_dead_rows:
            is_live = self.live[keys % len(self.all_rows)]
            keys = keys[is_live]
            counts = counts[is_live]
            firsts = firsts[is_live]

        # Compute the scores.
        frequencies = np.diff(keys.searchsorted(first_keys), append=len(keys))
        places = keys - np.repeat(first_keys, frequencies)
        idfs = [
            self._weight(group, frequency)
            for group, frequency in zip(groups, frequencies.tolist(), strict=True)
        ]
        scores = counts / (counts + self._norms[places]) * np.repeat(idfs, frequencies)
        return Postings(
            groups=groups,
            idfs=tuple(idfs),
            frequencies=tuple(frequencies.tolist()),
            first_keys=first_keys,
            keys=keys,
            places=places,
            counts=counts,
            scores=scores,
            firsts=firsts,
            positions=positions,
        )

    def _weight(self, group: Group, frequency: int) -> float:
        """Return the idf of a term, or 0 for a date that no row contains."""
        if not frequency and is_day(group):
            return 0.0  # the year, month and number of the day are terms of their own
        return idf(len(self.rows), frequency)


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
