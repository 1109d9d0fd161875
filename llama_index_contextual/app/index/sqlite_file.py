"""The database of an index as a SQLite file: opened, also where it can only be read, and checked."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from llama_index_contextual.app.index.tables import (
    TABLES,
    check_layout,
    checksum_of,
    vector_of,
)
from llama_index_contextual.errors import DamagedError, StorageError

logger = logging.getLogger(__name__)

_BUSY_SECONDS: Final = 30.0  # how long a writer waits for another one
_PRAGMAS: Final = (
    "PRAGMA trusted_schema=OFF",  # the file may be a stranger's
    "PRAGMA cell_size_check=ON",
    "PRAGMA synchronous=FULL",  # on disk at each commit, not at the next checkpoint
)
_TRIES: Final = 3
# What a file never has: of whole rows that went, or of numbers that are others, SQLite says nothing.
_NEVER: Final = {
    "SELECT 1 FROM documents WHERE nodes != (SELECT count(*) FROM nodes WHERE document = documents.id)": "nodes went",
    "SELECT 1 FROM nodes WHERE document NOT IN (SELECT id FROM documents)": "documents are lost",
    "SELECT 1 FROM documents WHERE edition NOT BETWEEN ? AND ? + 1": "it has no such edition",
    "SELECT 1 FROM documents WHERE kind NOT IN ('file', 'document')": "a document is of no kind",
}


def open_file(file: Path, cure: str, *, create: bool) -> tuple[sa.Engine, tempfile.TemporaryDirectory[str] | None]:
    """Return what opens connections to a file, and the copy that is read where the file itself cannot be.

    Args:
        file: It is made where a connection finds none and ``create`` allows it.
        cure: What a reader of a damaged file is told to do.
        create: Whether it is to be written.
    """
    name, copy, query = str(file), None, ""
    if create:
        file.parent.mkdir(parents=True, exist_ok=True)
    elif not is_writable(file):
        copy = _copied(file) if log_of(file).exists() and log_of(file).stat().st_size else None
        file = file if copy is None else Path(copy.name) / file.name
        query = "" if copy is not None else "?mode=ro&immutable=1"
    address = f"{file.resolve().as_uri()}{query}"
    arguments: dict[str, Any] = {"uri": True, "timeout": _BUSY_SECONDS, "check_same_thread": False}
    engine = sa.create_engine(
        "sqlite+pysqlite://",
        creator=lambda: sqlite3.connect(address, isolation_level=None, **arguments),
        poolclass=sa.QueuePool,
        max_overflow=-1,  # as many as there are threads that ask
    )

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _: object) -> None:
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        _refuse_strange(connection, name, cure)

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")

    return engine, copy


def _refuse_strange(connection: sqlite3.Connection, name: str, cure: str) -> None:
    """Refuse a file with triggers, views or tables that are not ours: they would do what a stranger wants.

    Raises:
        DamagedError: It has one.
        StorageError: A newer version of this package made it.
    """
    present, ours = _schema_of(connection), _our_schema()
    if ours["state"] == present.get("state"):  # a newer layout may have what this version does not know
        [layout] = connection.execute("SELECT max(value) FROM state WHERE key = 'layout'").fetchone()
        check_layout(layout, name)
    strange = sorted(part for part, sql in present.items() if ours.get(part) != sql)
    if strange:
        raise DamagedError(f"{name} is damaged (its part {strange[0][:80]!r} is not ours). Cure: {cure}")


def _schema_of(connection: sqlite3.Connection) -> dict[str, str]:
    """Return what a SQLite file is made of, by name, but for what SQLite makes by itself."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite@_%' ESCAPE '@'")
    return {str(name): " ".join(str(sql).split()) for name, sql in rows}


@cache
def _our_schema() -> dict[str, str]:
    engine = sa.create_engine("sqlite+pysqlite://", poolclass=sa.StaticPool)
    with engine.begin() as connection:
        TABLES.create_all(connection)
        raw = connection.connection.driver_connection
        schema = _schema_of(raw) if isinstance(raw, sqlite3.Connection) else {}
    engine.dispose()
    return schema


def moment_of(file: Path) -> object:
    """Return what tells a file from another one that took its place; where it is only read, also that it changed."""
    files = [one for one in (file, log_of(file)) if one.exists()]
    try:
        if is_writable(file):
            return file.stat().st_ino if files else 0
        return [(one.stat().st_ino, one.stat().st_mtime_ns, one.stat().st_size) for one in files]
    except OSError:
        return 0


def log_of(file: Path) -> Path:
    """Return where SQLite keeps what is not yet in the file."""
    return file.with_name(f"{file.name}-wal")


def is_writable(file: Path) -> bool:
    """Return whether this process may write a file, or make it."""
    return os.access(file.parent, os.W_OK) and (not file.exists() or os.access(file, os.W_OK))


def _copied(file: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a copy of a file whose log cannot be read where it is, because the folder cannot be written.

    Raises:
        StorageError: There is no room for it.
    """
    copy = tempfile.TemporaryDirectory(prefix="llama-index-contextual-", ignore_cleanup_errors=True)
    try:
        for _ in range(_TRIES):  # another user, who may write, may do so now
            before = [one.stat() for one in (file, log_of(file))]
            for one in (file, log_of(file)):
                shutil.copyfile(one, Path(copy.name) / one.name)
            if [one.stat().st_mtime_ns for one in (file, log_of(file))] == [one.st_mtime_ns for one in before]:
                break
    except OSError as error:
        copy.cleanup()
        raise StorageError(
            f"{file} has a log that is read only where its folder can be written, and cannot be copied to {copy.name} "
            f"({error}). Cure: make one of them writable, or name a folder with room in TMPDIR."
        ) from error
    return copy


def check_content(connection: sa.Connection, edition: int, *, complete: bool) -> None:
    """Read all of a file: pages, nodes and vectors.

    Args:
        connection: In a transaction.
        edition: That readers see.
        complete: Whether no refresh is at work, or was killed.

    Raises:
        ValueError: Something is not as it was written.
    """
    database: Any = connection.connection.driver_connection  # SQLAlchemy would take a fifth of the time for its rows
    [[problem]] = database.execute("PRAGMA integrity_check(1)")
    if problem != "ok":
        raise ValueError(problem)
    nodes = database.execute("SELECT node_id, text, metadata, rest, embed_hash, checksum FROM nodes")
    for node_id, text, metadata, rest, embed_hash, checksum in nodes:
        if checksum_of(node_id, text, metadata, rest, embed_hash) != checksum:
            raise ValueError(f"chunk {node_id!r} has another checksum")
    for stored in database.execute("SELECT vector, checksum FROM vectors"):
        if vector_of(*stored) is None:
            raise ValueError("a vector has another checksum")
    for query, problem in _NEVER.items() if complete else ():
        if database.execute(query, (edition,) * query.count("?")).fetchone():
            raise ValueError(problem)
