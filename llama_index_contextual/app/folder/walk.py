"""Which files an index reads, of one folder or of several that have names.

Ignore rules, hidden folders, symbolic links, sizes and Obsidian vaults decide. The patterns of ``.gitignore`` take time
in proportion to a path's length. A path is in POSIX form and relative to the one folder, because it is the document's
identity: the same on every machine. Of several folders it begins with the name of its own: ``notes/2026/plan.md`` is
``2026/plan.md`` in the folder that is called ``notes``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pathspec import GitIgnoreSpec
from pydantic import BaseModel, ConfigDict, Field, field_validator

from llama_index_contextual.app.folder import MOST_BYTES, VAULT, Folders, formats, read_file
from llama_index_contextual.app.settings.registry import FOLDER_FILE, Size
from llama_index_contextual.utils.errors import Checked, DocumentError
from llama_index_contextual.utils.text import MARKDOWN_SUFFIXES, SOURCE_SUFFIXES, counted

if TYPE_CHECKING:
    from typing_extensions import Self

# What the context "pattern" is made for, and reads where nobody names the files.
SOURCE_INCLUDE: Final = tuple(f"*{suffix}" for suffix in SOURCE_SUFFIXES)
_MOST_TEXT: Final = 1_000_000  # bytes of an ignore file, or of settings of a vault
# Where the settings of a vault name the folder of its templates: Obsidian's own, and the plugin Templater's.
_TEMPLATES: Final = {
    "templates.json": "folder",
    "plugins/templater-obsidian/data.json": "templates_folder",
}
_STAR: Final = "[^/]*"  # what pathspec makes of a star
_SUFFIX: Final = re.compile(r"\*\.[\w.-]+")


def spec_of(lines: Iterable[str]) -> GitIgnoreSpec:
    """Patterns as one, each in linear time."""
    return GitIgnoreSpec([_linear(pattern) for pattern in GitIgnoreSpec.from_lines(lines).patterns])


def _linear(pattern: Any) -> Any:
    """A pattern that takes time in proportion to a path's length: ``*a*a*a*b`` takes its third power otherwise.

    Of the stars of one segment only the last has to try more than one place: where what stands between two of them is
    found first, the rest has the most room. A lookahead and a reference to it keep the regex from trying others.
    """
    if pattern.regex is None:
        return pattern
    first, *pieces = pattern.regex.pattern.split(_STAR)
    if "".join([first, *pieces]).count(".+") > 2:  # noqa: PLR2004  each one more multiplies the places that are tried
        raise ValueError("it has too many double stars")
    for number, piece in enumerate(pieces[:-1]):
        is_last = "(" in piece  # of its segment
        first += (
            f"{_STAR}{piece}"
            if is_last
            else f"(?=(?P<star{number}>{_STAR}?{piece}))(?P=star{number})"
        )
    return type(pattern)(re.compile(_STAR.join([first, *pieces[-1:]])), pattern.include)


def pattern_of(line: str) -> GitIgnoreSpec | None:
    """A line of an ignore file; None where it is no pattern (``[z-a]``, a lone ``!``, a last backslash)."""
    try:
        return spec_of([line])
    except (ValueError, re.error):
        return None


def is_ignored(specs: Iterable[tuple[str, GitIgnoreSpec]], path: str) -> bool:
    """Whether a path is to be left out.

    Args:
        specs: The ignore files that hold there, outermost first, each with the path of its folder.
        path: That of a folder ends in a slash.
    """
    verdicts = (spec.check_file(path[len(base) :]).include for base, spec in reversed([*specs]))
    return next(
        (verdict for verdict in verdicts if verdict is not None), False
    )  # git: the deepest file decides


def matcher_of(include: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether patterns name a path; where one that is no suffix speaks of it, that decides.

    A suffix, as ``*.md``, also names ``NOTES.MD``, and never all of a folder ``notes.md``.
    """
    suffixes = tuple(line[1:].lower() for line in include if _SUFFIX.fullmatch(line))
    spec = spec_of(line for line in include if not _SUFFIX.fullmatch(line))

    def is_named(path: str) -> bool:
        verdict = spec.check_file(path).include
        return path.lower().endswith(suffixes) if verdict is None else verdict

    return is_named


def default_include() -> tuple[str, ...]:
    """The patterns of the files that are read where nobody names any: text, and what the extra converts."""
    suffixes = (
        *MARKDOWN_SUFFIXES,
        ".txt",
        ".text",
        ".rst",
        *(formats.FORMATS if formats.has_extra() else ()),
    )
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
        return type(self)(
            **{**{name: getattr(self, name) for name in self.model_fields_set}, **values}
        )


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

    ``skipped`` are files that no pattern names, and none leaves out, links within the folder, and templates and
    drawings of Obsidian vaults.
    """

    files: list[FolderFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    unfinished: bool = False


class _Folder(NamedTuple):
    """A folder that is walked later: where it is, and its path in the index, with a slash, or "".

    ``ignores`` are the ignore files that hold in it; ``vault`` is how paths begin that hold no notes, in an Obsidian
    vault, and None elsewhere.
    """

    place: str
    base: str
    ignores: tuple[tuple[str, GitIgnoreSpec], ...] = ()
    vault: tuple[str, ...] | None = None


@dataclass(slots=True)
class _Walk:
    """One walk over a folder, with a stack; ``base`` is its path in the index."""

    found: Discovery
    root: Path
    rules: FileRules
    base: str
    below: str
    exclude: str

    def run(self, until: float) -> None:
        """Find the files, until a time by ``time.monotonic``."""
        is_wanted, found, below = (
            matcher_of(self.rules.include),
            self.found,
            f"{self.below}/" * bool(self.below),
        )
        stack = [_Folder(str(self.root), self.base, ((self.base, spec_of(self.rules.exclude)),))]
        while stack and not found.unfinished:
            found.unfinished, folder = time.monotonic() > until, stack.pop()
            if folder.base.count("/") > 100 + self.base.count("/"):
                self._report(
                    folder.base,
                    "it is 100 folders deep, and is not read. Cure: move it further up.",
                )
                continue
            try:
                with os.scandir(folder.place) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError as error:
                self._report(folder.base or "./", f"the folder cannot be read ({error.strerror}).")
                continue
            folder = self._with_rules(folder, {entry.name for entry in entries})
            for entry in entries:
                path = folder.base + entry.name
                is_hidden = entry.name.startswith(".") and not self.rules.hidden
                if is_hidden or not (f"{path}/".startswith(below) or below.startswith(f"{path}/")):
                    continue
                if (
                    "\\" in entry.name
                ):  # a path of Windows is shown with slashes: it would pose as another one
                    self._report(path, "its name has a backslash. Cure: rename it.")
                    continue
                try:
                    path.encode()
                    if inner := self._entry(entry, path, folder, is_wanted):
                        stack.append(inner)
                except UnicodeEncodeError:
                    shown = path.encode("utf-8", "backslashreplace").decode()
                    self._report(shown, "its name is not valid UTF-8. Cure: rename it.")
                except OSError as error:
                    self._report(path, f"it cannot be read ({error.strerror}).")

    def _report(self, path: str, reason: str) -> None:
        self.found.problems.append(Problem(path, reason))

    def _with_rules(self, folder: _Folder, names: set[str]) -> _Folder:
        """The folder with its own ignore file, and with the settings of a vault that begins in it."""
        place, base = Path(folder.place), folder.base
        if self.rules.gitignore and ".gitignore" in names:
            try:
                data = read_file(place / ".gitignore", _MOST_TEXT, root=self.root)
                lines = filter(
                    pattern_of, data.decode("utf-8", "replace").splitlines()
                )  # git skips others, too
                folder = folder._replace(ignores=(*folder.ignores, (base, spec_of(lines))))
            except DocumentError as error:
                self._report(f"{base}.gitignore", f"it is not obeyed: {error}")
        if VAULT in names and (place / VAULT).is_dir():
            no_notes = [f"{base}{VAULT}/", f"{base}.trash/"]
            for name, key in _TEMPLATES.items():
                with contextlib.suppress(Exception):  # foreign settings: odd ones are passed over
                    value = json.loads(read_file(place / VAULT / name, _MOST_TEXT, root=self.root))[
                        key
                    ].strip("/ ")
                    no_notes += [f"{base}{value}/"] if value else []
            folder = folder._replace(vault=tuple(no_notes))
        return folder

    def _entry(
        self, entry: os.DirEntry[str], path: str, within: _Folder, is_wanted: Callable[[str], bool]
    ) -> _Folder | None:
        """Note a file or a link; a folder is returned."""
        found, is_link, is_folder = self.found, entry.is_symlink(), entry.is_dir()
        if is_ignored(within.ignores, f"{path}/" if is_folder and not is_link else path):
            return None
        if is_folder and not is_link:
            return (
                within._replace(place=entry.path, base=f"{path}/")
                if entry.path != self.exclude
                else None
            )
        # Pictures are most of a document that is converted.
        most = max(self.rules.max_bytes, MOST_BYTES * (formats.suffix_of(path) in formats.FORMATS))
        if not (is_folder or is_wanted(path[len(self.base) :])):
            if path != self.base + FOLDER_FILE and not is_link and entry.is_file():
                found.skipped.append(path)
        elif is_link and not Path(os.path.realpath(entry.path)).is_relative_to(self.root):
            self._report(
                path, "a symbolic link out of the folder. Cure: index that folder, too: NAME=PATH."
            )
        elif within.vault is not None and (
            path.startswith(within.vault) or path.lower().endswith(".excalidraw.md")
        ):
            found.skipped.append(path)
        elif is_link and os.stat(entry.path):  # noqa: PTH116  which refuses loops
            found.skipped.append(path)  # its target has a name of its own
        elif not entry.is_file():
            self._report(path, "not a regular file.")
        elif (status := entry.stat()).st_size > most:
            size = f"{status.st_size:,} bytes are more than max_bytes={most:,}"
            self._report(path, f"{size}. Cure: split it, or raise that.")
        else:
            found.files.append(
                FolderFile(path, entry.path, stamp_of(status), within.vault is not None)
            )
        return None


def summary_of_skipped(paths: Sequence[str], *, offers_code: bool = False) -> str:
    """A line on files that are not read, by their kinds; "" for none.

    Args:
        paths: Of the files.
        offers_code: Whether the line says what reads source code.
    """
    if not paths:
        return ""
    suffixes = sorted(Path(path).suffix.lower().removeprefix(".") for path in paths)
    kinds_of_files = Counter(suffix for suffix in suffixes if suffix and not suffix.isdigit())
    common = kinds_of_files.most_common(5)  # of as many, in order of their names
    rest = len(paths) - sum(number for _, number in common)
    kinds = [f"{number} {kind}" for kind, number in common] + [f"{rest} of other kinds"] * bool(
        rest
    )
    is_lacking = not formats.has_extra() and any(
        formats.suffix_of(path) in formats.FORMATS for path in paths
    )
    cure = (
        f"; pip install 'llama-index-contextual[{formats.EXTRA}]' reads some of them" * is_lacking
    )
    if offers_code and any(path.lower().endswith(SOURCE_SUFFIXES) for path in paths):
        cure += "; index --context pattern reads source code"
    return f"{counted(len(paths), 'file')} not read: {', '.join(kinds)}{cure}"


def find(
    folders: Folders,
    rules: FileRules,
    *,
    below: str = "",
    exclude: Path | None = None,
    until: float = math.inf,
) -> Discovery:
    """Walk the folder of an index, or all of the several.

    Args:
        folders: Of the index.
        rules: Which files count.
        below: Only this sub-folder or file, in POSIX form; "" is everything.
        exclude: A folder that is never entered: the index's own storage.
        until: When to stop, by ``time.monotonic``; what is found then is ``unfinished``.
    """
    found, below = Discovery(), below.strip("/")
    for name, one in folders.collections.items():
        base = f"{name}/" * bool(name)
        if name and below.partition("/")[0] not in ("", name):
            continue
        if name and not one.path.is_dir():
            cure = f"put it back, index {name}=PATH where it is now, or delete index.sqlite3 and index the others"
            reason = (
                f"the folder {one.path} is not there; what is indexed of it stays. Cure: {cure}"
            )
            found.problems.append(Problem(base, reason))
            continue
        merged = rules.changed(
            include=one.include or rules.include, exclude=(*rules.exclude, *one.exclude)
        )
        _Walk(found, one.path, merged, base, below, str(exclude and exclude.resolve())).run(until)
    for paths in (found.files, found.problems, found.skipped):
        paths.sort()
    return found
