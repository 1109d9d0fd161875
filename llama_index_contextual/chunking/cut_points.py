"""Marks inside what alone exceeds the budget: lines, rows, sentences, and at last anywhere."""

from __future__ import annotations

import operator
import re
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import regex  # type: ignore[import-untyped]

from llama_index_contextual.chunking.outline import (
    CHARACTER,
    GLUED,
    LINE,
    PIECE,
    SECTION,
    SENTENCE,
    SPACE,
    Atom,
    Outline,
)
from llama_index_contextual.chunking.packing import Marks
from llama_index_contextual.text import sentence_starts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index_contextual.chunking.packing import ChunkSettings
    from llama_index_contextual.text.tokens import Scale

_SPACE: Final = re.compile(r"\s+")
_CLUSTER: Final = regex.compile(r"\X")  # what a reader takes for one letter, by Unicode's rules
_LONGEST_CLUSTER: Final = 32  # characters; a longer one is nothing that anybody reads
_ROW: Final = re.compile(r"\s*<(?:tr|li|dt|p|div|h[1-6]|details)\b", re.IGNORECASE)  # better to cut before than a cell
_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
# By how many tokens a part that stands alone may exceed its share of the whole.
_SEAM: Final = 4
# No character is more than four tokens of a byte-level tokenizer.
_TOKENS_PER_CHARACTER: Final = 4


def refine(
    text: str,
    outline: Outline,
    sums: Sequence[int],
    between: tuple[int, int],
    scale: Scale,
    settings: ChunkSettings,
) -> Marks:
    """Return the marks of ``outline`` between two, with finer ones inside blocks over the budget.

    Args:
        text: The document.
        outline: Its marks.
        sums: The weight before each of them.
        between: Indices of the first mark and of the one after the last.
        scale: Counts tokens.
        settings: The budget.
    """
    first, last = between
    size = min(settings.chunk_size, settings.cap - 1)  # alone, a part may have one more token than its share
    top = first + 1  # after the heading and what holds on to it
    while top < last and not outline.strengths[top]:
        top += 1
    fits = sums[top] - sums[first] <= size or top - 1 in outline.atoms
    before, after = sums[first:last], sums[first + 1 : last + 1]
    if fits and max(map(operator.sub, after, before)) <= size:
        part = slice(first, last)
        atoms: list[Atom | None] = [None] * (last - first + 1)
        strengths, kinds = [*outline.strengths[part], SECTION], [*outline.kinds[part], ""]
        return Marks(outline.offsets[first : last + 1], strengths, kinds, atoms, array("q", sums[first : last + 1]))
    marks = Marks()
    held = sums[first]  # the weight before the heading, if any, that holds on to the block
    shift = 0  # by how much the counts of finer parts exceed the counts of the blocks they are in
    for index in range(first, last):
        weight = sums[index + 1] - sums[index]
        if outline.strengths[index]:
            held = sums[index]
        kind = outline.kinds[index]
        marks.append(outline.offsets[index], outline.strengths[index], kind, None, sums[index] + shift)
        atom = outline.atoms.get(index)
        start, end = outline.offsets[index : index + 2]
        if atom:
            most = settings.hard_bound if settings.keep_blocks else settings.chunk_size
            # white space below it does not count
            if weight <= most - _SEAM or _standalone_tokens(text, start, end, scale) <= most:
                continue
        elif weight <= size and (kind == "rule" or sums[index + 1] - held <= size):
            continue  # a paragraph that fits may not fit together with its heading
        above = sums[index] - held
        room = settings.cap - above - (above > 0)  # the sum of two parts may be one less than what they have together
        finer = _cut_points(text, start, end, (kind, atom), scale, settings, room)
        counts = scale.cumulative([start, *(offset for offset, _ in finer), end])
        for (offset, strength), count in zip(finer, counts[1:], strict=False):
            marks.append(offset, strength, kind, atom, sums[index] + shift + count)
        shift += counts[-1] - weight
    marks.append(outline.offsets[last], SECTION, "", None, sums[last] + shift)
    return marks


def _cut_points(
    text: str,
    start: int,
    end: int,
    what: tuple[str, Atom | None],
    scale: Scale,
    settings: ChunkSettings,
    cap: int,
) -> list[tuple[int, int]]:
    """Return places to cut inside one block over the budget: lines or sentences, and inside those over the cap too."""
    finer = [place for place in _inside(text, start, end, *what) if not scale.cuts_run(place[0])]
    offsets = [start, *(offset for offset, _ in finer), end]
    sums = scale.cumulative(offsets)
    step = max(1, settings.chunk_size // _TOKENS_PER_CHARACTER)
    places: list[tuple[int, int]] = []
    for number, (low, high) in enumerate(pairwise(offsets)):
        if number:
            places.append(finer[number - 1])
        weight = sums[number + 1] - sums[number]
        whole = high
        closing = what[1] is not None and what[1].kind != "table" and number == len(finer) - 1
        if closing and finer[number][1] == GLUED:  # a fence's last line holds on to the line before
            weight, whole = sums[-1] - sums[number], end
        if weight > cap or (weight > cap - _SEAM and _standalone_tokens(text, low, whole, scale) > cap):
            inside = _whitespace_cut_points(text, low, high, step)
            places.extend(place for place in inside if not scale.cuts_run(place[0]))
    return places


def _standalone_tokens(text: str, start: int, end: int, scale: Scale) -> int:
    """Return the weight of a part without the white space below it, and with what is more of the one before it.

    A chunk may start with the indentation of its first line. Without it, ``"😀"`` are two tokens, and ``" 😀"`` is one.
    """
    part = text[start:end]
    stop = start + len(part.rstrip())
    bare = min(stop, start + len(part) - len(part.lstrip()))
    return max(scale.cost(begin, stop) for begin in {start, bare})


def _closing_fence(text: str, start: int, end: int) -> int:
    """Return the offset of a fence's last line if that only closes it, as ``{% endhighlight %}`` does, else ``end``."""
    last = text[start:end].rstrip()
    line = max(last.rfind("\n"), last.rfind("\r")) + 1
    return start + line if not last[line:].strip("`~> \t") or "highlight" in last[line:] else end


def _whitespace_cut_points(text: str, start: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield places to cut inside one sentence or line, at least every ``step`` characters: after white space if any."""
    while end - start > step:
        space = max(text.rfind(" ", start + 1, start + step), text.rfind("\n", start + 1, start + step))
        start = space + 1 if space > 0 else _between_letters(text, start, start + step)
        blank = _SPACE.match(text, start, end)
        start = blank.end() if blank else start
        if start >= end:
            return
        yield start, SPACE if space > 0 else CHARACTER


def _between_letters(text: str, start: int, at: int) -> int:
    """Return the last offset up to ``at`` that parts no letter from its vowel signs and marks (Thai, Khmer, emoji)."""
    if text[start : at + 1].isascii():
        return at
    last, window = start, text[start : at + _LONGEST_CLUSTER]  # of flags it counts all that stand before
    for cluster in _CLUSTER.finditer(window):
        if start + cluster.end() > at:
            break
        last = start + cluster.end()
    return last if last > start else at


def _inside(text: str, start: int, end: int, kind: str, atom: Atom | None) -> Iterator[tuple[int, int]]:
    """Yield places to cut inside one block: (offset, strength)."""
    if atom is None and kind not in {"html", "heading"}:
        for offset in sentence_starts(text, start, end):  # one that starts its line needs no ">" before it
            yield offset, LINE if kind == "quote" and text[offset - 1] in "\r\n" else SENTENCE
        return
    if kind == "heading":
        return
    lines = [match for match in _LINE.finditer(text, start, end) if match[0].strip()]
    head = 2 if atom and atom.kind == "table" else 1  # a fence's first line, or a table's two, hold on to the next
    closing = end if atom is None or atom.kind == "table" else _closing_fence(text, start, end)
    for number, (before, line) in enumerate(pairwise(lines), start=1):
        offset = line.start()
        if atom and (number <= head or offset >= closing):
            yield offset, GLUED
        elif kind == "html" and _ROW.match(line[0]):
            yield offset, PIECE
        else:
            yield offset, LINE if before.end() == offset else PIECE
