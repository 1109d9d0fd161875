"""The folders of an index, and the paths of documents in them."""

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
        root: An only folder; of several, the storage of their index.
        by_name: The folders by name; the name of an only one is "".
    """

    root: Path
    by_name: Mapping[str, Path]

    def __str__(self) -> str:
        return ", ".join(filter(None, self.by_name)) or str(self.root)

    @property
    def are_several(self) -> bool:
        """Return whether paths of documents begin with the name of a folder."""
        return "" not in self.by_name

    @property
    def missing_folders_message(self) -> str:
        """Return a message if none of the folders exists, as where a disk is not mounted.

        Else "".
        """
        folders = self.by_name.values()
        if any(folder.is_dir() for folder in folders):
            return ""
        return f"the folder {' or '.join(map(str, folders))} is no longer there"

    def name_of(self, path: str) -> str:
        """Return the name of the folder that the path of a document begins with.

        "" if there is one folder.
        """
        return path.partition("/")[0] if self.are_several else ""

    def root_of(self, path: str) -> Path | None:
        """Return the folder that a document is in.

        None if its path begins with no name of a folder.
        """
        return self.by_name.get(self.name_of(path))

    def place(self, path: str) -> Path:
        """Return where a document is.

        Below the root for one that no folder has, as it was passed as an object.
        """
        folder = self.root_of(path)
        if folder is None:
            return self.root / path
        return folder / (path.partition("/")[2] if self.are_several else path)

    def is_in_vault(self, path: str) -> bool:
        """Return whether a document is in an Obsidian vault that is a part of the folder."""
        root = self.root_of(path)
        if root is None:
            return False
        parents = self.place(path).parents
        return any(parent.is_relative_to(root) and (parent / VAULT).is_dir() for parent in parents)

    def path_of(self, place: Path) -> str | None:
        """Return the path of a file or folder; None if it is outside of all folders.

        A folder above it may be a link. The file itself has its own name, also if it is a link.
        """
        place = absolute_path(place.parent) / place.name
        for name, folder in self.by_name.items():
            if place.is_relative_to(folder):
                path = Path(name, place.relative_to(folder)).as_posix()
                return "" if path == "." else path
        return None
