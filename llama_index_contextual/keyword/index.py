"""The keyword index of nodes: the keyword engine over their texts, and beside it the nodes themselves, as bytes.

Each change makes another state, and readers go on with the one they began with: they do not wait for a writer.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index.core.schema import BaseNode, Document, ImageNode, IndexNode, Node, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from llama_index_contextual.errors import SettingError
from llama_index_contextual.keyword import words
from llama_index_contextual.keyword.engine import K1, B, KeywordEngine
from llama_index_contextual.keyword.evidence import Candidate
from llama_index_contextual.keyword.filters import REF_DOC_ID, Column, admitted
from llama_index_contextual.keyword.words import holding_words, lexical_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.keyword.analyzer import Analyzer
    from llama_index_contextual.keyword.evidence import Group, Ints, Nearness, TermScores


Record = bytes | memoryview

_ENTRY: Final = struct.Struct("<qII")  # of an entry: its row, and the bytes of the node's id and of the node
# As metadata_dict_to_node reads them; a node of another class becomes one of the nearest of these that it derives from.
_CLASSES: Final[dict[bytes, type[BaseNode]]] = {
    b"N": Node,
    b"I": IndexNode,
    b"P": ImageNode,
    b"T": TextNode,
}
# Text that most records hold, so that zlib writes it as a reference. A change needs a new segments.FORMAT.
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


def encode(node: BaseNode) -> bytes:
    """Write a node without its embedding as bytes; the first byte names its class."""
    letter = next((_LETTERS[kind] for kind in type(node).__mro__ if kind in _LETTERS), None)
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


def decode(record: Record) -> BaseNode:
    """Return the node that :func:`encode` was given, a new object each time."""
    return _CLASSES[bytes(record[:1])].model_validate_json(_unpacked(record))


def metadata_of(record: Record) -> dict[str, Any]:
    """Return a node's metadata and, as :data:`REF_DOC_ID`, its document's id; three times as fast as :func:`decode`."""
    fields = json.loads(_unpacked(record).decode("utf-8", "surrogatepass"))
    source = fields["relationships"].get("1")
    return {REF_DOC_ID: source["node_id"] if isinstance(source, dict) else None, **fields["metadata"]}


def _unpacked(record: Record) -> bytes:
    return zlib.decompressobj(zdict=_COMMON).decompress(record[1:])


def entry_of(row: int, node_id: str, record: Record) -> bytes:
    """Return an entry of the file of nodes."""
    name = node_id.encode("utf-8", "surrogatepass")
    return b"".join([_ENTRY.pack(row, len(name), len(record)), name, record])


def entries_in(file: memoryview) -> Iterator[tuple[int, str, memoryview]]:
    """Give row, node id and node of each entry of a file, whose checksum is right."""
    start = 0
    while start < len(file):
        row, letters, size = _ENTRY.unpack_from(file, start)
        start += _ENTRY.size
        name = str(file[start : start + letters], "utf-8", "surrogatepass")
        yield row, name, file[start + letters : (start := start + letters + size)]


_REMEMBERED: Final = 64  # filters whose rows a state remembers


class NodesFile(NamedTuple):
    """What of an index's nodes is in a file.

    Args:
        key: Names the file.
        size: Bytes of it that count.
        checksum: Of these bytes.
        entries: How many nodes they are, deleted ones included.
        next_row: Nodes from this row on are not in it.
    """

    key: str
    size: int = 0
    checksum: int = 0
    entries: int = 0
    next_row: int = 0


class StoredNode(NamedTuple):
    """A node as the index holds it.

    Args:
        node_id: Its id.
        record: The node itself, as :func:`~llama_index_contextual.keyword.index.encode` writes it.
    """

    node_id: str
    record: Record


@dataclass(frozen=True)
class State:
    """One moment of the index; nothing changes it.

    Args:
        engine: The keyword engine. A node that is added gets the next number as its row.
        rows: The row of each node id.
        stored: The node of each row.
        next_row: The next number.
    """

    engine: KeywordEngine
    rows: Mapping[str, int] = field(default_factory=dict)
    stored: Mapping[int, StoredNode] = field(default_factory=dict)
    next_row: int = 0
    _columns: dict[str, Column] = field(default_factory=dict, init=False, repr=False, compare=False)
    _admitted: dict[str, Ints] = field(default_factory=dict, init=False, repr=False, compare=False)

    def rows_of(self, node_ids: Sequence[str]) -> list[int]:
        """Return the rows of nodes, -1 for those that are not there."""
        return [self.rows.get(node_id, -1) for node_id in node_ids]

    def texts(self, rows: Ints) -> Iterable[str]:
        """Give what BM25 reads of some rows."""
        return (lexical_text(decode(self.stored[row].record)) for row in rows.tolist())

    def admitted(self, filters: MetadataFilters) -> Ints:
        """Return the rows that filters admit, ascending."""
        key = repr(filters.model_dump())  # not as JSON, where inf, -inf and nan are all null
        rows = self._admitted.get(key)
        if rows is None:
            rows = admitted(
                filters, self.engine.rows, self._column, lambda part: holding_words(self.engine, part, self.texts)
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
        self.state = State(KeywordEngine(analyzer, k1=k1, b=b))
        self.file: NodesFile | None = None  # None before it is saved or loaded
        self._writing = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        state = self.state
        stored = {row: StoredNode(node.node_id, bytes(node.record)) for row, node in state.stored.items()}
        return {"state": State(state.engine, dict(state.rows), stored, state.next_row), "file": self.file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._writing = threading.Lock()  # a copy is changed apart from the original

    @property
    def engine(self) -> KeywordEngine:
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
            new = dict(zip(unique, range(now.next_row, now.next_row + len(unique)), strict=True))
            stored = {new[node_id]: StoredNode(node_id, encode(node)) for node_id, node in unique.items()}
            engine = now.engine.with_texts(list(new.values()), (lexical_text(node) for node in unique.values()))
            self.state = State(engine, {**now.rows, **new}, {**now.stored, **stored}, now.next_row + len(new))

    def delete(self, node_ids: Iterable[str]) -> int:
        """Delete nodes by id and return how many there were; unknown ids are ignored."""
        with self._writing:
            before = len(self.engine)
            self.state = self._without(set(node_ids))
            return before - len(self.engine)

    def _without(self, node_ids: Iterable[str]) -> State:
        now = self.state
        gone = {node_id: now.rows[node_id] for node_id in node_ids if node_id in now.rows}
        if not gone:
            return now
        rows, stored = dict(now.rows), dict(now.stored)
        for node_id, row in gone.items():
            del rows[node_id], stored[row]
        return replace(now, engine=now.engine.without(list(gone.values())), rows=rows, stored=stored)

    # Reading it

    def count(self, filters: MetadataFilters | None = None) -> int:
        """Return the number of nodes that filters admit."""
        return len(self.engine if filters is None else self.state.admitted(filters))

    def keyword_query(
        self, groups: Sequence[Group], top_k: int, filters: MetadataFilters | None = None
    ) -> list[Candidate]:
        """Return the best ``top_k`` nodes with a matching term, best first, ties by id; [] for a query without terms.

        Args:
            groups: The query's terms, as :meth:`Analyzer.query_groups` gives them.
            top_k: Most nodes to return.
            filters: Nodes that may be returned.
        """
        state = self.state
        among = None if filters is None else state.admitted(filters)
        rows, scores = state.engine.search(groups, top_k, among)
        pairs = [(-score, state.stored[row].node_id) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)]
        return [Candidate(node_id, -negated) for negated, node_id in sorted(pairs)[:top_k]]

    def selected_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Return the ids of the nodes that filters admit, in the order in which they were added."""
        state = self.state
        rows = state.engine.rows if filters is None else state.admitted(filters)
        return [state.stored[row].node_id for row in rows.tolist()]

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that are indexed."""
        return {node_id: decode(record) for node_id, record in self._records(node_ids).items()}

    def values(self, key: str, node_ids: Iterable[str]) -> dict[str, Any]:
        """Return the nodes' values of a metadata key; None where one has none."""
        return {node_id: metadata_of(record).get(key) for node_id, record in self._records(node_ids).items()}

    def _records(self, node_ids: Iterable[str]) -> dict[str, Record]:
        state = self.state
        return {id_: state.stored[state.rows[id_]].record for id_ in node_ids if id_ in state.rows}

    def term_scores(self, groups: Sequence[Group], node_ids: Sequence[str]) -> TermScores:
        """Return what each term of a query adds to the score of each node."""
        state = self.state
        return state.engine.term_scores(groups, state.rows_of(node_ids))

    def nearness(self, groups: Sequence[Group], node_ids: Sequence[str]) -> Nearness:
        """Return how near to each other neighbouring terms of a query stand in each node."""
        state = self.state
        return state.engine.nearness(groups, state.rows_of(node_ids))

    def word_like(self, word: str, language: str) -> str | None:
        """Return the word of an indexed node that is spelled most like a word of a question in a language, or None."""
        state = self.state
        return words.word_like(state.engine, word, state.texts, language)


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
    result = list(nodes)
    wrong = next((node for node in result if not isinstance(node, BaseNode)), None)
    if wrong is not None:
        cure = "TextNode(text=...) for each text" if isinstance(wrong, str) else "LlamaIndex nodes"
        raise SettingError(f"nodes hold a {type(wrong).__name__}. Cure: {cure}.")
    return result
