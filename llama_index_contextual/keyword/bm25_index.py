"""BM25 over arrays: for each term the rows that hold it, as a sparse matrix keeps them (CSR).

``score(query, row) = sum over terms of idf(term) * saturation(tf, norm of the row's length)``, Lucene's form.

An index is a large part and a small one of what was added since, and which of their rows are alive. Document
frequencies and the average length are those of all living rows, so that scores equal those of a full rebuild.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from llama_index_contextual.errors import amount
from llama_index_contextual.keyword.analyzer import Analyzer
from llama_index_contextual.keyword.array_files import ArrayPart, best_rows, join_parts, living, without_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.keyword.array_files import Bools, Floats, Ints

Numbers = npt.NDArray[Any]
Group = tuple[str, ...]  # one term of a query: its alternatives count as the same term

K1: Final = 1.2
B: Final = 0.75
_RECENT: Final = 32  # terms whose postings it remembers
_REACH: Final = 8  # terms apart that still count as near
_MOST_NEAR: Final = 200  # terms of a query whose nearness counts; at most 255, which fit into a byte


def idf(documents: int, document_frequency: int) -> float:
    """Weight of a term: more for a rarer one."""
    return float(np.log(1 + (documents - document_frequency + 0.5) / (document_frequency + 0.5)))


def length_norm(lengths: Numbers, average: float, k1: float, b: float) -> Floats:
    """What BM25 adds to a term frequency in the divisor: more for longer texts."""
    return k1 * (1 - b + b * lengths.astype(np.float64) / average)


def saturation(tf: Floats, norm: Floats) -> Floats:
    """Share of a term's weight that a row gets, which grows ever less with the term frequency."""
    return tf / (tf + norm)


class Candidate(NamedTuple):
    """One hit of one arm: a tuple, because a query makes hundreds.

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
    scores: Floats

    def shares(self) -> list[float] | None:
        """Share of the terms that each document holds, weighted by rarity; None without terms."""
        total = math.fsum(self.idfs)
        return ((self.scores > 0) @ np.array(self.idfs) / total).tolist() if total > 0 else None

    def evidence(self) -> list[list[TermEvidence]]:
        """Terms that each document holds, most important first."""
        found = [
            [
                TermEvidence(self.groups[at][0], self.frequencies[at], self.idfs[at], float(row[at]))
                for at in np.flatnonzero(row).tolist()
            ]
            for row in self.scores
        ]
        return [sorted(terms, key=lambda term: (-term.score, term.term)) for terms in found]


class Nearness(NamedTuple):
    """How near to each other the terms of a query stand in each of some documents.

    Args:
        weight: The summed idf of the query's terms, which no BM25 score exceeds.
        shares: Of each document, 0 to 1: the mean over neighbouring terms of the query of 1 / (their smallest distance
            in the document, in either order), weighted by the smaller idf of the two. A distance above 8 counts as
            none. 1 says that the document holds the query as a phrase.
    """

    weight: float
    shares: Floats


@lru_cache(maxsize=1 << 15)
def term_number(term: str) -> int:
    """Number of 64 bits for a term, the same in every process."""
    return int.from_bytes(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


@dataclass(frozen=True, eq=False)
class TermArrays:
    """Terms of some rows, which never change.

    Args:
        ids: Number of each row, ascending.
        lengths: Terms of each row, repetitions included.
        terms: Numbers of all distinct terms, ascending.
        tokens: The terms of all rows in their order, each as its place in ``terms``.
        starts: Where the postings of each term begin, and where the last ones end.
        places: Postings: the place of a row in ``ids``, ascending within a term.
        counts: Postings: how often the row holds the term.
    """

    ids: Ints
    lengths: Numbers
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
        found, lengths = array("i"), array("i")
        for terms in texts:
            before = len(found)
            found.extend(map(place.__getitem__, terms))
            lengths.append(len(found) - before)
        if len(lengths) != len(ids):
            raise ValueError(f"{len(ids)} rows have {len(lengths)} texts")
        numbers = np.fromiter(map(term_number, place), np.uint64, len(place))
        vocabulary, rank = np.unique(numbers, return_inverse=True)
        return cls._of(ids, np.array(lengths, np.int32), vocabulary, rank[np.frombuffer(found, np.int32)])

    @classmethod
    def merge(cls, parts: Sequence[tuple[TermArrays, Bools | None]]) -> TermArrays:
        """The living rows of some parts as one."""
        every = [(part, living(part, live)) for part, live in parts]
        ids = np.concatenate([part.ids[mask] for part, mask in every])
        lengths = np.concatenate([part.lengths[mask] for part, mask in every])
        terms = np.unique(np.concatenate([part.terms for part, _ in every]))
        tokens = np.concatenate(
            [terms.searchsorted(part.terms)[part.tokens[np.repeat(mask, part.lengths)]] for part, mask in every]
        )
        if (np.diff(ids) < 0).any():  # where a copy of a database was put back
            order, starts = np.argsort(ids), np.cumsum(lengths, dtype=np.int64) - lengths
            ids, lengths, tokens = ids[order], lengths[order], tokens[_runs(starts[order], lengths[order])]
        return cls._of(ids, lengths, terms, tokens)

    @classmethod
    def _of(cls, ids: Ints, lengths: Numbers, terms: Numbers, tokens: Numbers) -> TermArrays:
        """Arrays of rows with ascending numbers; terms that no row holds are left out."""
        rows = np.repeat(np.arange(len(ids)), lengths)
        postings, counts = np.unique(tokens * max(len(ids), 1) + rows, return_counts=True)
        owners, places = np.divmod(postings, max(len(ids), 1))
        starts = owners.searchsorted(np.arange(len(terms) + 1))
        used = np.diff(starts) > 0
        return cls(
            np.asarray(ids, np.int64),
            lengths,
            terms[used],
            (np.cumsum(used) - 1)[tokens].astype(np.int32),
            np.append(starts[:-1][used], len(places)),
            places.astype(np.int32),
            counts.astype(np.min_scalar_type(int(counts.max(initial=0)))),
        )

    def checked(self) -> TermArrays:
        """The arrays, which a file may hold otherwise than :meth:`build` makes them.

        Raises:
            ValueError: They do not fit together.
        """
        rows, postings = len(self.ids), len(self.places)
        every = [getattr(self, field.name) for field in fields(self)]
        is_sound = (
            all(one.ndim == 1 and one.dtype.kind in "iu" for one in every)
            and self.ids.dtype == np.int64
            and self.terms.dtype == np.uint64
            and (len(self.lengths), len(self.counts), len(self.starts)) == (rows, postings, len(self.terms) + 1)
            and (self.starts[0], self.starts[-1], self.token_starts[-1]) == (0, postings, len(self.tokens))
            and all((np.diff(one) >= 0).all() for one in (self.starts, self.token_starts))
            and (self.ids[1:] > self.ids[:-1]).all()
            and (not postings or (self.places.min() >= 0 and self.places.max() < rows))
            and (not len(self.tokens) or (self.tokens.min() >= 0 and self.tokens.max() < len(self.terms)))
        )
        if not is_sound:
            raise ValueError("the arrays of terms do not fit together")
        return self

    @cached_property
    def token_starts(self) -> Ints:
        """Where the tokens of each row begin, and where the last ones end."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths, dtype=np.int64)])

    def numbers_of(self, group: Group) -> list[int]:
        """Places in ``terms`` of those of a term's alternatives that a row holds."""
        numbers = [*map(term_number, dict.fromkeys(group))]
        at = self.terms.searchsorted(np.array(numbers, np.uint64)).tolist()
        known = zip(numbers, at, strict=True)
        return [place for number, place in known if place < len(self.terms) and self.terms[place] == number]

    def postings(self, group: Group) -> tuple[Numbers, Numbers]:
        """Places of the rows that hold any of a term's alternatives, ascending, and how often each does."""
        found = [slice(int(self.starts[one]), int(self.starts[one + 1])) for one in self.numbers_of(group)]
        if len(found) == 1:
            return self.places[found[0]], self.counts[found[0]]
        of_all = np.concatenate([self.places[:0], *(self.places[one] for one in found)])
        places, inverse = np.unique(of_all, return_inverse=True)
        counts = np.concatenate([self.counts[:0], *(self.counts[one] for one in found)])
        return places, np.bincount(inverse, counts, len(places))

    def closeness(self, places: Ints, groups: Sequence[Group]) -> Floats:
        """1 / the smallest distance of each neighbouring pair of terms in some rows, 0 if it is too large."""
        lengths = self.lengths[places].astype(np.int64)
        tokens = self.tokens.take(_runs(self.token_starts[places], lengths))
        numbers = np.zeros(len(self.terms), dtype=np.uint8)
        for number, group in enumerate(groups, start=1):
            numbers[self.numbers_of(group)] = number
        numbers_at = numbers.take(tokens)  # faster than numbers[tokens]
        at = np.flatnonzero(numbers_at != 0)  # faster than of numbers
        terms = numbers_at[at].astype(np.int16)
        owners = np.cumsum(lengths).searchsorted(at, side="right")
        at += owners * _REACH  # so that tokens of different rows are out of each other's reach
        closeness = np.zeros((len(places), len(groups) - 1))
        for lag in range(1, _REACH + 1):  # between two tokens at most _REACH apart there are fewer than _REACH others
            distance = at[lag:] - at[:-lag]
            left, right = terms[:-lag], terms[lag:]
            near = np.flatnonzero((distance <= _REACH) & (np.abs(left - right) == 1))
            np.maximum.at(closeness, (owners[near], np.minimum(left, right)[near] - 1), 1 / distance[near])
        return closeness


def _matches(ascending: Numbers, wanted: Numbers) -> tuple[Ints, Ints]:
    """Places in ascending numbers of those of some others that are among them, and the places of these."""
    if not len(ascending):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    at = np.minimum(ascending.searchsorted(wanted), len(ascending) - 1)
    hit = np.flatnonzero(ascending[at] == wanted)
    return at[hit], hit


def _runs(starts: Numbers, lengths: Numbers) -> Ints:
    """Numbers of runs one after the other: each from its start, so many as its length."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)


class Bm25Index:
    """BM25 over rows, which are numbers of the caller. It never changes: a change makes another one, which shares much.

    Args:
        analyzer: Makes the terms; default ``Analyzer()``.
        k1: BM25's term saturation, greater than 0.
        b: BM25's length normalisation, 0 to 1.
        parts: Terms of rows, which of them live (None: all), and the key of the files that hold them.

    Raises:
        SettingError: A setting cannot work.
    """

    def __init__(
        self,
        analyzer: Analyzer | None = None,
        *,
        k1: float = K1,
        b: float = B,
        parts: Iterable[tuple[TermArrays, Bools | None, str]] = (),
    ) -> None:
        self.analyzer = analyzer or Analyzer()
        self.k1, self.b = amount("k1", k1), amount("b", b, zero=True, most=1)
        self._parts = tuple(parts)
        self._recent: dict[Group, list[tuple[Numbers, Numbers]]] = {}

    def _with(self, parts: Iterable[tuple[TermArrays, Bools | None, str]]) -> Bm25Index:
        return Bm25Index(self.analyzer, k1=self.k1, b=self.b, parts=parts)

    def __getstate__(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in ("analyzer", "k1", "b", "_parts")}, "_recent": {}}

    def __deepcopy__(self, memo: object) -> Bm25Index:
        return self

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def rows(self) -> Ints:
        """Numbers of all living rows, ascending."""
        every = [part.ids if live is None else part.ids[live] for part, live, _ in self._parts]
        return np.sort(np.concatenate([np.empty(0, np.int64), *every]))

    @cached_property
    def _every(self) -> Ints:
        """Number of each row, part by part, dead ones included."""
        return np.concatenate([np.empty(0, np.int64), *(part.ids for part, _, _ in self._parts)])

    @cached_property
    def _norms(self) -> Floats:
        """Length norm of each row of :attr:`_every`."""
        total = sum(int(part.lengths[living(part, live)].sum()) for part, live, _ in self._parts)
        lengths = np.concatenate([np.empty(0, np.int32), *(part.lengths for part, _, _ in self._parts)])
        return length_norm(lengths, total / max(len(self), 1) or 1.0, self.k1, self.b)

    # Changing it

    def with_texts(self, rows: Sequence[int] | Ints, texts: Iterable[str]) -> Bm25Index:
        """Index with more rows; a row that is there already gets the new text.

        Args:
            rows: Their numbers, each once.
            texts: The text of each.

        Raises:
            ValueError: There are fewer texts than rows.
        """
        ids = np.asarray(rows, np.int64)
        if not len(ids):
            return self
        if (np.diff(ids) < 0).any():
            order, known = np.argsort(ids), list(texts)
            ids, texts = ids[order], (known[at] for at in order.tolist())
        new = TermArrays.build(ids, map(self.analyzer.tokens, texts))
        return self._with(join_parts([*without_rows(self._parts, ids), (new, None, "")], TermArrays.merge))

    def without(self, rows: Collection[int] | Ints) -> Bm25Index:
        """Index without some rows; rows that it does not have are ignored."""
        parts = without_rows(self._parts, np.fromiter(rows, np.int64, len(rows)))
        return self if parts is self._parts else self._with(join_parts(parts, TermArrays.merge))

    # Reading it

    def search(self, groups: Iterable[Group], top_k: int, among: Ints | None = None) -> tuple[Ints, Floats]:
        """The best rows with at least one matching term, best first, and their scores.

        Args:
            groups: The query's terms, as :meth:`Analyzer.query_groups` gives them; a term counts once.
            top_k: How many. Rows whose score ties with the last of them are added, so that the caller can break ties.
            among: Only these rows; those that are not there are ignored. By default all.
        """
        scores = np.zeros(len(self._every))
        for group in dict.fromkeys(groups):  # term by term, so that equal texts have equal scores in any part
            postings = self._postings(group)
            weight = idf(len(self), sum(len(places) for places, _ in postings))
            for places, tf in postings:
                scores[places] += saturation(tf, self._norms[places]) * weight
        if among is not None:
            scores[~np.isin(self._every, among)] = 0.0
        return best_rows(self._every, scores, top_k, np.flatnonzero(scores))

    def holding(self, groups: Iterable[Group]) -> Ints:
        """Rows that hold every term, ascending; none without terms."""
        distinct = tuple(dict.fromkeys(groups))
        hits = np.zeros(len(self._every), np.int64)
        for group in distinct:
            for places, _ in self._postings(group):
                hits[places] += 1
        return np.sort(self._every[hits == len(distinct)]) if distinct else self._every[:0]

    def term_scores(self, groups: Iterable[Group], rows: Sequence[int] | Ints) -> TermScores:
        """What each term adds to the score of each row; a row that is not there holds no term."""
        distinct, wanted = tuple(dict.fromkeys(groups)), np.asarray(rows, np.int64)
        frequencies = tuple(map(self.frequency, distinct))
        idfs = tuple(idf(len(self), one) for one in frequencies)
        scores = np.zeros((len(wanted), len(distinct)))
        of_wanted = np.full(len(wanted), -1, np.int32)
        for (part, _, _), offset in zip(self._parts, self._offsets, strict=True):
            places, at = _matches(part.ids, wanted)
            of_wanted[at] = places + offset
        for column, group in enumerate(distinct if len(wanted) else ()):
            for places, tf in self._postings(group):
                at, rows_at = _matches(places, of_wanted)
                scores[rows_at, column] = saturation(tf[at], self._norms[places[at]]) * idfs[column]
        return TermScores(distinct, frequencies, idfs, scores)

    def nearness(self, groups: Iterable[Group], rows: Sequence[int] | Ints) -> Nearness:
        """How near to each other neighbouring terms of a query stand in each row."""
        distinct, wanted = tuple(dict.fromkeys(groups))[:_MOST_NEAR], np.asarray(rows, np.int64)
        weights = np.array([idf(len(self), self.frequency(group)) for group in distinct], np.float64)
        pairs = np.minimum(weights[1:], weights[:-1])  # a pair is as rare as its more frequent term
        total, shares = float(pairs.sum()), np.zeros(len(wanted))
        for part, _, _ in self._parts if total else ():
            places, at = _matches(part.ids, wanted)
            shares[at] = part.closeness(places, distinct) @ pairs / total
        return Nearness(float(weights.sum()), shares)

    def frequency(self, group: Group) -> int:
        """How many rows hold any of a term's alternatives."""
        return sum(len(places) for places, _ in self._postings(group))

    @cached_property
    def _offsets(self) -> list[int]:
        sizes = [len(part.ids) for part, _, _ in self._parts]
        return [sum(sizes[:at]) for at in range(len(sizes))]

    def _postings(self, group: Group) -> list[tuple[Numbers, Numbers]]:
        """Places in :attr:`_every` of the living rows that hold a term, and how often, part by part."""
        if (known := self._recent.get(group)) is not None:  # a question needs them three times
            return known
        postings = []
        for (part, live, _), offset in zip(self._parts, self._offsets, strict=True):
            places, tf = part.postings(group)
            alive = slice(None) if live is None else live[places]
            postings.append((places[alive] + offset if offset else places[alive], tf[alive].astype(np.float64)))
        self._recent = {**self._recent, group: postings} if len(self._recent) < _RECENT else {group: postings}
        return postings

    # Keeping it on disk

    def to_arrays(self) -> list[ArrayPart]:
        """Parts as files keep them; dead rows are among them."""
        names = [field.name for field in fields(TermArrays)]
        return [ArrayPart(key, {name: getattr(part, name) for name in names}) for part, _, key in self._parts]

    def with_keys(self, keys: Sequence[str]) -> Bm25Index:
        """The same index, whose parts have been written under some keys."""
        return self._with((part, live, key) for (part, live, _), key in zip(self._parts, keys, strict=True))

    @classmethod
    def from_arrays(
        cls, parts: Iterable[ArrayPart], analyzer: Analyzer | None = None, *, k1: float = K1, b: float = B
    ) -> Bm25Index:
        """Index of parts that :meth:`to_arrays` gave. All rows live, but those that stand in a later part again.

        Raises:
            ValueError: They do not fit together.
        """
        made: list[tuple[TermArrays, Bools | None, str]] = []
        for part in parts:
            arrays = TermArrays(**part.arrays).checked()
            made = [*without_rows(tuple(made), arrays.ids), (arrays, None, part.key)]
        return cls(analyzer, k1=k1, b=b, parts=made)
