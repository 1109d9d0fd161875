"""The BM25 index: segments, a vocabulary, and scores that equal those of a full rebuild.

Segments hold term frequencies; document frequencies, the average length and so every weight are computed from the live
documents when a query comes. (Rebuilding bm25s from token ids costs half a build, so it cannot follow single edits.)

The score is Lucene's BM25: ``sum over terms of idf * tf / (tf + k1 * (1 - b + b * length / average))`` with
``idf = ln(1 + (N - df + .5) / (df + .5))``, in [0, infinity).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from llama_index_contextual.retrievers.columns import REF_DOC_ID
from llama_index_contextual.retrievers.records import Records
from llama_index_contextual.retrievers.segments import Bools, Counts, Ints, Segment, build_segment, merge_segments

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

_FAN: Final = 4  # segments of one size class before they are merged
_SMALLEST: Final = 256  # documents: everything below is one size class
_AT_ONCE: Final = 2_000_000  # entries scored together: some 50 MB for the moment of a query
_SHORT: Final = 8  # rows a block below which a maximum a block saves nothing

Group = tuple[str, ...]  # one term of a query: alternatives that count as the same term
Masks = Sequence[Bools]  # one a segment: rows that a filter admits


class Terms:
    """Numbers for terms. Only ever grows, so older snapshots stay true; loading from disk starts a new one."""

    def __init__(self, terms: Iterable[str] = ()) -> None:
        self._numbers = {term: number for number, term in enumerate(terms)}

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Any:
        return iter(list(self._numbers))

    def __reduce__(self) -> tuple[type[Terms], tuple[list[str]]]:
        return (Terms, (list(self),))  # at once: a writer may add one meanwhile

    def number(self, term: str) -> int:
        """The term's number, a new one for a new term. Writers only."""
        return self._numbers.setdefault(term, len(self._numbers))

    def find(self, term: str) -> int | None:
        """The term's number, None for an unknown one."""
        return self._numbers.get(term)


class Match(NamedTuple):
    """A document that matched.

    Args:
        segment: Number of its segment in the snapshot.
        row: Its row there.
        node_id: Its id.
        score: BM25, greater than 0.
    """

    segment: int
    row: int
    node_id: str
    score: float


@dataclass(frozen=True)
class Snapshot:
    """One moment of the index; every reader works on one."""

    segments: tuple[Segment, ...]
    terms: Terms
    k1: float
    b: float

    @cached_property
    def count(self) -> int:
        """Live documents."""
        return sum(segment.live_count for segment in self.segments)

    @cached_property
    def average_length(self) -> float:
        """Terms in a live document, on average."""
        return sum(segment.live_length for segment in self.segments) / self.count if self.count else 0.0

    def idf(self, frequency: int) -> float:
        """Weight of a term that ``frequency`` live documents hold."""
        return math.log(1 + (self.count - frequency + 0.5) / (frequency + 0.5))

    def frequency(self, group: Group) -> int:
        """Live documents that hold any of a term's alternatives."""
        return sum(len(rows) for rows, _ in self.entries(group))

    def entries(self, group: Group) -> list[tuple[Ints, Counts]]:
        """For each segment, the live rows that hold any of the alternatives, ascending, and how often."""
        numbers = [number for term in group if (number := self.terms.find(term)) is not None]
        return [_union([segment.entries(number) for number in numbers]) for segment in self.segments]

    @cached_property
    def norms(self) -> list[npt.NDArray[np.float64]]:
        """For each segment, what BM25 adds to a term frequency below the line, by row: larger in longer documents."""
        average = self.average_length or 1.0
        lengths = (segment.lengths.astype(np.float64) for segment in self.segments)
        return [self.k1 * (1 - self.b + self.b * own / average) for own in lengths]

    def scores(self, groups: Iterable[Group]) -> list[npt.NDArray[np.float64]]:
        """For each segment, the score of every row: 0 where no term matches."""
        found: list[list[tuple[Ints, Counts, float]]] = [[] for _ in self.segments]
        for group in dict.fromkeys(groups):  # a term counts once, however often a query repeats it
            entries = self.entries(group)
            idf = self.idf(sum(len(rows) for rows, _ in entries))
            for own, (rows, counts) in zip(found, entries, strict=True):
                if len(rows):
                    own.append((rows, counts, idf))
        return [_totals(own, norms) for own, norms in zip(found, self.norms, strict=True)]

    def search(self, groups: Iterable[Group], top_k: int, masks: Masks | None = None) -> list[Match]:
        """The best documents with at least one matching term, best first, ties by id."""
        scores = self.scores(groups)
        if masks is not None:
            scores = [np.where(mask, score, 0.0) for mask, score in zip(masks, scores, strict=True)]
        if top_k <= 0 or not scores:
            return []
        floor = _floor(scores, top_k)
        rows = [np.flatnonzero(score >= floor if floor else score) for score in scores]
        values = np.concatenate([score[found] for score, found in zip(scores, rows, strict=True)])
        owners = np.repeat(np.arange(len(rows)), [len(found) for found in rows])
        everything = np.concatenate(rows)
        if len(values) > top_k:
            # All that reach the k-th score, so that ties at the cut are broken by id and not by chance.
            keep = values >= np.partition(values, len(values) - top_k)[len(values) - top_k]
            values, owners, everything = values[keep], owners[keep], everything[keep]
        matches = [
            Match(owner, row, self.segments[owner].ids[row], score)
            for owner, row, score in zip(owners.tolist(), everything.tolist(), values.tolist(), strict=True)
        ]
        return sorted(matches, key=lambda match: (-match.score, match.node_id))[:top_k]

    def locate(self, node_id: str) -> tuple[int, int] | None:
        """Segment and row of a live document."""
        for number, segment in enumerate(self.segments):
            if (row := segment.row_of(node_id)) is not None:
                return number, row
        return None

    def node(self, segment: int, row: int) -> BaseNode:
        """The document of a row, a new object each time."""
        return self.segments[segment].records.node(row)

    def ids(self, masks: Masks | None = None) -> list[str]:
        """Ids of all live documents, or of those that a filter admits, in the order they were added."""
        found: list[str] = []
        for number, segment in enumerate(self.segments):
            keep = segment.live if masks is None else segment.live & masks[number]
            found += [segment.ids[row] for row in np.flatnonzero(keep).tolist()]
        return found


@dataclass
class LexicalIndex:
    """A BM25 index that changes in place. Readers take :attr:`snapshot`; writers take turns.

    Args:
        k1: Term saturation.
        b: Length normalisation, 0 to 1.
        snapshot: What the index holds now; replaced as a whole by every change.
    """

    k1: float
    b: float
    snapshot: Snapshot = field(init=False)
    _writing: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        self.snapshot = Snapshot((), Terms(), self.k1, self.b)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_writing"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._writing = threading.Lock()  # a copy is changed apart from the original

    def load(self, segments: Sequence[Segment], terms: Terms) -> None:
        """Take over what was persisted."""
        with self._writing:
            self.snapshot = Snapshot(tuple(segments), terms, self.k1, self.b)

    def add(self, nodes: Sequence[BaseNode], analyse: Callable[[BaseNode], Sequence[str]]) -> None:
        """Add documents; one whose id is there already replaces it."""
        unique = {node.node_id: node for node in nodes}
        if not unique:
            return
        with self._writing:
            now = self.snapshot
            metadata: list[Mapping[str, Any]] = [{REF_DOC_ID: n.ref_doc_id, **n.metadata} for n in unique.values()]
            new = build_segment(
                list(unique),
                map(analyse, unique.values()),
                Records.build(unique.values()),
                metadata,
                now.terms,
            )
            older = [segment.without(unique) for segment in now.segments]
            self.snapshot = Snapshot(_tidy([*older, new]), now.terms, self.k1, self.b)

    def delete(self, node_ids: Iterable[str]) -> int:
        """Delete documents; ids that are not there are ignored. Returns how many were."""
        gone = set(node_ids)
        with self._writing:
            now = self.snapshot
            segments = _tidy([segment.without(gone) for segment in now.segments])
            self.snapshot = Snapshot(segments, now.terms, self.k1, self.b)
            return now.count - self.snapshot.count


def _tidy(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Drop empty segments, compact those mostly dead, merge neighbours of one size class once there are enough.

    So an index of n documents has O(log n) segments, and each document is merged O(log n) times.
    """
    kept = [
        segment if 2 * segment.live_count >= len(segment) else merge_segments([segment])
        for segment in segments
        if segment.live_count
    ]
    while len(kept) >= _FAN:
        classes = [_size_class(segment) for segment in kept]
        start = len(kept)
        while start and classes[start - 1] <= classes[-1]:
            start -= 1
        run = len(kept) - start
        if run < _FAN:
            break
        kept[start:] = [merge_segments(kept[start:])]
    return tuple(kept)


def _size_class(segment: Segment) -> int:
    return max(0, int(math.log(segment.live_count / _SMALLEST, _FAN)) + 1) if segment.live_count >= _SMALLEST else 0


def _totals(entries: Sequence[tuple[Ints, Counts, float]], norms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The score of every row of a segment, given rows, frequencies and weight of each term of a query.

    All terms at once: one pass over memory is faster than one a term. Long queries in parts, to bound the memory.
    """
    totals = np.zeros(len(norms), dtype=np.float64)
    part: list[tuple[Ints, Counts, float]] = []
    for number, entry in enumerate(entries, start=1):
        part.append(entry)
        if number == len(entries) or sum(len(rows) for rows, _, _ in part) > _AT_ONCE:
            rows = np.concatenate([rows for rows, _, _ in part])
            earned = np.concatenate([counts for _, counts, _ in part]).astype(np.float64)
            earned /= earned + norms[rows]
            earned *= np.repeat([idf for _, _, idf in part], [len(rows) for rows, _, _ in part])
            totals += np.bincount(rows, weights=earned, minlength=len(norms))
            part = []
    return totals


def _floor(scores: Sequence[npt.NDArray[np.float64]], top_k: int) -> float:
    """A score that at least ``top_k`` rows reach, so that the others need not be looked at; 0 where none is known.

    The k-th largest of the maxima of many blocks: reading the scores once is faster than sorting out all that match.
    """
    block = sum(map(len, scores)) // (4 * top_k)
    if block < _SHORT:
        return 0.0
    whole = [score[: len(score) // block * block].reshape(-1, block).max(axis=1) for score in scores]
    maxima = np.concatenate(whole)
    return float(np.partition(maxima, len(maxima) - top_k)[len(maxima) - top_k]) if len(maxima) >= top_k else 0.0


def _union(parts: Sequence[tuple[Ints, Counts]]) -> tuple[Ints, Counts]:
    """Entries of several alternatives as those of one term: rows ascending, counts added."""
    found = [part for part in parts if len(part[0])]
    if len(found) == 1:
        return found[0]
    if not found:
        return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.uint16)
    rows, inverse = np.unique(np.concatenate([rows for rows, _ in found]), return_inverse=True)
    counts = np.bincount(inverse, weights=np.concatenate([counts for _, counts in found]))
    return rows, counts.astype(np.uint16)
