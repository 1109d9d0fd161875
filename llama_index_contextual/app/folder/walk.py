"""Which files of a folder an index reads: ignore rules, hidden folders, symbolic links, sizes.

Paths are POSIX, relative to the folder, because they are the documents' identity: the same on every machine.
"""

from __future__ import annotations

import codecs
import errno
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from llama_index_contextual.app.folder.formats import EXTRA, FORMATS, default_patterns, lacking_extra, suffix_of
from llama_index_contextual.app.folder.patterns import Ignores, Wanted, pattern_of
from llama_index_contextual.app.settings.loading import FILE as CONFIGURATION
from llama_index_contextual.app.settings.schema import Size
from llama_index_contextual.errors import Checked
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
_VAULT: Final = ".obsidian"  # a folder in an Obsidian vault's own
_NEVER_NOTES: Final = (f"{_VAULT}/", ".trash/")
_DRAWING: Final = ".excalidraw.md"
_NOTE: Final = ".md"  # what may hold a drawing under another name: the plugin goes by a key of the front matter
_DRAWING_KEY: Final = re.compile(rb"""^["']?excalidraw-plugin["']?[ \t]*:""", re.MULTILINE)
_FRONT_MATTER_END: Final = re.compile(rb"^(?:---|\.\.\.)[ \t]*\r?$", re.MULTILINE)
_MOST_FRONT_MATTER: Final = 100_000  # bytes
# Where the settings of a vault say which folder its templates are in: Obsidian's own, and the plugin Templater's.
_TEMPLATES: Final = (("templates.json", "folder"), ("plugins/templater-obsidian/data.json", "templates_folder"))
_MOST_TEXT: Final = 1_000_000  # bytes of an ignore file, or of settings of a vault


def default_include() -> tuple[str, ...]:
    """Return the patterns of the files that are read where nobody names any: text, and what the extra converts."""
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
        """Return where it is."""
        return Path(self.place)


def stamp_of(status: os.stat_result) -> str:
    """Return a file's size and times, which differ after any change; times of both kinds, as one can be set back."""
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
    """What a folder holds: files in a stable order, and what was left out although it looked wanted.

    ``skipped`` are files that nobody asked for: no pattern names them, and none leaves them out. ``not_notes`` are
    templates and drawings of Obsidian vaults, which patterns name.
    """

    files: list[FolderFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    not_notes: list[str] = field(default_factory=list)
    unfinished: bool = False


def _small_text(file: Path, root: Path) -> str:
    """Return the text of a file of the folder that says how to read it; "" where there is none.

    Raises:
        OSError: There is one that cannot be read or must not be: a pipe or a device, which may never end, a link out of
            the root, or a file of more than a megabyte.
    """
    if not file.is_symlink() and not file.exists():
        return ""
    if not file.is_file() or not file.resolve(strict=True).is_relative_to(root):
        raise OSError(errno.EINVAL, "no regular file of this folder")
    if file.stat().st_size > _MOST_TEXT:
        raise OSError(errno.EFBIG, f"more than {_MOST_TEXT:,} bytes")
    return file.read_text(encoding="utf-8", errors="replace")


def find_files(
    root: Path, rules: FileRules, *, below: str = "", exclude: Path | None = None, until: float = math.inf
) -> Discovery:
    """Walk a folder.

    Args:
        root: The folder that paths are relative to.
        rules: What counts.
        below: Only this sub-folder or file of it, in POSIX form; "" is everything.
        exclude: A folder that is never entered: the index's own storage.
        until: When to stop, by ``time.monotonic``; what is found then is ``unfinished``.
    """
    discovery = Discovery()
    ignores = Ignores().entering("", rules.exclude)
    walk = _Walk(root.resolve(), rules, Wanted(rules.include), below, exclude, until, discovery)
    walk.folder(root.resolve(), "", _Within(ignores))
    walk.judge_links()
    discovery.files.sort(key=lambda file: file.path)
    discovery.problems.sort(key=lambda problem: problem.path)
    discovery.skipped.sort()
    discovery.not_notes.sort()
    return discovery


def vault_of(place: Path, top: Path) -> Path | None:
    """Return the Obsidian vault that a file is in; None where it is in none, or in one that begins above ``top``."""
    folders = (folder for folder in place.parents if folder == top or top in folder.parents)
    return next((folder for folder in folders if (folder / _VAULT).is_dir()), None)


def _not_notes(folder: Path, base: str, root: Path) -> tuple[str, ...]:
    """Return how the paths begin that hold no notes in a vault. Its settings are foreign: one that is odd says nothing.

    Args:
        folder: The vault.
        base: Its path in the index, with a slash, or "".
        root: The folder of the index.
    """
    prefixes = [base + name for name in _NEVER_NOTES]
    for name, key in _TEMPLATES:
        try:
            value = json.loads(_small_text(folder / _VAULT / name, root))[key]
        except (OSError, RuntimeError, ValueError, LookupError, TypeError):  # a RuntimeError: a link to itself, depth
            continue
        if isinstance(value, str) and (templates := value.strip("/ ")):
            prefixes.append(f"{base}{templates}/")
    return tuple(prefixes)


def _is_drawing(file: str) -> bool:
    """Return whether the front matter of a regular file says that it is a drawing of Excalidraw."""
    try:
        with open(file, "rb") as stream:  # noqa: PTH123  a walk does this for each note of a vault
            fence = stream.readline(10).removeprefix(codecs.BOM_UTF8)
            if fence.rstrip() != b"---":
                return False
            head = stream.read(_MOST_FRONT_MATTER)
    except OSError:  # whoever reads the note says so
        return False
    end = _FRONT_MATTER_END.search(head)
    return end is not None and _DRAWING_KEY.search(head, 0, end.start()) is not None


def summary_of_skipped(paths: Sequence[str]) -> str:
    """Return a line on files that are not read, by their kinds; "" for none."""
    if not paths:
        return ""
    suffixes = sorted(Path(path).suffix.lower().removeprefix(".") for path in paths)
    common = Counter(filter(None, suffixes)).most_common(_KINDS)  # of as many, in order of their names
    rest = len(paths) - sum(number for _, number in common)
    kinds = [f"{number} {kind}" for kind, number in common] + [f"{rest} of other kinds"] * bool(rest)
    cure = f"; pip install 'llama-index-contextual[{EXTRA}]' reads some of them" if lacking_extra(paths) else ""
    return f"{counted(len(paths), 'file')} not read: {', '.join(kinds)}{cure}"


class _Within(NamedTuple):
    """What holds in a folder, and below it.

    Attributes:
        ignores: The ignore files.
        ancestors: The folders above it.
        vault: How the paths begin that hold no notes, in an Obsidian vault; None elsewhere.
    """

    ignores: Ignores
    ancestors: frozenset[Path] = frozenset()
    vault: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Walk:
    root: Path
    rules: FileRules
    patterns: Wanted
    below: str
    exclude: Path | None
    until: float
    discovery: Discovery
    links: dict[str, str] = field(default_factory=dict)  # to what is in the folder, by path

    def folder(self, folder: Path, base: str, around: _Within) -> None:
        """Walk a folder, given what holds in the folder around it."""
        real, (ignores, ancestors, vault) = folder.resolve(), around
        if self.exclude is not None and real == self.exclude.resolve():
            return
        if real in ancestors:
            self._problem(base, "a symbolic link that leads back to a folder above it. Cure: remove the link.")
            return
        if self.rules.gitignore:
            try:
                ignores = ignores.entering(base, _small_text(folder / ".gitignore", self.root).splitlines())
            except (OSError, RuntimeError) as error:  # a RuntimeError is a link to itself, before Python 3.13
                self._problem(f"{base}.gitignore", f"it is not obeyed: {getattr(error, 'strerror', None) or error}.")
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            self._problem(base, f"the folder cannot be read ({error.strerror}).")
            return
        if any(entry.name == _VAULT and entry.is_dir(follow_symlinks=False) for entry in entries):
            vault = _not_notes(folder, base, self.root)
        within = _Within(ignores, ancestors | {real}, vault)
        for entry in entries:
            if time.monotonic() > self.until:
                self.discovery.unfinished = True
                return
            path = base + entry.name
            if self._irrelevant(path) or (entry.name.startswith(".") and not self.rules.hidden):
                continue
            self._entry(entry, path, within)

    def _irrelevant(self, path: str) -> bool:
        """Whether a path is neither on the way to the sub-folder that is asked for nor in it."""
        if not self.below:
            return False
        below = self.below.rstrip("/")
        return not f"{path}/".startswith(f"{below}/") and not f"{below}/".startswith(f"{path}/")

    def _entry(self, entry: os.DirEntry[str], path: str, within: _Within) -> None:
        try:
            path.encode()
        except UnicodeEncodeError:
            shown = path.encode("utf-8", "backslashreplace").decode()
            self._problem(shown, "its name is not valid UTF-8. Cure: rename it.")
            return
        try:
            link = entry.is_symlink()
            if link and not self.rules.follow_symlinks:
                if not within.ignores.matches(path):
                    self._unfollowed(entry, path)
            elif entry.is_dir():
                if not within.ignores.matches(f"{path}/"):
                    self.folder(Path(entry.path), f"{path}/", within)
            elif self.patterns.match_file(path):
                if not within.ignores.matches(path):
                    self._file(entry, path, within.vault)
            elif path != CONFIGURATION and not within.ignores.matches(path) and entry.is_file():
                self.discovery.skipped.append(path)
        except OSError as error:
            self._problem(path, f"it cannot be read ({error.strerror}).")

    def _unfollowed(self, entry: os.DirEntry[str], path: str) -> None:
        """Report a link that leads out of the folder or nowhere, and note one whose target may be read by its name."""
        if not self.patterns.match_file(path) and not entry.is_dir():
            return
        try:
            target = Path(entry.path).resolve(strict=True)
        except RuntimeError:  # Python 3.10 to 3.12 raise this for a link to itself
            self._problem(path, "a symbolic link that leads to itself. Cure: remove it.")
            return
        if target.is_relative_to(self.root):
            self.links[path] = target.relative_to(self.root).as_posix()
        else:
            self._problem(
                path,
                "a symbolic link out of the folder. Cure: follow_symlinks of [files], if that is wanted.",
            )

    def judge_links(self) -> None:
        """Report links to what is not read under its own name either: it is hidden, say, or ignored."""
        if not self.links or self.below or self.discovery.unfinished:
            return
        seen = [*(file.path for file in self.discovery.files), *self.discovery.not_notes]
        seen += [problem.path for problem in self.discovery.problems]
        reached = {"."}.union(*([path, *map(str, PurePosixPath(path).parents)] for path in seen))
        for path, target in self.links.items():
            if target not in reached:
                cure = "follow_symlinks of [files], or read that under its own name"
                self._problem(path, f"a symbolic link to {target}, which is not read. Cure: {cure}.")

    def _file(self, entry: os.DirEntry[str], path: str, vault: tuple[str, ...] | None) -> None:
        if vault is not None and (path.startswith(vault) or path.lower().endswith(_DRAWING)):
            self.discovery.not_notes.append(path)
            return
        if not entry.is_file():
            self._problem(path, "not a regular file.")
            return
        if vault is not None and path.lower().endswith(_NOTE) and _is_drawing(entry.path):
            self.discovery.not_notes.append(path)
            return
        status = entry.stat()
        most = self.rules.max_bytes
        if status.st_size > most and suffix_of(path) in FORMATS:
            most = max(most, _LARGE)
        if status.st_size > most:
            self._problem(
                path, f"{status.st_size:,} bytes are more than max_bytes={most:,}. Cure: split it, or raise that."
            )
            return
        self.discovery.files.append(FolderFile(path, entry.path, stamp_of(status), vault is not None))

    def _problem(self, path: str, reason: str) -> None:
        self.discovery.problems.append(Problem(path or "./", reason))
