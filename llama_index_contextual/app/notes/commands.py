"""The six commands of Anthropic's memory tool over a folder of notes, and the replacement of a passage in one note.

Paths are as Claude writes them: ``/memories`` is the folder. Answers are worded as Anthropic's own implementation words
them, because its models know these. No command leaves the folder, follows a link, or touches a file that the index
would not read. What a command replaces or deletes is kept in ``.contextual/backups``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from llama_index_contextual.app.folder.folders import Folders
from llama_index_contextual.app.folder.walk import FileRules
from llama_index_contextual.app.index.state import DEFAULT_NAME
from llama_index_contextual.app.notes.writing import backup_place, change, codec_of, inside, turn
from llama_index_contextual.errors import DocumentError, SettingError, StorageError
from llama_index_contextual.text import replace_surrogates

ROOT: Final = "/memories"
COMMANDS: Final = {
    "view": ("path",),
    "create": ("path", "file_text"),
    "str_replace": ("path", "old_str", "new_str"),
    "insert": ("path", "insert_line", "insert_text"),
    "delete": ("path",),
    "rename": ("old_path", "new_path"),
}  # fmt: skip  what each needs
_DEEP: Final = 2  # levels of folders that a view lists
_MOST_LINES: Final = 999_999
_MOST_CHARS: Final = 64_000  # of one view
_NO_PLACE: Final = "is no note that the index reads. Cure: a name such as facts.md that no ignore file leaves out"
_AROUND: Final = 2  # lines shown around an edit
_MOST_PLACES: Final = 20  # of a passage that is not unique


class MemoryCommands:
    """Anthropic's memory tool over a folder of notes.

    For Anthropic's SDK, ``class Memory(MemoryCommands, BetaAbstractMemoryTool): ...`` is a tool of its ``tool_runner``.
    Each command is an object with the fields of Anthropic's definition, such as ``path`` and ``file_text``.

    Args:
        folder: The notes, or several folders by name. One is there.
        rules: Which files are notes. Default: what an index reads by itself.
        exclude: A folder that holds none, such as an index that is kept elsewhere below the notes.
    """

    def __init__(
        self, folder: str | Path | Folders, rules: FileRules | None = None, exclude: Path | None = None
    ) -> None:
        super().__init__()
        self._folders = folder if isinstance(folder, Folders) else Folders(Path(folder).resolve())
        if not any(place.is_dir() for place in self._folders.places):
            raise SettingError(f"{self._folders} is no folder of notes. Cure: a folder that is there")
        self._rules = (rules or FileRules()).changed(follow_symlinks=False, hidden=False)
        self._exclude = exclude or self._folders.root / DEFAULT_NAME

    def call(self, input: object) -> str:  # noqa: A002  as Anthropic's SDK calls it
        """Run a command that is a dictionary, as a model wrote it: ``{"command": "view", "path": "/memories"}``.

        Raises:
            SettingError: The command or an argument is not known, or the path is no place for a note.
            DocumentError: There is no such note, or it is not what the command needs.
            LockedError: Others have been writing for half a minute.
            StorageError: A note cannot be read or written; it is unharmed.
        """
        fields = {"view_range": None, **(input if isinstance(input, Mapping) else vars(input))}
        name = fields.get("command")
        if name not in COMMANDS:
            raise SettingError(f"command={name!r} is not known. Cure: {', '.join(COMMANDS)}")
        if missing := [field for field in COMMANDS[name] if fields.get(field) is None]:
            raise SettingError(f"command={name!r} needs {' and '.join(missing)}. Cure: give it")
        answer: str = getattr(self, name)(SimpleNamespace(**fields))
        return answer

    def view(self, command: Any) -> str:
        """Return a note with line numbers, or what is in a folder."""
        path = self._path(command.path)
        notes = self._notes(path)
        if path in notes:
            return self._shown(command.path, notes[path], command.view_range)
        if path and not notes:
            raise DocumentError(f"The path {command.path} does not exist. Please provide a valid path.")
        sizes: dict[str, int] = {}
        for note, place in notes.items():
            parts = note.removeprefix(f"{path}/" if path else "").split("/")
            for depth in range(min(len(parts), _DEEP) + 1):
                shown = "/".join(parts[:depth]) + ("/" if 0 < depth < len(parts) else "")
                sizes[shown] = sizes.get(shown, 0) + Path(place).stat().st_size
        top = command.path.rstrip("/")
        lines = [f"{_size(sizes[name])}\t{top}{'/' if name else ''}{name}" for name in sorted(sizes)] or [f"0B\t{top}"]
        head = f"Here're the files and directories up to {_DEEP} levels deep in {top}, excluding hidden items"
        return f"{head} and node_modules:\n{_cut(lines, 'the path of a folder')}"

    def _shown(self, name: str, place: str, view_range: list[int] | None) -> str:
        lines = _decoded(Path(place).read_bytes(), name)[0].replace("\r\n", "\n").split("\n")
        if len(lines) > _MOST_LINES:
            raise DocumentError(f"File {name} exceeds maximum line limit of 999,999 lines.")
        first, last = 1, len(lines)
        if view_range:
            if len(view_range) != 2 or not all(isinstance(number, int) for number in view_range):  # noqa: PLR2004
                raise SettingError(f"Invalid `view_range` parameter: {view_range}. It should be two line numbers.")
            first, last = max(1, view_range[0]), len(lines) if view_range[1] == -1 else view_range[1]
        text = _cut(_numbered(lines, first, last), "view_range")
        return f"Here's the content of {name} with line numbers:\n{text}"

    def create(self, command: Any) -> str:
        """Make a note."""

        def edit(before: bytes | None) -> bytes:
            if before is not None:
                raise DocumentError(f"File {command.path} already exists")
            return _clean(command.file_text).encode()

        self._change(command.path, edit)
        return f"File created successfully at: {command.path}"

    def str_replace(self, command: Any) -> str:
        """Replace a passage that is in a note once."""
        line, lines = self.replace(command.path, command.old_str, command.new_str)
        shown = "\n".join(_numbered(lines, max(1, line - _AROUND), line + _AROUND))
        return f"The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{shown}"

    def replace(self, name: str, old: str, new: str) -> tuple[int, list[str]]:
        """Replace a passage that is in a note once.

        Args:
            name: ``/memories/PATH``.
            old: The passage, as it stands there.
            new: What stands there afterwards.

        Returns:
            The line where the passage began, from 1, and the lines of the note afterwards.

        Raises:
            ContextualError: As :meth:`call`. The passage is not there, or there more than once.
        """
        after, position = "", 0
        old, new = _clean(old), _clean(new)

        def edit(before: bytes | None) -> bytes:
            nonlocal after, position
            text, codec = _decoded(before, name)
            quote, passage = old, new
            if quote not in text and "\r\n" in text:  # views show no carriage returns
                quote, passage = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (quote, passage))
            count = text.count(quote) if quote else 0
            if count == 0:
                raise DocumentError(
                    f"No replacement was performed, old_str `{old[:200]}` did not appear verbatim in {name}."
                )
            if count > 1:
                places = islice(re.finditer(re.escape(quote), text), _MOST_PLACES)
                lines = ", ".join(str(text.count("\n", 0, place.start()) + 1) for place in places)
                raise DocumentError(
                    f"No replacement was performed. Multiple occurrences of old_str `{old[:200]}` in lines: {lines}. "
                    "Please ensure it is unique"
                )
            position = text.index(quote)
            after = text.replace(quote, passage)
            return after.encode(codec, _ERRORS[codec])

        self._change(name, edit)
        return after.count("\n", 0, position) + 1, after.replace("\r\n", "\n").split("\n")

    def insert(self, command: Any) -> str:
        """Insert lines behind a line of a note; behind line 0 they are the first."""
        number, inserted = command.insert_line, _clean(command.insert_text)

        def edit(before: bytes | None) -> bytes:
            text, codec = _decoded(before, command.path)
            end = "\r\n" if "\r\n" in text else "\n"
            mark = "\ufeff" if text.startswith("\ufeff") else ""
            lines = text.removeprefix(mark).split(end)
            count = len(lines) - (not lines[-1])
            if not isinstance(number, int) or not 0 <= number <= count:
                raise DocumentError(
                    f"Invalid `insert_line` parameter: {number}. It should be within the range [0, {count}]."
                )
            lines[number:number] = inserted.removesuffix("\n").split("\n")
            return (mark + end.join(lines)).encode(codec, _ERRORS[codec])

        self._change(command.path, edit)
        return f"The file {command.path} has been edited."

    def delete(self, command: Any) -> str:
        """Take a note or a folder of notes away: it is moved to the backups."""
        path = self._path(command.path)
        if not path:
            raise SettingError(f"Cannot delete the {ROOT} directory itself")
        folder, inner = self._home(path, command.path)
        with turn(folder):
            self._move(command.path, path, backup_place(folder, inner))
        return f"Successfully deleted {command.path}"

    def rename(self, command: Any) -> str:
        """Give a note or a folder of notes another path."""
        old, new = self._path(command.old_path), self._path(command.new_path)
        if not old or not new or new.startswith(f"{old}/"):
            raise SettingError(f"{command.old_path} cannot be renamed to {command.new_path}. Cure: another new_path")

        folder, _ = self._home(old, command.old_path)
        goal, inner = self._home(new, command.new_path)
        with turn(folder):
            place = inside(goal, inner)
            if os.path.lexists(place):
                raise DocumentError(f"The destination {command.new_path} already exists")
            notes = self._move(command.old_path, old, place)
            if {new + note.removeprefix(old) for note in notes} != set(self._notes(new)):
                place.rename(self._folders.place(old))
                raise DocumentError(f"{command.new_path} {_NO_PLACE}")
        return f"Successfully renamed {command.old_path} to {command.new_path}"

    def _move(self, name: str, path: str, goal: Path) -> set[str]:
        """Move a note, or a folder that holds notes and nothing else; return the notes that were there."""
        folder, inner = self._home(path, name)
        source, notes = inside(folder, inner), set(self._notes(path))
        if not notes:
            raise DocumentError(f"The path {name} does not exist")
        files = {path} if source.is_file() else {
            str(self._folders.path_of(Path(place) / file))
            for place, folders, names in os.walk(source)
            for file in (*names, *(folder for folder in folders if Path(place, folder).is_symlink()))
        }  # fmt: skip
        if others := sorted(files - notes):
            raise DocumentError(f"{name} also holds {others[0]}, which is no note. Cure: its notes one by one")
        try:
            goal.parent.mkdir(parents=True, exist_ok=True)
            source.rename(goal)
        except OSError as error:
            raise StorageError(f"{name} cannot be moved ({error.strerror}). Cure: make its folder writable") from error
        return notes

    def _path(self, name: object) -> str:
        """Return a path below the folder, "" for the folder itself."""
        if not isinstance(name, str) or not f"{name}/".startswith(f"{ROOT}/"):
            raise SettingError(f"Path must start with {ROOT}, got: {name}")
        path = name.removeprefix(ROOT).removeprefix("/").rstrip("/")
        if path and path not in self._folders.collections:
            inside(*self._folders.home(path))
        return path

    def _home(self, path: str, name: str) -> tuple[Path, str]:
        """Return the folder of a path that may be written, and the rest of the path."""
        folder, inner = self._folders.home(path)
        if not inner:
            raise SettingError(f"{name} is a folder of the index, and stays as it is. Cure: a note in it")
        return folder, inner

    def _notes(self, below: str) -> dict[str, str]:
        """Return where the notes at or below a path are, by path."""
        discovery = self._folders.find(self._rules, below=below, exclude=self._exclude)
        return {
            file.path: file.place
            for file in discovery.files
            if (not below or f"{file.path}/".startswith(f"{below}/")) and "node_modules" not in file.path.split("/")
        }

    def _change(self, name: str, edit: Callable[[bytes | None], bytes]) -> None:
        """Write a note, in turn with others; what is no note is neither written nor left behind."""
        path = self._path(name)
        if not path or self._folders.place(path).is_dir():
            raise DocumentError(f"The path {name} is not a file.")
        folder, inner = self._home(path, name)
        place = inside(folder, inner)
        with turn(folder):
            if place.exists() and path not in self._notes(path):
                raise DocumentError(f"{name} {_NO_PLACE}")
            is_new = change(folder, inner, edit)
            if is_new and path not in self._notes(path):
                place.unlink()
                raise DocumentError(f"{name} {_NO_PLACE}")


_ERRORS: Final = {"utf-8": "surrogatepass", "utf-16-le": "surrogatepass", "utf-16-be": "surrogatepass",
                  "cp1252": "xmlcharrefreplace"}  # fmt: skip


def _decoded(data: bytes | None, name: str) -> tuple[str, str]:
    """Return a text that encodes to the same bytes again, and how."""
    if data is None:
        raise DocumentError(f"The path {name} does not exist. Please provide a valid path.")
    codec = codec_of(data)
    try:
        text = data.decode(codec, "strict" if codec == "cp1252" else "surrogatepass")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise DocumentError(f"The file {name} is not text that can be edited.")
    return text, codec


def _clean(text: object) -> str:
    if not isinstance(text, str):
        raise SettingError(f"{text!r} is no text. Cure: a text")
    return replace_surrogates(text)[0]


def _numbered(lines: list[str], first: int, last: int) -> list[str]:
    return [f"{number:6}\t{line}" for number, line in enumerate(lines[first - 1 : last], first)]


def _cut(lines: list[str], cure: str) -> str:
    """Return lines as a text, as many as an answer may have."""
    text = "\n".join(lines)
    if len(text) <= _MOST_CHARS:
        return text
    head = text[:_MOST_CHARS].rpartition("\n")[0] or text[:_MOST_CHARS]
    return f"{head}\n(cut after {_MOST_CHARS:,} characters; {cure} shows the rest)"


def _size(count: float) -> str:
    for unit in "BKM":
        if count < 1024 or unit == "M":  # noqa: PLR2004
            return f"{count:.0f}{unit}" if unit == "B" or count == int(count) else f"{count:.1f}{unit}"
        count /= 1024
    raise AssertionError  # pragma: no cover
