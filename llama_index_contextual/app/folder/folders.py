"""Where the documents of an index come from: one folder, or several that have names.

A document's path is relative to the one folder. Of several it begins with the name of its own: ``notes/2026/plan.md``
is ``2026/plan.md`` in the folder that is called ``notes``. So paths stay unique, citations name the folder, and
everything that goes by paths does as it does with one.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.folder.walk import Discovery, FileRules, Problem, find_files, vault_of
from llama_index_contextual.app.settings.loading import checked_value
from llama_index_contextual.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from llama_index_contextual.app.settings.schema import Collection

_NAME: Final = re.compile(r"\w[\w.-]{0,99}")


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
    def places(self) -> list[Path]:
        """The folders."""
        return [collection.folder for collection in self.collections.values()] or [self.root]

    @property
    def missing_folders_message(self) -> str:
        """A message that none of the folders is there, as where a disk is not mounted; "" where one is."""
        if any(place.is_dir() for place in self.places):
            return ""
        return f"the folder {' or '.join(map(str, self.places))} is no longer there"

    def home(self, path: str) -> tuple[Path, str]:
        """The folder that a path is in, and the rest of the path.

        Raises:
            SettingError: It begins with no name of a folder.
        """
        if not self.collections:
            return self.root, path
        name, _, rest = path.partition("/")
        self.check([name])
        return self.collections[name].folder, rest

    def check(self, names: Iterable[str]) -> None:
        """Refuse names that no folder has.

        Raises:
            SettingError: One is not known.
        """
        if unknown := [name for name in names if name not in self.collections]:
            names = ", ".join(self.collections)
            cure = f"one of {names}." if names else "name none: the index is of one folder."
            raise SettingError(f"no folder of the index is called {unknown[0]!r}. Cure: {cure}")

    def place(self, path: str) -> Path:
        """Where a document is. One that no folder has, as it was passed as an object, is nowhere below the root."""
        with contextlib.suppress(SettingError):
            return Path(*self.home(path))
        return self.root / path

    def vault_of(self, path: str) -> Path | None:
        """The Obsidian vault that a document is in; None for none."""
        with contextlib.suppress(SettingError):
            folder, rest = self.home(path)
            return vault_of(folder / rest, folder)
        return None

    def path_of(self, place: Path) -> str | None:
        """The path of a file or folder; None where it is outside of all folders."""
        folders = {name: collection.folder for name, collection in self.collections.items()} or {"": self.root}
        inside = ((name, folder) for name, folder in folders.items() if place.is_relative_to(folder))
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

    def find(self, rules: FileRules, *, below: str = "", **options: Any) -> Discovery:
        """Walk the folder, or all of the several, as :func:`find_files` does."""
        if not self.collections:
            return find_files(self.root, rules, below=below, **options)
        found, (first, _, rest) = Discovery(), below.strip("/").partition("/")
        for name, one in self.collections.items():
            if first not in ("", name):
                continue
            if not one.folder.is_dir():
                cure = "put it back, or delete index.sqlite3 in the storage folder and index the others"
                reason = f"the folder {one.folder} is not there; what is indexed of it stays. Cure: {cure}"
                found.problems.append(Problem(f"{name}/", reason))
                continue
            of_folder = rules.changed(include=one.include or rules.include, exclude=(*rules.exclude, *one.exclude))
            part = find_files(one.folder, of_folder, below=rest, **options)
            found.files += [file._replace(path=f"{name}/{file.path}") for file in part.files]
            found.problems += [replace(gap, path=f"{name}/{gap.path.removeprefix('./')}") for gap in part.problems]
            found.skipped += [f"{name}/{path}" for path in part.skipped]
            found.not_notes += [f"{name}/{path}" for path in part.not_notes]
            found.unfinished |= part.unfinished
        found.files.sort()
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
            raise SettingError(
                f"{name!r} is no name of a folder. Cure: letters, digits, '_', '-' and '.', such as notes=PATH"
            )
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
