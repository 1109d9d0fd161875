"""The BM25 index: what changes in place. Each change makes another snapshot, and readers keep theirs."""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import FilterOperator

from llama_index_contextual.checks import amount
from llama_index_contextual.errors import SettingError
from llama_index_contextual.keyword.analyzer import Analyzer
from llama_index_contextual.keyword.filters import NOT_COLUMNS, REF_DOC_ALIASES, REF_DOC_ID, WORDS, condition_of, select
from llama_index_contextual.keyword.languages import fold, normalise
from llama_index_contextual.keyword.segments import Records, Segment, build_segment, merge_segments
from llama_index_contextual.keyword.snapshot import Snapshot, Terms
from llama_index_contextual.metadata import FRONT_MATTER, LEXICAL_CONTEXT, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

    from llama_index_contextual.keyword.filters import Bools, Columns
    from llama_index_contextual.keyword.snapshot import Group, Masks, Match, Nearness, TermScores

    _WordTest = Callable[[Segment, MetadataFilter], Bools]

K1: Final = 1.2
B: Final = 0.75
_MORE_WORDS: Final = (LEXICAL_CONTEXT, FRONT_MATTER)
_FAN: Final = 4  # segments of one size class before they are merged
_SMALLEST: Final = 256  # documents: everything below is one size class
_LARGEST: Final = 1 << 16  # documents from which a segment is merged no more; a merge holds all twice, 2 kB each
_KEPT: Final = 64  # filters that a segment remembers; 64 masks of 100,000 rows take 6 MB
_MOST_READ: Final = 5000  # nodes of a segment that are read for a phrase; beyond them its words need not be adjacent
_LIKE: Final = 0.8  # of 1: the stems of "databse" and "database" are alike by 0.92, those of "acount" and "account" too
_MEANT: Final = 0.75  # as alike is the word itself
_READ: Final = 5  # nodes of a segment that are read for the forms of a word
_COMPARED: Final = range(4, 41)  # letters of a word that is compared with others
_LONGER: Final = 3  # letters that the stem of what was meant may have more or less
_SINGLE_WORD: Final = re.compile(r"\w+")


class KeywordIndex:
    """A BM25 index of nodes that changes in place.

    Readers work on :attr:`snapshot`, which never changes; writers take turns. It reads a node's EMBED view and, after
    that, its lexical context and front matter. It keeps the nodes themselves, compressed, because reading the ten nodes
    of an answer from Chroma takes longer than the whole keyword search (2.0 ms against 0.4 at 10,000 chunks).

    Args:
        analyzer: Makes the terms; default ``Analyzer()``.
        k1: BM25's term saturation, greater than 0.
        b: BM25's length normalisation, 0 to 1.

    Raises:
        SettingError: A setting cannot work.
    """

    def __init__(self, analyzer: Analyzer | None = None, *, k1: float = K1, b: float = B) -> None:
        self.analyzer = analyzer or Analyzer()
        self.k1, self.b = amount("k1", k1), amount("b", b, zero=True, most=1)
        self.snapshot = Snapshot((), Terms(), self.k1, self.b)
        self._masks = FilterMasks()
        self._writing = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_writing"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._writing = threading.Lock()  # a copy is changed apart from the original

    # Changing it

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Index nodes. One whose id is indexed already replaces the old one; only these nodes are analysed."""
        unique = {node.node_id: node for node in nodes}
        if not unique:
            return
        with self._writing:
            now = self.snapshot
            new = build_segment(
                list(unique),
                (self.analyzer.tokens(lexical_text(node)) for node in unique.values()),
                Records.build(unique.values()),
                [{REF_DOC_ID: node.ref_doc_id, **node.metadata} for node in unique.values()],
                now.terms,
            )
            self._replace([*(segment.without(unique) for segment in now.segments), new], now.terms)

    def delete(self, node_ids: Iterable[str]) -> int:
        """Delete nodes by id and return how many there were; unknown ids are ignored."""
        gone = set(node_ids)
        with self._writing:
            now = self.snapshot
            self._replace([segment.without(gone) for segment in now.segments], now.terms)
            return now.count - self.snapshot.count

    def restore(self, segments: Sequence[Segment], terms: Terms) -> None:
        """Replace everything by what was kept on disk."""
        with self._writing:
            self.snapshot = Snapshot(tuple(segments), terms, self.k1, self.b)

    def _replace(self, segments: Sequence[Segment], terms: Terms) -> None:
        self.snapshot = Snapshot(_tidy(segments), terms, self.k1, self.b)

    # Reading it

    def count(self) -> int:
        """Return the number of nodes."""
        return self.snapshot.count

    def keyword_query(self, groups: Sequence[Group], top_k: int, filters: MetadataFilters | None = None) -> list[Match]:
        """Return the best ``top_k`` nodes with a matching term, best first, ties by id; [] for a query without terms.

        Args:
            groups: The query's terms, as :meth:`Analyzer.query_groups` gives them.
            top_k: Most nodes to return.
            filters: Nodes that may be returned.
        """
        snapshot = self.snapshot
        return snapshot.search(groups, top_k, self._admitted(snapshot, filters))

    def selected_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Return the ids of the nodes that filters admit, in the order in which they were added."""
        snapshot = self.snapshot
        return snapshot.ids(self._admitted(snapshot, filters))

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that are indexed."""
        return self.snapshot.nodes(node_ids)

    def term_scores(self, groups: Sequence[Group], node_ids: Sequence[str]) -> TermScores:
        """Return what each term of a query adds to the score of each node."""
        return self.snapshot.term_scores(groups, node_ids)

    def nearness(self, groups: Sequence[Group], node_ids: Sequence[str]) -> Nearness:
        """Return how near to each other neighbouring terms of a query stand in each node."""
        return self.snapshot.nearness(groups, node_ids)

    def values(self, key: str, node_ids: Iterable[str]) -> dict[str, Any]:
        """Return the nodes' values of a metadata key without reading any node; None where one has none."""
        return self.snapshot.values(key, node_ids)

    def word_like(self, word: str) -> str | None:
        """Return the word of an indexed node that is spelled most like a word; None where none is nearly the same.

        Terms are stems, so the word is read from nodes that hold the term. Only terms that begin with the same letter
        and are about as long are compared, because a typing error rarely is in the first letter.
        """
        snapshot, wanted = self.snapshot, fold(word)
        if not wanted.isalpha() or len(wanted) not in _COMPARED:
            return None
        stems = {wanted, *(term.rpartition(":")[2] for term in self.analyzer.query_tokens(word))}
        near = {
            stem: term
            for term in snapshot.terms
            if (stem := term.rpartition(":")[2])[:1] == wanted[0] and abs(len(stem) - len(wanted)) <= _LONGER
        }
        alike = {near[one] for stem in stems for one in get_close_matches(stem, near, 2, _LIKE)}
        words = {word for term in alike for word in self._words_of(snapshot, term)}
        return next(iter(get_close_matches(wanted, sorted(words), 1, _MEANT)), None)

    def _words_of(self, snapshot: Snapshot, term: str) -> set[str]:
        """Return the words with a term in some nodes that hold it; none where no node does any more."""
        words: set[str] = set()
        for segment in snapshot.segments:
            rows, _ = snapshot.entries_in(segment, (term,))
            for row in rows[:_READ].tolist():
                words.update(_SINGLE_WORD.findall(normalise(lexical_text(segment.records.node(row)))))
        return {fold(word) for word in words if term in self.analyzer.query_tokens(word)}

    def _admitted(self, snapshot: Snapshot, filters: MetadataFilters | None) -> Masks | None:
        if filters is None:
            return None
        return self._masks.of(snapshot.segments, filters, lambda segment, one: self._holding(snapshot, segment, one))

    def _holding(self, snapshot: Snapshot, segment: Segment, one: MetadataFilter) -> Bools:
        """Return the rows that hold the words of a filter on WORDS, for TEXT_MATCH side by side."""
        groups = self.analyzer.query_groups(str(one.value))
        held = np.full(len(segment), bool(groups))
        for group in groups:
            rows, _ = snapshot.entries_in(segment, group)
            has = np.zeros(len(segment), dtype=np.bool_)
            has[rows] = True
            held &= has
        if one.operator == FilterOperator.TEXT_MATCH and np.count_nonzero(held) <= _MOST_READ:
            phrase = spaced(str(one.value))
            for row in np.flatnonzero(held).tolist():
                held[row] = phrase in spaced(lexical_text(segment.records.node(row)))
        return held


class FilterMasks:
    """Remember the rows that filters admit, by segment and filter. It is thread-safe."""

    def __init__(self) -> None:
        # The key is Columns: versions of a segment with fewer live rows share it, and it goes away with the last.
        self._known: WeakKeyDictionary[Columns, OrderedDict[str, Bools]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[FilterMasks], tuple[()]]:
        return (FilterMasks, ())  # a cache

    def of(self, segments: Sequence[Segment], filters: MetadataFilters, words: _WordTest) -> list[Bools]:
        """Return for each segment the rows that filters admit; ``words`` evaluates those on :data:`WORDS`."""
        key = repr(filters.model_dump())  # not as JSON, where inf, -inf and nan are all null
        return [self._mask(segment, filters, key, words) for segment in segments]

    def _mask(self, segment: Segment, filters: MetadataFilters, key: str, words: _WordTest) -> Bools:
        with self._lock:
            known = self._known.setdefault(segment.columns, OrderedDict())
            if key in known:
                known.move_to_end(key)
                return known[key]
        mask = select(
            filters, lambda one: words(segment, one) if one.key == WORDS else _test(segment, one), len(segment)
        )
        with self._lock:
            known[key] = mask
            while len(known) > _KEPT:
                known.popitem(last=False)
        return mask


def _test(segment: Segment, one: MetadataFilter) -> Bools:
    key, holds = one.key, condition_of(one)
    if key in NOT_COLUMNS:
        rows = range(len(segment))
        return np.fromiter((holds(segment.records.node(row).metadata.get(key)) for row in rows), np.bool_, len(segment))
    columns = segment.columns.by_key
    column = columns.get(REF_DOC_ID if key in REF_DOC_ALIASES and key not in columns else key)
    return np.full(len(segment), holds(None)) if column is None else column.where(holds)


def checked_nodes(nodes: object) -> list[BaseNode]:
    """Return nodes as a list.

    Raises:
        SettingError: They are anything else; the message says what was probably meant.
    """
    kind = type(nodes).__name__
    if hasattr(nodes, "nodes") and hasattr(nodes, "as_retriever"):  # a ContextualIndex
        raise SettingError(f"nodes={kind} is an index. Cure: its as_retriever(), or nodes=index.nodes().")
    for name, mark in (("index", "as_retriever"), ("docstore", "docs"), ("vector_store", "stores_text")):
        if hasattr(nodes, mark):
            cure = f"ContextualBM25Retriever.from_defaults({name}=...)"
            raise SettingError(f"nodes={kind} is not a list of nodes. Cure: {cure}.")
    if isinstance(nodes, str | BaseNode) or not isinstance(nodes, Iterable):
        raise SettingError(f"nodes={kind} is not a list of nodes. Cure: a list of LlamaIndex nodes.")
    given = list(nodes)
    wrong = next((node for node in given if not isinstance(node, BaseNode)), None)
    if wrong is not None:
        cure = "TextNode(text=...) for each text" if isinstance(wrong, str) else "LlamaIndex nodes"
        raise SettingError(f"nodes hold a {type(wrong).__name__}. Cure: {cure}.")
    return given


def lexical_text(node: BaseNode) -> str:
    """Return what BM25 reads of a node: the EMBED view and, after it, the lexical context and the front matter."""
    text = node.get_content(metadata_mode=MetadataMode.EMBED)
    return "\n".join([text, *(str(value) for key in _MORE_WORDS if (value := value_of(node.metadata, key)))])


def spaced(text: str) -> str:
    """Return the folded words of a text, each between single spaces."""
    return f" {' '.join(fold(word) for word in _SINGLE_WORD.findall(normalise(text)))} "


def _tidy(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Drop empty segments, compact those mostly dead, merge neighbours of one size class once there are enough.

    So an index of n documents has O(log n) segments, and one more for each :data:`_LARGEST`; each document is merged
    O(log n) times.
    """
    kept = [
        segment if 2 * segment.live_count >= len(segment) else merge_segments([segment])
        for segment in segments
        if segment.live_count
    ]
    while len(kept) >= _FAN:
        classes = [_size_class(segment) for segment in kept]
        start = len(kept)
        while start and classes[start - 1] <= classes[-1] and len(kept[start - 1]) < _LARGEST:
            start -= 1
        run = len(kept) - start
        if run < _FAN:
            break
        kept[start:] = [merge_segments(kept[start:])]
    return tuple(kept)


def _size_class(segment: Segment) -> int:
    return max(0, int(math.log(segment.live_count / _SMALLEST, _FAN)) + 1) if segment.live_count >= _SMALLEST else 0
