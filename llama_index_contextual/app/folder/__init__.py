"""A folder of documents: which files are read, as what, and how each format becomes Markdown.

Here is the one way to open a file that a user, an agent or a folder names, and how its text is read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.utils.errors import DocumentError, SettingError
from llama_index_contextual.utils.text import absolute_path, replace_surrogates, without_code

if TYPE_CHECKING:
    from llama_index_contextual.app.settings.registry import Collection

VAULT: Final = ".obsidian"  # a folder in a vault
UNREAD: Final = "it cannot be read"  # by the system; that may change while size and times stay
MOST_BYTES: Final = 100_000_000
_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOCTTY", 0)
)
_CONTROL: Final = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_BINARY_SHARE: Final = (
    0.01  # text holds hardly any control characters but white space, escape and form feed
)
# How files begin that may hold no NUL byte, and are no text all the same.
_STARTS: Final = {
    b"%PDF-1.": "a PDF",
    b"%PDF-2.": "a PDF",
    b"PK\x03\x04": "a ZIP or Office file",
    b"{\\rtf1": "an RTF file",
}


def read_file(path: Path | str, most: int = MOST_BYTES, *, root: Path | None = None) -> bytes:
    """The bytes of a regular file. A pipe or a device is refused before it is opened, so nothing hangs or never ends.

    Use it for each file whose name comes from outside: ``preview FILE``, ``evaluate -q FILE``, an ignore file, settings
    in a folder.

    Args:
        path: The file.
        most: Bytes that it may have; a sparse file counts with its full size.
        root: The folder that it must lie in after all links are followed; None for any.

    Raises:
        DocumentError: It is no regular file, larger, outside of the root, or the system refuses. The message does not
            name the path.
    """
    try:
        status = os.stat(path)  # noqa: PTH116  which knows of loops of links in all versions of Python
        if not stat.S_ISREG(status.st_mode):
            raise DocumentError(
                f"{UNREAD} (no regular file). Cure: a file that is no pipe, device or folder."
            )
        if root is not None and not Path(os.path.realpath(path)).is_relative_to(
            os.path.realpath(root)
        ):
            raise DocumentError(
                f"it is a symbolic link out of {root}. Cure: read that file under its own name."
            )
        with open(os.open(path, _FLAGS), "rb") as file:  # noqa: PTH123  a descriptor
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # changed in between
                raise DocumentError(f"{UNREAD} (no regular file).")
            data = (
                file.read(most + 1)
                if max(status.st_size, os.fstat(file.fileno()).st_size) <= most
                else None
            )
    except (OSError, ValueError) as error:  # a ValueError: NUL in a name
        raise DocumentError(f"{UNREAD} ({getattr(error, 'strerror', None) or error}).") from error
    if data is None or len(data) > most:
        raise DocumentError(f"it has more than {most:,} bytes. Cure: split it.")
    return data


class FileText(NamedTuple):
    """A file's text, and what had to be repaired to read it ("" if nothing)."""

    text: str
    repair: str = ""


def decode(data: bytes) -> FileText:
    """The text of a file: UTF-8, UTF-16 with its mark, or Windows-1252 where the bytes are no UTF-8.

    Lone surrogates, which no parser or store takes, become U+FFFD. Line ends stay as they are, because a chunk's text
    is a slice of the document's.

    Raises:
        DocumentError: It is binary.
    """
    is_wide, repair = data.startswith((b"\xff\xfe", b"\xfe\xff")), ""
    kind = next((kind for start, kind in _STARTS.items() if data.startswith(start)), "")
    try:
        text = data.decode(*("utf-16", "replace") if is_wide else ("utf-8-sig", "surrogatepass"))
    except UnicodeDecodeError as error:
        # Latin-1 bytes in the wild are Windows-1252; the five bytes that it leaves undefined become U+FFFD.
        text = data.removeprefix(b"\xef\xbb\xbf").decode("cp1252", "replace")
        what = f"byte 0x{error.object[error.start]:02x} at {error.start:,} is no UTF-8"
        repair = f"{what}; read as Windows-1252. Cure: convert it to UTF-8"
    if b"\0" in data and not is_wide:
        kind = kind or "binary (it holds NUL bytes)"
    elif len(_CONTROL.findall(text[:100_000])) > _BINARY_SHARE * min(len(text), 100_000):
        kind = kind or "binary (control characters)"
    if kind:
        raise DocumentError(f"it is {kind}, not text. Cure: ignore it, or give its type a reader.")
    clean, count = replace_surrogates(text)
    return FileText(clean, f"{count} lone surrogate(s) replaced by U+FFFD" if count else repair)


def without_comments(text: str) -> tuple[str, int]:
    """A text in which comments, ``%% … %%``, are blank, and how many there were.

    Lines and offsets stay. Code holds no comments. One that does not end stays as it is.
    """
    ends = [mark.start() for mark in re.finditer("%%", without_code(text))] if "%%" in text else []
    edges = [
        0,
        *(edge + 2 * (at % 2) for at, edge in enumerate(ends[: len(ends) // 2 * 2])),
        len(text),
    ]
    parts = [text[start:end] for start, end in pairwise(edges)]
    parts[1::2] = [re.sub(r"\S", " ", part) for part in parts[1::2]]
    return "".join(parts), len(ends) // 2


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of an index.

    Attributes:
        root: An only folder; of several, the storage of their index.
        collections: The folders by name; the name of an only one is "".
    """

    root: Path
    collections: Mapping[str, Collection]

    def __str__(self) -> str:
        return ", ".join(filter(None, self.collections)) or str(self.root)

    @property
    def are_several(self) -> bool:
        """Whether paths of documents begin with the name of a folder."""
        return "" not in self.collections

    @property
    def missing_folders_message(self) -> str:
        """A message that none of the folders is there, as where a disk is not mounted; "" where one is."""
        places = [one.path for one in self.collections.values()]
        is_there = any(place.is_dir() for place in places)
        return "" if is_there else f"the folder {' or '.join(map(str, places))} is no longer there"

    def name_of(self, path: str) -> str:
        """The name of the folder that the path of a document begins with; "" where there is one folder."""
        return path.partition("/")[0] if self.are_several else ""

    def root_of(self, path: str) -> Path | None:
        """The folder that a document is in; None where its path begins with no name of a folder."""
        one = self.collections.get(self.name_of(path))
        return None if one is None else one.path

    def place(self, path: str) -> Path:
        """Where a document is. One that no folder has, as it was passed as an object, is nowhere below the root."""
        root = self.root_of(path)
        rest = path.partition("/")[2] if self.are_several and root else path
        return (root or self.root) / rest

    def is_in_vault(self, path: str) -> bool:
        """Whether a document is in an Obsidian vault that is a part of the folder."""
        top = self.root_of(path)
        folders = (
            one for one in self.place(path).parents if top is not None and one.is_relative_to(top)
        )
        return any((folder / VAULT).is_dir() for folder in folders)

    def path_of(self, place: Path) -> str | None:
        """The path of a file or folder; None where it is outside of all folders.

        A folder above it may be a link. The file itself has its own name, also where it is one.
        """
        place = absolute_path(place.parent) / place.name
        inside = (
            (name, one.path)
            for name, one in self.collections.items()
            if place.is_relative_to(one.path)
        )
        found = next(
            (Path(name, place.relative_to(folder)).as_posix() for name, folder in inside), None
        )
        return "" if found == "." else found
