"""A folder of notes as an agent uses it: asked, read and added to, while a refresh keeps its index up to date."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from dataclasses import asdict
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from llama_index_contextual.errors import DocumentError, RetrievalError, SettingError, StorageError
from llama_index_contextual.memory import MemoryContext, MemoryDigest
from llama_index_contextual.memory.context import gate_digest
from llama_index_contextual.memory.digest import shown_path
from llama_index_contextual.text import counted, replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from llama_index_contextual.index import BackgroundRefresh, ContextualIndex
    from llama_index_contextual.index.background import Freshness

MOST_LISTED: Final = 500
_EMPTY: Final = "nothing is indexed yet"
_MOST_NOTES: Final = 20  # of one multi_get
_MOST_CHARS: Final = 64_000  # of one answer


class Notes:
    """A folder of notes: asked, read, and perhaps added to."""

    def __init__(self, index: ContextualIndex, memory: MemoryContext, keeper: BackgroundRefresh) -> None:
        self.index = index
        self.memory = memory
        self.keeper = keeper
        self._adding = threading.Lock()

    async def context(self, message: str) -> MemoryDigest:
        """Return the digest for a message; small talk touches neither folder nor index."""
        closed = gate_digest(message, self.memory.settings)
        return closed or await self.fresh(lambda: self.memory.aget(message))

    async def fresh(self, ask: Callable[[], Awaitable[MemoryDigest]]) -> MemoryDigest:
        """Ask after a short look at the folder, and say what the answer does not know yet."""
        note = await self.keeper.alook()
        if not await self._waits_for_an_index(note):
            try:
                return (await ask()).noting(str(note))
            except (StorageError, RetrievalError):  # a first refresh that fails takes back what it had begun
                note = await self.keeper.alook()
                if not await self._waits_for_an_index(note):
                    raise
        return MemoryDigest(applicable=True, reason=_EMPTY).noting(f"{_EMPTY}; {note}")

    async def _waits_for_an_index(self, note: Freshness) -> bool:
        """Return whether nothing is indexed, and a refresh tries to change that."""
        tried = note.refreshing or note.error
        return bool(tried) and not await asyncio.to_thread(lambda: self.index.exists)  # it may ask a server

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
        """Return what the manifest says, and how far it is behind."""
        note = await self.keeper.alook()
        manifest = await asyncio.to_thread(self.index.manifest)
        held = {
            "folder": str(self.index.folder),
            "documents": len(manifest.documents),
            "chunks": sum(entry.nodes for entry in manifest.documents.values()),
            "complete": manifest.complete,
            "freshness": {**asdict(note), "text": str(note) or "up to date"},
        }
        return json.dumps(held, ensure_ascii=False, indent=2)

    def add(self, text: str, now: datetime) -> str:
        """Append to the note of the day, as one list item with the time, and return its path."""
        clean = "".join(char for char in replace_surrogates(text)[0].strip() if char.isprintable() or char in "\n\t")
        if not clean.strip():
            raise SettingError("text holds nothing to keep. Cure: a sentence")
        with self._adding:
            path = day_note(self.index.files(), now.date())
            before = self.index.read(path) or f"# {now.date()}\n"
            item = f"- {now:%H:%M} " + "\n  ".join(clean.splitlines())
            self.index.write(path, before + "\n" * (not before.endswith("\n")) + f"\n{item}\n")
        return path


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
