"""A folder of notes as an agent uses it: asked, read and added to, while a refresh keeps its index up to date."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from dataclasses import asdict
from datetime import date, datetime
from fnmatch import fnmatchcase
from functools import partial
from glob import escape as glob_escape
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from filelock import FileLock, Timeout

from llama_index_contextual.atomic import write_atomically
from llama_index_contextual.documents.files import find_files, stamp_of
from llama_index_contextual.documents.sources import read_bytes
from llama_index_contextual.errors import DocumentError, LockedError, SettingError, StorageError
from llama_index_contextual.index.state import DEFAULT_NAME, Layout
from llama_index_contextual.memory import MemoryContext, MemoryDigest
from llama_index_contextual.memory.context import gate_digest
from llama_index_contextual.memory.digest import shown_path
from llama_index_contextual.text import UTF16_MARKS, counted, decode, replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from os import stat_result
    from pathlib import Path

    from llama_index_contextual.index import BackgroundRefresh, ContextualIndex

MOST_LISTED: Final = 500
_EMPTY: Final = "nothing is indexed yet"
_MOST_NOTES: Final = 20  # of one multi_get
_MOST_CHARS: Final = 64_000  # of one answer
_TURN_SECONDS: Final = 30.0  # to wait for others that add to the same folder
_LOOK_SECONDS: Final = 0.005  # between two looks whether they are done; an addition takes a few milliseconds


class Notes:
    """A folder of notes: asked, read, and perhaps added to."""

    def __init__(self, index: ContextualIndex, memory: MemoryContext, keeper: BackgroundRefresh) -> None:
        self.index = index
        self.memory = memory
        self.keeper = keeper

    async def context(self, message: str) -> MemoryDigest:
        """Return the digest for a message; small talk touches neither folder nor index."""
        closed = gate_digest(message, self.memory.settings)
        return closed or await self.fresh(lambda: self.memory.aget(message))

    async def fresh(self, ask: Callable[[], Awaitable[MemoryDigest]]) -> MemoryDigest:
        """Ask after a short look at the folder, and say what the answer does not know yet."""
        note = await self.keeper.alook()
        is_tried = note.refreshing or note.error
        if is_tried and not await asyncio.to_thread(lambda: self.index.exists):  # it may ask a server
            return MemoryDigest(applicable=True, reason=_EMPTY).noting(f"{_EMPTY}; {note}")
        return (await ask()).noting(str(note))

    def part(self, path: str, first: int, count: int) -> str:
        """Return some lines of a note, and where to go on."""
        path = self._named(path)
        text = self.index.read(path)
        if text is None:
            raise DocumentError(f"the note {path!r} is not a text file")
        lines = text.splitlines()
        if first > max(len(lines), 1):
            raise DocumentError(f"from_line={first} is too high: {path!r} has {counted(len(lines), 'line')}")
        shown = "\n".join(lines[first - 1 : first - 1 + count])[:_MOST_CHARS]
        last = first - 1 + len(shown.splitlines())
        rest = f"\n\n(lines {first} to {last} of {len(lines)})" if first > 1 or last < len(lines) else ""
        return shown + rest

    def _named(self, path: str) -> str:
        """Return the path of a note that is named by it, or as a citation shows it.

        Raises:
            DocumentError: There is none.
        """
        if path in self.index.files(path):
            return path
        found = next((one for one in self.index.files() if shown_path(one) == path), None)
        if found is None:
            raise DocumentError(f"there is no note {path!r} that the index reads. Cure: list shows them")
        return found

    def several(self, glob: str) -> list[str]:
        """Return notes whose path a pattern matches, each with its path as the first line, and what was left out."""
        paths = [one for one in self.index.files() if fnmatchcase(one, glob) or fnmatchcase(shown_path(one), glob)]
        if not paths:
            raise DocumentError(f"no note matches {glob!r}. Cure: list shows them")
        blocks: list[str] = []
        room = _MOST_CHARS
        for path in paths[:_MOST_NOTES]:
            text = self.index.read(path)
            if text is None:
                text = "(no text that can be read)"
            if len(text) > room and blocks:
                break
            blocks.append(f"{shown_path(path)}\n\n{text[:room]}")
            room -= len(text)
        if len(blocks) < len(paths):
            blocks.append(f"({len(blocks)} of {len(paths)} notes; for the others: get)")
        return blocks

    def listing(self, below: str) -> str:
        """Return the paths of the notes, one a line."""
        below = below.strip("/")
        paths = self.index.files(below) or [
            one for one in self.index.files() if f"{shown_path(one)}/".startswith(f"{below}/")
        ]
        more = [f"({MOST_LISTED} of {len(paths)}; name a folder for the others)"] if len(paths) > MOST_LISTED else []
        return "\n".join([*map(shown_path, paths[:MOST_LISTED]), *more]) or "(no notes)"

    async def status(self) -> str:
        """Return what is indexed, and how far that is behind."""
        note = await self.keeper.alook()
        documents = await asyncio.to_thread(self.index.documents)
        state = await asyncio.to_thread(self.index.settings.state)
        held = {
            "folder": str(self.index.folder),
            "documents": len(documents),
            "chunks": sum(one.nodes for one in documents.values()),
            "complete": state.complete,
            "freshness": {**asdict(note), "text": str(note) or "up to date"},
        }
        return json.dumps(held, ensure_ascii=False, indent=2)

    def add(self, text: str, now: datetime) -> str:
        """Append to the note of the day, as one list item with the time; return a sentence that says where.

        All processes that add to a folder take turns. What the note held stays, byte for byte, whether the index reads
        that note or not: the sentence says where it does not.

        Raises:
            SettingError: There is nothing to keep, the note lies outside of the folder, or the index would not read
                a note that has to be made.
            LockedError: Others have been adding for half a minute.
            StorageError: The note cannot be read or written; what it held is unharmed.
        """
        clean = "".join(char for char in replace_surrogates(text)[0].strip() if char.isprintable() or char in "\n\t")
        if not clean.strip():
            raise SettingError("text holds nothing to keep. Cure: a sentence")
        item = f"- {now:%H:%M} " + "\n  ".join(clean.splitlines())
        with _turn(self.index.folder):
            path = day_note(self.index.files(), now.date())
            note = self.index.folder / path
            if note.is_symlink() or not note.parent.resolve().is_relative_to(self.index.folder.resolve()):
                raise SettingError(f"path={path!r} leads out of {self.index.folder}. Cure: a path inside it.")
            made = append(note, item, heading=f"# {now.date()}")
            reason = self._unread(path)
            if made and reason:
                note.unlink()
                raise SettingError(f"path={path!r} is no note that the index reads: {reason}. Cure: other files=.")
        return f"Added to {path}." + (f" The index does not read this note: {reason}" if reason else "")

    def _unread(self, path: str) -> str:
        """Return why the index does not read a file of the folder, or ""."""
        found = find_files(self.index.folder, self.index.settings.files, below=path, exclude=self.index.storage)
        if not found.files:
            return next((one.reason for one in found.problems), "its name is left out by the rules of the index")
        try:
            decode(read_bytes(found.files[0].absolute))
        except DocumentError as error:
            return str(error)
        return ""


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Wait for all other processes that add to a folder; two of them may keep its index in different places."""
    layout = Layout(folder / DEFAULT_NAME)
    layout.create()
    lock = FileLock(layout.root / "notes.lock", timeout=_TURN_SECONDS, poll_interval=_LOOK_SECONDS, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise LockedError(
            f"others have been adding to {folder} for {_TURN_SECONDS:.0f} s. Nothing was added. Cure: try again"
        ) from None
    except OSError as error:
        raise StorageError(f"{lock.lock_file} cannot be written ({error.strerror}). Cure: make it writable") from error
    try:
        yield
    finally:
        lock.release()


def append(note: Path, item: str, *, heading: str) -> bool:
    """Append a paragraph to a file as it is on disk, whole or not at all; return whether the file was made for it.

    The bytes that are there stay, also those of another encoding and those of no text. The new ones are in the file's
    encoding, if it has one. Where the file changes while its successor is written, it is read again.

    Args:
        note: The file. Its folder is made where it is missing.
        item: The paragraph.
        heading: The first line of a file that is made.

    Raises:
        StorageError: It is no regular file, or it cannot be read or written; it is unharmed.
    """
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        for left in note.parent.glob(f".{glob_escape(note.name)}.????????"):  # of a process that was killed
            left.unlink()
        while True:
            found = _look(note)
            if found is not None and not stat.S_ISREG(found.st_mode):
                raise StorageError(f"{note} is no regular file. It is unharmed. Cure: move it away")
            before = f"{heading}\n".encode() if found is None else note.read_bytes()
            with contextlib.suppress(_ChangedError):
                write_atomically(note, _appended(before, item), check=partial(_unchanged, note, found))
                if found is None:
                    note.chmod(0o644)
                return found is None
    except OSError as error:
        raise StorageError(
            f"{note} cannot be read or written ({error.strerror}). Cure: make it readable and writable"
        ) from error


class _ChangedError(Exception):
    """Somebody else, such as an editor, has written the note just now."""


def _look(note: Path) -> stat_result | None:
    try:
        return note.lstat()
    except FileNotFoundError:
        return None


def _unchanged(note: Path, before: stat_result | None) -> None:
    """Raise a _ChangedError where a file is no longer what it was."""
    now = _look(note)
    if (now and (now.st_ino, stamp_of(now))) != (before and (before.st_ino, stamp_of(before))):
        raise _ChangedError


def _appended(before: bytes, item: str) -> bytes:
    """Return the bytes of a note with one more paragraph, in the encoding of the note."""
    codec = "utf-8"
    if before.startswith(UTF16_MARKS):
        codec = "utf-16-le" if before.startswith(UTF16_MARKS[0]) else "utf-16-be"
    elif b"\x00" not in before:
        try:
            before.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            codec = "cp1252"  # as the index reads it
    ended = not before or before.endswith("\n".encode(codec))
    return before + ("\n" * (not ended) + f"\n{item}\n").encode(codec, "xmlcharrefreplace")


def day_note(paths: list[str], day: date) -> str:
    """Return the path of a day's note: the one that exists, else beside the latest dated note, else in ``memory/``.

    Args:
        paths: The notes of the folder.
        day: Which day.
    """
    dated: dict[str, str] = {}
    for path in paths:
        with contextlib.suppress(ValueError):
            dated[date.fromisoformat(PurePosixPath(path).stem).isoformat()] = path
    if day.isoformat() in dated:
        return dated[day.isoformat()]
    beside = PurePosixPath(dated[max(dated)]).parent if dated else PurePosixPath("memory")
    return (beside / f"{day}.md").as_posix()
