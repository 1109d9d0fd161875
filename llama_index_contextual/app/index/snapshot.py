"""What is asked of the database of an index, at one moment of it, and what is written there in one transaction."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import sqlalchemy as sa
from llama_index.core.utils import iter_batch

from llama_index_contextual.app.index.state import state_of_rows
from llama_index_contextual.app.index.tables import (
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
    vector_row,
)
from llama_index_contextual.keyword import REF_DOC_ID
from llama_index_contextual.text import storable
from llama_index_contextual.watching import uncollected

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from llama_index_contextual.app.index.tables import Floats, Rows

    Explained = Callable[[], AbstractContextManager[None]]

_NODE_NAMES: Final = ", ".join(column.name for column in NODE_COLUMNS)
_WITH_DOCUMENTS: Final = NODES.join(DOCUMENTS)
_edition: Final = NODES.c.edition + 0  # without the index, by whose order SQLite would read all nodes at random


class Snapshot:
    """One moment of the database. It may be asked by several threads, which take turns.

    Args:
        connection: In a transaction.
        name: Of the database.
        schema: Of the tables, None in SQLite.
        explained: Makes an error of the database, and of what was read there, one of ours.

    Attributes:
        state: What is true of the whole index.
        edition: Which of its editions is read.
        is_shared: Whether other machines may write at the same time.
    """

    def __init__(self, connection: sa.Connection, name: str, schema: str | None, explained: Explained) -> None:
        self.connection = connection
        self._explained = explained
        self._schema, self.is_shared = schema, schema is not None
        self._nodes = self._table("nodes")
        self._lock = threading.Lock()
        rows = self._fetch(f"SELECT key, CAST(value AS TEXT) FROM {self._table('state')}")  # noqa: S608  its own name
        with self._explained():
            self.state = state_of_rows(name, *map(tuple, rows))
        self.edition = self.state.edition

    def _table(self, name: str) -> str:
        return name if self._schema is None else f'"{self._schema}".{name}'

    def _fetch(self, statement: sa.Executable | str) -> list[Any]:
        with self._lock, self._explained():
            if isinstance(statement, str) and not self.is_shared:
                driver: Any = self.connection.connection.driver_connection  # SQLAlchemy doubles the time of a question
                return list(driver.execute(statement).fetchall())
            if isinstance(statement, str):
                return list(self.connection.exec_driver_sql(statement).all())
            return list(self.connection.execute(statement).all())

    def _among(self, wanted: sa.Select[Any], column: Any, values: Iterable[Any]) -> Iterator[Any]:
        """Yield those rows of a query in which a column has one of some values."""
        for part in iter_batch(values, AT_ONCE):
            yield from self._fetch(wanted.where(column.in_(part)))

    def refuse(self, problem: str) -> NoReturn:
        """Say that the database is damaged.

        Raises:
            DamagedError: Always.
        """
        with self._explained():
            raise ValueError(problem)

    def _pages(self, rows: Rows | None, *columns: Any) -> Iterator[list[Any]]:
        """Yield columns of the nodes with some numbers, or of all, in their order, a page at a time."""
        if rows is None:
            rows = self.rows()
        for start in range(0, len(rows), PAGE):
            part = rows[start : start + PAGE]
            wanted = sa.select(NODES.c.id, *columns).order_by(NODES.c.id)
            if len(part) == int(part[-1]) - int(part[0]) + 1 or len(part) > AT_ONCE:
                # Without the edition, for whose sake SQLite would go through all of its nodes for each page.
                wanted = wanted.where(NODES.c.id.between(int(part[0]), int(part[-1])))
                among = set(part.tolist())
                yield [one for one in self._fetch(wanted) if one[0] in among]
            else:
                yield self._fetch(wanted.where(NODES.c.id.in_(part.tolist())))

    # Documents

    def documents(self, keys: Iterable[str] | None = None) -> dict[str, DocumentRow]:
        """Return documents by key, or all of them, those that failed at their first time too."""
        wanted = sa.select(*DOCUMENT_COLUMNS).where(DOCUMENTS.c.edition == self.edition)
        if keys is not None:
            return {one[0]: DocumentRow._make(one) for one in self._among(wanted, DOCUMENTS.c.key, keys)}
        with self._lock, self._explained(), uncollected():
            cursor: Any = self.connection.execute(wanted).cursor  # SQLAlchemy's own rows take as long again
            pages = iter(partial(cursor.fetchmany, PAGE), [])
            return {one[0]: DocumentRow._make(one) for page in pages for one in page}

    def nodes_of(self, keys: Iterable[str]) -> dict[str, list[NodeRow]]:
        """Return the nodes of documents; documents without nodes are absent."""
        results: dict[str, list[NodeRow]] = {}
        nodes = sa.select(DOCUMENTS.c.key, *NODE_COLUMNS).select_from(_WITH_DOCUMENTS).order_by(NODES.c.id)
        wanted = nodes.where(DOCUMENTS.c.edition == self.edition)
        for key, *fields in self._among(wanted, DOCUMENTS.c.key, keys):
            results.setdefault(key, []).append(self._node(*fields))
        return results

    def context_sources(self) -> dict[str, int]:
        """Return how many nodes have a context from each source; "" counts those without."""
        source = NODES.c.context_source
        wanted = sa.select(source, sa.func.count()).where(_edition == self.edition).group_by(source)
        return dict(sorted(map(tuple, self._fetch(wanted))))

    def by_document(self) -> list[tuple[str, str, int, int]]:
        """Return documents by key, a source of contexts, how many nodes have one from there, and the first's number."""
        names = DOCUMENTS.c.key, NODES.c.context_source
        wanted = sa.select(*names, sa.func.count(), sa.func.min(NODES.c.id)).select_from(_WITH_DOCUMENTS)
        return [*map(tuple, self._fetch(wanted.where(_edition == self.edition).group_by(*names)))]

    def miscounted(self) -> list[tuple[str, int, int]]:
        """Return documents by key that have another number of nodes than they should: that number, and how many."""
        count = sa.func.count(NODES.c.id)
        documents = sa.select(DOCUMENTS.c.key, DOCUMENTS.c.nodes, count).select_from(DOCUMENTS.outerjoin(NODES))
        wanted = documents.where(DOCUMENTS.c.edition == self.edition).group_by(DOCUMENTS.c.id)
        return [*map(tuple, self._fetch(wanted.having(count != DOCUMENTS.c.nodes)))]

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
        wanted = sa.select(NODES.c.node_id, NODES.c.id).where(NODES.c.edition == self.edition)
        keepable = (one for one in node_ids if not storable(one)[1])
        return dict(map(tuple, self._among(wanted, NODES.c.node_id, keepable)))

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

    def owners(self, node_ids: Iterable[str]) -> Iterator[tuple[str, int, str]]:
        """Yield those of some node ids that are there, with the number of the node and the key of its document."""
        wanted = sa.select(NODES.c.node_id, NODES.c.id, DOCUMENTS.c.key).select_from(_WITH_DOCUMENTS)
        yield from map(tuple, self._among(wanted.where(NODES.c.edition == self.edition), NODES.c.node_id, node_ids))

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
        rows = self._fetch(wanted) if keys is None else self._among(wanted, CONTEXTS.c.key, keys)
        return dict(map(tuple, rows))

    # Vectors

    def with_vectors(self, model: str, hashes: Iterable[str]) -> set[str]:
        """Return those hashes of embedded texts whose vector is there."""
        wanted = sa.select(VECTORS.c.hash).where(VECTORS.c.model == name_of_model(model))
        return {key for (key,) in self._among(wanted, VECTORS.c.hash, hashes)}

    def vectors_by_hash(self, model: str, hashes: Iterable[str]) -> Iterator[tuple[str, Floats]]:
        """Yield the vectors of embedded texts, by the hash of the text; those that are not known are left out."""
        wanted = sa.select(VECTORS.c.hash, VECTORS.c.vector, VECTORS.c.checksum)
        known = self._among(wanted.where(VECTORS.c.model == name_of_model(model)), VECTORS.c.hash, hashes)
        vectors = ((key, vector_of(blob, checksum)) for key, blob, checksum in known)
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
            .where(_edition == self.edition, VECTORS.c.id.is_(None))
            .order_by(NODES.c.id)
        )
        return [node_id for (node_id,) in self._fetch(wanted)]

    def dimensions(self, model: str) -> int:
        """Return the length of a model's vectors, 0 where there is none yet."""
        wanted = (
            sa.select(VECTORS.c.vector).where(VECTORS.c.model == name_of_model(model)).order_by(VECTORS.c.id).limit(1)
        )
        return next((len(blob) // 4 for (blob,) in self._fetch(wanted)), 0)


class Transaction(Snapshot):
    """A moment that is being written. Leave it with an error, and nothing of it happened."""

    def __init__(self, connection: sa.Connection, name: str, schema: str | None, explained: Explained) -> None:
        # First: of a server, other writers wait here until this transaction ends.
        connection.execute(sa.select(STATE.c.value).where(STATE.c.key == "change").with_for_update())
        super().__init__(connection, name, schema, explained)
        self._counted = False

    def _run(self, statement: sa.Executable, rows: Sequence[dict[str, Any]] | None = None) -> int:
        """Write, and return how many rows that concerned."""
        with self._explained():
            return int(self.connection.execute(statement, rows).rowcount)

    def count_change(self) -> None:
        """Take the next number of change, once: readers look at the nodes again when it grows."""
        if not self._counted:
            self._counted = True
            self.set_state(change=max(self.state.change + 1, time.time_ns()))

    def set_state(self, **values: Any) -> None:
        """Write what is true of the whole index."""
        for key, value in values.items():
            # Changed in place: other writers wait for this row.
            if not self._run(sa.update(STATE).where(STATE.c.key == key).values(value=value)):
                self._run(sa.insert(STATE), [{"key": key, "value": value}])
        self.state = replace(self.state, **values)

    def put_documents(self, documents: Iterable[DocumentRow]) -> dict[str, int]:
        """Write documents, new or known, and return their numbers by key. Their nodes stay."""
        self.count_change()
        rows = {one.key: {**one._asdict(), "edition": self.edition} for one in documents}
        known = self._numbers(rows)
        if changed := [{**row, "number": known[key]} for key, row in rows.items() if key in known]:
            change = sa.update(DOCUMENTS).where(DOCUMENTS.c.id == sa.bindparam("number"))
            names: dict[str, Any] = {name: sa.bindparam(name) for name in DocumentRow._fields if name != "key"}
            self._run(change.values(**names), changed)
        if fresh := [row for key, row in rows.items() if key not in known]:
            self._run(sa.insert(DOCUMENTS), fresh)
            known |= self._numbers(rows.keys() - known.keys())
        return known

    def _numbers(self, keys: Iterable[str]) -> dict[str, int]:
        wanted = sa.select(DOCUMENTS.c.key, DOCUMENTS.c.id).where(DOCUMENTS.c.edition == self.edition)
        return dict(map(tuple, self._among(wanted, DOCUMENTS.c.key, keys)))

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
        number = self.state.change
        for part in iter_batch(nodes, PAGE):
            self._run(sa.insert(NODES), [self._values_of(number + at, *one) for at, one in enumerate(part, start=1)])
            number += len(part)
        self.set_state(change=number)

    def _values_of(self, number: int, document: int, node: NodeRow) -> dict[str, Any]:
        fields = {name: value for name, value in node._asdict().items() if name != "row"} | {"id": number}
        checksum = checksum_of(node.node_id, node.text, node.metadata, node.rest, node.embed_hash)
        return {**fields, "document": document, "edition": self.edition, "checksum": checksum}

    def delete_nodes(self, rows: Iterable[int]) -> None:
        """Delete nodes by number."""
        for part in iter_batch(rows, AT_ONCE):
            self.count_change()
            self._run(sa.delete(NODES).where(NODES.c.id.in_(part)))

    def put_vectors(self, vectors: Iterable[tuple[Any, ...]]) -> int:
        """Keep vectors, each with the short name of its model and the hash of its text; return how many.

        One that is there already is replaced.
        """
        total = 0
        for part in iter_batch(vectors, AT_ONCE):
            rows = {one[:2]: vector_row(*one) for one in part}
            for model in {model for model, _ in rows}:
                hashes = [key for its_model, key in rows if its_model == model]
                self._run(sa.delete(VECTORS).where(VECTORS.c.hash.in_(hashes), VECTORS.c.model == model))
            self._run(sa.insert(VECTORS), [*rows.values()])
            total += len(part)
        return total

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
