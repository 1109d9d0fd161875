"""``index.sqlite3``: documents, chunks and settings of an index, rebuilt from the files for nothing.

A reader sees the moment at which it began; one process writes at a time. A damaged file is set aside, and the next
refresh builds another one.

A row of ``chunks`` never changes: a chunk of which anything changed gets a new row. Its number is never used again: it
is larger than all before it, and than the time in nanoseconds, so that a copy of the file that was put back does not
use it either. So whoever derives something from the chunks compares two sets of numbers.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from pydantic import ConfigDict, TypeAdapter, ValidationError

from llama_index_contextual.app.store.rows import DocumentRow, NodeRow
from llama_index_contextual.errors import StorageError
from llama_index_contextual.metadata import REF_DOC_ID
from llama_index_contextual.sqlite_file import MAX_VARIABLES, SqliteFile, batches, checksum_of
from llama_index_contextual.text import storable

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    Rows = npt.NDArray[np.int64]

_TABLES: Final = """
CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, sha256 TEXT NOT NULL, stamp TEXT NOT NULL,
    made_with TEXT NOT NULL, nodes INTEGER NOT NULL, failed TEXT NOT NULL
);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES documents, node_id TEXT NOT NULL UNIQUE,
    ref_doc_id TEXT, text TEXT NOT NULL, metadata TEXT NOT NULL, rest BLOB NOT NULL, embed_hash TEXT NOT NULL,
    context_source TEXT NOT NULL, checksum INTEGER NOT NULL, metadata_checksum INTEGER NOT NULL
);
CREATE INDEX chunks_of_document ON chunks (document)"""


@dataclass(frozen=True, slots=True)
class IndexState:
    """What is true of the whole index.

    Attributes:
        settings: Those that made it, as :attr:`IndexSettings.fingerprint` has them; empty before anything was indexed.
        choices: Keys and values of ``contextual.toml`` that made it, for those who set no others.
        folders: Of the documents, by name: ``path`` and more of each; the name of an only one is "".
        complete: False while a refresh is at work or was killed.
        change: Grows with every write, and is the highest number that a node ever had, or higher.
        identity: Tells it from all others.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    settings: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, Any] = field(default_factory=dict)
    folders: dict[str, dict[str, Any]] = field(default_factory=dict)
    complete: bool = True
    change: int = 0
    identity: str = ""

    @property
    def model(self) -> str:
        """The identity of the embedding model; "" where nothing was indexed."""
        return str(self.settings.get("embedding.model", ""))


_STATE: Final = TypeAdapter(IndexState)


def state_of(values: Mapping[str, Any]) -> IndexState:
    """The state of the values of the table ``state``; a ValueError where they make no sense."""
    try:
        return _STATE.validate_json(json.dumps(dict(values)))
    except ValidationError as error:
        raise ValueError(error.errors(include_url=False)[0]["msg"]) from error


_PAGE: Final = 2000  # rows that are in memory together
_CHUNK: Final = ", ".join(["id", *NodeRow._fields[1:], "checksum"])
_DOCUMENT: Final = ", ".join(DocumentRow._fields)
MISCOUNTED: Final = (
    "SELECT key, nodes, count(chunks.id) AS found FROM documents LEFT JOIN chunks ON document = documents.id "
    "GROUP BY documents.id HAVING found != nodes"
)
# What a whole index never has: SQLite does not notice whole rows that were lost.
_NEVER: Final = {
    MISCOUNTED: "chunks are lost",
    "SELECT 1 FROM chunks WHERE document NOT IN (SELECT id FROM documents)": "documents are lost",
    "SELECT 1 FROM documents WHERE kind NOT IN ('file', 'document')": "a document is of no kind",
}


class Database(SqliteFile):
    """The file of documents, chunks and settings."""

    tables = _TABLES

    def state(self) -> IndexState:
        """What is true of the whole index; an empty state where nothing was indexed yet.

        Raises:
            DamagedError: It cannot be read.
        """
        if not self.exists:
            return IndexState()
        with self.reading() as snapshot:
            return snapshot.state

    @contextlib.contextmanager
    def reading(self) -> Iterator[Snapshot]:
        """One moment of the file: whatever is written meanwhile, it shows the same.

        Raises:
            DamagedError: It cannot be read.
            StorageError: There is none, or it cannot be opened now.
        """
        if not self.exists:
            raise StorageError(f"there is no index in {self.path}. Cure: {self.cure}")
        with self.connection() as connection:
            with self.explained():
                connection.execute("BEGIN")
            yield Snapshot(connection, self)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Write in one transaction.

        Raises:
            DamagedError: The file cannot be read.
            StorageError: It cannot be written: a full disk, no permission.
        """
        with self.transaction() as connection:
            with self.explained():
                if not connection.execute("SELECT 1 FROM state").fetchone():
                    write_state(connection, {"identity": uuid.uuid4().hex, "change": 0})
            yield Transaction(connection, self)

    def replace_content(self, source: Database) -> None:
        """Take over all of another file in one transaction: readers see what was before, or all of it."""
        with source.connection() as other, self.connection(writes=True) as connection, self.explained():
            other.backup(connection)

    def _check_rows(self, connection: sqlite3.Connection) -> None:
        for values in connection.execute(f"SELECT {_CHUNK} FROM chunks"):  # noqa: S608  our own names
            _node_row(values)
        if Snapshot(connection, self).state.complete:
            for query, problem in _NEVER.items():
                if connection.execute(query).fetchone():
                    raise ValueError(problem)


@lru_cache(maxsize=8)  # most questions find the index as the one before found it
def _state_of_rows(*rows: tuple[str, str]) -> IndexState:
    values = {key: json.loads(value) for key, value in rows}
    if values.pop("checksum", None) != _checksum_of_state(rows):
        raise ValueError("its state has another checksum")
    if not values.keys() >= {"identity", "change"}:
        raise ValueError("it has no identity")
    return state_of(values)


def _checksum_of_state(rows: Iterable[tuple[str, str]]) -> int:
    return checksum_of(*(part for row in sorted(rows) if row[0] != "checksum" for part in row))


def write_state(connection: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    """Write values of the table ``state``, and the checksum of all of them."""
    statement = "INSERT OR REPLACE INTO state VALUES (?, ?)"
    connection.executemany(statement, [(key, json.dumps(value)) for key, value in values.items()])
    checksum = _checksum_of_state(connection.execute("SELECT key, value FROM state"))
    connection.execute(statement, ("checksum", json.dumps(checksum)))


def _node_row(values: Sequence[Any]) -> NodeRow:
    row = NodeRow(*values[:-1])
    if _checksum(row) != values[-1]:
        raise ValueError(f"chunk {row.node_id!r} has another checksum")
    return row


def _checksum(row: NodeRow) -> int:
    return checksum_of(row.node_id, row.text, row.metadata, row.embed_hash, row.context_source, row.rest)


class Snapshot:
    """One moment of an index. Several threads may read it; they take turns.

    Args:
        connection: In a transaction.
        file: The database.

    Attributes:
        state: What is true of the whole index.
    """

    def __init__(self, connection: sqlite3.Connection, file: Database) -> None:
        self._connection, self._file = connection, file
        self._lock = threading.Lock()
        rows = self.fetch("SELECT key, value FROM state")
        with file.explained():
            self.state = _state_of_rows(*rows)

    def fetch(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Rows of a query."""
        with self._lock, self._file.explained():
            return self._connection.execute(query, values).fetchall()

    def among(self, query: str, values: Iterable[Any]) -> Iterator[Any]:
        """Rows of a query that ends in ``IN ({})``, for some values."""
        for part in batches(values):
            yield from self.fetch(query.format(",".join("?" * len(part))), part)

    def refuse(self, problem: str) -> NoReturn:
        """Refuse the file as damaged.

        Raises:
            DamagedError: Always.
        """
        with self._file.explained():
            raise ValueError(problem)

    def documents(self) -> dict[str, DocumentRow]:
        """All documents by key, those that failed at their first time too."""
        return {one[0]: DocumentRow._make(one) for one in self.fetch(f"SELECT {_DOCUMENT} FROM documents")}  # noqa: S608

    def context_sources(self) -> dict[str, int]:
        """How many chunks have a context from each source; "" counts those without."""
        rows = self.fetch("SELECT context_source, count(*) FROM chunks GROUP BY context_source")
        with self._file.explained():  # a damaged page may hold NULL
            return dict(sorted(rows))

    def rows(self) -> Rows:
        """Numbers of all chunks, ascending."""
        import numpy as np

        # As one text: a million numbers would be a list of 100 MB, and take three times as long one by one.
        [(text,)] = self.fetch("SELECT group_concat(id) FROM chunks")
        return np.sort(np.fromstring(text, dtype=np.int64, sep=",")) if text else np.empty(0, dtype=np.int64)

    def rows_of(self, node_ids: Iterable[str]) -> dict[str, int]:
        """Numbers of chunks by id; unknown ids are absent."""
        keepable = (one for one in node_ids if not storable(one)[1])
        return dict(self.among("SELECT node_id, id FROM chunks WHERE node_id IN ({})", keepable))

    def nodes(self, rows: Iterable[int] | Rows | None = None) -> Iterator[NodeRow]:
        """Chunks by number, or all of them, in the order of their numbers."""
        import numpy as np

        wanted = self.rows() if rows is None else rows
        for values in self.among(
            f"SELECT {_CHUNK} FROM chunks WHERE id IN ({{}}) ORDER BY id",  # noqa: S608  our own names
            wanted.tolist() if isinstance(wanted, np.ndarray) else wanted,
        ):
            with self._file.explained():
                row = _node_row(values)
            yield row

    def rows_of_documents(self, keys: Iterable[str]) -> list[int]:
        """Numbers of the chunks of documents."""
        query = "SELECT chunks.id FROM chunks JOIN documents ON documents.id = document WHERE key IN ({})"
        return sorted(row for (row,) in self.among(query, keys))

    def values(self, key: str, rows: Rows) -> list[Any]:
        """Value of a metadata key of some chunks, ascending; None where one has none."""
        values: list[Any] = []
        for found in self._pages("metadata, ref_doc_id, metadata_checksum", rows):
            with self._file.explained():
                if any(checksum_of(metadata, document or "") != checksum for metadata, document, checksum in found):
                    raise ValueError("the metadata of a chunk has another checksum")
            if key == REF_DOC_ID:
                values += [document for _, document, _ in found]
            else:
                values += [json.loads(metadata).get(key) for metadata, *_ in found]
        return values

    def column(self, column: str, rows: Rows) -> list[Any]:
        """A column of some chunks, ascending."""
        return [value for page in self._pages(column, rows) for (value,) in page]

    def _pages(self, columns: str, rows: Rows) -> Iterator[list[Any]]:
        """Columns of some chunks, ascending, some thousand at a time."""
        for start in range(0, len(rows), _PAGE):
            part = rows[start : start + _PAGE].tolist()
            query = f"SELECT id, {columns} FROM chunks WHERE id "  # noqa: S608  our own names
            if len(part) > MAX_VARIABLES:
                found = self.fetch(f"{query} BETWEEN ? AND ?", (part[0], part[-1]))
            else:
                found = list(self.among(f"{query} IN ({{}})", part))
            by_id = {row: values for row, *values in found}
            try:
                yield [by_id[row] for row in part]
            except KeyError:
                self.refuse("chunks are lost")


class Transaction(Snapshot):
    """A moment that is being written. Leave it with an error, and nothing of it happened."""

    _is_counted = False

    def _run(self, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        """Write, and return how many rows that concerned."""
        with self._lock, self._file.explained():
            return self._connection.executemany(statement, rows).rowcount

    def count_change(self) -> None:
        """Take the next number of change, once: readers see that the chunks are others when it grows."""
        if not self._is_counted:
            self._is_counted = True
            self.set_state(change=max(self.state.change + 1, time.time_ns()))

    def set_state(self, **values: Any) -> None:
        """Write what is true of the whole index."""
        with self._lock, self._file.explained():
            write_state(self._connection, values)
        self.state = replace(self.state, **values)

    def put_documents(self, documents: Iterable[DocumentRow]) -> dict[str, int]:
        """Write documents, new or known, and return their numbers by key. Their chunks stay."""
        self.count_change()
        rows = list(documents)
        updates = ", ".join(f"{name} = excluded.{name}" for name in DocumentRow._fields[1:])
        self._run(
            f"INSERT INTO documents ({_DOCUMENT}) VALUES ({','.join('?' * len(DocumentRow._fields))}) "  # noqa: S608
            f"ON CONFLICT (key) DO UPDATE SET {updates}",
            rows,
        )
        return self._numbers(row.key for row in rows)

    def _numbers(self, keys: Iterable[str]) -> dict[str, int]:
        return dict(self.among("SELECT key, id FROM documents WHERE key IN ({})", keys))

    def delete_documents(self, keys: Iterable[str]) -> int:
        """Delete documents with their chunks; return how many chunks there were."""
        self.count_change()
        numbers = [(number,) for number in self._numbers(keys).values()]
        removed = self._run("DELETE FROM chunks WHERE document = ?", numbers)
        self._run("DELETE FROM documents WHERE id = ?", numbers)
        return max(removed, 0)

    def put_nodes(self, nodes: Iterable[tuple[int, NodeRow]]) -> None:
        """Write chunks, each with the number of its document; they get numbers of their own."""
        self.count_change()
        number = self.state.change
        rows = [
            (document, number + at, *row[1:], _checksum(row), checksum_of(row.metadata, row.ref_doc_id or ""))
            for at, (document, row) in enumerate(nodes, start=1)
        ]
        marks = ",".join("?" * 11)
        self._run(f"INSERT INTO chunks (document, {_CHUNK}, metadata_checksum) VALUES ({marks})", rows)  # noqa: S608
        self.set_state(change=number + len(rows))

    def delete_nodes(self, rows: Iterable[int]) -> None:
        """Delete chunks by number."""
        self.count_change()
        self._run("DELETE FROM chunks WHERE id = ?", [(row,) for row in rows])
