"""Patterns of ``.gitignore``, which take time in proportion to a path's length."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pathspec import GitIgnoreSpec

_STAR: Final = "[^/]*"  # what pathspec makes of a star
# Where google-re2 is installed, pathspec would use it, and it knows no lookahead.
_BACKEND: Final = "simple"
_SUFFIX: Final = re.compile(r"\*\.[\w.-]+")
_MOST_DOUBLE_STARS: Final = 2  # each further one multiplies the places that are tried


def spec_of(lines: Iterable[str]) -> GitIgnoreSpec:
    """Return patterns as one, each in linear time."""
    patterns = GitIgnoreSpec.from_lines(lines, backend=_BACKEND).patterns
    return GitIgnoreSpec([_linear(pattern) for pattern in patterns], backend=_BACKEND)


def _linear(pattern: Any) -> Any:
    """Return a pattern that takes linear time.

    ``*a*a*a*b`` takes the third power of a path's length otherwise.

    Of the stars of one segment only the last has to try more than one place: if what is between two
    of them is matched as early as possible, everything behind it has the most choice. A lookahead
    and a reference to it keep the regular expression from trying later places.
    """
    if pattern.regex is None:
        return pattern
    first, *pieces = pattern.regex.pattern.split(_STAR)
    if "".join([first, *pieces]).count(".+") > _MOST_DOUBLE_STARS:
        raise ValueError("it has too many double stars")
    expression = first
    for number, piece in enumerate(pieces[:-1]):
        is_last_of_segment = "(" in piece
        if is_last_of_segment:
            expression += f"{_STAR}{piece}"
        else:
            name = f"star{number}"
            expression += f"(?=(?P<{name}>{_STAR}?{piece}))(?P={name})"
    if pieces:
        expression += f"{_STAR}{pieces[-1]}"
    return type(pattern)(re.compile(expression), pattern.include)


def pattern_of(line: str) -> GitIgnoreSpec | None:
    """Return a line of an ignore file.

    None where it is no pattern (``[z-a]``, a lone ``!``, a last backslash).
    """
    try:
        return spec_of([line])
    except (ValueError, re.error):
        return None


def is_ignored(specs: Sequence[tuple[str, GitIgnoreSpec]], path: str) -> bool:
    """Return whether a path is to be left out. As in Git, the deepest ignore file decides.

    Args:
        specs: The ignore files that hold there, outermost first, each with the path of its folder.
        path: That of a folder ends in a slash.
    """
    for base, spec in reversed(specs):
        verdict = spec.check_file(path[len(base) :]).include
        if verdict is not None:
            return verdict
    return False


def matcher_of(include: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that tells whether patterns name a path.

    One that is no suffix takes precedence.

    A suffix, as ``*.md``, also names ``NOTES.MD``, and never all of a folder ``notes.md``.
    """
    suffixes = []
    lines = []
    for line in include:
        if _SUFFIX.fullmatch(line):
            suffixes.append(line[1:].lower())
        else:
            lines.append(line)
    spec = spec_of(lines)
    endings = tuple(suffixes)

    def is_named(path: str) -> bool:
        verdict = spec.check_file(path).include if lines else None
        return path.lower().endswith(endings) if verdict is None else verdict

    return is_named
