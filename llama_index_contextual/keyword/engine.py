"""The keyword engine: BM25 over rows.

Segments hold term frequencies. Document frequencies, the average length and so every weight are computed from the live
rows when a query comes, so that scores equal those of a full rebuild after any edits.

The score is Lucene's BM25: ``sum over terms of idf * tf / (tf + k1 * (1 - b + b * length / average))`` with
``idf = ln(1 + (N - df + .5) / (df + .5))``, in [0, infinity).
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from llama_index_contextual.durable import DAMAGE, writing
from llama_index_contextual.errors import amount
from llama_index_contextual.keyword.analyzer import Analyzer
from llama_index_contextual.keyword.evidence import MOST_TERMS, Nearness, TermScores, closeness
from llama_index_contextual.keyword.segments import (
    MOST_CODES,
    MOST_ROWS,
    Segment,
    build_segments,
    read_segments,
    write_segments,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from llama_index_contextual.keyword.evidence import Codes, Group, Ints
    from llama_index_contextual.keyword.segments import Counts, Places

    Floats = npt.NDArray[np.float64]

K1: Final = 1.2
B: Final = 0.75
_FAN: Final = 4  # segments of one size class before they are merged
_SMALLEST: Final = 256  # rows: everything below is one size class
_SHORT: Final = 8  # rows a block below which a maximum a block saves nothing
_MOST_FREQUENCIES: Final = 10_000  # terms whose frequency an engine remembers


class KeywordEngine:
    """BM25 over rows, which are numbers of the caller. It never changes: a change makes another one, which shares much.

    It holds terms and their order; no texts, and nothing else of what a row stands for.

    Args:
        analyzer: Makes the terms; default ``Analyzer()``.
        k1: BM25's term saturation, greater than 0.
        b: BM25's length normalisation, 0 to 1.
        segments: Its rows and their terms.

    Raises:
        SettingError: A setting cannot work.
    """

    def __init__(
        self, analyzer: Analyzer | None = None, *, k1: float = K1, b: float = B, segments: Iterable[Segment] = ()
    ) -> None:
        self.analyzer = analyzer or Analyzer()
        self.k1, self.b = amount("k1", k1), amount("b", b, zero=True, most=1)
        self.segments = tuple(segments)

    def _with(self, segments: Iterable[Segment]) -> KeywordEngine:
        return KeywordEngine(self.analyzer, k1=self.k1, b=self.b, segments=segments)

    def __getstate__(self) -> dict[str, Any]:
        return {key: self.__dict__[key] for key in ("analyzer", "k1", "b", "segments")}  # without what is remembered

    def __deepcopy__(self, memo: object) -> KeywordEngine:
        return self

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _count(self) -> int:
        return sum(segment.count for segment in self.segments)

    @cached_property
    def rows(self) -> Ints:
        """Return the numbers of all rows, ascending."""
        return _sorted(segment.rows[segment.live] for segment in self.segments)

    # Changing it

    def with_texts(self, rows: Sequence[int] | Ints, texts: Iterable[str]) -> KeywordEngine:
        """Return an engine with more rows; a row that is there already gets the new text.

        Args:
            rows: Their numbers, each once.
            texts: The text of each.

        Raises:
            ValueError: There are fewer texts than rows.
        """
        numbers = np.asarray(rows, dtype=np.int64)
        if not len(numbers):
            return self
        new = build_segments(numbers, map(self.analyzer.tokens, texts))
        return self._with(_tidy([*(segment.without(numbers) for segment in self.segments), *new]))

    def without(self, rows: Collection[int] | Ints) -> KeywordEngine:
        """Return an engine without some rows; rows that it does not have are ignored."""
        numbers = np.fromiter(rows, dtype=np.int64, count=len(rows))
        segments = tuple(segment.without(numbers) for segment in self.segments)
        return self if segments == self.segments else self._with(_tidy(segments))

    # Reading it

    def search(self, groups: Iterable[Group], top_k: int, among: Ints | None = None) -> tuple[Ints, Floats]:
        """Return the best rows with at least one matching term, best first, and their scores.

        Args:
            groups: The query's terms, as :meth:`Analyzer.query_groups` gives them; a term counts once.
            top_k: How many. Rows whose score ties with the last of them are added, so that the caller can break ties.
            among: Only these rows; those that are not there are ignored. By default all.
        """
        if top_k <= 0:
            return np.empty(0, dtype=np.int64), np.empty(0)
        scores = self._scores(groups)
        if among is not None:
            scores[~np.isin(self._every, among)] = 0.0
        floor = _floor(scores, top_k)
        places = np.flatnonzero(scores >= floor if floor else scores)
        values = scores[places]
        if len(values) > top_k:
            best = values >= np.partition(values, len(values) - top_k)[len(values) - top_k]
            places, values = places[best], values[best]
        rows = self._every[places]
        order = np.lexsort((rows, -values))
        return rows[order], values[order]

    def holding(self, groups: Iterable[Group]) -> Ints:
        """Return the rows that hold every term, ascending; none without terms."""
        distinct = tuple(dict.fromkeys(groups))
        rows = []
        for segment in self.segments if distinct else ():
            hits = np.zeros(len(segment), dtype=np.int64)
            for group in distinct:
                hits[segment.postings(group)[0]] += 1
            rows.append(segment.rows[hits == len(distinct)])
        return _sorted(rows)

    def term_scores(self, groups: Iterable[Group], rows: Sequence[int] | Ints) -> TermScores:
        """Return what each term adds to the score of each row; a row that is not there holds no term."""
        distinct = tuple(dict.fromkeys(groups))
        idfs = tuple(self.idf(group) for group in distinct)
        scores = np.zeros((len(rows), len(distinct)))
        for segment, norms, at, places in self._located(rows):
            for column, group in enumerate(distinct):
                count = segment.counts_of(group, places).astype(np.float64)
                scores[at, column] = count / (count + norms[places]) * idfs[column]
        return TermScores(distinct, tuple(map(self.frequency, distinct)), idfs, scores)

    def nearness(self, groups: Iterable[Group], rows: Sequence[int] | Ints) -> Nearness:
        """Return how near to each other neighbouring terms of a query stand in each row."""
        distinct = tuple(dict.fromkeys(groups))[:MOST_TERMS]
        weights = np.array([self.idf(group) for group in distinct], dtype=np.float64)
        pairs = np.minimum(weights[1:], weights[:-1])  # a pair is as rare as its more frequent term
        total = float(pairs.sum())
        shares = np.zeros(len(rows))
        if total:
            codes, lengths, at = self._order_of(rows)
            shares[at] = closeness(codes, lengths, distinct) @ pairs / total
        return Nearness(float(weights.sum()), shares)

    def terms(self, prefix: str = "") -> Iterator[str]:
        """Give all terms that begin with a prefix, some perhaps twice, or of rows that were deleted."""
        for segment in self.segments:
            yield from segment.terms(prefix)

    def frequency(self, group: Group) -> int:
        """Return how many rows hold any of a term's alternatives."""
        count = self._frequencies.get(group)
        return self._counted(group, [segment.postings(group) for segment in self.segments]) if count is None else count

    def _counted(self, group: Group, postings: Iterable[tuple[Places, Counts]]) -> int:
        """Remember how many rows the postings of a term are of."""
        if len(self._frequencies) >= _MOST_FREQUENCIES:
            self._frequencies.clear()
        number = self._frequencies[group] = sum(len(places) for places, _ in postings)
        return number

    def idf(self, group: Group) -> float:
        """Return the weight of a term: more for a rarer one."""
        frequency = self.frequency(group)
        return math.log(1 + (len(self) - frequency + 0.5) / (frequency + 0.5))

    @cached_property
    def _frequencies(self) -> dict[Group, int]:
        return {}

    @cached_property
    def _every(self) -> Ints:
        """Return the number of each row, segment by segment, deleted ones included."""
        return np.concatenate([np.empty(0, dtype=np.int64), *(segment.rows for segment in self.segments)])

    @cached_property
    def _norms(self) -> list[Floats]:
        """Return for each segment and row what BM25 adds to a frequency in the divisor: more for longer texts."""
        average = (sum(segment.length for segment in self.segments) / len(self) if len(self) else 0.0) or 1.0
        lengths = (segment.lengths.astype(np.float64) for segment in self.segments)
        return [self.k1 * (1 - self.b + self.b * row_lengths / average) for row_lengths in lengths]

    def _scores(self, groups: Iterable[Group]) -> Floats:
        """Return the score of every row, segment by segment: 0 where no term matches."""
        totals = np.zeros(len(self._every))
        parts = np.split(totals, np.cumsum([len(segment) for segment in self.segments[:-1]], dtype=np.int64))
        for group in dict.fromkeys(groups):  # term by term, so that equal texts have equal scores in any segments
            postings = [segment.postings(group) for segment in self.segments]
            self._counted(group, postings)
            idf = self.idf(group)
            for (narrow, counts), norms, part in zip(postings, self._norms, parts, strict=False):
                places, shares = narrow.astype(np.intp), counts.astype(np.float64)
                shares /= shares + norms.take(places)
                shares *= idf
                part[places] += shares
        return totals

    def _located(self, rows: Sequence[int] | Ints) -> Iterator[tuple[Segment, Floats, Ints, Ints]]:
        """Give for each segment which of some rows it has, and their places."""
        numbers = np.asarray(rows, dtype=np.int64)
        for segment, norms in zip(self.segments, self._norms, strict=True):
            places = segment.places_of(numbers)
            at = np.flatnonzero(places >= 0)
            if len(at):
                yield segment, norms, at, places[at]

    def _order_of(self, rows: Sequence[int] | Ints) -> tuple[Codes, Ints, Ints]:
        """Return the codes of the terms of some rows one after the other, how many each has, and whose they are."""
        codes, lengths, ats = [np.empty(0, np.uint16)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for segment, _, at, places in self._located(rows):
            starts, counts = segment.starts[places], segment.starts[places + 1] - segment.starts[places]
            ends = np.cumsum(counts)
            codes.append(segment.codes.take(np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)))
            lengths.append(counts)
            ats.append(at)
        return np.concatenate(codes), np.concatenate(lengths), np.concatenate(ats)

    # Keeping it on disk

    def save(self, folder: Path, stamp: str) -> KeywordEngine:
        """Keep it in a folder, in few segments, and return the same engine, mapped from there.

        Args:
            folder: Made where it is missing.
            stamp: What :meth:`load` returns beside it.

        Raises:
            StorageError: The folder cannot be written.
        """
        with writing(folder, "The keyword index"):
            segments = _joined(self.segments)
            return self._with(write_segments(folder, segments, self.analyzer.fingerprint, stamp))

    @classmethod
    def load(
        cls, folder: Path, analyzer: Analyzer | None = None, *, k1: float = K1, b: float = B
    ) -> tuple[KeywordEngine, str] | None:
        """Return what was saved and its stamp; None where there is none that is whole and made by this analyzer."""
        empty = cls(analyzer, k1=k1, b=b)
        try:
            segments, stamp = read_segments(folder, empty.analyzer.fingerprint)
        except DAMAGE:
            return None
        return empty._with(segments), stamp


def _sorted(parts: Iterable[Ints]) -> Ints:
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]), kind="stable")


def _tidy(segments: Iterable[Segment]) -> list[Segment]:
    """Drop empty segments, compact those mostly dead, merge neighbours of one size class once there are enough.

    So an engine of n rows has O(log n) segments, and two more for each :data:`MOST_ROWS`; each row is merged O(log n)
    times.
    """
    result = [
        segment if 2 * segment.count >= len(segment) else Segment.merge([segment])
        for segment in segments
        if segment.count
    ]
    while len(result) > 1:
        last = _size_class(result[-1].count)
        start = _run_start(result, lambda count, _: _size_class(count) <= last)  # noqa: B023  called at once
        run = len(result) - start
        if run < (2 if last >= _size_class(MOST_ROWS // _FAN) else _FAN):  # of the largest each counts in every query
            break
        result[start:] = [Segment.merge(result[start:])]
    return result


def _joined(segments: Sequence[Segment]) -> list[Segment]:
    """Merge the last segments, because a query asks each by itself; few old rows are written for each new one."""
    start = _run_start(segments, lambda count, rows: not rows or count <= _FAN * rows)
    run = segments[start:]
    return [*segments[:start], *([Segment.merge(run)] if len(run) > 1 else run)]


def _run_start(segments: Sequence[Segment], joins: Callable[[int, int], bool]) -> int:
    """Return where the segments begin that are merged with the last one, as far as one may be so large.

    Args:
        segments: All.
        joins: Says whether a segment joins the ones behind it, given how many rows it and they have.
    """
    start, rows, codes = len(segments), 0, 0
    while start and joins(segments[start - 1].count, rows):
        rows, codes = rows + segments[start - 1].count, codes + segments[start - 1].length
        if rows > MOST_ROWS or codes > MOST_CODES:
            break
        start -= 1
    return start


def _size_class(rows: int) -> int:
    """Return 0 below :data:`_SMALLEST` rows, 1 below four times as many, and so on."""
    return ((rows // _SMALLEST).bit_length() + 1) // 2


def _floor(scores: Floats, top_k: int) -> float:
    """Return a score that at least ``top_k`` rows reach, so that others can be skipped; 0 where none is known.

    It is the k-th largest of the maxima of many blocks: reading the scores once is faster than partitioning all.
    """
    block = len(scores) // (4 * top_k)
    if block < _SHORT:
        return 0.0
    maxima = scores[: len(scores) // block * block].reshape(-1, block).max(axis=1)
    return float(np.partition(maxima, len(maxima) - top_k)[len(maxima) - top_k])
