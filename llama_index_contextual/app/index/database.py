"""Open the database of an index: a SQLite file in the storage folder, or a schema of PostgreSQL that machines share.

It is the one place where the state of an index is. Everything else is derived from it or from the files. Of a SQLite
file there is one writer at a time, and readers see the moment at which they began. What is damaged is set aside, and
what can still be read of it goes into a new file.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sqlite3
import threading
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import sqlalchemy as sa
from llama_index.core.storage.kvstore.types import DEFAULT_COLLECTION

from llama_index_contextual.app.index.snapshot import Snapshot, Transaction
from llama_index_contextual.app.index.sqlite_file import check_content, moment_of, open_file
from llama_index_contextual.app.index.state import IndexState
from llama_index_contextual.app.index.tables import LAYOUT, STATE, TABLES
from llama_index_contextual.errors import DamagedError, MissingExtraError, SettingError, StorageError
from llama_index_contextual.sqlite_store import LocalKVStore

if TYPE_CHECKING:
    import tempfile
    from collections.abc import Iterable, Iterator

_NEW: Final = (
    "PRAGMA page_size=8192",  # five vectors of 384 numbers; 4096 bytes hold two
    "PRAGMA journal_mode=WAL",
)
_BARE: Final = 8192  # bytes of a file without tables
_DRIVER: Final = "postgresql+psycopg2"
_PATIENCE: Final = {"connect_timeout": 10, "keepalives_idle": 30}  # seconds: a server that is away is told soon
# A writer that stands still, or whose machine died, must not keep the others waiting. Writes are short.
_IDLE: Final = "SET LOCAL idle_in_transaction_session_timeout = '60s'"
_ABSENT: Final = ("42P01", "3F000")  # no such table, no such schema
_SCHEMA: Final = re.compile(r"(?!pg_)[A-Za-z][A-Za-z0-9_]{0,62}")  # PostgreSQL cuts longer ones
_FORM: Final = "postgresql://USER@HOST/DATABASE[#NAME]"
# What SQLite says of a broken file. Other errors tell of a full disk, a lock, a permission: the file is sound.
_DAMAGE: Final = (
    *("malformed", "not a database", "corrupt", "no such table", "no such column", "could not decode"),
    *("constraint failed", "unsupported file format"),
)


class Database:
    """The database of one index.

    Args:
        location: The SQLite file, or ``postgresql://[USER@]HOST/DATABASE[#NAME]``. ``NAME`` is the schema; each index
            has its own. Default: ``contextual``.
        cure: What a reader of a damaged file is told to do.

    Raises:
        SettingError: The address is none of these.
        MissingExtraError: The driver of PostgreSQL is not installed.
    """

    def __init__(self, location: Path | str, cure: str) -> None:
        self.file = location if isinstance(location, Path) else None
        self.shared = self.file is None
        self._cure = cure
        self._schema: str | None = None
        self._guard = threading.Lock()
        self._opened: tuple[object, sa.Engine, tempfile.TemporaryDirectory[str] | None] | None = None
        self._is_checked = False
        if isinstance(location, str):
            self._url, self._schema = _address(location)
            self._cure += f" --database {shlex.quote(self.name)}"

    def __deepcopy__(self, memo: object) -> Database:
        return self

    @property
    def name(self) -> str:
        """Return what messages call it: the file, or the address without a password."""
        if self.file is not None:
            return str(self.file)
        query = {name: value for name, value in self._url.query.items() if "password" not in name}
        url = self._url._replace(drivername="postgresql", password=None).set(query=query)  # set() cannot unset
        return f"{url.render_as_string()}#{self._schema}"

    @property
    def exists(self) -> bool:
        """Return whether there is an index in it."""
        if self.file is None:
            with self._explained(), self._engine().connect() as connection:
                return sa.inspect(connection).has_table(STATE.name, self._schema)
        try:
            return self.file.stat().st_size > _BARE or self._has_tables(self.file)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # whoever opens it says why that is not possible

    def _has_tables(self, file: Path) -> bool:
        """Return whether a small file holds anything: a kill may have come before its tables were made."""
        if not file.is_file():
            return False
        with contextlib.suppress(StorageError), self._explained(), self._engine().connect() as connection:
            return bool(connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar())
        return True

    def state(self) -> IndexState:
        """Return what is true of the whole index; an empty state where nothing was indexed yet.

        Raises:
            DamagedError: It cannot be read.
        """
        if not self.exists:
            return IndexState()
        with self.reading() as snapshot:
            return snapshot.state

    @contextlib.contextmanager
    def reading(self) -> Iterator[Snapshot]:
        """Return one moment of the database: whatever others write meanwhile, it shows the same.

        Raises:
            DamagedError: It cannot be read.
            StorageError: There is none, or it cannot be reached now.
        """
        if not self.exists:
            raise StorageError(f"there is no index in {self.name}. Cure: {self._cure}")
        with ExitStack() as stack:
            with self._explained():
                connection = stack.enter_context(self._engine().connect())
                connection.begin()
                snapshot = Snapshot(connection, self.name, self._schema, self._explained)
            yield snapshot

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Write in one transaction: all of it is on disk when this ends, or nothing of it is.

        Raises:
            DamagedError: The database cannot be read.
            StorageError: It cannot be written: a full disk, no permission, a server that is away.
        """
        with ExitStack() as stack:
            with self._explained():
                connection = stack.enter_context(self._engine(create=True).connect())
                self._to_write(connection)
                begun = connection.begin()
                if self.shared:
                    connection.exec_driver_sql(_IDLE)
                transaction = Transaction(connection, self.name, self._schema, self._explained)
            yield transaction  # left with an error, the connection takes everything back
            with self._explained():
                begun.commit()

    def _to_write(self, connection: sa.Connection) -> None:
        connection.execution_options(writes=True)
        if self.shared:  # who waited for another writer has to see what that one wrote
            connection.execution_options(isolation_level="READ COMMITTED")

    def create(self) -> None:
        """Make the tables where they are missing.

        Raises:
            StorageError: That is not possible.
        """
        with self._explained(), self._engine(create=True).connect() as connection:
            raw = connection.connection.driver_connection
            if isinstance(raw, sqlite3.Connection):
                for pragma in _NEW:
                    raw.execute(pragma)
            self._to_write(connection)
            with connection.begin():
                if self._schema is not None:
                    self._create_schema(connection, self._schema)
                TABLES.create_all(connection)
                if connection.execute(sa.select(sa.func.count()).select_from(STATE)).scalar() == 0:
                    state = {"layout": LAYOUT, "identity": uuid.uuid4().hex, "change": 0, "edition": 0}
                    connection.execute(sa.insert(STATE), [{"key": key, "value": value} for key, value in state.items()])

    def _create_schema(self, connection: sa.Connection, schema: str) -> None:
        """Make the schema; where several processes do so at once, one does and the others wait."""
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(schema))))
        tables = sa.inspect(connection).get_table_names(schema)
        if tables and STATE.name not in tables:
            raise StorageError(f"{self.name} holds tables that are none of an index. Cure: another #NAME.")
        if not tables and schema not in sa.inspect(connection).get_schema_names():
            connection.execute(sa.schema.CreateSchema(schema))

    def beside(self, file: Path) -> Database:
        """Return the database in another file."""
        return Database(file, self._cure)

    def check(self) -> bool:
        """Refuse a SQLite file that is damaged: all of it is read, once in a process, and again once damage was met.

        Returns:
            Whether it was read.

        Raises:
            DamagedError: It is.
        """
        if self._is_checked or self.shared:
            return False
        with self.reading() as snapshot, self._explained():
            check_content(snapshot.connection, snapshot.edition, complete=snapshot.state.complete)
        self._is_checked = True
        return True

    def close(self) -> None:
        """Let go of it; the next use opens it again."""
        with self._guard:
            if self._opened is not None:
                self._opened[1].dispose()
                if self._opened[2] is not None:
                    self._opened[2].cleanup()
                self._opened = None
            self._is_checked = False

    def _engine(self, *, create: bool = False) -> sa.Engine:
        """Return what opens connections: again where this process was forked, or the file is another one by now."""
        with self._guard:
            key = (os.getpid(), None if self.file is None else moment_of(self.file))
            if self._opened is not None and self._opened[0] != key:
                self._opened[1].dispose(close=self._opened[0][0] == key[0])  # type: ignore[index]
                self._opened = None
            if self._opened is None:
                if self.file is None:
                    self._opened = (key, self._served(), None)
                else:
                    self._opened = (key, *open_file(self.file, self._cure, create=create))
            return self._opened[1]

    def _served(self) -> sa.Engine:
        patience = {name: value for name, value in _PATIENCE.items() if name not in self._url.query}
        try:
            engine = sa.create_engine(
                self._url, isolation_level="REPEATABLE READ", pool_pre_ping=True, connect_args=patience
            )
        except ModuleNotFoundError as error:
            raise MissingExtraError("the driver of PostgreSQL", "postgres") from error
        return engine.execution_options(schema_translate_map={None: self._schema})

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Say of an error of the database, or of what was read there, what it means and what mends it."""
        try:
            yield
        except DamagedError:
            self._is_checked = False
            raise
        except UnicodeEncodeError:  # of what is to be written
            raise
        except (sa.exc.SQLAlchemyError, sqlite3.Error, ValueError, TypeError, RecursionError) as error:
            problem = str(getattr(error, "orig", error))
            unreadable = isinstance(error, (ValueError, TypeError, RecursionError))
            if unreadable or (self.file is not None and any(sign in problem.lower() for sign in _DAMAGE)):
                self._is_checked = False
                raise DamagedError(f"{self.name} is damaged ({problem}). Cure: {self._cure}") from error
            if getattr(getattr(error, "orig", None), "pgcode", "") in _ABSENT:
                raise StorageError(f"there is no index in {self.name}. Cure: {self._cure}") from error
            cure = (
                "see that the server runs and lets you in" if self.shared else "free space or make the folder writable"
            )
            raise StorageError(
                f"{self.name} cannot be used now ({problem.strip()}). What was indexed before is unharmed. "
                f"Cure: {cure}, then try again."
            ) from error


def _address(location: str) -> tuple[sa.URL, str]:
    """Return where a server is and which schema of it is meant; messages show nothing that may be a password."""
    address, _, schema = location.rpartition("#") if "#" in location else (location, "", "contextual")
    kind, _, rest = address.partition("://")
    if kind not in {"postgresql", "postgres"}:
        raise SettingError(f"is not known. Cure: {_FORM}", database=f"{kind}://…" if rest else location)
    place, mark, query = rest.partition("?")
    who, _, where = place.rpartition("@")
    user, _, password = who.partition(":")
    try:
        url = sa.make_url(f"{_DRIVER}://{where}{mark}{query}")
    except (sa.exc.ArgumentError, ValueError) as error:
        raise SettingError(f"is no address of a database. Cure: {_FORM}", database="postgresql://…") from error
    if not _SCHEMA.fullmatch(schema):
        raise SettingError(
            ": NAME has up to 63 letters, digits and _, and begins with a letter but not with pg_. Cure: another name.",
            database="postgresql://…#NAME",
        )
    return url.set(username=unquote(user) or None, password=unquote(password) or None), schema


class DatabaseKVStore(LocalKVStore):
    """A LlamaIndex key-value store in the database of an index: contexts that were paid for are kept in it.

    Args:
        database: It need not exist before the first value is written.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, values: dict[str, dict[str, Any]], collection: str) -> None:
        """Write several values in one transaction."""
        if not self._database.exists:
            self._database.create()
        with self._database.writing() as transaction:
            transaction.put_values(collection, values)

    def get_many(self, keys: Iterable[str] | None, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Return those of several values that there are; None asks for all."""
        if not self._database.exists:
            return {}
        with self._database.reading() as snapshot:
            return snapshot.values(collection, keys)

    def get_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Return everything."""
        return self.get_many(None, collection)

    def delete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Delete one value; return whether there was one."""
        with self._database.writing() as transaction:
            return transaction.delete_values(collection, [key]) > 0
