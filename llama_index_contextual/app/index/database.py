"""``index.sqlite3``: the documents, chunks and settings of an index.

A reader sees the state at the moment when it began to read. One process writes at a time. A damaged
file is set aside, and the next refresh builds a new one.

A row of ``chunks`` never changes: a chunk that changed gets a new row. Row numbers are never used
again, because each write raises them by a random step. Even an older copy of the file that was put
back does not repeat them. Whatever is derived from chunks is therefore brought up to date by
comparing two sets of row numbers.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import uuid
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from llama_index_contextual.app.index.rows import (
    DocumentRow,
    IndexState,
    NodeRow,
    fields_of,
    to_node,
)
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import DocumentError, StorageError
from llama_index_contextual.utils.sqlite_file import AMONG, SqliteFile, checksum_of
from llama_index_contextual.utils.text import storable

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.app.index.vectors import Singles

    Rows = npt.NDArray[np.int64]

_TABLES = """
CREATE TABLE state (value TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL CHECK (kind IN ('file', 'document')),
    sha256 TEXT NOT NULL, stamp TEXT NOT NULL, made_with TEXT NOT NULL,
    nodes INTEGER NOT NULL, failed TEXT NOT NULL
);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES documents,
    node_id TEXT NOT NULL UNIQUE, ref_doc_id TEXT, text TEXT NOT NULL,
    metadata TEXT NOT NULL, fields BLOB NOT NULL, embed_hash TEXT NOT NULL,
    context_source TEXT NOT NULL, checksum INTEGER NOT NULL
);
CREATE INDEX chunks_of_document ON chunks (document, context_source);
CREATE TABLE vectors (chunk INTEGER PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL)"""

# The largest step from the number of a change to the next. 16 million changes fit into 63 bits. If
# a copy was put back, the chance that its next 10,000 chunks repeat a number is one in ten million.
_STEP = 2**40
_PAGE = 2000  # rows that are loaded together
_NODE = ", ".join(["id", *NodeRow._fields[1:], "checksum"])
_DOCUMENT = ", ".join(DocumentRow._fields)
JOINED = "FROM chunks JOIN documents ON documents.id = document"
_VECTORS_OF_DOCUMENTS = """
SELECT embed_hash, chunk, value, vectors.checksum FROM vectors
JOIN chunks ON chunks.id = chunk JOIN documents ON documents.id = document
WHERE documents.key IN (SELECT value FROM json_each(?))
"""
# Queries without a result in an intact index. SQLite itself does not notice that rows were lost.
_TRACES_OF_LOSS = (
    "PRAGMA foreign_key_check",
    (
        "SELECT 1 FROM documents WHERE nodes != (SELECT count(*) FROM chunks WHERE document "
        "= documents.id)"
    ),
    "SELECT 1 FROM vectors WHERE chunk NOT IN (SELECT id FROM chunks)",
)


class Database(SqliteFile):
    """The file of documents, chunks and settings."""

    tables = _TABLES
    layout = 10
    _documents: tuple[object, dict[str, DocumentRow]] = (None, {})

    def state(self) -> IndexState:
        """Return the state of the whole index, which is empty before anything is indexed.

        Raises:
            DamagedError: It cannot be read.
        """
        if not self.exists:
            return IndexState()
        with self.reading() as snapshot:
            return snapshot.state

    def documents(self) -> dict[str, DocumentRow]:
        """Return all documents by key, including those that failed. Do not change the mapping.

        Raises:
            DamagedError: It cannot be read.
        """
        if not self.exists:
            return {}
        with self.reading() as snapshot:
            # Reading the rows of 100,000 documents takes a third of a second.
            if self._documents[0] != snapshot.state.revision:
                self._documents = snapshot.state.revision, snapshot.documents()
            return self._documents[1]

    @contextlib.contextmanager
    def reading(self) -> Iterator[Snapshot]:
        """Open a snapshot, which shows the same state whatever is written meanwhile.

        Raises:
            DamagedError: The file cannot be read.
            StorageError: The file does not exist, or cannot be opened now.
        """
        if not self.exists:
            raise StorageError(f"there is no index in {self.path}. {self.fix}")
        with self.connection() as connection:
            with self.explained():
                connection.execute("BEGIN")
            snapshot = Snapshot(connection, self)
            try:
                yield snapshot
            finally:
                snapshot.end()

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Write in one transaction.

        Raises:
            DamagedError: The file cannot be read.
            StorageError: It cannot be written, for example because the disk is full.
        """
        with self.transaction() as connection:
            yield Transaction(connection, self)

    def _put_first_rows(self, connection: sqlite3.Connection) -> None:
        write_state(connection, IndexState(identity=uuid.uuid4().hex))

    def _check_rows(self, connection: sqlite3.Connection) -> None:
        snapshot = Snapshot(connection, self)
        snapshot.documents()
        for row in snapshot.node_rows(snapshot.rows()):  # this compares each row with its checksum
            fields_of(row)
            if not isinstance(json.loads(row.metadata), dict):
                raise TypeError("the metadata of a node is not an object")
        if any(snapshot.fetch(query) for query in _TRACES_OF_LOSS):
            raise ValueError("documents or chunks are lost")
        if snapshot.state.dimensions:
            rows = snapshot.rows()
            for start in range(0, len(rows), _PAGE):
                snapshot.vectors(rows[start : start + _PAGE])


@lru_cache(maxsize=8)  # the state seldom changes between two queries
def _checked_state(value: str, checksum: int) -> IndexState:
    if checksum != checksum_of(value):
        raise ValueError("its state does not match its checksum")
    return IndexState.model_validate_json(value)


def _text_in_metadata(key: str) -> str:
    """Return SQL for a text value in a chunk's metadata, which is NULL if the key is missing."""
    return f"CASE WHEN metadata LIKE '%\"{key}\": \"%' THEN json_extract(metadata, '$.{key}') END"


def write_state(connection: sqlite3.Connection, state: IndexState) -> None:
    """Replace the state of an index."""
    value = state.model_dump_json()
    connection.execute("DELETE FROM state")
    connection.execute("INSERT INTO state VALUES (?, ?)", (value, checksum_of(value)))


def _node_row(values: Sequence[Any]) -> NodeRow:
    row = NodeRow(*values[:-1])
    if not isinstance(row.text, str) or not isinstance(row.metadata, str):
        raise TypeError(f"chunk {row.node_id!r} has bytes instead of text")
    if _checksum(row) != values[-1]:
        raise ValueError(f"chunk {row.node_id!r} does not match its checksum")
    return row


def _checksum(row: NodeRow) -> int:
    texts = (
        row.node_id,
        row.ref_doc_id or "",
        row.text,
        row.metadata,
        row.embed_hash,
        row.context_source,
    )
    return checksum_of("\0".join(texts), row.fields)


class Snapshot:
    """The state of an index at one moment. Threads can share a snapshot; they take turns.

    Args:
        connection: A connection with an open transaction.
        file: The database.

    Attributes:
        state: The state of the whole index.
        has_ended: Whether the transaction has ended. A thread may outlive its query.
    """

    def __init__(self, connection: sqlite3.Connection, file: Database) -> None:
        self._connection, self._file = connection, file
        self._lock = threading.Lock()
        self.has_ended = False
        rows = self.fetch("SELECT value, checksum FROM state")
        with file.explained():
            [[value, checksum]] = rows
            self.state = _checked_state(value, checksum)

    def end(self) -> None:
        """Refuse further queries, after the running ones have ended."""
        with self._lock:
            self.has_ended = True

    def fetch(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query."""
        with self._lock, self._file.explained():
            if self.has_ended:
                raise StorageError(f"a query of {self._file.path} has ended. Start it again.")
            return self._connection.execute(query, values).fetchall()

    def among(self, query: str, values: Iterable[Any]) -> list[Any]:
        """Return the rows of a query that ends in :data:`AMONG`, for any of some values."""
        return self.fetch(query, [json.dumps([*values])])

    def refuse(self, problem: str) -> NoReturn:
        """Refuse the file as damaged.

        Raises:
            DamagedError: Always.
        """
        with self._file.explained():
            raise ValueError(problem)

    def documents(self) -> dict[str, DocumentRow]:
        """Return all documents by key, including those that failed."""
        rows = self.fetch(f"SELECT {_DOCUMENT} FROM documents")  # noqa: S608  our own names
        return {row[0]: DocumentRow._make(row) for row in rows}

    def context_sources(self) -> dict[str, int]:
        """Return the number of chunks by the source of their context, "" for those without one."""
        return dict(self.fetch("SELECT context_source, count(*) FROM chunks GROUP BY 1 ORDER BY 1"))

    def rows(self) -> Rows:
        """Return the numbers of all chunks, ascending."""
        import numpy as np

        # One text is three times as fast as a list, which takes 100 MB for a million numbers.
        [(text,)] = self.fetch("SELECT group_concat(id) FROM chunks")
        return (
            np.sort(np.fromstring(text, dtype=np.int64, sep=","))
            if text
            else np.empty(0, dtype=np.int64)
        )

    def rows_of(self, node_ids: Iterable[str]) -> dict[str, int]:
        """Return the row numbers of chunks by id, without unknown ids."""
        keepable = (node_id for node_id in node_ids if not storable(node_id)[1])
        return dict(self.among(f"SELECT node_id, id FROM chunks WHERE node_id {AMONG}", keepable))  # noqa: S608

    def rows_of_document(self, key: str) -> list[int]:
        """Return the row numbers of the chunks of a document, ascending."""
        return sorted(
            row for (row,) in self.fetch(f"SELECT chunks.id {JOINED} WHERE key = ?", [key])
        )

    def first_rows(self) -> dict[int, str]:
        """Return the keys of all documents by the row number of their first chunk, ascending."""
        return dict(self.fetch(f"SELECT min(chunks.id), key {JOINED} GROUP BY document ORDER BY 1"))

    def rows_beside(self, row: int) -> list[int]:
        """Return the row numbers of all chunks of the document that a chunk is from, ascending."""
        query = (
            "SELECT id FROM chunks WHERE document = (SELECT document FROM chunks WHERE id = "
            "?) ORDER BY 1"
        )
        return [number for (number,) in self.fetch(query, [row])]

    def node_rows(self, rows: Sequence[int] | Rows) -> Iterator[NodeRow]:
        """Yield chunks, ascending by row number."""
        with self._file.explained():
            yield from map(_node_row, self._selected(_NODE, rows))

    def texts(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield text, title, front matter and metadata of every chunk, without comparing checksums.

        Documents come in the order of their keys. Title and front matter are ``key: value`` texts,
        or empty.
        """
        title = _text_in_metadata(metadata.TITLE)
        front_matter = _text_in_metadata(metadata.FRONT_MATTER)
        query = (
            f"SELECT CAST(text AS TEXT), ifnull('{metadata.TITLE}: ' || {title}, ''), "
            f"ifnull({front_matter}, ''), metadata {JOINED} WHERE key {AMONG} ORDER BY key"
        )
        keys = list[str]()
        number_of_chunks = 0
        for key, chunks in self.fetch("SELECT key, nodes FROM documents ORDER BY key"):
            keys.append(key)
            number_of_chunks += chunks
            if number_of_chunks >= _PAGE:
                yield from self.among(query, keys)
                keys.clear()
                number_of_chunks = 0
        yield from self.among(query, keys)

    def nodes(self, rows: Sequence[int] | Rows) -> Iterator[BaseNode]:
        """Yield chunks as new node objects."""
        with self._file.explained():
            yield from map(to_node, self.node_rows(rows))

    def values(self, key: str, rows: Sequence[int] | Rows) -> list[Any]:
        """Return the value of a metadata key for each chunk, ascending by row number."""
        with self._file.explained():
            nodes = self.node_rows(rows)
            if key == metadata.REF_DOC_ID:
                return [node.ref_doc_id for node in nodes]
            return [json.loads(node.metadata).get(key) for node in nodes]

    def metadata_of(self, text: str) -> dict[str, Any]:
        """Return the metadata of a chunk, which are stored as JSON."""
        with self._file.explained():
            values = json.loads(text)
            if not isinstance(values, dict):
                raise TypeError("the metadata of a node is not an object")
            return values

    def column(self, column: str, rows: Sequence[int] | Rows) -> list[Any]:
        """Return a column of chunks, ascending by row number."""
        return [value for (value,) in self._selected(column, rows)]

    def vectors(self, rows: Sequence[int] | Rows) -> list[Singles]:
        """Return the vectors of chunks, ascending by row number, all of the same length."""
        import numpy as np

        vectors = []
        for row, value, checksum in self._selected(
            "chunk, value, checksum", rows, "vectors", "chunk"
        ):
            with self._file.explained():
                if (
                    checksum != checksum_of(str(row), value)
                    or len(value) != 4 * self.state.dimensions
                ):
                    raise ValueError(f"the vector of chunk {row} does not match its checksum")
                vectors.append(np.frombuffer(value, "<f4"))
        return vectors

    def vectors_by_hash(self, documents: Iterable[str]) -> dict[str, Singles]:
        """Return the vectors of the chunks of documents, by the hash of the embedded text."""
        import numpy as np

        vectors = {}
        for embed_hash, row, value, checksum in self.among(_VECTORS_OF_DOCUMENTS, documents):
            if checksum == checksum_of(str(row), value):
                vectors[embed_hash] = np.frombuffer(value, "<f4")
        return vectors

    def refuse_lost_chunks(self) -> None:
        """Refuse the file if documents have another number of chunks than they should have.

        Raises:
            DamagedError: The numbers differ.
        """
        [(expected,)] = self.fetch("SELECT coalesce(sum(nodes), 0) FROM documents")
        [(actual,)] = self.fetch("SELECT count(*) FROM chunks")
        if expected != actual:
            self.refuse(f"it has {actual} chunks instead of {expected}")

    def _selected(
        self, columns: str, rows: Sequence[int] | Rows, table: str = "chunks", key: str = "id"
    ) -> Iterator[Any]:
        """Yield columns of chunks, ascending by row number."""
        query = f"SELECT {columns} FROM {table} WHERE {key} {AMONG} ORDER BY {key}"  # noqa: S608  our own names
        for start in range(0, len(rows), _PAGE):
            part = [int(row) for row in rows[start : start + _PAGE]]
            values = self.among(query, part)
            if len(values) < len(part):
                self.refuse("chunks are lost")
            yield from values


class Transaction(Snapshot):
    """A snapshot that is being written. An exception undoes all of it."""

    def _run(self, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        """Execute a statement for each row, and return the number of affected rows."""
        with self._lock, self._file.explained():
            return max(self._connection.executemany(statement, rows).rowcount, 0)

    def count_change(self, nodes: int = 0) -> int:
        """Reserve the number of a change, and a number above it for each new node.

        Readers notice changes by this number, because it grows.
        """
        number = self.state.change + 1 + secrets.randbelow(_STEP)
        self.set_state(change=number + nodes)
        return number

    def set_state(self, **values: Any) -> None:
        """Change values of the state of the index."""
        self.state = self.state.model_copy(update=values)
        with self._lock, self._file.explained():
            write_state(self._connection, self.state)

    def put_documents(self, documents: Iterable[DocumentRow]) -> None:
        """Insert or update the rows of documents. Their chunks stay."""
        self.count_change()
        updates = ", ".join(f"{name} = excluded.{name}" for name in DocumentRow._fields[1:])
        marks = ",".join("?" * len(DocumentRow._fields))
        self._run(
            f"INSERT INTO documents ({_DOCUMENT}) VALUES ({marks}) "  # noqa: S608
            f"ON CONFLICT (key) DO UPDATE SET {updates}",
            documents,
        )

    def replace_document(
        self, document: DocumentRow, nodes: Sequence[NodeRow], vectors: Mapping[str, Singles]
    ) -> None:
        """Write a document with its chunks. Rows of unchanged chunks stay.

        Args:
            document: The document.
            nodes: Its chunks.
            vectors: Their vectors by the hash of the embedded text; empty without an embedding.

        Raises:
            DocumentError: Two of the chunks have the same id, or another document has that id.
        """
        counts = Counter(node.node_id for node in nodes)
        owners = self.among(f"SELECT node_id, key {JOINED} WHERE node_id {AMONG}", counts)
        taken = [node_id for node_id, key in owners if key != document.key]
        taken += [node_id for node_id, count in counts.items() if count > 1]
        if taken:
            raise DocumentError(
                f"the id {taken[0]!r} of one of its chunks is not unique. Use a node parser whose "
                "id_func gives each chunk its own id."
            )
        self.put_documents([document])
        [(number,)] = self.fetch("SELECT id FROM documents WHERE key = ?", [document.key])
        nodes_before = self.node_rows(self.rows_of_document(document.key))
        before = {node.node_id: node for node in nodes_before}
        new = []
        for node in nodes:
            former = before.get(node.node_id)
            if former is None or former[1:] != node[1:]:  # all but the number
                new.append(node)
        new_ids = {node.node_id for node in new}
        outdated = [
            (node.row,)
            for node_id, node in before.items()
            if node_id in new_ids or node_id not in counts
        ]
        self._run("DELETE FROM vectors WHERE chunk = ?", outdated)
        self._run("DELETE FROM chunks WHERE id = ?", outdated)
        rows = [
            (number, row, *node[1:], _checksum(node))
            for row, node in enumerate(new, start=self.count_change(len(new)) + 1)
        ]
        self._run(f"INSERT INTO chunks (document, {_NODE}) VALUES ({','.join('?' * 10)})", rows)  # noqa: S608
        if vectors:
            self._put_vectors(
                (row[1], vectors[node.embed_hash]) for row, node in zip(rows, new, strict=True)
            )

    def _put_vectors(self, vectors: Iterable[tuple[int, Singles]]) -> None:
        rows = []
        for row, vector in vectors:
            if len(vector) != self.state.dimensions:
                self.set_state(dimensions=len(vector))
            value = vector.astype("<f4").tobytes()
            rows.append((row, value, checksum_of(str(row), value)))
        self._run("INSERT INTO vectors VALUES (?, ?, ?)", rows)

    def delete_documents(self, keys: Iterable[str]) -> int:
        """Delete documents with their chunks, and return the number of these chunks."""
        self.count_change()
        numbers = self.among(f"SELECT id FROM documents WHERE key {AMONG}", keys)  # noqa: S608
        self._run(
            "DELETE FROM vectors WHERE chunk IN (SELECT id FROM chunks WHERE document = ?)", numbers
        )
        removed = self._run("DELETE FROM chunks WHERE document = ?", numbers)
        self._run("DELETE FROM documents WHERE id = ?", numbers)
        return removed
