"""Write in a folder of notes: one writer at a time, inside of the folder only, whole or not at all, with a backup."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from glob import escape as glob_escape
from os import stat_result
from pathlib import Path, PurePosixPath
from typing import Final

from filelock import FileLock, Timeout

from llama_index_contextual.app.folder.walk import stamp_of
from llama_index_contextual.app.index.state import DEFAULT_NAME, Layout
from llama_index_contextual.durable import write_atomically
from llama_index_contextual.errors import LockedError, SettingError, StorageError
from llama_index_contextual.text import UTF16_MARKS, replace_surrogates

_TURN_SECONDS: Final = 30.0  # to wait for others that write into the same folder
_LOOK_SECONDS: Final = 0.005  # between two looks whether they are done; an addition takes a few milliseconds


@contextlib.contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Wait for all other processes that write into a folder; two of them may keep its index in different places.

    Raises:
        LockedError: Others have been writing for half a minute.
        StorageError: The folder is not there, or the lock cannot be made.
    """
    if not folder.is_dir():  # perhaps a disk is not mounted: what is written there now would be hidden under it
        raise StorageError(f"the folder {folder} is no longer there. Nothing was written. Cure: put it back")
    layout = Layout(folder / DEFAULT_NAME)
    _refuse_link(layout.root)
    layout.create()
    lock = FileLock(layout.root / "notes.lock", timeout=_TURN_SECONDS, poll_interval=_LOOK_SECONDS, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise LockedError(
            f"others have been writing into {folder} for {_TURN_SECONDS:.0f} s. Nothing was written. Cure: try again"
        ) from None
    except OSError as error:
        raise StorageError(f"{lock.lock_file} cannot be written ({error.strerror}). Cure: make it writable") from error
    try:
        yield
    finally:
        lock.release()


def inside(folder: Path, path: str) -> Path:
    """Return where a path below a folder is.

    Args:
        folder: The folder of notes.
        path: Relative to it, in POSIX form.

    Raises:
        SettingError: It is absolute, leads out of the folder, names something hidden, or passes through a link.
    """
    parts = path.split("/")
    note = folder.joinpath(*parts)
    if note.parts[len(folder.parts) :] != tuple(parts) or any(part.startswith(".") for part in parts) or "\0" in path:
        raise SettingError(f"path={path!r} is no place for a note. Cure: a path inside of the folder, nothing hidden")
    try:
        path.encode("utf-8")
        for count in range(1, len(parts) + 1):
            _refuse_link(folder.joinpath(*parts[:count]))
    except (OSError, UnicodeError) as error:  # a name that is too long, half of a character
        raise SettingError(f"path={path[:80]!r} is no place for a note ({error}). Cure: another name") from None
    return note


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise SettingError(f"{path} is a link, which nothing is written through. Cure: a path without links")


def change(
    folder: Path, path: str, edit: Callable[[bytes | None], bytes], *, backup: Callable[[], bool] = lambda: True
) -> bool:
    """Replace a note by what is made of it, whole or not at all; return whether the file was made.

    Call it in a :func:`turn`. Where an editor saves the note while its successor is written, it is read again.

    Args:
        folder: The folder of notes.
        path: Of the note, as for :func:`inside`. Its folder is made where it is missing.
        edit: Makes the new content of the old one; None stands for no file. The same content is not written again.
        backup: Asked after ``edit`` whether the old content is kept beside the index.

    Raises:
        SettingError: The path leads out of the folder.
        StorageError: It is no regular file, or it cannot be read or written; it is unharmed.
    """
    note = inside(folder, path)
    try:
        while True:
            status = _look(note)
            if status is not None and not stat.S_ISREG(status.st_mode):
                raise StorageError(f"{note} is no regular file. It is unharmed. Cure: move it away")
            before = None if status is None else note.read_bytes()
            after = edit(before)
            if after == before:
                return False
            note.parent.mkdir(parents=True, exist_ok=True)
            for left in note.parent.glob(f".{glob_escape(note.name)}.????????"):  # of a process that was killed
                left.unlink()
            if before is not None and backup():
                place = backup_place(folder, path)
                place.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(place, before)
            with contextlib.suppress(_ChangedError):
                write_atomically(note, after, check=partial(_unchanged, note, status))
                return before is None
    except OSError as error:
        raise StorageError(
            f"{note} cannot be read or written ({error.strerror}). Cure: make it readable and writable"
        ) from error


def backup_place(folder: Path, path: str) -> Path:
    """Return where the present content of a path goes: ``.contextual/backups/TIME/PATH``; its folder is to be made."""
    backups = Layout(folder / DEFAULT_NAME).root / "backups"
    _refuse_link(backups)
    now = datetime.now(timezone.utc)
    return backups / f"{now:%Y-%m-%dT%H-%M-%S.%f}Z" / PurePosixPath(path)


class _ChangedError(Exception):
    """Somebody else, such as an editor, has written the note just now."""


def _look(note: Path) -> stat_result | None:
    try:
        return note.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _unchanged(note: Path, before: stat_result | None) -> None:
    """Raise a _ChangedError where a file is no longer what it was."""
    now = _look(note)
    if (now and (now.st_ino, stamp_of(now))) != (before and (before.st_ino, stamp_of(before))):
        raise _ChangedError


def writable(text: str) -> str:
    """Return a text without what a terminal would obey and what no file can hold."""
    text = replace_surrogates(text)[0].replace("\r\n", "\n").replace("\r", "\n")
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(char for char in text if char.isprintable() or char in "\n\t")


def codec_of(data: bytes) -> str:
    """Return how the text of a note is encoded, so that what is added to it can be read with the rest."""
    if data.startswith(UTF16_MARKS):
        return "utf-16-le" if data.startswith(UTF16_MARKS[0]) else "utf-16-be"
    if b"\x00" not in data:
        try:
            data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return "cp1252"  # as the index reads it
    return "utf-8"


def appended(before: bytes, item: str) -> bytes:
    """Return the bytes of a note with one more paragraph, in the encoding of the note."""
    codec = codec_of(before)
    ended = not before or before.endswith("\n".encode(codec))
    return before + ("\n" * (not ended) + f"\n{item}\n").encode(codec, "xmlcharrefreplace")
