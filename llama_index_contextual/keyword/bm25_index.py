"""BM25 over arrays: for each term the rows that hold it, as a sparse matrix keeps them (CSR).

``score(query, row) = sum over terms of idf(term) * saturation(tf, norm of the row's length)``, Lucene's form.

An index is a large part and a small one of what was added since, and which of their rows are alive. Document
frequencies and the average length are those of all living rows, so that scores equal those of a full rebuild.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llama_index_contextual.errors import amount
from llama_index_contextual.keyword.analyzer import Analyzer
from llama_index_contextual.keyword.array_files import ArrayPart
from llama_index_contextual.keyword.evidence import MOST_TERMS, Nearness, TermScores, closeness
from llama_index_contextual.keyword.row_parts import best_rows, join_parts, places_of, without_rows
from llama_index_contextual.keyword.term_arrays import TermArrays

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from llama_index_contextual.keyword.evidence import Group, Ints
    from llama_index_contextual.keyword.term_arrays import Bools, Floats, Numbers

K1: Final = 1.2
B: Final = 0.75
_MOST_FREQUENCIES: Final = 10_000  # terms whose frequency an index remembers


def idf(documents: int, document_frequency: int) -> float:
    """Weight of a term: more for a rarer one."""
    return float(np.log(1 + (documents - document_frequency + 0.5) / (document_frequency + 0.5)))


def length_norm(lengths: Numbers, average: float, k1: float, b: float) -> Floats:
    """What BM25 adds to a term frequency in the divisor: more for longer texts."""
    return k1 * (1 - b + b * lengths.astype(np.float64) / average)


def saturation(tf: Floats, norm: Floats) -> Floats:
    """Share of a term's weight that a row gets, which grows ever less with the term frequency."""
    return tf / (tf + norm)


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
        self._frequencies: dict[Group, int] = {}

    def _with(self, parts: Iterable[tuple[TermArrays, Bools | None, str]]) -> Bm25Index:
        return Bm25Index(self.analyzer, k1=self.k1, b=self.b, parts=parts)

    def __getstate__(self) -> dict[str, Any]:
        return {"analyzer": self.analyzer, "k1": self.k1, "b": self.b, "_parts": self._parts, "_frequencies": {}}

    def __deepcopy__(self, memo: object) -> Bm25Index:
        return self

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def rows(self) -> Ints:
        """Numbers of all rows, ascending."""
        ids = [part.ids if live is None else part.ids[live] for part, live, _ in self._parts]
        return np.sort(np.concatenate([np.empty(0, np.int64), *ids]))

    # Changing it

    def with_texts(self, rows: Sequence[int] | Ints, texts: Iterable[str]) -> Bm25Index:
        """Return an index with more rows; a row that is there already gets the new text.

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
        """Return an index without some rows; rows that it does not have are ignored."""
        parts = without_rows(self._parts, np.fromiter(rows, np.int64, len(rows)))
        return self if parts is self._parts else self._with(join_parts(parts, TermArrays.merge))

    # Reading it

    def search(self, groups: Iterable[Group], top_k: int, among: Ints | None = None) -> tuple[Ints, Floats]:
        """Return the best rows with at least one matching term, best first, and their scores.

        Args:
            groups: The query's terms, as :meth:`Analyzer.query_groups` gives them; a term counts once.
            top_k: How many. Rows whose score ties with the last of them are added, so that the caller can break ties.
            among: Only these rows; those that are not there are ignored. By default all.
        """
        scores = self._scores(groups)
        if among is not None:
            scores[~np.isin(self._every, among)] = 0.0
        return best_rows(self._every, scores, top_k, np.flatnonzero(scores))

    def holding(self, groups: Iterable[Group]) -> Ints:
        """Rows that hold every term, ascending; none without terms."""
        distinct = tuple(dict.fromkeys(groups))
        hits = np.zeros(len(self._every), np.int64)
        for group in distinct:
            for (places, _), offset in zip(self._postings(group), self._offsets, strict=True):
                hits[offset + places] += 1
        return np.sort(self._every[hits == len(distinct)]) if distinct else self._every[:0]

    def term_scores(self, groups: Iterable[Group], rows: Sequence[int] | Ints) -> TermScores:
        """What each term adds to the score of each row; a row that is not there holds no term."""
        distinct, wanted = tuple(dict.fromkeys(groups)), np.asarray(rows, np.int64)
        scores = np.zeros((len(wanted), len(distinct)))
        for column, group in enumerate(distinct):
            weight = idf(len(self), self.frequency(group))
            for (part, _, _), (places, tf), norms in zip(self._parts, self._postings(group), self._norms, strict=True):
                at, of_part = places_of(part.ids, wanted)
                found = np.minimum(places.searchsorted(of_part), max(len(places) - 1, 0))
                same = places[found] == of_part if len(places) else np.zeros(len(of_part), np.bool_)
                hit = found[same]
                scores[at[same], column] = saturation(tf[hit], norms[of_part[same]]) * weight
        frequencies = tuple(map(self.frequency, distinct))
        return TermScores(distinct, frequencies, tuple(idf(len(self), one) for one in frequencies), scores)

    def nearness(self, groups: Iterable[Group], rows: Sequence[int] | Ints) -> Nearness:
        """How near to each other neighbouring terms of a query stand in each row."""
        distinct, wanted = tuple(dict.fromkeys(groups))[:MOST_TERMS], np.asarray(rows, np.int64)
        weights = np.array([idf(len(self), self.frequency(group)) for group in distinct], np.float64)
        pairs = np.minimum(weights[1:], weights[:-1])  # a pair is as rare as its more frequent term
        total, shares = float(pairs.sum()), np.zeros(len(wanted))
        for part, _, _ in self._parts if total else ():
            at, places = places_of(part.ids, wanted)
            starts, counts = part.code_starts[places], part.lengths[places].astype(np.int64)
            ends = np.cumsum(counts)
            if len(ends):
                codes = part.codes.take(np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts))
                shares[at] = closeness(codes, counts, distinct) @ pairs / total
        return Nearness(float(weights.sum()), shares)

    def frequency(self, group: Group) -> int:
        """How many rows hold any of a term's alternatives."""
        count = self._frequencies.get(group)
        if count is None:
            if len(self._frequencies) >= _MOST_FREQUENCIES:
                self._frequencies = {}
            count = self._frequencies[group] = sum(len(places) for places, _ in self._postings(group))
        return count

    def _postings(self, group: Group) -> list[tuple[Numbers, Floats]]:
        """Places of the living rows of each part that hold a term, and how often."""
        postings = []
        for part, live, _ in self._parts:
            places, tf = part.postings(group)
            if live is not None:
                kept = live[places]
                places, tf = places[kept], tf[kept]
            postings.append((places, tf))
        return postings

    def _scores(self, groups: Iterable[Group]) -> Floats:
        """Score of every row, part by part: 0 where no term matches."""
        scores = np.zeros(len(self._every))
        for group in dict.fromkeys(groups):  # term by term, so that equal texts have equal scores in any part
            postings = self._postings(group)
            weight = idf(len(self), sum(len(places) for places, _ in postings))
            for (places, tf), norms, offset in zip(postings, self._norms, self._offsets, strict=True):
                scores[offset + places] += saturation(tf, norms[places]) * weight
        return scores

    @cached_property
    def _every(self) -> Ints:
        """Number of each row, part by part, dead ones included."""
        return np.concatenate([np.empty(0, np.int64), *(part.ids for part, _, _ in self._parts)])

    @cached_property
    def _offsets(self) -> list[int]:
        sizes = [len(part.ids) for part, _, _ in self._parts]
        return [sum(sizes[:at]) for at in range(len(sizes))]

    @cached_property
    def _norms(self) -> list[Floats]:
        total = sum(int((part.lengths if live is None else part.lengths[live]).sum()) for part, live, _ in self._parts)
        average = (total / len(self) if len(self) else 0.0) or 1.0
        return [length_norm(part.lengths, average, self.k1, self.b) for part, _, _ in self._parts]

    # Keeping it on disk

    def to_arrays(self) -> list[ArrayPart]:
        """Parts as files keep them; dead rows are among them."""
        return [
            ArrayPart(key, {field.name: getattr(part, field.name) for field in fields(part)})
            for part, _, key in self._parts
        ]

    def with_keys(self, keys: Sequence[str]) -> Bm25Index:
        """Return the same index, whose parts have been written under some keys."""
        parts = zip(self._parts, keys, strict=True)
        return self._with((part, live, key) for (part, live, _), key in parts)

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
