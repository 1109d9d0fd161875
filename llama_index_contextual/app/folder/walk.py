"""Find the files that an index reads, in one folder or in several named folders.

The selection depends on ignore rules, hidden folders, symbolic links, sizes and Obsidian vaults. A
path is relative to its folder and in POSIX form. It identifies the document and is the same on
every machine. If an index has several folders, the path starts with the name of the folder:
``notes/2026/plan.md`` is ``2026/plan.md`` in the folder named ``notes``.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.files import MAX_BYTES, is_inside, read_file
from llama_index_contextual.app.folder.patterns import (
    is_ignored,
    matcher_of,
    pattern_of,
    spec_of,
)
from llama_index_contextual.app.folder.vault import MAX_SETTINGS, VAULT, folders_without_notes
from llama_index_contextual.app.settings.registry import FOLDER_FILE, Size
from llama_index_contextual.utils.errors import Checked, DocumentError
from llama_index_contextual.utils.text import MARKDOWN_SUFFIXES, SOURCE_SUFFIXES, counted

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec
    from typing_extensions import Self

    from llama_index_contextual.app.folder.folders import Folders

# The files for which the "pattern" context is made, and which it reads by default.
SOURCE_INCLUDE = tuple(f"*{suffix}" for suffix in SOURCE_SUFFIXES)
IGNORE_FILE = ".gitignore"
INDEX_FOLDER = ".contextual"  # an index inside the folder, which is never read as documents
_DRAWING = ".excalidraw.md"
_DEEPEST = 100  # levels of nested folders
_SHOWN_KINDS = 5  # kinds of skipped files that a summary names


def default_include() -> tuple[str, ...]:
    """Return the default patterns: text files, and the formats of the extra if it is installed."""
    suffixes = [*MARKDOWN_SUFFIXES, ".txt", ".text", ".rst"]
    if formats.has_extra():
        suffixes += formats.known_formats()
    return tuple(dict.fromkeys(f"*{suffix}" for suffix in suffixes))


class FileRules(Checked, BaseModel):
    """Rules that select the files of a folder.

    Symbolic links are not followed. The target of a link inside the folder is already read under
    its own name, and a link that leaves the folder could lead anywhere.

    Attributes:
        include: ``.gitignore``-style patterns of the files to read, with at most two double stars.
            A pattern for a suffix, such as ``*.md``, matches only files (also ``NOTES.MD``), and
            never the contents of a folder named ``notes.md``.
        exclude: Patterns of files to leave out, as if they were in a ``.gitignore`` at the top of
            the folder.
        gitignore: Whether the ``.gitignore`` files in the folder are applied.
        hidden: Whether to read files and folders whose names start with a dot.
        max_bytes: Larger files are reported and not read. For files that are converted, the limit
            is at least 100 MB.
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
            raise ValueError(f"escape or correct {wrong}, which are not valid in a .gitignore")
        return patterns

    def changed(self, **values: Any) -> Self:
        """Return a copy of the rules with other values, after checking them.

        Raises:
            SettingError: A value is invalid.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**given, **values})

    def size_limit(self, path: str) -> int:
        """Return the size limit of a file, which is higher for documents with pictures."""
        return max(self.max_bytes, MAX_BYTES) if formats.has_format(path) else self.max_bytes


class FolderFile(NamedTuple):
    """One file to read.

    Attributes:
        path: The path relative to the folder, in POSIX form.
        place: The place on disk.
        stamp: The size and times. See :func:`stamp_of`.
        in_vault: Whether the file is in an Obsidian vault.
    """

    path: str
    place: str
    stamp: str
    in_vault: bool = False


def stamp_of(status: os.stat_result) -> str:
    """Return a file's size and times, which differ after any change.

    Both times are included, because the modification time can be set back.
    """
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


@dataclass(frozen=True, order=True, slots=True)
class Problem:
    """A file or folder that could not be read, with the reason.

    ``path`` is relative to the folder. For a folder, it ends with ``/``.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(slots=True)
class Discovery:
    """The files of a folder in a stable order, and the files that were left out.

    ``skipped`` contains files that no pattern includes or excludes, links within the folder, and
    templates and drawings in Obsidian vaults. ``unfinished`` says that the time ran out.
    """

    files: list[FolderFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    unfinished: bool = False


class _Folder(NamedTuple):
    """A folder to walk.

    Attributes:
        place: The place on disk.
        base: The path in the index with a final slash, or "".
        ignores: The ignore files that apply to it, each with the path of its folder.
        vault: The prefixes of paths without notes, in an Obsidian vault; elsewhere None.
    """

    place: str
    base: str
    ignores: tuple[tuple[str, GitIgnoreSpec], ...] = ()
    vault: tuple[str, ...] | None = None


@dataclass(slots=True)
class _Walk:
    """One walk over a folder.

    Attributes:
        discovery: The result, to which the walk adds.
        root: The place of the folder on disk.
        rules: The rules that select files.
        base: The folder's path in the index with a final slash, or "".
        below: The only subfolder or file to find, as a path in the index; "" for everything.
        exclude: The place of a folder that is not entered, or "".
    """

    discovery: Discovery
    root: Path
    rules: FileRules
    base: str
    below: str
    exclude: str

    def run(self, until: float) -> None:
        """Collect the files, but stop at a time by ``time.monotonic``."""
        is_included = matcher_of(self.rules.include)
        root = _Folder(str(self.root), self.base)
        if self.rules.exclude:
            root = root._replace(ignores=((self.base, spec_of(self.rules.exclude)),))
        stack = [root]
        while stack and not self.discovery.unfinished:
            self.discovery.unfinished = time.monotonic() > until
            stack += self._walk_folder(stack.pop(), is_included)

    def _walk_folder(self, folder: _Folder, is_included: Callable[[str], bool]) -> list[_Folder]:
        """Record the files of a folder, and return its subfolders."""
        if folder.base.count("/") > _DEEPEST + self.base.count("/"):
            reason = f"it is nested {_DEEPEST} folders deep and was not read. Move it further up."
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
                inner = self._record_entry(entry, path, folder, is_included)
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
        """Return whether a file or folder is not hidden and is in the part to read."""
        if name == INDEX_FOLDER or (name.startswith(".") and not self.rules.hidden):
            return False
        if self.below:
            below = f"{self.below}/"
            if not (f"{path}/".startswith(below) or below.startswith(f"{path}/")):
                return False
        # Backslashes are shown as slashes, so such a name would look like another path.
        if "\\" in name:
            self._report(path, "its name has a backslash. Rename it.")
            return False
        return True

    def _with_rules(self, folder: _Folder, names: set[str]) -> _Folder:
        """Return the folder with its own ignore file and, for an Obsidian vault, its settings."""
        place = Path(folder.place)
        if self.rules.gitignore and IGNORE_FILE in names:
            try:
                data = read_file(place / IGNORE_FILE, MAX_SETTINGS, root=self.root)
            except DocumentError as error:
                self._report(f"{folder.base}{IGNORE_FILE}", f"it was not applied: {error}")
            else:
                # Like Git, skip lines that are not patterns.
                lines = filter(pattern_of, data.decode("utf-8", "replace").splitlines())
                ignore = (folder.base, spec_of(lines))
                folder = folder._replace(ignores=(*folder.ignores, ignore))
        if VAULT in names and (place / VAULT).is_dir():
            no_notes = folders_without_notes(place, folder.base, self.root)
            folder = folder._replace(vault=no_notes)
        return folder

    def _record_entry(
        self,
        entry: os.DirEntry[str],
        path: str,
        folder: _Folder,
        is_included: Callable[[str], bool],
    ) -> _Folder | None:
        """Record a file or a link, or return a folder to walk."""
        is_link = entry.is_symlink()
        is_folder = entry.is_dir() and not is_link
        if is_ignored(folder.ignores, f"{path}/" if is_folder else path):
            return None
        if is_folder:
            is_excluded = entry.path == self.exclude
            return None if is_excluded else folder._replace(place=entry.path, base=f"{path}/")
        is_link_to_folder = is_link and entry.is_dir()
        if not is_link_to_folder and not is_included(path[len(self.base) :]):
            is_configuration = path == self.base + FOLDER_FILE
            if entry.is_file() and not is_link and not is_configuration:
                self.discovery.skipped.append(path)
        elif is_link and not is_inside(entry.path, self.root):
            reason = "a symbolic link out of the folder. Index the other folder, too: NAME=PATH."
            self._report(path, reason)
        elif folder.vault is not None and _has_no_note(path, folder.vault):
            self.discovery.skipped.append(path)
        elif is_link:
            os.stat(entry.path)  # noqa: PTH116  raises an error for a loop
            self.discovery.skipped.append(path)  # its target is read under its own name
        elif not entry.is_file():
            self._report(path, "not a regular file.")
        else:
            self._record_file(entry, path, in_vault=folder.vault is not None)
        return None

    def _record_file(self, entry: os.DirEntry[str], path: str, *, in_vault: bool) -> None:
        status = entry.stat()
        limit = self.rules.max_bytes
        if status.st_size > limit:
            limit = self.rules.size_limit(path)
        if status.st_size > limit:
            size = f"{status.st_size:,} bytes are more than max_bytes={limit:,}"
            self._report(path, f"{size}. Split it, or raise that.")
        else:
            file = FolderFile(path, entry.path, stamp_of(status), in_vault)
            self.discovery.files.append(file)


def _has_no_note(path: str, folders: tuple[str, ...]) -> bool:
    return path.startswith(folders) or path.lower().endswith(_DRAWING)


def summary_of_skipped(paths: Sequence[str], *, offers_code: bool = False) -> str:
    """Return a line about skipped files, by their kinds; "" if there are none.

    Args:
        paths: The paths of the files.
        offers_code: Whether to mention the option that reads source code.
    """
    if not paths:
        return ""
    suffixes = sorted(Path(path).suffix.lower().removeprefix(".") for path in paths)
    counts = Counter(suffix for suffix in suffixes if suffix and not suffix.isdigit())
    common = counts.most_common(_SHOWN_KINDS)  # equal counts in alphabetical order
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


def walk_folders(
    folders: Folders,
    rules: FileRules,
    *,
    below: str = "",
    exclude: Path | None = None,
    until: float = math.inf,
) -> Discovery:
    """Walk all folders of an index.

    Args:
        folders: The folders of the index.
        rules: The rules that select files.
        below: The only subfolder or file to find, in POSIX form; "" means everything.
        exclude: A folder that is never entered, such as the index's own storage.
        until: The time to stop, by ``time.monotonic``. The discovery is then ``unfinished``.
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
                f"the folder {folder} does not exist. Its indexed files are kept. "
                f"Put it back, index {name}=PATH at its new place, "
                "or delete index.sqlite3 and index the other folders"
            )
            discovery.problems.append(Problem(base, reason))
            continue
        _Walk(discovery, folder, rules, base, below, excluded).run(until)
    discovery.files.sort()
    discovery.problems.sort()
    discovery.skipped.sort()
    return discovery
