"""``index.sqlite3``: documents, chunks and settings of an index, rebuilt from the files for nothing.

A reader sees the moment at which it began; one process writes at a time. A damaged file is set aside, and the next
refresh builds another one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llama_index_contextual.app.store.schema import (
    INDEX_TABLES,
    LAYOUT,
    IndexState,
    check_layout,
    checksum_of,
)
from llama_index_contextual.app.store.snapshot import Snapshot, Transaction
from llama_index_contextual.app.store.sqlite_file import SqliteFile, schema_of_tables
from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Mapping

    Explained = Callable[[], contextlib.AbstractContextManager[None]]

logger = logging.getLogger(__name__)

PAGE: Final = 2000  # rows that are in memory together
# What a whole index never has: SQLite does not notice whole rows that were lost.
_NEVER: Final = {
    "SELECT 1 FROM documents WHERE nodes != (SELECT count(*) FROM chunks WHERE document = documents.id)": "chunks went",
    "SELECT 1 FROM chunks WHERE document NOT IN (SELECT id FROM documents)": "documents are lost",
    "SELECT 1 FROM documents WHERE kind NOT IN ('file', 'document')": "a document is of no kind",
}


class Database(SqliteFile):
    """The file of documents, chunks and settings.

    Args:
        file: The file.
        cure: What a reader of a damaged file can do.
    """

    def __init__(self, file: Path, cure: str) -> None:
        super().__init__(file, INDEX_TABLES, cure)

    def beside(self, file: Path) -> Database:
        """Another file of the same index."""
        return Database(file, self.cure)

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
            raise StorageError(f"there is no index in {self.name}. Cure: {self.cure}")
        with ExitStack() as stack:
            connection = stack.enter_context(self.connection())
            with self.explained():
                connection.execute("BEGIN")
                snapshot = Snapshot(connection, self.name, self.explained)
            yield snapshot

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Write in one transaction.

        Raises:
            DamagedError: The file cannot be read.
            StorageError: It cannot be written: a full disk, no permission.
        """
        with self.transaction() as connection:
            with self.explained():
                transaction = Transaction(connection, self.name, self.explained)
            yield transaction

    def replace_content(self, source: Database) -> None:
        """Take over all of another file in one transaction: readers see what was before, or all of it."""
        self.create()
        with source.connection() as other, self.connection(create=True) as connection, self.explained():
            other.backup(connection)

    def _fill(self, connection: sqlite3.Connection) -> None:
        state = {"layout": LAYOUT, "identity": uuid.uuid4().hex, "change": 0}
        rows = [(key, json.dumps(value)) for key, value in state.items()]
        connection.executemany("INSERT INTO state VALUES (?, ?)", rows)

    def _check_layout(self, connection: sqlite3.Connection, present: Mapping[str, str]) -> None:
        if present.get("state") == schema_of_tables(INDEX_TABLES)["state"]:
            [value] = connection.execute("SELECT max(value) FROM state WHERE key = 'layout'").fetchone()
            layout = json.loads(value) if isinstance(value, str) else value
            if isinstance(layout, int) and layout > LAYOUT:
                check_layout(layout, self.name)

    def _check_rows(self, connection: sqlite3.Connection) -> None:
        query = "SELECT node_id, text, metadata, rest, embed_hash, checksum FROM chunks"
        for node_id, text, metadata, rest, embed_hash, checksum in connection.execute(query):
            if checksum_of(node_id, text, metadata, rest, embed_hash) != checksum:
                raise ValueError(f"chunk {node_id!r} has another checksum")
        if Snapshot(connection, self.name, self.explained).state.complete:
            for query, problem in _NEVER.items():
                if connection.execute(query).fetchone():
                    raise ValueError(problem)
