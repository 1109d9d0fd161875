"""SQLite files with many concurrent readers and one writer at a time.

A file can come from somebody else, so files beside it are not trusted. When SQLite opens a file, it
plays back its rollback journal, which can name any other file for deletion. Our files are in WAL
mode from the start and never have a rollback journal. A file that has one is therefore refused
before SQLite opens it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
import uuid
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from llama_index_contextual.utils.errors import DamagedError, StorageError
from llama_index_contextual.utils.text import absolute_path

_MIN_FREE_BYTES = 100_000  # the index of the log alone takes 32 kB
_MIN_FREE_FILES = 2  # the log and its index
_BUSY_SECONDS = 30.0  # that a writer waits for another process
_PAGE_BYTES = 8192  # fits five vectors of 384 numbers, where 4096 bytes fit only two
_PRAGMAS = (
    "PRAGMA trusted_schema=OFF",
    "PRAGMA cell_size_check=ON",
    "PRAGMA synchronous=FULL",  # on disk at each commit, not at the next checkpoint
)
# Parts of SQLite's messages about damaged files. Its other errors are about a full disk, a lock or
# permissions.
_SIGNS_OF_DAMAGE = (
    "malformed",
    "not a database",
    "corrupt",
    "no such table",
    "no such column",
    "could not decode",
    "constraint failed",
    "unsupported file format",
)
_READ_ERRORS = (
    sqlite3.Error,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    RecursionError,
    zlib.error,
)
AMONG = "IN (SELECT value FROM json_each(?))"  # any number of values, as one JSON list
_FIX = "Use another file, or delete this one (its contents must then be paid for again)."


class _Opened(NamedTuple):
    """The process and the file that a connection belongs to.

    They change after a fork or when the file is replaced.
    """

    process: int = 0
    file: int = 0


class SqliteFile:
    """A SQLite file in WAL mode, with connections for many threads and helpful errors.

    The file is created by the first write. Copies and pickles of this object open the file again,
    and so do forked processes.

    Args:
        path: The file.
        fix: A sentence that says what to do about a damaged file.

    Attributes:
        tables: The statements that create the tables, separated by semicolons.
        layout: The version of the tables, which the file stores as its user version.
        mode: The permissions of a new file, before the user's umask.
    """

    tables: ClassVar[str]
    layout: ClassVar[int]
    mode: ClassVar[int] = 0o666

    def __init__(self, path: str | os.PathLike[str], fix: str = _FIX) -> None:
        self.path = Path(path)
        self.fix = fix
        self.is_checked = False
        self._idle: list[sqlite3.Connection] = []
        self._opened = _Opened()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.fix)

    @property
    def exists(self) -> bool:
        """Return whether there is a file with content."""
        try:
            return self.path.stat().st_size > 0
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # opening the file will report the reason
            return True

    # Connections

    @contextlib.contextmanager
    def connection(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        """Lend a connection. It is closed if the ``with`` block fails.

        Raises:
            DamagedError: The file cannot be read, or contains other tables than this package makes.
            StorageError: The file cannot be opened now, or was made by a newer version of this
                package.
        """
        with self.explained():
            opened = self._current_file()
            if opened != self._opened:
                self._opened = opened
                self.close()
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect(writes=writes)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if connection.in_transaction:
            connection.rollback()
        if opened.file and opened == self._opened:
            self._idle.append(connection)
        else:
            connection.close()

    def _current_file(self) -> _Opened:
        """Return the process and the file. Connections to file 0 are never reused.

        File 0 means that this process cannot write the file. A connection to it would not see the
        changes of other processes.
        """
        try:
            file = self.path.stat().st_ino if is_writable(self.path) else 0
        except OSError:
            return _Opened()
        return _Opened(os.getpid(), file)

    def _connect(self, *, writes: bool) -> sqlite3.Connection:
        path = absolute_path(self.path)
        refuse_foreign_files(path)
        if writes and not self.exists:
            self._create(path)
        mode = "rw"
        if not writes and not is_writable(path):
            # The log of a writer that was killed must be read, too. Without a log, nothing can
            # change.
            log = _beside(path, "-wal")
            has_log = log.exists() and log.stat().st_size
            mode = "ro" if has_log else "ro&immutable=1"
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}",
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            for pragma in _PRAGMAS:
                connection.execute(pragma)
            self._check_schema(connection)
            if mode == "rw":
                _check_journal_mode(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _create(self, path: Path) -> None:
        """Create the file with its tables.

        It is created under another name first, so that a kill leaves a whole file or none.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beside(path, f".{uuid.uuid4().hex}.new")
        try:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, self.mode))
            with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode=OFF")
                connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
                for statement in self.tables.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={self.layout}")
                self._put_first_rows(connection)
                connection.execute("PRAGMA journal_mode=WAL")
            if path.exists() and not self.exists:  # an empty file
                path.unlink()
            try:
                os.link(temporary, path)
            except FileExistsError:  # another process has just created it
                pass
            except OSError:  # a file system without hard links
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _put_first_rows(self, connection: sqlite3.Connection) -> None:
        """Write the rows that a new file starts with."""

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        """Refuse foreign tables, because triggers and views would run somebody else's SQL.

        Raises:
            StorageError: The file was made by a newer version of this package.
            DamagedError: It was made by an older version.
            ValueError: The file contains an unexpected table, index, trigger or view.
        """
        [[layout]] = connection.execute("PRAGMA user_version")
        if layout > self.layout:
            raise StorageError(
                f"{self.path} has layout {layout}, but this package reads up to {self.layout}. "
                "Upgrade llama-index-contextual, then start this process again."
            )
        if 0 < layout < self.layout:  # files of other programs usually have 0
            raise DamagedError(
                f"{self.path} was made by an older version of this package (layout {layout} "
                f"instead of {self.layout}). {self.fix}"
            )
        expected = {_on_one_line(statement) for statement in self.tables.split(";")}
        parts = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        for kind, name, sql in parts:
            is_made_by_sqlite = kind == "index" and sql is None
            if not is_made_by_sqlite and _on_one_line(str(sql)) not in expected:
                raise ValueError(f"it has an unexpected {kind} {name!r}")
        if layout != self.layout:
            raise ValueError(f"its layout is {layout} instead of {self.layout}")

    def close(self) -> None:
        """Close all idle connections. The next use opens a new one."""
        idle = self._idle
        self._idle = []
        for connection in idle:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    # Reading and writing

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write in one transaction. At its end, either everything is on disk or nothing."""
        with self.connection(writes=True) as connection:
            with self.explained():
                connection.execute("BEGIN IMMEDIATE")
            yield connection
            with self.explained():
                connection.commit()

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query, or an empty list if the file does not exist."""
        if not self.exists:
            return []
        with self.connection() as connection, self.explained():
            return connection.execute(query, values).fetchall()

    def check(self) -> None:
        """Check the whole file for damage, once per process and again after each damage.

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
        """Raise a ValueError for a row that was changed since it was written."""

    def set_aside(self) -> Path:
        """Rename a damaged file with its log, and return the new path.

        Raises:
            StorageError: The folder cannot be written.
        """
        self.close()
        with self.explained():
            for suffix in ("-wal", "-shm", ""):
                part = _beside(self.path, suffix)
                target = _beside(self.path, f".damaged{suffix}")
                target.unlink(missing_ok=True)
                if part.exists():
                    part.replace(target)
        return _beside(self.path, ".damaged")

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn errors of SQLite or its data into errors that say what to do.

        Raises:
            DamagedError: The file is damaged.
            StorageError: The file is intact but cannot be used now.
        """
        try:
            yield
        except DamagedError:
            self.is_checked = False
            raise
        except UnicodeEncodeError:  # from a text to write, not from the file
            raise
        except _READ_ERRORS as error:
            problem = str(error).strip()
            is_of_content = not isinstance(error, sqlite3.Error | OSError)
            if is_of_content or any(sign in problem.lower() for sign in _SIGNS_OF_DAMAGE):
                self.is_checked = False
                raise DamagedError(f"{self.path} is damaged ({problem}). {self.fix}") from error
            fix = "Free space, or let this user read and write it"
            if "lock" in problem:
                fix = "Close the other program that has it open"
            raise StorageError(
                f"{self.path} cannot be used now ({problem}). Its earlier contents are unharmed. "
                f"{fix}, then try again."
            ) from error


def refuse_foreign_files(path: Path) -> None:
    """Refuse a SQLite file if the files beside it could harm the user.

    SQLite deletes the file that a rollback journal names. If the log is a link, SQLite overwrites
    the file that it points to.

    Raises:
        StorageError: There is a rollback journal, or the file or its log is not a regular file.
    """
    journal = _beside(path, "-journal")
    if os.path.lexists(journal):
        raise StorageError(
            f"{journal} is not a file of this package, and SQLite would delete the files that it "
            "names. Nothing was opened. Delete it if you do not know it. If somebody else made "
            f"{path.parent}, use another folder."
        )
    for suffix in ("", "-wal", "-shm"):
        part = _beside(path, suffix)
        try:
            status = part.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        is_shared = suffix != "" and status.st_nlink > 1
        if is_shared or not stat.S_ISREG(status.st_mode):
            raise StorageError(
                f"{part} is not a regular file with a single name, so it was not opened. Remove it."
            )


def is_writable(path: Path) -> bool:
    """Return whether this process can write a file, and the disk has space for its log."""
    folder = path.parent
    if not (os.access(folder, os.W_OK) and os.access(path, os.W_OK)):
        return False
    if hasattr(os, "statvfs"):
        status = os.statvfs(folder)
        has_files = status.f_files == 0 or status.f_favail >= _MIN_FREE_FILES  # 0: no limit
        return has_files and status.f_bavail * status.f_frsize > _MIN_FREE_BYTES
    return shutil.disk_usage(folder).free > _MIN_FREE_BYTES


def _check_journal_mode(connection: sqlite3.Connection) -> None:
    [[mode]] = connection.execute("PRAGMA journal_mode")
    if mode != "wal":
        raise ValueError(f"its journal mode is {mode} instead of wal")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}{suffix}")


def _on_one_line(sql: str) -> str:
    return " ".join(sql.split())


def checksum_of(*parts: str | bytes) -> int:
    """Return a checksum of the values of a row. SQLite itself has no checksums."""
    total = 0
    for part in parts:
        data = part if isinstance(part, bytes) else f"{part}\0".encode("utf-8", "surrogatepass")
        total = zlib.crc32(data, total)
    return total
