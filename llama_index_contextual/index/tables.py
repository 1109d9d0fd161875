"""The tables of an index, and what is asked and written there.

::

    state      what is true of the whole index: its identity, the number of its last change, its settings
    documents  what was read: path or id, hash, size and times, and why one failed
    nodes      text, metadata and place of each chunk; the id of a row is what engines call it
    vectors    by model and hash of the embedded text
    contexts   what a language model was paid for

A row of ``nodes`` never changes and its id is never used again: a chunk of which anything changed gets a new row. So
whoever derives something from the nodes compares two sets of numbers to know what is new and what is gone.

An *edition* is all of an index as one embedding model has it. While another model is to replace it, the next edition is
written beside it. Readers see the edition that ``state`` names.
"""

from __future__ import annotations

import json
import threading
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import numpy as np
import sqlalchemy as sa
from llama_index.core.utils import iter_batch

from llama_index_contextual.identity import short_hash
from llama_index_contextual.keyword.filters import REF_DOC_ID
from llama_index_contextual.text import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    Rows = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float32]

LAYOUT: Final = 1
AT_ONCE: Final = 500  # values of one statement: SQLite before 3.32 takes 999
PAGE: Final = 2000  # rows that are in memory together

TABLES: Final = sa.MetaData()
_NUMBER: Final = sa.BigInteger().with_variant(sa.Integer, "sqlite")
STATE: Final = sa.Table(
    "state", TABLES, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.JSON, nullable=False)
)
DOCUMENTS: Final = sa.Table(
    "documents",
    TABLES,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("edition", sa.Integer, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("size", _NUMBER, nullable=False),
    sa.Column("stamp", sa.Text, nullable=False),
    sa.Column("made_with", sa.Text, nullable=False),
    sa.Column("nodes", sa.Integer, nullable=False),
    sa.Column("failed", sa.Text, nullable=False),
    sa.Column("failed_stamp", sa.Text, nullable=False),
    sa.UniqueConstraint("edition", "key"),
)
NODES: Final = sa.Table(
    "nodes",
    TABLES,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("edition", sa.Integer, nullable=False),
    sa.Column("document", _NUMBER, sa.ForeignKey(DOCUMENTS.c.id), nullable=False, index=True),
    sa.Column("node_id", sa.Text, nullable=False),
    sa.Column("ref_doc_id", sa.Text),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("metadata", sa.JSON, nullable=False),
    sa.Column("rest", sa.LargeBinary, nullable=False),
    sa.Column("embed_hash", sa.Text, nullable=False),
    sa.Column("context_source", sa.Text, nullable=False),
    sa.Column("checksum", _NUMBER, nullable=False),
    sa.UniqueConstraint("edition", "node_id"),
    sqlite_autoincrement=True,
)
VECTORS: Final = sa.Table(
    "vectors",
    TABLES,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("vector", sa.LargeBinary, nullable=False),
    sa.Column("checksum", _NUMBER, nullable=False),
    sa.UniqueConstraint("hash", "model"),
)
CONTEXTS: Final = sa.Table(
    "contexts",
    TABLES,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("collection", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("value", sa.JSON, nullable=False),
    sa.UniqueConstraint("key", "collection"),
)


# What a SQLite file never has: of whole rows that went, or of numbers that are others, SQLite says nothing.
_NEVER: Final = {
    "SELECT 1 FROM documents WHERE nodes != (SELECT count(*) FROM nodes WHERE document = documents.id)": "nodes went",
    "SELECT 1 FROM nodes WHERE document NOT IN (SELECT id FROM documents)": "documents are lost",
    "SELECT 1 FROM documents WHERE edition NOT BETWEEN ? AND ? + 1": "it has no such edition",
    "SELECT 1 FROM documents WHERE kind NOT IN ('file', 'document')": "a document is of no kind",
}


class DocumentRow(NamedTuple):
    """One document as it was when it was indexed.

    Attributes:
        key: Path relative to the folder, or the id that the user set.
        kind: ``"file"`` or ``"document"``; a refresh of a folder deletes only files.
        sha256: Hash of its bytes (a file) or of its text and metadata (a document given by hand); "" where it is not
            known, so that the next refresh makes it again.
        size: In bytes.
        stamp: Size and times of the file when it was read; the same stamp means the same content, unread. Empty where
            the file was so new that it could have changed without another time.
        made_with: Hash of the parser and context settings that made its nodes; "" where it has never been indexed.
        nodes: How many nodes it has.
        failed: Why its content of today cannot be indexed; "" where it can.
        failed_stamp: Size and times of the file that failed.
    """

    key: str
    kind: str = "file"
    sha256: str = ""
    size: int = 0
    stamp: str = ""
    made_with: str = ""
    nodes: int = 0
    failed: str = ""
    failed_stamp: str = ""

    @property
    def is_indexed(self) -> bool:
        """Return whether it has been indexed; a file that failed at its first time has not."""
        return bool(self.made_with)


class NodeRow(NamedTuple):
    """One node as the database has it.

    Attributes:
        row: Its number; 0 before it is written.
        node_id: Its id.
        ref_doc_id: Id of the document that it was cut from.
        text: Its text.
        metadata: All of it.
        rest: The other fields of the node, encoded; see :mod:`llama_index_contextual.index.nodes`.
        embed_hash: Of its embedded text: equal hash, equal vector.
        context_source: What made its context, "" for none.
    """

    row: int
    node_id: str
    ref_doc_id: str | None
    text: str
    metadata: dict[str, Any]
    rest: bytes
    embed_hash: str
    context_source: str


NODE_COLUMNS: Final = (*(NODES.c[name if name != "row" else "id"] for name in NodeRow._fields), NODES.c.checksum)
_NODE_NAMES: Final = ", ".join(column.name for column in NODE_COLUMNS)
DOCUMENT_COLUMNS: Final = tuple(DOCUMENTS.c[name] for name in DocumentRow._fields)


def checksum_of(node_id: str, text: str, metadata: str, rest: bytes, embed_hash: str) -> int:
    """Return what tells that a node is as it was written; a SQLite file has no checksums of its own.

    Args:
        node_id: Its id.
        text: Its text.
        metadata: All of it, as JSON.
        rest: Its other fields.
        embed_hash: Of its embedded text.
    """
    words = f"{node_id}\0{text}\0{metadata}\0{embed_hash}"
    return zlib.crc32(rest, zlib.crc32(words.encode("utf-8", "surrogatepass")))


def node_of(row: int, *fields: Any) -> NodeRow:
    """Return a node that was read, given the values of :data:`NODE_COLUMNS`.

    Raises:
        ValueError: It is not as it was written.
    """
    *values, checksum = fields
    node = NodeRow(row, *values)
    if _checksum(node) != checksum:
        raise ValueError(f"chunk {node.node_id!r} has another checksum")
    return node


def _checksum(node: NodeRow) -> int:
    return checksum_of(node.node_id, node.text, json.dumps(node.metadata), node.rest, node.embed_hash)


def vector_of(blob: bytes, checksum: int) -> Floats | None:
    """Return a vector as it was written; None where it is not."""
    return np.frombuffer(blob, "<f4") if zlib.crc32(blob) == checksum else None


def _vector_row(model: str, key: str, blob: bytes) -> dict[str, Any]:
    return {"model": model, "hash": key, "vector": blob, "checksum": zlib.crc32(blob)}


def name_of_model(model: str) -> str:
    """Return the short name under which a model's vectors are kept."""
    return short_hash(model)


class Snapshot:
    """One moment of the database. It may be asked by several threads, which take turns.

    Args:
        connection: In a transaction.
        schema: Of the tables, None in SQLite.
        explained: Makes an error of the database, and of what was read there, one of ours.
    """

    def __init__(
        self, connection: sa.Connection, schema: str | None, explained: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self.connection = connection
        self._explained = explained
        self._nodes = "nodes" if schema is None else f'"{schema}".nodes'
        self._lock = threading.Lock()
        self.state: dict[str, Any] = dict(self._fetch(sa.select(STATE.c.key, STATE.c.value)))
        self.edition: int = self.state.get("edition", 0)

    @property
    def identity(self) -> str:
        """Return what tells this database from all others."""
        return str(self.state.get("identity", ""))

    @property
    def change(self) -> int:
        """Return the number of the last change."""
        return int(self.state.get("change", 0))

    def _fetch(self, statement: sa.Executable | str) -> list[Any]:
        with self._lock, self._explained():
            if isinstance(statement, str):
                return list(self.connection.exec_driver_sql(statement).all())
            return list(self.connection.execute(statement).all())

    def refuse(self, problem: str) -> NoReturn:
        """Say that the database is damaged.

        Raises:
            DamagedError: Always.
        """
        with self._explained():
            raise ValueError(problem)

    def check(self) -> None:
        """Read all of a SQLite file, pages, nodes and vectors.

        Raises:
            DamagedError: Something is not as it was written.
        """
        with self._lock, self._explained():
            [[problem]] = self.connection.exec_driver_sql("PRAGMA integrity_check(1)")
            if problem != "ok":
                raise ValueError(problem)
            query = "SELECT node_id, text, metadata, rest, embed_hash, checksum FROM nodes"
            for page in self.connection.exec_driver_sql(query).partitions(AT_ONCE):
                for *values, checksum in page:
                    if checksum_of(*values) != checksum:
                        raise ValueError(f"chunk {values[0]!r} has another checksum")
            for page in self.connection.exec_driver_sql("SELECT vector, checksum FROM vectors").partitions(AT_ONCE):
                if any(vector_of(*stored) is None for stored in page):
                    raise ValueError("a vector has another checksum")
            for query, problem in _NEVER.items() if self.state.get("complete") else ():
                if self.connection.exec_driver_sql(query, (self.edition,) * query.count("?")).first():
                    raise ValueError(problem)
            if not {"layout", "identity", "change", "edition"} <= set(self.state):
                raise ValueError("it has no identity")

    def _pages(self, rows: Rows | None, *columns: Any, size: int = PAGE) -> Iterator[list[Any]]:
        """Yield columns of the nodes with some numbers, or of all, in their order, a page at a time."""
        if rows is None:
            rows = self.rows()
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            wanted = sa.select(NODES.c.id, *columns).order_by(NODES.c.id)
            if len(part) == int(part[-1]) - int(part[0]) + 1 or len(part) > AT_ONCE:
                wanted = wanted.where(NODES.c.id.between(int(part[0]), int(part[-1])), NODES.c.edition == self.edition)
                among = set(part.tolist())
                yield [one for one in self._fetch(wanted) if one[0] in among]
            else:
                yield self._fetch(wanted.where(NODES.c.id.in_(part.tolist())))

    # Documents

    def documents(self, keys: Iterable[str] | None = None) -> dict[str, DocumentRow]:
        """Return documents by key, or all of them, those that failed at their first time too."""
        wanted = sa.select(*DOCUMENT_COLUMNS).where(DOCUMENTS.c.edition == self.edition)
        parts = [None] if keys is None else iter_batch(keys, AT_ONCE)
        every = (wanted if part is None else wanted.where(DOCUMENTS.c.key.in_(part)) for part in parts)
        return {one[0]: DocumentRow._make(one) for statement in every for one in self._fetch(statement)}

    def nodes_of(self, keys: Iterable[str]) -> dict[str, list[NodeRow]]:
        """Return the nodes of documents; documents without nodes are absent."""
        results: dict[str, list[NodeRow]] = {}
        for part in iter_batch(keys, AT_ONCE):
            wanted = (
                sa.select(DOCUMENTS.c.key, *NODE_COLUMNS)
                .join(DOCUMENTS, NODES.c.document == DOCUMENTS.c.id)
                .where(DOCUMENTS.c.edition == self.edition, DOCUMENTS.c.key.in_(part))
                .order_by(NODES.c.id)
            )
            for key, *fields in self._fetch(wanted):
                results.setdefault(key, []).append(self._node(*fields))
        return results

    def context_sources(self) -> dict[str, int]:
        """Return how many nodes have a context from each source; "" counts those without."""
        source = NODES.c.context_source
        wanted = sa.select(source, sa.func.count()).where(NODES.c.edition == self.edition).group_by(source)
        return dict(sorted(map(tuple, self._fetch(wanted))))

    def contexts_by_document(self) -> Iterator[tuple[str, str, int]]:
        """Yield documents by key, a source of contexts, and how many of their nodes have one from there."""
        wanted = (
            sa.select(DOCUMENTS.c.key, NODES.c.context_source, sa.func.count())
            .join(DOCUMENTS, NODES.c.document == DOCUMENTS.c.id)
            .where(NODES.c.edition == self.edition)
            .group_by(DOCUMENTS.c.key, NODES.c.context_source)
        )
        yield from map(tuple, self._fetch(wanted))

    # Nodes

    def count(self) -> int:
        """Return how many nodes there are."""
        [(count,)] = self._fetch(sa.select(sa.func.count()).where(NODES.c.edition == self.edition))
        return int(count)

    def rows(self) -> Rows:
        """Return the numbers of all nodes, ascending."""
        query = f"SELECT id FROM {self._nodes} WHERE edition = {int(self.edition)}"  # noqa: S608  a number
        with self._lock, self._explained():  # a list of a million numbers would take 100 MB
            return np.sort(np.fromiter(self.connection.exec_driver_sql(query).scalars(), dtype=np.int64))

    def node_ids(self, rows: Collection[int]) -> dict[int, str]:
        """Return the ids of nodes by number; numbers that no node has are absent."""
        results: dict[int, str] = {}
        for part in iter_batch(rows, PAGE):
            numbers = ",".join(str(int(row)) for row in part)
            results.update(self._fetch(f"SELECT id, node_id FROM {self._nodes} WHERE id IN ({numbers})"))  # noqa: S608
        return results

    def rows_of(self, node_ids: Iterable[str]) -> dict[str, int]:
        """Return the numbers of nodes by id; unknown ids are absent."""
        results: dict[str, int] = {}
        for part in iter_batch((one for one in node_ids if not storable(one)[1]), AT_ONCE):
            known = NODES.c.edition == self.edition, NODES.c.node_id.in_(part)
            results.update(self._fetch(sa.select(NODES.c.node_id, NODES.c.id).where(*known)))
        return results

    def nodes(self, rows: Sequence[int] | Rows | None = None) -> Iterator[NodeRow]:
        """Yield nodes by number, or all of them, in the order of their numbers."""
        wanted = self.rows() if rows is None else rows
        for part in iter_batch(wanted, AT_ONCE):
            numbers = ",".join(str(int(row)) for row in part)
            # As text: to expand a list of numbers takes SQLAlchemy longer than SQLite takes to find ten nodes.
            query = f"SELECT {_NODE_NAMES} FROM {self._nodes} WHERE id IN ({numbers}) ORDER BY id"  # noqa: S608
            for one in self._fetch(query):
                yield self._node(*one)

    def _node(self, row: int, node_id: str, ref_doc_id: str, text: str, metadata: Any, *others: Any) -> NodeRow:
        with self._explained():
            content = json.loads(metadata) if isinstance(metadata, str) else metadata
            return node_of(row, node_id, ref_doc_id, text, content, *others)

    def nodes_with_document(self) -> Iterator[tuple[str, NodeRow]]:
        """Yield the key of its document, and each node."""
        wanted = sa.select(DOCUMENTS.c.id, DOCUMENTS.c.key).where(DOCUMENTS.c.edition == self.edition)
        keys = dict(map(tuple, self._fetch(wanted)))
        for page in self._pages(None, NODES.c.document, *NODE_COLUMNS[1:], size=AT_ONCE):
            for row, document, *fields in page:
                yield keys.get(document, ""), self._node(row, *fields)

    def nodes_by_document(self) -> dict[str, int]:
        """Return how many nodes each document has; documents without nodes are absent."""
        return self._by_document(sa.func.count())

    def first_rows(self) -> dict[str, int]:
        """Return the number of the first node of each document."""
        return self._by_document(sa.func.min(NODES.c.id))

    def _by_document(self, what: Any) -> dict[str, int]:
        joined = sa.select(DOCUMENTS.c.key, what).join(DOCUMENTS, NODES.c.document == DOCUMENTS.c.id)
        wanted = joined.where(NODES.c.edition == self.edition).group_by(DOCUMENTS.c.key)
        return {str(key): int(value) for key, value in self._fetch(wanted)}

    def owners(self, node_ids: Iterable[str]) -> Iterator[tuple[str, int, str]]:
        """Yield those of some node ids that are there, with the number of the node and the key of its document."""
        for part in iter_batch(node_ids, AT_ONCE):
            wanted = sa.select(NODES.c.node_id, NODES.c.id, DOCUMENTS.c.key).join(
                DOCUMENTS, NODES.c.document == DOCUMENTS.c.id
            )
            yield from map(tuple, self._fetch(wanted.where(NODES.c.edition == self.edition, NODES.c.node_id.in_(part))))

    def column(self, key: str) -> list[Any]:
        """Return the value of a metadata key of every node, in the order of :meth:`rows`; None where one has none."""
        if key == REF_DOC_ID:
            column: Any = NODES.c.ref_doc_id
        elif '"' in key or "\\" in key or not (key.isascii() and key.isprintable()):  # JSON escapes it
            return self._parsed(key)
        else:
            column = NODES.c.metadata[key]
        wanted = sa.select(column).where(NODES.c.edition == self.edition).order_by(NODES.c.id)
        values = [value for (value,) in self._fetch(wanted)]
        # SQLite writes 15 digits of a number with a point, and such a number for a large one without.
        is_rounded = self.connection.dialect.name == "sqlite" and any(isinstance(value, float) for value in values)
        return self._parsed(key) if is_rounded else values

    def _parsed(self, key: str) -> list[Any]:
        return [one[1].get(key) for page in self._pages(None, NODES.c.metadata) for one in page]

    def values(self, collection: str, keys: Iterable[str] | None = None) -> dict[str, Any]:
        """Return values that were kept by key, such as contexts; all of a collection by default."""
        wanted = sa.select(CONTEXTS.c.key, CONTEXTS.c.value).where(CONTEXTS.c.collection == collection)
        if keys is None:
            return dict(map(tuple, self._fetch(wanted)))
        parts = iter_batch(keys, AT_ONCE)
        return dict(tuple(one) for part in parts for one in self._fetch(wanted.where(CONTEXTS.c.key.in_(part))))

    # Vectors

    def with_vectors(self, model: str, hashes: Iterable[str]) -> set[str]:
        """Return those hashes of embedded texts whose vector is there."""
        parts = iter_batch(hashes, AT_ONCE)
        return {key for part in parts for (key,) in self._fetch(_vectors(model, part, VECTORS.c.hash))}

    def vectors_by_hash(self, model: str, hashes: Iterable[str]) -> Iterator[tuple[str, Floats]]:
        """Yield the vectors of embedded texts, by the hash of the text; those that are not known are left out."""
        for part in iter_batch(hashes, AT_ONCE):
            wanted = _vectors(model, part, VECTORS.c.hash, VECTORS.c.vector, VECTORS.c.checksum)
            vectors = ((key, vector_of(blob, checksum)) for key, blob, checksum in self._fetch(wanted))
            yield from ((key, vector) for key, vector in vectors if vector is not None)

    def vectors(self, model: str, rows: Rows | None = None) -> Iterator[tuple[Rows, Floats]]:
        """Yield numbers of nodes and their vectors, shape ``(nodes, dimensions)``, a page at a time.

        Nodes whose vector is lost are left out.
        """
        length = self.dimensions(model)
        for page in self._pages(rows, NODES.c.embed_hash):
            known = dict(self.vectors_by_hash(model, dict.fromkeys(one[1] for one in page)))
            results = [(row, known[key]) for row, key in page if key in known and len(known[key]) == length]
            if results:
                yield np.array([row for row, _ in results], dtype=np.int64), np.stack([one for _, one in results])

    def without_vectors(self, model: str) -> list[str]:
        """Return the ids of nodes whose vector is lost."""
        same = (VECTORS.c.hash == NODES.c.embed_hash) & (VECTORS.c.model == name_of_model(model))
        wanted = (
            sa.select(NODES.c.node_id)
            .outerjoin(VECTORS, same)
            .where(NODES.c.edition == self.edition, VECTORS.c.id.is_(None))
            .order_by(NODES.c.id)
        )
        return [node_id for (node_id,) in self._fetch(wanted)]

    def dimensions(self, model: str) -> int:
        """Return the length of a model's vectors, 0 where there is none yet."""
        wanted = (
            sa.select(VECTORS.c.vector).where(VECTORS.c.model == name_of_model(model)).order_by(VECTORS.c.id).limit(1)
        )
        return next((len(blob) // 4 for (blob,) in self._fetch(wanted)), 0)


def _vectors(model: str, hashes: Sequence[str], *columns: Any) -> sa.Select[Any]:
    return sa.select(*columns).where(VECTORS.c.hash.in_(hashes), VECTORS.c.model == name_of_model(model))


class Transaction(Snapshot):
    """A moment that is being written. Leave it with an error, and nothing of it happened."""

    def __init__(
        self, connection: sa.Connection, schema: str | None, explained: Callable[[], AbstractContextManager[None]]
    ) -> None:
        # First: of a server, other writers wait here until this transaction ends.
        connection.execute(sa.select(STATE.c.value).where(STATE.c.key == "change").with_for_update())
        super().__init__(connection, schema, explained)
        self._counted = False

    def _run(self, statement: sa.Executable, rows: Sequence[dict[str, Any]] | None = None) -> int:
        """Write, and return how many rows that concerned."""
        with self._explained():
            return int(self.connection.execute(statement, rows).rowcount)

    def count_change(self) -> None:
        """Take the next number of change, once: readers look at the nodes again when it grows."""
        if not self._counted:
            self._counted = True
            self.set_state(change=self.change + 1)

    def set_state(self, **values: Any) -> None:
        """Write what is true of the whole index; the value None forgets it."""
        for key, value in values.items():
            its = STATE.c.key == key
            if value is None:
                self._run(sa.delete(STATE).where(its))
            elif key in self.state:  # changed in place: other writers wait for this row
                self._run(sa.update(STATE).where(its).values(value=value))
            else:
                self._run(sa.insert(STATE), [{"key": key, "value": value}])
        self.state = {key: value for key, value in {**self.state, **values}.items() if value is not None}

    def put_documents(self, documents: Iterable[DocumentRow]) -> dict[str, int]:
        """Write documents, new or known, and return their numbers by key. Their nodes stay."""
        self.count_change()
        numbers: dict[str, int] = {}
        for part in iter_batch({one.key: one for one in documents}.values(), AT_ONCE):
            numbers |= self._numbers([one.key for one in part])
            values = [{**one._asdict(), "edition": self.edition} for one in part]
            fresh = [one for one in values if one["key"] not in numbers]
            if fresh:
                self._run(sa.insert(DOCUMENTS), fresh)
                numbers |= self._numbers([str(one["key"]) for one in fresh])
            known = [{**one, "number": numbers[str(one["key"])]} for one in values if one not in fresh]
            if known:
                change = sa.update(DOCUMENTS).where(DOCUMENTS.c.id == sa.bindparam("number"))
                names: dict[str, Any] = {name: sa.bindparam(name) for name in DocumentRow._fields if name != "key"}
                self._run(change.values(**names), known)
        return numbers

    def _numbers(self, keys: Iterable[str]) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for part in iter_batch(keys, AT_ONCE):
            known = DOCUMENTS.c.edition == self.edition, DOCUMENTS.c.key.in_(part)
            numbers.update(map(tuple, self._fetch(sa.select(DOCUMENTS.c.key, DOCUMENTS.c.id).where(*known))))
        return numbers

    def delete_documents(self, keys: Iterable[str]) -> int:
        """Delete documents with their nodes; return how many nodes there were."""
        gone = 0
        for part in iter_batch(self._numbers(keys).values(), AT_ONCE):
            self.count_change()
            gone += self._run(sa.delete(NODES).where(NODES.c.document.in_(part)))
            self._run(sa.delete(DOCUMENTS).where(DOCUMENTS.c.id.in_(part)))
        return gone

    def put_nodes(self, nodes: Iterable[tuple[int, NodeRow]]) -> None:
        """Write nodes, each with the number of its document; they get numbers of their own."""
        self.count_change()
        for part in iter_batch(nodes, PAGE):
            values = []
            for document, node in part:
                fields = node._asdict()
                del fields["row"]
                fields |= {"document": document, "edition": self.edition, "checksum": _checksum(node)}
                values.append(fields)
            self._run(sa.insert(NODES), values)
        [(newest,)] = self._fetch(sa.select(sa.func.max(NODES.c.id)))
        self.set_state(newest=int(newest or 0))

    def delete_nodes(self, rows: Iterable[int]) -> None:
        """Delete nodes by number."""
        for part in iter_batch(rows, AT_ONCE):
            self.count_change()
            self._run(sa.delete(NODES).where(NODES.c.id.in_(part)))

    def put_vectors(self, model: str, vectors: Mapping[str, Sequence[float] | Floats]) -> None:
        """Keep vectors by the hash of the embedded text; one that is there already is replaced."""
        for part in iter_batch(vectors.items(), AT_ONCE):
            keys = [key for key, _ in part]
            self._run(sa.delete(VECTORS).where(VECTORS.c.hash.in_(keys), VECTORS.c.model == name_of_model(model)))
            name = name_of_model(model)
            values = [_vector_row(name, key, np.asarray(vector, "<f4").tobytes()) for key, vector in part]
            self._run(sa.insert(VECTORS), values)

    def copy_vectors(self, rows: Sequence[Sequence[Any]]) -> None:
        """Keep vectors of another database: short name of the model, hash, bytes; those that are there stay."""
        for part in iter_batch({(one[0], one[1]): one for one in rows}.values(), AT_ONCE):
            same = VECTORS.c.hash.in_([one[1] for one in part])
            known = {tuple(one) for one in self._fetch(sa.select(VECTORS.c.model, VECTORS.c.hash).where(same))}
            values = [_vector_row(*one) for one in part if tuple(one[:2]) not in known]
            if values:
                self._run(sa.insert(VECTORS), values)

    def forget_vectors(self, spare: int) -> None:
        """Delete vectors of texts that no node has, where they are more than the used ones and some to spare."""
        [(total,)] = self._fetch(sa.select(sa.func.count()).select_from(VECTORS))
        if total > 2 * self.count() + spare:
            used = sa.select(NODES.c.embed_hash)
            self._run(sa.delete(VECTORS).where(VECTORS.c.hash.not_in(used)))

    def switch_edition(self, edition: int) -> None:
        """Let readers see another edition, and delete what no edition needs any more."""
        self.count_change()
        self.set_state(edition=edition)
        self.edition = edition
        self._run(sa.delete(NODES).where(NODES.c.edition != edition))
        self._run(sa.delete(DOCUMENTS).where(DOCUMENTS.c.edition != edition))

    # Contexts, and any other values by key

    def put_values(self, collection: str, values: Mapping[str, Any]) -> None:
        """Keep values by key; one that is there already is replaced."""
        for part in iter_batch(values.items(), AT_ONCE):
            self.delete_values(collection, [key for key, _ in part])
            rows = [{"collection": collection, "key": key, "value": value} for key, value in part]
            self._run(sa.insert(CONTEXTS), rows)

    def delete_values(self, collection: str, keys: Sequence[str]) -> int:
        """Delete values by key; return how many there were."""
        of_these = CONTEXTS.c.key.in_(keys), CONTEXTS.c.collection == collection
        return self._run(sa.delete(CONTEXTS).where(*of_these))
