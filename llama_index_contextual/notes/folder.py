"""A folder of notes as an agent uses it: asked, read and added to, while a refresh keeps its index up to date."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from dataclasses import asdict
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from llama_index_contextual.documents.conversion import suffix_of
from llama_index_contextual.documents.files import find_files
from llama_index_contextual.documents.sources import read_bytes
from llama_index_contextual.errors import DocumentError, SettingError
from llama_index_contextual.memory import MemoryContext, MemoryDigest
from llama_index_contextual.memory.context import gate_digest
from llama_index_contextual.memory.digest import shown_path
from llama_index_contextual.metadata import split_page
from llama_index_contextual.notes.commands import ROOT, MemoryCommands
from llama_index_contextual.notes.writing import appended, change, turn
from llama_index_contextual.text import counted, decode, replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from llama_index_contextual.index import BackgroundRefresh, ContextualIndex

MOST_LISTED: Final = 500
_EMPTY: Final = "nothing is indexed yet"
_MOST_NOTES: Final = 20  # of one multi_get
_MOST_CHARS: Final = 64_000  # of one answer


class Notes:
    """A folder of notes: asked, read, and perhaps added to and corrected."""

    def __init__(self, index: ContextualIndex, memory: MemoryContext, keeper: BackgroundRefresh) -> None:
        self.index = index
        self.memory = memory
        self.keeper = keeper
        self.commands = MemoryCommands(index.folder, index.settings.files, index.storage)

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
            file, page = split_page(path)
            raise DocumentError(f"{file!r} has no page {page!r}" if page else f"the note {path!r} is not a text file")
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
        file = split_page(path)[0]
        found = next((one for one in self.index.files() if shown_path(one) in {path, file}), None)
        if found is None:
            raise DocumentError(f"there is no note {path!r} that the index reads. Cure: list shows them")
        return found if shown_path(found) == path else found + path[len(file) :]

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
        """Return the paths of the notes, one a line, and how many there are of which kind where it is not Markdown."""
        below = below.strip("/")
        paths = self.index.files(below) or [
            one for one in self.index.files() if f"{shown_path(one)}/".startswith(f"{below}/")
        ]
        more = [f"({MOST_LISTED} of {len(paths)}; name a folder for the others)"] if len(paths) > MOST_LISTED else []
        kinds = Counter(suffix_of(path).removeprefix(".") or "without a suffix" for path in paths)
        if set(kinds) - {"md"}:
            more.append(f"({', '.join(f'{number} {kind}' for kind, number in kinds.most_common())})")
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
            LockedError: Others have been writing for half a minute.
            StorageError: The note cannot be read or written; what it held is unharmed.
        """
        clean = "".join(char for char in replace_surrogates(text)[0].strip() if char.isprintable() or char in "\n\t")
        if not clean.strip():
            raise SettingError("text holds nothing to keep. Cure: a sentence")
        item = f"- {now:%H:%M} " + "\n  ".join(clean.splitlines())
        folder = self.index.folder
        with turn(folder):
            path = day_note(self.index.files(), now.date())
            heading = f"# {now.date()}\n".encode()
            made = change(
                folder, path, lambda before: appended(heading if before is None else before, item), backup=lambda: False
            )
            reason = self._unread(path)
            if made and reason:
                (folder / path).unlink()
                raise SettingError(f"path={path!r} is no note that the index reads: {reason}. Cure: other files=.")
        return f"Added to {path}." + (f" The index does not read this note: {reason}" if reason else "")

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace a passage of a note; return a sentence that says where. The note as it was is kept.

        Raises:
            DocumentError: There is no such note, or the passage is not there, or there more than once.
            LockedError: Others have been writing for half a minute.
            StorageError: The note cannot be read or written; it is unharmed.
        """
        path = self._named(path)
        line, _ = self.commands.replace(f"{ROOT}/{path}", old, new)
        return f"Edited {shown_path(path)}, line {line}."

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
