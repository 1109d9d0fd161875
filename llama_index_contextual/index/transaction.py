"""What is written into the database of an index, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import sqlalchemy as sa
from llama_index.core.utils import iter_batch

from llama_index_contextual.index.snapshot import Snapshot
from llama_index_contextual.index.tables import (
    AT_ONCE,
    CONTEXTS,
    DOCUMENTS,
    NODES,
    PAGE,
    STATE,
    VECTORS,
    DocumentRow,
    NodeRow,
    checksum_of_node,
    name_of_model,
    vector_row,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from llama_index_contextual.index.tables import Floats


_SESSIONS: Final = 32  # that are remembered; an engine that is further behind is derived again


class Transaction(Snapshot):
    """A moment that is being written. Leave it with an error, and nothing of it happened."""

    def __init__(
        self,
        connection: sa.Connection,
        schema: str | None,
        explained: Callable[[], AbstractContextManager[None]],
        session: str,
    ) -> None:
        # First: of a server, other writers wait here until this transaction ends.
        connection.execute(sa.select(STATE.c.value).where(STATE.c.key == "change").with_for_update())
        super().__init__(connection, schema, explained)
        self._session, self._counted = session, False

    def _run(self, statement: sa.Executable, rows: Sequence[dict[str, Any]] | None = None) -> int:
        """Write, and return how many rows that concerned."""
        with self._explained():
            return int(self.connection.execute(statement, rows).rowcount)

    def count_change(self) -> None:
        """Take the next number of change, once: readers look at the nodes again when it grows."""
        if not self._counted:
            self._counted = True
            number, sessions = self.change + 1, self.state.get("sessions", [])
            self.set_state(change=number)
            if self._session not in (session for session, _ in sessions):
                self.set_state(sessions=[*sessions, [self._session, number]][-_SESSIONS:])

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
                fields |= {"document": document, "edition": self.edition, "checksum": checksum_of_node(node)}
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
        name = name_of_model(model)
        for part in iter_batch(vectors.items(), AT_ONCE):
            keys = [key for key, _ in part]
            self._run(sa.delete(VECTORS).where(VECTORS.c.hash.in_(keys), VECTORS.c.model == name))
            values = [vector_row(name, key, np.asarray(vector, "<f4").tobytes()) for key, vector in part]
            self._run(sa.insert(VECTORS), values)

    def copy_vectors(self, rows: Iterable[Sequence[Any]]) -> int:
        """Keep vectors of another database: short name of the model, hash, bytes; those that are there stay.

        Returns:
            How many were given.
        """
        total = 0
        for part in iter_batch(rows, AT_ONCE):
            total += len(part)
            same = VECTORS.c.hash.in_([one[1] for one in part])
            known = {tuple(one) for one in self._fetch(sa.select(VECTORS.c.model, VECTORS.c.hash).where(same))}
            missing = {tuple(one[:2]): vector_row(*one) for one in part if tuple(one[:2]) not in known}
            if missing:
                self._run(sa.insert(VECTORS), [*missing.values()])
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
