"""Sentence boundaries, needed where a paragraph alone exceeds the budget and for overlap."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import sentencex

if TYPE_CHECKING:
    from collections.abc import Callable

_segment: Callable[[str, str], list[str]] = sentencex.segment  # type: ignore[attr-defined]  # compiled, untyped
# sentencex is superlinear on one long CJK line (1 MB: 10.8 s), so it reads windows of this many characters.
_WINDOW: Final = 4000
_SPACE: Final = re.compile(r"\s+")
# sentencex ends a sentence between the full stop and the "**" or bracket that closes it.
_CLOSERS: Final = re.compile(r"[*_~`)\]}\"'\u201d\u2019»]+\s*")


def sentence_starts(text: str, start: int, end: int, language: str = "en") -> list[int]:
    """Ascending offsets inside ``text[start:end]``, after ``start``, at which its further sentences start."""
    starts: list[int] = []
    position = start
    while position < end:
        stop = min(end, position + _WINDOW)
        window = text[position:stop]
        parts = [part for part in _segment(language, window) if part]
        if "".join(parts) != window:
            parts = [window]
        if stop < end and len(parts) == 1:
            position = stop  # one sentence longer than a window: its end is for a later one to find
            continue
        if stop < end:
            parts.pop()  # the last sentence of a window may go on: the next window starts with it
        for part in parts:
            position += len(part)
            starts.append(_after_closers(text, position, end))
    return sorted({offset for offset in starts if start < offset < end})


def _after_closers(text: str, position: int, end: int) -> int:
    """Past the marks that close the sentence before and past white space: a sentence starts with neither."""
    if not text[position - 1].isspace() and (closers := _CLOSERS.match(text, position, end)):
        position = closers.end()
    space = _SPACE.match(text, position, end)
    return space.end() if space else position
