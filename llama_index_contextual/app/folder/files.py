"""Files of a folder: which of them patterns name, and the one way to open one that a user, an agent or a folder names.

Patterns are those of ``.gitignore``, in time that is in proportion to a path's length.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pathspec import GitIgnoreSpec

from llama_index_contextual.errors import DocumentError

UNREAD: Final = "it cannot be read"  # by the system; that may change while size and times stay
MOST_BYTES: Final = 100_000_000
_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOCTTY", 0)
_STAR: Final = "[^/]*"  # what pathspec makes of a star


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
            raise DocumentError(f"{UNREAD} (no regular file). Cure: a file that is no pipe, device or folder.")
        if root is not None and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
            raise DocumentError(f"it is a symbolic link out of {root}. Cure: read that file under its own name.")
        with open(os.open(path, _FLAGS), "rb") as file:  # noqa: PTH123  a descriptor
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # changed in between
                raise DocumentError(f"{UNREAD} (no regular file).")
            data = file.read(most + 1) if max(status.st_size, os.fstat(file.fileno()).st_size) <= most else None
    except (OSError, ValueError) as error:  # a ValueError: NUL in a name
        raise DocumentError(f"{UNREAD} ({getattr(error, 'strerror', None) or error}).") from error
    if data is None or len(data) > most:
        raise DocumentError(f"it has more than {most:,} bytes. Cure: split it.")
    return data


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
        first += f"{_STAR}{piece}" if is_last else f"(?=(?P<star{number}>{_STAR}?{piece}))(?P=star{number})"
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
    return next((verdict for verdict in verdicts if verdict is not None), False)  # git: the deepest file decides


class Wanted:
    """The patterns of the files to read. To git, ``*.md`` that matches a folder also holds for all that is in it."""

    def __init__(self, include: tuple[str, ...]) -> None:
        lines = [line.rstrip() for line in include]
        suffixes = [_suffix(line) for line in lines]
        self._lines = [(_any_case(line, suffix), suffix) for line, suffix in zip(lines, suffixes, strict=True)]
        is_plain = [line.lower() for line in lines] == [f"*{suffix}" for suffix in suffixes]
        self._suffixes = tuple(suffixes) if is_plain else ()  # these alone decide
        self._specs: dict[tuple[str, ...], GitIgnoreSpec] = {}  # by the patterns that a name leaves

    def match_file(self, path: str) -> bool:
        """Whether a file is to be read."""
        name = path.lower()
        if self._suffixes:
            return name.endswith(self._suffixes)
        lines = tuple([line for line, suffix in self._lines if name.endswith(suffix)])
        if lines not in self._specs:
            self._specs[lines] = spec_of(lines)
        return self._specs[lines].match_file(path)


def _suffix(line: str) -> str:
    """The suffix that a pattern such as ``*.md`` or ``docs/*.md`` asks of a file's name; "" for any other pattern."""
    name, suffix = line.rpartition("/")[2].removeprefix("!"), line.rpartition("*")[2].lower()
    return suffix if name[:1] == "*" and suffix[:1] == "." and not {*"/?[\\"} & {*suffix} else ""


def _any_case(line: str, suffix: str) -> str:
    """A pattern whose suffix may be in capital or small letters: ``NOTES.MD`` is a note."""
    letters = (f"[{char}{char.upper()}]" if char.isalpha() else char for char in suffix)
    return line[: len(line) - len(suffix)] + "".join(letters)
