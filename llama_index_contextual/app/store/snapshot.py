"""What is read of an index at one moment, and what is written in one transaction: the SQL of both."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
from llama_index.core.utils import iter_batch

from llama_index_contextual.app.store.schema import (
    ALWAYS,
    CHUNK_COLUMNS,
    DOCUMENT_COLUMNS,
    DocumentRow,
    IndexState,
    check_layout,
    checksum_of,
    chunk_row,
    state_of,
)
from llama_index_contextual.app.store.sqlite_file import AT_ONCE
from llama_index_contextual.keyword import REF_DOC_ID
from llama_index_contextual.text import storable
from llama_index_contextual.watching import uncollected

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from llama_index_contextual.app.store.schema import NodeRow, Rows

    Explained = Callable[[], AbstractContextManager[None]]

PAGE: Final = 2000  # rows that are in memory together


@lru_cache(maxsize=8)  # most questions find the index as the one before found it
def _state_of_rows(name: str, *rows: tuple[str, str]) -> IndexState:
    values = {key: json.loads(value) for key, value in rows}
    check_layout(values.get("layout"), name)
    if not values.keys() >= ALWAYS:
        raise ValueError("it has no identity")
    return state_of(values)


class Snapshot:
    """One moment of an index. It may be asked by several threads, which take turns.

    Args:
        connection: In a transaction.
        name: Of the file.
        explained: Makes an error of SQLite, and of what was read there, one with a cure.

    Attributes:
        state: What is true of the whole index.
    """

    def __init__(self, connection: sqlite3.Connection, name: str, explained: Explained) -> None:
        self.connection = connection
        self._explained = explained
        self._lock = threading.Lock()
        rows = self._fetch("SELECT key, value FROM state")
        with self._explained():
            self.state = _state_of_rows(name, *rows)

    def _fetch(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, self._explained():
            return self.connection.execute(query, values).fetchall()

    def _among(self, query: str, values: Iterable[Any]) -> Iterator[Any]:
        """Rows of a query that ends in ``IN ({})``, for some values."""
        for part in iter_batch(values, AT_ONCE):
            yield from self._fetch(query.format(",".join("?" * len(part))), part)

    def refuse(self, problem: str) -> NoReturn:
        """Refuse the file as damaged.

        Raises:
            DamagedError: Always.
        """
        with self._explained():
            raise ValueError(problem)

    def _pages(self, rows: Rows, column: str) -> Iterator[list[Any]]:
        """Numbers of chunks and a column of them, in their order, a page at a time."""
        for start in range(0, len(rows), PAGE):
            part = rows[start : start + PAGE]
            query = f"SELECT id, {column} FROM chunks WHERE id "  # noqa: S608  our own names
            if len(part) > AT_ONCE:
                between = self._fetch(f"{query} BETWEEN ? AND ? ORDER BY id", (int(part[0]), int(part[-1])))
                among = set(part.tolist())
                yield [one for one in between if one[0] in among]
            else:
                numbers = ",".join(map(str, part.tolist()))
                yield self._fetch(f"{query} IN ({numbers}) ORDER BY id")

    # Documents

    def documents(self, keys: Iterable[str] | None = None) -> dict[str, DocumentRow]:
        """Documents by key, or all of them, those that failed at their first time too."""
        query = f"SELECT {DOCUMENT_COLUMNS} FROM documents"  # noqa: S608  our own names
        if keys is not None:
            return {one[0]: DocumentRow._make(one) for one in self._among(f"{query} WHERE key IN ({{}})", keys)}
        with self._lock, self._explained(), uncollected():
            cursor = self.connection.execute(query)
            pages = iter(partial(cursor.fetchmany, PAGE), [])
            return {one[0]: DocumentRow._make(one) for page in pages for one in page}

    def nodes_of(self, keys: Iterable[str]) -> dict[str, list[NodeRow]]:
        """Chunks of documents by key; documents without chunks are absent."""
        columns = ", ".join(f"chunks.{name}" for name in CHUNK_COLUMNS.split(", "))
        query = (
            f"SELECT key, {columns} FROM chunks JOIN documents ON documents.id = document "  # noqa: S608  our own names
            "WHERE key IN ({}) ORDER BY chunks.id"
        )
        results: dict[str, list[NodeRow]] = {}
        for key, *values in self._among(query, keys):
            results.setdefault(key, []).append(self._row(values))
        return results

    def context_sources(self) -> dict[str, int]:
        """How many chunks have a context from each source; "" counts those without."""
        return dict(sorted(self._fetch("SELECT context_source, count(*) FROM chunks GROUP BY context_source")))

    def by_document(self) -> list[tuple[str, str, int]]:
        """Documents by key, a source of contexts, and how many chunks have one from there."""
        query = (
            "SELECT key, context_source, count(*) FROM chunks JOIN documents ON documents.id = document GROUP BY 1, 2"
        )
        return self._fetch(query)

    def miscounted(self) -> list[tuple[str, int, int]]:
        """Documents by key that have another number of chunks than they should: that number, and how many."""
        return self._fetch(
            "SELECT key, nodes, count(chunks.id) AS found FROM documents LEFT JOIN chunks ON document = documents.id "
            "GROUP BY documents.id HAVING found != nodes"
        )

    # Chunks

    def count(self) -> int:
        """Number of chunks."""
        [(count,)] = self._fetch("SELECT count(*) FROM chunks")
        return int(count)

    def rows(self) -> Rows:
        """Numbers of all chunks, ascending."""
        # As one text: a million numbers would be a list of 100 MB, and take three times as long one by one.
        [(text,)] = self._fetch("SELECT group_concat(id) FROM chunks")
        return np.sort(np.fromstring(text, dtype=np.int64, sep=",")) if text else np.empty(0, dtype=np.int64)

    def node_ids(self, rows: Collection[int]) -> dict[int, str]:
        """Ids of chunks by number; numbers that no chunk has are absent."""
        results: dict[int, str] = {}
        for part in iter_batch(rows, PAGE):
            numbers = ",".join(str(int(row)) for row in part)
            results.update(self._fetch(f"SELECT id, node_id FROM chunks WHERE id IN ({numbers})"))  # noqa: S608
        return results

    def rows_of(self, node_ids: Iterable[str]) -> dict[str, int]:
        """Numbers of chunks by id; unknown ids are absent."""
        keepable = (one for one in node_ids if not storable(one)[1])
        return dict(self._among("SELECT node_id, id FROM chunks WHERE node_id IN ({})", keepable))

    def nodes(self, rows: Sequence[int] | Rows | None = None) -> Iterator[NodeRow]:
        """Chunks by number, or all of them, in the order of their numbers."""
        for part in iter_batch(self.rows() if rows is None else rows, AT_ONCE):
            numbers = ",".join(str(int(row)) for row in part)
            query = f"SELECT {CHUNK_COLUMNS} FROM chunks WHERE id IN ({numbers}) ORDER BY id"  # noqa: S608
            for values in self._fetch(query):
                yield self._row(values)

    def _row(self, values: Sequence[Any]) -> NodeRow:
        with self._explained():
            return chunk_row(values)

    def owners(self, node_ids: Iterable[str]) -> Iterator[tuple[str, int, str]]:
        """Those of some node ids that are there, with the number of the chunk and the key of its document."""
        query = (
            "SELECT node_id, chunks.id, key FROM chunks JOIN documents ON documents.id = document WHERE node_id IN ({})"
        )
        yield from self._among(query, node_ids)

    def column(self, key: str, rows: Rows | None = None) -> list[Any]:
        """Value of a metadata key of chunks with some numbers, or of all; None where one has none."""
        rows = self.rows() if rows is None else rows
        if key == REF_DOC_ID:
            return self._read("ref_doc_id", rows)
        # JSON escapes other keys, and SQLite writes 15 digits of a number with a point.
        if '"' in key or "\\" in key or "'" in key or not (key.isascii() and key.isprintable()):
            return [json.loads(text).get(key) for text in self._read("metadata", rows)]
        texts = self._read(f"metadata -> '$.\"{key}\"'" if _HAS_ARROW else "metadata", rows)
        if not _HAS_ARROW:
            return [json.loads(text).get(key) for text in texts]
        decoded = {text: None if text is None else json.loads(text) for text in dict.fromkeys(texts)}
        if any(isinstance(value, float) for value in decoded.values()):
            return [json.loads(text).get(key) for text in self._read("metadata", rows)]
        return [decoded[text] for text in texts]

    def embed_hashes(self, rows: Rows) -> list[str]:
        """Hash of the embedded text of each of some chunks, ascending."""
        return self._read("embed_hash", rows)

    def _read(self, column: str, rows: Rows) -> list[Any]:
        values = [value for page in self._pages(rows, column) for _, value in page]
        if len(values) < len(rows):
            self.refuse("chunks are lost")
        return values


_HAS_ARROW: Final = sqlite3.sqlite_version_info >= (3, 38)


class Transaction(Snapshot):
    """A moment that is being written. Leave it with an error, and nothing of it happened."""

    def __init__(self, connection: sqlite3.Connection, name: str, explained: Explained) -> None:
        super().__init__(connection, name, explained)
        self._is_counted = False

    def _run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Write, and return how many rows that concerned."""
        with self._lock, self._explained():
            return self.connection.execute(statement, values).rowcount

    def _run_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._lock, self._explained():
            self.connection.executemany(statement, rows)

    def count_change(self) -> None:
        """Take the next number of change, once: readers look at the chunks again when it grows."""
        if not self._is_counted:
            self._is_counted = True
            self.set_state(change=max(self.state.change + 1, time.time_ns()))

    def set_state(self, **values: Any) -> None:
        """Write what is true of the whole index."""
        self._run_many("INSERT OR REPLACE INTO state VALUES (?, ?)", [(k, json.dumps(v)) for k, v in values.items()])
        self.state = replace(self.state, **values)

    def put_documents(self, documents: Iterable[DocumentRow]) -> dict[str, int]:
        """Write documents, new or known, and return their numbers by key. Their chunks stay."""
        self.count_change()
        rows = list(documents)
        names = DOCUMENT_COLUMNS.split(", ")
        updates = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
        self._run_many(
            f"INSERT INTO documents ({DOCUMENT_COLUMNS}) VALUES ({','.join('?' * len(names))}) "  # noqa: S608
            f"ON CONFLICT (key) DO UPDATE SET {updates}",
            rows,
        )
        return self._numbers(row.key for row in rows)

    def _numbers(self, keys: Iterable[str]) -> dict[str, int]:
        return dict(self._among("SELECT key, id FROM documents WHERE key IN ({})", keys))

    def delete_documents(self, keys: Iterable[str]) -> int:
        """Delete documents with their chunks; return how many chunks there were."""
        removed = 0
        for part in iter_batch(self._numbers(keys).values(), AT_ONCE):
            self.count_change()
            marks = ",".join("?" * len(part))
            removed += self._run(f"DELETE FROM chunks WHERE document IN ({marks})", part)  # noqa: S608
            self._run(f"DELETE FROM documents WHERE id IN ({marks})", part)  # noqa: S608
        return removed

    def put_nodes(self, nodes: Iterable[tuple[int, NodeRow]]) -> None:
        """Write chunks, each with the number of its document; they get numbers of their own."""
        self.count_change()
        number = self.state.change
        for part in iter_batch(nodes, PAGE):
            rows = [_values_of(number + at, *one) for at, one in enumerate(part, start=1)]
            self._run_many(
                f"INSERT INTO chunks (document, {CHUNK_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?)",  # noqa: S608
                rows,
            )
            number += len(part)
        self.set_state(change=number)

    def delete_nodes(self, rows: Iterable[int]) -> None:
        """Delete chunks by number."""
        for part in iter_batch(rows, AT_ONCE):
            self.count_change()
            self._run(f"DELETE FROM chunks WHERE id IN ({','.join('?' * len(part))})", part)  # noqa: S608


def _values_of(number: int, document: int, row: NodeRow) -> tuple[Any, ...]:
    metadata = json.dumps(row.metadata)
    checksum = checksum_of(row.node_id, row.text, metadata, row.rest, row.embed_hash)
    columns = row.node_id, row.ref_doc_id, row.text, metadata, row.rest, row.embed_hash, row.context_source, checksum
    return document, number, *columns
