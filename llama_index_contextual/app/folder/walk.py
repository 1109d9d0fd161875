"""Which files of a folder an index reads: ignore rules, hidden folders, symbolic links, sizes, Obsidian vaults.

Paths are POSIX, relative to the folder, because they are the documents' identity: the same on every machine.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.files import Wanted, is_ignored, pattern_of, read_file, spec_of
from llama_index_contextual.app.folder.formats import FORMATS, suffix_of
from llama_index_contextual.app.settings.loading import FILE as CONFIGURATION
from llama_index_contextual.app.settings.schema import Size
from llama_index_contextual.errors import Checked, DocumentError
from llama_index_contextual.text import MARKDOWN_SUFFIXES, counted

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec
    from typing_extensions import Self

DEFAULT_INCLUDE: Final = tuple(f"*{suffix}" for suffix in (*MARKDOWN_SUFFIXES, ".txt", ".text", ".rst"))
# What the context "pattern" is made for, and reads where nobody names the files.
SOURCE_INCLUDE: Final = tuple(
    f"*.{suffix}"
    for suffix in """
    bash c cc clj cpp cs cxx dart erl ex exs fs go groovy h hh hpp hs java jl js jsx kt kts lua m ml mjs mm php pl pm
    ps1 py pyi r rb rs scala sh sql swift tcl ts tsx vb vue zig
    """.split()  # noqa: SIM905  fifty suffixes read better as text
)
_LARGE: Final = 100_000_000  # bytes of a document that is converted: pictures are most of it
_KINDS: Final = 5  # that a message names
_DEEPEST: Final = 100  # folders in one another
_MOST_TEXT: Final = 1_000_000  # bytes of an ignore file, or of settings of a vault
_VAULT: Final = ".obsidian"  # a folder in a vault
# Where the settings of a vault name the folder of its templates: Obsidian's own, and the plugin Templater's.
_TEMPLATES: Final = {"templates.json": "folder", "plugins/templater-obsidian/data.json": "templates_folder"}
_DRAWING: Final = ".excalidraw.md"


def default_include() -> tuple[str, ...]:
    """The patterns of the files that are read where nobody names any: text, and what the extra converts."""
    converted = [f"*{suffix}" for suffix in FORMATS] if formats.has_extra() else []
    return tuple(dict.fromkeys((*DEFAULT_INCLUDE, *converted)))


class FileRules(Checked, BaseModel):
    """Which files of a folder count.

    Symbolic links are not followed: what one inside the folder leads to has a name of its own, and one that leaves it
    may lead anywhere.

    Attributes:
        include: ``.gitignore``-style patterns of the files to read, with two double stars at most. One that ends in a
            suffix, as ``*.md`` does, means files only (``NOTES.MD``, too), never all of a folder ``notes.md``.
        exclude: More patterns to leave out, as if they stood in a ``.gitignore`` at the folder's top.
        gitignore: Whether ``.gitignore`` files in the folder are obeyed.
        hidden: Whether files and folders whose name starts with a dot are read.
        max_bytes: Larger files are reported and not read; of those that are converted, larger than 100 MB or this.
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
        if wrong := [pattern for pattern in patterns if pattern_of(pattern) is None]:
            raise ValueError(f"escape or correct {wrong}, which no .gitignore could hold")
        return patterns

    def changed(self, **values: Any) -> Self:
        """The same with other values, which are checked.

        Raises:
            SettingError: A value cannot work.
        """
        explicit = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**explicit, **values}) if values else self


class FolderFile(NamedTuple):
    """One file to read: its path relative to the folder (POSIX), where it is, its size and times, and its rules."""

    path: str
    place: str
    stamp: str
    in_vault: bool = False


def stamp_of(status: os.stat_result) -> str:
    """A file's size and times, which differ after any change; times of both kinds, as one can be set back."""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


@dataclass(frozen=True, order=True, slots=True)
class Problem:
    """What could not be read and why; ``path`` is relative to the folder, and may be a folder ending in ``/``."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(slots=True)
class Discovery:
    """The files of a folder in a stable order, and those that are left out.

    ``skipped`` are files that no pattern names, and none leaves out, and links within the folder. ``not_notes`` are
    templates and drawings of Obsidian vaults, which patterns name.
    """

    files: list[FolderFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    not_notes: list[str] = field(default_factory=list)
    unfinished: bool = False


class _Folder(NamedTuple):
    """A folder that is walked later.

    Attributes:
        place: Where it is.
        base: Its path in the index, with a slash, or "".
        ignores: The ignore files that hold in it.
        vault: How the paths begin that hold no notes, in an Obsidian vault; None elsewhere.
    """

    place: str
    base: str
    ignores: tuple[tuple[str, GitIgnoreSpec], ...] = ()
    vault: tuple[str, ...] | None = None


def find_files(
    root: Path, rules: FileRules, *, below: str = "", exclude: Path | None = None, until: float = math.inf
) -> Discovery:
    """Walk a folder.

    Args:
        root: The folder that paths are relative to.
        rules: Which files count.
        below: Only this sub-folder or file of it, in POSIX form; "" is everything.
        exclude: A folder that is never entered: the index's own storage.
        until: When to stop, by ``time.monotonic``; what is found then is ``unfinished``.
    """
    walk = _Walk(root.resolve(), rules, below.rstrip("/"), str(exclude.resolve()) if exclude is not None else "")
    found = walk.found
    while walk.stack:
        if time.monotonic() > until:
            found.unfinished = True
            break
        folder = walk.stack.pop()
        try:
            walk.enter(folder)
        except OSError as error:
            walk.report(folder.base or "./", f"the folder cannot be read ({error.strerror}).")
    for paths in (found.files, found.problems, found.skipped, found.not_notes):
        paths.sort()
    return found


class _Walk:
    """One walk over a folder, with a stack."""

    def __init__(self, root: Path, rules: FileRules, below: str, exclude: str) -> None:
        self.found = Discovery()
        self.stack = [_Folder(str(root), "", (("", spec_of(rules.exclude)),))]
        self._root, self._rules, self._below, self._exclude = root, rules, below, exclude
        self._wanted = Wanted(rules.include)

    def report(self, path: str, reason: str) -> None:
        """Note what is not read."""
        self.found.problems.append(Problem(path, reason))

    def enter(self, folder: _Folder) -> None:
        """Find the files of a folder, and put the folders in it on the stack."""
        below = self._below
        if folder.base.count("/") > _DEEPEST:
            self.report(folder.base, f"it is {_DEEPEST} folders deep, and is not read. Cure: move it further up.")
            return
        with os.scandir(folder.place) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        folder = self._with_rules(folder, {entry.name for entry in entries})
        for entry in entries:
            path = folder.base + entry.name
            if below and not (f"{path}/".startswith(f"{below}/") or f"{below}/".startswith(f"{path}/")):
                continue
            if entry.name.startswith(".") and not self._rules.hidden:
                continue
            try:
                path.encode()
                self._entry(entry, path, folder)
            except UnicodeEncodeError:
                shown = path.encode("utf-8", "backslashreplace").decode()
                self.report(shown, "its name is not valid UTF-8. Cure: rename it.")
            except OSError as error:
                self.report(path, f"it cannot be read ({error.strerror}).")

    def _with_rules(self, folder: _Folder, names: set[str]) -> _Folder:
        """The folder with its own ignore file, and with the settings of a vault that begins in it."""
        if self._rules.gitignore and ".gitignore" in names:
            try:
                data = read_file(os.path.join(folder.place, ".gitignore"), _MOST_TEXT, root=self._root)  # noqa: PTH118
                lines = filter(pattern_of, data.decode("utf-8", "replace").splitlines())  # git skips others, too
                folder = folder._replace(ignores=(*folder.ignores, (folder.base, spec_of(lines))))
            except DocumentError as error:
                self.report(f"{folder.base}.gitignore", f"it is not obeyed: {error}")
        if _VAULT in names and os.path.isdir(os.path.join(folder.place, _VAULT)):  # noqa: PTH112, PTH118
            folder = folder._replace(vault=_no_notes(Path(folder.place), folder.base, self._root))
        return folder

    def _entry(self, entry: os.DirEntry[str], path: str, within: _Folder) -> None:
        is_link, is_folder = entry.is_symlink(), entry.is_dir()
        is_wanted = is_folder or self._wanted.match_file(path)
        if is_ignored(within.ignores, f"{path}/" if is_folder and not is_link else path):
            return
        if is_link:
            if is_wanted:
                self._link(entry, path)
        elif is_folder:
            if entry.path != self._exclude:
                self.stack.append(within._replace(place=entry.path, base=f"{path}/"))
        elif is_wanted:
            self._file(entry, path, within.vault)
        elif path != CONFIGURATION and entry.is_file():
            self.found.skipped.append(path)

    def _file(self, entry: os.DirEntry[str], path: str, vault: tuple[str, ...] | None) -> None:
        status, most = entry.stat(), self._rules.max_bytes
        if status.st_size > most and suffix_of(path) in FORMATS:
            most = max(most, _LARGE)
        if vault is not None and (path.startswith(vault) or path.lower().endswith(_DRAWING)):
            self.found.not_notes.append(path)
        elif not entry.is_file():
            self.report(path, "not a regular file.")
        elif status.st_size > most:
            size = f"{status.st_size:,} bytes are more than max_bytes={most:,}"
            self.report(path, f"{size}. Cure: split it, or raise that.")
        else:
            self.found.files.append(FolderFile(path, entry.path, stamp_of(status), vault is not None))

    def _link(self, entry: os.DirEntry[str], path: str) -> None:
        """Report a link that leads out of the folder or nowhere; the target of any other has a name of its own."""
        os.stat(entry.path)  # noqa: PTH116  the system refuses loops and long chains, which would take their square
        if Path(os.path.realpath(entry.path)).is_relative_to(self._root):
            self.found.skipped.append(path)
        else:
            self.report(path, "a symbolic link out of the folder. Cure: index that folder, too: NAME=PATH.")


def vault_of(place: Path, top: Path) -> Path | None:
    """The Obsidian vault that a file is in; None where it is in none, or in one that begins above ``top``."""
    folders = (folder for folder in place.parents if folder == top or top in folder.parents)
    return next((folder for folder in folders if (folder / _VAULT).is_dir()), None)


def _no_notes(folder: Path, base: str, root: Path) -> tuple[str, ...]:
    """How the paths begin that hold no notes in a vault. Its settings are foreign: odd ones are passed over."""
    prefixes = [f"{base}{_VAULT}/", f"{base}.trash/"]
    for name, key in _TEMPLATES.items():
        with contextlib.suppress(DocumentError, RecursionError, ValueError, LookupError, TypeError, AttributeError):
            value = json.loads(read_file(folder / _VAULT / name, _MOST_TEXT, root=root))[key].strip("/ ")
            prefixes += [f"{base}{value}/"] if value else []
    return tuple(prefixes)


def summary_of_skipped(paths: Sequence[str]) -> str:
    """A line on files that are not read, by their kinds; "" for none."""
    if not paths:
        return ""
    suffixes = sorted(Path(path).suffix.lower().removeprefix(".") for path in paths)
    common = Counter(filter(None, suffixes)).most_common(_KINDS)  # of as many, in order of their names
    rest = len(paths) - sum(number for _, number in common)
    kinds = [f"{number} {kind}" for kind, number in common] + [f"{rest} of other kinds"] * bool(rest)
    is_lacking = not formats.has_extra() and any(suffix_of(path) in FORMATS for path in paths)
    cure = f"; pip install 'llama-index-contextual[{formats.EXTRA}]' reads some of them" * is_lacking
    return f"{counted(len(paths), 'file')} not read: {', '.join(kinds)}{cure}"
