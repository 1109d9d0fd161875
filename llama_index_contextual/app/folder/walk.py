"""Which files an index reads, of one folder or of several that have names.

Ignore rules, hidden folders, symbolic links, sizes and Obsidian vaults decide. A path is in POSIX
form and relative to the one folder, because it is the document's identity: the same on every
machine. Of several folders it begins with the name of its own: ``notes/2026/plan.md`` is
``2026/plan.md`` in the folder that is called ``notes``.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.files import MOST_BYTES, is_inside, read_file
from llama_index_contextual.app.folder.patterns import (
    is_ignored,
    matcher_of,
    pattern_of,
    spec_of,
)
from llama_index_contextual.app.folder.vault import MOST_SETTINGS, VAULT, folders_without_notes
from llama_index_contextual.app.settings.registry import FOLDER_FILE, Size
from llama_index_contextual.utils.errors import Checked, DocumentError
from llama_index_contextual.utils.text import MARKDOWN_SUFFIXES, SOURCE_SUFFIXES, counted

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec
    from typing_extensions import Self

    from llama_index_contextual.app.folder.folders import Folders

# What the context "pattern" is made for, and reads where nobody names the files.
SOURCE_INCLUDE: Final = tuple(f"*{suffix}" for suffix in SOURCE_SUFFIXES)
IGNORE_FILE: Final = ".gitignore"
INDEX_FOLDER: Final = ".contextual"  # an index that a folder brings along; nothing in it is read
_DRAWING: Final = ".excalidraw.md"
_DEEPEST: Final = 100  # folders in one another
_SHOWN_KINDS: Final = 5  # of files that are not read


def default_include() -> tuple[str, ...]:
    """Return the patterns of the files that are read where nobody names any.

    Text, and what the extra converts.
    """
    suffixes = [*MARKDOWN_SUFFIXES, ".txt", ".text", ".rst"]
    if formats.has_extra():
        suffixes += formats.known_formats()
    return tuple(dict.fromkeys(f"*{suffix}" for suffix in suffixes))


class FileRules(Checked, BaseModel):
    """Which files of a folder count.

    Symbolic links are not followed: what one inside the folder leads to has a name of its own, and
    one that leaves it may lead anywhere.

    Attributes:
        include: ``.gitignore``-style patterns of the files to read, with two double stars at most.
            One that ends in a suffix, as ``*.md`` does, means files only (``NOTES.MD``, too), never
            all of a folder ``notes.md``.
        exclude: More patterns to leave out, as if they stood in a ``.gitignore`` at the folder's
            top.
        gitignore: Whether ``.gitignore`` files in the folder are obeyed.
        hidden: Whether files and folders whose name starts with a dot are read.
        max_bytes: Larger files are reported and not read; of those that are converted, larger than
            100 MB or this.
    """

    model_config = ConfigDict(frozen=True)

    include: tuple[str, ...] = Field(default_factory=default_include, min_length=1)
    exclude: tuple[str, ...] = ()
    gitignore: bool = True
    hidden: bool = False
    max_bytes: Size = 10_000_000

    @field_validator("include", "exclude")
    @classmethod
    def _are_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [pattern for pattern in patterns if pattern_of(pattern) is None]
        if wrong:
            raise ValueError(f"escape or correct {wrong}, which no .gitignore could hold")
        return patterns

    def changed(self, **values: Any) -> Self:
        """Return the same rules with other values, which are checked.

        Raises:
            SettingError: A value cannot work.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**given, **values})

    def most_bytes(self, path: str) -> int:
        """Return how large a file may be; pictures are most of a document that is converted."""
        return max(self.max_bytes, MOST_BYTES) if formats.has_format(path) else self.max_bytes


class FolderFile(NamedTuple):
    """One file to read.

    Its path relative to the folder (POSIX), where it is, its size and times, and its rules.
    """

    path: str
    place: str
    stamp: str
    in_vault: bool = False


def stamp_of(status: os.stat_result) -> str:
    """Return a file's size and times, which differ after any change.

    Times of both kinds, as one can be set back.
    """
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


@dataclass(frozen=True, order=True, slots=True)
class Problem:
    """What could not be read and why.

    ``path`` is relative to the folder, and may be a folder ending in ``/``.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(slots=True)
class Discovery:
    """The files of a folder in a stable order, and those that are left out.

    ``skipped`` are files that no pattern names, and none leaves out, links within the folder, and
    templates and drawings of Obsidian vaults.
    """

    files: list[FolderFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    unfinished: bool = False


class _Folder(NamedTuple):
    """A folder that is walked later: where it is, and its path in the index, with a slash, or "".

    ``ignores`` are the ignore files that hold in it; ``vault`` is how paths begin that hold no
    notes, in an Obsidian vault, and None elsewhere.
    """

    place: str
    base: str
    ignores: tuple[tuple[str, GitIgnoreSpec], ...] = ()
    vault: tuple[str, ...] | None = None


@dataclass(slots=True)
class _Walk:
    """One walk over a folder, with a stack; ``base`` is its path in the index."""

    discovery: Discovery
    root: Path
    rules: FileRules
    base: str
    below: str
    exclude: str

    def run(self, until: float) -> None:
        """Gather the files, until a time by ``time.monotonic``."""
        is_included = matcher_of(self.rules.include)
        root = _Folder(str(self.root), self.base)
        if self.rules.exclude:
            root = root._replace(ignores=((self.base, spec_of(self.rules.exclude)),))
        stack = [root]
        while stack and not self.discovery.unfinished:
            self.discovery.unfinished = time.monotonic() > until
            stack += self._walk_folder(stack.pop(), is_included)

    def _walk_folder(self, folder: _Folder, is_included: Callable[[str], bool]) -> list[_Folder]:
        """Note the files of a folder, and return the folders in it."""
        if folder.base.count("/") > _DEEPEST + self.base.count("/"):
            reason = f"it is {_DEEPEST} folders deep, and is not read. Move it further up."
            self._report(folder.base, reason)
            return []
        try:
            with os.scandir(folder.place) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            self._report(folder.base or "./", f"the folder cannot be read ({error.strerror}).")
            return []
        folder = self._with_rules(folder, {entry.name for entry in entries})
        inner_folders = []
        for entry in entries:
            path = folder.base + entry.name
            if not self._is_visible(entry.name, path):
                continue
            try:
                path.encode()
                inner = self._note(entry, path, folder, is_included)
            except UnicodeEncodeError:
                shown = path.encode("utf-8", "backslashreplace").decode()
                self._report(shown, "its name is not valid UTF-8. Rename it.")
            except OSError as error:
                self._report(path, f"it cannot be read ({error.strerror}).")
            else:
                if inner is not None:
                    inner_folders.append(inner)
        return inner_folders

    def _report(self, path: str, reason: str) -> None:
        self.discovery.problems.append(Problem(path, reason))

    def _is_visible(self, name: str, path: str) -> bool:
        """Return whether a file or folder is neither hidden nor outside of what is read."""
        if name == INDEX_FOLDER or (name.startswith(".") and not self.rules.hidden):
            return False
        if self.below:
            below = f"{self.below}/"
            if not (f"{path}/".startswith(below) or below.startswith(f"{path}/")):
                return False
        # A path of Windows is shown with slashes: it would pose as another one.
        if "\\" in name:
            self._report(path, "its name has a backslash. Rename it.")
            return False
        return True

    def _with_rules(self, folder: _Folder, names: set[str]) -> _Folder:
        """Return the folder with its own ignore file and, if a vault begins in it, its settings."""
        place = Path(folder.place)
        if self.rules.gitignore and IGNORE_FILE in names:
            try:
                data = read_file(place / IGNORE_FILE, MOST_SETTINGS, root=self.root)
            except DocumentError as error:
                self._report(f"{folder.base}{IGNORE_FILE}", f"it is not obeyed: {error}")
            else:
                # Git skips lines that are no patterns, too.
                lines = filter(pattern_of, data.decode("utf-8", "replace").splitlines())
                ignore = (folder.base, spec_of(lines))
                folder = folder._replace(ignores=(*folder.ignores, ignore))
        if VAULT in names and (place / VAULT).is_dir():
            no_notes = folders_without_notes(place, folder.base, self.root)
            folder = folder._replace(vault=no_notes)
        return folder

    def _note(
        self,
        entry: os.DirEntry[str],
        path: str,
        folder: _Folder,
        is_included: Callable[[str], bool],
    ) -> _Folder | None:
        """Note a file or a link; return a folder."""
        is_link = entry.is_symlink()
        is_folder = entry.is_dir() and not is_link
        if is_ignored(folder.ignores, f"{path}/" if is_folder else path):
            return None
        if is_folder:
            is_excluded = entry.path == self.exclude
            return None if is_excluded else folder._replace(place=entry.path, base=f"{path}/")
        if not (entry.is_dir() or is_included(path[len(self.base) :])):
            is_configuration = path == self.base + FOLDER_FILE
            if not is_configuration and not is_link and entry.is_file():
                self.discovery.skipped.append(path)
        elif is_link and not is_inside(entry.path, self.root):
            reason = "a symbolic link out of the folder. Index that folder, too: NAME=PATH."
            self._report(path, reason)
        elif folder.vault is not None and _holds_no_note(path, folder.vault):
            self.discovery.skipped.append(path)
        elif is_link and os.stat(entry.path):  # noqa: PTH116  which refuses loops
            self.discovery.skipped.append(path)  # its target has a name of its own
        elif not entry.is_file():
            self._report(path, "not a regular file.")
        else:
            self._note_file(entry, path, in_vault=folder.vault is not None)
        return None

    def _note_file(self, entry: os.DirEntry[str], path: str, *, in_vault: bool) -> None:
        status = entry.stat()
        most = self.rules.max_bytes
        if status.st_size > most:
            most = self.rules.most_bytes(path)
        if status.st_size > most:
            size = f"{status.st_size:,} bytes are more than max_bytes={most:,}"
            self._report(path, f"{size}. Split it, or raise that.")
        else:
            file = FolderFile(path, entry.path, stamp_of(status), in_vault)
            self.discovery.files.append(file)


def _holds_no_note(path: str, folders: tuple[str, ...]) -> bool:
    return path.startswith(folders) or path.lower().endswith(_DRAWING)


def summary_of_skipped(paths: Sequence[str], *, offers_code: bool = False) -> str:
    """Return a line on files that are not read, by their kinds; "" for none.

    Args:
        paths: Of the files.
        offers_code: Whether the line says what reads source code.
    """
    if not paths:
        return ""
    suffixes = sorted(Path(path).suffix.lower().removeprefix(".") for path in paths)
    counts = Counter(suffix for suffix in suffixes if suffix and not suffix.isdigit())
    common = counts.most_common(_SHOWN_KINDS)  # of as many, in order of their names
    kinds = [f"{number} {kind}" for kind, number in common]
    other = len(paths) - sum(number for _, number in common)
    if other:
        kinds.append(f"{other} of other kinds")
    summary = f"{counted(len(paths), 'file')} not read: {', '.join(kinds)}"
    if not formats.has_extra() and any(map(formats.has_format, paths)):
        summary += f"; pip install 'llama-index-contextual[{formats.EXTRA}]' reads some of them"
    if offers_code and any(path.lower().endswith(SOURCE_SUFFIXES) for path in paths):
        summary += "; index --context pattern reads source code"
    return summary


def find(
    folders: Folders,
    rules: FileRules,
    *,
    below: str = "",
    exclude: Path | None = None,
    until: float = math.inf,
) -> Discovery:
    """Walk all folders of an index.

    Args:
        folders: Of the index.
        rules: Which files count.
        below: Only this sub-folder or file, in POSIX form; "" is everything.
        exclude: A folder that is never entered: the index's own storage.
        until: When to stop, by ``time.monotonic``; the discovery is then ``unfinished``.
    """
    discovery = Discovery()
    below = below.strip("/")
    excluded = "" if exclude is None else str(exclude.resolve())
    for name, folder in folders.by_name.items():
        base = f"{name}/" if name else ""
        if name and below.partition("/")[0] not in ("", name):
            continue
        if name and not folder.is_dir():
            reason = (
                f"the folder {folder} is not there; what is indexed of it stays. "
                f"Put it back, index {name}=PATH where it is now, "
                "or delete index.sqlite3 and index the other folders"
            )
            discovery.problems.append(Problem(base, reason))
            continue
        _Walk(discovery, folder, rules, base, below, excluded).run(until)
    discovery.files.sort()
    discovery.problems.sort()
    discovery.skipped.sort()
    return discovery
