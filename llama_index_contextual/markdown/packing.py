"""Packing marks into chunks: as full as the budget allows, cut at the strongest mark in reach."""

from __future__ import annotations

import operator
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.markdown import blocks
from llama_index_contextual.markdown.sentences import sentence_starts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index_contextual.markdown.settings import ChunkSettings
    from llama_index_contextual.markdown.tokens import Scale

_SPACE: Final = re.compile(r"\s+")
_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
# In a paragraph without sentences (a gallery of logos, say) every line that starts with a tag, shortcode or image.
_MARKUP_LINE: Final = re.compile(r"^(?=[ \t]*(?:<[a-zA-Z]|\{\{[%<]\s*[^/\s]|\[?!\[))", re.MULTILINE)
_ROW: Final = re.compile(r"\s*<(?:tr|li|dt|p|div|h[1-6]|details)\b", re.IGNORECASE)  # better to cut before than a cell
# Cuts that part an introduction, or an item's first paragraph, from what belongs to it.
_PARTING: Final = frozenset({blocks.INTRO, blocks.CONTINUATION})
# Where no overlap starts: inside a sentence, or between a tag and what it encloses.
_NO_START: Final = frozenset({blocks.SPACE, blocks.CHARACTER, blocks.TAG})
# By how many tokens a part that stands alone may exceed its share of the whole.
_SEAM: Final = 4
# No character is more than four tokens of a byte-level tokenizer.
_TOKENS_PER_CHARACTER: Final = 4


class Piece(NamedTuple):
    """One chunk, before it is described (a tuple, because making one takes a third of the time).

    Attributes:
        start: Offset of its first character, overlap included.
        own: Offset at which what the chunk before does not hold starts.
        end: Offset after its last character that is not white space.
        tokens: Exactly.
        kinds: The kinds of what starts in it.
        atom: The atom that its first character is in the middle of.
    """

    start: int
    own: int
    end: int
    tokens: int
    kinds: set[str]
    atom: blocks.Atom | None


@dataclass(slots=True)
class Marks:
    """The marks of one group of sections, finer inside what alone exceeds the budget; parallel lists."""

    offsets: list[int] = field(default_factory=list)
    strengths: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    atoms: list[blocks.Atom | None] = field(default_factory=list)
    cumulative: list[int] = field(default_factory=list)

    def append(self, offset: int, strength: int, kind: str, atom: blocks.Atom | None, before: int) -> None:
        """Add one mark, with ``before`` tokens before it."""
        self.offsets.append(offset)
        self.strengths.append(strength)
        self.kinds.append(kind)
        self.atoms.append(atom)
        self.cumulative.append(before)


def whole(text: str, outline: blocks.Outline, first: int, last: int, scale: Scale) -> Piece:
    """The piece from mark ``first`` to mark ``last``, uncut."""
    start, stop = outline.offsets[first], outline.offsets[last]
    end = start + len(text[start:stop].rstrip())
    tokens = scale.exact(start, end, stop) if end > start else 0
    return Piece(start, start, end, tokens, set(outline.kinds[first:last]), None)


def refine(
    text: str,
    outline: blocks.Outline,
    sums: Sequence[int],
    between: tuple[int, int],
    scale: Scale,
    settings: ChunkSettings,
) -> Marks:
    """The marks of ``outline`` between two, with finer ones inside blocks over the budget.

    Args:
        text: The document.
        outline: Its marks.
        sums: Tokens before each of them.
        between: Indices of the first mark and of the one after the last.
        scale: Counts tokens.
        settings: The budget.
    """
    first, last = between
    size = settings.chunk_size
    top = first + 1  # after the heading and what holds on to it
    while top < last and not outline.strengths[top]:
        top += 1
    fits = sums[top] - sums[first] <= size or top - 1 in outline.atoms
    before, after = sums[first:last], sums[first + 1 : last + 1]
    if fits and max(map(operator.sub, after, before)) <= size:
        part = slice(first, last)
        atoms: list[blocks.Atom | None] = [None] * (last - first + 1)
        strengths, kinds = [*outline.strengths[part], blocks.SECTION], [*outline.kinds[part], ""]
        return Marks(outline.offsets[first : last + 1], strengths, kinds, atoms, [*before, sums[last]])
    marks = Marks()
    held = sums[first]  # tokens before the heading, if any, that holds on to the block
    shift = 0  # by how much the counts of finer parts exceed the counts of the blocks they are in
    for index in range(first, last):
        tokens = sums[index + 1] - sums[index]
        if outline.strengths[index]:
            held = sums[index]
        kind = outline.kinds[index]
        marks.append(outline.offsets[index], outline.strengths[index], kind, None, sums[index] + shift)
        atom = outline.atoms.get(index)
        if tokens <= size and (atom or sums[index + 1] - held <= size):
            continue  # a paragraph that fits may not fit together with its heading
        start, end = outline.offsets[index : index + 2]
        finer = _finer(text, start, end, (kind, atom), scale, settings, settings.cap - sums[index] + held)
        counts = scale.cumulative([start, *(offset for offset, _ in finer), end])
        for (offset, strength), count in zip(finer, counts[1:], strict=False):
            marks.append(offset, strength, kind, atom, sums[index] + shift + count)
        shift += counts[-1] - tokens
    marks.append(outline.offsets[last], blocks.SECTION, "", None, sums[last] + shift)
    return marks


def _finer(
    text: str,
    start: int,
    end: int,
    what: tuple[str, blocks.Atom | None],
    scale: Scale,
    settings: ChunkSettings,
    cap: int,
) -> list[tuple[int, int]]:
    """Places to cut inside one block over the budget: lines or sentences, and inside those that exceed the cap too."""
    finer = list(_inside(text, start, end, *what))
    offsets = [start, *(offset for offset, _ in finer), end]
    sums = scale.cumulative(offsets)
    step = max(1, settings.chunk_size // _TOKENS_PER_CHARACTER)
    places: list[tuple[int, int]] = []
    for number, (low, high) in enumerate(pairwise(offsets)):
        if number:
            places.append(finer[number - 1])
        tokens = sums[number + 1] - sums[number]
        if tokens > cap or (tokens > cap - _SEAM and _alone(text, low, high, scale) > cap):
            places.extend(_anywhere(text, low, high, step))
    return places


def _alone(text: str, start: int, end: int, scale: Scale) -> int:
    """Tokens of a part without the white space around it: ``" 😀"`` is one of cl100k, ``"😀"`` are two."""
    part = text[start:end]
    begin = start + len(part) - len(part.lstrip())
    return scale.exact(begin, start + len(part.rstrip()), end)


def _closing_fence(text: str, start: int, end: int) -> int:
    """Offset of the line that closes a fence: of the last line if it has nothing but fence characters, else ``end``."""
    last = text[start:end].rstrip()
    line = max(last.rfind("\n"), last.rfind("\r")) + 1
    return start + line if not last[line:].strip("`~> \t") else end


def _anywhere(text: str, start: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    """Places to cut inside one sentence or line, at least every ``step`` characters: after white space if possible."""
    while end - start > step:
        space = max(text.rfind(" ", start + 1, start + step), text.rfind("\n", start + 1, start + step))
        start = space + 1 if space > 0 else start + step
        blank = _SPACE.match(text, start, end)
        start = blank.end() if blank else start
        if start >= end:
            return
        yield start, blocks.SPACE if space > 0 else blocks.CHARACTER


def _inside(text: str, start: int, end: int, kind: str, atom: blocks.Atom | None) -> Iterator[tuple[int, int]]:
    """Places to cut inside one block: (offset, strength)."""
    if atom is None and kind not in {"html", "heading"}:
        starts = sentence_starts(text, start, end)
        for offset in starts:  # one that starts its line needs no ">" before it
            yield offset, blocks.LINE if kind == "quote" and text[offset - 1] in "\r\n" else blocks.SENTENCE
        if not starts:
            yield from ((line.start(), blocks.LINE) for line in _MARKUP_LINE.finditer(text, start + 1, end))
        return
    if kind == "heading":
        return
    lines = [match for match in _LINE.finditer(text, start, end) if match[0].strip()]
    head = 2 if atom and atom.kind == "table" else 1  # a fence's first line, or a table's two, hold on to the next
    closing = end if atom is None or atom.kind == "table" else _closing_fence(text, start, end)
    for number, (before, line) in enumerate(pairwise(lines), start=1):
        offset = line.start()
        if atom and (number <= head or offset >= closing):
            yield offset, blocks.GLUED
        elif kind == "html" and (line[0].lstrip().startswith("</") or blocks.OPENING_LINE.fullmatch(before[0])):
            yield offset, blocks.TAG  # it closes, or the line before opens, what it belongs to
        elif kind == "html" and _ROW.match(line[0]):
            yield offset, blocks.PIECE
        else:
            yield offset, blocks.LINE if before.end() == offset else blocks.PIECE


def pack(text: str, marks: Marks, scale: Scale, settings: ChunkSettings) -> Iterator[Piece]:
    """Cut one group of sections into pieces."""
    offsets, total = marks.offsets, len(marks.offsets) - 1
    first = 0
    start = offsets[0]
    while first < total:
        limit = settings.chunk_size
        if start < offsets[first]:
            limit -= scale.exact(start, offsets[first], offsets[first])
        while True:
            last = _choose(marks, first, limit, settings)
            if last is None and start < offsets[first]:  # the overlap leaves no room: do without
                start, limit = offsets[first], settings.chunk_size
                continue
            if last is not None and start < offsets[first] and marks.strengths[last] in _PARTING:
                alone = _choose(marks, first, settings.chunk_size, settings)
                if alone is not None and marks.strengths[alone] not in _PARTING:  # the overlap took the room
                    start, limit, last = offsets[first], settings.chunk_size, alone
            forced = last is None
            if last is None:
                last = _overflowing(marks, first, settings)
            chunk = text[start : offsets[last]].rstrip()
            end = start + len(chunk)
            tokens = scale.exact(start, end, offsets[last])
            if tokens <= settings.chunk_size or forced:
                break
            limit -= tokens - settings.chunk_size  # the parts' sum was too small: a tokenizer that is not additive
        if end > offsets[first]:  # something that the chunk before does not hold
            atom = marks.atoms[first] if start == offsets[first] else None
            yield Piece(start, offsets[first], end, tokens, set(marks.kinds[first:last]), atom)
        start = _overlap_start(text, marks, first, last, scale, settings)
        first = last


def _choose(marks: Marks, first: int, limit: int, settings: ChunkSettings) -> int | None:
    """The mark to cut at: the strongest in the upper half of the budget, else the last one that fits; None if none."""
    sums, strengths = marks.cumulative, marks.strengths
    total = len(sums) - 1
    reach = bisect_right(sums, sums[first] + limit) - 1
    if reach >= total:
        return total
    floor = sums[first] + limit // 2
    best: int | None = None
    best_rank = (False, 0)
    for mark in range(reach, first, -1):
        if sums[mark] < floor and best is not None:
            if strengths[best] not in _PARTING or sums[mark] - sums[first] < settings.min_chunk_size:
                break
            if sums[best + 1] - sums[mark] > settings.chunk_size:  # what the cut parts does not fit together anyway
                break
        if not strengths[mark]:
            continue
        rank = (sums[total] - sums[mark] >= settings.min_chunk_size, strengths[mark])
        if rank > best_rank:
            best, best_rank = mark, rank
    return best


def _overflowing(marks: Marks, first: int, settings: ChunkSettings) -> int:
    """Where to cut when nothing fits: after the first thing that cannot be cut, unless that exceeds the cap."""
    total = len(marks.offsets) - 1
    last = first + 1
    sums = marks.cumulative
    while last < total and not marks.strengths[last] and sums[last] - sums[first] <= settings.cap:
        last += 1
    if sums[last] - sums[first] > settings.cap:
        last = max(first + 1, bisect_right(sums, sums[first] + settings.chunk_size) - 1)
    return min(last, total)


def _overlap_start(text: str, marks: Marks, first: int, last: int, scale: Scale, settings: ChunkSettings) -> int:
    """Where the next piece starts: whole blocks or sentences before ``last``, in the same section."""
    offsets, sums = marks.offsets, marks.cumulative
    room = settings.chunk_overlap
    at = offsets[last]
    if not room or last >= len(offsets) - 1 or marks.kinds[last] == "heading":
        return at
    start = at
    for mark in range(last - 1, first, -1):
        if sums[last] - sums[mark] > room or marks.kinds[mark] == "heading":
            break
        if marks.kinds[mark] == "quote" and not _reads_as_quote(text, offsets[mark], at):
            continue
        if marks.atoms[mark] is None and marks.strengths[mark] not in _NO_START:
            start = offsets[mark]
    before = last - 1
    if start == at and marks.atoms[before] is None and marks.kinds[before] in {"text", "list", "quote"}:
        starts = [*sentence_starts(text, offsets[before], at), at]
        if marks.kinds[before] == "quote":
            starts = [o for o in starts if _reads_as_quote(text, o, at)]
        tail = scale.cumulative(starts)
        start = next(o for o, t in zip(starts, tail, strict=True) if tail[-1] - t <= room)
    while start < at and scale.exact(start, at, at) > room:
        start = next((o for o in offsets[first:last] if o > start), at)
    return start


def _reads_as_quote(text: str, start: int, end: int) -> bool:
    """Whether part of a quote looks like one: "Rust" above "> uses the term" would be a paragraph above a quote."""
    return text[start - 1] in "\r\n" or "\n" not in text[start:end].rstrip()
