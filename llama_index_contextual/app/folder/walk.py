"""Which files of a folder an index reads: ignore rules, hidden folders, symbolic links, sizes.

Paths are POSIX, relative to the folder, because they are the documents' identity: the same on every machine.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from llama_index_contextual.app.folder.files import read_file
from llama_index_contextual.app.folder.formats import EXTRA, FORMATS, default_patterns, lacking_extra, suffix_of
from llama_index_contextual.app.folder.obsidian import VAULT, is_drawing, no_notes
from llama_index_contextual.app.folder.patterns import Ignores, Wanted, pattern_of
from llama_index_contextual.app.settings.loading import FILE as CONFIGURATION
from llama_index_contextual.app.settings.schema import Size
from llama_index_contextual.errors import Checked, DocumentError
from llama_index_contextual.text import MARKDOWN_SUFFIXES, counted

if TYPE_CHECKING:
    from typing_extensions import Self

TEXT_SUFFIXES: Final = (".txt", ".text", ".rst")
DEFAULT_INCLUDE: Final = tuple(f"*{suffix}" for suffix in MARKDOWN_SUFFIXES + TEXT_SUFFIXES)
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
_MOST_TEXT: Final = 1_000_000  # bytes of an ignore file


def default_include() -> tuple[str, ...]:
    """The patterns of the files that are read where nobody names any: text, and what the extra converts."""
    return tuple(dict.fromkeys((*DEFAULT_INCLUDE, *default_patterns())))


class FileRules(Checked, BaseModel):
    """Which files of a folder count.

    Attributes:
        include: ``.gitignore``-style patterns of the files to read. One that ends in a suffix, as ``*.md`` does, means
            files only (``NOTES.MD``, too), never all of a folder that is called ``notes.md``.
        exclude: More patterns to leave out, as if they stood in a ``.gitignore`` at the folder's top.
        gitignore: Whether ``.gitignore`` files in the folder are obeyed.
        hidden: Whether files and folders whose name starts with a dot are read.
        follow_symlinks: Whether symbolic links are followed. By default they are not: a link that stays inside the
            folder leads to a file that is read anyway, and one that leaves it may lead anywhere.
        max_bytes: Larger files are reported and not read; of those that are converted, larger than 100 MB or this.
    """

    model_config = ConfigDict(frozen=True)

    include: tuple[str, ...] = Field(default_factory=default_include, min_length=1)
    exclude: tuple[str, ...] = ()
    gitignore: bool = True
    hidden: bool = False
    follow_symlinks: bool = False
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

    @property
    def absolute(self) -> Path:
        """Where it is."""
        return Path(self.place)


def stamp_of(status: os.stat_result) -> str:
    """A file's size and times, which differ after any change; times of both kinds, as one can be set back."""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


@dataclass(frozen=True, slots=True)
class Problem:
    """What could not be read and why; ``path`` is relative to the folder, and may be a folder ending in ``/``."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(slots=True)
class Discovery:
    """The files of a folder in a stable order, and those that are left out.

    ``skipped`` are files that no pattern names, and none leaves out. ``not_notes`` are templates and drawings of
    Obsidian vaults, which patterns name.
    """

    files: list[FolderFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    not_notes: list[str] = field(default_factory=list)
    unfinished: bool = False


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
    walk = _Walk(root.resolve(), rules, below.rstrip("/"), exclude, Discovery())
    walk.run(until)
    discovery = walk.discovery
    if not below and not discovery.unfinished:
        walk.judge_links()
    discovery.files.sort(key=lambda file: file.path)
    discovery.problems.sort(key=lambda problem: problem.path)
    discovery.skipped.sort()
    discovery.not_notes.sort()
    return discovery


def summary_of_skipped(paths: Sequence[str]) -> str:
    """A line on files that are not read, by their kinds; "" for none."""
    if not paths:
        return ""
    suffixes = sorted(Path(path).suffix.lower().removeprefix(".") for path in paths)
    common = Counter(filter(None, suffixes)).most_common(_KINDS)  # of as many, in order of their names
    rest = len(paths) - sum(number for _, number in common)
    kinds = [f"{number} {kind}" for kind, number in common] + [f"{rest} of other kinds"] * bool(rest)
    cure = f"; pip install 'llama-index-contextual[{EXTRA}]' reads some of them" if lacking_extra(paths) else ""
    return f"{counted(len(paths), 'file')} not read: {', '.join(kinds)}{cure}"


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
    ignores: Ignores
    vault: tuple[str, ...] | None = None


class _Walk:
    """One walk over a folder, with a stack: folders first, then links to folders, so that each is walked once."""

    def __init__(self, root: Path, rules: FileRules, below: str, exclude: Path | None, discovery: Discovery) -> None:
        self.discovery = discovery
        self._root, self._rules, self._below = root, rules, below
        self._patterns = Wanted(rules.include)
        self._stack = [_Folder(str(root), "", Ignores().entering("", rules.exclude))]
        self._linked: list[_Folder] = []  # folders behind links that are followed
        self._links: dict[str, str] = {}  # that are not followed, to what is in the folder, by path
        self._walked: set[tuple[int, int]] = set()  # device and number of each folder
        with contextlib.suppress(OSError):
            self._walked |= {_key(os.stat(exclude))} if exclude is not None else set()  # noqa: PTH116

    def run(self, until: float) -> None:
        """Walk all folders, until a moment."""
        while self._stack or self._linked:
            folder = self._stack.pop() if self._stack else self._linked.pop(0)
            if time.monotonic() > until:
                self.discovery.unfinished = True
                return
            try:
                self._folder(folder)
            except OSError as error:
                self._problem(folder.base, f"the folder cannot be read ({error.strerror}).")

    def _folder(self, folder: _Folder) -> None:
        key = _key(os.stat(folder.place))  # noqa: PTH116
        if key in self._walked:
            return
        self._walked.add(key)
        if folder.base.count("/") > _DEEPEST:
            self._problem(folder.base, f"it is {_DEEPEST} folders deep, and is not read. Cure: move it further up.")
            return
        with os.scandir(folder.place) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        within = self._with_rules(folder, {entry.name for entry in entries})
        for entry in entries:
            path = folder.base + entry.name
            if not self._is_relevant(path) or (entry.name.startswith(".") and not self._rules.hidden):
                continue
            try:
                self._entry(entry, path, within)
            except OSError as error:
                self._problem(path, f"it cannot be read ({error.strerror}).")

    def _with_rules(self, folder: _Folder, names: set[str]) -> _Folder:
        """The folder with its own ignore file, and with the settings of a vault that begins in it."""
        ignores, vault = folder.ignores, folder.vault
        if self._rules.gitignore and ".gitignore" in names:
            try:
                data = read_file(os.path.join(folder.place, ".gitignore"), _MOST_TEXT, root=self._root)  # noqa: PTH118
                ignores = ignores.entering(folder.base, data.decode("utf-8", "replace").splitlines())
            except DocumentError as error:
                self._problem(f"{folder.base}.gitignore", f"it is not obeyed: {error}")
        if VAULT in names and os.path.isdir(os.path.join(folder.place, VAULT)):  # noqa: PTH112, PTH118
            vault = no_notes(Path(folder.place), folder.base, self._root)
        return folder._replace(ignores=ignores, vault=vault)

    def _is_relevant(self, path: str) -> bool:
        """Whether a path is on the way to the sub-folder that is wanted, or in it."""
        below = self._below
        return not below or f"{path}/".startswith(f"{below}/") or f"{below}/".startswith(f"{path}/")

    def _entry(self, entry: os.DirEntry[str], path: str, within: _Folder) -> None:
        try:
            path.encode()
        except UnicodeEncodeError:
            shown = path.encode("utf-8", "backslashreplace").decode()
            self._problem(shown, "its name is not valid UTF-8. Cure: rename it.")
            return
        is_link = entry.is_symlink()
        if is_link and not self._rules.follow_symlinks:
            if not within.ignores.matches(path):
                self._unfollowed(entry, path)
        elif entry.is_dir():
            if not within.ignores.matches(f"{path}/"):
                (self._linked if is_link else self._stack).append(within._replace(place=entry.path, base=f"{path}/"))
                if is_link and f"{os.path.realpath(within.place)}/".startswith(f"{os.path.realpath(entry.path)}/"):
                    self._problem(f"{path}/", "a symbolic link to a folder above it. Cure: remove the link.")
        elif self._patterns.match_file(path):
            if not within.ignores.matches(path):
                self._file(entry, path, within.vault)
        elif path != CONFIGURATION and not within.ignores.matches(path) and entry.is_file():
            self.discovery.skipped.append(path)

    def _unfollowed(self, entry: os.DirEntry[str], path: str) -> None:
        """Report a link that leads out of the folder or nowhere, and note one whose target may be read by its name."""
        if not self._patterns.match_file(path) and not entry.is_dir():
            return
        os.stat(entry.path)  # noqa: PTH116  the system refuses loops and long chains, which would take their square
        target = Path(os.path.realpath(entry.path))
        if target.is_relative_to(self._root):
            self._links[path] = target.relative_to(self._root).as_posix()
        else:
            cure = "follow_symlinks of [files], if that is wanted"
            self._problem(path, f"a symbolic link out of the folder. Cure: {cure}.")

    def judge_links(self) -> None:
        """Report links to what is not read under its own name either: it is hidden, say, or ignored."""
        seen = [*(file.path for file in self.discovery.files), *self.discovery.not_notes]
        seen += [problem.path for problem in self.discovery.problems]
        reached = {"."}.union(*([path, *map(str, PurePosixPath(path).parents)] for path in seen))
        for path, target in self._links.items():
            if target not in reached:
                cure = "follow_symlinks of [files], or read that under its own name"
                self._problem(path, f"a symbolic link to {target}, which is not read. Cure: {cure}.")

    def _file(self, entry: os.DirEntry[str], path: str, vault: tuple[str, ...] | None) -> None:
        if vault is not None and (path.startswith(vault) or is_drawing(entry.path)):
            self.discovery.not_notes.append(path)
            return
        if not entry.is_file():
            self._problem(path, "not a regular file.")
            return
        status, most = entry.stat(), self._rules.max_bytes
        if status.st_size > most and suffix_of(path) in FORMATS:
            most = max(most, _LARGE)
        if status.st_size > most:
            reason = f"{status.st_size:,} bytes are more than max_bytes={most:,}. Cure: split it, or raise that."
            self._problem(path, reason)
            return
        self.discovery.files.append(FolderFile(path, entry.path, stamp_of(status), vault is not None))

    def _problem(self, path: str, reason: str) -> None:
        self.discovery.problems.append(Problem(path or "./", reason))


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
