"""The keyword index of nodes: BM25 over their texts, the nodes, and their descriptions.

Each change creates a new state. Readers continue with the state that they started with, and never
wait.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from llama_index.core.constants import DATA_KEY, TYPE_KEY
from llama_index.core.schema import BaseNode, IndexNode, MetadataMode
from llama_index.core.storage.docstore.utils import json_to_doc
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilters

from llama_index_contextual.retrievers import arrays
from llama_index_contextual.retrievers.base import Candidate, Pool
from llama_index_contextual.retrievers.bm25_index import Bm25Index, TermCollector, TermScores
from llama_index_contextual.retrievers.chunk_info import (
    CHUNK_INFO_VERSION,
    ChunkInfoIndex,
    Chunks,
    InfoCollector,
    describe_chunk,
)
from llama_index_contextual.retrievers.filters import WordsFilter, matching_rows
from llama_index_contextual.retrievers.names import NameIndex, titles_in
from llama_index_contextual.retrievers.query import unknown_words
from llama_index_contextual.retrievers.suggestions import Vocabulary
from llama_index_contextual.retrievers.terms import TERMS_VERSION, Group, query_groups
from llama_index_contextual.retrievers.words import words_of
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import FingerprintError
from llama_index_contextual.utils.language import fold, normalise
from llama_index_contextual.utils.text import readable

if TYPE_CHECKING:
    from llama_index_contextual.retrievers.arrays import Floats, Ints, Rows, ScoredRows


T = TypeVar("T")

_MAX_CACHED = 64  # results over all nodes
_MAX_TEXTS = 5000  # texts in which a phrase is checked; beyond that, its words are enough
_FILE = "bm25.arrays"
_WRITING = threading.Lock()  # writers take turns
_FURTHER_TEXTS = (metadata.LEXICAL_CONTEXT, metadata.FRONT_MATTER)
_WORD = re.compile(r"\w+")


def lexical_text(node: BaseNode) -> str:
    """Return the text to index: the EMBED view, the lexical context and the front matter."""
    values = node.metadata
    embedded = node.get_content(metadata_mode=MetadataMode.EMBED)
    # Nodes of our parser are already marked if they contain encoded bytes.
    if metadata.ENCODED_CHARS in values or not metadata.is_of_our_parser(values):
        embedded = readable(embedded)
    further_texts = [metadata.value_of(values, key) for key in _FURTHER_TEXTS]
    return "\n".join([embedded, *map(str, filter(None, further_texts))])


def with_nodes(
    bm25: Bm25Index,
    infos: ChunkInfoIndex,
    rows: Rows,
    nodes: Iterable[BaseNode],
) -> tuple[Bm25Index, ChunkInfoIndex]:
    """Return the two indexes with further rows. Known rows are replaced.

    Args:
        bm25: The BM25 index.
        infos: The descriptions of the same rows.
        rows: The numbers of the new rows.
        nodes: The node of each new row.
    """
    terms = TermCollector()
    chunks = InfoCollector()
    for node in nodes:
        language = terms.add(lexical_text(node))
        chunk = describe_chunk(node.metadata, node.get_content(), language)
        chunks.add(node.node_id, chunk)
    return bm25.with_terms(rows, terms), infos.with_chunks(rows, chunks)


def _document_of(node: BaseNode) -> str:
    return metadata.path_of(node.metadata) or node.ref_doc_id or node.node_id


def _spaced_words(text: str) -> str:
    """Return the folded words of a text, with a single space before and after each."""
    words = [fold(word) for word in _WORD.findall(normalise(text))]
    return f" {' '.join(words)} "


def _copy(node: BaseNode) -> BaseNode:
    """Return a copy of a node without its embedding. Changes to it leave the original unchanged."""
    changes: dict[str, Any] = {
        "embedding": None,
        "metadata": node.metadata.copy(),
        "relationships": node.relationships.copy(),
        "excluded_embed_metadata_keys": node.excluded_embed_metadata_keys.copy(),
        "excluded_llm_metadata_keys": node.excluded_llm_metadata_keys.copy(),
    }
    if isinstance(node, IndexNode):
        changes["obj"] = None  # any object; the retriever keeps it in its object_map
    return node.model_copy(update=changes)


class KeywordView(ABC):
    """One state of an index of nodes, by row number. Subclasses read the nodes from their store.

    Attributes:
        bm25: The BM25 index.
        infos: The description of each row.
        cached_values: The cache of :meth:`cached`.
    """

    bm25: Bm25Index
    infos: ChunkInfoIndex
    cached_values: dict[str, Any]

    @property
    def rows(self) -> Ints:
        """Return the rows of all nodes, ascending."""
        return self.bm25.rows

    @abstractmethod
    def ids_of(self, rows: Sequence[int]) -> list[str]:
        """Return the ids of the nodes in these rows."""

    @abstractmethod
    def rows_of(self, node_ids: Iterable[str]) -> dict[str, int]:
        """Return the rows of nodes by id, without unknown ids."""

    @abstractmethod
    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects by id, without unknown ids."""

    @property
    @abstractmethod
    def names(self) -> NameIndex:
        """Return the index of document names, by the rows of their first nodes."""

    @abstractmethod
    def column(self, key: str) -> Sequence[Any]:
        """Return the value of a metadata key for each of :attr:`rows`."""

    @abstractmethod
    def rows_beside(self, row: int) -> Sequence[int]:
        """Return the rows of all nodes in the same document, ascending."""

    @abstractmethod
    def texts(self, rows: Ints) -> Iterable[str]:
        """Return the result of :func:`lexical_text` for the nodes in these rows."""

    def cached(self, key: str, compute: Callable[[], T]) -> T:
        """Return the result of ``compute``, which is cached by a key."""
        if key not in self.cached_values:
            if len(self.cached_values) >= _MAX_CACHED:
                self.cached_values.clear()
            self.cached_values[key] = compute()
        return self.cached_values[key]  # type: ignore[no-any-return]

    def matching_rows(self, filters: MetadataFilters | None) -> Ints:
        """Return the rows of the nodes that match filters, ascending."""
        if filters is None:
            return self.rows
        return self.cached(
            f"filters {filters!r}",
            lambda: matching_rows(filters, self.rows, self.column, self._rows_with_words),
        )

    def _rows_with_words(self, words_filter: WordsFilter) -> Ints:
        """Return the rows that match the filter. TEXT_MATCH needs the words as a phrase.

        If too many rows contain the words, their order is not checked.
        """
        words = str(words_filter.value)
        rows = self.bm25.rows_with_all(query_groups(words))
        if words_filter.operator != FilterOperator.TEXT_MATCH or len(rows) > _MAX_TEXTS:
            return rows
        phrase = _spaced_words(words)
        has_phrase = [phrase in _spaced_words(text) for text in self.texts(rows)]
        return rows[np.array(has_phrase, np.bool_)]

    def matching_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Return the ids of the nodes that match filters, in the order of their rows."""
        return self.ids_of(self.matching_rows(filters).tolist())

    def keyword_query(
        self,
        groups: Sequence[Group],
        top_k: int,
        filters: MetadataFilters | None = None,
    ) -> Pool:
        """Return the best ``top_k`` nodes with a matching term, best first. Ties are broken by id.

        Filters do not change scores.
        """
        among = None if filters is None else self.matching_rows(filters)
        return self.pool(self.bm25.search(groups, top_k, among), top_k)

    def pool(self, scored_rows: Sequence[ScoredRows], top_k: int) -> Pool:
        """Return the best ``top_k`` nodes, best first.

        Args:
            scored_rows: The best of all rows. With filters, the best matching rows follow.
            top_k: The largest number of nodes in each list.
        """
        lists = []
        for rows, scores in scored_rows:
            best_first = sorted(zip((-scores).tolist(), self.ids_of(rows.tolist()), strict=True))
            lists.append([Candidate(node_id, -negated) for negated, node_id in best_first[:top_k]])
        return Pool(matching=lists[-1], unfiltered=lists[0])

    def term_scores(self, groups: Sequence[Group], node_ids: Sequence[str]) -> TermScores:
        """Return the summand of each term of a query in the score of each node."""
        return self.bm25.term_scores(groups, self._rows_or_missing(node_ids))

    def describe(
        self,
        groups: Sequence[Group],
        node_ids: Sequence[str],
        with_nearness: bool = True,
    ) -> tuple[TermScores, Floats, Chunks]:
        """Return the data that the ranking needs about each node.

        Args:
            groups: The terms of a query.
            node_ids: The ids of the nodes. The data of unknown ids are 0.
            with_nearness: Whether to compute the nearness of terms, which is slow for long queries.

        Returns:
            The summand of each term in the score of each node, the nearness of neighbouring terms
            in each node (0 to 1), and the descriptions of the nodes.
        """
        rows = self._rows_or_missing(node_ids)
        terms = self.bm25.term_scores(groups, rows)
        nearness: Floats = np.zeros(len(rows))
        if with_nearness:
            nearness = self.bm25.nearness(groups, rows)
        return terms, nearness, self.infos.read(rows)

    def suggest(self, query: str) -> list[str]:
        """Return names and words of the index that a misspelt query could mean, best first."""
        terms = self.term_scores(query_groups(query), ())
        found_words = set(words_of(query)).difference(unknown_words(query, terms))
        return self.cached("vocabulary", self._vocabulary).suggest(query, found_words)

    def _vocabulary(self) -> Vocabulary:
        names = []
        chunks = self.infos.read(self.rows)
        for row in range(len(self.rows)):
            info = chunks.info(row)
            names += [PurePosixPath(info.path).stem, *titles_in(info.section)]
        return Vocabulary.of(self.texts(self.rows), names)

    def _rows_or_missing(self, node_ids: Sequence[str]) -> Ints:
        """Return the row of each node. The row of an unknown id is -1, which no index contains."""
        rows = self.rows_of(node_ids)
        return np.array([rows.get(node_id, -1) for node_id in node_ids], np.int64)


class State(KeywordView):
    """An immutable state of an index of nodes.

    Args:
        bm25: The BM25 index. A node that is added gets the next number as its row.
        infos: The description of each row.
        stored: The node of each row, ascending by row.
    """

    def __init__(
        self,
        bm25: Bm25Index,
        infos: ChunkInfoIndex,
        stored: dict[int, BaseNode],
    ) -> None:
        self.bm25 = bm25
        self.infos = infos
        self.stored = stored
        self.cached_values = {}
        self.row_of = {node.node_id: row for row, node in stored.items()}

    def ids_of(self, rows: Sequence[int]) -> list[str]:
        """Return the ids of the nodes in these rows."""
        return [self.stored[row].node_id for row in rows]

    def rows_of(self, node_ids: Iterable[str]) -> dict[str, int]:
        """Return the rows of nodes by id, without unknown ids."""
        return {node_id: self.row_of[node_id] for node_id in node_ids if node_id in self.row_of}

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return copies of the nodes with these ids, by id. Unknown ids are ignored."""
        return {node_id: _copy(self.stored[row]) for node_id, row in self.rows_of(node_ids).items()}

    def texts(self, rows: Ints) -> Iterable[str]:
        """Return the result of :func:`lexical_text` for the nodes in these rows."""
        return (lexical_text(self.stored[row]) for row in rows.tolist())

    @cached_property
    def names(self) -> NameIndex:
        """Return the index of document names, by the rows of their first nodes."""
        documents = [(rows[0], path) for path, rows in self._rows_by_document.items()]
        named = [(path, self.stored[row].metadata) for row, path in documents]
        return NameIndex().with_documents([row for row, _ in documents], named)

    @cached_property
    def _rows_by_document(self) -> dict[str, list[int]]:
        rows_by_document: dict[str, list[int]] = {}
        for row, node in self.stored.items():
            rows_by_document.setdefault(_document_of(node), []).append(row)
        return rows_by_document

    def rows_beside(self, row: int) -> Sequence[int]:
        """Return the rows of all nodes in the same document, ascending."""
        return self._rows_by_document[_document_of(self.stored[row])]

    def column(self, key: str) -> Sequence[Any]:
        """Return the value of a metadata key for each row. :data:`REF_DOC_ID` is the document."""
        nodes = self.stored.values()
        if key == metadata.REF_DOC_ID:
            return [node.metadata.get(key, node.ref_doc_id) for node in nodes]
        return [node.metadata.get(key) for node in nodes]

    def without(self, node_ids: Iterable[str]) -> State:
        """Return the state without some nodes."""
        deleted = set(self.rows_of(node_ids).values())
        if not deleted:
            return self
        stored = {row: node for row, node in self.stored.items() if row not in deleted}
        rows = [*deleted]
        return State(self.bm25.changed(rows), self.infos.changed(rows), stored)


class KeywordIndex:
    """A keyword index of nodes that can be changed. It keeps copies of the nodes.

    Each change replaces :attr:`state`. Readers use one state, which is immutable.
    """

    snapshot = nullcontext  # each call of ask() reads a consistent state anyway

    def __init__(self) -> None:
        self.state = State(Bm25Index(), ChunkInfoIndex(), {})

    def ask(self, work: Callable[[State], T]) -> T:
        """Return the result of ``work`` on the current state."""
        return work(self.state)

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Index nodes. A node replaces an indexed node with the same id."""
        unique = {node.node_id: node for node in nodes}
        with _WRITING:
            state = self.state.without(unique)
            first = int(state.bm25.all_rows.max(initial=-1)) + 1
            added = {row: _copy(node) for row, node in enumerate(unique.values(), first)}
            bm25, infos = with_nodes(state.bm25, state.infos, [*added], added.values())
            self.state = State(bm25, infos, {**state.stored, **added})

    def delete(self, node_ids: Iterable[str]) -> int:
        """Delete nodes by id, ignore unknown ids, and return the number of deleted nodes."""
        with _WRITING:
            before = self.state
            self.state = before.without(set(node_ids))
            return len(before.rows) - len(self.state.rows)

    # Files

    def save(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Write the index and its nodes to a folder. A crash leaves the old or the new state.

        Args:
            folder: The folder. It is created if it does not exist.
            settings: Further JSON values to store.

        Raises:
            StorageError: The folder cannot be written.
        """
        state = self.state
        nodes = []
        for row, node in state.stored.items():
            values = node.model_dump(mode="json")
            nodes.append([row, {TYPE_KEY: node.get_type(), DATA_KEY: values}])
        content = [settings, [TERMS_VERSION, CHUNK_INFO_VERSION], nodes]
        columns = {f"terms.{name}": array for name, array in state.bm25.to_arrays().items()}
        columns |= {f"infos.{name}": array for name, array in state.infos.to_arrays().items()}
        arrays.write_arrays(folder / _FILE, content, columns)

    @classmethod
    def load(cls, folder: Path) -> tuple[KeywordIndex, dict[str, Any]]:
        """Return the index that :meth:`save` wrote, and its settings.

        Raises:
            StorageError: The folder contains no index, or the index is damaged.
            FingerprintError: The index was written by a version that splits texts into other terms.
        """
        path = folder / _FILE
        content, columns = arrays.read_arrays(path)
        index = cls()
        with arrays.explained(path):
            settings, versions, nodes = content
            if versions != [TERMS_VERSION, CHUNK_INFO_VERSION]:
                raise FingerprintError(
                    f"{path} was written by another version. Build the index again."
                )
            by_kind: dict[str, dict[str, Any]] = {"terms": {}, "infos": {}}
            for full_name, array in columns.items():
                kind, _, name = full_name.partition(".")
                by_kind[kind][name] = array
            bm25 = Bm25Index().from_arrays(by_kind["terms"])
            infos = ChunkInfoIndex().from_arrays(by_kind["infos"])
            stored = {row: json_to_doc(node) for row, node in nodes}
            arrays.require([*stored] == bm25.rows.tolist() == infos.rows.tolist())
            index.state = State(bm25, infos, stored)
        return index, settings
