"""A SQLite file that many threads and processes read and one writes, opened also where it can only be read."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llama_index_contextual.errors import DamagedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

AT_ONCE: Final = 500  # values of one statement: SQLite before 3.32 takes 999
_BUSY_SECONDS: Final = 30.0  # how long a writer waits for another one
_BARE: Final = 8192  # bytes of a file without tables
_PRAGMAS: Final = (
    "PRAGMA trusted_schema=OFF",  # the file may be of somebody else
    "PRAGMA cell_size_check=ON",
    "PRAGMA synchronous=FULL",  # on disk at each commit, not at the next checkpoint
)
# What SQLite says of a broken file. Other errors are of a full disk, a lock, a permission: the file is sound.
_DAMAGE: Final = (
    *("malformed", "not a database", "corrupt", "no such table", "no such column", "could not decode"),
    *("constraint failed", "unsupported file format"),
)


class SqliteFile:
    """A SQLite file in WAL mode: connections for many threads, and errors with a cure.

    Args:
        file: The file; made at the first write.
        tables: The statements that make its tables.
        cure: What a reader of a damaged file can do.
    """

    def __init__(self, file: Path, tables: str, cure: str) -> None:
        self.file, self._tables, self.cure = file, tables, cure
        self._guard = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._opened: object = None
        self._is_checked = False

    def __deepcopy__(self, memo: object) -> SqliteFile:
        return self

    @property
    def name(self) -> str:
        """The file, as messages name it."""
        return str(self.file)

    @property
    def exists(self) -> bool:
        """Whether there is a file with tables; a kill may have come before these were made."""
        try:
            if self.file.stat().st_size > _BARE:
                return True
            if not self.file.is_file():
                return False
            with contextlib.suppress(StorageError), self.connection() as connection:
                return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            pass
        return True  # whoever opens it finds out why that is not possible

    @contextlib.contextmanager
    def connection(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """Lend a connection; it is closed where its transaction did not end well.

        Raises:
            DamagedError: The file cannot be read.
            StorageError: It cannot be opened now.
        """
        with self.explained():
            connection = self._taken() or self._connected(create=create)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if connection.in_transaction:
            connection.rollback()
        with self._guard:
            if self._opened == self._moment():
                self._idle.append(connection)
                return
        connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write in one transaction: all of it is on disk when this ends, or nothing of it is."""
        with self.connection(create=True) as connection:
            with self.explained():
                connection.execute("BEGIN IMMEDIATE")
            yield connection
            with self.explained():
                connection.commit()

    def create(self) -> None:
        """Make the tables where the file has none.

        Raises:
            StorageError: That is not possible.
        """
        if self.exists:
            return
        with self.connection(create=True) as connection, self.explained():
            for pragma in ("PRAGMA page_size=8192", "PRAGMA journal_mode=WAL"):  # 8192: five vectors of 384 numbers
                connection.execute(pragma)
            connection.execute("BEGIN IMMEDIATE")
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in filter(str.strip, self._tables.split(";")):
                    connection.execute(statement)
                self._fill(connection)
            connection.commit()

    def _fill(self, connection: sqlite3.Connection) -> None:
        """Write what a new file holds."""

    def set_aside(self) -> Path:
        """Rename a damaged file and its log, and return the new name.

        Raises:
            StorageError: The folder cannot be written.
        """
        self.close()
        aside = self.file.with_name(f"{self.file.name}.damaged")
        try:
            for suffix in ("-wal", "-shm", ""):
                part = self.file.with_name(self.file.name + suffix)
                aside.with_name(aside.name + suffix).unlink(missing_ok=True)
                if part.exists():
                    part.replace(aside.with_name(aside.name + suffix))
        except OSError as error:
            raise StorageError(
                f"{self.name} is damaged and cannot be set aside ({error}). Cure: make the folder writable."
            ) from error
        return aside

    def remove(self) -> None:
        """Delete the file and its log."""
        self.close()
        for suffix in ("-wal", "-shm", ""):
            self.file.with_name(self.file.name + suffix).unlink(missing_ok=True)

    def check(self) -> bool:
        """Read all of the file once in a process, and again once damage was met; return whether it was read.

        Raises:
            DamagedError: It is damaged.
        """
        if self._is_checked or not self.exists:
            return False
        with self.connection() as connection, self.explained():
            connection.execute("BEGIN")
            [[problem]] = connection.execute("PRAGMA integrity_check(1)")
            if problem != "ok":
                raise ValueError(problem)
            self._check_rows(connection)
        self._is_checked = True
        return True

    def _check_rows(self, connection: sqlite3.Connection) -> None:
        """Read all rows.

        Raises:
            ValueError: One is not as it was written.
        """

    def close(self) -> None:
        """Close all connections that nobody uses; the next use opens one again."""
        with self._guard:
            idle, self._idle, self._opened = self._idle, [], None
            self._is_checked = False
        for connection in idle:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Make an error of SQLite, and of what was read there, one with a cure."""
        try:
            yield
        except DamagedError:
            self._is_checked = False
            raise
        except UnicodeEncodeError:  # of what is to be written
            raise
        except (sqlite3.Error, ValueError, TypeError, RecursionError) as error:
            problem = str(error)
            unreadable = isinstance(error, (ValueError, TypeError, RecursionError))
            if unreadable or any(sign in problem.lower() for sign in _DAMAGE):
                self._is_checked = False
                raise DamagedError(f"{self.name} is damaged ({problem}). Cure: {self.cure}") from error
            raise StorageError(
                f"{self.name} cannot be used now ({problem.strip()}). What was indexed before is unharmed. "
                "Cure: free space or make the folder writable, then try again."
            ) from error

    def _moment(self) -> object:
        """What tells the file from another one that took its place, and this process from one that was forked."""
        log = self.file.with_name(f"{self.file.name}-wal")
        try:
            if is_writable(self.file):
                return os.getpid(), self.file.stat().st_ino
            files = [one.stat() for one in (self.file, log) if one.exists()]
            return os.getpid(), [(one.st_ino, one.st_mtime_ns, one.st_size) for one in files]
        except OSError:
            return os.getpid(), 0

    def _taken(self) -> sqlite3.Connection | None:
        moment = self._moment()
        with self._guard:
            if self._opened != moment:
                self._idle, self._opened = [], moment  # those of another process are not closed
            return self._idle.pop() if self._idle else None

    def _connected(self, *, create: bool) -> sqlite3.Connection:
        address, log = self.file.resolve().as_uri(), self.file.with_name(f"{self.file.name}-wal")
        if create:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        elif not is_writable(self.file):
            # The log of a writer that was killed is read with its index; without a log nothing can change.
            has_log = log.exists() and log.stat().st_size
            address += "?mode=ro" if has_log else "?mode=ro&immutable=1"
        connection = sqlite3.connect(
            address, uri=True, timeout=_BUSY_SECONDS, check_same_thread=False, isolation_level=None
        )
        try:
            for pragma in _PRAGMAS:
                connection.execute(pragma)
            self._refuse_strange(connection)
        except BaseException:
            connection.close()
            raise
        with self._guard:
            self._opened = self._moment()
        return connection

    def _refuse_strange(self, connection: sqlite3.Connection) -> None:
        """Refuse a file with triggers, views or tables that are not ours: they would do what somebody else wants.

        Raises:
            DamagedError: It has one.
        """
        present, ours = _schema_of(connection), schema_of_tables(self._tables)
        self._check_layout(connection, present)
        if strange := sorted(part for part, sql in present.items() if ours.get(part) != sql):
            raise DamagedError(f"{self.name} is damaged (its part {strange[0][:80]!r} is not ours). Cure: {self.cure}")

    def _check_layout(self, connection: sqlite3.Connection, present: Mapping[str, str]) -> None:
        """Refuse tables of another layout."""


def is_writable(file: Path) -> bool:
    """Whether this process may write a file, or make it."""
    return os.access(file.parent, os.W_OK) and (not file.exists() or os.access(file, os.W_OK))


def _schema_of(connection: sqlite3.Connection) -> dict[str, str]:
    """What a SQLite file is made of, by name, but for what SQLite makes by itself."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite@_%' ESCAPE '@'")
    return {str(name): " ".join(str(sql).split()) for name, sql in rows}


@cache
def schema_of_tables(tables: str) -> dict[str, str]:
    """What a file is made of that has some tables, by name."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(tables)
        return _schema_of(connection)
