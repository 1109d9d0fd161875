"""The keyword index of nodes: BM25 over their texts, and beside it the nodes themselves, as bytes.

Each change makes another state, and readers go on with the one they began with: they do not wait for a writer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
from llama_index.core.constants import DATA_KEY, TYPE_KEY
from llama_index.core.schema import BaseNode, IndexNode
from llama_index.core.storage.docstore.utils import json_to_doc

from llama_index_contextual.errors import FingerprintError, StorageError
from llama_index_contextual.keyword.analyzer import Analyzer
from llama_index_contextual.keyword.array_files import DAMAGE, ArrayPart, exclusive, read_parts, write_parts
from llama_index_contextual.keyword.bm25_index import K1, B, Bm25Index
from llama_index_contextual.keyword.evidence import Candidate
from llama_index_contextual.keyword.filters import REF_DOC_ID, Column, admitted
from llama_index_contextual.keyword.words import holding_words, lexical_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy.typing as npt
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.keyword.evidence import Group, Ints, Nearness, TermScores


Record = bytes | memoryview
T = TypeVar("T")

_REMEMBERED: Final = 64  # filters whose rows a state remembers
_KIND: Final = "bm25"
_LONGEST_ID: Final = 1 << 16


def encode(node: BaseNode) -> bytes:
    """Write a node without its embedding as LlamaIndex's document stores do, on one line."""
    if isinstance(node, IndexNode):
        # Its object may be anything; a retriever finds it through object_map.
        node = node.model_copy(update={"obj": None})
    fields = node.model_dump(mode="json", exclude={"embedding"})
    return json.dumps({DATA_KEY: fields, TYPE_KEY: node.get_type()}).encode()


def decode(record: Record) -> BaseNode:
    """New node object of what :func:`encode` wrote."""
    return json_to_doc(json.loads(bytes(record)))


def metadata_of(record: Record) -> dict[str, Any]:
    """Return a node's metadata and, as :data:`REF_DOC_ID`, its document's id; twice as fast as :func:`decode`."""
    fields = json.loads(bytes(record))[DATA_KEY]
    source = fields["relationships"].get("1")
    return {REF_DOC_ID: source["node_id"] if isinstance(source, dict) else None, **fields["metadata"]}


def text_of(record: Record) -> str:
    """Return a node's text, without making the node."""
    fields = json.loads(bytes(record))[DATA_KEY]
    return str(fields["text"] if "text" in fields else decode(record).get_content())


class StoredNode(NamedTuple):
    """A node as the index holds it: its id, and what :func:`encode` writes."""

    node_id: str
    record: Record


@dataclass(frozen=True)
class State:
    """One moment of the index; nothing changes it. It is the :class:`~.retrievers.KeywordSearch` of the index.

    Args:
        engine: BM25 over rows. A node that is added gets the next number as its row.
        rows: The row of each node id.
        stored: The node of each row, ascending.
    """

    engine: Bm25Index
    rows: Mapping[str, int] = field(default_factory=dict)
    stored: dict[int, StoredNode] = field(default_factory=dict)
    _columns: dict[str, Column] = field(default_factory=dict, init=False, repr=False, compare=False)
    _admitted: dict[str, Ints] = field(default_factory=dict, init=False, repr=False, compare=False)
    _made: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def count(self, filters: MetadataFilters | None = None) -> int:
        """Return the number of nodes that filters admit."""
        return len(self.engine if filters is None else self.admitted(filters))

    def keyword_query(
        self, groups: Sequence[Group], top_k: int, filters: MetadataFilters | None = None
    ) -> list[Candidate]:
        """Return the best ``top_k`` nodes with a matching term, best first, ties by id; [] for a query without terms.

        Args:
            groups: The query's terms, as :meth:`Analyzer.query_groups` gives them.
            top_k: Most nodes to return.
            filters: Nodes that may be returned.
        """
        among = None if filters is None else self.admitted(filters)
        rows, scores = self.engine.search(groups, top_k, among)
        pairs = [(-score, self.stored[row].node_id) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)]
        return [Candidate(node_id, -negated) for negated, node_id in sorted(pairs)[:top_k]]

    def selected_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Return the ids of the nodes that filters admit, in the order in which they were added."""
        rows = self.engine.rows if filters is None else self.admitted(filters)
        return [self.stored[row].node_id for row in rows.tolist()]

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that are indexed."""
        return {node_id: decode(record) for node_id, record in self._records(node_ids)}

    def values(self, key: str, node_ids: Iterable[str]) -> dict[str, Any]:
        """Return the nodes' values of a metadata key; None where one has none."""
        return {node_id: metadata_of(record).get(key) for node_id, record in self._records(node_ids)}

    def records(self, node_ids: Sequence[str], make: Callable[[Mapping[str, Any], str], T]) -> Sequence[T | None]:
        """Result of ``make(metadata, text)`` for each node, made once for each; None for unknown ids."""
        missing = [node_id for node_id in node_ids if node_id not in self._made]
        self._made.update({one: make(metadata_of(record), text_of(record)) for one, record in self._records(missing)})
        return [self._made.get(node_id) for node_id in node_ids]

    def term_scores(self, groups: Sequence[Group], node_ids: Sequence[str]) -> TermScores:
        """Share of each term of a query in the score of each node."""
        return self.engine.term_scores(groups, self._rows_of(node_ids))

    def nearness(self, groups: Sequence[Group], node_ids: Sequence[str]) -> Nearness:
        """Return how near to each other neighbouring terms of a query stand in each node."""
        return self.engine.nearness(groups, self._rows_of(node_ids))

    def _rows_of(self, node_ids: Sequence[str]) -> list[int]:
        """Return the rows of nodes, -1 for those that are not there."""
        return [self.rows.get(node_id, -1) for node_id in node_ids]

    def _records(self, node_ids: Iterable[str]) -> list[tuple[str, Record]]:
        return [(node_id, self.stored[self.rows[node_id]].record) for node_id in node_ids if node_id in self.rows]

    def _texts(self, rows: Ints) -> Iterable[str]:
        """Texts of some rows, as BM25 reads them."""
        return (lexical_text(decode(self.stored[row].record)) for row in rows.tolist())

    def admitted(self, filters: MetadataFilters) -> Ints:
        """Return the rows that filters admit, ascending."""
        key = repr(filters.model_dump())  # not as JSON, where inf, -inf and nan are all null
        rows = self._admitted.get(key)
        if rows is None:
            rows = admitted(
                filters, self.engine.rows, self._column, lambda part: holding_words(self.engine, part, self._texts)
            )
            if len(self._admitted) >= _REMEMBERED:
                self._admitted.clear()
            self._admitted[key] = rows
        return rows

    def _column(self, key: str) -> Column | None:
        """Return the values of a metadata key; all are read from the nodes when the first is asked for."""
        columns = self._columns
        if not columns and len(self.engine):
            metadata = [metadata_of(self.stored[row].record) for row in self.engine.rows.tolist()]
            keys = dict.fromkeys(key for values in metadata for key in values)
            columns.update({key: Column.encode([values.get(key) for values in metadata]) for key in keys})
        return columns.get(key)


class KeywordIndex:
    """A BM25 index of nodes that changes in place.

    Readers work on :attr:`state`, which never changes; writers take turns. It reads a node's EMBED view and, after
    that, its lexical context and front matter. It keeps the nodes themselves, compressed.

    Args:
        analyzer: Makes the terms; default ``Analyzer()``.
        k1: BM25's term saturation, greater than 0.
        b: BM25's length normalisation, 0 to 1.

    Raises:
        SettingError: A setting cannot work.
    """

    def __init__(self, analyzer: Analyzer | None = None, *, k1: float = K1, b: float = B) -> None:
        self.state = State(Bm25Index(analyzer, k1=k1, b=b))
        self._writing = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        state = self.state
        stored = {row: StoredNode(node.node_id, bytes(node.record)) for row, node in state.stored.items()}
        return {"state": State(state.engine, dict(state.rows), stored)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._writing = threading.Lock()  # a copy is changed apart from the original

    @property
    def engine(self) -> Bm25Index:
        """The engine of the present state."""
        return self.state.engine

    @property
    def analyzer(self) -> Analyzer:
        """What makes the terms."""
        return self.engine.analyzer

    # Changing it

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Index nodes. One whose id is indexed already replaces the old one; only these nodes are analysed."""
        unique = {node.node_id: node for node in nodes}
        if not unique:
            return
        with self._writing:
            now = self._without(unique)
            first = next(reversed(now.stored), -1) + 1
            new = dict(zip(unique, range(first, first + len(unique)), strict=True))
            stored = {new[node_id]: StoredNode(node_id, encode(node)) for node_id, node in unique.items()}
            engine = now.engine.with_texts(list(new.values()), (lexical_text(node) for node in unique.values()))
            self.state = State(engine, {**now.rows, **new}, {**now.stored, **stored})

    def delete(self, node_ids: Iterable[str]) -> int:
        """Delete nodes by id and return how many there were; unknown ids are ignored."""
        with self._writing:
            before = len(self.engine)
            self.state = self._without(set(node_ids))
            return before - len(self.engine)

    def _without(self, node_ids: Iterable[str]) -> State:
        now = self.state
        deleted = {node_id: now.rows[node_id] for node_id in node_ids if node_id in now.rows}
        if not deleted:
            return now
        rows, stored = dict(now.rows), dict(now.stored)
        for node_id, row in deleted.items():
            del rows[node_id], stored[row]
        return replace(now, engine=now.engine.without(list(deleted.values())), rows=rows, stored=stored)

    # Reading it: the index is the StoreReader of its states

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a context that changes nothing: the next question may read another state."""
        return nullcontext()

    def ask(self, work: Callable[[State], T]) -> T:
        """Result of ``work`` for the present state."""
        return work(self.state)

    # Keeping it on disk

    def save(self, folder: Path, *, stamp: str | None = None, settings: Mapping[str, Any] | None = None) -> None:
        """Write what is new of the arrays, and all nodes; a crash leaves the old or the new state.

        Args:
            folder: Made where it is missing.
            stamp: What the index was made from (a version, a hash); :meth:`load` can ask for it.
            settings: More JSON values to keep beside the index's own.

        Raises:
            StorageError: The folder cannot be written.
        """
        state, engine = self.state, self.engine
        scoring = {"k1": engine.k1, "b": engine.b, "analyzer": engine.analyzer.settings}
        content = {
            "settings": {**(settings or {}), **scoring},
            "stamp": stamp,
            "analyzer": engine.analyzer.fingerprint,
        }
        lines = [b"\t".join([json.dumps(one.node_id).encode(), one.record]) for one in state.stored.values()]
        starts = np.cumsum([0, *map(len, lines)], dtype=np.int64)
        nodes: dict[str, npt.NDArray[Any]] = {
            "rows": np.fromiter(state.stored, np.int64, len(lines)),
            "starts": starts,
            "records": np.frombuffer(b"".join(lines), np.uint8),
        }
        with exclusive(folder, "The keyword index"):
            *written, _ = write_parts(folder, _KIND, [*engine.to_arrays(), ArrayPart("", nodes)], content)
        with self._writing:
            if self.state is state:  # the next time these are not written again
                self.state = replace(state, engine=engine.with_keys([part.key for part in written]))

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        stamp: str | None = None,
        analyzer: Analyzer | None = None,
        k1: float | None = None,
        b: float | None = None,
    ) -> tuple[KeywordIndex, dict[str, Any]]:
        """Read what :meth:`save` wrote.

        Args:
            folder: Where it was written.
            stamp: Refuse an index that was saved with another stamp.
            analyzer: Refuse an index whose terms another analyzer made.
            k1: Replaces the saved one.
            b: Replaces the saved one.

        Returns:
            The index, and the settings that were given to be kept beside it.

        Raises:
            StorageError: The folder holds no index, it is damaged, or another version wrote it.
            FingerprintError: It was made from something else, or with another analyzer or version of it.
        """
        cure = "Cure: build it again from the vector store, which holds all that it needs"
        try:
            (*parts, nodes), content = read_parts(folder, _KIND)
            settings = content["settings"]
            analyzer = analyzer or Analyzer.from_settings(settings["analyzer"])
            if content["analyzer"] != analyzer.fingerprint:
                raise FingerprintError(f"{folder} holds terms of another analyzer or version. Cure: build it again.")
            if stamp is not None and stamp != content["stamp"]:
                raise FingerprintError(
                    f"{folder} is stale: made from {content['stamp']!r}, wanted {stamp!r}. Cure: build it again."
                )
            saved = {key: settings[key] if argument is None else argument for key, argument in (("k1", k1), ("b", b))}
            stored = _read_nodes(nodes.arrays)
            engine = Bm25Index.from_arrays(parts, analyzer, **saved)
            engine = engine.without(np.setdiff1d(engine.rows, np.fromiter(stored, np.int64, len(stored))))
        except FileNotFoundError as error:
            raise StorageError(f"{folder} holds no complete keyword index: {error}. {cure}.") from error
        except DAMAGE as error:
            raise StorageError(f"{folder} holds a damaged keyword index: {error!r}. {cure}.") from error
        index = cls(analyzer)
        index.state = State(engine, {node.node_id: row for row, node in stored.items()}, stored)
        return index, {key: value for key, value in settings.items() if key not in {"k1", "b", "analyzer"}}


def _read_nodes(arrays: Mapping[str, Any]) -> dict[int, StoredNode]:
    """Nodes by row, as views of the bytes that hold them."""
    data, starts = memoryview(arrays["records"]), arrays["starts"].tolist()
    stored = {}
    for row, start, stop in zip(arrays["rows"].tolist(), starts, starts[1:], strict=False):
        line = data[start:stop]
        tab = bytes(line[:_LONGEST_ID]).index(b"\t")
        stored[row] = StoredNode(json.loads(bytes(line[:tab])), line[tab + 1 :])
    return stored
