"""What can still be read of a damaged database, or of an index of an earlier layout, goes into a new one.

Nothing that was embedded or paid for is so done twice. Files are indexed again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sqlite3
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.utils import iter_batch

from llama_index_contextual.app.index.state import state_of
from llama_index_contextual.app.index.tables import (
    CONTEXTS,
    DOCUMENTS,
    LAYOUT,
    NODE_COLUMNS,
    NODES,
    PAGE,
    STATE,
    VECTORS,
    DocumentRow,
    NodeRow,
    fault_of,
    name_of_model,
    node_of,
    vector_of,
)
from llama_index_contextual.errors import StorageError
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import sqlalchemy as sa

    from llama_index_contextual.app.index.database import Database
    from llama_index_contextual.app.index.snapshot import Transaction

logger = logging.getLogger(__name__)

# What an index of an earlier layout left in its folder. Only its cache is read.
_FORMER_CACHES: Final = ("cache.sqlite3", "vectors.sqlite3", "contexts.sqlite3")
_FORMER: Final = (
    "manifest.json",
    "building.json",
    "moving.json",
    "generation",
    "chroma.lock",
    "bm25",
    "matrix",
    "chroma",
)
_KEPT_STATE: Final = ("settings", "choices", "objects", "folder")
_DOCUMENT_TYPES: Final = (int, int, *map(type, DocumentRow("")))  # of number, edition, and the rest
_DAMAGE: Final = (sqlite3.Error, UnicodeDecodeError, OverflowError)  # SQLite may quote damaged bytes in an error


def is_former(folder: Path) -> bool:
    """Return whether a storage folder has an index of an earlier layout."""
    return (folder / _FORMER[0]).is_file()


def salvage(database: Database) -> None:
    """Put a new SQLite file, with what can still be read of a damaged one, in its place, and set that one aside.

    A kill in between costs nothing: until the new file is whole the damaged one stays where it is.

    Raises:
        StorageError: The folder cannot be written.
    """
    file = database.file
    if file is None:
        raise StorageError(f"{database.name} cannot be read. Cure: restore the server's data.")
    database.close()
    fresh, aside = _fresh(file), file.with_name(f"{file.name}.damaged")
    try:
        _remove(fresh)
        told = _salvaged(file, database.beside(fresh))
        _remove(aside)
        for suffix in ("", "-wal", "-shm"):
            part = file.with_name(file.name + suffix)
            if part.exists():
                part.replace(file.with_name(f"{aside.name}{suffix}"))
        fresh.replace(file)
    except OSError as error:
        raise StorageError(f"{file} is damaged and cannot be set aside ({error}). Cure: make it writable.") from error
    logger.warning("%s was damaged or of an earlier layout, and is set aside as %s. %s", file, aside.name, told)


def finish_salvage(database: Database) -> None:
    """Put a salvaged file in its place where a kill came before that."""
    if database.file is not None and not database.file.exists() and _fresh(database.file).exists():
        _fresh(database.file).replace(database.file)


def _fresh(file: Path) -> Path:
    return file.with_name(f"{file.name}.salvaged")


def _remove(file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)


def _salvaged(file: Path, target: Database) -> str:
    """Make a database of what can be read of a file, and return what became of it."""
    target.create()
    state = readable_state(file)
    edition = state.pop("edition", 0)
    with _opened(file) as old, target.writing() as new:
        new.set_state(**state, complete=False)  # texts whose vector is lost are embedded again
        rows = _read(old, VECTORS, "model", "hash", "vector", "checksum")
        vectors = new.put_vectors(one[:3] for one in rows if _is_vector(*one[1:3]) and vector_of(*one[2:]) is not None)
        contexts = _copy_contexts(old, new)
        lost = _copy_given(old, new, edition)
    target.close()
    told = f"{counted(vectors, 'vector')} and {counted(contexts, 'context')} were taken over; files are indexed again."
    if not state.get("choices"):
        told += " The settings that made it are lost. Cure: give those again that are not the usual ones."
    if lost:
        told += f" These documents were given by hand and have to be given again: {', '.join(lost)}."
    return told


def readable_state(file: Path) -> dict[str, Any]:
    """Return what can be read of the state of a damaged file: its settings, and which edition readers saw.

    Of an earlier layout what the user asked for is left out: it was kept otherwise.
    """
    with _opened(file) as old:
        read = {str(key): value for key, value in map(_plain, _read(old, STATE, "key", "value"))}
    sound = {}
    kept = {*_KEPT_STATE, "edition"} if read.get("layout") == LAYOUT else {"settings", "folder", "edition"}
    for key in kept & read.keys():
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            state_of({key: read[key]})
            sound[key] = read[key]
    return sound


def take_over_former(folder: Path, database: Database) -> None:
    """Take over the vectors and contexts of an index of an earlier layout, then delete what is left of it."""
    vectors = contexts = 0
    for name in _FORMER_CACHES:
        if (folder / name).is_file():
            with _opened(folder / name) as old, database.writing() as new:
                rows = _read(old, "vectors", "model", "hash", "vector")
                vectors += new.put_vectors(
                    (name_of_model(str(one[0])), *one[1:]) for one in rows if _is_vector(*one[1:])
                )
                contexts += _copy_contexts(old, new, "kv")
    for name in (*_FORMER[1:], *_FORMER_CACHES, *(f"{one}{end}" for one in _FORMER_CACHES for end in ("-wal", "-shm"))):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).unlink(missing_ok=True) if not (folder / name).is_dir() else None
    (folder / _FORMER[0]).unlink(missing_ok=True)  # last: a kill before it leaves an index of the earlier layout
    logger.warning(
        "The index in %s was of an earlier layout and is made anew. %s and %s were taken over.",
        folder,
        counted(vectors, "vector"),
        counted(contexts, "context"),
    )


def _opened(path: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True))


def _read(old: sqlite3.Connection, table: sa.Table | str, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table that can be read: of a damaged page only its own rows are lost."""
    names, bounds = ", ".join(columns), (0, 0)
    try:
        bounds = old.execute(f"SELECT min(rowid), max(rowid) FROM {table}").fetchone()  # noqa: S608  our own names
    except _DAMAGE:
        with contextlib.suppress(*_DAMAGE):  # a table without numbers: as far as it goes
            yield from old.execute(f"SELECT {names} FROM {table}")  # noqa: S608
        return
    if bounds[0] is None:
        return
    parts = [(start, min(start + PAGE, bounds[1] + 1)) for start in range(bounds[0], bounds[1] + 1, PAGE)]
    while parts:
        start, stop = parts.pop(0)
        try:
            query = f"SELECT {names} FROM {table} WHERE rowid >= ? AND rowid < ?"  # noqa: S608
            yield from old.execute(query, (start, stop)).fetchall()
        except _DAMAGE:
            half = (start + stop) // 2
            if stop - start > 1:
                parts[:0] = [(start, half), (half, stop)]


def _plain(row: Sequence[Any]) -> list[Any]:
    """Return a row whose last value was JSON; SQLite makes a number of one that looks like a number."""
    with contextlib.suppress(ValueError):
        return [*row[:-1], json.loads(row[-1]) if isinstance(row[-1], str) else row[-1]]
    return [*row[:-1], None]


def _is_vector(key: object, blob: object) -> bool:
    if not isinstance(key, str) or not isinstance(blob, bytes) or not blob or len(blob) % 4:
        return False
    return fault_of(np.frombuffer(blob, "<f4")) is None


def _copy_contexts(old: sqlite3.Connection, new: Transaction, table: str = CONTEXTS.name) -> int:
    total = 0
    for part in iter_batch(_read(old, table, "collection", "key", "value"), PAGE):
        total += len(part)
        collections: dict[str, dict[str, Any]] = {}
        for collection, key, value in map(_plain, part):
            if value is not None:
                collections.setdefault(str(collection), {})[str(key)] = value
        for collection, values in collections.items():
            new.put_values(collection, values)
    return total


def _copy_given(old: sqlite3.Connection, new: Transaction, edition: int) -> list[str]:
    """Copy documents that were given by hand and can be read whole; return the keys of the others."""
    sound: list[tuple[int, int, DocumentRow]] = []
    lost: list[str] = []
    for number, its, *values in _read(old, DOCUMENTS, "id", "edition", *DocumentRow._fields):
        row = DocumentRow._make(values)
        if (type(number), type(its), *map(type, row)) == _DOCUMENT_TYPES:  # SQLite reads what damaged bytes say
            sound.append((number, its, row))
        elif isinstance(row.key, str) and row.kind != "file":
            lost.append(row.key)
    if edition not in (its for _, its, _ in sound):
        edition = min((its for _, its, _ in sound), default=0)
    by_hand = {
        number: row._replace(kind="document") for number, its, row in sound if its == edition and row.kind != "file"
    }
    nodes: dict[int, list[NodeRow]] = {}
    names = [column.name for column in NODE_COLUMNS]
    for document, *values in _read(old, NODES, "document", *names) if by_hand else ():
        if document in by_hand:
            with contextlib.suppress(ValueError, TypeError):
                nodes.setdefault(document, []).append(node_of(*values))
    for number, document in by_hand.items():
        chunks = nodes.get(number, [])
        if len(chunks) == document.nodes:
            key = new.put_documents([document])[document.key]
            new.put_nodes((key, chunk) for chunk in chunks)
        else:
            lost.append(document.key)
    return sorted(lost)
