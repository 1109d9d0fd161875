"""Segments: immutable pieces of a BM25 index, each with postings in numpy arrays, encoded nodes and metadata columns.

A segment never changes. Deleting copies its small ``live`` mask, adding makes a new segment, and merging makes a larger
one. So a reader that holds a tuple of segments sees one moment of the index, whatever writers do afterwards.
"""

from __future__ import annotations

import uuid
import zlib
from array import array
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from llama_index.core.schema import BaseNode, Document, ImageNode, IndexNode, Node, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from llama_index_contextual.keyword.filters import Bools, Columns

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Mapping, Sequence

Ints = npt.NDArray[np.int32]
Counts = npt.NDArray[np.uint16]
Codes = npt.NDArray[np.uint16]

_CODE: Final = (1 << 16) - 1
_MOST: Final = np.iinfo(np.uint16).max  # a term frequency above it adds nothing to BM25 anyway
# As metadata_dict_to_node reads them; a node of another class becomes one of the nearest of these that it derives from.
_CLASSES: Final[dict[bytes, type[BaseNode]]] = {
    b"N": Node,
    b"I": IndexNode,
    b"P": ImageNode,
    b"T": TextNode,
}
# Text that most records hold, so that zlib writes it as a reference. A change needs a new persistence.FORMAT.
_COMMON: Final = (
    b'"continues":"","overflow":true,"date":"20","date_ts":17,"tags":"","description":"","context":"Document: '
    b'"excluded_embed_metadata_keys":["heading_level","content_type","token_count","chunk_hash","start_line",'
    b'"end_line","(hidden by the context)","path","title","header_path","context_source","context_version"],'
    b'"excluded_llm_metadata_keys":["heading_level","content_type","token_count","chunk_hash",'
    b'"(hidden by the context)","title","context","context_source","context_version"],'
    b'"relationships":{"1":{"node_id":"","node_type":"4",'
    b'"metadata":{},"hash":"","class_name":"RelatedNodeInfo"},"2":{"node_id":"","node_type":"1","metadata":{},'
    b'"hash":null,"class_name":"RelatedNodeInfo"},"3":{"node_id":"'
    b'","node_type":"1","metadata":{},"hash":null,"class_name":"RelatedNodeInfo"}},'
    b'"metadata_template":"{key}: {value}","metadata_separator":"\\n","text":" the , and to of in a is for '
    b'","mimetype":"text/plain","start_char_idx":,"end_char_idx":,"text_template":"{metadata_str}\\n\\n{content}",'
    b'"class_name":"TextNode"}{"id_":"","metadata":{"path":".md","title":"","header_path":" > ","heading_level":2,'
    b'"start_line":1,"end_line":2,"content_type":"text","token_count":1,"chunk_hash":"","context_source":"headings",'
    b'"context_version":"'
)
_LETTERS: Final = {cls: letter for letter, cls in _CLASSES.items()}


class Vocabulary(Protocol):
    """Give each term its number."""

    def number(self, term: str) -> int:
        """Return the term's number, a new one for a new term."""


@dataclass(frozen=True, slots=True)
class Postings:
    """Say which documents hold which term, and how often. The entries of a term lie together, by row.

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
        """Return the rows and the counts of one term; both are empty where it does not occur."""
        at = int(np.searchsorted(self.terms, self.terms.dtype.type(term)))  # a Python int would copy all terms
        if at == len(self.terms) or self.terms[at] != term:
            return self.rows[:0], self.counts[:0]
        part = slice(self.starts[at], self.stops[at])
        return self.rows[part], self.counts[part]

    @classmethod
    def collect(cls, terms: Ints, rows: Ints, counts: Counts) -> Postings:
        """Sort loose entries into postings."""
        order = np.lexsort((rows, terms))
        terms, rows, counts = terms[order], rows[order], counts[order]
        distinct, first = np.unique(terms, return_index=True)
        starts = first.astype(np.int64)
        return cls(distinct, starts, np.append(starts, len(terms))[1:], rows, counts)

    @classmethod
    def merge(cls, parts: Sequence[tuple[Postings, Bools]]) -> Postings:
        """Return the entries of several for the rows where the mask is true; these rows are numbered on, part by part.

        Nothing is sorted: the entries of a term are those of the first part, then those of the second. So it takes
        little memory beside the result, one of 12 million entries for 100,000 chunks.
        """
        alive = [keep[one.rows] for one, keep in parts]
        sizes = [one.sizes(kept) for (one, _), kept in zip(parts, alive, strict=True)]
        terms = np.unique(np.concatenate([one.terms for one, _ in parts]))
        places = [np.searchsorted(terms, one.terms) for one, _ in parts]
        total = np.zeros(len(terms), dtype=np.int64)
        for place, size in zip(places, sizes, strict=True):
            total[place] += size
        stops = np.cumsum(total)
        rows, counts = np.empty(total.sum(), dtype=np.int32), np.empty(total.sum(), dtype=np.uint16)
        free, first = stops - total, 0  # where the next entry of each term goes, and the number of the part's first row
        for (one, keep), kept, place, size in zip(parts, alive, places, sizes, strict=True):
            stored = np.argsort(one.starts)  # the order in which the terms lie in ``rows``
            each = size[stored]
            to = np.repeat(free[place][stored] - (np.cumsum(each) - each), each) + np.arange(each.sum())
            rows[to] = (np.cumsum(keep, dtype=np.int32) + np.int32(first - 1))[one.rows[kept]]
            counts[to] = one.counts[kept]
            free[place] += size
            first += int(np.count_nonzero(keep))
        used = total > 0
        return cls(terms[used], (stops - total)[used], stops[used], rows, counts)

    def sizes(self, kept: Bools) -> npt.NDArray[np.int64]:
        """Return how many entries of each term a mask keeps, given beside ``rows``."""
        if kept.all():
            return self.stops - self.starts
        before = np.concatenate(([0], np.cumsum(kept)))
        return np.asarray(before[self.stops] - before[self.starts])

    def renumbered(self, numbers: Ints) -> Postings:
        """Return the same postings for other numbers of the terms, given beside ``terms``."""
        order = np.argsort(numbers)
        return replace(self, terms=numbers[order], starts=self.starts[order], stops=self.stops[order])


@dataclass(frozen=True, slots=True)
class Records:
    """Hold encoded nodes one after the other; record i is ``blob[starts[i]:starts[i + 1]]``."""

    blob: bytes | mmap.mmap
    starts: npt.NDArray[np.int64]

    def __reduce__(self) -> tuple[type[Records], tuple[bytes, npt.NDArray[np.int64]]]:
        return (Records, (bytes(self.blob), self.starts))  # a mapped file cannot be pickled

    @classmethod
    def build(cls, nodes: Iterable[BaseNode]) -> Records:
        """Encode nodes."""
        records = [encode(node) for node in nodes]
        return cls(b"".join(records), _starts(np.fromiter(map(len, records), dtype=np.int64, count=len(records))))

    def __getitem__(self, row: int) -> bytes:
        return bytes(self.blob[self.starts[row] : self.starts[row + 1]])

    def node(self, row: int) -> BaseNode:
        """Return the node of a row, a new object each time."""
        return decode(self[row])

    @classmethod
    def merge(cls, parts: Sequence[tuple[Records, npt.NDArray[np.bool_]]]) -> Records:
        """Return the records of several where the mask is true, in order."""
        blobs = [
            memoryview(one.blob)[start:stop] for one, keep in parts for start, stop in _pieces(one.starts, keep)
        ]  # views: a copy of each record would take as much memory as the result
        return cls(b"".join(blobs), _starts(np.concatenate([np.diff(one.starts)[keep] for one, keep in parts])))


@dataclass(frozen=True, slots=True)
class WordOrder:
    """Hold the terms of documents in their order: document i has ``codes[starts[i]:starts[i + 1]]``.

    A code is :func:`code_of` of a term, two bytes, so that the order of 200 terms takes 400 bytes. Different terms can
    have one code: who reads codes must know from the postings which terms a document holds, or bear a rare mistake.
    """

    codes: Codes
    starts: npt.NDArray[np.int64]

    @classmethod
    def join(cls, parts: Iterable[Codes]) -> WordOrder:
        """Return the order of documents, given those of each."""
        every = list(parts)
        codes = np.concatenate([np.empty(0, dtype=np.uint16), *every])
        return cls(codes, _starts(np.fromiter(map(len, every), dtype=np.int64, count=len(every))))

    def __getitem__(self, row: int) -> Codes:
        return self.codes[self.starts[row] : self.starts[row + 1]]

    def of(self, rows: npt.NDArray[np.int64]) -> tuple[Codes, npt.NDArray[np.int64]]:
        """Return the codes of several rows one after the other, and how many each has; row -1 has none."""
        starts = self.starts[rows]
        stops = np.where(rows < 0, starts, self.starts[rows + 1])
        parts = [self.codes[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        return np.concatenate([self.codes[:0], *parts]), stops - starts

    @classmethod
    def merge(cls, parts: Sequence[tuple[WordOrder, Bools]]) -> WordOrder:
        """Return the order of several where the mask is true, in order."""
        codes = [one.codes[start:stop] for one, keep in parts for start, stop in _pieces(one.starts, keep)]
        return cls(np.concatenate(codes), _starts(np.concatenate([np.diff(one.starts)[keep] for one, keep in parts])))


def _starts(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return where each of several pieces starts that lie one after the other, and where the last ends."""
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def _pieces(starts: npt.NDArray[np.int64], keep: Bools) -> list[tuple[int, int]]:
    """Return from where to where the rows lie whose mask is true; neighbours are one piece."""
    edges = np.flatnonzero(np.diff(keep, prepend=False, append=False))
    return list(zip(starts[edges[::2]].tolist(), starts[edges[1::2]].tolist(), strict=True))


@lru_cache(maxsize=1 << 15)
def code_of(term: str) -> int:
    """Return a number of two bytes for a term, the same in every process."""
    return zlib.crc32(term.encode("utf-8", "surrogatepass")) & _CODE


@dataclass(frozen=True)
class Segment:
    """Hold documents and their postings. Rows are numbered from 0; deleted rows stay until the segment is merged.

    Args:
        ids: Node id of each row.
        postings: Term entries of all rows, deleted ones included.
        lengths: Terms in each row.
        order: The terms of each row in their order.
        records: The node of each row.
        columns: The metadata of each row.
        live: False where a row was deleted.
        key: Names the segment on disk; a version with fewer live rows keeps it.
    """

    ids: Sequence[str]
    postings: Postings
    lengths: Ints
    order: WordOrder
    records: Records
    columns: Columns
    live: Bools
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __len__(self) -> int:
        return len(self.ids)

    def __reduce__(self) -> tuple[type[Segment], tuple[Any, ...]]:
        return (Segment, tuple(getattr(self, one.name) for one in fields(self)))  # without what is remembered

    def __deepcopy__(self, memo: object) -> Segment:
        return self  # nothing changes it, and it may be large

    @cached_property
    def rows_by_id(self) -> dict[str, int]:
        """Return the row of each node id, deleted rows included."""
        return {node_id: row for row, node_id in enumerate(self.ids)}

    @cached_property
    def live_count(self) -> int:
        """Return the number of documents that are not deleted."""
        return int(np.count_nonzero(self.live))

    @cached_property
    def live_length(self) -> int:
        """Return the number of terms in documents that are not deleted."""
        return int(self.lengths[self.live].sum(dtype=np.int64))

    @cached_property
    def has_dead(self) -> bool:
        """Return whether any row was deleted."""
        return self.live_count < len(self.ids)

    def row_of(self, node_id: str) -> int | None:
        """Return the row of a document, None where it is unknown or deleted."""
        row = self.rows_by_id.get(node_id)
        return row if row is not None and self.live[row] else None

    def rows_of(self, node_ids: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the rows of documents, -1 for those that are unknown or deleted."""
        found = self.rows_by_id.get
        rows = np.array([found(node_id, -1) for node_id in node_ids], dtype=np.int64)
        return np.where(self.live[rows], rows, -1) if self.has_dead else rows

    def entries(self, term: int) -> tuple[Ints, Counts]:
        """Return the live rows that hold a term, ascending, and how often they do."""
        rows, counts = self.postings.of(term)
        if self.has_dead and len(rows):
            alive = self.live[rows]
            return rows[alive], counts[alive]
        return rows, counts

    def without(self, node_ids: Iterable[str]) -> Segment:
        """Return this segment with some documents deleted; itself where it holds none of them."""
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
    order: list[Codes] = []
    for words in terms:
        frequencies = Counter(words)
        numbers.extend(map(number, frequencies))
        counts.extend(frequencies.values())
        sizes.append(len(frequencies))
        lengths.append(len(words))
        order.append(np.fromiter(map(code_of, words), dtype=np.uint16, count=len(words)))
    rows = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    clipped = np.minimum(np.array(counts, dtype=np.int32), _MOST).astype(np.uint16)
    return Segment(
        ids=tuple(ids),
        postings=Postings.collect(np.array(numbers, dtype=np.int32), rows, clipped),
        lengths=np.array(lengths, dtype=np.int32),
        order=WordOrder.join(order),
        records=records,
        columns=Columns.build(metadata),
        live=np.ones(len(sizes), dtype=np.bool_),
    )


def merge_segments(segments: Sequence[Segment]) -> Segment:
    """Return one segment of the live documents of several, in their order; no text is analysed again."""
    ids = tuple(i for segment in segments for i, live in zip(segment.ids, segment.live.tolist(), strict=True) if live)
    return Segment(
        ids=ids,
        postings=Postings.merge([(segment.postings, segment.live) for segment in segments]),
        lengths=np.concatenate([segment.lengths[segment.live] for segment in segments]),
        order=WordOrder.merge([(segment.order, segment.live) for segment in segments]),
        records=Records.merge([(segment.records, segment.live) for segment in segments]),
        columns=Columns.merge([(segment.columns, segment.live) for segment in segments]),
        live=np.ones(len(ids), dtype=np.bool_),
    )


def encode(node: BaseNode) -> bytes:
    """Write a node without its embedding as bytes; the first byte names its class."""
    letter = next((_LETTERS[one] for one in type(node).__mro__ if one in _LETTERS), None)
    if letter is None or (isinstance(node, Document) and not _has_media(node)):  # what a vector store makes of it
        bare = node.model_copy(update={"embedding": None})
        node = metadata_dict_to_node(node_to_metadata_dict(bare, remove_text=True), text=node.get_content())
        letter = _LETTERS[type(node)]
    if isinstance(node, IndexNode):
        # Its object may be anything; a retriever finds it through object_map.
        node = node.model_copy(update={"obj": None})
    text = node.model_dump_json(exclude={"embedding"}).encode("utf-8", "surrogatepass")
    packer = zlib.compressobj(1, zdict=_COMMON)
    return letter + packer.compress(text) + packer.flush()


def _has_media(node: Node) -> bool:
    return any((node.image_resource, node.audio_resource, node.video_resource))


def decode(record: bytes) -> BaseNode:
    """Return the node that :func:`encode` was given, a new object each time."""
    unpacker = zlib.decompressobj(zdict=_COMMON)
    return _CLASSES[record[:1]].model_validate_json(unpacker.decompress(record[1:]))
