"""Segments of the keyword engine: immutable pieces of at most 65,536 rows, in memory and on disk.

A segment is the same bytes in both places, so that opening one means mapping a file. They are, without gaps, in
little-endian order::

    header    7 int64: a magic number, and how many rows, terms, postings, codes, letters, and bytes a count there are
    rows      int64 of each row, ascending: its number
    lengths   uint32 of each row: its terms
    ends      uint32 of each term, and 0 before: where its letters end
    stops     uint32 of each term, and 0 before: where its postings end
    codes     uint16 of each term of each row in their order: two bytes of its checksum
    places    uint16 of each posting: the place of its row among the rows, ascending within a term
    counts    uint8 or uint16 of each posting: how often the row holds the term
    letters   the terms in UTF-8, ascending as bytes
    padding   zeros up to a multiple of 8

A folder holds the copy of an engine::

    manifest.json        format, stamp, analyzer, segments with their checksums and live rows; replacing it is a commit
    KEY.words            a segment, written once and mapped into memory
    write.lock           held by the process that saves

Saving after an edit writes the new segments and the manifest, and nothing else.
"""

from __future__ import annotations

import uuid
from array import array
from collections import Counter
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from llama_index_contextual import durable
from llama_index_contextual.keyword.evidence import Codes, Group, Ints, code_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.unsignedinteger[Any]]
Places = npt.NDArray[np.uint16]

MOST_ROWS: Final = 1 << 16  # a place takes two bytes
MOST_CODES: Final = 1 << 25  # 64 MB; more only where a single text has more
_MAGIC: Final = 0x314D4C4943495458
_HEADER: Final = 7  # numbers
_MOST: Final = np.iinfo(np.uint16).max  # a term frequency above it adds nothing to BM25 anyway
_REMEMBERED: Final = 10_000  # terms whose number a segment remembers


class Segment:
    """Rows and their postings. It never changes.

    Args:
        data: The bytes, as the head of this file has them; a multiple of 8.
        key: Names the segment on disk; a version with fewer live rows keeps it.
        live: False where a row was deleted; by default none was.

    Raises:
        ValueError: They are no segment.
    """

    def __init__(self, data: Bytes, key: str | None = None, live: Bools | None = None) -> None:
        self.data, self.key = data, key or uuid.uuid4().hex
        if len(data) < _HEADER * 8:
            raise ValueError("a segment is cut")
        magic, rows, terms, postings, codes, letters, width = map(int, data[: _HEADER * 8].view("<i8"))
        if magic != _MAGIC or not 0 <= rows <= MOST_ROWS or width not in (1, 2):
            raise ValueError("a segment has another format")
        if min(terms, postings, codes, letters) < 0:
            raise ValueError("a segment has impossible sizes")
        shape = (("<i8", rows), ("<u4", rows), ("<u4", terms + 1), ("<u4", terms + 1), ("<u2", codes))
        sizes = (*shape, ("<u2", postings), (f"<u{width}", postings), ("u1", letters))
        total = _HEADER * 8 + sum(int(kind[-1]) * count for kind, count in sizes)
        if len(data) != total + -total % 8:
            raise ValueError("a segment has another length than it says")
        parts, start = [], _HEADER * 8
        for kind, count in sizes:
            parts.append(data[start : (start := start + int(kind[-1]) * count)].view(kind))
        self.rows, self.lengths, self.ends, self.stops, self.codes, self.places, self.counts, self.letters = parts
        self.live = np.ones(rows, dtype=np.bool_) if live is None else live
        self.count = int(np.count_nonzero(self.live))
        self.length = int(self.lengths[self.live].sum(dtype=np.int64))
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __reduce__(self) -> tuple[type[Segment], tuple[Bytes, str, Bools]]:
        return (Segment, (np.array(self.data), self.key, self.live))  # without what is mapped and what is remembered

    def __deepcopy__(self, memo: object) -> Segment:
        return self  # nothing changes it, and it may be large

    def without(self, rows: Ints) -> Segment:
        """Return this segment with some rows deleted; itself where it has none of them."""
        places = self.places_of(rows)
        places = places[places >= 0]
        if not len(places):
            return self
        live = self.live.copy()
        live[places] = False
        return Segment(self.data, self.key, live)

    # Reading it

    @cached_property
    def starts(self) -> Ints:
        """Return where the codes of each row start, and where the last end."""
        return np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))

    def places_of(self, rows: Ints) -> Ints:
        """Return the places of row numbers; -1 for those that are not there or were deleted."""
        if not len(self):
            return np.full(len(rows), -1)
        places = np.minimum(self.rows.searchsorted(rows), len(self) - 1)
        return np.where((self.rows[places] == rows) & self.live[places], places, -1)

    def postings(self, group: Group) -> tuple[Places, Counts]:
        """Return the live places that hold any alternative of a term, ascending, and how often they do."""
        parts = [part for term in group if (part := self._part(term))]
        if len(parts) > 1:  # a row may hold several
            sums = np.zeros(len(self), dtype=np.uint32)
            for part in parts:
                sums[self.places[part]] += self.counts[part]
            places = np.flatnonzero(sums != 0).astype(np.uint16)
            counts: Counts = np.minimum(sums[places], _MOST).astype(np.uint16)
        else:
            part = parts[0] if parts else slice(0, 0)
            places, counts = self.places[part], self.counts[part]
        if self.count < len(self):
            alive = self.live[places]
            return places[alive], counts[alive]
        return places, counts

    def counts_of(self, group: Group, row_places: Ints) -> Ints:
        """Return how often the rows at some places hold any alternative of a term."""
        total = np.zeros(len(row_places), dtype=np.int64)
        for term in group:
            if part := self._part(term):
                places, counts = self.places[part], self.counts[part]
                nearest = np.minimum(places.searchsorted(row_places.astype(np.uint16)), len(places) - 1)
                total += np.where(places[nearest] == row_places, counts[nearest], 0)
        return np.minimum(total, _MOST)

    def _part(self, term: str) -> slice | None:
        """Return where the postings of a term are; None where no row holds it."""
        number = self._number(term)
        start, stop = map(int, self.stops[number : number + 2]) if number >= 0 else (0, 0)
        return slice(start, stop) if start < stop else None

    def terms(self, prefix: str = "") -> Iterator[str]:
        """Give the terms that begin with a prefix; they may be of rows that were deleted."""
        letters = prefix.encode("utf-8", "surrogatepass")
        for number in range(self._first(letters), len(self.ends) - 1):
            term = self.term(number)
            if not term.startswith(letters):
                break
            yield term.decode("utf-8", "backslashreplace")  # a stranger's may be no text

    def _number(self, term: str) -> int:
        """Return the number of a term; -1 where no row holds it."""
        number = self._numbers.get(term)
        if number is None:
            letters = term.encode("utf-8", "surrogatepass")
            number = self._first(letters)
            if number == len(self.ends) - 1 or self.term(number) != letters:
                number = -1
            if len(self._numbers) >= _REMEMBERED:
                self._numbers.clear()
            self._numbers[term] = number
        return number

    def _first(self, letters: bytes) -> int:
        """Return the number of the first term that is not before some letters."""
        low, high = 0, len(self.ends) - 1
        while low < high:
            middle = (low + high) // 2
            if self.term(middle) < letters:
                low = middle + 1
            else:
                high = middle
        return low

    def term(self, number: int) -> bytes:
        """Return the letters of a term."""
        return self.letters[self.ends[number] : self.ends[number + 1]].tobytes()

    # Trusting it

    def check(self) -> None:
        """Raise a ValueError where a number in it points to what is not there."""
        fine = (
            bool(np.all(self.rows[1:] > self.rows[:-1])),
            int(self.lengths.sum(dtype=np.int64)) == len(self.codes),
            _climbs(self.ends, len(self.letters)),
            _climbs(self.stops, len(self.places)),
            not len(self.places) or int(self.places.max()) < len(self),
            not len(self.counts) or int(self.counts.min()) > 0,
        )
        if not all(fine):
            raise ValueError("a segment points to what is not there")

    # Making it

    @classmethod
    def build(cls, rows: Ints, terms: Iterator[Sequence[str]]) -> Segment:
        """Return a segment of new rows.

        Args:
            rows: Their numbers, in any order, each once.
            terms: The terms of each, in its order. Fewer rows are taken where :data:`MOST_CODES` are reached.
        """
        numbers, counts, distinct_counts, lengths = array("i"), array("i"), array("i"), array("i")
        term_numbers: dict[str, int] = {}
        codes: list[Codes] = []
        total = 0
        for words in islice(terms, min(len(rows), MOST_ROWS)):
            frequencies = Counter(words)
            numbers.extend(term_numbers.setdefault(word, len(term_numbers)) for word in frequencies)
            counts.extend(frequencies.values())
            distinct_counts.append(len(frequencies))
            lengths.append(len(words))
            codes.append(np.fromiter(map(code_of, words), dtype=np.uint16, count=len(words)))
            if (total := total + len(words)) >= MOST_CODES:
                break
        order = np.argsort(rows[: len(distinct_counts)])
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        letters = [word.encode("utf-8", "surrogatepass") for word in term_numbers]
        distinct = sorted(letters)
        ranks = {word: rank for rank, word in enumerate(distinct)}
        keys = np.array([ranks[word] for word in letters], dtype=np.int64)[np.array(numbers)]
        postings = _key(keys, np.repeat(places, np.array(distinct_counts)), np.array(counts))
        return cls._pack(rows[order], [codes[at] for at in order.tolist()], distinct, postings)

    @classmethod
    def merge(cls, parts: Sequence[Segment]) -> Segment:
        """Return one segment of the live rows of several; no text is analysed again."""
        rows = np.concatenate([part.rows[part.live] for part in parts])
        order = np.argsort(rows, kind="stable")
        places = np.empty(len(rows), dtype=np.int64)
        places[order] = np.arange(len(rows))
        terms_of, entries, codes, first = [], [], [], 0
        for part in parts:
            is_live = part.live[part.places]
            numbers = np.repeat(np.arange(len(part.ends) - 1), part.stops[1:] - part.stops[:-1])[is_live]
            terms_left = np.unique(numbers)
            terms_of.append([part.term(number) for number in terms_left.tolist()])
            now = np.cumsum(part.live) + (first - 1)  # of each place, among the rows that are left of all
            entries.append((terms_left.searchsorted(numbers), places[now[part.places[is_live]]], part.counts[is_live]))
            codes += [part.codes[part.starts[at] : part.starts[at + 1]] for at in np.flatnonzero(part.live).tolist()]
            first += part.count
        distinct = sorted(set().union(*terms_of))
        ranks = {word: rank for rank, word in enumerate(distinct)}
        keys = [
            _key(np.array([ranks[word] for word in words], dtype=np.int64)[numbers], at, counts)
            for words, (numbers, at, counts) in zip(terms_of, entries, strict=True)
        ]
        return cls._pack(rows[order], [codes[at] for at in order.tolist()], distinct, np.concatenate(keys))

    @classmethod
    def _pack(cls, rows: Ints, codes: Sequence[Codes], terms: Sequence[bytes], postings: Ints) -> Segment:
        """Return a segment; ``postings`` are those of :func:`_key` in any order, which are sorted in place."""
        postings.sort(kind="stable")  # several ascending runs, which a stable sort only merges
        counts = postings & _MOST
        width = 1 if not len(counts) or counts.max() < 1 << 8 else 2
        each = np.bincount(postings >> 32, minlength=len(terms))
        parts: list[tuple[str, Any]] = [
            ("<i8", rows),
            ("<u4", [len(row_codes) for row_codes in codes]),
            ("<u4", np.cumsum([0, *map(len, terms)])),
            ("<u4", np.concatenate(([0], np.cumsum(each)))),
            ("<u2", np.concatenate([np.empty(0, dtype=np.uint16), *codes])),
            ("<u2", postings >> 16 & _MOST),
            (f"<u{width}", counts),
        ]
        arrays = [np.asarray(values).astype(kind) for kind, values in parts]
        letters = np.frombuffer(b"".join(terms), dtype=np.uint8)
        numbers = (_MAGIC, len(rows), len(terms), len(postings), len(arrays[4]), len(letters), width)
        return cls(durable.joined([np.array(numbers, dtype="<i8"), *arrays, letters]))


def _key(terms: Ints, places: Ints, counts: Any) -> Ints:
    """Return each posting as one number, by which it is sorted: its term, its place, its count."""
    clipped = np.minimum(counts.astype(np.int64), _MOST)
    return np.asarray(terms << 32 | places << 16 | clipped)


def _climbs(ends: npt.NDArray[np.uint32], last: int) -> bool:
    """Return whether numbers climb from 0 to the last."""
    return bool(ends[0] == 0 and ends[-1] == last and np.all(ends[1:] >= ends[:-1]))


def build_segments(rows: Ints, terms: Iterable[Sequence[str]]) -> Iterator[Segment]:
    """Give segments of new rows, each as large as one may be; see :meth:`Segment.build`."""
    left = iter(terms)
    while len(rows):
        segment = Segment.build(rows, left)
        if not len(segment):
            raise ValueError(f"{len(rows)} rows have no text")
        rows = rows[len(segment) :]
        yield segment


FORMAT: Final = 5


def write_segments(folder: Path, segments: Sequence[Segment], analyzer: str, stamp: str) -> list[Segment]:
    """Write what is new of some segments, then the manifest; return the same segments, mapped from there.

    Args:
        folder: What this process is ``writing``.
        segments: All that the folder shall hold.
        analyzer: Fingerprint of what made their terms.
        stamp: Of the caller; :func:`read_segments` returns it.
    """
    parts = [(one.key, one.data, one.live) for one in segments]
    mapped = durable.write_segments(folder, FORMAT, "words", parts, {"stamp": stamp, "analyzer": analyzer})
    return [Segment(data, one.key, one.live) for data, one in zip(mapped, segments, strict=True)]


def read_segments(folder: Path, analyzer: str) -> tuple[list[Segment], str]:
    """Return the segments of a folder, mapped, and the stamp; one of ``DAMAGE`` where they cannot be used."""
    parts, facts = durable.read_segments(folder, FORMAT, "words")
    if facts["analyzer"] != analyzer:
        raise ValueError("its terms are of another analyzer")
    segments = []
    for key, data, live in parts:
        segment = Segment(data, key)
        segment.check()
        segments.append(Segment(data, key, durable.unpacked(live, len(segment))))
    rows = np.concatenate([np.empty(0, dtype=np.int64), *(one.rows[one.live] for one in segments)])
    rows.sort(kind="stable")  # ascending runs, which it only merges
    if np.any(rows[1:] == rows[:-1]):
        raise ValueError("a row is in two segments")
    return segments, facts["stamp"]
