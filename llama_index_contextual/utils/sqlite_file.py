"""SQLite files that many threads and processes read and one writes."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from llama_index_contextual.utils.errors import DamagedError, StorageError
from llama_index_contextual.utils.text import absolute_path

_LEAST_FREE: Final = (
    100_000  # bytes; the index of a log has 32 kB, and a question on a full disk does without
)
_BUSY_SECONDS: Final = 30.0  # how long a writer waits for another process
_PRAGMAS: Final = (
    "PRAGMA trusted_schema=OFF",  # the file may be of somebody else
    "PRAGMA cell_size_check=ON",
    "PRAGMA synchronous=FULL",  # on disk at each commit, not at the next checkpoint
)
# Messages of SQLite about a broken file. Other errors are of a full disk, a lock, a permission: the file is sound.
_DAMAGE: Final = (
    *(
        "malformed",
        "not a database",
        "corrupt",
        "no such table",
        "no such column",
        "could not decode",
    ),
    *("constraint failed", "unsupported file format"),
)
_READ_ERRORS: Final = (
    sqlite3.Error,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    RecursionError,
    zlib.error,
)
AMONG: Final = "IN (SELECT value FROM json_each(?))"  # any number of values, as one JSON list
_CURE: Final = "name another file, or delete this one (what it keeps is then paid for again)."


class SqliteFile:
    """A SQLite file in WAL mode: connections for many threads, and errors with a cure.

    It is made at its first write, with its tables. A copy and a pickle are opened again where they are used, and so is
    the file of a forked process.

    Args:
        path: The file. It and its folder are created at the first write.
        cure: The cure of a damaged file.

    Attributes:
        tables: The statements that make its tables.
        layout: Number of these tables, the "user version" of the file: another one is other data.
    """

    tables: ClassVar[str]
    layout: ClassVar[int]

    def __init__(self, path: str | os.PathLike[str], cure: str = _CURE) -> None:
        self.path, self.cure = Path(path), cure
        self.is_checked = False
        self._idle, self._file = list[sqlite3.Connection](), (0, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.cure)

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        try:
            return self.path.stat().st_size > 0
        except OSError as error:  # whoever opens it finds out why that is not possible
            return not isinstance(error, FileNotFoundError | NotADirectoryError)

    @contextlib.contextmanager
    def connection(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection; it is closed where its transaction did not end well.

        Raises:
            DamagedError: The file cannot be read, or has other parts than ours.
            StorageError: It cannot be opened now, or is of a newer version of this package.
        """
        with self.explained():
            opened = self._opened()
            if opened != self._file:
                self.close()
                self._file = opened
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connected(writes=writes)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if connection.in_transaction:
            connection.rollback()
        if opened[1] and opened == self._opened():
            self._idle.append(connection)
        else:
            connection.close()

    def _opened(self) -> tuple[int, int]:
        """This process and the file: neither a fork nor a file that took its place has the connections of the former.

        What nobody may write is opened anew each time, since a connection would not see that another user wrote it.
        """
        try:
            return os.getpid(), self.path.stat().st_ino if is_writable(self.path) else 0
        except OSError:
            return 0, 0

    def _part(self, suffix: str) -> Path:
        return self.path.with_name(f"{self.path.name}{suffix}")

    def _connected(self, *, writes: bool) -> sqlite3.Connection:
        how = "rw"
        if writes and not self.exists:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            how = "rwc"
        elif not (writes or is_writable(self.path)):
            # The log of a writer that was killed is read with its index; without a log nothing can change.
            log = self._part("-wal")
            how = "ro" if log.exists() and log.stat().st_size else "ro&immutable=1"
        address, options = (
            f"{absolute_path(self.path).as_uri()}?mode={how}",
            {"uri": True, "check_same_thread": False},
        )
        connection = sqlite3.connect(
            address, timeout=_BUSY_SECONDS, isolation_level=None, **options
        )
        try:
            for pragma in _PRAGMAS:
                connection.execute(pragma)
            if writes:
                self._make_tables(connection)
            self._check_schema(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        """Make the tables in one transaction without a log: no kill leaves a file that lacks some."""
        connection.execute(
            "PRAGMA page_size=8192"
        )  # of a new file; it holds five vectors of 384 numbers, 4096 two
        connection.execute("BEGIN IMMEDIATE")
        if not _schema_of(connection):
            for statement in self.tables.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={self.layout}")
            self._put_first_rows(connection)
        connection.execute("COMMIT")
        with contextlib.suppress(sqlite3.OperationalError):  # another writer does the same
            connection.execute("PRAGMA journal_mode=WAL")

    def _put_first_rows(self, connection: sqlite3.Connection) -> None:
        """Write what the file has from its first moment on."""

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        """Refuse other parts than ours: a trigger or a view would do what somebody else wants."""
        [[layout]] = connection.execute("PRAGMA user_version")
        if layout > self.layout:
            cure = "Cure: upgrade llama-index-contextual, then start this process again."
            raise StorageError(
                f"{self.path} has layout {layout}, this package reads up to {self.layout}. {cure}"
            )
        ours = {" ".join(statement.split()) for statement in self.tables.split(";")}
        if foreign := sorted(_schema_of(connection) - ours):
            raise ValueError(f"its part {foreign[0][:80]!r} is not ours")
        if layout != self.layout:
            raise ValueError(f"its layout is {layout} instead of {self.layout}")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write in one transaction: all of it is on disk when this ends, or nothing of it is."""
        with self.connection(writes=True) as connection:
            with self.explained():
                connection.execute("BEGIN IMMEDIATE")
            yield connection
            with self.explained():
                connection.commit()

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Rows of a query; none where there is no file, since reading makes none."""
        if not self.exists:
            return []
        with self.connection() as connection, self.explained():
            return connection.execute(query, values).fetchall()

    def set_aside(self) -> Path:
        """Rename a damaged file and its log, and return the new name.

        Raises:
            StorageError: The folder cannot be written.
        """
        self.close()
        with self.explained():
            for suffix in ("-wal", "-shm", ""):
                part, place = self._part(suffix), self._part(f".damaged{suffix}")
                place.unlink(missing_ok=True)
                if part.exists():
                    part.replace(place)
        return self._part(".damaged")

    def check(self) -> None:
        """Read all of the file, once in a process and again once damage was met.

        Raises:
            DamagedError: It is damaged.
        """
        if self.is_checked or not self.exists:
            return
        with self.connection() as connection, self.explained():
            connection.execute("BEGIN")
            [[problem]] = connection.execute("PRAGMA integrity_check(1)")
            if problem != "ok":
                raise ValueError(problem)
            self._check_rows(connection)
        self.is_checked = True

    def _check_rows(self, connection: sqlite3.Connection) -> None:
        """Raise a ValueError for a row that is not as it was written."""

    def close(self) -> None:
        """Close all connections that nobody uses; the next use opens one again."""
        idle, self._idle = self._idle, []
        for connection in idle:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Make an error of SQLite, and of what was read there, one with a cure."""
        try:
            yield
        except DamagedError:
            self.is_checked = False
            raise
        except UnicodeEncodeError:  # of what is to be written
            raise
        except _READ_ERRORS as error:
            problem = str(error)
            if not isinstance(error, sqlite3.Error | OSError) or any(
                sign in problem.lower() for sign in _DAMAGE
            ):
                self.is_checked = False
                raise DamagedError(
                    f"{self.path} is damaged ({problem}). Cure: {self.cure}"
                ) from error
            other = "another program has the database open; close it" if "lock" in problem else ""
            what = f"{self.path} cannot be used now ({problem.strip()}). What was written before is unharmed"
            cure = f"Cure: {other or 'free space, or let this user read and write it'}, then try again."
            raise StorageError(f"{what}. {cure}") from error


def is_writable(path: Path) -> bool:
    """Whether this process may write a file that is there, and the disk has room for what SQLite keeps beside it."""
    may_write = os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)
    return may_write and shutil.disk_usage(path.parent).free > _LEAST_FREE


def _schema_of(connection: sqlite3.Connection) -> set[str]:
    """The SQL of the parts of a file, but for what SQLite makes by itself."""
    rows = connection.execute(
        "SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite@_%' ESCAPE '@'"
    )
    return {" ".join(str(sql).split()) for (sql,) in rows}


def checksum_of(*parts: str | bytes) -> int:
    """Checksum of the values of a row; a SQLite file has none of its own."""
    total = 0
    for part in parts:
        total = zlib.crc32(
            part if isinstance(part, bytes) else f"{part}\0".encode("utf-8", "surrogatepass"), total
        )
    return total
