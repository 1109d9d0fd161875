"""Open files whose names come from a user, an agent or a folder, and decode their bytes."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from llama_index_contextual.utils.errors import DocumentError
from llama_index_contextual.utils.text import replace_surrogates

MAX_BYTES = 100_000_000
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOCTTY", 0)
)
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_SAMPLE = 100_000  # characters that are searched for control characters
# Text contains hardly any control characters except white space, escape and form feed.
_BINARY_SHARE = 0.01
# The first bytes of formats that are not text, although their files can lack NUL bytes.
_STARTS = {
    b"%PDF-1.": "a PDF",
    b"%PDF-2.": "a PDF",
    b"PK\x03\x04": "a ZIP or Office file",
    b"{\\rtf1": "an RTF file",
}
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")


class UnreadableError(DocumentError):
    """The system refuses to read a file now. That can change without a change to the file."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"it cannot be read ({reason}).")


class FileText(NamedTuple):
    """A file's text, and the repair that was needed to read it, or ""."""

    text: str
    repair: str = ""


def read_file(path: Path | str, max_bytes: int = MAX_BYTES, *, root: Path | None = None) -> bytes:
    """Return the bytes of a regular file.

    Pipes and devices are refused before they are opened, so that no call hangs. Use this function
    for every file whose name comes from outside, as in ``preview FILE`` and ``evaluate -q FILE``,
    and for ignore files and settings in a folder.

    Args:
        path: The file.
        max_bytes: The maximum number of bytes. A sparse file counts with its full size.
        root: The folder that must contain the file after all links are followed, or None.

    Raises:
        DocumentError: The file is not a regular file, too large, outside the root, or cannot be
            read. The message does not name the path.
    """
    try:
        status = os.stat(path)  # noqa: PTH116  reports link loops in all versions of Python
        _check_is_regular(status)
        if root is not None and not is_inside(path, root):
            raise DocumentError(
                f"it is a symbolic link out of {root}. Read its target under its own name."
            )
        with open(os.open(path, _FLAGS), "rb") as file:  # noqa: PTH123  a descriptor
            opened = os.fstat(file.fileno())
            _check_is_regular(opened)  # it can have changed in between
            size = max(status.st_size, opened.st_size)
            data = file.read(max_bytes + 1) if size <= max_bytes else b""
    except (OSError, ValueError) as error:  # a ValueError: NUL in a name
        reason = getattr(error, "strerror", None) or error
        raise UnreadableError(reason) from error
    if max(size, len(data)) > max_bytes:
        raise DocumentError(f"it has more than {max_bytes:,} bytes. Split it.")
    return data


def is_inside(path: Path | str, folder: Path) -> bool:
    """Return whether a path is inside a folder after all links are followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _check_is_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise DocumentError("it is not a regular file, but a pipe, device or folder. Name a file.")


def decode(data: bytes) -> FileText:
    """Return the text of a file in UTF-8, UTF-16 with a byte order mark, or else Windows-1252.

    Lone surrogates, which no parser or store accepts, become U+FFFD. Line ends are not changed,
    because a chunk's text is a slice of the document's text.

    Raises:
        DocumentError: The file is binary.
    """
    is_wide = data.startswith(_WIDE_MARKS)
    repair = ""
    try:
        codec, errors = ("utf-16", "replace") if is_wide else ("utf-8-sig", "surrogatepass")
        text = data.decode(codec, errors)
    except UnicodeDecodeError as error:
        # Files that claim Latin-1 usually are Windows-1252, whose five undefined bytes become
        # U+FFFD.
        text = data.removeprefix(b"\xef\xbb\xbf").decode("cp1252", "replace")
        byte = f"byte 0x{error.object[error.start]:02x} at {error.start:,}"
        repair = f"{byte} is not UTF-8, so it was read as Windows-1252. Convert it to UTF-8"
    kind = _binary_kind(data, "" if is_wide else text)
    if kind:
        raise DocumentError(f"it is {kind}, not text. Ignore it, or give its type a reader.")
    clean, count = replace_surrogates(text)
    if count:
        repair = f"{count} lone surrogate(s) replaced by U+FFFD"
    return FileText(clean, repair)


def _binary_kind(data: bytes, text: str) -> str:
    """Return the kind of a binary file; "" if it is text."""
    for start, kind in _STARTS.items():
        if data.startswith(start):
            return kind
    if "\0" in text:
        return "binary (it contains NUL bytes)"
    sample = text[:_SAMPLE]
    if len(_CONTROL.findall(sample)) > _BINARY_SHARE * len(sample):
        return "binary (control characters)"
    return ""
