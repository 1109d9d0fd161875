"""Patterns as in ``.gitignore`` that are matched in linear time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pathspec import GitIgnoreSpec

_STAR = "[^/]*"  # pathspec's expression for a star
# pathspec would otherwise use google-re2 if it is installed, which does not support lookaheads.
_BACKEND = "simple"
_SUFFIX = re.compile(r"\*\.[\w.-]+")
_MAX_DOUBLE_STARS = 2  # each one more multiplies the positions to try


def spec_of(lines: Iterable[str]) -> GitIgnoreSpec:
    """Return a specification of several patterns, each of which takes linear time."""
    patterns = GitIgnoreSpec.from_lines(lines, backend=_BACKEND).patterns
    return GitIgnoreSpec([_linear(pattern) for pattern in patterns], backend=_BACKEND)


def _linear(pattern: Any) -> Any:
    """Return an equivalent pattern that takes linear time.

    Otherwise, ``*a*a*a*b`` would take time proportional to the cube of a path's length.

    Only the last star of a path segment needs to try more than one position. If the text between
    two stars is matched as early as possible, the rest of the pattern has the most choice. A
    lookahead and a reference to it keep the regular expression from trying later positions.
    """
    if pattern.regex is None:
        return pattern
    first, *pieces = pattern.regex.pattern.split(_STAR)
    if "".join([first, *pieces]).count(".+") > _MAX_DOUBLE_STARS:
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
    """Return the pattern in a line, or None for ``[z-a]``, a lone ``!`` or a final backslash."""
    try:
        return spec_of([line])
    except (ValueError, re.error):
        return None


def is_ignored(specs: Sequence[tuple[str, GitIgnoreSpec]], path: str) -> bool:
    """Return whether a path is ignored. As in Git, the deepest ignore file decides.

    Args:
        specs: The ignore files that apply to the path, outermost first, each with the path of its
            folder.
        path: The path, which ends with a slash for a folder.
    """
    for base, spec in reversed(specs):
        verdict = spec.check_file(path[len(base) :]).include
        if verdict is not None:
            return verdict
    return False


def matcher_of(include: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that returns whether a path matches any of some patterns.

    A suffix pattern such as ``*.md`` also matches ``NOTES.MD``, but never the contents of a folder
    named ``notes.md``. Other patterns take precedence over suffix patterns.
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
