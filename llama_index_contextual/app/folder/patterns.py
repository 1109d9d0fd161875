"""Patterns as ``.gitignore`` has them, in time that is in proportion to a path's length: which files they name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pathspec import GitIgnoreSpec

# What pathspec makes of a star, of "/**/" and of "**/" at the start.
_STAR: Final = "[^/]*"
_FOLDERS: Final = "(?:/.+)?/"
_FIRST_FOLDERS: Final = "^(?:.+/)?"


@dataclass(frozen=True, slots=True)
class Ignores:
    """The ignore files that hold at some depth, outermost first, each with the folder it lies in."""

    specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()

    def matches(self, path: str) -> bool:
        """Whether a path is to be left out; that of a folder ends in a slash."""
        for base, spec in reversed(self.specs):  # git: the deepest file that matches decides
            verdict = spec.check_file(path[len(base) :]).include
            if verdict is not None:
                return verdict
        return False

    def entering(self, base: str, lines: Iterable[str]) -> Ignores:
        """These with the lines of an ignore file in the folder of a path, which ends in a slash."""
        # git skips a line that it cannot read, such as a lone "!"; so that the rest of the file holds, we do too.
        spec = spec_of(line for line in lines if pattern_of(line))
        return Ignores((*self.specs, (base, spec))) if spec.patterns else self


def spec_of(lines: Iterable[str]) -> GitIgnoreSpec:
    """Patterns as one, each in linear time."""
    return GitIgnoreSpec([_linear(pattern) for pattern in GitIgnoreSpec.from_lines(lines).patterns])


def _linear(pattern: Any) -> Any:
    """A pattern that takes time in proportion to a path's length: ``*a*a*a*b`` takes its third power otherwise.

    Of the stars of one segment, and of the double stars of a path, only the last has to try more than one place: where
    what stands between two of them is found first, the rest has the most room. A lookahead and a reference to it keep
    the regex from trying others.
    """
    if pattern.regex is None:
        return pattern
    regex = _folders_once(_stars_once(pattern.regex.pattern))
    return pattern if regex == pattern.regex.pattern else type(pattern)(re.compile(regex), pattern.include)


def _stars_once(regex: str) -> str:
    first, *pieces = regex.split(_STAR)
    if len(pieces) <= 1:
        return regex
    parts = [first]
    for number, piece in enumerate(pieces[:-1]):
        alone = f"{_STAR}{piece}" if "(" in piece else f"(?=(?P<star{number}>{_STAR}?{piece}))(?P=star{number})"
        parts.append(alone)
    return "".join([*parts, _STAR, pieces[-1]])


def _folders_once(regex: str) -> str:
    *pieces, last = regex.split(_FOLDERS)
    parts = []
    for number, piece in enumerate(pieces):
        any_folders = "" if number == 0 else "(?:/.+?)??/"
        if number == 0 and piece.startswith(_FIRST_FOLDERS):
            any_folders, piece = "(?:.+?/)??", piece.removeprefix(_FIRST_FOLDERS)  # noqa: PLW2901
        group = f"(?=(?P<folders{number}>{any_folders}{piece})/)(?P=folders{number})"
        parts.append(group if any_folders else piece)
    return ("^" if parts and regex.startswith(_FIRST_FOLDERS) else "") + "".join([*parts, _FOLDERS * bool(parts), last])


def pattern_of(line: str) -> GitIgnoreSpec | None:
    """A line of an ignore file; None where it is no pattern (``[z-a]``, a lone ``!``, a last backslash)."""
    try:
        return spec_of([line])
    except (ValueError, re.error):
        return None


class Wanted:
    """The patterns of the files to read. To git, ``*.md`` that matches a folder also holds for all that is in it."""

    def __init__(self, include: tuple[str, ...]) -> None:
        lines = [(_any_case(line, suffix := _suffix(line)), suffix.lower()) for line in include]
        tails = {_tail(suffix) for _, suffix in lines}
        self._lines = {tail: [line for line in lines if _tail(line[1]) in ("", tail)] for tail in tails | {""}}
        alone = {tail: (_any_case(f"*{tail}", tail), tail) for tail in tails}
        self._sure = {tail for tail, line in alone.items() if tail and self._lines[tail] == [line]}
        self._specs: dict[tuple[str, ...], GitIgnoreSpec] = {}  # by the patterns that a name leaves

    def match_file(self, path: str) -> bool:
        """Whether a file is to be read."""
        name = path.lower()
        tail = _tail(name)
        if tail in self._sure:  # "*.md" alone decides for its kind
            return True
        some = self._lines.get(tail, self._lines[""])  # of 26 patterns, those that end as the name does
        lines = tuple([line for line, suffix in some if name.endswith(suffix)])
        if lines not in self._specs:
            self._specs[lines] = spec_of(lines)
        return self._specs[lines].match_file(path)


def _tail(name: str) -> str:
    return name[name.rfind(".") :] if "." in name else ""


def _suffix(line: str) -> str:
    """The suffix that a pattern such as ``*.md`` or ``docs/*.md`` asks of a file's name; "" for any other pattern."""
    star, suffix = line.rstrip().rpartition("/")[2].removeprefix("!")[:1], line.rstrip().rpartition("*")[2]
    return suffix if star == "*" and re.fullmatch(r"\.[^/?\[\\]+", suffix) else ""


def _any_case(line: str, suffix: str) -> str:
    """The pattern, for a suffix in capitals or small letters: ``NOTES.MD`` is a note."""
    letters = (f"[{char.lower()}{char.upper()}]" if char.isalpha() else char for char in suffix)
    return line.rstrip().removesuffix(suffix) + "".join(letters) if suffix else line
