"""The keyword index of nodes: BM25 over their texts, and beside it the nodes themselves.

Each change makes another state, and readers go on with the one they began with: they do not wait for a writer.
"""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import numpy as np
from llama_index.core.constants import DATA_KEY, TYPE_KEY
from llama_index.core.schema import BaseNode, IndexNode, MetadataMode
from llama_index.core.storage.docstore.utils import json_to_doc
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.retrievers.bm25_index import Bm25Index, Candidate, TermScores
from llama_index_contextual.retrievers.filters import admitted
from llama_index_contextual.retrievers.names import NameIndex
from llama_index_contextual.retrievers.terms import TERMS_VERSION, Group, query_groups
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import FingerprintError, StorageError
from llama_index_contextual.utils.language import fold, normalise
from llama_index_contextual.utils.text import readable

if TYPE_CHECKING:
    from llama_index_contextual.retrievers.arrays import Floats, Ints


T = TypeVar("T")

_REMEMBERED: Final = 64  # what was found among all nodes
_FILE: Final = "bm25.arrays"
_WRITING: Final = threading.Lock()  # writers take turns
_MORE_WORDS: Final = (metadata.LEXICAL_CONTEXT, metadata.FRONT_MATTER)
_MOST_READ: Final = (
    5000  # texts that are read for a phrase; beyond them its words need not be adjacent
)
_SINGLE_WORD: Final = re.compile(r"\w+")


# Words of nodes


def _document_of(node: BaseNode) -> str:
    return metadata.path_of(node.metadata) or node.ref_doc_id or node.node_id


def lexical_text(node: BaseNode) -> str:
    """Text of a node that BM25 reads: the EMBED view and, after it, the lexical context and the front matter."""
    text = readable(node.get_content(metadata_mode=MetadataMode.EMBED))
    return "\n".join(
        [
            text,
            *(
                str(value)
                for key in _MORE_WORDS
                if (value := metadata.value_of(node.metadata, key))
            ),
        ]
    )


def _spaced(text: str) -> str:
    """Folded words of a text, each between single spaces."""
    return f" {' '.join(fold(word) for word in _SINGLE_WORD.findall(normalise(text)))} "


def _copy(node: BaseNode) -> BaseNode:
    """A node that can be changed apart from the original, without its embedding, and without an IndexNode's object."""
    names = (
        "metadata",
        "relationships",
        "excluded_embed_metadata_keys",
        "excluded_llm_metadata_keys",
    )
    changes: dict[str, Any] = {name: copy.copy(getattr(node, name)) for name in names}
    if isinstance(node, IndexNode):
        changes["obj"] = None  # it may be anything; a retriever finds it through object_map
    return node.model_copy(update={**changes, "embedding": None})


class KeywordView(Protocol):
    """Nodes at one moment, by number, as retrievers read them; a subclass reads the nodes."""

    engine: Bm25Index
    answers: dict[str, Any]
    """What was found among all nodes."""

    @property
    def rows(self) -> Ints:
        """Numbers of all nodes, ascending."""
        return self.engine.rows

    def ids_of(self, rows: Sequence[int]) -> list[str]:
        """The ids of nodes by number."""

    def rows_of(self, node_ids: Iterable[str]) -> dict[str, int]:
        """The numbers of nodes by id, without unknown ids."""

    @property
    def names(self) -> NameIndex:
        """Names of the documents, by the numbers of their first nodes."""

    def column(self, key: str) -> Sequence[Any]:
        """Values of a metadata key, one for each of :attr:`rows`."""

    def rows_beside(self, row: int) -> Sequence[int]:
        """Numbers of the nodes of a node's document, ascending."""

    def texts(self, rows: Ints) -> Iterable[str]:
        """Texts of nodes, as :func:`lexical_text` makes them."""

    def answer(self, question: str, find: Callable[[], T]) -> T:
        """Result of ``find``, which is called once for each question."""
        if question not in self.answers:
            if len(self.answers) >= _REMEMBERED:
                self.answers.clear()
            self.answers[question] = find()
        return self.answers[question]  # type: ignore[no-any-return]

    def admitted(self, filters: MetadataFilters | None) -> Ints:
        """Numbers of the nodes that filters admit, ascending."""
        if filters is None:
            return self.rows
        question = (
            f"filters {filters.model_dump()!r}"  # not as JSON, where inf, -inf and nan are all null
        )
        return self.answer(
            question, lambda: admitted(filters, self.rows, self.column, self._holding)
        )

    def _holding(self, words_filter: MetadataFilter) -> Ints:
        """Rows that hold the words of a filter on ``WORDS``, for TEXT_MATCH side by side."""
        words = str(words_filter.value)
        rows, phrase = self.engine.holding(query_groups(words)), _spaced(words)
        if words_filter.operator != FilterOperator.TEXT_MATCH or len(rows) > _MOST_READ:
            return rows
        side_by_side = (phrase in _spaced(text) for text in self.texts(rows))
        return rows[np.fromiter(side_by_side, dtype=np.bool_, count=len(rows))]

    def selected_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Ids of the nodes that filters admit, in the order in which they were added."""
        return self.ids_of(self.admitted(filters).tolist())

    def keyword_query(
        self, groups: Sequence[Group], top_k: int, filters: MetadataFilters | None = None
    ) -> list[Candidate]:
        """The best ``top_k`` nodes with a matching term, best first, ties by id; [] for a query without terms.

        Args:
            groups: The query's terms, as :func:`query_groups` gives them.
            top_k: Most nodes to return.
            filters: Nodes that may be returned.
        """
        among = None if filters is None else self.admitted(filters)
        return self.best(*self.engine.search(groups, top_k, among), top_k)

    def best(self, rows: Ints, scores: Floats, top_k: int) -> list[Candidate]:
        """Nodes that come by score as candidates, ties by id."""
        # Sorting hardly has to compare more than neighbours.
        pairs = sorted(zip((-scores).tolist(), self.ids_of(rows.tolist()), strict=True))
        return [Candidate(node_id, -negated) for negated, node_id in pairs[:top_k]]

    def term_scores(self, groups: Sequence[Group], node_ids: Sequence[str]) -> TermScores:
        """Share of each term of a query in the score of each node."""
        return self.engine.term_scores(groups, self._numbers(node_ids))

    def nearness(self, groups: Sequence[Group], node_ids: Sequence[str]) -> Floats:
        """How near to each other neighbouring terms of a query stand in each node, 0 to 1."""
        return self.engine.nearness(groups, self._numbers(node_ids))

    def _numbers(self, node_ids: Sequence[str]) -> list[int]:
        rows = self.rows_of(node_ids)
        return [rows.get(node_id, -1) for node_id in node_ids]


class State(KeywordView):
    """One moment of an index of nodes; nothing changes it.

    Args:
        engine: BM25 over rows. A node that is added gets the next number as its row.
        stored: The node of each row, ascending.
    """

    def __init__(self, engine: Bm25Index, stored: dict[int, BaseNode]) -> None:
        self.engine, self.stored, self.answers = engine, stored, {}
        self.numbers = {node.node_id: row for row, node in stored.items()}
        self._records = dict[str, Any]()

    def ids_of(self, rows: Sequence[int]) -> list[str]:
        """The ids of nodes by row."""
        return [self.stored[row].node_id for row in rows]

    def rows_of(self, node_ids: Iterable[str]) -> dict[str, int]:
        """The rows of nodes by id, without unknown ids."""
        return {node_id: self.numbers[node_id] for node_id in node_ids if node_id in self.numbers}

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """New node objects for those of the ids that are indexed."""
        return {node_id: _copy(self.stored[row]) for node_id, row in self.rows_of(node_ids).items()}

    def records(
        self, node_ids: Sequence[str], make: Callable[[Mapping[str, Any], str], T]
    ) -> Sequence[T | None]:
        """Result of ``make(metadata, text)`` for each node, made once for each; None for unknown ids."""
        for node_id, row in self.rows_of(node_ids).items():
            if node_id not in self._records:
                node = self.stored[row]
                self._records[node_id] = make(node.metadata, node.get_content())
        return [self._records.get(node_id) for node_id in node_ids]

    def texts(self, rows: Ints) -> Iterable[str]:
        """Texts of nodes, as :func:`lexical_text` makes them."""
        return (lexical_text(self.stored[row]) for row in rows.tolist())

    @cached_property
    def names(self) -> NameIndex:
        """Names of the documents, by the rows of their first nodes."""
        first = {_document_of(node): row for row, node in reversed(self.stored.items())}
        documents = ((path, self.stored[row].metadata) for path, row in first.items())
        return NameIndex().with_documents([*first.values()], documents)

    def rows_beside(self, row: int) -> Sequence[int]:
        """Rows of the nodes of a node's document."""
        document = _document_of(self.stored[row])
        return [one for one, node in self.stored.items() if _document_of(node) == document]

    def without(self, node_ids: Iterable[str]) -> State:
        """The state without some nodes."""
        deleted = set(self.rows_of(node_ids).values())
        stored = {row: node for row, node in self.stored.items() if row not in deleted}
        return State(self.engine.changed([*deleted]), stored) if deleted else self

    def column(self, key: str) -> Sequence[Any]:
        """Values of a metadata key, or ids of documents for :data:`REF_DOC_ID`."""
        default = "ref_doc_id" if key == metadata.REF_DOC_ID else ""
        return [
            node.metadata.get(key, getattr(node, default, None)) for node in self.stored.values()
        ]


class KeywordIndex:
    """A BM25 index of nodes that changes in place, and the reader of its states.

    Readers work on :attr:`state`, which never changes; writers take turns. It reads a node's EMBED view and, after
    that, its lexical context and front matter. It keeps copies of the nodes.
    """

    snapshot = nullcontext  # the next question may read another state

    def __init__(self) -> None:
        self.state = State(Bm25Index(), {})

    def ask(self, work: Callable[[State], T]) -> T:
        """Result of ``work`` for the present state."""
        return work(self.state)

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Index nodes. One whose id is indexed already replaces the old one; only these nodes are analysed."""
        unique = {node.node_id: node for node in nodes}
        with _WRITING:
            now = self.state.without(unique)
            first = int(now.engine.every.max(initial=-1)) + 1
            new = {row: _copy(node) for row, node in enumerate(unique.values(), first)}
            engine = now.engine.with_texts(list(new), map(lexical_text, new.values()))
            self.state = State(engine, {**now.stored, **new})

    def delete(self, node_ids: Iterable[str]) -> int:
        """Delete nodes by id; the number of those that were there. Unknown ids are ignored."""
        with _WRITING:
            before = self.state
            self.state = before.without(set(node_ids))
            return len(before.rows) - len(self.state.rows)

    # Keeping it on disk

    def save(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Write the arrays and all nodes; a crash leaves the old or the new state.

        Args:
            folder: Made where it is missing.
            settings: More JSON values to keep beside the index's own.

        Raises:
            StorageError: The folder cannot be written.
        """
        stored = self.state.stored.items()
        nodes = [(row, node.get_type(), node.model_dump(mode="json")) for row, node in stored]
        self.state.engine.save(folder / _FILE, [settings, TERMS_VERSION, nodes])

    @classmethod
    def load(cls, folder: Path) -> tuple[KeywordIndex, dict[str, Any]]:
        """The index that :meth:`save` wrote, and the settings that it kept beside it.

        Raises:
            StorageError: The folder holds no index, it is damaged, or another version wrote it.
            FingerprintError: Texts have other terms in this version.
        """
        cure = "Cure: build it again from the vector store, which holds all that it needs"
        try:
            engine, (settings, version, nodes) = Bm25Index().load(folder / _FILE)
            stored = {
                row: json_to_doc({DATA_KEY: data, TYPE_KEY: kind}) for row, kind, data in nodes
            }
        except Exception as error:
            raise StorageError(
                f"{folder} holds no keyword index, or a damaged one: {error!r}. {cure}."
            ) from error
        if version != TERMS_VERSION:
            raise FingerprintError(
                f"{folder} holds terms of another version. Cure: build it again."
            )
        index = cls()
        index.state = State(engine, stored)
        return index, settings
