"""What is asked of the database of an index, at one moment of it."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import sqlalchemy as sa
from llama_index.core.utils import iter_batch

from llama_index_contextual.index.tables import (
    AT_ONCE,
    CONTEXTS,
    DOCUMENT_COLUMNS,
    DOCUMENTS,
    NODE_COLUMNS,
    NODES,
    PAGE,
    STATE,
    VECTORS,
    DocumentRow,
    NodeRow,
    checksum_of,
    name_of_model,
    node_of,
    vector_of,
)
from llama_index_contextual.keyword.filters import REF_DOC_ID
from llama_index_contextual.text import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from llama_index_contextual.index.tables import Floats, Rows

_NODE_NAMES: Final = ", ".join(column.name for column in NODE_COLUMNS)
# What a SQLite file never has: of whole rows that went, or of numbers that are others, SQLite says nothing.
_NEVER: Final = {
    "SELECT 1 FROM documents WHERE nodes != (SELECT count(*) FROM nodes WHERE document = documents.id)": "nodes went",
    "SELECT 1 FROM nodes WHERE document NOT IN (SELECT id FROM documents)": "documents are lost",
    "SELECT 1 FROM documents WHERE edition NOT BETWEEN ? AND ? + 1": "it has no such edition",
    "SELECT 1 FROM documents WHERE kind NOT IN ('file', 'document')": "a document is of no kind",
}


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
        # As one text: a million numbers would be a list of 100 MB, and take three times as long one by one.
        joined = "group_concat(id)" if self.connection.dialect.name == "sqlite" else "string_agg(id::text, ',')"
        query = f"SELECT {joined} FROM {self._nodes} WHERE edition = {int(self.edition)}"  # noqa: S608  a number
        [(text,)] = self._fetch(query)
        return np.sort(np.fromstring(text, dtype=np.int64, sep=",")) if text else np.empty(0, dtype=np.int64)

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

    def _node(self, *fields: Any) -> NodeRow:
        with self._explained():
            return node_of(*fields)

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

    def column(self, key: str, rows: Rows | None = None) -> list[Any]:
        """Return the value of a metadata key of nodes with some numbers, or of all; None where one has none."""
        if key == REF_DOC_ID:
            return self._read(NODES.c.ref_doc_id, rows)
        if '"' in key or "\\" in key or not (key.isascii() and key.isprintable()):  # JSON escapes it
            return [metadata.get(key) for metadata in self._read(NODES.c.metadata, rows)]
        texts = self._read(sa.cast(NODES.c.metadata[key], sa.Text), rows)
        decoded = {text: None if text is None else json.loads(text) for text in dict.fromkeys(texts)}
        # SQLite writes 15 digits of a number with a point, and such a number for a large one without.
        if self.connection.dialect.name == "sqlite" and any(isinstance(value, float) for value in decoded.values()):
            return [metadata.get(key) for metadata in self._read(NODES.c.metadata, rows)]
        return [decoded[text] for text in texts]

    def _read(self, column: Any, rows: Rows | None) -> list[Any]:
        if rows is None:
            rows = self.rows()
        values = [value for page in self._pages(rows, column) for _, value in page]
        if len(values) < len(rows):
            self.refuse("nodes are lost")
        return values

    def values(self, collection: str, keys: Iterable[str] | None) -> dict[str, Any]:
        """Return values that were kept by key, such as contexts; None asks for all of a collection."""
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
