"""Packing marks into chunks as large as a caller chose: as full as that allows, cut at the strongest mark in reach."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import BaseModel

from llama_index_contextual.chunking.outline import CHARACTER, CONTINUATION, INTRO, SPACE, Atom, Outline
from llama_index_contextual.errors import Checked, SettingError
from llama_index_contextual.text import sentence_starts
from llama_index_contextual.text.tokens import budget_cost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index_contextual.text.tokens import Scale

MOST_CHUNKS_A_BLOCK: Final = 8  # a code block or table that is kept whole has the size of so many chunks at most
_TOKENIZERS: Final = ("cl100k", "minilm", "e5")
# Cuts that part an introduction, or an item's first paragraph, from what belongs to it.
_PARTING: Final = frozenset({INTRO, CONTINUATION})
_BLOCKS: Final = frozenset({"code", "table"})
_NO_START: Final = frozenset({SPACE, CHARACTER})  # where no overlap starts: inside a sentence


class ChunkSettings(Checked, BaseModel):
    """How a text is cut; sizes are in tokens of ``tokenizer``.

    Attributes:
        chunk_size: A chunk has at most this many tokens. One sentence or code line may have twice as many; its chunk is
            marked ``overflow``.
        chunk_overlap: At most this many tokens of whole sentences or blocks are repeated from the chunk before,
            counted in ``chunk_size``, inside one section only.
        tokenizer: ``"cl100k"``, ``"minilm"``, ``"e5"``, or a callable that returns the tokens of a text, or how many.
            None is LlamaIndex's ``Settings.tokenizer``.
        min_chunk_size: Smaller sections merge with a neighbour; smaller tails are avoided.
        keep_blocks: Whether a code block or table is never cut, up to eight times ``chunk_size``; its chunk is marked
            ``overflow``. Otherwise it is cut at ``chunk_size``, between lines or rows: whole tables of reports cost 4
            points of recall@5 (``benchmarks/results/documents.md``).
        cut_at_rules: Whether every rule (``---``) ends a chunk, however small.
        semantic: False packs lines to the budget and ignores all structure.
    """

    chunk_size: int = 400
    chunk_overlap: int = 80
    tokenizer: str | Callable[[str], Any] | None = None
    min_chunk_size: int = 50
    keep_blocks: bool = False
    cut_at_rules: bool = True
    semantic: bool = True

    if not TYPE_CHECKING:  # a type checker reads the fields instead

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self._check()

    def _check(self) -> None:
        size = self.chunk_size
        if size < 1:
            raise SettingError("is not positive. Cure: a number of tokens such as 400", chunk_size=size)
        if not 0 <= self.chunk_overlap < size:
            raise SettingError(
                f"is not in 0 to {size - 1}, less than a chunk. Cure: a fifth of the chunk size, {size // 5}, or 0",
                chunk_overlap=self.chunk_overlap,
            )
        if not 0 <= self.min_chunk_size <= size:
            raise SettingError(
                f"is not in 0 to the chunk size, {size}. Cure: an eighth of it, {size // 8}, or 0",
                min_chunk_size=self.min_chunk_size,
            )
        if isinstance(self.tokenizer, str) and self.tokenizer not in _TOKENIZERS:
            raise SettingError(
                f"is not known. Cure: one of {', '.join(_TOKENIZERS)}, or a callable that returns the tokens of a text",
                tokenizer=self.tokenizer,
            )

    @property
    def cap(self) -> int:
        """Return the size that nothing exceeds but a block that is kept whole, in tokens."""
        return 2 * self.chunk_size

    @property
    def hard_bound(self) -> int:
        """Return the size that nothing exceeds, in tokens."""
        return MOST_CHUNKS_A_BLOCK * self.chunk_size if self.keep_blocks else self.cap


@dataclass(slots=True)
class Marks:
    """The marks of one group of sections, finer inside what alone exceeds the budget; parallel lists."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    strengths: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    atoms: list[Atom | None] = field(default_factory=list)
    cumulative: array[int] = field(default_factory=lambda: array("q"))

    def append(self, offset: int, strength: int, kind: str, atom: Atom | None, before: int) -> None:
        """Add one mark, with a weight of ``before`` before it."""
        self.offsets.append(offset)
        self.strengths.append(strength)
        self.kinds.append(kind)
        self.atoms.append(atom)
        self.cumulative.append(before)


class Piece(NamedTuple):
    """One chunk, before it is described (a tuple, because making one takes a third of the time).

    Attributes:
        start: Offset of its first character, overlap included.
        fresh: Offset at which what the chunk before does not hold starts.
        end: Offset after its last character that is not white space.
        tokens: Exactly.
        kinds: The kinds of what starts in it.
        atom: The atom that its first character is in the middle of.
    """

    start: int
    fresh: int
    end: int
    tokens: int
    kinds: set[str]
    atom: Atom | None


def piece_between(text: str, outline: Outline, first: int, last: int, scale: Scale) -> Piece:
    """Return the piece from mark ``first`` to mark ``last``, piece_between."""
    start, stop = outline.offsets[first], outline.offsets[last]
    end = start + len(text[start:stop].rstrip())
    tokens = scale.exact(start, end) if end > start else 0
    return Piece(start, start, end, tokens, set(outline.kinds[first:last]), None)


def pack(text: str, marks: Marks, scale: Scale, settings: ChunkSettings) -> Iterator[Piece]:
    """Cut one group of sections into pieces."""
    offsets, total = marks.offsets, len(marks.offsets) - 1
    first = 0
    start = offsets[0]
    while first < total:
        limit, most = settings.chunk_size, _bound(marks, first, settings)
        if start < offsets[first]:
            limit -= scale.exact(start, offsets[first])
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
            last = _overflowing(marks, first, most, settings) if last is None else last
            chunk = text[start : offsets[last]].rstrip()
            end = start + len(chunk)
            tokens = scale.exact(start, end)
            over = budget_cost(tokens, scale.part(start, end)) - (
                _bound(marks, first, settings) if forced else settings.chunk_size
            )
            if over <= 0 or (forced and last == first + 1):
                break
            # the parts' sum was too small: a tokenizer that is not additive
            limit, most = (limit, most - over) if forced else (limit - over, most)
        if end > offsets[first]:  # something that the chunk before does not hold
            atom = marks.atoms[first] if start == offsets[first] else None
            yield Piece(start, offsets[first], end, tokens, set(marks.kinds[first:last]), atom)
        start = _overlap_start(text, marks, first, last, scale, settings)
        first = last


def _choose(marks: Marks, first: int, limit: int, settings: ChunkSettings) -> int | None:
    """Return the strongest mark in the upper half of the budget, else the last one that fits; None if none does."""
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


def _bound(marks: Marks, first: int, settings: ChunkSettings) -> int:
    """Return the size that a chunk may have where nothing fits: more if it holds a block that stays whole."""
    last, sums = first, marks.cumulative
    while last == first or (not marks.strengths[last] and sums[last] - sums[first] <= settings.hard_bound):
        if marks.kinds[last] in _BLOCKS:
            return settings.hard_bound
        last += 1
    return settings.cap


def _overflowing(marks: Marks, first: int, most: int, settings: ChunkSettings) -> int:
    """Return where to cut when nothing fits: after the first thing that cannot be cut, unless that exceeds ``most``."""
    total = len(marks.offsets) - 1
    last = first + 1
    sums = marks.cumulative
    while last < total and not marks.strengths[last] and sums[last] - sums[first] <= most:
        if marks.kinds[last] == "heading" and sums[last + 1] - sums[first] > settings.chunk_size:
            return last  # one more heading without text; any of them may start a chunk
        last += 1
    if sums[last] - sums[first] > most:
        last = max(first + 1, bisect_right(sums, sums[first] + min(most, settings.chunk_size)) - 1)
    return min(last, total)


def _overlap_start(text: str, marks: Marks, first: int, last: int, scale: Scale, settings: ChunkSettings) -> int:
    """Return where the next piece starts: whole blocks or sentences before ``last``, in the same section."""
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
        if marks.atoms[mark] is None and marks.kinds[mark] != "rule" and marks.strengths[mark] not in _NO_START:
            start = offsets[mark]
    before = last - 1
    if start == at and marks.atoms[before] is None and marks.kinds[before] in {"text", "list", "quote"}:
        starts = [*sentence_starts(text, offsets[before], at), at]
        if marks.kinds[before] == "quote":
            starts = [o for o in starts if _reads_as_quote(text, o, at)]
        tail = scale.cumulative(starts)
        start = next(o for o, t in zip(starts, tail, strict=True) if tail[-1] - t <= room)
    while start < at and scale.exact(start, at) > room:
        later = (offsets[mark] for mark in range(first, last) if marks.kinds[mark] != "rule")
        start = next((offset for offset in later if offset > start), at)
    return start


def _reads_as_quote(text: str, start: int, end: int) -> bool:
    """Return whether part of a quote looks like one: "Rust" above "> uses the term" would be a paragraph above it."""
    return text[start - 1] in "\r\n" or "\n" not in text[start:end].rstrip()
