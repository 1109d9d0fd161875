"""An immutable piece of a BM25 index: postings in numpy arrays, records, metadata columns.

A segment never changes. Deleting copies its small ``live`` mask, adding makes a new segment, merging makes a larger
one: a reader that holds a tuple of segments sees one moment of the index, however many writers come after.
"""

from __future__ import annotations

import uuid
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from llama_index_contextual.retrievers.columns import Columns
from llama_index_contextual.retrievers.records import Records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Ints = npt.NDArray[np.int32]
Counts = npt.NDArray[np.uint16]
Bools = npt.NDArray[np.bool_]

_MOST = np.iinfo(np.uint16).max  # a term frequency above it adds nothing to BM25 anyway


class Vocabulary(Protocol):
    """What gives each term its number."""

    def number(self, term: str) -> int:
        """The term's number, a new one for a new term."""


@dataclass(frozen=True, slots=True)
class Postings:
    """Which documents hold which term how often. The entries of a term lie together, by row.

    Args:
        terms: Term numbers, ascending, one for each distinct term.
        starts: Where each term's entries start in ``rows``.
        stops: Where they end.
        rows: Rows of documents within the segment.
        counts: Term frequencies, beside ``rows``.
    """

    terms: Ints
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    rows: Ints
    counts: Counts

    def of(self, term: int) -> tuple[Ints, Counts]:
        """Rows and counts of one term, both empty where it does not occur."""
        at = int(np.searchsorted(self.terms, self.terms.dtype.type(term)))  # a Python int would copy all terms
        if at == len(self.terms) or self.terms[at] != term:
            return self.rows[:0], self.counts[:0]
        part = slice(self.starts[at], self.stops[at])
        return self.rows[part], self.counts[part]

    def expanded_terms(self) -> Ints:
        """The term number of every entry, beside ``rows``."""
        order = np.argsort(self.starts)
        return np.repeat(self.terms[order], (self.stops - self.starts)[order])

    @classmethod
    def collect(cls, terms: Ints, rows: Ints, counts: Counts) -> Postings:
        """Sort loose entries into postings."""
        order = np.lexsort((rows, terms))
        terms, rows, counts = terms[order], rows[order], counts[order]
        distinct, first = np.unique(terms, return_index=True)
        starts = first.astype(np.int64)
        return cls(distinct, starts, np.append(starts[1:], len(terms)).astype(np.int64), rows, counts)

    def renumbered(self, numbers: Ints) -> Postings:
        """The same postings for a vocabulary that gives the terms other numbers, beside ``terms``."""
        order = np.argsort(numbers)
        return replace(self, terms=numbers[order], starts=self.starts[order], stops=self.stops[order])


@dataclass(frozen=True)
class Segment:
    """Documents with their postings. Rows are numbered from 0; dead ones stay until the segment is merged.

    Args:
        ids: Node id of each row.
        postings: Term entries of all rows, dead ones included.
        lengths: Terms in each row.
        records: The node of each row.
        columns: The metadata of each row.
        live: False where a row was deleted.
        key: Names the segment on disk; a version with fewer live rows keeps it.
    """

    ids: Sequence[str]
    postings: Postings
    lengths: Ints
    records: Records
    columns: Columns
    live: Bools
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __len__(self) -> int:
        return len(self.ids)

    def __deepcopy__(self, memo: object) -> Segment:
        return self  # nothing changes it, and it may be large

    @cached_property
    def rows_by_id(self) -> dict[str, int]:
        """Row of each node id, dead rows included."""
        return {node_id: row for row, node_id in enumerate(self.ids)}

    @cached_property
    def live_count(self) -> int:
        """Documents that are not deleted."""
        return int(np.count_nonzero(self.live))

    @cached_property
    def live_length(self) -> int:
        """Terms in the documents that are not deleted."""
        return int(self.lengths[self.live].sum(dtype=np.int64))

    @cached_property
    def has_dead(self) -> bool:
        """Whether any row was deleted."""
        return self.live_count < len(self.ids)

    def row_of(self, node_id: str) -> int | None:
        """Row of a live document."""
        row = self.rows_by_id.get(node_id)
        return row if row is not None and self.live[row] else None

    def entries(self, term: int) -> tuple[Ints, Counts]:
        """Live rows that hold a term, ascending, and how often."""
        rows, counts = self.postings.of(term)
        if self.has_dead and len(rows):
            alive = self.live[rows]
            return rows[alive], counts[alive]
        return rows, counts

    def without(self, node_ids: Iterable[str]) -> Segment:
        """This segment with some documents dead; itself where it holds none of them."""
        rows = [row for node_id in node_ids if (row := self.row_of(node_id)) is not None]
        if not rows:
            return self
        live = self.live.copy()
        live[rows] = False
        smaller = replace(self, live=live)
        smaller.__dict__["rows_by_id"] = self.rows_by_id  # the same rows: do not make the dictionary again
        return smaller


def build_segment(
    ids: Sequence[str],
    terms: Iterable[Sequence[str]],
    records: Records,
    metadata: Sequence[Mapping[str, Any]],
    vocabulary: Vocabulary,
) -> Segment:
    """Make a segment of new documents; ``terms`` gives each document's terms in order of ``ids``."""
    number = vocabulary.number
    numbers, counts = array("i"), array("i")  # 12 million entries for 100k chunks: lists would take four times as much
    sizes: list[int] = []
    lengths: list[int] = []
    for words in terms:
        frequencies = Counter(words)
        numbers.extend(map(number, frequencies))
        counts.extend(frequencies.values())
        sizes.append(len(frequencies))
        lengths.append(len(words))
    rows = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    clipped = np.minimum(np.array(counts, dtype=np.int32), _MOST).astype(np.uint16)
    return Segment(
        ids=tuple(ids),
        postings=Postings.collect(np.array(numbers, dtype=np.int32), rows, clipped),
        lengths=np.array(lengths, dtype=np.int32),
        records=records,
        columns=Columns.build(metadata),
        live=np.ones(len(sizes), dtype=np.bool_),
    )


def merge_segments(segments: Sequence[Segment]) -> Segment:
    """One segment of the live documents of several, in their order; nothing is analysed again."""
    terms, rows, counts, start = [], [], [], 0
    for segment in segments:
        new_rows = np.cumsum(segment.live, dtype=np.int32) - np.int32(1) + np.int32(start)
        alive = segment.live[segment.postings.rows]
        terms.append(segment.postings.expanded_terms()[alive])
        rows.append(new_rows[segment.postings.rows][alive])
        counts.append(segment.postings.counts[alive])
        start += segment.live_count
    ids = tuple(i for segment in segments for i, live in zip(segment.ids, segment.live.tolist(), strict=True) if live)
    return Segment(
        ids=ids,
        postings=Postings.collect(np.concatenate(terms), np.concatenate(rows), np.concatenate(counts)),
        lengths=np.concatenate([segment.lengths[segment.live] for segment in segments]),
        records=Records.merge([(segment.records, segment.live) for segment in segments]),
        columns=Columns.merge([(segment.columns, segment.live) for segment in segments]),
        live=np.ones(len(ids), dtype=np.bool_),
    )
