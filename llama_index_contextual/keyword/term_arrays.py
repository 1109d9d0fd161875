"""Terms of rows as arrays: for each term the rows that hold it, as a sparse matrix has them (CSR), and their order."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llama_index_contextual.keyword.evidence import code_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index_contextual.keyword.evidence import Group, Ints

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]


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


def _joined(names: list[bytes]) -> tuple[Numbers, Numbers]:
    """Return names as one array of bytes, and where each begins."""
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(name) for name in names], dtype=np.int64)])
    return np.frombuffer(b"".join(names), np.uint8), starts


def _starts(numbers: Numbers, count: int) -> Ints:
    """Return where each number's run begins in ascending numbers, and where the last one ends."""
    return np.asarray(np.searchsorted(numbers, np.arange(count + 1)), np.int64)


def _narrow(counts: Numbers) -> Numbers:
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))
