"""Which files an index reads, of one folder or of several that have names.

Ignore rules, hidden folders, symbolic links, sizes and Obsidian vaults decide. A path is in POSIX form and relative to
the one folder, because it is the document's identity: the same on every machine. Of several folders it begins with the
name of its own: ``notes/2026/plan.md`` is ``2026/plan.md`` in the folder that is called ``notes``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.files import Wanted, is_ignored, pattern_of, read_file, spec_of
from llama_index_contextual.app.folder.formats import FORMATS, suffix_of
from llama_index_contextual.app.settings.loading import FILE as CONFIGURATION
from llama_index_contextual.app.settings.loading import checked_value
from llama_index_contextual.app.settings.schema import Collection, Size
from llama_index_contextual.errors import Checked, DocumentError, SettingError
from llama_index_contextual.text import MARKDOWN_SUFFIXES, counted

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec
    from typing_extensions import Self

# What the context "pattern" is made for, and reads where nobody names the files.
_SOURCE: Final = """
    bash c cc clj cpp cs cxx dart erl ex exs fs go groovy h hh hpp hs java jl js jsx kt kts lua m ml mjs mm php pl pm
    ps1 py pyi r rb rs scala sh sql swift tcl ts tsx vb vue zig
"""
SOURCE_INCLUDE: Final = tuple(f"*.{suffix}" for suffix in _SOURCE.split())
_MOST_TEXT: Final = 1_000_000  # bytes of an ignore file, or of settings of a vault
_VAULT: Final = ".obsidian"  # a folder in a vault
# Where the settings of a vault name the folder of its templates: Obsidian's own, and the plugin Templater's.
_TEMPLATES: Final = {"templates.json": "folder", "plugins/templater-obsidian/data.json": "templates_folder"}
_NAME: Final = re.compile(r"\w[\w.-]{0,99}")


def default_include() -> tuple[str, ...]:
    """The patterns of the files that are read where nobody names any: text, and what the extra converts."""
    suffixes = (*MARKDOWN_SUFFIXES, ".txt", ".text", ".rst", *(FORMATS if formats.has_extra() else ()))
    return tuple(dict.fromkeys(f"*{suffix}" for suffix in suffixes))


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
        return type(self)(**{**{name: getattr(self, name) for name in self.model_fields_set}, **values})


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


class _Walk:
    """One walk over a folder, with a stack."""

    def __init__(self, found: Discovery, root: Path, rules: FileRules, base: str, below: str, exclude: str) -> None:
        self.stack = [_Folder(str(root), base, ((base, spec_of(rules.exclude)),))]
        self._found, self._root, self._rules, self._below, self._exclude = found, root, rules, below, exclude
        self._base, self._wanted = base, Wanted(rules.include)

    def report(self, path: str, reason: str) -> None:
        """Note what is not read."""
        self._found.problems.append(Problem(path, reason))

    def enter(self, folder: _Folder) -> None:
        """Find the files of a folder, and put the folders in it on the stack."""
        below = self._below
        if folder.base.count("/") > 100 + self._base.count("/"):
            self.report(folder.base, "it is 100 folders deep, and is not read. Cure: move it further up.")
            return
        with os.scandir(folder.place) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        folder = self._with_rules(folder, {entry.name for entry in entries})
        for entry in entries:
            path = folder.base + entry.name
            is_outside = below and not (f"{path}/".startswith(f"{below}/") or f"{below}/".startswith(f"{path}/"))
            if is_outside or (entry.name.startswith(".") and not self._rules.hidden):
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
        place, base = Path(folder.place), folder.base
        if self._rules.gitignore and ".gitignore" in names:
            try:
                data = read_file(place / ".gitignore", _MOST_TEXT, root=self._root)
                lines = filter(pattern_of, data.decode("utf-8", "replace").splitlines())  # git skips others, too
                folder = folder._replace(ignores=(*folder.ignores, (base, spec_of(lines))))
            except DocumentError as error:
                self.report(f"{base}.gitignore", f"it is not obeyed: {error}")
        if _VAULT in names and (place / _VAULT).is_dir():
            no_notes = [f"{base}{_VAULT}/", f"{base}.trash/"]
            for name, key in _TEMPLATES.items():  # foreign settings: odd ones are passed over
                with contextlib.suppress(
                    DocumentError, RecursionError, ValueError, LookupError, TypeError, AttributeError
                ):
                    value = json.loads(read_file(place / _VAULT / name, _MOST_TEXT, root=self._root))[key].strip("/ ")
                    no_notes += [f"{base}{value}/"] if value else []
            folder = folder._replace(vault=tuple(no_notes))
        return folder

    def _entry(self, entry: os.DirEntry[str], path: str, within: _Folder) -> None:
        is_link, is_folder = entry.is_symlink(), entry.is_dir()
        is_wanted = is_folder or self._wanted.match_file(path[len(self._base) :])
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
        elif path != self._base + CONFIGURATION and entry.is_file():
            self._found.skipped.append(path)

    def _file(self, entry: os.DirEntry[str], path: str, vault: tuple[str, ...] | None) -> None:
        status, most = entry.stat(), self._rules.max_bytes
        if status.st_size > most and suffix_of(path) in FORMATS:
            most = max(most, 100_000_000)  # pictures are most of a document that is converted
        if vault is not None and (path.startswith(vault) or path.lower().endswith(".excalidraw.md")):
            self._found.not_notes.append(path)
        elif not entry.is_file():
            self.report(path, "not a regular file.")
        elif status.st_size > most:
            size = f"{status.st_size:,} bytes are more than max_bytes={most:,}"
            self.report(path, f"{size}. Cure: split it, or raise that.")
        else:
            self._found.files.append(FolderFile(path, entry.path, stamp_of(status), vault is not None))

    def _link(self, entry: os.DirEntry[str], path: str) -> None:
        """Report a link that leads out of the folder or nowhere; the target of any other has a name of its own."""
        os.stat(entry.path)  # noqa: PTH116  the system refuses loops and long chains, which would take their square
        if Path(os.path.realpath(entry.path)).is_relative_to(self._root):
            self._found.skipped.append(path)
        else:
            self.report(path, "a symbolic link out of the folder. Cure: index that folder, too: NAME=PATH.")


def summary_of_skipped(paths: Sequence[str]) -> str:
    """A line on files that are not read, by their kinds; "" for none."""
    if not paths:
        return ""
    suffixes = sorted(Path(path).suffix.lower().removeprefix(".") for path in paths)
    common = Counter(filter(None, suffixes)).most_common(5)  # of as many, in order of their names
    rest = len(paths) - sum(number for _, number in common)
    kinds = [f"{number} {kind}" for kind, number in common] + [f"{rest} of other kinds"] * bool(rest)
    is_lacking = not formats.has_extra() and any(suffix_of(path) in FORMATS for path in paths)
    cure = f"; pip install 'llama-index-contextual[{formats.EXTRA}]' reads some of them" * is_lacking
    return f"{counted(len(paths), 'file')} not read: {', '.join(kinds)}{cure}"


@dataclass(frozen=True, slots=True)
class Folders:
    """The one folder of an index, or several by name.

    Attributes:
        root: The one folder; of several, the storage of their index.
        collections: The several.
    """

    root: Path
    collections: dict[str, Collection] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(self.collections) or str(self.root)

    @property
    def by_name(self) -> dict[str, Path]:
        """The folders; the name of the one is ""."""
        return {name: collection.folder for name, collection in self.collections.items()} or {"": self.root}

    @property
    def missing_folders_message(self) -> str:
        """A message that none of the folders is there, as where a disk is not mounted; "" where one is."""
        places = self.by_name.values()
        is_there = any(place.is_dir() for place in places)
        return "" if is_there else f"the folder {' or '.join(map(str, places))} is no longer there"

    def root_of(self, path: str) -> Path | None:
        """The folder that a document is in; None where its path begins with no name of a folder."""
        return self.by_name.get(path.partition("/")[0]) if self.collections else self.root

    def place(self, path: str) -> Path:
        """Where a document is. One that no folder has, as it was passed as an object, is nowhere below the root."""
        root = self.root_of(path)
        rest = path.partition("/")[2] if self.collections and root else path
        return (root or self.root) / rest

    def vault_of(self, path: str) -> Path | None:
        """The Obsidian vault that a document is in; None where it is in none, or in one that begins further up."""
        place, top = self.place(path), self.root_of(path)
        folders = (folder for folder in place.parents if top is not None and folder.is_relative_to(top))
        return next((folder for folder in folders if (folder / _VAULT).is_dir()), None)

    def path_of(self, place: Path) -> str | None:
        """The path of a file or folder; None where it is outside of all folders."""
        inside = ((name, folder) for name, folder in self.by_name.items() if place.is_relative_to(folder))
        found = next((Path(name, place.relative_to(folder)).as_posix() for name, folder in inside), None)
        return "" if found == "." else found

    def part_of(self, source: str | Path | None) -> str:
        """The path of a file or folder that is named absolutely or relative to the index; "" is everything.

        Raises:
            SettingError: It is outside, or does not exist.
        """
        if source is None or (self.collections and str(source) in ("", ".")):
            return ""
        place = Path(source).expanduser()
        place = (place if place.is_absolute() else self.place(place.as_posix())).resolve()
        path = self.path_of(place)
        if path is None:
            raise SettingError(f"{source} is outside of {self}. Cure: open an index for that folder.")
        if not place.exists():
            raise SettingError(f"{source} does not exist. Cure: refresh the folder it was in, and it is forgotten.")
        return path

    def find(
        self, rules: FileRules, *, below: str = "", exclude: Path | None = None, until: float = math.inf
    ) -> Discovery:
        """Walk the folder, or all of the several.

        Args:
            rules: Which files count.
            below: Only this sub-folder or file, in POSIX form; "" is everything.
            exclude: A folder that is never entered: the index's own storage.
            until: When to stop, by ``time.monotonic``; what is found then is ``unfinished``.
        """
        found, below = Discovery(), below.strip("/")
        for name, folder in self.by_name.items():
            one, base = self.collections.get(name), f"{name}/" * bool(name)
            if one and below.partition("/")[0] not in ("", name):
                continue
            if one and not folder.is_dir():
                cure = "put it back, or delete index.sqlite3 in the storage folder and index the others"
                reason = f"the folder {folder} is not there; what is indexed of it stays. Cure: {cure}"
                found.problems.append(Problem(base, reason))
                continue
            if one:
                rules_of = rules.changed(include=one.include or rules.include, exclude=(*rules.exclude, *one.exclude))
            walk = _Walk(
                found, folder.resolve(), rules_of if one else rules, base, below, str(exclude and exclude.resolve())
            )
            while walk.stack and not found.unfinished:
                found.unfinished, entered = time.monotonic() > until, walk.stack.pop()
                try:
                    walk.enter(entered)
                except OSError as error:
                    walk.report(entered.base or "./", f"the folder cannot be read ({error.strerror}).")
        for paths in (found.files, found.problems, found.skipped, found.not_notes):
            paths.sort()
        return found


def collections_of(folders: Mapping[str, Any]) -> dict[str, Collection]:
    """Several folders by name, checked.

    Args:
        folders: By name: a path, or a mapping with ``path`` and the other attributes of :class:`Collection`.

    Raises:
        SettingError: A name cannot work, there are two alike, or a folder is in another.
    """
    collections: dict[str, Collection] = {}
    for name, value in folders.items():
        if not _NAME.fullmatch(name):
            cure = "letters, digits, '_', '-' and '.', such as notes=PATH"
            raise SettingError(f"{name!r} is no name of a folder. Cure: {cure}")
        values = {"path": value} if isinstance(value, str | Path) else value
        collection: Collection = checked_value("collections", {name: values})[name]
        for other_name, other in collections.items():
            if other_name.casefold() == name.casefold():
                raise SettingError(f"two folders are called {name!r}. Cure: another name for one, as in {name}2=PATH")
            if collection.folder.is_relative_to(other.folder) or other.folder.is_relative_to(collection.folder):
                both = f"{collection.folder} and {other.folder} hold the same files, which would be indexed twice"
                raise SettingError(f"{both}. Cure: one of them, or exclude= and the outer one alone")
        collections[name] = collection
    return collections


def named_folders(arguments: Iterable[str]) -> dict[str, str]:
    """Folders by name, as a command line gives them: ``PATH``, called by its last part, or ``NAME=PATH``.

    Raises:
        SettingError: Two have the same name, or one is no folder.
    """
    folders: dict[str, str] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or not _NAME.fullmatch(name) or Path(argument).exists():
            name, path = Path(argument).expanduser().resolve().name, argument
        if not Path(path).expanduser().is_dir():
            raise SettingError(f"{path} is no folder. Cure: name one that exists")
        if name in folders:
            both = f"{folders[name]} and {path} are both called {name!r}"
            raise SettingError(f"{both}. Cure: a name, as in {name}2={path}")
        folders[name] = path
    return folders
