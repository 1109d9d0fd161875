"""BM25 over arrays: for each term the rows that hold it, as a sparse matrix keeps them (CSR).

``score(query, row) = sum over terms of idf(term) * saturation(tf, norm of the row's length)``, Lucene's form.

An index is a large part and a small one of what was added since, and which of their rows are alive. Document
frequencies and the average length are those of all living rows, so that scores equal those of a full rebuild.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from llama_index_contextual.errors import amount
from llama_index_contextual.keyword.analyzer import Analyzer
from llama_index_contextual.keyword.array_files import ArrayPart
from llama_index_contextual.keyword.evidence import MOST_TERMS, Nearness, TermScores, closeness, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from llama_index_contextual.keyword.evidence import Group, Ints

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]

K1: Final = 1.2
B: Final = 0.75
SHARE: Final = 4  # a small part joins the large one when it has a fourth of its rows
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


@dataclass(frozen=True, eq=False)
class TermArrays:
    """Terms of some rows, which never change.

    Args:
        ids: Number of each row, ascending.
        lengths: Terms of each row, repetitions included.
        term_bytes: All distinct terms in UTF-8, one after the other, in the order of their bytes.
        term_starts: Where each of them begins, and where the last one ends.
        starts: Where the postings of each term begin, and where the last ones end.
        places: Postings: the place of a row in ``ids``, ascending within a term.
        counts: Postings: how often the row holds the term.
        codes: The terms of all rows in their order, as numbers of two bytes.
    """

    ids: Ints
    lengths: Numbers
    term_bytes: Numbers
    term_starts: Numbers
    starts: Numbers
    places: Numbers
    counts: Numbers
    codes: Numbers

    @classmethod
    def build(cls, ids: Ints, texts: Iterable[Iterable[str]]) -> TermArrays:
        """Return the arrays of rows, given the terms of each in their order."""
        number = defaultdict[str, int]()
        number.default_factory = number.__len__
        found, lengths = array("i"), array("i")
        for terms in texts:
            before = len(found)
            found.extend(map(number.__getitem__, terms))
            lengths.append(len(found) - before)
        if len(lengths) != len(ids):
            raise ValueError(f"{len(ids)} rows have {len(lengths)} texts")
        names = [term.encode("utf-8", "surrogatepass") for term in number]
        order = sorted(range(len(names)), key=names.__getitem__)
        rank = np.empty(len(names), np.int64)
        rank[order] = np.arange(len(names))
        codes = np.fromiter(map(code_of, number), np.uint16, len(number))
        terms_at = np.frombuffer(found, np.int32)
        row_of = np.repeat(np.arange(len(ids)), lengths)
        pairs, counts = np.unique(rank[terms_at] * max(len(ids), 1) + row_of, return_counts=True)
        return cls(
            np.asarray(ids, np.int64),
            np.array(lengths, np.int32),
            *_joined([names[at] for at in order]),
            _starts(pairs // max(len(ids), 1), len(names)),
            (pairs % max(len(ids), 1)).astype(np.int32),
            _narrow(counts),
            codes[terms_at],
        )

    @classmethod
    def merge(cls, parts: Sequence[tuple[TermArrays, Bools | None]]) -> TermArrays:
        """Return the living rows of some parts as one."""
        vocabularies = [part.terms for part, _ in parts]
        every = sorted(set().union(*vocabularies))
        number_of = dict(zip(every, range(len(every)), strict=True))
        ids, lengths, terms = list[Numbers](), list[Numbers](), list[Numbers]()
        places, counts, codes, offset = list[Numbers](), list[Numbers](), list[Numbers](), 0
        for (part, live), vocabulary in zip(parts, vocabularies, strict=True):
            kept = np.ones(len(part.ids), np.bool_) if live is None else live
            numbers = np.fromiter(map(number_of.__getitem__, vocabulary), np.int32, len(vocabulary))
            postings = kept[part.places]
            terms.append(np.repeat(numbers, np.diff(part.starts))[postings])
            places.append((np.cumsum(kept) - 1 + offset)[part.places[postings]].astype(np.int32))
            counts.append(part.counts[postings].astype(np.int32))
            codes.append(part.codes[np.repeat(kept, part.lengths)])
            ids.append(part.ids[kept])
            lengths.append(part.lengths[kept])
            offset += len(ids[-1])
        every_id, every_length = np.concatenate(ids), np.concatenate(lengths)
        every_place, every_code = np.concatenate(places), np.concatenate(codes)
        of_postings: Numbers = np.concatenate(terms)
        if (np.diff(every_id) < 0).any():  # where a copy of a database was put back
            by_id = np.argsort(every_id, kind="stable")
            rank = np.empty(len(by_id), np.int32)
            rank[by_id] = np.arange(len(by_id))
            every_code = every_code[np.argsort(np.repeat(rank, every_length), kind="stable")]
            every_id, every_length, every_place = every_id[by_id], every_length[by_id], rank[every_place]
            order = np.lexsort((every_place, of_postings))
        else:
            order = np.argsort(of_postings, kind="stable")
        used, of_postings = np.unique(of_postings[order], return_inverse=True)
        return cls(
            every_id,
            every_length,
            *_joined([every[at] for at in used.tolist()]),
            _starts(of_postings, len(used)),
            every_place[order],
            _narrow(np.concatenate(counts)[order]),
            every_code,
        )

    def checked(self) -> TermArrays:
        """Return the arrays, which a file may hold otherwise than :meth:`build` makes them.

        Raises:
            ValueError: They do not fit together.
        """
        rows, terms, postings = len(self.ids), len(self.starts) - 1, len(self.places)
        every = [getattr(self, field.name) for field in fields(self)]
        is_sound = (
            all(one.ndim == 1 and one.dtype.kind in "iu" for one in every)
            and self.ids.dtype == np.int64
            and self.code_starts[-1] == len(self.codes)
            and (len(self.lengths), len(self.counts), len(self.term_starts)) == (rows, postings, terms + 1)
            and all(
                one[0] == 0 and one[-1] == end and not (np.diff(one) < 0).any()
                for one, end in ((self.starts, postings), (self.term_starts, len(self.term_bytes)))
            )
            and (not postings or (self.places.min() >= 0 and self.places.max() < rows))
            and not (np.diff(self.ids) <= 0).any()
            and not (self.lengths < 0).any()
        )
        if not is_sound:
            raise ValueError("the arrays of terms do not fit together")
        return self

    @property
    def terms(self) -> list[bytes]:
        """Distinct terms, in the order of their bytes."""
        data, starts = bytes(self.term_bytes), self.term_starts.tolist()
        return [data[begin:end] for begin, end in pairwise(starts)]

    @cached_property
    def code_starts(self) -> Ints:
        """Where the codes of each row begin, and where the last ones end."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths, dtype=np.int64)])

    def postings(self, group: Group) -> tuple[Numbers, Floats]:
        """Places of the rows that hold any of a term's alternatives, ascending, and how often each does."""
        found = [at for at in map(self._number_of, dict.fromkeys(group)) if at >= 0]
        slices = [slice(int(self.starts[at]), int(self.starts[at + 1])) for at in found]
        if not slices:
            return self.places[:0], np.empty(0)
        if len(slices) == 1:
            return self.places[slices[0]], self.counts[slices[0]].astype(np.float64)
        places, inverse = np.unique(np.concatenate([self.places[one] for one in slices]), return_inverse=True)
        tf = np.bincount(inverse, np.concatenate([self.counts[one] for one in slices]))
        return places, tf.astype(np.float64)

    def _number_of(self, term: str) -> int:
        """Number of a term, -1 for one that no row holds."""
        wanted, low, high = term.encode("utf-8", "surrogatepass"), 0, len(self.term_starts) - 1
        data, starts = self._term_view
        while low < high:
            middle = (low + high) // 2
            if bytes(data[starts[middle] : starts[middle + 1]]) < wanted:
                low = middle + 1
            else:
                high = middle
        is_there = low < len(starts) - 1 and bytes(data[starts[low] : starts[low + 1]]) == wanted
        return low if is_there else -1

    @cached_property
    def _term_view(self) -> tuple[memoryview, memoryview]:
        return self.term_bytes.data, self.term_starts.data

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: np.array(getattr(self, field.name)) for field in fields(self)}  # no memory views


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
                at, of_part = _places_of(part.ids, wanted)
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
            at, places = _places_of(part.ids, wanted)
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
        """Return the index of parts that :meth:`to_arrays` gave; all of their rows live.

        Raises:
            ValueError: They do not fit together.
        """
        made = [(TermArrays(**part.arrays).checked(), None, part.key) for part in parts]
        return cls(analyzer, k1=k1, b=b, parts=made)


def best_rows(every: Ints, scores: Floats, top_k: int, places: Ints) -> tuple[Ints, Floats]:
    """Return the rows with the highest scores, best first, ties by number, and those that tie with the last.

    Args:
        every: Number of each row.
        scores: Of each row.
        top_k: How many.
        places: Of the rows that count.
    """
    if top_k <= 0:
        return every[:0], scores[:0]
    values = scores[places]
    if len(values) > top_k:
        best = values >= np.partition(values, len(values) - top_k)[len(values) - top_k]
        places, values = places[best], values[best]
    rows = every[places]
    order = np.lexsort((rows, -values))
    return rows[order], values[order]


def join_parts(parts: Iterable[tuple[Any, Bools | None, str]], merge: Callable[[Any], Any]) -> list[Any]:
    """Return a large part and perhaps a small one: the small ones are merged, and with the large one where they grew.

    A part of which half is dead is merged, too. So each row is merged a few times, however often rows are added.
    """
    living = [part for part in parts if part[1] is None or part[1].any()]
    if not living:
        return []
    base, *rest = living
    alive = len(base[0].ids) if base[1] is None else int(base[1].sum())
    added = sum(len(part.ids) for part, _, _ in rest)
    if added * SHARE > alive or 2 * alive < len(base[0].ids):
        return [base] if not rest and base[1] is None else [(merge([part[:2] for part in (base, *rest)]), None, "")]
    return [base] if not rest else [base, rest[0] if len(rest) == 1 else (merge([one[:2] for one in rest]), None, "")]


def without_rows(parts: tuple[tuple[Any, Bools | None, str], ...], rows: Ints) -> Any:
    """Return parts in which some rows are dead; the same object where they have none of them."""
    changed = []
    for part, live, key in parts:
        dead = np.isin(part.ids, rows) if len(rows) else np.zeros(len(part.ids), np.bool_)
        dead = dead if live is None else dead & live
        changed.append((part, (~dead if live is None else live & ~dead) if dead.any() else live, key))
    is_same = all(one[1] is other[1] for one, other in zip(parts, changed, strict=True))
    return parts if is_same else tuple(changed)


def _places_of(ids: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """Return which of some numbers are among ascending ids, and where."""
    places = np.minimum(ids.searchsorted(wanted), max(len(ids) - 1, 0))
    at = np.flatnonzero(ids[places] == wanted) if len(ids) else wanted[:0]
    return at, places[at]


def _joined(names: list[bytes]) -> tuple[Numbers, Numbers]:
    """Return names as one array of bytes, and where each begins."""
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(name) for name in names], dtype=np.int64)])
    return np.frombuffer(b"".join(names), np.uint8), starts


def _starts(numbers: Numbers, count: int) -> Ints:
    """Return where each number's run begins in ascending numbers, and where the last one ends."""
    return np.asarray(np.searchsorted(numbers, np.arange(count + 1)), np.int64)


def _narrow(counts: Numbers) -> Numbers:
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))
