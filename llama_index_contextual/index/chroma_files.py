"""What is known of Chroma without its client, which takes a second to import: its files, and what its errors mean.

Whether the files of a local one are there and whole, and how they give back what they do not use.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llama_index_contextual.errors import StorageError
from llama_index_contextual.index.store import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator

DATABASE_FILE: Final = "chroma.sqlite3"
_OPENING: Final = ("migrations", "tenants", "databases", "collections", "collection_metadata", "segments")
_COMPACT: Final = "chroma.sqlite3.compact"
_PAGE_BYTES: Final = 8192  # a node's metadata is 1 to 2 kB, which a page of 4096 bytes keeps in more pages, half empty
_TRIES: Final = 3
_LEAST_BYTES: Final = 4_000_000  # a smaller file is left as it is
_MOST_FREE: Final = 0.25  # share of a file that is given back when more of it is unused

# What SQLite says of a broken file or one that is no database, and Chroma of one that lacks its tables. Only with these
# may an index be set aside: a path, a lock or a permission is the same again once its cause is gone.
_DAMAGE: Final = (
    "malformed",
    "not a database",
    "already exists",
    "no such table",
    "no such column",
    "code: 11",
    "file is corrupt",
)
_SAME_HASH: Final = re.compile(r"Inconsistent hash: db=(\w+), source=\1\b")  # other hashes tell of another version


def is_damage(error: BaseException) -> bool:
    """Return whether what Chroma said means that a file of it is broken."""
    return any(sign in str(error).lower() for sign in _DAMAGE) or _SAME_HASH.search(str(error)) is not None


@contextlib.contextmanager
def plain_panics() -> Iterator[None]:
    """Make an error of a panic: Chroma's Rust part has one where it did not foresee how a file can be broken."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # no subclass of Exception, and its module cannot be imported
            raise DamagedError(f"Chroma broke down ({error}).") from error
        raise


def unreachable(error: Exception) -> StorageError:
    """Return what a server that does not answer means."""
    return StorageError(
        f"the Chroma server does not answer ({error}). What is indexed is unharmed. Cure: see that it runs, then try "
        "again."
    )


def has_data(folder: Path) -> bool:
    """Return whether a local Chroma has ever been in a folder and still is."""
    return (folder / DATABASE_FILE).exists()


def is_writable(folder: Path | None) -> bool:
    """Return whether a local Chroma can write its files; it has to, even where it is only asked. True without any."""
    there = [] if folder is None else [one for one in (folder, folder / DATABASE_FILE) if one.exists()]
    return all(os.access(one, os.W_OK) for one in there)


def copied(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a copy of a local Chroma that can be written, for as long as it is used.

    Raises:
        StorageError: There is no room for it.
    """
    file = folder / DATABASE_FILE
    made = tempfile.TemporaryDirectory(prefix="llama-index-contextual-", ignore_cleanup_errors=True)
    try:
        for _ in range(_TRIES):  # another user, who may write, may do so now
            before = file.stat()
            shutil.copytree(folder, made.name, dirs_exist_ok=True, copy_function=shutil.copyfile)
            if (before.st_size, before.st_mtime_ns) == (file.stat().st_size, file.stat().st_mtime_ns):
                break
        for path in Path(made.name).rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
    except OSError as error:
        made.cleanup()
        raise StorageError(
            f"{folder} cannot be written, which Chroma needs, nor be copied to {made.name} ({error}). Cure: make one "
            "of them writable, or name a folder with room in TMPDIR."
        ) from error
    return made


def check_tables(file: Path) -> None:
    """Read what Chroma reads when it opens: of what it cannot decode there it panics, or aborts the whole process.

    Raises:
        DamagedError: It cannot be read.
    """
    if not file.is_file() or not file.stat().st_size:
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            held = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in ("sqlite_master", *sorted(held.intersection(_OPENING))):
                database.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608  our own names
    except sqlite3.OperationalError as error:
        if "decode" in str(error) or is_damage(error):
            raise DamagedError(f"Chroma's database {file} is damaged ({error}).") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise DamagedError(f"Chroma's database {file} is damaged ({error}).") from error


def compact_copy(folder: Path) -> Path | None:
    """Write a copy of a local Chroma's file without what is unused in it; None where that would give little back.

    Chroma writes each node into a log first and never gives the room of it back, nor that of deleted collections. The
    copy holds the same rows. Nobody may write meanwhile; who reads goes on with the old file.
    """
    file, copy = folder / DATABASE_FILE, folder / _COMPACT
    try:
        copy.unlink(missing_ok=True)  # of a process that was killed
        with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            [size, pages, free] = [
                database.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_size", "page_count", "freelist_count")
            ]
            if size * pages < _LEAST_BYTES or (size >= _PAGE_BYTES and free < pages * _MOST_FREE):
                return None
            database.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            database.execute("VACUUM INTO ?", (str(copy),))
        shutil.copymode(file, copy)
        with copy.open("rb+") as written:
            os.fsync(written.fileno())
    except (sqlite3.Error, OSError):  # a full disk, above all: the old file is as good
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
        return None
    return copy


def put_in_place(copy: Path) -> None:
    """Let a compact copy take the place of a local Chroma's file; whoever has the old one open goes on reading it."""
    with contextlib.suppress(OSError):  # on Windows another reader may have it open
        copy.replace(copy.with_name(DATABASE_FILE))
