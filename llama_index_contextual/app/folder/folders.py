"""The folders of an index, and the paths of the documents in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llama_index_contextual.app.folder.vault import VAULT
from llama_index_contextual.utils.text import absolute_path


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of an index.

    Attributes:
        root: The folder if there is only one, or else the storage of the index.
        by_name: The folders by name. If there is only one, its name is "".
    """

    root: Path
    by_name: Mapping[str, Path]

    def __str__(self) -> str:
        return ", ".join(filter(None, self.by_name)) or str(self.root)

    @property
    def are_several(self) -> bool:
        """Return whether there are several folders, so that paths start with a folder's name."""
        return "" not in self.by_name

    @property
    def missing_folders_message(self) -> str:
        """Return a message if no folder exists, such as when a disk is not mounted; else ""."""
        folders = self.by_name.values()
        if any(folder.is_dir() for folder in folders):
            return ""
        return f"the folder {' or '.join(map(str, folders))} is no longer there"

    def name_of(self, path: str) -> str:
        """Return the folder's name at the start of a path; "" if there is only one folder."""
        return path.partition("/")[0] if self.are_several else ""

    def root_of(self, path: str) -> Path | None:
        """Return the folder of a document, or None if its path does not start with a folder."""
        return self.by_name.get(self.name_of(path))

    def place(self, path: str) -> Path:
        """Return the place of a document on disk.

        For a document that was passed as an object and is in no folder, it is below the root.
        """
        folder = self.root_of(path)
        if folder is None:
            return self.root / path
        return folder / (path.partition("/")[2] if self.are_several else path)

    def is_in_vault(self, path: str) -> bool:
        """Return whether a document is in an Obsidian vault within its folder."""
        root = self.root_of(path)
        if root is None:
            return False
        parents = self.place(path).parents
        return any(parent.is_relative_to(root) and (parent / VAULT).is_dir() for parent in parents)

    def path_of(self, place: Path) -> str | None:
        """Return the path of a file or folder in the index, or None if it is outside all folders.

        Links among the parent folders are resolved. The file itself keeps its name, even if it is a
        link.
        """
        place = absolute_path(place.parent) / place.name
        for name, folder in self.by_name.items():
            if place.is_relative_to(folder):
                path = Path(name, place.relative_to(folder)).as_posix()
                return "" if path == "." else path
        return None
